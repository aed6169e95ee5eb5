"""StreamConsumer: one consumer of a stream.

It reads on by itself, from its start, as far as the client has credit: as many messages as its prefetch may be
unacked, and an ack gives room for one more. Nothing is taken from the stream, so it does not affect other consumers.
Files are read in a thread; if the client takes nothing, nothing is read.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
from pamqp import commands as c

from warren.actors.engines.queue.delivery_tags import DeliveryTags
from warren.actors.engines.topics.stream_retention import STREAM_QUEUE_ID
from warren.actors.log_events import log_event, logger
from warren.actors.topics.streams import Stream, StreamMessage
from warren.aio import bridge
from warren.amqp.methods import method_of
from warren.queue_index.message.contents import Content
from warren.queue_index.properties import decode_properties, encode_properties
from warren.server.channels.channel_link import ChannelLink
from warren.server.channels.streams import OFFSET, OffsetSpec
from warren.server.replies import NOT_IMPLEMENTED, Refusal
from warren.storage.errors import WarrenError
from warren.verbs.topics.topic_lookup import offsets_at

_LOG = logger("server")

_address = operator.attrgetter("exchange", "routing_key")

_MOST_AT_ONCE: Final = 256
"""Messages that are read in one go."""

_HEADERS: Final = 0x2000
_CONTENT_TYPES: Final = (0x8000, 0x4000)
"""Flags of the properties before the headers: short strings."""
_NAME: Final = bytes((len(OFFSET),)) + OFFSET.encode() + b"l"
_OFFSET: Final = struct.Struct(">q")
_FLAGS: Final = struct.Struct(">H")
_LENGTH: Final = struct.Struct(">I")


class StreamConsumer:
    """A client's consumer of a stream."""

    no_ack: Final = False
    active: Final = False
    """As RabbitMQ reports for streams."""

    def __init__(
        self,
        channel: ChannelLink,
        stream: Stream,
        unacked: DeliveryTags[Any],
        on_lost: Callable[[StreamConsumer, WarrenError], None],
        *,
        tag: str,
        exclusive: bool,
        prefetch: int,
        arguments: dict[str, Any],
    ) -> None:
        self._channel = channel
        self._stream = stream
        self._unacked = unacked
        self._on_lost = on_lost
        self.tag = tag
        self.queue = stream.declaration.name
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.arguments = arguments
        self.ended = False
        self._credit = prefetch
        self._offset = 0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    # ── beginning and end ───────────────────────────────────────────────────────────────────────────────────────

    async def find_start(self) -> None:
        """Find the offset where it begins."""
        node = self._channel.node
        running = await bridge.run(node.caught_up())
        spec = OffsetSpec.of(self._stream.declaration, self.arguments.get(OFFSET, "next"), node.now_ms())

        def start() -> int:
            span = self._stream.bounds()
            if spec.name is not None:
                offset = {"first": span.start, "last": max(span.stop - 1, span.start), "next": span.stop}[spec.name]
            elif spec.moment_ms is not None:
                offsets = offsets_at(running, self._stream.topic, STREAM_QUEUE_ID + 1, spec.moment_ms / 1000)
                offset = offsets[STREAM_QUEUE_ID]
            else:
                offset = spec.offset or 0  # it may be one in the future
            return max(offset, span.start)

        self._offset = await bridge.in_thread(start)

    def begin(self) -> None:
        """Send existing and new messages."""
        self._stream.consumers.add(self._wake)
        self._task = self._channel.connection.start(self._run())

    def stop(self) -> None:
        """Stop sending to the client."""
        if not self.ended:
            self.ended = True
            self._stream.consumers.discard(self._wake)
            self._changed.set()

    async def end(self) -> None:
        """Stop, and wait until no more files are read."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task])

    # ── the messages ────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        try:
            while not self._is_over:
                self._stream.check()
                if self._credit <= 0 or not self._channel.connection.writable:
                    await self._wait_for_client()
                elif not await self._send_some():
                    await self._wait_for_more()
        except WarrenError as error:
            if not self._is_over:
                _LOG.info(
                    "consumer '%s' ends: %s",
                    self.tag,
                    error,
                    extra=log_event("consumer_ended", error, of=self._stream.declaration, consumer=self.tag),
                )
                self.stop()
                self._on_lost(self, error)

    @property
    def _is_over(self) -> bool:
        return self.ended or self._channel.closed

    async def _wait_for_client(self) -> None:
        """Wait until the client acks, or takes more data."""
        self._changed.clear()
        connection = self._channel.connection
        if not connection.writable:
            connection.when_writable(self._changed.set)
        await self._changed.wait()

    async def _send_some(self) -> bool:
        """Send some messages; return whether there were any."""
        count = min(self._credit, _MOST_AT_ONCE)
        messages = await bridge.in_thread(functools.partial(self._stream.read, self._offset, count))
        if not messages or self._is_over:
            return bool(messages)
        self._offset = messages[-1].offset + 1
        self._credit -= len(messages)
        self._deliver(messages)
        return True

    async def _wait_for_more(self) -> None:
        """Wait until something is appended to the stream, or the client is gone."""
        running = self._stream.topics
        topics, arrivals = {self._stream.topic}, running.dispatcher.arrivals
        arrival = arrivals.wait_for(topics, running.dispatcher)
        try:
            queue = running.store.queues.get((self._stream.topic, STREAM_QUEUE_ID))
            if queue is not None and queue.max_offset > self._offset:
                return
            if running.store.dispatched < running.store.commit_log.end:
                running.dispatcher.call_soon(running.dispatcher.dispatch)
            self._changed.clear()
            if self._is_over:
                return
            if not running.dispatcher.actor_stopped.is_set():
                arrival.on_done(lambda _: self._wake())
                await self._changed.wait()
            if running.dispatcher.actor_stopped.is_set():
                await bridge.run(self._channel.node.change(lambda _: None))  # they are being reopened
        finally:
            arrivals.forget(topics, arrival)

    def _wake(self) -> None:
        """In any thread."""
        self._channel.server.rounds.post(self._changed.set)

    def _deliver(self, messages: Sequence[StreamMessage]) -> None:
        channel = self._channel
        if channel.traffic is not None:
            channel.traffic.deliver(len(messages), no_ack=False, redelivered=False)
        tag = self._unacked.give(0, range(messages[0].offset, messages[0].offset + len(messages)), self)
        for (exchange, routing_key), group in itertools.groupby(messages, _address):
            run = list(group)
            method = method_of(
                c.Basic.Deliver,
                consumer_tag=self.tag,
                redelivered=False,
                exchange=exchange,
                routing_key=routing_key,
            )
            channel.connection.engine.deliver(
                channel.number,
                method,
                range(tag, tag + len(run)),
                [with_offset(message.properties, message.offset) for message in run],
                [message.body for message in run],
            )
            tag += len(run)
            if channel.trace is not None:
                content = Content(
                    exchange.encode(errors="surrogateescape"),
                    routing_key.encode(errors="surrogateescape"),
                    [message.properties for message in run],
                    [message.body for message in run],
                )
                channel.trace.delivered(self.queue, content, redelivered=False)
        channel.connection.flush()

    # ── settling: what a channel calls for its deliveries ───────────────────────────────────────────────────────

    def settle_ranges(self, outcome: str, offsets: Sequence[range]) -> None:
        """Add credit for acks, until it ends. Raises :class:`Refusal` for anything else."""
        if self.ended:
            return
        if outcome != "ack":
            stream = self._stream.declaration
            raise Refusal(NOT_IMPLEMENTED, f"basic.nack and basic.reject not supported by stream queues {stream}")
        self._credit += sum(map(len, offsets))
        self._changed.set()


def with_offset(properties: bytes, offset: int) -> bytes:
    """Return a message's properties with the header ``x-stream-offset``."""
    ahead, table, behind = _split(properties)
    table += _NAME + _OFFSET.pack(offset)
    return b"".join((ahead, _LENGTH.pack(len(table)), table, behind))


@functools.lru_cache(maxsize=256)
def _split(properties: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the part before the headers, with the flag for them; the headers without their length; and the rest."""
    if _NAME[:-1] in properties:  # a publisher's own, which is removed
        decoded = decode_properties(properties)
        if decoded.headers is not None and OFFSET in decoded.headers:
            headers = {name: value for name, value in decoded.headers.items() if name != OFFSET}
            properties = encode_properties(attrs.evolve(decoded, headers=headers))
    [flags] = _FLAGS.unpack_from(properties)
    position = _FLAGS.size
    for flag in _CONTENT_TYPES:
        if flags & flag:
            position += 1 + properties[position]
    ahead = _FLAGS.pack(flags | _HEADERS) + properties[_FLAGS.size : position]
    if not flags & _HEADERS:
        return ahead, b"", properties[position:]
    [length] = _LENGTH.unpack_from(properties, position)
    start = position + _LENGTH.size
    return ahead, properties[start : start + length], properties[start + length :]
