"""The queue index against a dict, whatever happens in whatever order, stops and crashes included."""

from __future__ import annotations

from typing import TypedDict

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.effort import times
from tests.support.index_tools import Position, new_index, number_of, positions, run_of
from warren.queue_index.index.journal_replay import open_clean
from warren.queue_index.index.recovery import DirtyRecovery
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import Settings

SEGMENT = 8
SETTINGS = Settings(segment_entry_count=SEGMENT)
counts = st.integers(min_value=1, max_value=12)
expiries = st.sampled_from([0, 5])


class Kind(TypedDict):
    persistent: bool
    embedded: bool
    delivered: bool
    expiry_us: int


kinds = st.builds(Kind, persistent=st.booleans(), embedded=st.booleans(), delivered=st.booleans(), expiry_us=expiries)


def is_in_store(message_id: bytes) -> bool:
    return number_of(message_id) % 7 != 0


def survives(position: Position) -> bool:
    """Whether a message comes back after a crash: it is persistent, and the store did not lose its body."""
    return position.persistent and (position.embedded or position.seq_id % 7 != 0)


class IndexMachine(RuleBasedStateMachine):
    """``there``: unacked positions. ``written``: the same according to the files; the journal's file lags."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFileSystem()
        self.index = new_index(self.files, SETTINGS)
        self.recovery: DirtyRecovery | None = None
        self.there: dict[int, Position] = {}
        self.written: dict[int, Position] = {}
        self.next_seq_id = 0

    def _known(self, *, delivered: bool) -> list[int]:
        """Unacked messages of segments that were scanned, delivered or not."""
        known = self.index.segments
        return [n for n, one in self.there.items() if one.delivered == delivered and n // SEGMENT in known]

    # What happens

    @rule(count=counts, kind=kinds, unencoded=st.booleans(), batch=st.booleans())
    def publish(self, count: int, kind: Kind, unencoded: bool, batch: bool) -> None:
        while count:
            start = self.next_seq_id
            part = min(count, SEGMENT - start % SEGMENT)
            for n in range(start, start + part):
                self.there[n] = Position(n, **kind)
            run = run_of(start, part, unencoded=unencoded and kind["embedded"], **kind)
            if batch:
                self.index.pre_publish(run, None)
            else:
                self.index.publish(run, None)
            self.next_seq_id += part
            count -= part
        self.index.end_batch(None)

    @rule(data=st.data(), take=counts)
    def deliver(self, data: st.DataObject, take: int) -> None:
        if waiting := self._known(delivered=False):
            chosen = data.draw(st.lists(st.sampled_from(waiting), max_size=take, unique=True))
            for n in chosen:
                self.there[n] = attrs.evolve(self.there[n], delivered=True)
            self.index.deliver([range(n, n + 1) for n in chosen])

    @rule(data=st.data(), take=counts, descending=st.booleans())
    def ack_some(self, data: st.DataObject, take: int, descending: bool) -> None:
        if waiting := self._known(delivered=True):
            chosen = data.draw(st.lists(st.sampled_from(waiting), max_size=take, unique=True))
            self._ack(sorted(chosen, reverse=descending))

    @rule()
    def ack_all(self) -> None:
        self._ack(self._known(delivered=True))

    def _ack(self, chosen: list[int]) -> None:
        for n in chosen:
            del self.there[n]
        self.index.ack([range(n, n + 1) for n in chosen])

    # To disk

    @rule()
    def flush(self) -> None:
        self.index.flush()
        self.written = dict(self.there)

    @rule()
    def write_out(self) -> None:
        self.index.write_out()
        self.written = dict(self.there)

    @rule()
    def sync(self) -> None:
        self.index.sync()
        assert self.index.safe_ticket == self.index.written_ticket
        self.written = dict(self.there)

    @rule()
    def release(self) -> None:
        self.index.release()

    @rule()
    def reset(self) -> None:
        self.recovery = None
        self.index.reset()
        self.there, self.written, self.next_seq_id = {}, {}, 0

    # Stops and starts

    @precondition(lambda self: self.recovery is None)
    @rule()
    def stop_and_start(self) -> None:
        counts = self.index.close()
        self.files = self.files.after_process_crash()
        self.index = new_index(self.files, SETTINGS)
        open_clean(self.files, self.index, counts)
        self.written = dict(self.there)

    @rule(step_by_step=st.booleans())
    def crash_and_start(self, step_by_step: bool) -> None:
        self.files = self.files.after_process_crash()
        self.index = new_index(self.files, SETTINGS)
        self.recovery = DirtyRecovery(self.files, self.index, is_in_store)
        self.there = {n: one for n, one in self.written.items() if survives(one)}
        self.written = dict(self.there)
        highest = max(self.there, default=-1)
        assert self.recovery.bounds[1] == (highest // SEGMENT + 1) * SEGMENT
        self.next_seq_id = self.recovery.bounds[1]
        self.found = 0
        self.expected = len(self.there)
        self._count_found()
        while self.recovery is not None and not step_by_step:
            self.scan_one_more()

    def _count_found(self) -> None:
        if self.recovery is not None:
            self.found += self.recovery.take_found()[0]
            if self.recovery.finished:
                assert self.found == self.expected
                self.recovery = None
                self.index.flush(even_if_clean=True)
                self.written = dict(self.there)

    @precondition(lambda self: self.recovery is not None)
    @rule()
    def scan_one_more(self) -> None:
        if self.recovery is not None:
            self.recovery.step()
            self._count_found()

    # What must hold

    @invariant()
    def it_says_what_the_dict_says(self) -> None:
        self.index.check_invariants()
        for number in list(self.index.segments):
            first = number * SEGMENT
            expected = [one for n, one in sorted(self.there.items()) if first <= n < first + SEGMENT]
            assert positions(self.index.read(first, first + SEGMENT)) == expected
            assert self.index.segments[number].unacked == len(expected)
        if self.recovery is None:
            known = set(self.index.segments)
            assert {n // SEGMENT for n in self.there} <= known
            assert positions(self.index.read(*self.index.bounds())) == [one for _, one in sorted(self.there.items())]


TestIndexAgainstADict = IndexMachine.TestCase
TestIndexAgainstADict.settings = settings(max_examples=times(100), stateful_step_count=30)
