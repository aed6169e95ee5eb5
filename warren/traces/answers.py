"""``warren replay``: what a fresh queue answers to a trace, as JSON or as a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from warren.commands.options import JsonOption
from warren.commands.output import print_json, print_text
from warren.salvage.names import printable
from warren.traces.replay import TraceError, replay

Step = dict[str, Any]


def load(path: str) -> dict[str, Any]:
    """Return the trace in a JSON file. Raises :class:`TraceError` if the file is not a trace or cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON: {error}") from error
    if not isinstance(trace, dict) or not isinstance(trace.get("steps"), list):
        raise TraceError(f"{path}: not a trace: it has no steps")
    return trace


def replay_command(
    path: Annotated[str, typer.Argument(metavar="TRACE.json", help="A recorded trace of operations.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Run a recorded trace on a fresh queue and print the state after every operation.

    A table on a terminal; JSON, [{"op", "state", "result"}], with --json and wherever else it goes.
    """
    trace = load(path)
    steps = track(
        replay(trace),
        total=len(trace["steps"]),
        description="replaying",
        transient=True,
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    try:
        replayed = list(steps)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    if as_json or not sys.stdout.isatty():
        print_json(replayed)
    else:
        print_text(tables(replayed))


def tables(steps: list[Step]) -> Iterator[Table]:
    """One row an operation: the lists from head to tail, what is pending, and what is in RAM."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("operation")
    for name in ("Q4", "Q3", "delta", "Q2", "Q1", "pending", "in RAM", "target"):
        table.add_column(name, justify="right")
    for step in steps:
        op, state = step["op"], step["state"]
        details = " ".join(f"{key}={json.dumps(value)}" for key, value in op.items() if key not in ("op", "tags"))
        lists = [state["q4"][0], state["q3"][0], state["delta"][1], state["q2"][0], state["q1"][0]]
        numbers = [*lists, sum(state["pending_acks"]), state["ram_msg_count"]]
        target = "∞" if state["target_ram_count"] == "infinity" else f"{state['target_ram_count']:,}"
        table.add_row(
            Text(printable(f"{op['op']} {details}".rstrip())), *(f"{n:,}" if n else "·" for n in numbers), target
        )
    yield table
