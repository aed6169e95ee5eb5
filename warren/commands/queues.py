"""The commands ``warren queues``, ``purge`` and ``delayed``: which queues there are, emptying one, and the messages
that wait until they are due."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from warren.commands.opening import VhostOptions, looking_at
from warren.commands.options import (
    AdoptOption,
    JsonOption,
    NodePath,
    OnlyVhostOption,
    QueueArgument,
    UsageError,
    YesOption,
)
from warren.commands.output import plain_table, print_json, print_text, table_of
from warren.salvage.names import printable
from warren.top.numbers import size
from warren.top.picture import topic_lags
from warren.top.snapshots import Row
from warren.values.messages import DelayedMessage

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
        snapshot = node.snapshot("name", None, vhost)
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
    cells = [(topic["name"], f"{topic['queues']:,}", f"{topic['messages']:,}", topic_lags(topic)) for topic in topics]
    return table_of(cells, "topic", numbers=("queues", "messages"), last="groups and lag")


def purge(
    path: NodePath,
    queue: QueueArgument,
    *,
    yes: YesOption = False,
    options: VhostOptions,
    as_json: JsonOption = False,
) -> None:
    """Delete every message of a queue, permanently."""
    if not yes and not sys.stdin.isatty():
        raise UsageError("this deletes messages permanently; confirm with --yes")
    with options.opened_queue(path, queue) as handle:
        if not yes:
            typer.confirm(f"Delete {len(handle):,} messages of {printable(queue)}?", abort=True, err=True)
        purged = handle.purge()
        handle.sync()
    if as_json:
        print_json({"purged": purged})
    else:
        print(f"{purged:,} message{'' if purged == 1 else 's'} deleted")


def delayed(
    path: NodePath,
    queue: Annotated[
        str | None, typer.Argument(metavar="[QUEUE]", help="Only messages published directly to this queue.")
    ] = None,
    *,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="At most N messages.")] = 100,
    cancel: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Cancel the messages with this message_id. Can be repeated.")
    ] = None,
    options: VhostOptions,
    as_json: JsonOption = False,
) -> None:
    """List delayed messages, the first to come first, or cancel some.

    Exit code 1 where nothing waits under an id that is called back.
    """
    with options.opened(path) as vhost:
        source = vhost if queue is None else vhost.queue(queue, passive=True)
        if cancel:
            cancelled = {message_id: source.cancel_delayed(message_id) for message_id in cancel}
        else:
            rows = [_delayed_to_json(message) for message in source.delayed(limit)]
    if cancel:
        _say_cancelled(cancelled, as_json=as_json)
    elif as_json:
        print_json({"delayed": rows})
    elif rows:
        cells = [
            (row["due"], row["exchange"], row["routing_key"], row["message_id"] or "", f"{row['bytes']:,}")
            for row in rows
        ]
        print_text([table_of(cells, "due", "exchange", "routing key", "message_id", numbers=("bytes",))])
    else:
        print("Nothing waits.")


def _say_cancelled(cancelled: dict[str, int], *, as_json: bool) -> None:
    if as_json:
        print_json({"cancelled": cancelled})
    else:
        for message_id, count in cancelled.items():
            print(f"{printable(message_id)}: {count:,} message{'' if count == 1 else 's'} cancelled")
    if not all(cancelled.values()):
        raise typer.Exit(1)


def _delayed_to_json(message: DelayedMessage) -> dict[str, Any]:
    message_id = message.message_id
    return {
        "due": message.due.isoformat(timespec="milliseconds"),
        "due_ms": message.due_ms,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "message_id": message_id.decode(errors="replace") if isinstance(message_id, bytes) else message_id,
        "bytes": len(message.body),
    }
