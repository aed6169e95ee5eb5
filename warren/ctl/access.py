"""What verbs do with users, permissions, vhosts, parameters and policies."""

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


def add_user(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).add_user(said["user"], said["password"]))


def authenticate_user(node: RunningNode, said: Arguments) -> Any:
    return run(NodeVerbs(node).authenticate(said["user"], said["password"]))


def change_password(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).change_password(said["user"], said["password"]))


def clear_password(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).change_password(said["user"], None))


def delete_user(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).delete_user(said["user"]))


def list_users(node: RunningNode, _: Arguments) -> Rows:
    return [{"user": user["name"], "tags": user["tags"]} for user in run(NodeVerbs(node).users())]


def set_user_tags(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).set_user_tags(said["user"], said["tags"]))


def set_user_limits(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).set_user_limits(said["user"], _object(said["limits"])))


def clear_user_limits(node: RunningNode, said: Arguments) -> None:
    limits = () if said["limit"] == "all" else (said["limit"],)
    run(NodeVerbs(node).clear_user_limits(said["user"], *limits))


def list_user_limits(node: RunningNode, said: Arguments) -> Any:
    users = run(NodeVerbs(node).users())
    if said["global"]:
        return [{"user": user["name"], "limits": _text(user["limits"])} for user in users if user["limits"]]
    run(NodeVerbs(node).permissions(said["user"]))  # raises if the user does not exist
    return {"message": next(_text(user["limits"]) for user in users if user["name"] == said["user"])}


# ── permissions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def set_permissions(node: RunningNode, said: Arguments) -> None:
    patterns = said["configure"], said["write"], said["read"]
    run(NodeVerbs(node).set_permissions(said["user"], *patterns, vhost=said["vhost"]))


def clear_permissions(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).clear_permissions(said["user"], vhost=said["vhost"]))


def list_permissions(node: RunningNode, said: Arguments) -> Rows:
    return run(NodeVerbs(node).permissions(vhost=said["vhost"]))


def list_user_permissions(node: RunningNode, said: Arguments) -> Rows:
    return run(NodeVerbs(node).permissions(said["user"]))


def set_topic_permissions(node: RunningNode, said: Arguments) -> None:
    patterns = said["write"], said["read"]
    run(NodeVerbs(node).set_topic_permissions(said["user"], said["exchange"], *patterns, vhost=said["vhost"]))


def clear_topic_permissions(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).clear_topic_permissions(said["user"], said["exchange"], vhost=said["vhost"]))


def list_topic_permissions(node: RunningNode, said: Arguments) -> Rows:
    return run(NodeVerbs(node).topic_permissions(vhost=said["vhost"]))


def list_user_topic_permissions(node: RunningNode, said: Arguments) -> Rows:
    return run(NodeVerbs(node).topic_permissions(said["user"]))


# ── vhosts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def add_vhost(node: RunningNode, said: Arguments) -> None:
    verbs = NodeVerbs(node)
    if said["vhost"] in run(verbs.vhosts()):
        return
    run(verbs.vhost(said["vhost"]))
    kind, description = said["default_queue_type"], said["description"]
    tags = None if said["tags"] is None else [tag.strip() for tag in said["tags"].split(",")]
    if (description, tags, kind) != (None, None, None):
        run(verbs.set_vhost_metadata(said["vhost"], description=description, tags=tags, default_queue_type=kind))


def delete_vhost(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).delete_vhost(said["vhost"]))


def list_vhosts(node: RunningNode, _: Arguments) -> Rows:
    verbs = NodeVerbs(node)
    rows = []
    for name in run(verbs.vhosts()):
        metadata = run(verbs.vhost_metadata(name))
        state = "running" if name in node.actor.vhosts else "stopped"
        rows.append({"name": name, "default_queue_type": None, **metadata, "tracing": False, "state": state})
    return rows


def set_vhost_tags(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).set_vhost_metadata(said["vhost"], tags=said["tags"]))


def set_vhost_limits(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).set_vhost_limits(_object(said["limits"]), vhost=said["vhost"]))


def clear_vhost_limits(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).clear_vhost_limits(vhost=said["vhost"]))


def list_vhost_limits(node: RunningNode, said: Arguments) -> Any:
    verbs = NodeVerbs(node)
    if not said["global"]:
        limits = run(verbs.vhost_limits(said["vhost"]))
        return {"message": _text(limits) if limits else ""}
    found = [(name, run(verbs.vhost_limits(name))) for name in run(verbs.vhosts())]
    return [{"vhost": name, "limits": _text(limits)} for name, limits in found if limits]


# ── parameters ───────────────────────────────────────────────────────────────────────────────────────────────────────


def set_parameter(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).set_parameter(said["component"], said["name"], said["value"], vhost=said["vhost"]))


def clear_parameter(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).clear_parameter(said["component"], said["name"], vhost=said["vhost"]))


def list_parameters(node: RunningNode, said: Arguments) -> Rows:
    node.vhost(said["vhost"])
    found = run(NodeVerbs(node).parameters(said["vhost"]))
    return [{"component": one["component"], "name": one["name"], "value": _text(one["value"])} for one in found]


def set_global_parameter(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).set_global_parameter(said["name"], said["value"]))


def clear_global_parameter(node: RunningNode, said: Arguments) -> None:
    run(NodeVerbs(node).clear_global_parameter(said["name"]))


def list_global_parameters(node: RunningNode, _: Arguments) -> Rows:
    return [{"name": one["name"], "value": _text(one["value"])} for one in run(NodeVerbs(node).global_parameters())]


# ── policies ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def set_policy(node: RunningNode, said: Arguments) -> None:
    run(_vhost(node, said).set_policy(*_policy(said), priority=said["priority"], apply_to=said["apply_to"]))


def clear_policy(node: RunningNode, said: Arguments) -> None:
    run(_vhost(node, said).clear_policy(said["name"]))


def list_policies(node: RunningNode, said: Arguments) -> Rows:
    return _policies(run(_vhost(node, said).policies()))


def set_operator_policy(node: RunningNode, said: Arguments) -> None:
    run(_vhost(node, said).set_operator_policy(*_policy(said), priority=said["priority"], apply_to=said["apply_to"]))


def clear_operator_policy(node: RunningNode, said: Arguments) -> None:
    run(_vhost(node, said).clear_operator_policy(said["name"]))


def list_operator_policies(node: RunningNode, said: Arguments) -> Rows:
    return _policies(run(_vhost(node, said).operator_policies()))


def _policy(said: Arguments) -> tuple[str, str, dict[str, Any]]:
    return said["name"], said["pattern"], _object(said["definition"])


def _policies(found: Rows) -> Rows:
    return [one | {"definition": _text(one["definition"])} for one in found]


# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _vhost(node: RunningNode, said: Arguments) -> VhostVerbs:
    node.vhost(said["vhost"])
    return VhostVerbs(node, said["vhost"])


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ArgumentsError(f"a JSON object is expected, not {value!r:.100}")
    return value


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
