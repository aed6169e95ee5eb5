"""Delivery tags: the messages that a channel got and has not settled yet.

A channel numbers its messages from 1 on; the number is the message's *delivery tag*. Tags are stored as runs:
consecutive tags, of messages at equal distances in one level of the queue that went to one consumer, are one
:class:`TagRun`. The distance is 1, unless several consumers were served in turn.

Invariants: runs are not empty, are in the order of their tags, and do not overlap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Generic, TypeVar

import attrs

from warren.actors.engines.errors import UnknownTagError

Owner = TypeVar("Owner")
_first = attrgetter("first")


@attrs.define(eq=False, repr=False)
class TagRun(Generic[Owner]):
    """Tags ``first … first + count - 1``, of a level's messages ``seq_id``, ``seq_id + step`` and so on."""

    first: int
    count: int
    level: int
    seq_id: int
    owner: Owner
    step: int = 1

    def __repr__(self) -> str:
        return f"TagRun({self.first}…{self.end - 1}, level {self.level}, seq_id {self.seq_id})"

    @property
    def end(self) -> int:
        """The tag after the last one."""
        return self.first + self.count

    @property
    def seq_ids(self) -> range:
        return range(self.seq_id, self.seq_id + self.count * self.step, self.step)

    def part(self, first: int, end: int) -> TagRun[Owner]:
        """A separate run of the tags ``first … end-1``."""
        seq_id = self.seq_id + (first - self.first) * self.step
        return TagRun(first, end - first, self.level, seq_id, self.owner, self.step)


@attrs.define(eq=False, repr=False)
class DeliveryTags(Generic[Owner]):
    """The unsettled tags of one channel. ``len`` counts tags."""

    _runs: list[TagRun[Owner]] = attrs.Factory(list)
    _next: int = 1
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    @property
    def runs(self) -> Sequence[TagRun[Owner]]:
        """All runs. Read-only."""
        return self._runs

    @property
    def oldest(self) -> int | None:
        """The first tag that is not settled; ``None`` if all are settled."""
        return self._runs[0].first if self._runs else None

    @property
    def next_tag(self) -> int:
        """The tag that the next message gets."""
        return self._next

    def give(self, level: int, seq_ids: range, owner: Owner) -> int:
        """Number messages that go to the channel; return the first one's tag."""
        first, count = self._next, len(seq_ids)
        self._next += count
        self._count += count
        if self._runs:
            last = self._runs[-1]
            if (
                last.owner is owner
                and last.level == level
                and last.first + last.count == first
                and last.seq_id + last.count * last.step == seq_ids.start
                and (last.step == seq_ids.step or count == 1)
            ):
                last.count += count
                return first
        self._runs.append(TagRun(first, count, level, seq_ids.start, owner, seq_ids.step if count > 1 else 1))
        return first

    def pass_by(self, count: int) -> int:
        """Number ``count`` messages that need no settling; return the first one's tag."""
        first = self._next
        self._next += count
        return first

    def take(self, tags: Sequence[range]) -> list[TagRun[Owner]]:
        """Settle tags; return their runs. Raises :class:`UnknownTagError` and settles none if a tag is unknown."""
        parts = [part for part in tags if part]
        if len(parts) > 1:
            parts.sort(key=lambda part: part[0])
        end = 0
        for part in parts:
            if part.step != 1 or part.start < end or not self._covers(part):
                raise UnknownTagError(f"unknown delivery tag in {part}: not given to this channel, or settled already")
            end = part.stop
        return [run for part in parts for run in self._cut(part.start, part.stop)]

    def take_up_to(self, tag: int) -> list[TagRun[Owner]]:
        """Settle everything up to a tag, which must exist; 0: everything. Raises :class:`UnknownTagError`."""
        if tag == 0:
            return self.take_all()
        self.check_present(tag)
        return self._cut(0, tag + 1)

    def check_present(self, tag: int) -> None:
        """Raise :class:`UnknownTagError` if there is no such tag."""
        if not self._covers(range(tag, tag + 1)):
            raise UnknownTagError(f"unknown delivery tag {tag}: not given to this channel, or settled already")

    def take_present(self, tags: Sequence[range]) -> list[TagRun[Owner]]:
        """Settle those of the tags that are not settled yet; return their runs.

        Raises :class:`UnknownTagError` and settles none if a tag was never given.
        """
        for part in tags:
            if part and not (part.start > 0 and part.stop <= self._next and part.step == 1):
                raise UnknownTagError(f"unknown delivery tag in {part}: not given to this channel")
        return [run for part in tags if part for run in self._cut(part.start, part.stop)]

    def take_present_up_to(self, tag: int) -> list[TagRun[Owner]]:
        """Settle everything up to a tag, which may be settled already; 0: everything. Raises :class:`UnknownTagError`
        if the tag was never given."""
        if tag == 0:
            return self.take_all()
        if not 0 < tag < self._next:
            raise UnknownTagError(f"unknown delivery tag {tag}: not given to this channel")
        return self._cut(0, tag + 1)

    def put_back(self, runs: Iterable[TagRun[Owner]]) -> None:
        """Put back runs that were taken."""
        self._runs += runs
        self._runs.sort(key=_first)
        self._count = sum(run.count for run in self._runs)

    def take_all(self) -> list[TagRun[Owner]]:
        """Settle everything."""
        taken, self._runs, self._count = self._runs, [], 0
        return taken

    def _index(self, tag: int) -> int:
        """The index of the run that holds ``tag``, or else of the one before it; -1 before the first run."""
        runs = self._runs
        if runs and runs[0].first <= tag < runs[0].first + runs[0].count:
            return 0  # acks mostly come in the order of the deliveries
        return bisect_right(runs, tag, key=_first) - 1

    def _covers(self, part: range) -> bool:
        """Return whether all tags of ``part`` exist."""
        runs, at, tag = self._runs, self._index(part.start), part.start
        if at < 0:
            return False
        while tag < part.stop:
            if at == len(runs) or not runs[at].first <= tag < runs[at].end:
                return False
            tag = runs[at].end
            at += 1
        return True

    def _cut(self, start: int, stop: int) -> list[TagRun[Owner]]:
        """Remove the existing tags of ``start … stop-1``."""
        runs = self._runs
        at = max(self._index(start), 0)
        if at < len(runs) and runs[at].end <= start:
            at += 1
        taken: list[TagRun[Owner]] = []
        remaining: list[TagRun[Owner]] = []
        end = at
        while end < len(runs) and runs[end].first < stop:
            run = runs[end]
            end += 1
            low, high = max(start, run.first), min(stop, run.end)
            if run.first < low:
                remaining.append(run.part(run.first, low))
            if high < run.end:
                remaining.append(run.part(high, run.end))
            taken.append(run if not remaining else run.part(low, high))
            self._count -= high - low
        runs[at:end] = remaining
        return taken

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if runs are empty, out of order or counted wrongly."""
        position = 1
        for run in self._runs:
            if run.count < 1 or run.first < position:
                raise RuntimeError(f"{run} is empty or out of order")
            position = run.end
        if position > self._next or sum(run.count for run in self._runs) != self._count:
            raise RuntimeError(f"{self._count} tags counted, the next one {self._next}: {self._runs}")
