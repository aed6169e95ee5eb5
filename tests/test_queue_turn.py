"""A queue's turn by itself: when it syncs, rests, reports, and which timers it wants. The host keeps what it hears."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.process_tools import START_US, Bench, envelope
from warren.actors.engines.back_off import FIRST_WAIT_NS, MAX_WAIT_NS
from warren.actors.engines.credit import GrantedCredit, StoreTickets
from warren.actors.engines.node_settings import NodeSettings
from warren.actors.engines.queue.consumers import Consumer
from warren.actors.engines.queue.effects import DeadLetterBatch, Delivered
from warren.actors.engines.queue.queue_receivers import BUFFER
from warren.actors.engines.queue.queue_turn import QueueTurn
from warren.actors.engines.queue.queue_turn_host import TurnContext
from warren.storage.errors import NoRoomError

MS_NS = 1_000_000
FULL = NoRoomError("/queues/q/journal.jif", 0, "no room")


class Store(StoreTickets):
    """A queue's way to a store: counts how often it was asked to sync."""

    def __init__(self) -> None:
        super().__init__(GrantedCredit(10, 5))
        self.syncs = 0

    def sync(self) -> None:
        self.syncs += 1


class Taker:
    """A consumer that takes nothing of what it is handed."""

    def __init__(self) -> None:
        self.buffered = 0

    def put(self, delivered: Delivered) -> None:
        self.buffered += delivered.count


class Host:
    """Hosts one queue's turns; ``heard``: what they had for others since it was last looked at."""

    def __init__(self, arguments: dict[str, Any] | None = None, **settings: Any) -> None:
        self.bench = Bench(arguments)
        self.settings = NodeSettings(**{"sync_interval_ms": 25} | settings)
        self.store = Store()
        self.heard: list[tuple[Any, ...]] = []
        self.timers: dict[str, int] = {}
        self.due: dict[str, Callable[[], object]] = {}
        self.more = False
        self.turn = QueueTurn(
            TurnContext(
                host=self,
                output=self,
                process=self.bench.queue,
                stores=[self.store],
                clock=self,
                settings=self.settings,
            )
        )

    def run(self, *, hurry: bool = False) -> None:
        self.turn.tell(self.turn.make_safe(hurry=hurry))
        self.turn.finish()

    def publish(self, token: str, *bodies: bytes) -> None:
        ids = self.bench.ids.many(len(bodies))
        self.turn.publish(envelope(), ids, list(bodies), None, 0, token)

    def later(self, milliseconds: float) -> None:
        """Let time pass; timers that are due go off, each in a turn of its own."""
        self.bench.later(milliseconds)
        for key in [key for key, at_ns in self.timers.items() if at_ns <= self.now_ns()]:
            del self.timers[key]
            self.due[key]()
            self.run()

    def take(self) -> list[tuple[Any, ...]]:
        heard, self.heard = self.heard, []
        return heard

    # ── the clock, and what the turn has for others ─────────────────────────────────────────────────────────────

    def now_ns(self) -> int:
        return (self.bench.now_us - START_US) * 1000

    def wall_us(self) -> int:
        return self.bench.now_us

    def has_more(self) -> bool:
        return self.more

    def has_work(self) -> bool:
        return self.more

    def call_later(self, key: str, wait_ns: int, work: Callable[[], object], *, first: bool = False) -> None:
        self.timers[key], self.due[key] = self.now_ns() + wait_ns, work

    def cancel_timers(self) -> None:
        self.timers.clear()

    def account_memory(self) -> None: ...

    def rested(self) -> None:
        self.heard.append(("rested",))

    def call_soon(self, work: Callable[[], object]) -> None:
        self.heard.append(("soon", work))

    def report(self, duration_s: float | None, *, pageable: bool, resting: bool) -> None:
        self.heard.append(("report", duration_s, pageable, resting))

    def leave_monitor(self) -> None:
        self.heard.append(("leave",))

    def disk_is_full(self, error: NoRoomError, *, since_now: bool) -> None:
        self.heard.append(("full", since_now))

    def disk_has_room(self) -> None:
        self.heard.append(("room",))

    def confirmed(self, token: Any) -> None:
        self.heard.append(("confirmed", token))

    def refused(self, token: Any) -> None:
        self.heard.append(("refused", token))

    def not_safe(self, token: Any, error: NoRoomError) -> None:
        self.heard.append(("not safe", token))

    def consumer_cancelled(self, receiver: Any) -> None:
        self.heard.append(("cancelled", receiver))

    def send_dead_letters(self, batch: DeadLetterBatch) -> None:
        self.heard.append(("dead", batch.number, len(batch.publications)))

    def lapsed(self, receiver: Any, tags: range) -> None:
        self.heard.append(("lapsed", receiver, tags))

    def unused(self) -> None:
        self.heard.append(("unused",))


def test_what_was_published_is_safe_when_the_sync_timer_goes_off() -> None:
    host = Host(sync="group", sync_interval_ms=25)
    host.publish("a", b"1")
    host.run()
    assert host.timers["sync"] == 25 * MS_NS
    host.publish("b", b"2")
    host.run()
    assert [one for one in host.take() if one[0] == "confirmed"] == []
    assert host.timers["sync"] == 25 * MS_NS
    host.later(25)
    assert [one for one in host.take() if one[0] == "confirmed"] == [("confirmed", "a"), ("confirmed", "b")]
    assert host.store.syncs == 1
    assert not host.turn.syncs.waiting


def test_without_grouping_it_is_safe_in_the_same_turn() -> None:
    host = Host(sync="always")
    host.publish("a", b"1")
    host.run()
    assert ("confirmed", "a") in host.take()
    assert "sync" not in host.timers


def test_somebody_who_waits_does_not_wait_for_the_timer_nor_miss_what_is_still_in_the_inbox() -> None:
    host = Host(sync="group")
    host.publish("a", b"1")
    host.more = True
    host.run(hurry=True)
    assert ("confirmed", "a") in host.take()
    host.publish("b", b"2")
    host.more = False
    host.run()
    assert ("confirmed", "b") in host.take(), "the hurry was for what was in the inbox as well"
    host.publish("c", b"3")
    host.run()
    assert ("confirmed", "c") not in host.take()


def test_acks_are_synced_by_the_timer_under_any_setting() -> None:
    host = Host(sync="always")
    host.publish("a", b"1")
    host.run()
    [got] = host.turn.get_many("c", 1, ack_required=True)
    host.turn.settle("c", "ack", [got.tags])
    host.run()
    assert host.turn.syncs.settled
    assert "sync" in host.timers
    host.later(host.settings.sync_interval_ms)
    assert not host.turn.syncs.settled


def test_the_timer_goes_on_waiting_where_a_sync_for_somebody_has_come_between() -> None:
    host = Host(sync="always")
    host.publish("a", b"1", b"2")
    host.run()
    got = host.turn.get_many("c", 2, ack_required=True)
    tags = [tag for one in got for tag in one.tags]
    host.turn.settle("c", "ack", [range(tags[0], tags[0] + 1)])
    host.run()
    due_ns = host.timers["sync"]
    host.later(20)
    host.publish("b", b"3")
    host.run(hurry=True)
    host.turn.settle("c", "ack", [range(tags[1], tags[1] + 1)])
    host.run()
    host.later(5)
    assert host.turn.syncs.settled, "it came after the sync of five milliseconds ago"
    assert host.turn.comes_soon
    assert host.timers["sync"] == due_ns + 20 * MS_NS
    host.later(20)
    assert not host.turn.syncs.settled
    assert "sync" not in host.timers


def test_a_queue_at_work_reports_at_once_and_then_at_its_interval() -> None:
    host = Host(sync="always", hibernate_after_ms=60_000)
    host.publish("a", b"1")
    host.run()
    assert [one[0] for one in host.take()].count("report") == 1
    host.publish("b", b"1")
    host.run()
    assert [one[0] for one in host.take()].count("report") == 0
    host.later(host.settings.queue_ram_report_interval_ms)
    assert [one[0] for one in host.take()].count("report") == 1


def test_an_idle_queue_rests_keeps_what_is_in_ram_and_gives_it_up_when_told() -> None:
    host = Host(sync="always")
    host.publish("a", b"1")
    host.run()
    host.take()
    host.later(host.settings.hibernate_after_ms)
    assert host.turn.memory.resting
    assert not host.timers
    assert host.take()[-1] == ("report", None, True, True)
    host.turn.memory.set_duration_target(0.0)
    host.run()
    assert host.take() == [("rested",), ("leave",)]
    assert host.turn.process.backing.asleep
    host.publish("b", b"2")
    host.run()
    assert not host.turn.memory.resting
    assert {"report", "idle"} <= host.timers.keys()


def test_a_queue_does_not_rest_before_what_was_published_is_safe() -> None:
    host = Host(sync="group", sync_interval_ms=25)
    host.publish("a", b"1")
    host.run()
    del host.timers["sync"]
    host.later(host.settings.hibernate_after_ms)
    assert not host.turn.memory.resting
    assert "idle" in host.timers


def test_on_a_full_disk_publishers_are_told_and_it_is_tried_again_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(sync="always")

    def no_room(_: object) -> None:
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(type(host.bench.queue.backing), "sync_index", no_room)
        host.publish("a", b"1")
        host.run()
        assert host.take()[:2] == [("full", True), ("not safe", "a")]
        assert host.turn.syncs.waits_for_room
        waits = [host.timers["sync"]]
        while len(waits) < 6:
            begun_ns = host.timers["sync"]
            host.later((begun_ns - host.now_ns()) / MS_NS)
            waits.append(host.timers["sync"] - begun_ns)
    assert waits == [FIRST_WAIT_NS * factor for factor in (1, 2, 4, 8, 16)] + [MAX_WAIT_NS]
    host.take()
    host.later(MAX_WAIT_NS / MS_NS)
    assert ("room",) in host.take()
    assert not host.turn.syncs.waits_for_room


def test_a_store_without_room_fails_what_waits_and_its_progress_is_the_end_of_that() -> None:
    host = Host(sync="group")
    host.publish("a", b"1")
    host.turn.syncs.store_full(FULL)
    assert host.take() == [("not safe", "a")]
    assert host.turn.syncs.waits_for_room
    host.turn.syncs.store_progress(host.store, 0, 0)
    assert not host.turn.syncs.waits_for_room


def test_a_consumer_without_a_prefetch_holds_no_more_than_a_buffer() -> None:
    host, taker = Host(sync="always"), Taker()
    host.turn.receivers.subscribe(Consumer("c", "c"), taker)
    host.publish("a", *[b"x"] * (BUFFER + 500))
    host.run()
    assert taker.buffered == BUFFER
    taker.buffered = 0
    host.run()
    assert taker.buffered == 500


def test_messages_that_expire_do_so_while_their_queue_rests() -> None:
    host = Host({"x-message-ttl": 60_000, "x-dead-letter-exchange": "dlx"}, sync="always")
    host.publish("a", b"1", b"2")
    host.run()
    host.later(host.settings.hibernate_after_ms)
    host.turn.memory.set_duration_target(0.0)
    host.run()
    assert host.turn.memory.resting
    assert list(host.timers) == ["deadline"]
    host.take()
    host.later(60_000)
    assert sum(one[2] for one in host.take() if one[0] == "dead") == 2
    assert not len(host.turn.process.backing)


def test_a_queue_that_nobody_uses_says_so() -> None:
    host = Host({"x-expires": 1000}, sync="always")
    host.turn.deadline.arm()
    host.later(999)
    assert ("unused",) not in host.take()
    host.later(1)
    assert ("unused",) in host.take()
