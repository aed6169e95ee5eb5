"""Shared directories: what works from another process than the node's host, and what a new host finds."""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pamqp import commands as c
from typer.testing import CliRunner

import warren
import warren.aio
from tests.support.forked import in_child, is_dropped
from tests.support.sharing_tools import Member, hang_up, host_of, link_of
from tests.support.waiting import together, wait_until
from warren import cli, management
from warren.actors.node.node_socket import SOCKET_NAME
from warren.actors.runtime.future import Future
from warren.actors.runtime.leader_follower import call_later
from warren.amqp.connection import Connection
from warren.amqp.own_methods import HANDING_OVER, Call
from warren.amqp.states import Side, State
from warren.client import link as link_module
from warren.client import shared_directory
from warren.client.channels import DeliverySlot
from warren.client.errors import LinkLostError
from warren.client.handshake import Hands
from warren.client.link import Link
from warren.client.link_consumer import CREDIT_BYTES
from warren.errors import (
    BlockedError,
    DefinitionsError,
    DirectoryLockedError,
    NotFoundError,
    NotFromOutsideError,
    StorageError,
    UnknownTagError,
    WrongProcessError,
)
from warren.handles.node import Node
from warren.server import Server
from warren.server.channels import guest_calls
from warren.top.attached import attached


def bodies(queue: warren.Queue, count: int = 100) -> list[bytes]:
    return [delivery.body for delivery in queue.get_many(count, auto_ack=True)]


def failing(error: Exception) -> Callable[..., NoReturn]:
    def fail(*arguments: object) -> NoReturn:
        raise error

    return fail


NO_DESCRIPTOR = failing(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))


# ── what is asked ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_guest_publishes_and_the_host_gets_it_and_the_other_way_round(host: Node, guest: Node) -> None:
    there, here = guest.queue("q", arguments={"x-max-length": 10}), host.queue("q", arguments={"x-max-length": 10})
    there.publish(b"from the guest", headers={"a": [1, b"\xff", None]}, correlation_id="c", expiration=60).wait()
    [delivery] = here.get_many(1)
    assert (delivery.body, delivery.headers, delivery.properties.correlation_id) == (
        b"from the guest",
        {"a": [1, b"\xff", None]},
        "c",
    )
    delivery.ack()
    here.publish(b"from the host", message_id="m").wait()
    found = there.get()
    assert found is not None
    assert (found.body, found.properties.message_id, found.persistent, found.redelivered) == (
        b"from the host",
        "m",
        True,
        False,
    )
    assert (found.exchange, found.routing_key) == ("", "q")
    found.ack()
    wait_until(lambda: here.stats()["messages"] == 0, "the ack did not come")
    assert (there.name, there.vhost, there.durable, there.arguments) == ("q", "/", True, {"x-max-length": 10})


def test_many_go_and_come_in_order(guest: Node) -> None:
    queue = guest.queue("q")
    expected = [b"%d" % number for number in range(5000)]
    confirms = [queue.publish(body) for body in expected[:2000]]
    confirms.append(queue.publish_many(expected[2000:]))
    for confirm in confirms:
        confirm.wait(60)
    assert len(queue) == 5000
    with queue.consume(prefetch=700, timeout=30) as consumer:
        for body in expected[:4000]:
            delivery = next(consumer)
            assert delivery.body == body
            delivery.ack()
    assert bodies(queue, 2000) == expected[4000:]
    assert queue.get() is None
    assert len(queue) == 0


def test_a_body_of_many_megabytes_goes_and_comes(guest: Node) -> None:
    queue, body = guest.queue("q"), os.urandom(9_000_000)
    queue.publish_many([body, b"", body]).wait(60)
    assert [one.body for one in queue.get_many(3)] == [body, b"", body]


def test_batches_are_settled_in_any_pattern(guest: Node) -> None:
    queue = guest.queue("q")
    queue.publish_many([b"%d" % number for number in range(300)]).wait(60)
    got = queue.get_many(300)
    queue.ack(got[:100])
    queue.ack([*got[100:140], *got[150:200:2]])
    queue.nack(got[140:150])
    queue.nack(reversed(got[200:250]), requeue=False)
    for delivery in got[250:]:
        delivery.ack()
    wait_until(lambda: queue.stats()["messages_unacknowledged"] == 25, "something was not settled")
    assert len(queue) == 10
    assert queue.release() == 25
    expected = [*range(140, 150), *range(151, 200, 2)]
    again = queue.get_many(300)
    assert [(int(one.body), one.redelivered) for one in again] == [(number, True) for number in expected]


def test_a_batch_has_columns_and_is_settled_as_one(host: Node, guest: Node) -> None:
    queue = guest.queue("q")
    queue.publish_many([b"1", b"2", b"3"], message_id=["a", "b", "c"]).wait()
    batch = queue.get_many(9)
    assert (batch.bodies, batch.columns("message_id")) == ([b"1", b"2", b"3"], [["a", "b", "c"]])
    queue.nack(batch)
    again = queue.get_many(9)
    assert (again.bodies, [one.redelivered for one in again]) == (batch.bodies, [True] * 3)
    queue.ack(again)
    queue.sync()
    assert host.queue("q").stats()["messages"] == 0


def test_the_host_refuses_to_settle_what_it_has_not_delivered(guest: Node) -> None:
    queue = guest.queue("q")
    queue.publish_many([b"x"] * 40).wait(60)
    channel = queue.get_many(20)[0].channel
    channel.settle_all("ack", range(1, 41))
    wait_until(lambda: not channel.alive, "the channel is open")
    wait_until(lambda: len(queue) == 40, "they did not go back")


SETTLE_AGAIN: dict[str, tuple[Callable[[warren.Queue, Sequence[warren.Delivery]], object], tuple[int, int]]] = {
    "ack": (lambda _, messages: messages[0].ack(), (1, 4)),
    "nack": (lambda _, messages: messages[0].nack(), (1, 4)),
    "reject": (lambda _, messages: messages[0].reject(), (1, 4)),
    "retry": (lambda _, messages: messages[0].retry(), (1, 4)),
    "retry after a time": (lambda _, messages: messages[0].retry(5), (1, 4)),
    "ack multiple": (lambda _, messages: messages[0].ack(multiple=True), (1, 4)),
    "nack multiple": (lambda _, messages: messages[0].nack(multiple=True), (1, 4)),
    "ack all": (lambda queue, messages: queue.ack(messages), (0, 3)),
    "nack all": (lambda queue, messages: queue.nack(messages), (0, 4)),
    "ack a list": (lambda queue, messages: queue.ack(list(messages)), (0, 3)),
    "ack up to": (lambda queue, messages: queue.ack_up_to(messages[0].delivery_tag), (1, 4)),
}
"""Ways to settle messages after the first two are settled already, with the numbers of unacked messages and of all
messages that are left of 6."""


@pytest.mark.slow
@pytest.mark.parametrize("again", SETTLE_AGAIN)
@pytest.mark.parametrize("first", ["ack multiple", "ack up to"])
@pytest.mark.parametrize("whose", ["host", "guest"])
def test_settling_what_multiple_has_settled_has_no_effect(
    host: Node, guest: Node, whose: str, first: str, again: str
) -> None:
    queue = (host if whose == "host" else guest).queue("q")
    queue.publish_many([b"%d" % number for number in range(6)]).wait(60)
    messages = queue.get_many(3)
    if first == "ack multiple":
        messages[1].ack(multiple=True)
    else:
        queue.ack_up_to(messages[1].delivery_tag)
    settle, left = SETTLE_AGAIN[again]
    settle(queue, messages)
    queue.sync()
    counts = queue.stats()
    assert (counts["messages_unacknowledged"], counts["messages"]) == left
    messages[2].ack()
    queue.sync()
    assert queue.stats()["messages_unacknowledged"] == 0


@pytest.mark.parametrize("whose", ["host", "guest"])
def test_a_consumer_goes_on_when_what_multiple_has_settled_is_settled_again(
    host: Node, guest: Node, whose: str
) -> None:
    queue = (host if whose == "host" else guest).queue("q")
    queue.publish_many([b"%d" % number for number in range(6)]).wait(60)
    with queue.consume(prefetch=3, timeout=60) as consumer:
        first, second = next(consumer), next(consumer)
        second.ack(multiple=True)
        first.ack()
        for number in range(2, 6):
            message = next(consumer)
            assert (message.body, message.redelivered) == (b"%d" % number, False)
            message.ack()


@pytest.mark.parametrize("whose", ["host", "guest"])
def test_ack_up_to_a_tag_that_was_never_given_is_refused_and_changes_nothing(
    host: Node, guest: Node, whose: str
) -> None:
    queue = (host if whose == "host" else guest).queue("q")
    with pytest.raises(UnknownTagError, match="unknown delivery tag 1"):
        queue.ack_up_to(1)
    queue.publish_many([b"0", b"1"]).wait(60)
    (message,) = queue.get_many(1)
    for tag in (message.delivery_tag + 1, 999, -1):
        with pytest.raises(UnknownTagError, match=f"unknown delivery tag {tag}"):
            queue.ack_up_to(tag)
    assert queue.stats()["messages_unacknowledged"] == 1
    message.ack()
    queue.ack_up_to(message.delivery_tag)
    queue.ack_up_to(0)
    queue.sync()
    assert queue.stats()["messages"] == 1


def test_acks_leave_though_nobody_asks_for_anything_more(host: Node, guest: Node) -> None:
    there = guest.queue("q")
    there.publish_many([b"x"] * 200).wait(60)
    here = host.queue("q")
    for _ in range(20):
        for one in there.get_many(2):
            one.ack()
        there.ack(there.get_many(8))
    wait_until(lambda: here.stats()["messages"] == 0, "an ack is still here")


def test_many_that_are_got_at_once_are_those_that_were_published_each_with_its_own(host: Node, guest: Node) -> None:
    queue = guest.queue("q")
    host.exchange("e", "fanout")
    host.bind("q", "e")
    sent: list[tuple[bytes, str, str, str | None]] = []
    for number in range(60):
        body, identity = os.urandom(number * 3000), f"m{number // 2}" if number % 3 else None
        by_exchange = number % 4 == 3
        if by_exchange:
            host.exchange("e", "fanout").publish(body, "k", message_id=identity).wait()
        else:
            host.queue("q").publish(body, message_id=identity).wait()
        sent.append((body, "e" if by_exchange else "", "k" if by_exchange else "q", identity))
    for redelivered in (False, True):
        found = queue.get_many(100)  # five megabytes: in several answers
        assert [(one.body, one.exchange, one.routing_key, one.properties.message_id) for one in found] == sent
        assert {one.redelivered for one in found} == {redelivered}
        tags = [one.delivery_tag for one in found]
        assert tags == list(range(tags[0], tags[0] + len(sent)))
        assert queue.get_many(1) == queue.get_many(5) == []
        queue.nack(found)
    assert len(queue.get_many(7, auto_ack=True)) == 7
    assert len(queue) == 53


def test_a_get_waits_for_what_comes(host: Node, guest: Node) -> None:
    queue, here = guest.queue("q"), host.queue("q")
    assert queue.get(timeout=0.01) is None
    threading.Timer(0.05, lambda: here.publish(b"late")).start()
    delivery = queue.get(timeout=60, auto_ack=True)
    assert delivery is not None
    assert delivery.body == b"late"
    wait_until(lambda: here.stats()["messages"] == 0, "the ack did not come")


@pytest.mark.parametrize("prefetch", [0, 1000])
def test_what_a_consumer_does_not_take_waits_with_the_host(host: Node, guest: Node, prefetch: int) -> None:
    queue = guest.queue("q")
    sent = [os.urandom(50_000) for _ in range(100)]
    queue.publish_many(sent).wait(60)
    with queue.consume(prefetch=prefetch, timeout=30) as consumer:
        assert next(consumer).body == sent[0]
        queue.stats()  # what was sent before the answer has come
        most = consumer.buffered
        assert most * 50_000 <= 2 * CREDIT_BYTES
        assert [next(consumer).body for _ in sent[1:]] == sent[1:]
        assert consumer.receive(0) is None
    with queue.consume(prefetch=prefetch, timeout=30) as consumer:
        hang_up(guest)
        left = set(sent)
        while left:  # the next connection begins with a credit of its own
            left.discard(next(consumer).body)


def test_a_consumer_that_is_forgotten_gives_back_what_it_had(guest: Node) -> None:
    queue = guest.queue("q")
    queue.publish_many([b"0", b"1"]).wait()
    consumer = queue.consume()
    delivery = next(consumer)
    del consumer
    gc.collect()
    delivery.ack()  # a delivery can be settled as long as it is held
    wait_until(lambda: queue.stats()["messages"] == 1, "it did not come to that")
    del delivery
    gc.collect()
    wait_until(lambda: queue.stats()["messages_ready"] == 1, "it did not come to that")


def test_a_guest_looks_at_the_node(host: Node, guest: Node) -> None:
    queue = guest.queue("q", durable=False)
    queue.publish_many([b"0", b"1", b"2"], headers={"h": 1}).wait()
    taken = queue.get()
    assert [(one.body, one.unacked, one.headers) for one in queue.browse()] == [
        (b"0", True, {"h": 1}),
        (b"1", False, {"h": 1}),
        (b"2", False, {"h": 1}),
    ]
    assert len(list(queue.browse(2))) == 2
    assert taken is not None
    assert [one.name for one in guest.queues()] == ["q"]
    assert guest.vhosts() == ["/"]
    assert guest.memory()["limit_bytes"] == host.memory()["limit_bytes"]
    assert guest.stats()["vhosts"]["/"]["queues"]["q"]["messages"] == 3
    assert guest.definitions() == host.definitions()
    assert guest.queue("q", passive=True).durable is False
    queue.set_mode("lazy")
    assert queue.stats()["backing_queue_status"]["mode"] == "lazy"
    assert queue.purge() == 2
    assert guest.delete_queue("q") == 0


def test_definitions_and_vhosts_are_changed_from_outside(host: Node, guest: Node) -> None:
    document = {
        "vhosts": [{"name": "/"}, {"name": "other"}],
        "queues": [{"vhost": "other", "name": "q", "durable": True, "auto_delete": False, "arguments": {}}],
        "permissions": [{"user": "guest", "vhost": "other", "configure": "", "write": "", "read": ".*"}],
    }
    imported = guest.import_definitions(document)
    assert [one.name for one in imported.queues] == ["q"]
    assert imported.permissions == (("guest", "other"),)
    other = guest.vhost("other")
    other.queue("q", passive=True).publish(b"over there").wait()
    mine = other.queue("mine", exclusive=True)
    mine.publish(b"").wait()
    assert bodies(host.vhost("other").queue("q")) == [b"over there"]
    other.release()
    wait_until(lambda: [one.name for one in host.vhost("other").queues()] == ["q"], "it did not come to that")
    guest.delete_vhost("other")
    assert host.vhosts() == ["/"]


def test_every_reason_that_definitions_are_refused_for_is_told_outside(host: Node, guest: Node) -> None:
    document = {"queues": [{"vhost": "/", "name": "q"}, {"vhost": "missing", "name": "r"}]}
    with pytest.raises(DefinitionsError) as here:
        host.import_definitions(document)
    with pytest.raises(DefinitionsError) as there:
        guest.import_definitions(document)
    assert there.value.problems == here.value.problems != ()


def test_users_and_policies_are_kept_from_outside(host: Node, guest: Node) -> None:
    guest.queue("limited")
    guest.set_policy("short", "^lim", {"max-length": 2}, priority=3)
    assert guest.policies() == host.policies()
    guest.queue("limited").publish_many([b"0", b"1", b"2"]).wait()
    assert len(host.queue("limited")) == 2
    guest.add_user("me", b"\xff secret", ["management"])
    assert [one["name"] for one in guest.users()] == ["guest", "me"]
    assert guest.users() == host.users()
    with pytest.raises(NotFoundError, match="nobody"):
        guest.delete_user("nobody")


@pytest.mark.parametrize("whose", ["host", "guest"])
def test_vhosts_that_are_released_leave_nothing_behind(host: Node, guest: Node, whose: str) -> None:
    node = host if whose == "host" else guest
    queue = node.queue("q")
    before = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for _ in range(20):
        with node.vhost("/") as vhost:
            vhost.queue("q").publish(b"").wait()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 4, "descriptors are left")
    assert threading.active_count() <= threads + 2
    assert len(queue) == 20


def test_what_cannot_be_done_from_outside_says_so(guest: Node) -> None:
    with pytest.raises(NotFromOutsideError, match="another process hosts"):
        guest.serve()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_publishers_wait_while_an_alarm_is_set(host: Node, guest: Node, kind: str) -> None:
    queue, topic = guest.queue("q"), guest.topic("t", queues=1)
    publish, publish_many = (
        (queue.publish, queue.publish_many) if kind == "queue" else (topic.append, topic.append_many)
    )
    gate = host._running.gate
    gate.set(frozenset({"disk"}))
    publish(b"sent before the guest was told").wait(60)
    wait_until(lambda: bool(link_of(guest).blocked), "it was not told")
    with pytest.raises(BlockedError, match="low on disk"):
        publish(b"not taken", block=False)
    for refused in (lambda: publish(b"not taken", timeout=0.01), lambda: publish_many([b"not taken"], timeout=0.01)):
        with pytest.raises(BlockedError):
            refused()
    threading.Timer(0.05, lambda: gate.set(frozenset())).start()
    publish(b"and this").wait(60)
    there = bodies(queue) + [record.body for record in topic.read("check")]
    assert there == [b"sent before the guest was told", b"and this"]


@pytest.mark.parametrize("how", ["publish", "append", "unique"])
def test_a_guest_ends_under_an_alarm_and_what_it_has_sent_is_there(host: Node, how: str) -> None:
    gate = host._running.gate
    with warren.open(host.path, share=True) as other:
        queue, topic = other.queue("q"), other.topic("t", queues=1)
        queue.publish(b"").wait()
        gate.set(frozenset({"memory"}))
        match how:  # only one: the guest learns of it then, unless it already knows
            case "publish":
                queue.publish(b"sent", timeout=60)
            case "append":
                topic.append(b"sent", timeout=60)
            case _:
                queue.publish(b"sent", unique="key", timeout=60)
    there = [record.body for record in host.topic("t").read("g")] + bodies(host.queue("q"))
    assert there in ([b"", b"sent"], [b"sent", b""])
    gate.set(frozenset())


def test_a_guest_that_comes_while_an_alarm_is_set_is_told_before_it_publishes(host: Node) -> None:
    host._running.gate.set(frozenset({"memory"}))
    with warren.open(host.path, share=True) as other:
        queue = other.queue("q")
        for arguments in ({"block": False}, {"timeout": 0.01}):
            with pytest.raises(BlockedError, match="low on memory"):
                queue.publish(b"", **arguments)
    host._running.gate.set(frozenset())


@pytest.mark.slow
def test_threads_share_one_connection(guest: Node) -> None:
    queues = [guest.queue(f"q{number}") for number in range(4)]

    def work(queue: warren.Queue) -> None:
        for number in range(200):
            queue.publish(b"%d" % number).wait(60)
            delivery = queue.get()
            assert delivery is not None
            assert delivery.body == b"%d" % number
            delivery.ack()

    together(*(functools.partial(work, queue) for queue in queues))


def test_threads_of_a_guest_use_the_queue_that_its_coroutines_have(host: Node, guest: Node) -> None:
    async def main() -> warren.Queue:
        queue = await warren.aio.Node(guest).queue("q")
        return queue.blocking

    queue = asyncio.run(main())
    queue.publish(b"x").wait(60)
    assert bodies(queue) == [b"x"]


def test_coroutines_use_the_same_connection(host: Node, guest: Node) -> None:
    async def main() -> None:
        node = warren.aio.Node(guest)
        queue = await node.queue("q")
        await queue.publish(b"0")
        await queue.publish_many([b"1", b"2"])
        await asyncio.gather(*(queue.publish(b"%d" % number) for number in range(3, 500)))
        await queue.publish_nowait(b"500")
        await queue.room()
        assert await queue.length() == 501
        async with queue.consume(prefetch=10) as consumer:
            found = []
            async for delivery in consumer:
                found.append(delivery.body)
                await delivery.ack()
                if len(found) == 400:
                    break
        assert found[:3] == [b"0", b"1", b"2"]
        assert sorted(map(int, found))[-1] <= 410
        got = await queue.get(auto_ack=True)
        assert got is not None
        with pytest.raises(NotFoundError):
            await node.queue("none", passive=True)
        assert len([one async for one in queue.browse()]) == 100
        async with await node.vhost("other") as other:
            await (await other.queue("", exclusive=True)).publish(b"")
        assert (await node.stats())["vhosts"]["/"]["queues"]["q"]["messages_ready"] == 100

    asyncio.run(main())


def test_warren_top_finds_a_shared_node(host: Node, guest: Node) -> None:
    guest.queue("q").publish(b"").wait()
    with attached(host.path) as node:
        assert [one["name"] for one in node.snapshot()["queues"]] == ["q"]
        with pytest.raises(warren.WarrenError):
            node.ask(want="nothing of the sort")
        assert node.queue("/", "q")["queue"]["name"] == "q"


# ── access to the socket ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_socket_is_the_users_alone_and_goes_with_the_host(tmp_path: Path) -> None:
    place = tmp_path / "data"
    with warren.open(place, share=True):
        assert (place / SOCKET_NAME).stat().st_mode & 0o777 == 0o600
        assert host_of(place) == os.getpid()
    assert not (place / SOCKET_NAME).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_is_dropped(host: Node) -> None:
    assert is_dropped(Path(host.path) / SOCKET_NAME, b"AMQP\0\0\x09\x01")


@pytest.mark.slow
def test_a_directory_that_is_not_shared_is_locked(tmp_path: Path) -> None:
    with warren.open(tmp_path / "data"), pytest.raises(DirectoryLockedError, match="does not share"):
        warren.open(tmp_path / "data", share=True)
    with warren.open(tmp_path / "data", share=True), pytest.raises(DirectoryLockedError, match="share=True"):
        warren.open(tmp_path / "data")


def test_methods_of_our_own_are_not_spoken_over_tcp(host: Node) -> None:
    server = host.serve(port=0)
    with socket.create_connection(server.addresses[0]) as stranger:
        stranger.settimeout(30)
        engine = Connection(Side.CLIENT)
        said = iter((c.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), c.Connection.TuneOk(2047, 131072, 0)))
        while engine.state is not State.RUNNING:
            stranger.sendall(engine.data_to_send())
            for _ in engine.receive(stranger.recv(65536)):
                if (method := next(said, None)) is not None:
                    engine.send(0, method)
                    if isinstance(method, c.Connection.TuneOk):
                        engine.send(0, c.Connection.Open("/"))
        engine.send(1, c.Channel.Open())
        engine.send(1, Call("node.memory"))
        stranger.sendall(engine.data_to_send())
        while data := stranger.recv(65536):
            assert b"limit_bytes" not in data
    server.stop()


def test_a_directory_with_a_long_name_is_shared(tmp_path: Path) -> None:
    place = tmp_path / ("long" * 50) / "data"
    place.parent.mkdir()
    with warren.open(place, share=True) as host, warren.open(place, share=True) as guest:
        guest.queue("q").publish(b"far").wait()
        assert bodies(host.queue("q")) == [b"far"]


# ── the connection is lost ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_consumer_is_there_again_and_what_it_had_comes_again(guest: Node) -> None:
    queue = guest.queue("q")
    queue.publish_many([b"%d" % number for number in range(8)]).wait()
    with queue.consume(prefetch=3, timeout=60) as consumer:
        first = [next(consumer) for _ in range(3)]
        hang_up(guest)
        again = [next(consumer) for _ in range(3)]
        assert [(one.body, one.redelivered) for one in again] == [(b"0", True), (b"1", True), (b"2", True)]
        for one in first:
            one.ack()  # too late to have any effect
        assert queue.stats()["messages_unacknowledged"] == 3
        for one in again:
            one.ack()
        assert [next(consumer).body for _ in range(3)] == [b"3", b"4", b"5"]
        assert queue.stats()["messages"] == 5


def test_a_take_whose_connection_is_lost_is_sent_again(guest: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, ask, lost = guest.queue("q"), DeliverySlot.ask, Future()
    queue.publish(b"1").wait()
    lost.fail(LinkLostError("the connection was lost"))
    answers = [lost]
    monkeypatch.setattr(DeliverySlot, "ask", lambda slot, method: answers.pop() if answers else ask(slot, method))
    taken = queue.take(next(iter(queue.browse())).id)
    assert taken is not None
    assert taken.body == b"1"


def test_what_was_not_confirmed_is_sent_again_in_order(guest: Node) -> None:
    queue = guest.queue("q")
    confirms = [queue.publish(b"%d" % number) for number in range(500)]
    hang_up(guest)
    confirms += [queue.publish(b"%d" % number) for number in range(500, 1000)]
    for confirm in confirms:
        confirm.wait(60)
    found = list(dict.fromkeys(map(int, bodies(queue, 2000))))
    assert found == list(range(1000))


def test_a_guest_that_finds_no_descriptor_for_the_next_connection_says_so_and_goes_on_once_it_does(
    guest: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to hang forever: an unexpected error had ended the thread that connects."""
    queue = guest.queue("q")
    queue.publish(b"0").wait()
    with monkeypatch.context() as patched:
        patched.setattr(shared_directory, "_connected", NO_DESCRIPTOR)
        hang_up(guest)
        for _ in range(2):
            with pytest.raises(StorageError, match="Too many open files"):
                queue.publish(b"1").wait(60)
    queue.publish(b"2").wait(60)
    assert bodies(queue, 10) == [b"0", b"2"]


def test_a_guest_without_descriptors_for_its_own_sockets_cannot_be_opened_and_says_why(
    host: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socketpair", NO_DESCRIPTOR)
        with pytest.raises(StorageError, match=r"no socket .* Too many open files"):
            warren.open(host.path, share=True)
    with warren.open(host.path, share=True) as guest:
        guest.queue("q").publish(b"0").wait()


def test_a_failure_that_nobody_expected_is_told_to_who_waits_and_the_next_one_gets_another_connection(
    guest: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue, link = guest.queue("q"), link_of(guest)
    queue.publish(b"0").wait()
    with monkeypatch.context() as patched:
        patched.setattr(link, "join", failing(RuntimeError("a mistake")))
        hang_up(guest)
        with pytest.raises(warren.WarrenError, match=r"the connection failed: .*a mistake"):
            queue.publish(b"1").wait(60)
    assert "reading from a connection failed" in caplog.text

    def goes_on() -> bool:
        with suppress(warren.WarrenError):  # it may meet the same failure once more
            queue.publish(b"2").wait(60)
            return True
        return False

    wait_until(goes_on, "the next one gets another connection")
    assert bodies(queue, 10) == [b"0", b"2"]


def test_a_long_answer_is_encoded_in_another_thread_than_the_one_that_serves(
    guest: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest.queue("q")
    monkeypatch.setattr(guest_calls, "MOST_AT_ONCE", 0)
    encoding, serving = set[int](), set[int]()
    noted(monkeypatch, guest_calls, "plain", encoding)
    noted(monkeypatch, guest_calls.GuestCalls, "answer", serving)
    assert [queue.name for queue in guest.queues()] == ["q"]
    assert guest.stats()["vhosts"]["/"]["queues"]["q"]["messages"] == 0
    assert guest.definitions()["queues"][0]["name"] == "q"
    assert encoding
    assert serving
    assert encoding.isdisjoint(serving)


def noted(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, threads: set[int]) -> None:
    """Collect the threads that call a function."""
    called = getattr(where, name)

    def call(*arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return called(*arguments)

    monkeypatch.setattr(where, name, call)


def test_a_channel_that_is_left_while_a_guest_connects_anew_is_given_to_one_other_only(
    guest: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could be given before its closing was answered ("channel 3 is open"), and then once more."""
    queue, link = guest.queue("q"), link_of(guest)
    queue.publish(b"0").wait()
    before = set(link._channels)
    consumer = queue.consume(prefetch=1)
    [number] = set(link._channels) - before
    known = Hands

    def leave_and_shake(*arguments: Any) -> Any:
        link.leave(link._channels[number])
        return known(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(link_module, "Hands", leave_and_shake)
        hang_up(guest)
        queue.publish(b"1").wait(60)
    wait_until(lambda: number in link._free_numbers, "its closing is not answered")
    assert len(queue) == 2
    assert sorted([*link._free_numbers, *link._channels]) == list(range(1, link._last_number + 1))
    assert consumer.take_now() is None


def test_who_leads_before_it_is_told_that_there_is_a_connection_does_not_wait_for_ever(
    guest: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It got its answer from the thread that had connected, and went on waiting at the socket, where nothing came."""
    link: Link = guest._opened.new_remote("/").link  # type: ignore[union-attr]
    asked, polled = threading.Event(), threading.Event()
    poll = select.poll

    class Poll:
        def __init__(self) -> None:
            self._poll = poll()
            self.register, self.modify = self._poll.register, self._poll.modify

        def poll(self, timeout_ms: float | None) -> list[tuple[int, int]]:
            polled.set()
            return self._poll.poll(timeout_ms)

    def once_asked(*arguments: Any) -> Any:
        asked.wait()
        return Hands(*arguments)

    def once_polled(later: Any) -> None:
        polled.wait()
        call_later(later)

    monkeypatch.setattr(link_module, "Hands", once_asked)
    monkeypatch.setattr(select, "poll", Poll)
    monkeypatch.setattr(link_module, "call_later", once_polled)
    ready = link.ready()
    asked.set()
    wait_until(lambda: link.is_up, "it does not connect")
    together(ready.settled)


def test_whoever_has_a_message_from_a_get_can_settle_it_no_more(guest: Node) -> None:
    queue = guest.queue("q")
    queue.publish(b"0").wait()
    delivery = queue.get()
    assert delivery is not None
    hang_up(guest)
    again = queue.get(timeout=60)
    assert again is not None
    assert again.redelivered
    delivery.ack()
    assert queue.stats()["messages"] == 1
    hang_up(guest)
    queue.ack_up_to(again.delivery_tag)
    assert queue.stats()["messages"] == 1
    again = queue.get(timeout=60)
    assert again is not None
    again.ack()
    wait_until(lambda: queue.stats()["messages"] == 0, "it did not come to that")


def test_the_next_host_goes_on_when_one_closes(host: Node, guest: Node) -> None:
    queue = guest.queue("q")
    queue.publish(b"kept").wait()
    with queue.consume(timeout=60) as consumer:
        delivery = next(consumer)
        host.close()
        assert (next(consumer).body, guest._opened.hosts) == (b"kept", True)
        delivery.ack()
        queue.publish(b"and more").wait(60)
        with warren.open(guest.path, share=True) as third:
            assert third.queue("q").stats()["messages"] == 2
            assert next(consumer).body == b"and more"


@pytest.mark.slow
def test_a_host_that_closes_has_done_all_that_others_have_sent_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not wait for what cannot come."""
    monkeypatch.setattr("warren.server.server.STOP_TIMEOUT_S", 60.0)
    begun = time.monotonic()
    for number in range(5):
        path = tmp_path / f"data-{number}"
        host = warren.open(path, share=True, sync="os")
        host.queue("taken").publish_many([b"%d" % one for one in range(200)]).wait()
        with warren.open(path, share=True, sync="os") as guest:
            taken, sent = guest.queue("taken"), guest.queue("sent")
            for delivery in taken.get_many(200):
                delivery.ack()
            confirms = [sent.publish(b"%d" % one) for one in range(500)]
            host.close()
            for confirm in confirms:
                confirm.wait(30)
            assert bodies(sent, 1000) == [b"%d" % one for one in range(500)]  # none of them twice
            assert len(taken) == 0
    assert time.monotonic() - begun < 60


def test_an_ack_for_a_host_that_hands_over_is_passed_over(host: Node, guest: Node) -> None:
    queue = guest.queue("q")
    queue.publish_many([b"0", b"1"]).wait()
    [server] = host._running.hosted
    assert isinstance(server, Server)
    [connection] = server.connections.values()

    def begin() -> None:
        connection._handing_over = server.loop.create_future()
        connection.engine.send(0, c.Connection.Blocked(HANDING_OVER))
        connection.link.flush()

    with queue.consume(timeout=60) as consumer:
        first, second = next(consumer), next(consumer)
        server.post(begin)
        wait_until(lambda: not link_of(guest).outbox.can_send, "it was not told")
        first.ack()
        second.nack(multiple=True)
        server.post(connection.link.abort)
        assert [(one.body, one.redelivered) for one in (next(consumer), next(consumer))] == [(b"0", True), (b"1", True)]


def test_what_does_not_survive_the_host_is_declared_again(host: Node, guest: Node) -> None:
    transient = guest.queue("transient", durable=False)
    own = guest.queue("", exclusive=True)
    shy = guest.queue("shy", auto_delete=True)
    guest.queue("deleted", durable=False).delete()
    exchange = guest.exchange("x", "topic", durable=False)
    for queue in (transient, own, shy):
        guest.bind(queue, exchange, "a.*")
    guest.bind(transient, exchange, "b")
    guest.unbind(transient, exchange, "b")
    with shy.consume(timeout=60) as consumer:
        transient.publish(b"lost", persistent=False).wait()
        host.close()
        exchange.publish(b"there again", "a.b", mandatory=True).wait(60)
        exchange.publish(b"not there", "b").wait(60)
        assert next(consumer).body == b"there again"
        assert bodies(transient) == bodies(own) == [b"there again"]
    left = {"transient", own.name}
    wait_until(lambda: {one.name for one in guest.queues()} == left, "the queue that deletes itself is there")


def test_a_queue_is_declared_again_as_it_was_not_as_it_was_asked_for(host: Node, guest: Node) -> None:
    host.queue("q", durable=False, arguments={"x-max-length": 5})
    queue = guest.queue("q")
    host.close()
    queue.publish(b"again").wait(60)
    again = guest.queue("q", passive=True)
    assert (again.durable, again.arguments) == (False, {"x-max-length": 5})


def test_the_deletion_of_another_vhosts_queue_leaves_the_own_one_to_be_declared_again(host: Node, guest: Node) -> None:
    host.vhost("other").queue("q")
    queue = guest.queue("q", durable=False)
    guest.delete_queue("q", vhost="other")
    host.close()
    queue.publish(b"again").wait(60)
    assert bodies(queue) == [b"again"]


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["host", "guest"])
def test_a_forked_child_is_a_client_of_its_own(host: Node, guest: Node, whose: str) -> None:
    node = host if whose == "host" else guest
    queue, exchange = node.queue("q"), node.exchange("x", "fanout")
    node.bind(queue, exchange)
    queue.publish(b"before").wait()
    consumer = queue.consume(prefetch=1)
    delivery = next(consumer)

    def work() -> None:
        with pytest.raises(WrongProcessError):
            next(consumer)
        queue.publish(b"from the child").wait(60)
        exchange.publish(b"and routed").wait(60)
        node.queue("made there").publish(b"").wait(60)
        with queue.consume(prefetch=1, timeout=60) as own:
            assert next(own).body == b"from the child"
        node.close()

    assert in_child(work) == "None"
    delivery.ack()
    consumer.close()
    wait_until(lambda: bodies(queue) == [b"from the child", b"and routed"], "it did not come to that")
    assert {one.name for one in node.queues()} == {"q", "made there"}
    queue.publish(b"the parent goes on").wait(60)


def test_a_forked_child_does_not_serve_its_parents_node(tmp_path: Path) -> None:
    with warren.open(tmp_path) as node:

        def serve() -> None:
            for kind in (node.serve, functools.partial(management.serve, node)):
                with pytest.raises(WrongProcessError):
                    kind(port=0)
            with pytest.raises(DirectoryLockedError) as caught:
                warren.open(tmp_path)
            assert "this process" not in str(caught.value)

        in_child(serve)


@pytest.mark.parametrize("whose", ["host", "guest"])
def test_a_forked_child_cannot_settle_what_its_parent_got(host: Node, guest: Node, whose: str) -> None:
    queue = (host if whose == "host" else guest).queue("q")
    queue.publish_many([b"%d" % number for number in range(5)]).wait()
    one, batch, two = queue.get(), queue.get_many(2), queue.get_many(2)
    assert one is not None
    listed = [*two]

    def work() -> None:
        for settle in (
            one.ack,
            one.nack,
            one.reject,
            one.retry,
            lambda: one.ack(multiple=True),
            lambda: one.retry(1),
            lambda: one.extend(1),
            lambda: queue.ack(batch),
            lambda: queue.nack(batch),
            lambda: queue.ack(listed),
            lambda: queue.nack(listed),
            lambda: queue.ack_up_to(one.delivery_tag),
        ):
            with pytest.raises(WrongProcessError):
                settle()
        assert not one.settled
        assert not any(delivery.settled for delivery in listed)

    assert in_child(work) == "None"
    one.ack()
    queue.ack(batch)
    queue.nack(listed)
    assert bodies(queue) == [b"3", b"4"]


@pytest.mark.slow
def test_messages_that_come_again_after_a_kill_say_so(tmp_path: Path) -> None:
    place = tmp_path / "data"
    with Member(place, "hold") as first:
        first.hear("ready")
        with warren.open(place, share=True, sync="os") as node:
            queue = node.queue("work")
            queue.publish_many([b"0", b"1", b"2"]).wait(60)
            with queue.consume(prefetch=2, timeout=60) as consumer:
                assert [next(consumer).redelivered for _ in range(2)] == [False, False]
                assert host_of(place) == first.process.pid
                first.kill()
                again = [next(consumer) for _ in range(2)]
                assert [(one.body, one.redelivered) for one in again] == [(b"0", True), (b"1", True)]
                assert host_of(place) == os.getpid()
                for one in again:
                    one.ack()
                assert next(consumer).body == b"2"


# ── the command line ─────────────────────────────────────────────────────────────────────────────────────────────────


def command(*arguments: object) -> str:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_commands_work_on_a_directory_in_use(host: Node, tmp_path: Path) -> None:
    place, queue = host.path, host.queue("q")
    host.vhost("other")
    assert "3 messages published" in command("publish", place, "q", "a", "b", "c")
    command("publish", place, "new", "x", "--declare", "--vhost", "other")
    assert len(queue) == 3
    assert command("consume", place, "q", "--count", "2").split() == ["a", "b"]
    wait_until(lambda: queue.stats()["messages"] == 1, "the acks did not come")
    assert json.loads(command("queues", place, "--json", "--vhost", "other"))["queues"][0]["ready"] == 1
    assert "1 message deleted" in command("purge", place, "q", "--yes")
    document = tmp_path / "definitions.json"
    document.write_text(command("definitions", place))
    document.write_text(document.read_text().replace('"new"', '"imported"'))
    said = json.loads(command("definitions", place, "--import", document, "--json"))
    assert said["queues"] == 1
    assert [one.name for one in host.vhost("other").queues()] == ["new", "imported"]


@pytest.mark.parametrize("reading", ["inspect", "verify", "export"])
def test_commands_for_what_lies_still_say_that_it_does_not(host: Node, reading: str) -> None:
    result = CliRunner().invoke(cli.app, [reading, host.path])
    assert result.exit_code == 2
    assert f"process {os.getpid()}" in result.stderr


@pytest.mark.slow
def test_two_terminals_have_one_directory(tmp_path: Path) -> None:
    place = tmp_path / "data"
    with Member(place, "consume") as consumer, warren.open(place, share=True) as node:
        consumer.hear("ready")
        node.queue("work").publish(b"over there").wait(60)
        assert consumer.hear("got") == "got over there False"
