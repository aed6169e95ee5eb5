"""The commands ``warren queues`` and ``warren purge``: which queues there are, and emptying one."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from warren.commands.opening import looking_at, opened_node, vhost_of
from warren.commands.options import AdoptOption, JsonOption, NodePath, OnlyVhostOption, UsageError, VhostOption
from warren.commands.output import plain_table, print_json, print_text
from warren.handles.node import Node
from warren.salvage.names import printable
from warren.top.numbers import size
from warren.top.picture import topic_lags
from warren.top.snapshots import Row, Snapshots

_COUNTS = ("ready", "unacked", "consumers", "bytes")


def queues(
    path: NodePath,
    *,
    vhost: OnlyVhostOption = None,
    adopt: AdoptOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the queues and topics with their message counts. If a node runs in another process, ask it.

    Exit code 0; queues that are down are listed as that.
    """
    with looking_at(path, adopt=adopt) as node:
        take = Snapshots(node._running).take if isinstance(node, Node) else node.snapshot
        snapshot = take("name", None, vhost)
    rows: list[Row] = snapshot["queues"]
    down: dict[str, str] = snapshot["down_vhosts"]
    topics: dict[str, Any] = snapshot.get("topics") or {"down": None, "rows": []}
    if as_json:
        report: dict[str, Any] = {"queues": [_to_json(row) for row in rows], "down_vhosts": down}
        print_json(report | {"topics": topics["rows"], "topics_down": topics["down"]})
    else:
        if rows:
            print_text([_table(rows)])
        elif not (down or topics["rows"] or topics["down"]):
            print("No queues.")
        if topics["rows"]:
            if rows:
                print_text([""])
            print_text([_topic_table(topics["rows"])])
        if topics["down"]:
            print_text([Text(f"the topics are down: {printable(topics['down'])}", "red")])
        for name, reason in down.items():
            print_text([Text(f"vhost {printable(name)} is down: {printable(reason)}", "red")])


def _to_json(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("vhost", "name", "state", "reason", *_COUNTS)}


def _table(rows: list[Row]) -> Table:
    """Return a table for people; with a column for the vhost if one of them is not ``/``."""
    several = any(row["vhost"] != "/" for row in rows)
    table = plain_table(*(["vhost"] if several else []), "queue", numbers=_COUNTS)
    table.add_column("state", overflow="fold")
    for row in rows:
        names = [printable(row["vhost"])] * several + [printable(row["name"])]
        if row["state"] == "down":
            table.add_row(*map(Text, names), *[""] * len(_COUNTS), Text(f"down: {printable(row['reason'])}", "red"))
            continue
        counts = [f"{row[name]:,}" for name in _COUNTS[:-1]] + [size(row["bytes"])]
        table.add_row(*map(Text, names), *counts, row["state"])
    return table


def _topic_table(topics: list[dict[str, Any]]) -> Table:
    table = plain_table("topic", numbers=("queues", "messages"))
    table.add_column("groups and lag", overflow="fold")
    for topic in topics:
        counts = f"{topic['queues']:,}", f"{topic['messages']:,}"
        table.add_row(Text(printable(topic["name"])), *counts, Text(topic_lags(topic)))
    return table


def purge(
    path: NodePath,
    queue: Annotated[str, typer.Argument(metavar="QUEUE")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    vhost: VhostOption = "/",
    adopt: AdoptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete every message of a queue, permanently."""
    if not yes and not sys.stdin.isatty():
        raise UsageError("this deletes messages permanently; confirm with --yes")
    with opened_node(path, adopt=adopt) as node:
        handle = vhost_of(node, vhost).queue(queue, passive=True)
        if not yes:
            typer.confirm(f"Delete {len(handle):,} messages of {printable(queue)}?", abort=True, err=True)
        purged = handle.purge()
        handle.sync()
    if as_json:
        print_json({"purged": purged})
    else:
        print(f"{purged:,} message{'' if purged == 1 else 's'} deleted")
