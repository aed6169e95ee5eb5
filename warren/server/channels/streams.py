"""Streams as clients declare and consume them: RabbitMQ's refusals, and the rest through the node.

:mod:`warren.actors.topics.streams` implements streams; :mod:`warren.server.channels.stream_consumer` sends them to
clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.stream_arguments import period_ms
from warren.queue_index.message.amqp_tables import Timestamp, type_name
from warren.server.channels.channel_link import ChannelLink
from warren.server.replies import NOT_IMPLEMENTED, PRECONDITION_FAILED, Refusal

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream

OFFSET: Final = "x-stream-offset"
_FOREIGN_CONSUMER_ARGUMENTS: Final = ("x-priority", "x-cancel-on-ha-failover")


def find_stream(channel: ChannelLink, name: str) -> Stream | None:
    """Return the stream of that name, if there is one."""
    streams = channel.node.registry.streams
    return streams.find(channel.vhost, name) if streams else None


def refuse_stream(channel: ChannelLink, name: str, method: str) -> None:
    """Raise :class:`Refusal` if the queue is a stream, which does not support this method."""
    if (stream := find_stream(channel, name)) is not None:
        raise Refusal(NOT_IMPLEMENTED, f"{method} not supported by stream queues {stream.declaration}")


def check_consume(
    stream: Stream, arguments: Mapping[str, Any], *, prefetch: int, global_prefetch: int, no_ack: bool
) -> None:
    """Raise :class:`Refusal` for a consumer that streams do not support."""
    declaration = stream.declaration
    if OFFSET in arguments:
        OffsetSpec.of(declaration, arguments[OFFSET], 0)
    for name in arguments:
        if name in _FOREIGN_CONSUMER_ARGUMENTS:
            raise Refusal(
                PRECONDITION_FAILED, f"invalid arg '{name}' for {declaration} of queue type rabbit_stream_queue"
            )
    if not prefetch:
        raise Refusal(PRECONDITION_FAILED, f"consumer prefetch count is not set for '{declaration}'")
    if no_ack:
        raise Refusal(NOT_IMPLEMENTED, f"automatic acknowledgement not supported by stream queues {declaration}")
    if global_prefetch:
        raise Refusal(NOT_IMPLEMENTED, f"{declaration} does not support global qos")


@attrs.frozen
class OffsetSpec:
    """Where a consumer begins; only one field is set."""

    name: str | None = None
    """``first``, ``last`` or ``next``."""
    offset: int | None = None
    moment_ms: int | None = None
    """Milliseconds since 1970."""

    @classmethod
    def of(cls, declaration: QueueDeclaration, value: Any, now_ms: int) -> OffsetSpec:
        """Parse the argument at this moment; raises :class:`Refusal` if it is invalid."""
        match value:
            case "first" | "last" | "next":
                return cls(name=value)
            case str() if (period := period_ms(value)) is not None:
                return cls(moment_ms=now_ms - period)
            case datetime():
                return cls(moment_ms=round(value.replace(tzinfo=value.tzinfo or UTC).timestamp() * 1000))
            case Timestamp():
                return cls(moment_ms=int(value) * 1000)
            case int() if not isinstance(value, bool):
                return cls(offset=value)
        text = f'<<"{value}">>' if isinstance(value, str) else str(value).lower()
        raise Refusal(
            PRECONDITION_FAILED,
            f"invalid arg '{OFFSET}' for {declaration}: {{invalid_stream_offset_arg,{{{type_name(value)},{text}}}}}",
        )
