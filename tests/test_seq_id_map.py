"""SeqIdMap against a dictionary."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from warren.actors.engines.queue.seq_id_map import SeqIdMap

LEVELS = st.integers(0, 1)
PARTS = st.builds(
    lambda start, count, step: range(start, start + count * step, step),
    st.integers(0, 30),
    st.integers(0, 12),
    st.integers(1, 3),
)


class Counting(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.counts = SeqIdMap()
        self.model: dict[tuple[int, int], int] = {}

    @rule(level=LEVELS, part=PARTS, by=st.integers(0, 1))
    def add(self, level: int, part: range, by: int) -> None:
        told = {seq_id: count for piece, count in self.counts.add(level, part, by) for seq_id in piece}
        for seq_id in part:
            self.model[level, seq_id] = self.model.get((level, seq_id), 0) + by
        assert told == {seq_id: self.model[level, seq_id] for seq_id in part}

    @rule(level=LEVELS, part=PARTS)
    def forget(self, level: int, part: range) -> None:
        self.counts.forget(level, part)
        for seq_id in part:
            self.model.pop((level, seq_id), None)

    @rule(level=LEVELS, start=st.integers(0, 40), count=st.integers(0, 20))
    def forget_outside(self, level: int, start: int, count: int) -> None:
        kept = range(start, start + count)
        self.counts.forget_outside(level, kept)
        self.model = {key: value for key, value in self.model.items() if key[0] != level or key[1] in kept}

    @rule(level=LEVELS, part=PARTS)
    def look(self, level: int, part: range) -> None:
        assert self.counts.of(level, part, -1) == [self.model.get((level, seq_id), -1) for seq_id in part]

    @invariant()
    def all_are_there(self) -> None:
        self.counts.check_invariants()
        found = {(level, seq): count for level, start, stop, count in self.counts for seq in range(start, stop)}
        assert found == self.model
        assert bool(self.counts) == bool(self.model)


TestCounting = Counting.TestCase


def test_a_million_that_come_back_together_are_one_entry() -> None:
    counts = SeqIdMap()
    for low in range(0, 1_000_000, 1000):
        counts.add(0, range(low, low + 1000), 1)
    assert list(counts) == [(0, 0, 1_000_000, 1)]
