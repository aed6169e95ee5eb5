"""Delayed messages as users have them, on a node whose clock is turned by hand: what comes when, from whatever was
before; stops, crashes and power losses on the way."""

from __future__ import annotations

import contextlib
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.effort import every
from tests.support.runtime_tools import HandNode, actor_behind, actor_of, hand_node
from warren import Queue
from warren.actors.clock import HandClock
from warren.actors.delays.delay_output import ON_THE_WAY, TURN_MESSAGES, DelayOutput, _Outcome
from warren.actors.engines.delays.delay_log import DueMessage
from warren.actors.engines.errors import ArgumentsError
from warren.actors.node.node_errors import DelaysDownError
from warren.actors.queue.intake import PublishRefusedError, QueueDownError, QueueGoneError
from warren.actors.queue.queue_arrivals import QueueArrivals
from warren.actors.runtime.future import Future
from warren.storage.errors import DiskFullError, MessageError, WarrenError
from warren.storage.faults import SimulatedCrash
from warren.storage.memory import MemoryFileSystem
from warren.values.messages import MAX_DUE_MS
from warren.values.scheduling import Scheduled
from warren.verbs.addressing import Delay

DELAYED = {"x-delayed-type": "direct"}


def taken(queue: Queue) -> list[bytes]:
    """All that is there now."""
    return [delivery.body for delivery in queue.get_many(10_000, auto_ack=True)]


def delayed_files(hand: HandNode) -> list[str]:
    return sorted(path for path in hand.files.contents() if "warren.delayed" in path)


def test_a_message_comes_when_its_delay_is_over_and_not_before() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    sent = queue.publish(b"later", delay=1.5)
    sent.wait()
    hand.advance(1.499)
    assert taken(queue) == []
    hand.advance(0.001)
    assert taken(queue) == [b"later"]


def test_messages_come_in_the_order_of_time() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    for seconds in (3, 1, 2, 0.5, 2.5):
        queue.publish(b"%g" % seconds, delay=seconds)
    queue.publish(b"now")
    hand.advance(10)
    assert taken(queue) == [b"now", b"0.5", b"1", b"2", b"2.5", b"3"]


def test_at_is_a_datetime_with_or_without_a_zone_or_seconds() -> None:
    clock = HandClock(wall_us=1_700_000_000_000_000)
    hand = hand_node(clock=clock)
    queue = hand.node.queue("jobs")
    now = datetime.fromtimestamp(1_700_000_000, UTC)
    queue.publish(b"zone", at=now + timedelta(seconds=3))
    queue.publish(b"local", at=datetime.fromtimestamp(1_700_000_002))
    queue.publish(b"seconds", at=1_700_000_001.25)
    queue.publish(b"timedelta", delay=timedelta(milliseconds=500))
    queue.publish(b"past", at=0)
    queue.publish(b"long past", at=datetime.min)
    hand.run()
    assert taken(queue) == [b"past", b"long past"]
    for body in (b"timedelta", b"seconds", b"local", b"zone"):
        assert [message.body for message in queue.delayed(1)] == [body]
        hand.advance((queue.delayed(1)[0].due_ms - clock.wall_us() // 1000) / 1000)
        assert taken(queue) == [body]


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": "soon"},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": True},
        {"delay": 1e30},
        {"at": "tomorrow"},
        {"at": float("-inf")},
        {"at": 1, "delay": 1},
        {"delay": 1, "message_id": 7},
        {"delay": 3e11},
        {"at": 4e12},
        {"at": datetime.max},
        {"at": datetime.max.replace(tzinfo=UTC)},
        {"delay": timedelta.max},
    ],
)
def test_what_is_no_time_is_refused(wrong: dict[str, Any]) -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    with pytest.raises(MessageError):
        queue.publish(b"x", **wrong)
    assert delayed_files(hand) == []


def test_the_latest_time_that_a_message_can_wait_for_is_shown_in_every_time_zone(monkeypatch: Any) -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish(b"x", at=MAX_DUE_MS / 1000).wait()
    [message] = queue.delayed()
    for zone in ("UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert message.due.year == 9999
    monkeypatch.undo()
    time.tzset()


def test_a_client_cannot_ask_for_a_later_time_than_can_be_shown() -> None:
    hand = hand_node()
    node = hand.node._verbs.node
    hand.node.queue("jobs")
    for delay in (Delay(1 << 70, 0, ()), Delay(None, 1 << 70, ()), Delay(-1, 0, ())):
        receiver = delay.receiver(node, "/", "jobs", "")
        receiver.publish(hand.node.queue("jobs")._verbs.host.keys.plain, b"x").wait()
    assert [message.due_ms for message in hand.node.delayed()] == [MAX_DUE_MS] * 2


def test_no_name_of_a_queue_stops_the_delayed_messages() -> None:
    hand = hand_node()
    hand.node.queue("jobs").publish(b"x", delay=1).wait()
    for name in ("\ud800", "x" * 300):
        with pytest.raises(ArgumentsError):
            hand.node.delayed(queue=name)
        with pytest.raises(ArgumentsError):
            hand.node.cancel_delayed("id", queue=name)
    assert len(hand.node.delayed()) == 1


def test_without_a_delayed_message_there_are_neither_files_nor_an_actor() -> None:
    hand = hand_node()
    hand.node.queue("jobs").publish(b"x").wait()
    assert delayed_files(hand) == []
    assert hand.node._verbs.node.vhost("/").delays is None


def test_when_all_have_come_nothing_is_left_on_disk() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish(b"x", delay=1).wait()
    assert delayed_files(hand) != []
    hand.advance(1)
    hand.node.close()
    assert delayed_files(hand) == []
    assert taken(hand_node(hand.files, clock=hand.clock).node.queue("jobs")) == [b"x"]


def test_a_confirm_comes_when_the_message_is_safe() -> None:
    hand = hand_node(sync="group")
    sent = hand.node.queue("jobs").publish(b"x", delay=60)
    assert not sent.done
    sent.wait()
    again = hand_node(hand.lose_power(random.Random(1)), clock=hand.clock)
    assert [message.body for message in again.node.delayed()] == [b"x"]


# ── what is asked of them ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_is_called_back_by_the_id_that_warren_made_or_the_user() -> None:
    hand = hand_node()
    queue, other = hand.node.queue("jobs"), hand.node.queue("other")
    sent = queue.publish(b"made", delay=1)
    assert isinstance(sent, Scheduled)
    queue.publish(b"mine", delay=1, message_id="job 7")
    other.publish(b"others", delay=1, message_id="job 7")
    hand.run()
    assert queue.stats()["messages_delayed"] == 2
    assert queue.cancel_delayed(sent.message_id) == 1
    assert queue.cancel_delayed(sent.message_id) == 0
    assert queue.cancel_delayed("job 7") == 1
    assert queue.stats()["messages_delayed"] == 0
    assert hand.node.cancel_delayed("job 7") == 1
    hand.advance(5)
    assert taken(queue) == taken(other) == []
    assert queue.cancel_delayed("job 8") == 0


def test_what_was_called_back_stays_so_after_a_crash() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish(b"stays", delay=1)
    queue.publish(b"x", delay=1, message_id="x").wait()
    assert queue.cancel_delayed("x") == 1
    again = hand_node(hand.lose_power(random.Random(2)), clock=hand.clock)
    again.advance(2)
    assert taken(again.node.queue("jobs")) == [b"stays"]


def test_those_that_wait_are_listed_in_the_order_of_time() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish_many([b"c", b"a", b"b"], delay=[3, 1, 2], headers={"n": 1}).wait()
    hand.node.queue("other").publish(b"o", delay=0.5).wait()
    assert [(one.body, one.routing_key, one.headers) for one in queue.delayed()] == [
        (body, "jobs", {"n": 1}) for body in (b"a", b"b", b"c")
    ]
    assert [one.body for one in hand.node.delayed(2)] == [b"o", b"a"]
    assert hand.node.delayed(0) == []
    assert hand.node.stats()["vhosts"]["/"]["messages_delayed"] == 4


def test_a_single_message_may_have_its_headers_in_a_list() -> None:
    hand = hand_node()
    hand.node.queue("jobs").publish_many([b"c"], delay=1, headers=[{"n": 1}]).wait()
    assert [message.headers for message in hand.node.queue("jobs").delayed()] == [{"n": 1}]


def test_publish_many_gives_each_its_own_id_and_time() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    sent = queue.publish_many([b"%d" % n for n in range(20)], delay=[n % 2 for n in range(20)])
    assert isinstance(sent, Scheduled)
    assert len(set(sent.message_ids)) == 20
    sent.wait()
    assert taken(queue) == [b"%d" % n for n in range(0, 20, 2)]
    queue.cancel_delayed(sent.message_ids[1])
    hand.advance(1)
    got = queue.get_many(100, auto_ack=True)
    assert [one.body for one in got] == [b"%d" % n for n in range(3, 20, 2)]
    assert [one.properties.message_id for one in got] == sent.message_ids[3::2]
    with pytest.raises(MessageError, match="delay of 1 messages, and 2 bodies"):
        queue.publish_many([b"", b""], delay=[1])


def test_large_messages_of_several_fragments_and_with_all_properties_come_as_they_were() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs", arguments={"x-max-priority": 3})
    large = bytes(range(256)) * 2000
    queue.publish(large, delay=1, priority=2, expiration=60, headers={"x": [1, None]}, correlation_id="c", type="t")
    queue.publish(b"", delay=1, priority=3, persistent=False)
    hand.advance(1)
    empty, big = queue.get_many(2, auto_ack=True)
    assert (empty.body, empty.persistent) == (b"", False)
    assert big.body == large
    found = big.properties
    assert (found.priority, found.expiration, found.headers, found.correlation_id, found.type) == (
        2, "60000", {"x": [1, None]}, "c", "t",
    )  # fmt: skip


def test_a_time_to_live_begins_when_the_message_comes() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish(b"x", delay=10, expiration=2).wait()
    hand.advance(11)
    assert len(queue) == 1
    hand.advance(2)
    assert len(queue) == 0


def test_deleting_a_queue_takes_along_what_waits_for_it_and_purging_does_not() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    hand.node.exchange("amq.fanout").publish(b"others", delay=1).wait()
    queue.publish(b"x", delay=1).wait()
    assert queue.purge() == 0
    assert len(queue.delayed()) == 1
    assert queue.purge_delayed() == 1
    queue.publish(b"y", delay=1).wait()
    queue.delete()
    with pytest.raises(QueueGoneError):
        queue.publish(b"z", delay=1)
    again = hand.node.queue("jobs")
    hand.node.bind(again, "amq.fanout")
    hand.advance(2)
    assert taken(again) == [b"others"]


def test_publish_to_lets_a_message_wait_for_each_queue() -> None:
    hand = hand_node()
    queues = [hand.node.queue(name) for name in ("a", "b")]
    hand.node.publish_to(["a", "b"], b"x", delay=1, message_id="m").wait()
    assert queues[0].cancel_delayed("m") == 1
    hand.advance(1)
    assert [taken(queue) for queue in queues] == [[], [b"x"]]


# ── exchanges ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_exchange_routes_what_is_delayed_by_the_bindings_of_the_moment_when_it_comes() -> None:
    hand = hand_node()
    exchange, queue = hand.node.exchange("amq.topic"), hand.node.queue("jobs")
    exchange.publish(b"x", "a.b", delay=1).wait()
    hand.node.bind(queue, exchange, "a.*")
    hand.advance(1)
    [got] = queue.get_many(2)
    assert (got.body, got.exchange, got.routing_key) == (b"x", "amq.topic", "a.b")


def test_what_leads_nowhere_when_it_comes_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    hand = hand_node()
    gone = hand.node.exchange("gone", "direct")
    for key in ("k", "l"):
        gone.publish(b"x", key, delay=1).wait()
    hand.node.delete_exchange("gone")
    hand.advance(1)
    assert hand.node.delayed() == []
    [dropped] = [record.getMessage() for record in caplog.records]
    assert "delayed messages of vhost '/': a message is dropped: exchange 'gone' does not exist" in dropped


@pytest.mark.parametrize(("said", "delay_s"), [(1500, 1.5), ("250", 0.25), (99.9, 0.099), (1 << 33, (1 << 33) / 1000)])
def test_an_x_delayed_message_exchange_waits_as_the_header_says(said: Any, delay_s: float) -> None:
    hand = hand_node()
    exchange, queue = hand.node.exchange("later", "x-delayed-message", arguments=DELAYED), hand.node.queue("jobs")
    hand.node.bind(queue, exchange, "k")
    exchange.publish(b"x", "k", headers={"x-delay": said, "a": 1}).wait()
    assert len(queue) == 0
    [waiting] = hand.node.delayed()
    assert waiting.due_ms == hand.clock.wall_us() // 1000 + round(delay_s * 1000)
    if delay_s < 10:
        hand.advance(delay_s)
        [got] = queue.get_many(2)
        assert got.headers == {"x-delay": -round(delay_s * 1000), "a": 1}


@pytest.mark.parametrize("said", [0, -5, None, True, "soon", b"\xff", [5]])
def test_an_x_delayed_message_exchange_routes_at_once_what_says_no_delay(said: Any) -> None:
    hand = hand_node()
    exchange, queue = hand.node.exchange("later", "x-delayed-message", arguments=DELAYED), hand.node.queue("jobs")
    hand.node.bind(queue, exchange, "k")
    exchange.publish(b"x", "k", headers={"x-delay": said}).wait()
    [got] = queue.get_many(2)
    assert got.headers == {"x-delay": said}
    assert delayed_files(hand) == []


def test_an_x_delayed_message_exchange_routes_as_its_argument_says() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    for kind, key, arguments in (
        ("direct", "a.b", None), ("topic", "a.#", None), ("fanout", "", None), ("headers", "", {"h": 1}),
    ):  # fmt: skip
        exchange = hand.node.exchange(kind, "x-delayed-message", arguments={"x-delayed-type": kind})
        hand.node.bind(queue, exchange, key, arguments)
        exchange.publish(kind.encode(), "a.b", headers={"x-delay": 1000, "h": 1})
        exchange.publish(b"not to be", "other", headers={"x-delay": 1000, "h": 2})
    hand.advance(1)
    assert sorted(taken(queue)) == [b"direct", b"fanout", b"headers", b"not to be", b"topic"]


@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": "x-delayed-message"}, {"x-delayed-type": 7}])
def test_an_x_delayed_message_exchange_needs_a_type_that_routes(arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentsError, match="x-delayed-type"):
        hand_node().node.exchange("later", "x-delayed-message", arguments=arguments)


def test_definitions_take_an_x_delayed_message_exchange_from_node_to_node() -> None:
    hand, other = hand_node(), hand_node()
    hand.node.exchange("later", "x-delayed-message", arguments={"x-delayed-type": "topic"})
    hand.node.bind(hand.node.queue("jobs"), "later", "a.*")
    other.node.import_definitions(hand.node.definitions())
    other.node.exchange("later").publish(b"x", "a.b", headers={"x-delay": 1000}).wait()
    other.advance(1)
    assert taken(other.node.queue("jobs")) == [b"x"]
    again = hand_node(hand.kill())
    assert again.node.exchange("later").type == "x-delayed-message"


# ── queues that refuse, are down, or are full ────────────────────────────────────────────────────────────────────────


def test_what_a_full_queue_refuses_is_dropped_and_what_it_takes_is_there() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    queue.publish_many([b"1", b"2", b"3", b"4"], delay=1).wait()
    hand.advance(2)
    assert hand.node.delayed() == []
    assert taken(queue) == [b"1", b"2"]


def test_what_is_due_for_a_queue_that_is_down_waits_until_it_is_up() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish(b"x", delay=1).wait()
    entry = queue._verbs.entry
    actor_of(queue).turns.fail(RuntimeError("made up"), None)
    entry.go_down(RuntimeError("made up"))
    hand.run()
    entry.go_down(RuntimeError("made up"))
    hand.advance(5)
    assert len(hand.node.delayed()) == 1
    hand.node._verbs.node.vhost("/").start_queue(entry)
    hand.advance(2)
    assert taken(queue) == [b"x"]


def test_what_can_neither_be_published_nor_written_again_waits_for_room_all_of_it() -> None:
    hand = hand_node()
    queues = [hand.node.queue(name) for name in ("a", "b")]
    for queue in queues:
        queue.publish(b"x", delay=1).wait()
    entries = [queue._verbs.entry for queue in queues]
    for queue, entry in zip(queues, entries, strict=True):
        actor_of(queue).turns.fail(RuntimeError("made up"), None)
        entry.go_down(RuntimeError("made up"))
    hand.run()
    for entry in entries:
        entry.go_down(RuntimeError("made up"))
    hand.files.fail("append", "*.delayed", error=DiskFullError, times=4)
    hand.advance(1)
    actor = hand.node._verbs.node.vhost("/").delayed().actor
    assert len(actor.output._without_room) == 2
    for entry in entries:
        hand.node._verbs.node.vhost("/").start_queue(entry)
    hand.advance(5)
    assert not actor.output._without_room
    assert [taken(queue) for queue in queues] == [[b"x"], [b"x"]]
    assert (actor.output._on_the_way, actor.output._on_the_way_bytes) == (0, 0)


def test_while_an_alarm_is_set_nothing_comes() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish(b"x", delay=3).wait()
    hand.machine.free_disk_bytes = 0
    hand.advance(20)
    assert hand.node.memory()["alarms"]
    assert len(queue) == 0
    hand.machine.free_disk_bytes = 1 << 40
    hand.advance(20)
    assert taken(queue) == [b"x"]


def test_a_full_disk_refuses_what_is_to_wait_and_keeps_what_waits() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish(b"before", delay=5).wait()
    hand.files.capacity_bytes = hand.files.used_bytes + 10
    with pytest.raises(DiskFullError, match="delayed messages of vhost '/': not taken, for the disk is full"):
        queue.publish(b"x" * 1000, delay=1).wait()
    hand.files.capacity_bytes = None
    queue.publish(b"after", delay=1).wait()
    hand.advance(5)
    assert taken(queue) == [b"after", b"before"]


@pytest.mark.slow
def test_many_that_are_due_at_once_come_in_batches_and_all() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    many = 2 * ON_THE_WAY
    queue.publish_many([b"%d" % n for n in range(many)], delay=1).wait()
    hand.advance(1)
    assert taken(queue) + taken(queue) == [b"%d" % n for n in range(many)]


@pytest.mark.slow
def test_messages_that_are_due_at_once_do_not_keep_other_actors_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """One turn published up to 8192 of them, each to a queue of its own."""
    hand = hand_node()
    queues = [hand.node.queue(f"jobs {number}") for number in range(10)]
    for number in range(4 * TURN_MESSAGES):
        queues[number % 10].publish(b"%d" % number, delay=1).wait()
    order: list[int] = []
    publish, accept = DelayOutput._publish, QueueArrivals._publish

    def published(output: DelayOutput, messages: list[DueMessage]) -> None:
        order.append(len(messages))
        publish(output, messages)

    def accepted(arrivals: QueueArrivals, *arguments: Any) -> Any:
        order.append(-1)
        return accept(arrivals, *arguments)

    monkeypatch.setattr(DelayOutput, "_publish", published)
    monkeypatch.setattr(QueueArrivals, "_publish", accepted)
    hand.advance(1)
    turns = [count for count in order if count > 0]
    assert turns == [TURN_MESSAGES] * 4
    assert order.index(-1) < len(order) - order[::-1].index(TURN_MESSAGES) - 1, "queues had no turn in between"
    assert [taken(queue) for queue in queues] == [
        [b"%d" % number for number in range(first, 4 * TURN_MESSAGES, 10)] for first in range(10)
    ]


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_wall_clock_that_was_set_forward_is_followed_within_a_second() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish(b"x", delay=3600).wait()
    hand.advance(5)
    hand.clock._wall_us += 3600 * 1_000_000
    hand.advance(1)
    assert taken(queue) == [b"x"]


def test_a_wall_clock_that_was_set_back_makes_messages_come_later() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish(b"x", delay=2).wait()
    hand.clock._wall_us -= 60 * 1_000_000
    hand.advance(30)
    assert taken(queue) == []
    hand.advance(32)
    assert taken(queue) == [b"x"]


def test_what_became_due_while_the_node_was_closed_comes_when_it_is_opened() -> None:
    hand = hand_node()
    hand.node.queue("jobs").publish(b"x", delay=60).wait()
    hand.node.close()
    hand.clock._wall_us += 3600 * 1_000_000
    again = hand_node(hand.files, clock=hand.clock)
    again.run()
    assert taken(again.node.queue("jobs")) == [b"x"]


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_life(files: MemoryFileSystem, clock: HandClock, said: dict[str, Any]) -> None:
    """Messages that come, are called back, and wait, over files that are full after a few."""
    hand = hand_node(files, clock=clock, msg_store_file_size_limit=700, sync=said["sync"])
    queue = hand.node.queue("jobs")
    said["queue"] = True
    for n in range(6):
        queue.publish(b"soon %d" % n, delay=1 + n % 2, message_id=f"s{n}").wait()
        said["waits"].add(b"soon %d" % n)
    for n in range(3):
        queue.publish(b"late %d" % n, delay=1000, message_id=f"l{n}").wait()
        said["waits"].add(b"late %d" % n)
    said["perhaps"].add(b"late 1")
    if queue.cancel_delayed("l1"):
        said["waits"].discard(b"late 1")
        said["perhaps"].discard(b"late 1")
        said["never"].add(b"late 1")
    hand.advance(3)
    hand.node.queue("jobs").sync()
    said["there"] |= {b"soon %d" % n for n in range(6)}
    hand.node.close()


@pytest.mark.parametrize(
    "sync", [pytest.param("os", marks=pytest.mark.slow), "group", pytest.param("always", marks=pytest.mark.slow)]
)
def test_a_crash_at_every_operation_loses_nothing_that_was_confirmed(sync: str) -> None:
    count = MemoryFileSystem(random.Random(1))
    a_life(count, HandClock(), {"sync": sync, "waits": set(), "perhaps": set(), "never": set(), "there": set()})
    for operation in range(1, count.operations, every(5)):
        files, clock = MemoryFileSystem(random.Random(operation)), HandClock()
        files.crash_at(operation, torn=bool(operation % 2))
        said: dict[str, Any] = {"sync": sync, "waits": set(), "perhaps": set(), "never": set(), "there": set()}
        with contextlib.suppress(SimulatedCrash, WarrenError):
            a_life(files, clock, said)
        rng = random.Random(operation)
        disk = files.after_power_loss(rng) if sync != "os" and operation % 3 else files.after_process_crash()
        if "queue" not in said:
            continue
        again = hand_node(disk, clock=clock)
        again.advance(2000)
        bodies = taken(again.node.queue("jobs"))
        found = set(bodies)
        assert said["waits"] - said["perhaps"] <= found, operation
        assert not said["never"] & found, operation
        again.node.close()
        assert not [path for path in again.files.contents() if "warren.delayed" in path], operation


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_files_that_are_something_else_keep_delayed_messages_down_and_nothing_else() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish(b"x", delay=1).wait()
    hand.node.close()
    [path] = delayed_files(hand)
    hand.files.delete(path)
    file = hand.files.open_append(path)
    file.append(b"of another kind\n")
    file.close()
    again = hand_node(hand.files, clock=hand.clock)
    queue = again.node.queue("jobs")
    again.run()
    with pytest.raises(DelaysDownError, match="not a file of the kind 'warren delayed'"):
        queue.publish(b"y", delay=1)
    with pytest.raises(DelaysDownError):
        queue.delayed()
    exchange = again.node.exchange("later", "x-delayed-message", arguments=DELAYED)
    with pytest.raises(DelaysDownError):
        exchange.publish(b"y", headers={"x-delay": 5})
    queue.publish(b"plain").wait()
    assert queue.stats()["messages_delayed"] == 0
    assert taken(queue) == [b"plain"]
    queue.delete()
    again.node.close()
    assert delayed_files(again) == [path]


def test_after_an_error_of_the_disk_they_start_anew_from_their_files() -> None:
    hand = hand_node(sync="group")
    queue = hand.node.queue("jobs")
    queue.publish(b"before", delay=5).wait()
    hand.files.fail("sync")
    with pytest.raises(WarrenError):
        queue.publish(b"perhaps", delay=5).wait()
    hand.advance(1)
    queue.publish(b"after", delay=5).wait()
    hand.advance(10)
    assert {b"before", b"after"} <= set(taken(queue))


def test_a_vhost_that_is_opened_anew_has_its_delayed_messages() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish(b"x", delay=5).wait()
    store = actor_behind(hand.node._verbs.node.vhost("/").persistent)
    store.turns.fail(RuntimeError("made up"), None)
    hand.run()
    hand.advance(6)
    assert taken(hand.node.queue("jobs")) == [b"x"]


def test_a_vhost_that_is_deleted_takes_its_delayed_messages_along() -> None:
    hand = hand_node()
    vhost = hand.node.vhost("v")
    vhost.queue("jobs").publish(b"x", delay=1).wait()
    hand.node.delete_vhost("v")
    assert delayed_files(hand) == []
    again = hand.node.vhost("v")
    queue = again.queue("jobs")
    hand.advance(2)
    assert (taken(queue), again.delayed()) == ([], [])


def test_each_vhost_has_its_own_delayed_messages() -> None:
    hand = hand_node()
    queues = [hand.node.vhost(name).queue("jobs") for name in ("a", "b")]
    for queue in queues:
        queue.publish(queue.vhost.encode(), delay=1, message_id="same").wait()
    assert hand.node.vhost("a").cancel_delayed("same") == 1
    hand.advance(2)
    assert [taken(queue) for queue in queues] == [[], [b"b"]]


def test_what_one_queue_refuses_is_kept_until_it_is_known_of_the_other() -> None:
    for first, second, told in (
        (PublishRefusedError("full"), None, PublishRefusedError),
        (PublishRefusedError("full"), QueueDownError("down"), QueueDownError),
        (QueueDownError("down"), PublishRefusedError("full"), QueueDownError),
    ):
        found: list[BaseException | None] = []
        confirms = [Future(), Future()]
        outcome = _Outcome(2, found.append)
        for confirm in confirms:
            confirm.on_done(outcome.note)
        confirms[0].fail(first)
        assert found == []
        if second is None:
            confirms[1].set()
        else:
            confirms[1].fail(second)
        assert [type(one) for one in found] == [told]


def test_after_a_full_disk_what_has_come_is_written_down_as_gone() -> None:
    hand = hand_node()
    queue = hand.node.queue("jobs")
    queue.publish_many([b"%d" % n for n in range(10)], delay=[*[1] * 9, 1000]).wait()
    hand.files.fail("append", "*.delayed", error=DiskFullError, times=2)
    hand.advance(1)
    assert len(taken(queue)) == 9
    log = hand.node._verbs.node.vhost("/").delayed().actor.log
    assert len(log._unwritten_removed) == 9
    hand.advance(2)
    assert not log._unwritten_removed
    again = hand_node(hand.kill(), clock=hand.clock)
    assert [one.body for one in again.node.delayed()] == [b"9"]
