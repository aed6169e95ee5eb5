"""The command ``warren publish``: messages from the command line, a file or stdin into a queue or an exchange."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, cast

import attrs
import typer

from warren.actors.engines.errors import NotFoundError
from warren.actors.runtime.future import Confirm
from warren.commands.opening import VhostOptions
from warren.commands.options import JsonOption, NodePath, UsageError, pairs
from warren.commands.sending import Bodies, BodyOptions, CountOption, Published
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


@attrs.frozen(kw_only=True)
class PropertyOptions:
    """The properties of the messages."""

    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=TEXT", help="A header. Can be repeated.")
    ] = None
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="NAME=TEXT", help="An AMQP property, such as content_type. Can be repeated."
        ),
    ] = None
    expiration: Annotated[float | None, typer.Option(metavar="S", help="Expire after S seconds.")] = None
    priority: Annotated[int | None, typer.Option(min=0, max=255, help="The priority, in a queue with priorities.")] = (
        None
    )
    delay: Annotated[float | None, typer.Option(metavar="S", help="Deliver after S seconds.")] = None
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deliver at this time: 2030-01-31T08:00, or seconds since 1970.")
    ] = None
    transient: Annotated[bool, typer.Option("--transient", help="Publish as transient, lost at a stop.")] = False

    @property
    def is_delayed(self) -> bool:
        return self.delay is not None or self.at is not None

    def arguments(self) -> PublishArguments:
        """Return the arguments of a publish. Raises :class:`UsageError`."""
        arguments: PublishArguments = {
            **_properties(self.properties),
            "headers": pairs("--header", self.header, "NAME=TEXT", may_be_empty=True) or None,
            "persistent": not self.transient,
            "expiration": self.expiration,
            "priority": self.priority,
        }
        return arguments | self._when()

    def _when(self) -> PublishArguments:
        """Return the arguments that say when the messages are delivered."""
        if self.delay is not None and self.at is not None:
            raise UsageError("either --delay or --at")
        if self.delay is not None:
            return {"delay": self.delay}
        if self.at is None:
            return {}
        with suppress(ValueError):
            return {"at": float(self.at)}
        with suppress(ValueError):
            return {"at": datetime.fromisoformat(self.at)}
        raise UsageError(f"--at {self.at}: expected a time such as 2030-01-31T08:00, or seconds since 1970")


@attrs.frozen(kw_only=True)
class TargetOptions:
    """Where the messages go."""

    exchange: Annotated[str | None, typer.Option(metavar="NAME", help="Publish to this exchange, without QUEUE.")] = (
        None
    )
    routing_key: Annotated[str, typer.Option(metavar="KEY", help="With --exchange: the routing key.")] = ""
    declare: Annotated[
        bool, typer.Option("--declare", help="Create the durable queue, and the directory, if missing.")
    ] = False

    def check(self, body: BodyOptions) -> None:
        """Raise :class:`UsageError` for options that contradict each other."""
        if self.exchange is None and self.routing_key:
            raise UsageError("--routing-key needs --exchange; without one the key is the queue's name")
        if self.exchange is None and body.key_delimiter is not None:
            raise UsageError("--key-delimiter needs --exchange, which routes by the key")
        if self.exchange is not None and self.declare:
            raise UsageError(
                "--declare creates queues only; an exchange is declared with `warren definitions --import`"
            )

    def sender(self, vhost: Vhost, queue: str, properties: PublishArguments) -> Send:
        """Return the function that publishes one message, to the exchange or else to ``queue``."""
        if self.exchange is not None:
            exchange = vhost.exchange(self.exchange)
            return lambda key, body: exchange.publish(
                body, self.routing_key if key is None else key, mandatory=True, timeout=PATIENCE_S, **properties
            )
        try:
            handle = vhost.queue(queue, passive=not self.declare)
        except NotFoundError as error:
            raise NotFoundError(f"{error}; --declare creates it") from error
        return lambda _, body: handle.publish(body, timeout=PATIENCE_S, **properties)


def publish(
    path: NodePath,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE [BODY]...", help="The queue, and one message for each BODY; default: from stdin."
        ),
    ] = None,
    *,
    body: BodyOptions,
    message: PropertyOptions,
    target: TargetOptions,
    count: CountOption = 1,
    options: VhostOptions,
    as_json: JsonOption = False,
) -> None:
    """Publish messages, and return when they are safe."""
    if target.exchange is None and not words:
        raise UsageError("give a QUEUE or --exchange")
    queue, words = ("", words or []) if target.exchange is not None or not words else (words[0], words[1:])
    bodies = Bodies.of(words, body)
    target.check(body)
    properties = message.arguments()
    with options.opened(path, make=target.declare) as vhost:
        send = target.sender(vhost, queue, properties)
        published = Published(message_ids=[] if message.is_delayed else None)
        published.send_all(bodies, send, count, shows=not as_json)
    published.say("published", as_json=as_json)


def _properties(assignments: list[str] | None) -> PublishArguments:
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
    return cast(PublishArguments, properties)
