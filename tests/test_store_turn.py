"""A message store's turn by itself: what it reports to clients, when it syncs, and which timers it wants."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from warren.actors.engines.back_off import FIRST_WAIT_NS, MAX_WAIT_NS
from warren.actors.engines.store_turn import IDLE_NS, SYNC_DELAY_NS, Progress, StoreTurn
from warren.msg_store.rdq.message_store import REPLACED_BYTES, MessageStore
from warren.storage.errors import NoRoomError, StorageError
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import Settings

SETTINGS = Settings(msg_store_file_size_limit=1000)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def body(number: int) -> bytes:
    return f"body {number} ".encode() * 8


class Host:
    """Hosts one store's turns; ``heard``: what they had for others since it was last looked at."""

    def __init__(self, sync: str = "group", settings: Settings = SETTINGS) -> None:
        self.files = MemoryFileSystem(random.Random(0))
        self.files.make_directories("/store")
        self.store = MessageStore.open(self.files, "/store", settings)
        self.store.set_references([])
        self.heard: list[tuple[Any, ...]] = []
        self.timers: dict[str, tuple[int, Callable[[], object]]] = {}
        self.soon: list[Callable[[], object]] = []
        self.turn = StoreTurn[str](self, self.store, sync=sync)
        self.written: dict[str, int] = {}
        for client in ("a", "b"):
            self.turn.join(client)

    def write(self, client: str, *numbers: int) -> None:
        ticket = self.written[client] = self.written.get(client, 0) + len(numbers)
        self.turn.write(client, [key(n) for n in numbers], [body(n) for n in numbers], ticket)

    def run(self) -> list[Progress[str]]:
        """End the turn. Return the reports to clients."""
        told = self.turn.make_safe()
        self.turn.finish()
        return told

    def ring(self, timer: str) -> list[Progress[str]]:
        """A timer goes off, in a turn of its own."""
        _, work = self.timers.pop(timer)
        work()
        return self.run()

    def take(self) -> list[tuple[Any, ...]]:
        heard, self.heard = self.heard, []
        return heard

    def fill(self) -> None:
        """Leave no room for a byte more."""
        self.files.capacity_bytes = self.files.used_bytes

    # ── what the turn has for others ────────────────────────────────────────────────────────────────────────────

    def call_soon(self, work: Callable[[], object]) -> None:
        self.soon.append(work)

    def call_later(self, key: str, wait_ns: int, work: Callable[[], object]) -> None:
        self.timers[key] = wait_ns, work

    is_short_of_disk = False

    def disk_is_full(self, error: NoRoomError, *, since_now: bool) -> None:
        self.heard.append(("full", since_now))

    def disk_has_room(self) -> None:
        self.heard.append(("room",))

    def store_full(self, client: str, error: NoRoomError) -> None:
        self.heard.append(("not safe", client))


# ── reports to clients ──────────────────────────────────────────────────────────────────────────────────────────────


def test_bodies_are_taken_at_once_and_safe_when_the_timer_goes_off() -> None:
    host = Host()
    host.write("a", 1, 2)
    assert host.run() == [Progress("a", 2, 0)]
    assert host.timers["sync"][0] == SYNC_DELAY_NS
    assert host.ring("sync") == [Progress("a", 2, 2)]
    assert host.store.synced_ticket == host.store.written_ticket == 2
    assert not host.timers


def test_one_sync_is_for_all_and_each_client_hears_of_its_own_bodies() -> None:
    host = Host()
    host.write("a", 1)
    host.run()
    host.write("b", 2, 3)
    assert host.run() == [Progress("b", 2, 0)], "nothing is new for the other one"
    syncs = sum(kind == "sync" for kind, _ in host.files.plan.log)
    assert host.ring("sync") == [Progress("a", 1, 1), Progress("b", 2, 2)]
    assert sum(kind == "sync" for kind, _ in host.files.plan.log) == syncs + 1


def test_who_waits_has_it_safe_at_the_end_of_the_turn() -> None:
    host = Host()
    host.write("a", 1)
    host.turn.hurry()
    assert host.run() == [Progress("a", 1, 1)]
    host.write("a", 2)
    assert host.run() == [Progress("a", 2, 1)], "the hurry was for the turn before"


@pytest.mark.parametrize("sync", ["always", "os"])
def test_without_grouping_a_turn_makes_safe_what_it_took(sync: str) -> None:
    host = Host(sync)
    host.write("a", 1)
    assert host.run() == [Progress("a", 1, 1)]
    assert not host.timers


def test_nothing_is_told_twice_nor_to_one_that_has_left() -> None:
    host = Host()
    host.write("a", 1)
    host.write("b", 2)
    host.run()
    host.turn.leave("b")
    assert host.ring("sync") == [Progress("a", 1, 1)]
    assert host.run() == []
    host.write("b", 3)  # it was on its way
    assert host.run() == []
    assert host.store.read_many([key(2), key(3)]) == [body(2), body(3)]


def test_what_was_there_before_is_safe_and_nobody_is_told() -> None:
    host = Host()
    host.write("a", 1, 2)
    host.turn.forget_the_past()
    assert host.store.synced_ticket == 2
    assert host.run() == []
    host.write("a", 3)
    host.turn.hurry()
    assert host.run() == [Progress("a", 3, 3)]


# ── a full disk ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_on_a_full_disk_clients_hear_that_it_is_not_safe_and_get_no_credit() -> None:
    host = Host()
    host.write("a", 1)
    host.fill()
    host.turn.hurry()
    assert host.run() == []
    assert host.take() == [("full", True), ("not safe", "a")]
    assert host.timers["room"][0] == FIRST_WAIT_NS
    host.write("b", 2)
    assert host.run() == [], "it lies in the buffer, and no more is to come"
    assert host.store.read_many([key(1), key(2)]) == [body(1), body(2)]
    assert "sync" not in host.timers, "the timer that looks for room is there"


def test_what_became_safe_in_the_turn_in_which_the_disk_filled_is_reported() -> None:
    """Its publisher waited until there was space again, although its message was safe."""
    host = Host()
    host.write("a", 1)
    host.run()
    _, sync = host.timers.pop("sync")
    sync()
    host.write("b", 2)
    host.fill()
    host.turn.hurry()
    assert host.run() == [Progress("a", 1, 1)]
    assert ("not safe", "b") in host.take()


def test_a_full_disk_is_looked_at_ever_more_seldom() -> None:
    host = Host()
    host.write("a", 1)
    host.fill()
    host.turn.hurry()
    host.run()
    waits = [host.timers["room"][0]]
    for _ in range(6):
        assert host.ring("room") == []
        waits.append(host.timers["room"][0])
    assert waits == [min(FIRST_WAIT_NS << number, MAX_WAIT_NS) for number in range(7)]
    assert host.take() == [("full", True), ("not safe", "a"), *[("full", False), ("not safe", "a")] * 6]


def test_once_there_is_room_all_is_safe_and_everybody_hears_it() -> None:
    host = Host()
    host.write("a", 1)
    host.fill()
    host.turn.hurry()
    host.run()
    host.write("b", 2)
    host.run()
    host.take()
    host.files.capacity_bytes = None
    assert sorted(host.ring("room"), key=lambda one: one.client) == [Progress("a", 1, 1), Progress("b", 1, 1)]
    assert host.take() == [("room",)]
    host.fill()
    host.write("a", 3)
    host.turn.hurry()
    host.run()
    assert host.timers["room"][0] == FIRST_WAIT_NS, "another full disk is waited for from the beginning"
    assert host.take() == [("full", True), ("not safe", "a")]


# ── compaction ──────────────────────────────────────────────────────────────────────────────────────────────────────


def with_garbage() -> tuple[Host, list[int]]:
    """A store in which most is garbage; what is left."""
    host, count = Host(), 60
    host.write("a", *range(count))
    host.turn.hurry()
    host.run()
    kept = list(range(0, count, 7))
    host.store.remove_many([key(n) for n in range(count) if n not in kept])
    return host, kept


def test_garbage_is_collected_a_step_a_turn_behind_what_came_meanwhile() -> None:
    host, kept = with_garbage()
    steps = 0
    host.run()
    while host.soon:
        [step] = host.soon
        host.soon.clear()
        host.write("b", 1000 + steps)
        assert host.run() == [Progress("b", steps + 1, 0)]
        assert not host.soon, "a step is on its way already"
        step()
        steps += 1
        host.run()
    assert steps > 10
    assert not host.store.needs_compaction()
    assert host.store.read_many([key(n) for n in kept]) == [body(n) for n in kept]
    host.store.check_invariants()


def test_a_compaction_without_room_is_tried_again_later() -> None:
    host, kept = with_garbage()
    host.run()
    host.fill()
    while "compact" not in host.timers:
        host.soon.pop()()
        host.run()
    assert host.timers["compact"][0] == MAX_WAIT_NS
    assert not host.soon
    host.files.capacity_bytes = None
    host.ring("compact")
    while host.soon:
        host.soon.pop()()
        host.run()
    assert not host.store.needs_compaction()
    assert host.store.read_many([key(n) for n in kept]) == [body(n) for n in kept]


def test_a_store_that_is_broken_says_so() -> None:
    host, _ = with_garbage()
    host.run()
    host.files.fail("sync", "/store/*")

    def compact() -> None:
        while host.soon:
            host.soon.pop()()
            host.run()

    with pytest.raises(StorageError):
        compact()


# ── a current file of garbage ───────────────────────────────────────────────────────────────────────────────────────


def drained(size_bytes: int) -> Host:
    """A host whose store has one file, with ``size_bytes`` of garbage and no message."""
    host = Host(settings=Settings())
    host.turn.write("a", [key(1)], [bytes(size_bytes)], 1)
    host.turn.hurry()
    host.run()
    host.store.remove_many([key(1)])
    host.run()
    return host


def test_a_large_file_of_garbage_is_replaced_when_nothing_was_written_for_a_while() -> None:
    host = drained(REPLACED_BYTES)
    assert host.store.status().size_bytes > REPLACED_BYTES
    assert host.timers["idle"][0] == IDLE_NS
    host.write("b", 2)
    host.store.remove_many([key(2)])
    host.ring("idle")
    assert host.store.status().size_bytes > REPLACED_BYTES, "something was written meanwhile"
    host.ring("idle")
    assert host.files.list("/store") == ["1.rdq"]
    assert host.store.status().size_bytes == 0
    assert "idle" not in host.timers


def test_a_file_with_a_message_in_use_is_not_replaced() -> None:
    host = drained(REPLACED_BYTES)
    host.write("b", 2)
    host.turn.hurry()
    host.run()
    host.ring("idle")
    assert host.files.list("/store") == ["0.rdq"]
    assert "idle" not in host.timers


def test_a_small_file_of_garbage_is_replaced_only_when_the_disk_is_short() -> None:
    host = drained(1000)
    assert not host.timers
    assert host.files.list("/store") == ["0.rdq"]
    host.is_short_of_disk = True
    host.run()
    assert host.files.list("/store") == ["1.rdq"]
    host.write("b", 3)
    host.turn.hurry()
    assert host.run() == [Progress("b", 1, 1)]
    assert host.store.read(key(3)) == body(3)
