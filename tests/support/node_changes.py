"""Every change of what is declared on a node, and what can be seen of it, for tests of crashes and faults."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import warren
import warren.aio
from tests.support.runtime_tools import BIG, HandNode, bodies
from warren.errors import AccessRefusedError


def prepare(scene: HandNode) -> None:
    node = scene.node
    node.queue("old").publish_many([b"o1", BIG]).wait()
    node.exchange("old exchange", "direct")
    node.bind("old", "old exchange", "old key")
    node.queue("doomed").publish_many([b"d", BIG]).wait()
    node.exchange("doomed exchange", "topic")
    node.bind("doomed", "old exchange", "doomed key")
    node.set_policy("doomed policy", "^old$", {"max-length": 90})
    node.vhost("doomed vhost").queue("in it").publish_many([b"v", BIG]).wait()
    node.add_user("old user", "old")
    node.set_permissions("old user", "", "", ".*", vhost="doomed vhost")
    scene.run()


CHANGES: dict[str, Callable[[warren.Node], Any]] = {
    "declare a queue": lambda node: node.queue("new").publish(b"n").wait(),
    "declare a priority queue": lambda node: node.queue("new", arguments={"x-max-priority": 2}).publish(b"n").wait(),
    "delete a queue": lambda node: node.delete_queue("doomed"),
    "declare an exchange": lambda node: node.exchange("new exchange", "fanout"),
    "delete an exchange": lambda node: node.delete_exchange("doomed exchange"),
    "bind": lambda node: node.bind("old", "old exchange", "new key"),
    "unbind": lambda node: node.unbind("doomed", "old exchange", "doomed key"),
    "set a policy": lambda node: node.set_policy("new", "^old", {"max-length": 99}),
    "set an operator policy": lambda node: node.set_operator_policy("new", "^old", {"max-length": 99}),
    "change a policy": lambda node: node.set_policy("doomed policy", "^old$", {"max-length": 99}),
    "clear a policy": lambda node: node.clear_policy("doomed policy"),
    "declare a vhost": lambda node: node.vhost("new vhost").queue("q").publish(b"n").wait(),
    "delete a vhost": lambda node: node.delete_vhost("doomed vhost"),
    "add a user": lambda node: node.add_user("new user", "new"),
    "change a password": lambda node: node.change_password("old user", "new"),
    "let a user use a vhost": lambda node: node.set_permissions("old user", "", "^old", ".*"),
    "delete a user": lambda node: node.delete_user("old user"),
}


def looked_at(scene: HandNode) -> dict[str, Any]:
    """What is declared, and what every queue has."""
    node = scene.node
    document = node.definitions()
    assert node.failed_queues == {}
    for vhost in node.vhosts():
        assert node.vhost(vhost).failed_queues == {}
    return {
        "vhosts": sorted(node.vhosts()),
        "queues": {
            (vhost, queue.name): bodies(queue)
            for vhost in sorted(node.vhosts())
            for queue in node.vhost(vhost).queues()
        },
        "policies": [document["policies"], document["parameters"]],
        "exchanges": sorted((one["vhost"], one["name"], one["type"]) for one in document["exchanges"]),
        "users": {one["name"]: _password(node, one["name"]) for one in document["users"]},
        "permissions": document["permissions"],
        "bindings": sorted((one["source"], one["destination"], one["routing_key"]) for one in document["bindings"]),
    }


def _password(node: warren.Node, user: str) -> str | None:
    for password in ("old", "new", user):
        with contextlib.suppress(AccessRefusedError):
            node.authenticate(user, password)
            return password
    return None
