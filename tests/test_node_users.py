"""A node's users, as its handles have them: they outlive it, however it is killed, and go with what they belong to."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import warren
import warren.aio
from tests.support.runtime_tools import hand_node
from warren.errors import AccessRefusedError, ArgumentsError, InvalidValueError, NotFoundError, PreconditionFailedError


def set_up(node: warren.Node) -> None:
    node.vhost("shop")
    node.add_user("bob", "secret", ["management"])
    node.add_user("alice", b"a")
    node.set_permissions("bob", "^bob", "", ".*", vhost="shop")
    node.set_permissions("alice", ".*", ".*", ".*")
    node.set_topic_permissions("bob", "amq.topic", "^{username}", ".*", vhost="shop")
    node.set_user_limits("bob", {"max-connections": 2})
    node.set_user_limits("bob", {"max-channels": 5})
    node.set_vhost_limits({"max-queues": 1, "max-connections": -1}, vhost="shop")
    node.set_vhost_metadata("shop", description="sells", tags=["a", "b"])
    node.set_vhost_metadata("shop", default_queue_type="classic")
    node.set_parameter("shovel", "s", {"src-uri": "amqp://"}, vhost="shop")
    node.set_global_parameter("cluster_name", "rabbit")


def check(node: warren.Node) -> None:
    assert [(user["name"], user["tags"], user["limits"]) for user in node.users()] == [
        ("alice", [], {}),
        ("bob", ["management"], {"max-channels": 5, "max-connections": 2}),
        ("guest", ["administrator"], {}),
    ]
    assert node.authenticate("bob", "secret") == {"name": "bob", "tags": ["management"]}
    assert node.permissions("bob") == node.permissions(vhost="shop")
    assert node.permissions("bob") == [{"user": "bob", "vhost": "shop", "configure": "^bob", "write": "", "read": ".*"}]
    assert [one["user"] for one in node.permissions(vhost="/")] == ["alice", "guest"]
    assert node.topic_permissions() == [
        {"user": "bob", "vhost": "shop", "exchange": "amq.topic", "write": "^{username}", "read": ".*"}
    ]
    assert node.vhost_limits("shop") == {"max-queues": 1, "max-connections": -1}
    assert node.vhost_metadata("shop") == {"description": "sells", "tags": ["a", "b"], "default_queue_type": "classic"}
    assert node.parameters(component="shovel") == [
        {"vhost": "shop", "component": "shovel", "name": "s", "value": {"src-uri": "amqp://"}}
    ]
    assert node.global_parameters() == [{"name": "cluster_name", "value": "rabbit"}]
    users = node._running.registry.users
    users.check("bob", "shop", "queue", "bob-1", "configure")
    with pytest.raises(AccessRefusedError):
        users.check_topic("bob", "shop", "amq.topic", "eve", "write")


@pytest.mark.parametrize("end", ["close", "kill", "lose power"])
def test_users_outlive_the_node(end: str) -> None:
    scene = hand_node()
    set_up(scene.node)
    check(scene.node)
    if end == "close":
        scene.node.close()
        files = scene.files
    else:
        files = scene.kill() if end == "kill" else scene.lose_power(random.Random(1))
    again = hand_node(files, seed=1).node
    check(again)
    again.close()


def test_what_is_changed_and_deleted() -> None:
    node = hand_node().node
    set_up(node)
    node.change_password("bob", "other")
    assert node.authenticate("bob", "other")
    node.change_password("bob", None)
    for password in ("other", "secret", ""):
        with pytest.raises(AccessRefusedError, match="user 'bob' - invalid credentials"):
            node.authenticate("bob", password)
    node.set_user_tags("bob", ["x"])
    node.clear_user_limits("bob", "max-channels")
    assert [(one["tags"], one["limits"]) for one in node.users() if one["name"] == "bob"] == [
        (["x"], {"max-connections": 2})
    ]
    node.clear_user_limits("bob")
    assert [one["limits"] for one in node.users()] == [{}, {}, {}]
    node.clear_topic_permissions("bob", "amq.direct", vhost="shop")
    assert len(node.topic_permissions("bob")) == 1
    node.clear_topic_permissions("bob", vhost="shop")
    assert node.topic_permissions("bob") == []
    node.clear_permissions("bob", vhost="shop")
    assert node.permissions("bob") == []
    node.clear_vhost_limits(vhost="shop")
    node.clear_vhost_limits(vhost="shop")
    assert node.vhost_limits("shop") == {}
    node.clear_parameter("shovel", "s", vhost="shop")
    node.clear_global_parameter("cluster_name")
    assert (node.parameters(), node.global_parameters()) == ([], [])
    node.delete_user("bob")
    assert [one["name"] for one in node.users()] == ["alice", "guest"]
    node.close()


def test_a_vhost_that_goes_takes_along_what_belongs_to_it() -> None:
    node = hand_node().node
    set_up(node)
    node.delete_vhost("shop")
    node.vhost("shop")
    assert node.permissions("bob") == []
    assert node.topic_permissions() == []
    assert node.parameters() == []
    assert node.vhost_metadata("shop") == {"description": "", "tags": []}
    node.close()


def test_a_vhost_has_no_more_queues_than_it_may() -> None:
    node = hand_node().node
    shop = node.vhost("shop")
    shop.queue("before")
    node.set_vhost_limits({"max-queues": 2}, vhost="shop")
    shop.queue("one")
    shop.queue("one")
    refusal = r"^cannot declare queue 'two': queue limit in vhost 'shop' \(2\) is reached$"
    with pytest.raises(PreconditionFailedError, match=refusal):
        shop.queue("two")
    node.queue("two")
    shop.delete_queue("before")
    shop.queue("two")
    node.set_vhost_limits({"max-queues": -1}, vhost="shop")
    shop.queue("three")
    node.close()


REFUSED: dict[str, tuple[Callable[[warren.Node], object], type[Exception]]] = {
    "a user twice": (lambda node: node.add_user("bob", ""), PreconditionFailedError),
    "a user without a name": (lambda node: node.add_user("", "x"), ArgumentsError),
    "nobody": (lambda node: node.delete_user("eve"), NotFoundError),
    "nobody's password": (lambda node: node.change_password("eve", "x"), NotFoundError),
    "nobody's tags": (lambda node: node.set_user_tags("eve", []), NotFoundError),
    "nobody's limits": (lambda node: node.clear_user_limits("eve"), NotFoundError),
    "nobody's permissions": (lambda node: node.permissions("eve"), NotFoundError),
    "permissions nowhere": (lambda node: node.set_permissions("bob", "", "", "", vhost="no"), NotFoundError),
    "permissions to clear nowhere": (lambda node: node.clear_permissions("bob", vhost="no"), NotFoundError),
    "no pattern": (lambda node: node.set_permissions("bob", "(", "", ""), ArgumentsError),
    "no pattern for keys": (lambda node: node.set_topic_permissions("bob", "amq.topic", "", "["), ArgumentsError),
    "an unknown limit": (lambda node: node.set_user_limits("bob", {"max-queues": 1}), ArgumentsError),
    "an unknown limit of a vhost": (lambda node: node.set_vhost_limits({"max-channels": 1}), ArgumentsError),
    "limits nowhere": (lambda node: node.vhost_limits("no"), NotFoundError),
    "a policy as a parameter": (lambda node: node.set_parameter("policy", "p", {}), AccessRefusedError),
    "a parameter that is not there": (lambda node: node.clear_parameter("shovel", "no"), NotFoundError),
    "a global one that is not there": (lambda node: node.clear_global_parameter("no"), NotFoundError),
    "a parameter that is no JSON": (lambda node: node.set_global_parameter("g", object()), ArgumentsError),
    "tags that are none": (lambda node: node.set_vhost_metadata(tags=[1]), InvalidValueError),  # type: ignore[list-item]
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_changes_nothing(what: str) -> None:
    node = hand_node().node
    set_up(node)
    before = node.definitions()
    work, error = REFUSED[what]
    with pytest.raises(error):
        work(node)
    assert node.definitions() == before
    node.close()
