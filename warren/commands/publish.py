"""The command ``warren publish``: messages from the command line, a file or stdin into a queue or an exchange."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import typer

from warren.actors.engines.errors import NotFoundError
from warren.actors.runtime.future import Confirm
from warren.commands.opening import opened_node, vhost_of
from warren.commands.options import AdoptOption, JsonOption, NodePath, UsageError, VhostOption, pairs
from warren.commands.sending import (
    Bodies,
    CountOption,
    FileOption,
    KeyDelimiterOption,
    LinesOption,
    Published,
)
from warren.handles.node import Vhost
from warren.values.messages import PublishArguments
from warren.verbs.publishing import PATIENCE_S

Send = Callable[[str | None, bytes], Confirm]
"""Given a routing key of the message's own, and the body."""
PROPERTIES = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "timestamp", "type", "user_id",
    "app_id",
)  # fmt: skip
"""Those that ``--property`` knows; others have options of their own."""


def publish(
    path: NodePath,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE [BODY]...", help="The queue, and one message for each BODY; default: from stdin."
        ),
    ] = None,
    *,
    file: FileOption = None,
    lines: LinesOption = False,
    key_delimiter: KeyDelimiterOption = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=TEXT", help="A header. Can be repeated.")
    ] = None,
    property: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="An AMQP property, such as content_type. Can be repeated."),
    ] = None,
    expiration: Annotated[float | None, typer.Option(metavar="S", help="Expire after S seconds.")] = None,
    priority: Annotated[
        int | None, typer.Option(min=0, max=255, help="The priority, in a queue with priorities.")
    ] = None,
    delay: Annotated[float | None, typer.Option(metavar="S", help="Deliver after S seconds.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deliver at this time: 2030-01-31T08:00, or seconds since 1970.")
    ] = None,
    transient: Annotated[bool, typer.Option("--transient", help="Publish as transient, lost at a stop.")] = False,
    exchange: Annotated[
        str | None, typer.Option(metavar="NAME", help="Publish to this exchange, without QUEUE.")
    ] = None,
    routing_key: Annotated[str, typer.Option(metavar="KEY", help="With --exchange: the routing key.")] = "",
    declare: Annotated[
        bool, typer.Option("--declare", help="Create the durable queue, and the directory, if missing.")
    ] = False,
    count: CountOption = 1,
    vhost: VhostOption = "/",
    adopt: AdoptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Publish messages, and return when they are safe."""
    if exchange is None and not words:
        raise UsageError("give a QUEUE or --exchange")
    queue, words = ("", words or []) if exchange is not None or not words else (words[0], words[1:])
    bodies = Bodies.of(words, file, lines=lines, key_delimiter=key_delimiter)
    if exchange is None and routing_key:
        raise UsageError("--routing-key needs --exchange; without one the key is the queue's name")
    if exchange is None and key_delimiter is not None:
        raise UsageError("--key-delimiter needs --exchange, which routes by the key")
    if exchange is not None and declare:
        raise UsageError("--declare creates queues only; an exchange is declared with `warren definitions --import`")
    properties: PublishArguments = {
        **_properties(property),  # type: ignore[typeddict-item]
        "headers": pairs("--header", header, "NAME=TEXT", may_be_empty=True) or None,
        "persistent": not transient,
        "expiration": expiration,
        "priority": priority,
    }
    properties |= _when(delay, at)
    with opened_node(path, adopt=adopt, make=declare) as node:
        send = _sender(vhost_of(node, vhost), queue, exchange, routing_key, properties, declare=declare)
        published = Published(message_ids=None if delay is None and at is None else [])
        published.send_all(bodies, send, count, shows=not as_json)
    published.say("published", as_json=as_json)


def _when(delay: float | None, at: str | None) -> PublishArguments:
    """Return the arguments that say when the messages are delivered."""
    if delay is not None and at is not None:
        raise UsageError("either --delay or --at")
    if delay is not None:
        return {"delay": delay}
    if at is None:
        return {}
    try:
        return {"at": float(at)}
    except ValueError:
        pass
    try:
        return {"at": datetime.fromisoformat(at)}
    except ValueError:
        raise UsageError(f"--at {at}: expected a time such as 2030-01-31T08:00, or seconds since 1970") from None


def _properties(assignments: list[str] | None) -> dict[str, Any]:
    """Return the properties as a publish takes them. Raises :class:`UsageError`."""
    properties: dict[str, Any] = dict(pairs("--property", assignments, "NAME=TEXT", may_be_empty=True))
    if unknown := properties.keys() - set(PROPERTIES):
        raise UsageError(
            f"--property {', '.join(sorted(unknown))}: unknown; the properties are {', '.join(PROPERTIES)}"
        )
    if "timestamp" in properties:
        try:
            properties["timestamp"] = int(properties["timestamp"])
        except ValueError:
            raise UsageError(f"--property timestamp={properties['timestamp']}: expected seconds since 1970") from None
    return properties


def _sender(
    vhost: Vhost, queue: str, exchange: str | None, routing_key: str, properties: PublishArguments, *, declare: bool
) -> Send:
    if exchange is not None:
        target = vhost.exchange(exchange)
        return lambda key, body: target.publish(
            body, routing_key if key is None else key, mandatory=True, timeout=PATIENCE_S, **properties
        )
    try:
        handle = vhost.queue(queue, passive=not declare)
    except NotFoundError as error:
        raise NotFoundError(f"{error}; --declare creates it") from error
    return lambda _, body: handle.publish(body, timeout=PATIENCE_S, **properties)
