"""The command ``warren top``: a live view of a node, in this process or another one."""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Callable
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from warren.client.errors import HostUnresponsiveError
from warren.commands.opening import looking_at
from warren.commands.options import AdoptOption, NodePath, OnlyVhostOption
from warren.commands.output import print_json
from warren.storage.errors import WarrenError
from warren.top.attached import NotAttachedError
from warren.top.keys import Keyboard, View
from warren.top.picture import heading_lines, is_coloured, picture
from warren.top.queue_page import missing_page, queue_page
from warren.top.snapshots import Snapshot

_ROWS_WITHOUT_TERMINAL: Final = 100
_WIDTH_WITHOUT_TERMINAL: Final = 120
OWN_NOTE: Final = "no node ran here: opened by this command"


class Sort(enum.StrEnum):
    """The orders of :data:`warren.top.snapshots.SORTS`."""

    MESSAGES = "messages"
    UNACKED = "unacked"
    IN = "in"
    OUT = "out"
    RATE = "rate"
    RAM = "ram"
    NAME = "name"


def top(
    path: NodePath,
    *,
    attach: Annotated[
        bool, typer.Option("--attach", help="Only attach to a node of another process; do not open one.")
    ] = False,
    interval: Annotated[float, typer.Option(metavar="S", min=0.1, max=3600, help="Seconds between frames.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, with the rates of one interval, and exit.")
    ] = False,
    sort: Annotated[Sort, typer.Option(help="Show the queues first that have most of this.")] = Sort.MESSAGES,
    limit: Annotated[int | None, typer.Option(min=1, help="At most N queues; default: as many as fit.")] = None,
    vhost: OnlyVhostOption = None,
    adopt: AdoptOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one snapshot of all queues as JSON, at once.")] = False,
) -> None:
    """Watch a node: each queue's lists as a bar, rates, memory and alarms. Changes nothing; q quits.

    If a node runs in the directory, this attaches to it. Otherwise it opens one until it ends.
    """
    with looking_at(path, attach=attach, adopt=adopt) as node:
        if as_json:
            print_json(node.snapshot(str(sort), limit, vhost))
            return
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = _WIDTH_WITHOUT_TERMINAL
        view = _View(
            console,
            lambda order, most: node.snapshot(order, _fewer(limit, most), vhost),
            node.queue,
            OWN_NOTE if node.is_own else "",
            str(sort),
        )
        try:
            if once or not console.is_terminal:
                node.snapshot("name", 0, vhost)  # a rate needs two snapshots
                time.sleep(interval)
                view.print()
            else:
                view.watch(interval)
        except KeyboardInterrupt:
            return


def _fewer(limit: int | None, most: int | None) -> int | None:
    return min((count for count in (limit, most) if count is not None), default=None)


def _leave_topics_out(snapshot: Snapshot, room: int) -> None:
    """Keep the rows of ``room`` topics."""
    if (topics := snapshot.get("topics")) is not None:
        topics["left_out"] = max(0, len(topics["rows"]) - room)
        del topics["rows"][room:]


class _View:
    """Draws snapshots on a console."""

    def __init__(
        self,
        console: Console,
        take: Callable[[str, int | None], Snapshot],
        take_queue: Callable[[str, str], Snapshot],
        note: str,
        sort: str = "messages",
    ) -> None:
        """``take``: a snapshot in an order with a maximum of rows (``None``: all). ``take_queue``: of one queue."""
        self._view = View(sort)
        self._console = console
        self._take = take
        self._take_queue = take_queue
        self._note = note

    def print(self) -> None:
        """One frame."""
        width = self._console.width
        frame = picture(
            self._take(self._view.sort, _ROWS_WITHOUT_TERMINAL),
            width,
            coloured=is_coloured(self._console),
            note=self._note,
        )
        if self._console.is_terminal:
            self._console.print(frame)
        else:
            with self._console.capture() as captured:
                self._console.print(frame)
            sys.stdout.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))

    def watch(self, interval_s: float) -> None:
        """Draw frames until ``q`` is pressed or the node is closed."""
        coloured = is_coloured(self._console)
        with Keyboard() as keyboard, Live(console=self._console, screen=True, auto_refresh=False) as live:
            due_s = time.monotonic()
            while True:
                frame = self._frame(self._console.height, coloured=coloured)
                live.update(frame, refresh=True)
                due_s = max(due_s + interval_s, time.monotonic())
                for key in keyboard.keys(max(0.0, due_s - time.monotonic())):
                    if not self._view.press(key):
                        return

    def _frame(self, height: int, *, coloured: bool) -> RenderableType:
        """A screen: the list of queues or a queue's page, and below it the keys."""
        lines: list[RenderableType] = []
        if self._view.opened is None:
            lines = [self._list(height, coloured=coloured)]
        if self._view.opened is not None:  # also if the list has just opened it
            lines = [*self._view.cut_page(self._page(self._view.opened, coloured=coloured), height - 1)]
        return Group(*lines, Text(self._view.footer(), "dim", no_wrap=True, overflow="ellipsis"))

    def _list(self, height: int, *, coloured: bool) -> RenderableType:
        snapshot = self._take(self._view.sort, self._view.rows_needed(height))
        self._view.filtered(snapshot)
        _leave_topics_out(snapshot, max(3, height // 3))
        self._view.cut(snapshot, max(1, height - heading_lines(snapshot) - 1))
        width, selected = self._console.width, self._view.selected
        return picture(snapshot, width, coloured=coloured, note=self._note, selected=selected)

    def _page(self, key: tuple[str, str], *, coloured: bool) -> list[Text]:
        try:
            snapshot = self._take_queue(*key)
        except (HostUnresponsiveError, NotAttachedError):
            raise
        except WarrenError as error:  # the queue was deleted, or the node is of a version without pages
            return missing_page(key, str(error), self._console.width)
        return queue_page(snapshot, self._console.width, coloured=coloured, note=self._note)
