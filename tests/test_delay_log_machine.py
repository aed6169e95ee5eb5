"""DelayLog against a dictionary: random calls, restarts, crashes and power losses."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.crash_points.logs import DIRECTORY, TARGETS, message, number_in
from tests.support.effort import times
from warren.actors.engines.delays.delay_log import DelayLog, DueMessage
from warren.storage.faults import FaultRules
from warren.storage.memory import MemoryFileSystem

DUES = st.integers(0, 40)


class DelayLogMachine(RuleBasedStateMachine):
    """``waiting``: due by number; ``taken``: what was taken and is not settled."""

    @initialize(seed=st.integers(0, 1 << 20), entries=st.integers(1, 12), size=st.sampled_from([600, 2000, 1 << 20]))
    def begin(self, seed: int, entries: int, size: int) -> None:
        self.rng = random.Random(seed)
        self.files = MemoryFileSystem(random.Random(seed), rules=FaultRules(damage=True))
        self.how: dict[str, Any] = {"file_entries": entries, "file_size_limit_bytes": size}
        self.waiting: dict[int, int] = {}
        self.taken: dict[int, DueMessage] = {}
        self.ever: dict[int, set[int]] = {}
        """Numbers that were ever added, and when each was due."""
        self.safe: set[int] = set()
        """Those that were synced."""
        self.may_be_damaged = False
        """Of what was not synced a power loss may leave what comes later, and not what comes before."""
        self.log = self.opened()

    def opened(self) -> DelayLog:
        return DelayLog.open(self.files, DIRECTORY, **self.how)

    # ── rules ───────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(dues=st.lists(DUES, min_size=1, max_size=6))
    def add(self, dues: list[int]) -> None:
        numbers = range(len(self.ever), len(self.ever) + len(dues))
        self.log.add([message(number, due) for number, due in zip(numbers, dues, strict=True)])
        for number, due in zip(numbers, dues, strict=True):
            self.waiting[number] = due
            self.ever[number] = {due}

    @rule(now=DUES, count=st.integers(1, 8), size=st.sampled_from([1, 500, 1 << 20]))
    def take(self, now: int, count: int, size: int) -> None:
        due = sorted(due for due in self.waiting.values() if due <= now)
        found = self.log.take_due(now, count, size)
        assert [one.entry.due_ms for one in found] == due[: len(found)]
        assert len(found) == min(count, len(due)) or (found and size < 1 << 20)
        for one in found:
            number = number_in(one.term)
            assert self.waiting.pop(number) == one.entry.due_ms
            self.taken[number] = one

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(sorted(self.taken)), unique=True))
        self.log.settle([self.taken.pop(number) for number in some])

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), due=DUES)
    def postpone(self, data: st.DataObject, due: int) -> None:
        some = data.draw(st.lists(st.sampled_from(sorted(self.taken)), unique=True))
        self.log.postpone([self.taken.pop(number) for number in some], due)
        for number in some:
            self.waiting[number] = due
            self.ever[number].add(due)
            self.safe.discard(number)

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.ever)))
        found = self.log.cancel(b"id %d" % number)
        assert [number_in(term) for term in found] == [number] * (self.waiting.pop(number, None) is not None)

    @rule(which=st.sampled_from(range(3)))
    def drop(self, which: int) -> None:
        gone = [number for number in self.waiting if number % 3 == which]
        assert self.log.drop(TARGETS[which]) == len(gone)
        for number in gone:
            del self.waiting[number]

    @rule()
    def reclaim(self) -> None:
        had = self.log.has_garbage
        assert self.log.reclaim() == had

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.safe |= self.waiting.keys() | self.taken.keys()

    # ── restarts ────────────────────────────────────────────────────────────────────────────────────────────────

    @rule()
    def close(self) -> None:
        self.log.close()
        if not self.waiting and not self.taken and not self.may_be_damaged:
            assert self.files.contents() == {}
        self.start_again()
        self.safe = set(self.waiting)

    @rule()
    def crash(self) -> None:
        self.files = self.files.after_process_crash()
        self.start_again()

    def start_again(self) -> None:
        """What was taken and not settled waits again."""
        for number, one in self.taken.items():
            self.waiting[number] = one.entry.due_ms
        self.taken = {}
        self.log = self.opened()

    @rule()
    def lose_power(self) -> None:
        self.files = self.files.after_power_loss(self.rng)
        self.log = self.opened()
        self.may_be_damaged |= bool(self.log.damage)
        live = self.waiting.keys() | self.taken.keys()
        found = [(due, number_in(term)) for due, term in self.log.waiting()]
        there = {number for _, number in found}
        assert len(found) == len(there)
        assert self.safe & live <= there
        for due, number in found:
            assert due in self.ever[number]
        self.waiting, self.taken = {number: due for due, number in found}, {}

    @rule(name=st.integers(0, 100))
    def lose_an_index(self, name: int) -> None:
        indexes = [path for path in self.files.contents() if path.endswith(".due")]
        self.log.abandon()
        if indexes:
            path = indexes[name % len(indexes)]
            if name % 2:
                self.files.delete(path)
            else:
                self.files.flip_any_bit(path, self.rng)
        self.start_again()

    # ── what always holds ───────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def says_the_same(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        log.check_invariants()
        assert len(log) == len(self.waiting)
        assert log.taken == len(self.taken)
        assert not log.damage or self.may_be_damaged
        found = [(due, number_in(term)) for due, term in log.waiting()]
        assert sorted(found) == sorted((due, number) for number, due in self.waiting.items())
        assert [due for due, _ in found] == sorted(self.waiting.values())
        assert log.next_due_ms() == min(self.waiting.values(), default=None)
        for which, target in enumerate(TARGETS):
            live = [number for number in (*self.waiting, *self.taken) if number % 3 == which]
            assert log.waiting_of(target) == len(live)


DelayLogMachine.TestCase.settings = settings(max_examples=times(40), stateful_step_count=40, deadline=None)
TestDelayLog = DelayLogMachine.TestCase
