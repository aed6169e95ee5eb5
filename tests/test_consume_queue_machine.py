"""A ConsumeQueue against a list, whatever happens: the process dies, the power goes, the CommitLog is cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.effort import times
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.storage.faults import SimulatedCrash
from warren.storage.memory import MemoryFileSystem

PLACE = "/store/consumequeue/T/0"
FILE_BYTES = 100  # five entries

Message = tuple[int, int, int, int]
"""Queue offset, physical offset, size, tags code."""

shapes = st.lists(st.tuples(st.integers(1, 300), st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=12)


class QueueMachine(RuleBasedStateMachine):
    """``log``: the CommitLog's messages; the first ``dispatched`` were put.

    ``safe``: the physical offset below which every entry was flushed; ``log_min``: what expired lies below it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFileSystem()
        self.files.make_directories("/store/consumequeue")
        self.files.sync_all()
        self.log: list[Message] = []
        self.dispatched = self.safe = self.log_min = 0
        self.next_offset = self.log_end = 0
        self.queue = self.load()

    def load(self) -> ConsumeQueue:
        queue = ConsumeQueue.load(self.files, PLACE, topic="T", queue_id=0, file_size=FILE_BYTES, lengthen=True)
        queue.recover()
        return queue

    @initialize(seed=st.integers(0, 2**32), first=st.integers(0, 12), begin=st.integers(0, 5000))
    def begin(self, seed: int, first: int, begin: int) -> None:
        """Files that expired held the first messages."""
        self.files.rng.seed(seed)
        self.next_offset, self.log_end = first, begin
        self.log_min = self.safe = begin

    def attempt(self, action: Callable[[], object]) -> bool:
        """Do it, perhaps to the death of the process; whether it lived."""
        try:
            action()
        except SimulatedCrash:
            self.restart(self.files.after_process_crash(), keep_log=len(self.log))
            return False
        return True

    def restart(self, files: MemoryFileSystem, keep_log: int) -> None:
        """What a start after a crash does: the log ends after ``keep_log`` messages."""
        self.files = files
        del self.log[keep_log:]
        self.next_offset = self.log[-1][0] + 1 if self.log else self.next_offset
        last_end = self.log[-1][1] + self.log[-1][2] if self.log else 0
        self.log_end = max(last_end, self.safe, self.log_min)
        self.queue = self.load()
        self.queue.settle(self.safe)
        self.put(0, len(self.log))
        self.queue.expire(self.log_min)

    def put(self, start: int, stop: int) -> None:
        """Put the messages of this range that the CommitLog still has."""
        columns = np.array([m for m in self.log[start:stop] if m[1] >= self.log_min], np.int64).reshape(-1, 4)
        self.queue.put_many(columns[:, 0], columns[:, 1], columns[:, 2].astype(np.int32), columns[:, 3])
        self.dispatched = max(stop, self.dispatched) if stop < len(self.log) else stop

    # What a store does

    @rule(found=shapes, gap=st.integers(0, 500))
    def append(self, found: list[tuple[int, int]], gap: int) -> None:
        self.log_end += gap  # messages of other queues
        for size, tags_code in found:
            self.log.append((self.next_offset, self.log_end, size, tags_code))
            self.next_offset += 1
            self.log_end += size

    @rule(count=st.integers(0, 40), again=st.integers(0, 10))
    def dispatch(self, count: int, again: int) -> None:
        start, stop = max(self.dispatched - again, 0), min(self.dispatched + count, len(self.log))
        self.attempt(lambda: self.put(start, stop))

    @rule()
    def flush(self) -> None:
        end = self.log[self.dispatched][1] if self.dispatched < len(self.log) else self.log_end
        if self.attempt(self.queue.flush):
            self.safe = max(end, self.safe)
            assert self.queue.unflushed_bytes == 0

    @rule(share=st.integers(0, 4))
    def expire(self, share: int) -> None:
        """The CommitLog loses what is older than a flushed message."""
        self.log_min += (min(self.safe, self.log_end) - self.log_min) * share // 4
        if self.attempt(lambda: self.queue.expire(self.log_min)) and self.expected() and self.log_min:
            assert self.queue.min_offset == self.queue.first_offset(self.log_min)

    @rule()
    def stop_and_start(self) -> None:
        def stop() -> None:
            self.put(self.dispatched, len(self.log))
            self.queue.flush()

        if self.attempt(stop):
            self.safe = self.log_end
            self.queue.close()
            self.queue = self.load()
            self.queue.expire(self.log_min)

    # What befalls it

    @rule(operation=st.integers(1, 8), torn=st.booleans())
    def die_soon(self, operation: int, torn: bool) -> None:
        self.files.crash_at(operation, torn=torn)

    @rule(share=st.integers(0, 4))
    def lose_power(self, share: int) -> None:
        """The CommitLog has what is safe, and some of the rest."""
        known = sum(message[1] < self.safe for message in self.log)
        self.restart(self.files.after_power_loss(self.files.rng), known + (len(self.log) - known) * share // 4)

    @rule(share=st.integers(0, 4))
    def damage_the_log(self, share: int) -> None:
        """A record of the CommitLog went bad: it ends there, flushed or not."""
        kept = len(self.log) * share // 4
        if kept and self.log[kept - 1][1] >= self.log_min:
            end = self.log[kept - 1][1] + self.log[kept - 1][2]
            self.safe = min(self.safe, end)
            self.restart(self.files.after_process_crash(), kept)

    # What must hold

    def expected(self) -> list[Message]:
        return [message for message in self.log[: self.dispatched] if message[1] >= self.log_min]

    @invariant()
    def the_queue_is_the_list(self) -> None:
        self.queue.check_invariants()
        expected = self.expected()
        first = self.queue.first_offset(self.log_min)
        assert [tuple(entry) for entry in self.queue.entries(first, 10_000).tolist()] == [m[1:] for m in expected]
        if expected:
            assert (first, self.queue.max_offset) == (expected[0][0], expected[-1][0] + 1)
            assert self.queue.max_physical_offset == expected[-1][1] + expected[-1][2]


QueueMachine.TestCase.settings = settings(max_examples=times(60), stateful_step_count=30)
TestQueueMachine = QueueMachine.TestCase
