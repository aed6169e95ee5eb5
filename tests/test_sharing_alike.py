"""The same situation for the process that hosts a directory and for its guest: outcomes and errors are alike."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import warren
from tests.support.sharing_tools import Member, link_of
from tests.support.waiting import wait_until
from warren.actors.engines.queue.queue_turn import QueueTurn
from warren.actors.engines.topics.topic_store import TopicStore
from warren.actors.queue.intake import QueueGoneError
from warren.client.calls import error_of, refusal_of
from warren.client.remote import RemoteVhost
from warren.errors import (
    BlockedError,
    ClosedError,
    DataError,
    DirectoryLostError,
    MessageError,
    NoRoomError,
    QueueDownError,
    UnknownTagError,
    VhostDownError,
    WarrenError,
)
from warren.queue_index.index.directory import VHOST_NAME_FILE

LONG_S = 60.0

Situation = Callable[[warren.Node, Path], object]


def a_full_queue(node: warren.Node, _: Path) -> object:
    node.queue("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"}).publish(b"1").wait(LONG_S)
    return None


def a_removed_directory(node: warren.Node, place: Path) -> object:
    queue = node.queue("q")
    queue.publish(b"1").wait(LONG_S)
    place.rename(place.with_suffix(".away"))
    try:
        queue.publish(b"2").wait(LONG_S)
    finally:
        place.with_suffix(".away").rename(place)
    return None


def an_ack_timeout(node: warren.Node, _: Path) -> object:
    queue = node.queue("slow")
    queue.publish(b"1").wait(LONG_S)
    with queue.consume(prefetch=1, ack_timeout=2) as consumer:
        first, second = consumer.receive(LONG_S), consumer.receive(LONG_S)
        assert first is not None
        assert second is not None
        first.ack()  # it has gone back: that has no effect
        second.ack()
        queue.publish(b"2").wait(LONG_S)
        third = consumer.receive(LONG_S)
        assert third is not None
        third.ack()
    return first.redelivered, second.redelivered, second.body, third.body


def a_large_body(node: warren.Node, _: Path) -> object:
    consumer, queue = node.queue("other").consume(), node.queue("large")
    queue.publish(bytes((128 << 20) + 1)).wait(LONG_S)
    large = queue.get(timeout=LONG_S, auto_ack=True)
    node.queue("other").publish(b"1").wait(LONG_S)
    other = consumer.receive(LONG_S)
    assert large is not None
    assert other is not None
    return len(large.body), other.body


def in_a_removed_directory(work: Callable[[warren.Node, warren.Queue], object]) -> Situation:
    def situation(node: warren.Node, place: Path) -> object:
        queue = node.queue("q")
        queue.publish(b"1").wait(LONG_S)
        place.rename(place.with_suffix(".away"))
        try:
            return work(node, queue)
        finally:
            place.with_suffix(".away").rename(place)

    return situation


def after_its_deletion(work: Callable[[warren.Queue], object]) -> Situation:
    def situation(node: warren.Node, _: Path) -> object:
        queue = node.queue("q")
        node.delete_queue("q")
        return work(queue)

    return situation


def a_queue_that_fails_under_its_consumer(node: warren.Node, _: Path) -> object:
    queue = node.queue("q")
    with patch.object(QueueTurn, "purge", side_effect=DataError("journal.jif", 0, "damaged")):
        consumer = queue.consume()
        with pytest.raises(DataError):
            queue.purge()
        return consumer.receive(LONG_S)


def exclusive_use(*, first: bool, second: bool) -> Situation:
    def situation(node: warren.Node, _: Path) -> object:
        queue, other = node.queue("q"), node.queue("other")
        bystander = other.consume()
        with queue.consume(exclusive=first), contextlib.ExitStack() as refused:
            try:
                refused.enter_context(queue.consume(exclusive=second))
            except WarrenError:
                other.publish(b"still here").wait(LONG_S)
                assert bystander.receive(LONG_S) is not None
                raise
        return None

    return situation


def without_room(work: Callable[[warren.Topic], object]) -> Situation:
    def situation(node: warren.Node, _: Path) -> object:
        topic = node.topic("t", queues=1)
        with patch.object(TopicStore, "append", side_effect=NoRoomError("no space left on device")):
            return work(topic)

    return situation


SITUATIONS: tuple[Situation, ...] = (
    without_room(lambda topic: topic.append(b"1").wait(LONG_S)),
    without_room(lambda topic: topic.append_many([b"1", b"2"]).wait(LONG_S)),
    without_room(lambda topic: topic.prepare(b"1", group="g")),
    in_a_removed_directory(lambda node, _: node.queue("new")),
    in_a_removed_directory(lambda node, _: node.exchange("new", "direct")),
    in_a_removed_directory(lambda node, queue: node.bind(queue, node.exchange("amq.direct"), "k")),
    in_a_removed_directory(lambda node, _: node.delete_queue("q")),
    after_its_deletion(lambda queue: queue.get()),
    after_its_deletion(lambda queue: queue.get_many(2)),
    after_its_deletion(lambda queue: queue.consume().receive(LONG_S)),
    after_its_deletion(lambda queue: queue.purge()),
    after_its_deletion(len),
    after_its_deletion(lambda queue: queue.stats()),
    a_queue_that_fails_under_its_consumer,
    exclusive_use(first=True, second=False),
    exclusive_use(first=False, second=True),
    a_full_queue,
    a_removed_directory,
    an_ack_timeout,
    a_large_body,
)


def outcome(situation: Situation, node: warren.Node, place: Path) -> tuple[object, str]:
    """What it returns, or the error that it raises, with its text."""
    try:
        return situation(node, place), ""
    except WarrenError as error:
        return type(error), str(error).replace(str(place), "DIRECTORY")


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_host_and_a_guest_have_the_same_outcome(situation: Situation, tmp_path: Path) -> None:
    outcomes = []
    for whose in ("host", "guest"):
        place = tmp_path / whose
        with contextlib.suppress(DirectoryLostError), warren.open(place, share=True) as host:
            node = host if whose == "host" else warren.open(place, share=True)
            outcomes.append(outcome(situation, node, place))
            node.close()
    assert outcomes[0] == outcomes[1]


def test_a_guest_does_not_go_on_in_a_directory_that_replaced_its_own(tmp_path: Path) -> None:
    place = tmp_path / "data"
    with Member(place, "hold") as member:
        member.hear("ready")
        guest = warren.open(place, share=True)
        queue = guest.queue("q")
        queue.publish(b"1").wait(LONG_S)
        place.rename(tmp_path / "away")
        os.mkdir(place)
        member.kill()
    with pytest.raises(DirectoryLostError, match="removed or replaced since it was opened"):
        queue.publish(b"2").wait(LONG_S)
    assert os.listdir(place) == []
    with pytest.raises(DirectoryLostError, match="removed or replaced since it was opened"):
        guest.close()


@pytest.mark.parametrize(
    "verb",
    [
        lambda node: node.queue("q"),
        lambda node: node.queue("q", passive=True),
        lambda node: node.exchange("amq.direct").publish(b"1").wait(LONG_S),
        lambda node: node.set_policy("p", "", {"max-length": 1}),
    ],
)
def test_a_guest_learns_that_the_vhost_is_down_and_why(verb: Callable[[warren.Node], object], tmp_path: Path) -> None:
    with warren.open(tmp_path) as node:
        node.queue("q").publish(b"1").wait(LONG_S)
    [name_file] = tmp_path.rglob(VHOST_NAME_FILE)
    name_file.write_bytes(b"another one")
    with warren.open(tmp_path, share=True) as host, warren.open(tmp_path, share=True) as guest:
        of_host, of_guest = (outcome(lambda node, _: verb(node), node, tmp_path) for node in (host, guest))
    assert of_guest == of_host
    assert of_host[0] is VhostDownError


@pytest.mark.parametrize("role", ["host", "guest"])
def test_a_node_that_was_closed_says_so(role: str, tmp_path: Path) -> None:
    with warren.open(tmp_path, share=True) as host:
        node = host if role == "host" else warren.open(tmp_path, share=True)
        queue, topic, vhost = node.queue("q"), node.topic("t"), node.vhost("v")
        queue.publish_many([b"1"] * 9).wait(LONG_S)
        batch, deliveries = queue.get_many(2), [queue.get() for _ in range(7)]
        one, two, three, four, five, six, seven = (delivery for delivery in deliveries if delivery is not None)
        confirm, consumer = queue.publish(b"on its way"), node.queue("empty").consume()
        node.close()
        confirm.wait(LONG_S)
        verbs: tuple[Callable[[], object], ...] = (
            one.ack,
            lambda: two.ack(multiple=True),
            three.nack,
            four.reject,
            five.retry,
            lambda: six.retry(60),
            lambda: seven.extend(60),
            lambda: queue.ack([seven]),
            lambda: queue.nack(batch),
            lambda: queue.ack_up_to(seven.delivery_tag),
            lambda: node.publish_to([], b"1"),
            lambda: topic.append_many([]),
            vhost.release,
            node.queues,
            lambda: node.failed_queues,
            lambda: queue.publish(b""),
            queue.get,
            lambda: len(queue),
        )
        for verb in verbs:
            with pytest.raises(ClosedError, match="is closed"):
                verb()
        with pytest.raises(ClosedError) if role == "guest" else contextlib.nullcontext():
            assert consumer.receive() is None


def test_extending_a_delivery_of_a_host_that_is_gone_says_that_it_went_back(tmp_path: Path) -> None:
    with Member(tmp_path, "hold") as member:
        member.hear("ready")
        with warren.open(tmp_path, share=True) as guest:
            queue = guest.queue("q")
            queue.publish(b"1").wait(LONG_S)
            delivery = queue.get()
            assert delivery is not None
            member.kill()
            assert len(queue) == 1  # here, now
            with pytest.raises(UnknownTagError):
                delivery.extend(60)


def test_a_guest_gets_the_nearest_error_that_users_know() -> None:
    for error, kind in ((NoRoomError("full"), NoRoomError), (QueueGoneError("gone"), QueueDownError)):
        assert type(error_of(refusal_of(error))) is kind


def test_an_answer_that_cannot_be_sent_to_a_guest_is_an_error_of_ours(tmp_path: Path) -> None:
    with warren.open(tmp_path, share=True) as host, warren.open(tmp_path, share=True) as guest:
        host.set_policy("long", "q", {"max-length": 1 << 70})
        with pytest.raises(MessageError, match="the answer cannot be sent to another process"):
            guest.policies()
        assert guest.vhosts() == ["/"]


def test_the_deletion_of_a_guests_queue_waits_for_no_confirm(tmp_path: Path) -> None:
    """Under an alarm of the host's, the confirms that it waited for might not come."""
    with warren.open(tmp_path, share=True), warren.open(tmp_path, share=True) as guest:
        queue = guest.queue("q")
        with patch.object(RemoteVhost, "flush", side_effect=AssertionError("it waits for confirms")):
            assert queue.delete() == 0


@pytest.mark.parametrize("waiting", [{}, {"timeout": LONG_S}, {"block": False}], ids=str)
def test_delayed_messages_of_a_guest_do_not_wait_for_the_end_of_a_full_disk(
    waiting: dict[str, Any], tmp_path: Path
) -> None:
    with warren.open(tmp_path, share=True) as host, warren.open(tmp_path, share=True) as guest:
        queue = guest.queue("q")
        delaying = guest.exchange("delaying", "x-delayed-message", arguments={"x-delayed-type": "direct"})
        for confirm in (queue.publish(b""), delaying.publish(b"", "nowhere")):
            confirm.wait(LONG_S)
        gate = host._running.gate
        gate.note_full_disk(is_full=True)
        gate.set(frozenset({"disk"}))
        wait_until(lambda: bool(link_of(guest).blocked), "it was not told")
        with pytest.raises(BlockedError):
            queue.publish(b"waits", block=False)
        queue.publish(b"later", delay=3600, **waiting).wait(LONG_S)
        delaying.publish(b"later", "q", headers={"x-delay": 3_600_000}, **waiting).wait(LONG_S)
        assert len(host.delayed()) == 2
        gate.note_full_disk(is_full=False)
        gate.set(frozenset())
