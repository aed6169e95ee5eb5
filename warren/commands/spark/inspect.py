"""``warren spark inspect``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from rich.console import RenderableType
from rich.filesize import decimal
from rich.text import Text

from warren.commands.options import EXIT_DAMAGE, JsonOption, SetOption, TableFormat, parse_settings
from warren.commands.output import plain_table, print_json, print_text, report_error
from warren.commands.spark.arguments import Master, MayBeOut, OutputFormat, Paths, job
from warren.salvage.names import from_text, printable, shown


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
        print_text(_tables(inspected, out))
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


def _tables(inspected: Any, out: str | None) -> Iterator[RenderableType]:
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
        shape = plain_table("node", "topic", numbers=("queue", "begin", "end"))
        for queue in inspected.topics:
            numbers = f"{queue['queue_id']}", f"{queue['min_offset']:,}", f"{queue['max_offset']:,}"
            shape.add_row(_plain(queue["node"]), _plain(queue["topic"]), *numbers)
        yield from (shape, "")
    shape = plain_table("node", numbers=("queues", "ready", "payload", "topics' queues", "records"))
    for node in inspected.nodes:
        numbers = f"{node['queues']:,}", f"{node['ready']:,}", decimal(node["bytes"])
        shape.add_row(_plain(node["node"]), *numbers, f"{node['topic_queues']:,}", f"{node['records']:,}")
    yield shape
    if out is not None:
        yield Text(f"Tables in {printable(out)}")


def _plain(text: str) -> Text:
    return Text(printable(text))
