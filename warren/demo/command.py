"""The command ``warren demo``: where it happens, how much, and its exit code."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from rich.console import Console

from storage.errors import StorageError
from warren.demo.run import run
from warren.demo.screen import Screen
from warren.salvage.names import to_json

FEWEST_MESSAGES: Final = 20_000
"""With fewer the limit would not move any to disk."""

_EXIT_NOT_HELD = 1
_WIDTH_WITHOUT_TERMINAL = 120


def demo(
    messages: Annotated[int, typer.Option(min=FEWEST_MESSAGES, help="How many to publish.")] = 200_000,
    directory: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where; empty or not there yet. Kept. Without it: a temporary one, removed."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON; the rest goes to stderr.")
    ] = False,
) -> None:
    """Watch it: take over a RabbitMQ directory, publish under a memory limit, be killed, recover. Export classic and
    quorum queues. Open a dead RocketMQ's store, and find what it would lose. Write a topic, read it. Check everything.

    Exit code 0: everything held, 1: something did not, which the summary names, 2: it could not be finished.
    """
    console = Console(stderr=as_json, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    with _place(directory) as place:
        screen = Screen(console, time.monotonic)
        summary = run(place, messages, screen)
        if directory is not None:
            screen.say(f"The directory is kept: {place}", "dim")
    if as_json:
        sys.stdout.buffer.write(to_json(summary.to_json()) + b"\n")
        sys.stdout.buffer.flush()
    if not summary.held:
        raise typer.Exit(_EXIT_NOT_HELD)


@contextmanager
def _place(directory: str | None) -> Iterator[str]:
    """The directory to work in. One of the user's has nothing in it, for nobody's files are to be touched."""
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="warren-demo-", ignore_cleanup_errors=True) as temporary:
            yield temporary
        return
    if os.path.exists(directory) and (not os.path.isdir(directory) or os.listdir(directory)):
        raise StorageError(f"{directory}: there is something in it; the demo wants an empty directory, or a new name")
    yield os.path.abspath(directory)
