"""A node, or a guest, that is closed while other threads use it: it comes to its end, and their errors say why."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

import warren
from tests.support.runtime_tools import SMALL, actor_of, hand_node
from tests.support.sharing_tools import hang_up, link_of
from tests.support.waiting import together
from warren.actors.delays.delay_actor import DelayActor, Delayed
from warren.actors.delays.vhost_delays import target_of
from warren.actors.engines.delays.delay_log import DelayLog
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.runtime.future import Confirm
from warren.actors.topics.commit_log_actor import CommitLogActor
from warren.errors import ClosedError
from warren.handles.node import Node
from warren.msg_store.commit_log.commit_log_format import Host
from warren.msg_store.commit_log.message_batch import Batch
from warren.server import Server, ServerSettings

HOST = Host(b"\x7f\0\0\1", 1)

pytestmark = pytest.mark.usefixtures("host")


def test_a_guest_closes_though_others_publish_on(guest: Node) -> None:
    """It waited until nothing was on its way, which never came."""
    queue, topic, begun = guest.queue("q"), guest.topic("t"), threading.Event()

    def publish() -> None:
        with contextlib.suppress(ClosedError):
            while True:
                queue.publish(b"x")
                topic.append(b"y")
                begun.set()

    def close() -> None:
        begun.wait()
        guest.close()

    together(publish, publish, close)


def test_what_is_handed_over_once_a_guest_closes_is_refused_and_what_was_before_is_done(guest: Node) -> None:
    queue, topic = guest.queue("q"), guest.topic("t")
    confirms: list[Any] = [queue.publish(b"1"), topic.append(b"1")]
    link_of(guest).refuse(ClosedError("closed"))
    for hand_over in (queue.publish, topic.append):
        with pytest.raises(ClosedError):
            hand_over(b"2")
    for confirm in confirms:
        confirm.wait()
    assert len(queue) == 1


def test_nothing_is_asked_behind_a_guests_good_bye(guest: Node) -> None:
    """It used to be, and the caller got an error of the protocol's, or ended the thread that reads for all."""
    queue, link, asked = guest.queue("q"), link_of(guest), list[type[BaseException]]()
    len(queue)
    receive, flush, said = link.receive, link.outbox.flush, threading.Event()

    def flush_and_say() -> None:
        flush()
        if link.closed is not None:
            said.set()

    def ask() -> None:
        said.wait()
        try:
            len(queue)
        except BaseException as error:
            asked.append(type(error))
        link.receive = receive  # type: ignore[method-assign]

    link.outbox.flush = flush_and_say  # type: ignore[method-assign]
    link.receive = lambda connection, later: None  # type: ignore[method-assign]  # the host's answer waits
    together(ask, guest.close)
    assert asked == [ClosedError]


def test_a_retry_of_a_message_whose_host_is_gone_is_passed_over(guest: Node) -> None:
    """As an ack is: the message has gone back already."""
    queue = guest.queue("q")
    queue.publish(b"1").wait()
    delivery = queue.get()
    assert delivery is not None
    hang_up(guest)
    delivery.retry(0.01)
    again = queue.get(timeout=10)
    assert again is not None
    assert again.redelivered


def test_a_commit_as_a_guest_closes_says_that_it_is_closed(guest: Node) -> None:
    topic = guest.topic("t")
    topic.append(b"1").wait()
    reader = topic.reader("g")
    reader.read()
    guest.close()
    with pytest.raises(ClosedError):
        reader.commit()


def test_an_answer_for_a_client_of_a_server_that_has_stopped_does_not_end_the_actor_that_has_it(tmp_path: Path) -> None:
    """It did: a topic's log, when a guest was killed and its host closed before the guest's append was safe."""
    with warren.open(tmp_path / "plain") as node:
        server = Server(node._running, ServerSettings(port=None, directory=str(tmp_path)))
        server.start()
        queue = node.queue("q")
        actor = actor_of(queue)
        server.stop()
        actor.call_soon(lambda: server.post(lambda: None))
        queue.publish(b"1").wait()
        assert actor_of(queue) is actor


def test_who_comes_too_late_for_an_actor_of_a_node_that_closes_is_told_that_it_is_closed() -> None:
    scene = hand_node(**SMALL)
    actor, topics = actor_of(scene.node.queue("q")), scene.node.topic("t")
    topics.append(b"1").wait()
    running = scene.node._running.topics_now()
    scene.node.close()
    for part in (actor, running.dispatcher, running.log):
        assert isinstance(part.stopped_error(), ClosedError), part


def test_a_publish_that_meets_the_end_of_its_queue_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken and lost: the queue had taken the last entry out of its inbox."""
    hand, refused = hand_node(), list[type[BaseException]]()
    queue = hand.node.queue("q")
    queue.publish(b"before")
    intake, key, say_last_word = actor_of(queue).intake, queue._verbs.host.keys.plain, QueueActor._say_last_word

    def publish_late(actor: QueueActor) -> None:
        for publish in (
            lambda: intake.publish(key, b"late", here=False),
            lambda: intake.publish_many(key, [b"late"] * 3, here=False),
            lambda: intake.publish_many(key, [b"late"] * 3),
            lambda: intake.publish_unique(key, [b"late"], [None], 0, here=False),
        ):
            try:
                publish()
            except ClosedError as error:
                refused.append(type(error))
        say_last_word(actor)

    monkeypatch.setattr(QueueActor, "_say_last_word", publish_late)
    hand.node.close()
    assert len(refused) == 4
    again = hand_node(hand.files)
    assert [message.body for message in again.node.queue("q").browse()] == [b"before"]


def test_an_append_that_meets_the_end_of_the_topics_is_stored_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its confirm failed, though it was taken: the log had taken the last entry out of its inbox."""
    hand, refused, taken = hand_node(**SMALL), list[type[BaseException]](), list[Any]()
    topic = hand.node.topic("t", queues=1)
    topic.append(b"before").wait()
    intake, verbs = hand.node._running.topics_now().log.intake, topic._verbs
    close, save = CommitLogActor.close, CommitLogActor._save
    batch = Batch(
        topic="t", queue_id=0, bodies=[b"batch"], properties=[b""], born_timestamp=1, born_host=HOST, store_host=HOST
    )

    def append() -> None:
        taken.append(intake.append(verbs.message(b"single", 1)).confirm)
        taken.append(Confirm(intake))
        intake.hand_over([batch], taken[-1])

    def close_late(actor: CommitLogActor) -> None:
        append()
        close(actor)

    def save_late(actor: CommitLogActor) -> None:
        for hand_over in (
            lambda: intake.append(verbs.message(b"late", 1)),
            lambda: intake.hand_over([batch], Confirm(intake)),
        ):
            with pytest.raises(ClosedError) as error:
                hand_over()
            refused.append(error.type)
        save(actor)

    monkeypatch.setattr(CommitLogActor, "close", close_late)
    monkeypatch.setattr(CommitLogActor, "_save", save_late)
    hand.node.close()
    assert len(refused) == 2
    assert [confirm.error for confirm in taken] == [None, None]
    assert all(confirm.done for confirm in taken)
    monkeypatch.undo()
    again = hand_node(hand.files, **SMALL)
    assert [record.body for record in again.node.topic("t").read("g")] == [b"before", b"single", b"batch"]


def test_a_delayed_message_that_meets_the_end_of_its_vhost_is_stored_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hand, refused, taken = hand_node(), list[type[BaseException]](), list[Any]()
    queue = hand.node.queue("q")
    queue.publish(b"before", delay=3600)
    delays = hand.node._running.vhost("/").delays
    assert delays is not None
    intake = (delays.running or pytest.fail("not running")).intake
    due_ms = [hand.clock.wall_us() // 1000 + 3_600_000]
    delayed = Delayed(queue._verbs.host.keys.plain, [b"during"], target_of("q", ""), due_ms, [0])
    close, close_log = DelayActor.close, DelayLog.close

    def close_late(actor: DelayActor) -> None:
        taken.append(intake.delay(delayed, 0))
        close(actor)

    def close_log_late(log: DelayLog) -> None:
        with pytest.raises(ClosedError) as error:
            intake.delay(delayed, 0)
        refused.append(error.type)
        close_log(log)

    monkeypatch.setattr(DelayActor, "close", close_late)
    monkeypatch.setattr(DelayLog, "close", close_log_late)
    hand.node.close()
    assert refused
    assert [(confirm.done, confirm.error) for confirm in taken] == [(True, None)]
    monkeypatch.undo()
    again = hand_node(hand.files)
    assert len(again.node.queue("q").delayed()) == 2
