"""The verbs for users, permissions, vhosts, parameters and policies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from warren.actors.engines.errors import ArgumentsError
from warren.ctl.verb import VHOST, Arguments, Verb, Work, list_verb
from warren.hosting.running_node import RunningNode
from warren.verbs.steps import Steps, run
from warren.verbs.vhost_verbs import NodeVerbs, VhostVerbs

Rows = list[dict[str, Any]]
_PERMISSIONS: Final = ("configure", "write", "read")


def _asks(steps: Callable[[NodeVerbs, Arguments], Steps[Any]]) -> Work:
    """Return work that is one verb of the node."""
    return lambda node, arguments: run(steps(NodeVerbs(node), arguments))


def _of(arguments: Arguments, *names: str) -> dict[str, Any]:
    return {name: arguments[name] for name in names}


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ArgumentsError(f"a JSON object is expected, not {value!r:.100}")
    return value


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _with_texts(rows: Rows, column: str) -> Rows:
    """Return the rows with a column of JSON as text."""
    return [row | {column: _text(row[column])} for row in rows]


def _message(answer: Any) -> str:
    return str(answer["message"])


def _limits(limit: str) -> tuple[str, ...]:
    return () if limit == "all" else (limit,)


def _list_user_limits(node: RunningNode, arguments: Arguments) -> Any:
    users = run(NodeVerbs(node).users())
    if arguments["global"]:
        return [{"user": user["name"], "limits": _text(user["limits"])} for user in users if user["limits"]]
    run(NodeVerbs(node).permissions(arguments["user"]))  # raises if the user does not exist
    return {"message": next(_text(user["limits"]) for user in users if user["name"] == arguments["user"])}


def _add_vhost(node: RunningNode, arguments: Arguments) -> None:
    verbs, name = NodeVerbs(node), arguments["vhost"]
    if name in run(verbs.vhosts()):
        return
    run(verbs.vhost(name))
    metadata = _of(arguments, "description", "tags", "default_queue_type")
    if metadata["tags"] is not None:
        metadata["tags"] = [tag.strip() for tag in metadata["tags"].split(",")]
    if any(value is not None for value in metadata.values()):
        run(verbs.set_vhost_metadata(name, **metadata))


def _list_vhosts(node: RunningNode, _: Arguments) -> Rows:
    verbs = NodeVerbs(node)
    rows = []
    for name in run(verbs.vhosts()):
        metadata = run(verbs.vhost_metadata(name))
        state = "running" if name in node.registry.vhosts else "stopped"
        rows.append({"name": name, "default_queue_type": None, **metadata, "tracing": False, "state": state})
    return rows


def _list_vhost_limits(node: RunningNode, arguments: Arguments) -> Any:
    verbs = NodeVerbs(node)
    if not arguments["global"]:
        limits = run(verbs.vhost_limits(arguments["vhost"]))
        return {"message": _text(limits) if limits else ""}
    vhost_limits = [(name, run(verbs.vhost_limits(name))) for name in run(verbs.vhosts())]
    return [{"vhost": name, "limits": _text(limits)} for name, limits in vhost_limits if limits]


def _list_parameters(node: RunningNode, arguments: Arguments) -> Rows:
    node.vhost(arguments["vhost"])
    rows = _with_texts(run(NodeVerbs(node).parameters(arguments["vhost"])), "value")
    return [_of(row, "component", "name", "value") for row in rows]


ACCESS: Final[dict[str, Verb]] = {
    "add_user": Verb(
        takes=("user", "password?"),
        says='Adding user "{user}" ...',
        work=_asks(lambda node, given: node.add_user(given["user"], given["password"])),
    ),
    "authenticate_user": Verb(
        takes=("user", "password?"),
        says='Authenticating user "{user}" ...',
        work=_asks(lambda node, given: node.authenticate(given["user"], given["password"])),
        shown="text",
        text=lambda _: "Success",
    ),
    "change_password": Verb(
        takes=("user", "password?"),
        says='Changing password for user "{user}" ...',
        work=_asks(lambda node, given: node.change_password(given["user"], given["password"])),
    ),
    "clear_password": Verb(
        takes=("user",),
        says='Clearing password for user "{user}" ...',
        work=_asks(lambda node, given: node.change_password(given["user"], None)),
    ),
    "delete_user": Verb(
        takes=("user",),
        says='Deleting user "{user}" ...',
        work=_asks(lambda node, given: node.delete_user(given["user"])),
    ),
    "list_users": Verb(
        says="Listing users ...",
        work=lambda node, _: [{"user": user["name"], "tags": user["tags"]} for user in run(NodeVerbs(node).users())],
        shown="rows",
        columns=("user", "tags"),
    ),
    "set_user_tags": Verb(
        takes=("user", "tags*"),
        says='Setting tags for user "{user}" to [{tags}] ...',
        work=_asks(lambda node, given: node.set_user_tags(given["user"], given["tags"])),
    ),
    "set_user_limits": Verb(
        takes=("user", "limits:json"),
        says='Setting user limits to "{limits}" for user "{user}" ...',
        work=_asks(lambda node, given: node.set_user_limits(given["user"], _object(given["limits"]))),
    ),
    "clear_user_limits": Verb(
        takes=("user", "limit"),
        says='Clearing "{limit}" limit for user "{user}" ...',
        work=_asks(lambda node, given: node.clear_user_limits(given["user"], *_limits(given["limit"]))),
    ),
    "list_user_limits": Verb(
        says="Listing limits of users ...",
        work=_list_user_limits,
        options=frozenset({"user", "global"}),
        defaults={"user": "guest"},
        shown="rows",
        columns=("user", "limits"),
        text=_message,
    ),
    "set_permissions": Verb(
        takes=("user", *_PERMISSIONS),
        says='Setting permissions for user "{user}" in vhost "{vhost}" ...',
        work=_asks(lambda node, given: node.set_permissions(**_of(given, "user", *_PERMISSIONS, "vhost"))),
        options=VHOST,
    ),
    "clear_permissions": Verb(
        takes=("user",),
        says='Clearing permissions for user "{user}" in vhost "{vhost}" ...',
        work=_asks(lambda node, given: node.clear_permissions(**_of(given, "user", "vhost"))),
        options=VHOST,
    ),
    "list_permissions": Verb(
        says='Listing permissions for vhost "{vhost}" ...',
        work=_asks(lambda node, given: node.permissions(vhost=given["vhost"])),
        options=VHOST,
        shown="rows",
        columns=("user", *_PERMISSIONS),
    ),
    "list_user_permissions": Verb(
        takes=("user",),
        says='Listing permissions for user "{user}" ...',
        work=_asks(lambda node, given: node.permissions(given["user"])),
        shown="rows",
        columns=("vhost", *_PERMISSIONS),
    ),
    "set_topic_permissions": Verb(
        takes=("user", "exchange", "write", "read"),
        says='Setting topic permissions on "{exchange}" for user "{user}" in vhost "{vhost}" ...',
        work=_asks(
            lambda node, given: node.set_topic_permissions(**_of(given, "user", "exchange", "write", "read", "vhost"))
        ),
        options=VHOST,
    ),
    "clear_topic_permissions": Verb(
        takes=("user", "exchange?"),
        says='Clearing topic permissions for user "{user}" in vhost "{vhost}" ...',
        work=_asks(lambda node, given: node.clear_topic_permissions(**_of(given, "user", "exchange", "vhost"))),
        options=VHOST,
    ),
    "list_topic_permissions": Verb(
        says='Listing topic permissions for vhost "{vhost}" ...',
        work=_asks(lambda node, given: node.topic_permissions(vhost=given["vhost"])),
        options=VHOST,
        shown="rows",
        columns=("user", "exchange", "write", "read"),
    ),
    "list_user_topic_permissions": Verb(
        takes=("user",),
        says='Listing topic permissions for user "{user}" ...',
        work=_asks(lambda node, given: node.topic_permissions(given["user"])),
        shown="rows",
        columns=("vhost", "exchange", "write", "read"),
    ),
    "add_vhost": Verb(
        takes=("vhost",),
        says='Adding vhost "{vhost}" ...',
        work=_add_vhost,
        options=frozenset({"description", "tags", "default_queue_type"}),
    ),
    "delete_vhost": Verb(
        takes=("vhost",),
        says='Deleting vhost "{vhost}" ...',
        work=_asks(lambda node, given: node.delete_vhost(given["vhost"])),
    ),
    "list_vhosts": list_verb(
        _list_vhosts,
        "Listing vhosts ...",
        ("name",),
        ("name", "description", "tags", "default_queue_type", "tracing", "state"),
    ),
    "set_vhost_tags": Verb(
        takes=("vhost", "tags*"),
        says='Setting tags for vhost "{vhost}" to [{tags}] ...',
        work=_asks(lambda node, given: node.set_vhost_metadata(given["vhost"], tags=given["tags"])),
    ),
    "set_vhost_limits": Verb(
        takes=("limits:json",),
        says='Setting vhost limits to "{limits}" for vhost "{vhost}" ...',
        work=_asks(lambda node, given: node.set_vhost_limits(_object(given["limits"]), vhost=given["vhost"])),
        options=VHOST,
    ),
    "clear_vhost_limits": Verb(
        says='Clearing vhost "{vhost}" limits ...',
        work=_asks(lambda node, given: node.clear_vhost_limits(vhost=given["vhost"])),
        options=VHOST,
    ),
    "list_vhost_limits": Verb(
        says="Listing limits of vhosts ...",
        work=_list_vhost_limits,
        options=frozenset({"vhost", "global"}),
        shown="rows",
        columns=("vhost", "limits"),
        text=_message,
    ),
    "set_parameter": Verb(
        takes=("component", "name", "value:json"),
        says='Setting runtime parameter "{name}" for component "{component}" to "{value}" in vhost "{vhost}" ...',
        work=_asks(lambda node, given: node.set_parameter(**_of(given, "component", "name", "value", "vhost"))),
        options=VHOST,
    ),
    "clear_parameter": Verb(
        takes=("component", "name"),
        says='Clearing runtime parameter "{name}" for component "{component}" on vhost "{vhost}" ...',
        work=_asks(lambda node, given: node.clear_parameter(**_of(given, "component", "name", "vhost"))),
        options=VHOST,
    ),
    "list_parameters": Verb(
        says='Listing runtime parameters for vhost "{vhost}" ...',
        work=_list_parameters,
        options=VHOST,
        shown="rows",
        columns=("component", "name", "value"),
    ),
    "set_global_parameter": Verb(
        takes=("name", "value:json"),
        says='Setting global runtime parameter "{name}" to "{value}" ...',
        work=_asks(lambda node, given: node.set_global_parameter(given["name"], given["value"])),
    ),
    "clear_global_parameter": Verb(
        takes=("name",),
        says='Clearing global runtime parameter "{name}" ...',
        work=_asks(lambda node, given: node.clear_global_parameter(given["name"])),
    ),
    "list_global_parameters": Verb(
        says="Listing global runtime parameters ...",
        work=lambda node, _: _with_texts(run(NodeVerbs(node).global_parameters()), "value"),
        shown="rows",
        columns=("name", "value"),
    ),
}
"""Users, permissions, vhosts, parameters."""


def _vhost(node: RunningNode, arguments: Arguments) -> VhostVerbs:
    node.vhost(arguments["vhost"])
    return VhostVerbs(node, arguments["vhost"])


def _policies(
    kind: str,
    setting: str,
    plural: str,
    listed: str,
    *,
    set_verb: Callable[..., Steps[None]],
    clear_verb: Callable[[VhostVerbs, str], Steps[None]],
    list_verb: Callable[[VhostVerbs], Steps[Rows]],
) -> dict[str, Verb]:
    """Return the verbs for policies of one kind; ``set_verb`` and so on are those of a vhost that they perform."""

    def set_policy(node: RunningNode, arguments: Arguments) -> None:
        definition, options = _object(arguments["definition"]), _of(arguments, "priority", "apply_to")
        run(set_verb(_vhost(node, arguments), arguments["name"], arguments["pattern"], definition, **options))

    def clear_policy(node: RunningNode, arguments: Arguments) -> None:
        run(clear_verb(_vhost(node, arguments), arguments["name"]))

    def list_policies(node: RunningNode, arguments: Arguments) -> Rows:
        return _with_texts(run(list_verb(_vhost(node, arguments))), "definition")

    return {
        f"set_{kind}": Verb(
            takes=("name", "pattern", "definition:json"),
            says=f'Setting {setting} "{{name}}" for pattern "{{pattern}}" to "{{definition}}" with priority '
            '"{priority}" for vhost "{vhost}" ...',
            work=set_policy,
            options=frozenset({"vhost", "priority", "apply_to"}),
            defaults={"priority": 0, "apply_to": "all"},
        ),
        f"clear_{kind}": Verb(
            takes=("name",),
            says=f'Clearing {kind.replace("_", " ")} "{{name}}" on vhost "{{vhost}}" ...',
            work=clear_policy,
            options=VHOST,
        ),
        f"list_{plural}": Verb(
            says=f'Listing {listed} for vhost "{{vhost}}" ...',
            work=list_policies,
            options=VHOST,
            shown="rows",
            columns=("vhost", "name", "pattern", "apply-to", "definition", "priority"),
        ),
    }


POLICIES: Final[dict[str, Verb]] = {
    **_policies(
        "policy",
        "policy",
        "policies",
        "policies",
        set_verb=VhostVerbs.set_policy,
        clear_verb=VhostVerbs.clear_policy,
        list_verb=VhostVerbs.policies,
    ),
    **_policies(
        "operator_policy",
        "operator policy override",
        "operator_policies",
        "operator policy overrides",
        set_verb=VhostVerbs.set_operator_policy,
        clear_verb=VhostVerbs.clear_operator_policy,
        list_verb=VhostVerbs.operator_policies,
    ),
}
