"""``warren spark backlog``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from warren.commands.options import JsonOption, SetOption, TableFormat, parse_settings
from warren.commands.output import print_json
from warren.commands.spark.arguments import Master, Out, Paths, job
from warren.salvage.names import printable

_SHOWN = 15


def backlog(
    paths: Paths,
    out: Out,
    *,
    format: Annotated[TableFormat, typer.Option("--format", help="How the tables are written.")] = TableFormat.JSONL,
    now: Annotated[
        str | None,
        typer.Option(
            "--now",
            metavar="MS|files",
            help="The time that ages refer to: milliseconds since 1970, or for each node the time of its newest "
            "file; default: now.",
        ),
    ] = None,
    master: Master = None,
    setting: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Report the backlog of many brokers: how many messages, how old, how they arrived, which are duplicates.

    DIR gets a table each of queues, groups, sizes, ages, rates, keys and repeated bodies, and index.html with plots.
    """
    report = job("backlog").run(paths, master, parse_settings(setting), out, format=format.value, now=now)
    if as_json:
        print_json({"out": out, "format": format.value, **report.to_json()})
    else:
        _print_table(report, out)


def _print_table(report: Any, out: str) -> None:
    plots = job("backlog_plots")
    rows = report.tables["queues"].to_pylist()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node", overflow="fold")
    table.add_column("queue", overflow="fold")
    for name in ("messages", "bytes", "oldest"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows[:_SHOWN]:
        age = row["oldest_age_s"]
        table.add_row(
            printable(row["node"]),
            printable(plots.queue_name(row)),
            f"{row['messages']:,}",
            plots.bytes_text(row["bytes"]),
            "not known" if age is None else plots.duration_text(age),
        )
    console = Console(markup=False, emoji=False, highlight=False)
    console.print(table)
    total = report.to_json()
    rest = f"; {len(rows) - _SHOWN:,} queues more" if len(rows) > _SHOWN else ""
    console.print(f"{total['messages']:,} messages, {plots.bytes_text(total['bytes'])}, in {len(rows):,} queues{rest}")
    console.print(f"tables and {job('backlog').PAGE} in {printable(out)}")
