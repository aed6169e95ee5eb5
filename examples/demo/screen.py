"""Drawing the run: on a terminal live (of a queue its five lists), without one a plain line every now and then.

Both draw at most so often, whatever is handed to them, so that drawing costs the work next to nothing; the last frame
of an act is always drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

import attrs
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from examples.demo.measuring import Frame

F = TypeVar("F")
F_contra = TypeVar("F_contra", contravariant=True)
Show = Callable[[Frame], None]

_LIVE_EVERY_S: Final = 0.1
_LINE_EVERY_S: Final = 0.5

_LISTS: Final = (
    ("Q1", "newest, in memory", "q1", "green"),
    ("Q2", "on its way to disk", "q2", "yellow"),
    ("delta", "on disk only", "delta", "blue"),
    ("Q3", "back from disk", "q3", "yellow"),
    ("Q4", "next out, in memory", "q4", "green"),
)
_WIDTHS: Final = tuple(zip(_LISTS, (6, 6, 7, 6, 6), strict=True))


class Scene(Protocol[F_contra]):
    """What can be watched: a frame of it is drawn in one of two ways."""

    def line(self, frame: F_contra, /) -> Text: ...

    def picture(self, frame: F_contra, /) -> RenderableType: ...


@attrs.frozen
class Act:
    """What is being watched: ``done`` of ``goal`` messages are ``verb`` (confirmed, fetched)."""

    verb: str
    goal: int
    capacity: int
    """Messages that a bar's whole length stands for."""
    disk_usage: Callable[[], tuple[int, int]]
    """Files in the directory, and their bytes."""

    def line(self, frame: Frame) -> Text:
        """A frame as one plain line."""
        lists = "  ".join(f"{name} {getattr(frame, field):>{width},}" for (name, _, field, _), width in _WIDTHS)
        return Text(f"   {frame.done:>9,} {self.verb} {frame.rate:>9,.0f}/s   {lists}   {_in_memory(frame)}")

    def picture(self, frame: Frame) -> RenderableType:
        """A frame as a picture: a bar for each list, from the newest message to the next one out."""
        lists = Table.grid(padding=(0, 1), expand=True)
        lists.add_column(style="bold", width=5)
        lists.add_column(style="dim", width=19)
        lists.add_column(ratio=1)
        lists.add_column(justify="right", width=9)
        for name, meaning, field, colour in _LISTS:
            count = getattr(frame, field)
            least = self.capacity / 250 if count else 0.0  # whatever is there shows
            lists.add_row(name, meaning, Bar(self.capacity, 0, max(count, least), color=colour), f"{count:,}")
        files, size = self.disk_usage()
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", width=10)
        facts.add_column()
        facts.add_row(self.verb, f"{frame.done:,} of {self.goal:,} messages, {frame.rate:,.0f} a second")
        facts.add_row("memory", f"{_in_memory(frame)}; process {decimal(frame.peak_memory_bytes)}")
        facts.add_row("on disk", f"{files:,} files, {decimal(size)}")
        return Padding(Group("", lists, "", facts), (0, 3))


def _in_memory(frame: Frame) -> str:
    limit = "no limit" if frame.target is None else f"limit {frame.target:,}"
    return f"{frame.in_memory:,} messages in memory ({limit})"


@attrs.define
class Screen:
    """Where everything for people goes. ``clock``: monotonic seconds."""

    console: Console
    clock: Callable[[], float]

    def heading(self, number: int, text: str) -> None:
        """Begin an act."""
        self.console.print()
        self.console.print(Text.assemble((f"{number}  ", "dim"), (text, "bold")))

    def say(self, text: str, style: str = "") -> None:
        """One line, or as many as it needs."""
        self._print(Padding(Text(text, style), (0, 0, 0, 3)))

    def put(self, renderable: RenderableType) -> None:
        """Something larger."""
        self.console.print()
        self._print(Padding(renderable, (0, 0, 0, 3)))

    def _print(self, renderable: RenderableType) -> None:
        if self.console.is_terminal:
            self.console.print(renderable)
            return
        with self.console.capture() as captured:
            self.console.print(renderable)
        for text in captured.get().splitlines():  # a file needs no blanks up to the right margin
            self.console.print(Text(text.rstrip()), soft_wrap=True)

    @contextmanager
    def watch(self, act: Scene[F], *, keep: bool = True) -> Iterator[Callable[[F], None]]:
        """Draw the frames that are handed to what this gives; ``keep``: leave the last one on the terminal."""
        latest: list[F] = []
        with self._drawing(act, keep=keep) as (draw, every_s):
            due = self.clock()

            def show(frame: F) -> None:
                nonlocal due
                latest[:] = [frame]
                if self.clock() >= due:
                    draw(latest.pop())
                    due = self.clock() + every_s

            yield show
            if latest:
                draw(latest[0])

    @contextmanager
    def _drawing(self, act: Scene[F], *, keep: bool) -> Iterator[tuple[Callable[[F], None], float]]:
        if not self.console.is_terminal:
            yield (lambda frame: self.console.print(act.line(frame), soft_wrap=True)), _LINE_EVERY_S
            return
        with Live(console=self.console, auto_refresh=False, transient=not keep) as live:
            yield (lambda frame: live.update(act.picture(frame), refresh=True)), _LIVE_EVERY_S
