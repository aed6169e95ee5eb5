"""The verbs for users, permissions, vhosts, parameters and policies."""

from __future__ import annotations

import functools
import json
from typing import Any, Final

from warren.ctl.verb import Arguments, Verb, list_verb, performing
from warren.hosting.running_node import RunningNode
from warren.verbs.steps import run
from warren.verbs.user_verbs import UserVerbs
from warren.verbs.vhost_host import LocalVhost
from warren.verbs.vhost_verbs import NodeVerbs, VhostVerbs

Rows = list[dict[str, Any]]


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _values_as_text(rows: Rows) -> Rows:
    return [row | {"value": _text(row["value"])} for row in rows]


def _definitions_as_text(rows: Rows) -> Rows:
    return [row | {"definition": _text(row["definition"])} for row in rows]


def _named_users(users: Rows) -> Rows:
    return [{"user": user["name"], "tags": user["tags"]} for user in users]


def _message(answer: Any) -> str:
    return str(answer["message"])


def _clear_user_limits(node: RunningNode, arguments: Arguments) -> None:
    limits = () if arguments["limit"] == "all" else (arguments["limit"],)
    run(UserVerbs(LocalVhost(node)).clear_user_limits(arguments["user"], *limits))


def _list_user_limits(node: RunningNode, arguments: Arguments) -> Any:
    users = run(UserVerbs(LocalVhost(node)).users())
    if arguments["global"]:
        return [{"user": user["name"], "limits": _text(user["limits"])} for user in users if user["limits"]]
    run(UserVerbs(LocalVhost(node)).permissions(arguments["user"]))  # raises if the user does not exist
    return {"message": next(_text(user["limits"]) for user in users if user["name"] == arguments["user"])}


def _add_vhost(node: RunningNode, arguments: Arguments) -> None:
    verbs, name = NodeVerbs(LocalVhost(node)), arguments["vhost"]
    if name in run(verbs.vhosts()):
        return
    run(verbs.vhost(name))
    metadata = {name: arguments[name] for name in ("description", "tags", "default_queue_type")}
    if metadata["tags"] is not None:
        metadata["tags"] = [tag.strip() for tag in metadata["tags"].split(",")]
    if any(value is not None for value in metadata.values()):
        run(verbs.users.set_vhost_metadata(name, **metadata))


def _list_vhosts(node: RunningNode, _: Arguments) -> Rows:
    verbs = NodeVerbs(LocalVhost(node))
    rows = []
    for name in run(verbs.vhosts()):
        metadata = run(verbs.users.vhost_metadata(name))
        state = "running" if name in node.registry.vhosts else "stopped"
        rows.append(
            {
                "name": name,
                "default_queue_type": None,
                **metadata,
                "tracing": name in node.registry.traced,
                "state": state,
            }
        )
    return rows


def _list_vhost_limits(node: RunningNode, arguments: Arguments) -> Any:
    verbs = NodeVerbs(LocalVhost(node))
    if not arguments["global"]:
        limits = run(verbs.users.vhost_limits(arguments["vhost"]))
        return {"message": _text(limits) if limits else ""}
    vhost_limits = [(name, run(verbs.users.vhost_limits(name))) for name in run(verbs.vhosts())]
    return [{"vhost": name, "limits": _text(limits)} for name, limits in vhost_limits if limits]


def _list_parameters(node: RunningNode, arguments: Arguments) -> Rows:
    node.vhost(arguments["vhost"])
    return _values_as_text(run(UserVerbs(LocalVhost(node)).parameters(arguments["vhost"])))


_of_users = functools.partial(performing, of=UserVerbs)

ACCESS: Final[dict[str, Verb]] = {
    "add_user": _of_users(UserVerbs.add_user, "user password?", 'Adding user "{user}" ...'),
    "authenticate_user": _of_users(
        UserVerbs.authenticate, "user password?", 'Authenticating user "{user}" ...', text=lambda _: "Success"
    ),
    "change_password": _of_users(
        UserVerbs.change_password, "user password?", 'Changing password for user "{user}" ...'
    ),
    "clear_password": Verb(
        syntax="user",
        says='Clearing password for user "{user}" ...',
        work=lambda node, arguments: run(UserVerbs(LocalVhost(node)).change_password(arguments["user"], None)),
    ),
    "delete_user": _of_users(UserVerbs.delete_user, "user", 'Deleting user "{user}" ...'),
    "list_users": _of_users(UserVerbs.users, "", "Listing users ...", "user tags", shape=_named_users),
    "set_user_tags": _of_users(UserVerbs.set_user_tags, "user tags*", 'Setting tags for user "{user}" to [{tags}] ...'),
    "set_user_limits": _of_users(
        UserVerbs.set_user_limits, "user limits:object", 'Setting user limits to "{limits}" for user "{user}" ...'
    ),
    "clear_user_limits": Verb(
        syntax="user limit", says='Clearing "{limit}" limit for user "{user}" ...', work=_clear_user_limits
    ),
    "list_user_limits": Verb(
        syntax="--user --global",
        says="Listing limits of users ...",
        work=_list_user_limits,
        defaults={"user": "guest"},
        shown="rows",
        columns=("user", "limits"),
        text=_message,
    ),
    "set_permissions": _of_users(
        UserVerbs.set_permissions,
        "user configure write read --vhost",
        'Setting permissions for user "{user}" in vhost "{vhost}" ...',
    ),
    "clear_permissions": _of_users(
        UserVerbs.clear_permissions, "user --vhost", 'Clearing permissions for user "{user}" in vhost "{vhost}" ...'
    ),
    "list_permissions": _of_users(
        UserVerbs.permissions,
        "--vhost",
        'Listing permissions for vhost "{vhost}" ...',
        "user configure write read",
    ),
    "list_user_permissions": _of_users(
        UserVerbs.permissions, "user", 'Listing permissions for user "{user}" ...', "vhost configure write read"
    ),
    "set_topic_permissions": _of_users(
        UserVerbs.set_topic_permissions,
        "user exchange write read --vhost",
        'Setting topic permissions on "{exchange}" for user "{user}" in vhost "{vhost}" ...',
    ),
    "clear_topic_permissions": _of_users(
        UserVerbs.clear_topic_permissions,
        "user exchange? --vhost",
        'Clearing topic permissions for user "{user}" in vhost "{vhost}" ...',
    ),
    "list_topic_permissions": _of_users(
        UserVerbs.topic_permissions,
        "--vhost",
        'Listing topic permissions for vhost "{vhost}" ...',
        "user exchange write read",
    ),
    "list_user_topic_permissions": _of_users(
        UserVerbs.topic_permissions,
        "user",
        'Listing topic permissions for user "{user}" ...',
        "vhost exchange write read",
    ),
    "add_vhost": Verb(
        syntax="vhost --description --tags --default_queue_type",
        says='Adding vhost "{vhost}" ...',
        work=_add_vhost,
    ),
    "delete_vhost": performing(NodeVerbs.delete_vhost, "vhost", 'Deleting vhost "{vhost}" ...'),
    "list_vhosts": list_verb(
        _list_vhosts,
        "Listing vhosts ...",
        ("name",),
        ("name", "description", "tags", "default_queue_type", "tracing", "state"),
    ),
    "set_vhost_tags": Verb(
        syntax="vhost tags*",
        says='Setting tags for vhost "{vhost}" to [{tags}] ...',
        work=lambda node, given: run(
            UserVerbs(LocalVhost(node)).set_vhost_metadata(given["vhost"], tags=given["tags"])
        ),
    ),
    "set_vhost_limits": _of_users(
        UserVerbs.set_vhost_limits,
        "limits:object --vhost",
        'Setting vhost limits to "{limits}" for vhost "{vhost}" ...',
    ),
    "clear_vhost_limits": _of_users(UserVerbs.clear_vhost_limits, "--vhost", 'Clearing vhost "{vhost}" limits ...'),
    "list_vhost_limits": Verb(
        syntax="--vhost --global",
        says="Listing limits of vhosts ...",
        work=_list_vhost_limits,
        shown="rows",
        columns=("vhost", "limits"),
        text=_message,
    ),
    "set_parameter": _of_users(
        UserVerbs.set_parameter,
        "component name value:json --vhost",
        'Setting runtime parameter "{name}" for component "{component}" to "{value}" in vhost "{vhost}" ...',
    ),
    "clear_parameter": _of_users(
        UserVerbs.clear_parameter,
        "component name --vhost",
        'Clearing runtime parameter "{name}" for component "{component}" on vhost "{vhost}" ...',
    ),
    "list_parameters": Verb(
        syntax="--vhost",
        says='Listing runtime parameters for vhost "{vhost}" ...',
        work=_list_parameters,
        shown="rows",
        columns=("component", "name", "value"),
    ),
    "set_global_parameter": _of_users(
        UserVerbs.set_global_parameter,
        "name value:json",
        'Setting global runtime parameter "{name}" to "{value}" ...',
    ),
    "clear_global_parameter": _of_users(
        UserVerbs.clear_global_parameter, "name", 'Clearing global runtime parameter "{name}" ...'
    ),
    "list_global_parameters": _of_users(
        UserVerbs.global_parameters, "", "Listing global runtime parameters ...", "name value", shape=_values_as_text
    ),
}
"""Users, permissions, vhosts, parameters."""

_POLICY: Final = "name pattern definition:object --vhost --priority --apply_to"
_OF_POLICY: Final = 'for pattern "{pattern}" to "{definition}" with priority "{priority}" for vhost "{vhost}" ...'
_DEFAULTS: Final = {"priority": 0, "apply_to": "all"}
_LISTED: Final = "vhost name pattern apply-to definition priority"

POLICIES: Final[dict[str, Verb]] = {
    "set_policy": performing(
        VhostVerbs.set_policy, _POLICY, f'Setting policy "{{name}}" {_OF_POLICY}', of=VhostVerbs, defaults=_DEFAULTS
    ),
    "clear_policy": performing(
        VhostVerbs.clear_policy, "name --vhost", 'Clearing policy "{name}" on vhost "{vhost}" ...', of=VhostVerbs
    ),
    "list_policies": performing(
        VhostVerbs.policies,
        "--vhost",
        'Listing policies for vhost "{vhost}" ...',
        _LISTED,
        of=VhostVerbs,
        shape=_definitions_as_text,
    ),
    "set_operator_policy": performing(
        VhostVerbs.set_operator_policy,
        _POLICY,
        f'Setting operator policy override "{{name}}" {_OF_POLICY}',
        of=VhostVerbs,
        defaults=_DEFAULTS,
    ),
    "clear_operator_policy": performing(
        VhostVerbs.clear_operator_policy,
        "name --vhost",
        'Clearing operator policy "{name}" on vhost "{vhost}" ...',
        of=VhostVerbs,
    ),
    "list_operator_policies": performing(
        VhostVerbs.operator_policies,
        "--vhost",
        'Listing operator policy overrides for vhost "{vhost}" ...',
        _LISTED,
        of=VhostVerbs,
        shape=_definitions_as_text,
    ),
}
