"""The command ``warren top``: a live view of a node, in this process or another one."""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Callable
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.live import Live

from warren.commands.opening import AdoptOption, NodePath, looking_at
from warren.node import Node
from warren.salvage.output import print_json
from warren.top.picture import heading_lines, is_coloured, picture
from warren.top.snapshots import Snapshot, Snapshots

_ROWS_WITHOUT_TERMINAL: Final = 100
_WIDTH_WITHOUT_TERMINAL: Final = 120
OWN_NOTE: Final = "no node ran here: opened by this command"


class Sort(enum.StrEnum):
    """As :data:`warren.top.snapshots.SORTS`."""

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
        bool, typer.Option("--attach", help="Only attach to a node that runs in another process; open none.")
    ] = False,
    interval: Annotated[float, typer.Option(metavar="S", min=0.1, max=3600, help="Seconds between frames.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="One frame, with the rates of one interval, and no more.")
    ] = False,
    sort: Annotated[Sort, typer.Option(help="Which queues come first: those with most of it.")] = Sort.MESSAGES,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many queues; otherwise as many as there is room for.")
    ] = None,
    vhost: Annotated[str | None, typer.Option(help="Only this vhost.")] = None,
    adopt: AdoptOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One snapshot as JSON, at once and with every queue.")
    ] = False,
) -> None:
    """Watch a node: each queue as a bar of its lists, its rates, memory and alarms. Changes nothing; Ctrl-C ends it.

    Where a node runs, this attaches to it. Where none does, one is opened for as long as this lasts.
    """
    with looking_at(path, attach=attach, adopt=adopt) as node:
        take = Snapshots(node).take if isinstance(node, Node) else node.snapshot
        note = OWN_NOTE if isinstance(node, Node) else ""
        if as_json:
            print_json(take(str(sort), limit, vhost))
            return
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = _WIDTH_WITHOUT_TERMINAL
        view = _View(console, lambda room: take(str(sort), limit or room, vhost), note)
        try:
            if once or not console.is_terminal:
                take("name", 0, vhost)  # rates are what came between two
                time.sleep(interval)
                view.print()
            else:
                view.watch(interval)
        except KeyboardInterrupt:
            return


def _leave_topics_out(snapshot: Snapshot, room: int) -> None:
    """Keep the lines of so many topics."""
    if (topics := snapshot.get("topics")) is not None:
        topics["left_out"] = max(0, len(topics["rows"]) - room)
        del topics["rows"][room:]


class _View:
    """Draws one source on one console."""

    def __init__(self, console: Console, take: Callable[[int], Snapshot], note: str) -> None:
        """``take``: a snapshot with at most so many rows."""
        self._console = console
        self._take = take
        self._note = note

    def print(self) -> None:
        """One frame."""
        width = self._console.width
        frame = picture(self._take(_ROWS_WITHOUT_TERMINAL), width, coloured=is_coloured(self._console), note=self._note)
        if self._console.is_terminal:
            self._console.print(frame)
        else:
            with self._console.capture() as captured:
                self._console.print(frame)
            sys.stdout.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))

    def watch(self, interval_s: float) -> None:
        """Frames until somebody has seen enough, or the node is closed."""
        coloured = is_coloured(self._console)
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            due_s = time.monotonic()
            while True:
                height = self._console.height
                snapshot = self._take(height)
                _leave_topics_out(snapshot, max(3, height // 3))
                room = max(1, height - heading_lines(snapshot))
                snapshot["left_out"] += max(0, len(snapshot["queues"]) - room)
                del snapshot["queues"][room:]
                live.update(picture(snapshot, self._console.width, coloured=coloured, note=self._note), refresh=True)
                due_s = max(due_s + interval_s, time.monotonic())
                time.sleep(max(0.0, due_s - time.monotonic()))
