"""The command ``warren delayed``: the messages that wait until they are due, and calling them back."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from warren.commands.opening import opened_node, vhost_of
from warren.commands.options import AdoptOption, JsonOption, NodePath, VhostOption
from warren.commands.output import plain_table, print_json, print_text
from warren.salvage.names import printable
from warren.values.messages import DelayedMessage


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
    vhost: VhostOption = "/",
    adopt: AdoptOption = False,
    as_json: JsonOption = False,
) -> None:
    """List delayed messages, the first to come first, or cancel some.

    Exit code 1 where nothing waits under an id that is called back.
    """
    with opened_node(path, adopt=adopt) as node:
        vhost_handle = vhost_of(node, vhost)
        queue_handle = None if queue is None else vhost_handle.queue(queue, passive=True)
        source = vhost_handle if queue_handle is None else queue_handle
        if cancel:
            cancelled = {message_id: source.cancel_delayed(message_id) for message_id in cancel}
        else:
            rows = [_to_json(message) for message in source.delayed(limit)]
    if cancel:
        _say_cancelled(cancelled, as_json=as_json)
    elif as_json:
        print_json({"delayed": rows})
    elif rows:
        table = plain_table("due", "exchange", "routing key", "message_id", numbers=("bytes",))
        for row in rows:
            words = (row["due"], row["exchange"], row["routing_key"], row["message_id"] or "")
            table.add_row(*(Text(printable(word)) for word in words), f"{row['bytes']:,}")
        print_text([table])
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


def _to_json(message: DelayedMessage) -> dict[str, Any]:
    message_id = message.message_id
    return {
        "due": message.due.isoformat(timespec="milliseconds"),
        "due_ms": message.due_ms,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "message_id": message_id.decode(errors="replace") if isinstance(message_id, bytes) else message_id,
        "bytes": len(message.body),
    }
