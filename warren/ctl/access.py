"""The verbs for users, permissions, vhosts, parameters and policies."""

from __future__ import annotations

import json
from typing import Any

from warren.actors.engines.errors import ArgumentsError
from warren.ctl.verb import Arguments
from warren.hosting.running_node import RunningNode
from warren.verbs.steps import run
from warren.verbs.vhost_verbs import NodeVerbs, VhostVerbs

Rows = list[dict[str, Any]]


# ── users ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def add_user(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).add_user(arguments["user"], arguments["password"]))


def authenticate_user(node: RunningNode, arguments: Arguments) -> Any:
    return run(NodeVerbs(node).authenticate(arguments["user"], arguments["password"]))


def change_password(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).change_password(arguments["user"], arguments["password"]))


def clear_password(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).change_password(arguments["user"], None))


def delete_user(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).delete_user(arguments["user"]))


def list_users(node: RunningNode, _: Arguments) -> Rows:
    return [{"user": user["name"], "tags": user["tags"]} for user in run(NodeVerbs(node).users())]


def set_user_tags(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).set_user_tags(arguments["user"], arguments["tags"]))


def set_user_limits(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).set_user_limits(arguments["user"], _object(arguments["limits"])))


def clear_user_limits(node: RunningNode, arguments: Arguments) -> None:
    limits = () if arguments["limit"] == "all" else (arguments["limit"],)
    run(NodeVerbs(node).clear_user_limits(arguments["user"], *limits))


def list_user_limits(node: RunningNode, arguments: Arguments) -> Any:
    users = run(NodeVerbs(node).users())
    if arguments["global"]:
        return [{"user": user["name"], "limits": _text(user["limits"])} for user in users if user["limits"]]
    run(NodeVerbs(node).permissions(arguments["user"]))  # raises if the user does not exist
    return {"message": next(_text(user["limits"]) for user in users if user["name"] == arguments["user"])}


# ── permissions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def set_permissions(node: RunningNode, arguments: Arguments) -> None:
    patterns = arguments["configure"], arguments["write"], arguments["read"]
    run(NodeVerbs(node).set_permissions(arguments["user"], *patterns, vhost=arguments["vhost"]))


def clear_permissions(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).clear_permissions(arguments["user"], vhost=arguments["vhost"]))


def list_permissions(node: RunningNode, arguments: Arguments) -> Rows:
    return run(NodeVerbs(node).permissions(vhost=arguments["vhost"]))


def list_user_permissions(node: RunningNode, arguments: Arguments) -> Rows:
    return run(NodeVerbs(node).permissions(arguments["user"]))


def set_topic_permissions(node: RunningNode, arguments: Arguments) -> None:
    patterns = arguments["write"], arguments["read"]
    run(
        NodeVerbs(node).set_topic_permissions(
            arguments["user"], arguments["exchange"], *patterns, vhost=arguments["vhost"]
        )
    )


def clear_topic_permissions(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).clear_topic_permissions(arguments["user"], arguments["exchange"], vhost=arguments["vhost"]))


def list_topic_permissions(node: RunningNode, arguments: Arguments) -> Rows:
    return run(NodeVerbs(node).topic_permissions(vhost=arguments["vhost"]))


def list_user_topic_permissions(node: RunningNode, arguments: Arguments) -> Rows:
    return run(NodeVerbs(node).topic_permissions(arguments["user"]))


# ── vhosts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def add_vhost(node: RunningNode, arguments: Arguments) -> None:
    verbs = NodeVerbs(node)
    if arguments["vhost"] in run(verbs.vhosts()):
        return
    run(verbs.vhost(arguments["vhost"]))
    kind, description = arguments["default_queue_type"], arguments["description"]
    tags = None if arguments["tags"] is None else [tag.strip() for tag in arguments["tags"].split(",")]
    if (description, tags, kind) != (None, None, None):
        run(verbs.set_vhost_metadata(arguments["vhost"], description=description, tags=tags, default_queue_type=kind))


def delete_vhost(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).delete_vhost(arguments["vhost"]))


def list_vhosts(node: RunningNode, _: Arguments) -> Rows:
    verbs = NodeVerbs(node)
    rows = []
    for name in run(verbs.vhosts()):
        metadata = run(verbs.vhost_metadata(name))
        state = "running" if name in node.actor.vhosts else "stopped"
        rows.append({"name": name, "default_queue_type": None, **metadata, "tracing": False, "state": state})
    return rows


def set_vhost_tags(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).set_vhost_metadata(arguments["vhost"], tags=arguments["tags"]))


def set_vhost_limits(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).set_vhost_limits(_object(arguments["limits"]), vhost=arguments["vhost"]))


def clear_vhost_limits(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).clear_vhost_limits(vhost=arguments["vhost"]))


def list_vhost_limits(node: RunningNode, arguments: Arguments) -> Any:
    verbs = NodeVerbs(node)
    if not arguments["global"]:
        limits = run(verbs.vhost_limits(arguments["vhost"]))
        return {"message": _text(limits) if limits else ""}
    vhost_limits = [(name, run(verbs.vhost_limits(name))) for name in run(verbs.vhosts())]
    return [{"vhost": name, "limits": _text(limits)} for name, limits in vhost_limits if limits]


# ── parameters ───────────────────────────────────────────────────────────────────────────────────────────────────────


def set_parameter(node: RunningNode, arguments: Arguments) -> None:
    run(
        NodeVerbs(node).set_parameter(
            arguments["component"], arguments["name"], arguments["value"], vhost=arguments["vhost"]
        )
    )


def clear_parameter(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).clear_parameter(arguments["component"], arguments["name"], vhost=arguments["vhost"]))


def list_parameters(node: RunningNode, arguments: Arguments) -> Rows:
    node.vhost(arguments["vhost"])
    parameters = run(NodeVerbs(node).parameters(arguments["vhost"]))
    return [
        {"component": parameter["component"], "name": parameter["name"], "value": _text(parameter["value"])}
        for parameter in parameters
    ]


def set_global_parameter(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).set_global_parameter(arguments["name"], arguments["value"]))


def clear_global_parameter(node: RunningNode, arguments: Arguments) -> None:
    run(NodeVerbs(node).clear_global_parameter(arguments["name"]))


def list_global_parameters(node: RunningNode, _: Arguments) -> Rows:
    return [
        {"name": parameter["name"], "value": _text(parameter["value"])}
        for parameter in run(NodeVerbs(node).global_parameters())
    ]


# ── policies ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def set_policy(node: RunningNode, arguments: Arguments) -> None:
    run(
        _vhost(node, arguments).set_policy(
            *_policy(arguments), priority=arguments["priority"], apply_to=arguments["apply_to"]
        )
    )


def clear_policy(node: RunningNode, arguments: Arguments) -> None:
    run(_vhost(node, arguments).clear_policy(arguments["name"]))


def list_policies(node: RunningNode, arguments: Arguments) -> Rows:
    return _policies(run(_vhost(node, arguments).policies()))


def set_operator_policy(node: RunningNode, arguments: Arguments) -> None:
    run(
        _vhost(node, arguments).set_operator_policy(
            *_policy(arguments), priority=arguments["priority"], apply_to=arguments["apply_to"]
        )
    )


def clear_operator_policy(node: RunningNode, arguments: Arguments) -> None:
    run(_vhost(node, arguments).clear_operator_policy(arguments["name"]))


def list_operator_policies(node: RunningNode, arguments: Arguments) -> Rows:
    return _policies(run(_vhost(node, arguments).operator_policies()))


def _policy(arguments: Arguments) -> tuple[str, str, dict[str, Any]]:
    return arguments["name"], arguments["pattern"], _object(arguments["definition"])


def _policies(policies: Rows) -> Rows:
    return [policy | {"definition": _text(policy["definition"])} for policy in policies]


# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _vhost(node: RunningNode, arguments: Arguments) -> VhostVerbs:
    node.vhost(arguments["vhost"])
    return VhostVerbs(node, arguments["vhost"])


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ArgumentsError(f"a JSON object is expected, not {value!r:.100}")
    return value


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
