"""Which file counts for which index: a queue's log, put together from its segments and the write-ahead logs.

A *part* is a range of indexes of one source, a segment or a run of a write-ahead log. What was written later counts: it
takes its range from the earlier parts. If the terms of the two differ at the later one's last index, there was an
election between them, and the earlier one is void from the later one's first index on; else both are the same log, and
what the earlier one has beyond stays. So the parts of a plan ascend and do not overlap; a part may lack indexes inside.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TypeAlias

import attrs

from warren.salvage.quorum.ra.wal_columns import WalRun

Source: TypeAlias = "int | WalRun"
"""A segment, by its position among the segments, or a run."""


@attrs.frozen(eq=False, repr=False)
class Part:
    """The entries ``first`` … ``last`` of one source, as far as it has them."""

    first: int
    last: int
    source: Source


class Plan:
    """The parts of a log; ``term_in`` returns the term of an index in a source, ``None`` if it lacks it."""

    def __init__(self, term_in: Callable[[Source, int], int | None]) -> None:
        self._term_in = term_in
        self._parts: list[Part] = []

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def first(self) -> int | None:
        return self._parts[0].first if self._parts else None

    @property
    def last(self) -> int | None:
        return self._parts[-1].last if self._parts else None

    def part_of(self, index: int) -> Part | None:
        """The part whose range has ``index``."""
        at = bisect_right(self._parts, index, key=lambda part: part.first) - 1
        return self._parts[at] if at >= 0 and index <= self._parts[at].last else None

    def term_at(self, index: int) -> int | None:
        part = self.part_of(index)
        return None if part is None else self._term_in(part.source, index)

    def lay(self, part: Part) -> None:
        """Lay a later written part over the others."""
        if not self._parts or part.first > self._parts[-1].last:
            self._parts.append(part)
            return
        old_term, new_term = self.term_at(part.last), self._term_in(part.source, part.last)
        goes_on = old_term is None or new_term is None or old_term == new_term
        parts: list[Part] = []
        for old in self._parts:
            if old.first < part.first:
                parts.append(attrs.evolve(old, last=min(old.last, part.first - 1)))
            if goes_on and old.last > part.last:
                parts.append(attrs.evolve(old, first=max(old.first, part.last + 1)))
        self._parts = sorted([*parts, part], key=lambda part: part.first)

    def cut_out(self, first: int, last: int) -> None:
        """Take a range out of the parts that have it."""
        parts: list[Part] = []
        for old in self._parts:
            if old.first < first:
                parts.append(attrs.evolve(old, last=min(old.last, first - 1)))
            if old.last > last:
                parts.append(attrs.evolve(old, first=max(old.first, last + 1)))
        self._parts = parts
