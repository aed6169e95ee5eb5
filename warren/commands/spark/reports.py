"""``warren spark inspect``, ``verify``, ``compact`` and ``backlog``: reports on the directories of many brokers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.filesize import decimal
from rich.text import Text

from warren.commands.options import EXIT_DAMAGE, JsonOption, SetOption, TableFormat, parse_settings
from warren.commands.output import opened, plain_table, print_json, print_text, report_error, table_of
from warren.commands.spark.arguments import Master, MayBeOut, Out, OutputFormat, Paths, job
from warren.salvage.names import from_text, printable, shown, to_json
from warren.salvage.verify import Account, to_report

FileSettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="msg_store_file_size_limit (16777216 bytes) or msg_store_garbage_fraction (0.5). Can be repeated.",
    ),
]

_SHOWN: Final = 15
"""The most queues of a backlog that are printed."""


# ── inspect ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def inspect(
    paths: Paths,
    *,
    out: MayBeOut = None,
    output_format: OutputFormat = TableFormat.JSONL,
    master: Master = None,
    setting: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count what is in the directories of many brokers: one row per queue and topic of each node.

    Exit code 1: a node's topics cannot be read; everything else is shown.
    """
    changes = parse_settings(setting)
    inspected = job("inspect").run(paths, master, changes, out=out, output_format=output_format.value)
    if not as_json:
        print_text(_inspected_tables(inspected, out))
    elif out is None:
        rows = {"queues": inspected.queues, "topics": inspected.topics, "stores": inspected.stores}
        print_json({**rows, "nodes": inspected.nodes})
    else:
        print_json({"out": out, "format": output_format.value, "nodes": inspected.nodes})
    for node in inspected.nodes:
        for problem in node["problems"]:
            report_error(problem)
    if not inspected.is_whole:
        raise typer.Exit(EXIT_DAMAGE)


def _inspected_tables(inspected: Any, out: str | None) -> Iterator[RenderableType]:
    if inspected.queues:
        shape = plain_table("node", "vhost", "queue", numbers=("ready", "payload"))
        shape.add_column("kind", overflow="fold")
        for queue in inspected.queues:
            names = queue["node"], queue["vhost"]
            ready = f"{queue['ready']:,}", decimal(queue["bytes"])
            kind = Text(queue["unreadable"], "red") if "unreadable" in queue else Text(queue["kind"], "dim")
            shape.add_row(*map(_plain, names), Text(shown(from_text(queue["name"]))), *ready, kind)
        yield from (shape, "")
    if inspected.topics:
        cells = [
            (row["node"], row["topic"], f"{row['queue_id']}", f"{row['min_offset']:,}", f"{row['max_offset']:,}")
            for row in inspected.topics
        ]
        yield from (table_of(cells, "node", "topic", numbers=("queue", "begin", "end")), "")
    nodes = []
    for node in inspected.nodes:
        numbers = f"{node['queues']:,}", f"{node['ready']:,}", decimal(node["bytes"])
        nodes.append((node["node"], *numbers, f"{node['topic_queues']:,}", f"{node['records']:,}"))
    yield table_of(nodes, "node", numbers=("queues", "ready", "payload", "topics' queues", "records"))
    if out is not None:
        yield Text(f"Tables in {printable(out)}")


def _plain(text: str) -> Text:
    return Text(printable(text))


# ── verify ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def verify(
    paths: Paths,
    *,
    out: MayBeOut = None,
    output_format: OutputFormat = TableFormat.JSONL,
    master: Master = None,
    setting: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Report damage in the directories of many brokers, and harmless leftovers.

    Exit code 0: no damage, 1: damage, 2: nothing that can be read.
    """
    changes = parse_settings(setting)
    with job("verify").verified(paths, master, changes, out=out, output_format=output_format.value) as verified:
        for note in verified.notes:
            report_error(note)
        counts = {"damage": verified.damage, "leftover": verified.leftover}
        if out is not None and as_json:
            print_json({"out": out, "format": output_format.value, **counts})
        elif out is not None:
            print(f"{verified.damage:,} damaged, {verified.leftover:,} left over, in {printable(out)}")
        elif as_json:
            _print_json(verified)
        else:
            print_text(_accounts(verified))
        is_damaged = verified.damage > 0
    if is_damaged:
        raise typer.Exit(EXIT_DAMAGE)


def _print_json(verified: Any) -> None:
    with opened(None, "") as write:
        write(b'{"findings": [')
        for number, (node, finding) in enumerate(verified.findings):
            write((b", " if number else b"") + to_json({"node": node, **to_report(finding)}))
        write(b'], "damage": %d, "leftover": %d}\n' % (verified.damage, verified.leftover))


def _accounts(verified: Any) -> Iterator[RenderableType]:
    """Each node that has any as on one machine, and what all of it comes to."""
    nodes = 0
    for node, node_findings in groupby(verified.findings, key=itemgetter(0)):
        account = Account()
        for _, finding in node_findings:
            account.add(finding)
        yield Text(printable(node), "bold reverse")
        yield from account.printable()
        yield ""
        nodes += 1
    style = "bold red" if verified.damage else "bold green"
    summary = (
        f"{verified.damage:,} damaged, {verified.leftover:,} left over, in {nodes:,} nodes." if nodes else "No damage."
    )
    yield Text(summary, style)


# ── compact ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def compact(
    paths: Paths, *, master: Master = None, setting: FileSettingOption = None, as_json: JsonOption = False
) -> None:
    """List the message store files that a broker would combine, and the bytes that frees. Changes nothing.

    Exit code 1: of a store it is not known what is needed, for a queue cannot be read.
    """
    compacting = job("compact").run(paths, master, parse_settings(setting))
    if as_json:
        print_json({"stores": compacting.stores, "frees": compacting.frees})
    else:
        print_text(_compacting_tables(compacting))
    for problem in compacting.problems:
        report_error(problem)
    if not all(store["known"] for store in compacting.stores):
        raise typer.Exit(EXIT_DAMAGE)


def _compacting_tables(compacting: Any) -> Iterator[RenderableType]:
    cells = []
    for store in compacting.stores:
        size = sum(file["size"] for file in store["files"])
        valid = sum(file["valid_bytes"] for file in store["files"])
        names = [str(store[name]) for name in ("node", "vhost", "store")]
        counts = [f"{len(store[name]):,}" for name in ("delete", "combine")] if store["known"] else ["?", "?"]
        sizes = f"{len(store['files']):,}", decimal(size), decimal(valid)
        cells.append((*names, *sizes, *counts, decimal(store["frees"])))
    numbers = ("files", "size", "valid", "deleted", "combined", "frees")
    yield table_of(cells, "node", "vhost", "store", numbers=numbers)
    yield Text(f"{compacting.frees:,} bytes could be freed.")


# ── backlog ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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
        _print_backlog(report, out)


def _print_backlog(report: Any, out: str) -> None:
    plots = job("backlog_plots")
    rows = report.tables["queues"].to_pylist()
    cells = [
        (
            row["node"],
            plots.queue_name(row),
            f"{row['messages']:,}",
            plots.bytes_text(row["bytes"]),
            plots.age_text(row),
        )
        for row in rows[:_SHOWN]
    ]
    table = table_of(cells, "node", "queue", numbers=("messages", "bytes", "oldest"))
    total = report.to_json()
    rest = f"; {len(rows) - _SHOWN:,} queues more" if len(rows) > _SHOWN else ""
    size = plots.bytes_text(total["bytes"])
    print_text([table, Text(f"{total['messages']:,} messages, {size}, in {len(rows):,} queues{rest}")])
    print_text([Text(f"tables and {job('backlog').PAGE} in {printable(out)}")])
