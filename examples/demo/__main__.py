"""``python -m examples.demo``: where it happens, how much, and its exit code."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Final

import typer
from rich.console import Console

from examples.demo.run import run
from examples.demo.screen import Screen
from warren.commands.demo import empty_directory
from warren.commands.loading import Command
from warren.commands.running import guarded, run_app
from warren.salvage.names import to_json

FEWEST_MESSAGES: Final = 20_000
"""With fewer the limit would not move any to disk."""

_EXIT_NOT_HELD = 1
_WIDTH_WITHOUT_TERMINAL = 120

app = typer.Typer(name="demo", add_completion=False, pretty_exceptions_enable=False)


def demo(
    messages: Annotated[int, typer.Option(min=FEWEST_MESSAGES, help="The number of messages to publish.")] = 200_000,
    directory: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="A new or empty directory, which is kept; default: a temporary one."),
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
    with empty_directory(directory) as place:
        screen = Screen(console, time.monotonic)
        summary = run(place, messages, screen)
        if directory is not None:
            screen.say(f"The directory is kept: {place}", "dim")
    if as_json:
        sys.stdout.buffer.write(to_json(summary.to_json()) + b"\n")
        sys.stdout.buffer.flush()
    if not summary.held:
        raise typer.Exit(_EXIT_NOT_HELD)


app.command(cls=Command)(guarded(demo))

if __name__ == "__main__":
    run_app(app)
