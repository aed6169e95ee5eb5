"""A chart of bars that grow while one watches: how far each of several has come."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


@attrs.frozen
class Progress:
    """A moment: how many messages each bar stands for."""

    counts: Sequence[int]
    elapsed_s: float

    @property
    def done(self) -> int:
        """Of all bars."""
        return sum(self.counts)

    @property
    def rate(self) -> float:
        """Messages in a second."""
        return self.done / self.elapsed_s if self.elapsed_s > 0 else 0.0


@attrs.frozen
class Chart:
    """What is being watched: ``goal`` messages are ``verb`` (appended, read)."""

    verb: str
    goal: int
    capacity: int
    """Messages that a bar's whole length stands for."""
    bars: Sequence[tuple[str, str, str]]
    """Of each its name, what it means, and its colour."""

    def line(self, progress: Progress) -> Text:
        """As one plain line."""
        width = len(f"{self.capacity:,}")
        counts = "  ".join(
            f"{name} {count:>{width},}" for (name, _, _), count in zip(self.bars, progress.counts, strict=True)
        )
        return Text(f"   {progress.done:>9,} {self.verb} {progress.rate:>9,.0f}/s   {counts}")

    def picture(self, progress: Progress) -> RenderableType:
        """As bars, and the sum below them."""
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(style="bold", width=max(len(name) for name, _, _ in self.bars))
        grid.add_column(style="dim", width=max(len(meaning) for _, meaning, _ in self.bars))
        grid.add_column(ratio=1)
        grid.add_column(justify="right", width=9)
        for (name, meaning, colour), count in zip(self.bars, progress.counts, strict=True):
            grid.add_row(name, meaning, Bar(self.capacity, 0, count, color=colour), f"{count:,}")
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", width=10)
        facts.add_column()
        facts.add_row(self.verb, f"{progress.done:,} of {self.goal:,} messages, {progress.rate:,.0f} a second")
        return Padding(Group("", grid, "", facts), (0, 3))
