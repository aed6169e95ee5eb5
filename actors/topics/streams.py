"""The streams of a node: queues of the type ``stream``, each of them a topic.

A stream has no actor. Publishers hand messages to the CommitLog's actor, as a topic's handle does; consumers read the
topic's files themselves. So a stream is available whenever the topics are, also after a crash or after they were
reopened.

*Encoding of a message.* The body is the record's. Exchange, routing key and AMQP's properties are stored in the
record's properties, the latter in base64; if they do not fit, they are stored ahead of the body (:data:`AHEAD`).
Messages appended to the topic by other means lack them.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

import attrs
import numpy as np

from warren.actors.clock import Clock
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.policies import AppliedPolicies, PoliciesOf
from warren.actors.engines.declared.stream_arguments import StreamLimits
from warren.actors.engines.topics.reading import read_packed
from warren.actors.engines.topics.stream_retention import STREAM_QUEUE_ID, StreamRetention
from warren.actors.node.backpressure import InFront
from warren.actors.node.gate import Gate
from warren.actors.node.node_context import NodeContext
from warren.actors.queue.intake import PublishKey, QueueGoneError
from warren.actors.runtime.future import Confirm, CountDown, Future
from warren.actors.runtime.pool import Pool
from warren.actors.topics.log_intake import AppendConfirm, AppendKey, LogIntake
from warren.actors.topics.running_topics import RunningTopics
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import (
    BLANK_HEADER_BYTES,
    FIXED_BYTES,
    MAX_PROPERTIES_BYTES,
    Host,
    decode_properties,
    encode_properties,
)
from warren.msg_store.commit_log.packed_records import PackedRecords
from warren.queue_index.message.message_format import Envelope
from warren.storage.errors import MessageError, WarrenError
from warren.storage.topic_settings import TopicSettings

EXCHANGE: Final = "x-exchange"
ROUTING_KEY: Final = "x-routing-key"
PROPERTIES: Final = "x-properties"
AHEAD: Final = "x-properties-ahead"
"""The number of bytes of AMQP's properties ahead of the body."""

READ_BYTES: Final = 1 << 20
"""The size of messages that are read at once."""

NO_PROPERTIES: Final = b"\0\0"
_HERE: Final = Host(bytes((127, 0, 0, 1)), 0)
_PLAIN: Final = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}~"
"""The plain characters besides letters, digits and ``_.-``."""


class StreamMessage(NamedTuple):
    """A message of a stream, as it was published."""

    offset: int
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


@attrs.define(eq=False, repr=False)
class Stream(InFront):
    """One stream. Publishers use it as they use a queue's intake (:class:`~warren.actors.node.backpressure.Intake`)."""

    declaration: QueueDeclaration
    _context: NodeContext
    _settings: TopicSettings
    _topics: Callable[[], RunningTopics]
    """Returns the current topics; raises the reason if they are down."""
    _policies_of: PoliciesOf
    deleted: bool = False
    consumers: set[Callable[[], None]] = attrs.Factory(set)
    """Functions that wake the node's clients that consume it, in any thread."""
    coalesces: bool = True
    _key: AppendKey = attrs.field(init=False)
    _retention: StreamRetention | None = None

    def __attrs_post_init__(self) -> None:
        store_host = Host.parse(f"{self._settings.broker_ip1}:{self._settings.listen_port}")
        self._key = AppendKey(self.topic, _HERE, store_host)

    @property
    def topic(self) -> str:
        return self.declaration.topic

    @property
    def topics(self) -> RunningTopics:
        """The current topics. Raises the reason if they are down, and :class:`QueueGoneError`."""
        self.check()
        return self._topics()

    def check(self) -> None:
        """Raise :class:`QueueGoneError` if the stream was deleted."""
        if self.deleted:
            raise QueueGoneError(f"{self.declaration} was deleted")

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def behind(self) -> LogIntake:
        """The intake of the current CommitLog. Raises like :attr:`topics`."""
        return self.topics.log.intake

    @property
    def gate(self) -> Gate:
        return self._context.gate

    @property
    def clock(self) -> Clock:
        return self._context.clock

    @property
    def pool(self) -> Pool:
        return self._context.pool

    def describe(self) -> str:
        return str(self.declaration)

    def publish(self, key: PublishKey, body: bytes, reserved_bytes: int = 0, *, here: bool = True) -> Confirm:
        """Hand over one message; return its confirm, which messages that came together share."""
        log, (around, ahead) = self._log_for(reserved_bytes), around_body(key.envelope)
        if not self._fits(body, around, ahead):
            self.gate.leave(reserved_bytes, unused_bytes=reserved_bytes)
            return self._too_large()
        item = AppendConfirm(self._key, STREAM_QUEUE_ID, ahead + body if ahead else body, around)
        return log.append(item, reserved_bytes).confirm

    def publish_many(
        self,
        key: PublishKey,
        bodies: Sequence[bytes],
        reserved_bytes: int = 0,
        *,
        msg_ids: bytes = b"",
        here: bool = True,
    ) -> Confirm:
        """Hand over messages in one batch. A message that is too large fails their confirm; the others are appended."""
        log, (around, ahead) = self._log_for(reserved_bytes), around_body(key.envelope)
        fitting = [ahead + body if ahead else body for body in bodies if self._fits(body, around, ahead)]
        confirm = Confirm(log)
        batch = Batch(
            topic=self.topic,
            queue_id=STREAM_QUEUE_ID,
            bodies=fitting,
            properties=around,
            born_timestamp=self.clock.wall_us() // 1000,
            born_host=_HERE,
            store_host=self._key.store_host,
            as_one=False,
        )
        log.hand_over([batch] if fitting else [], confirm, reserved_bytes)
        return confirm if len(fitting) == len(bodies) else CountDown([confirm, self._too_large()])

    def take_dead_letter(self, envelope: Envelope, body: bytes, confirm: Future) -> None:
        """Take a queue's dead letter, whose sender is never held; ``confirm`` is answered when it is safe."""
        key = PublishKey(envelope)
        try:
            self.publish_many(key, [body], self.gate.enter(key.size_bytes([body]))).on_done(confirm.follow)
        except WarrenError as error:
            confirm.fail(error)

    def _log_for(self, reserved_bytes: int) -> LogIntake:
        try:
            return self.behind
        except BaseException:
            self.gate.leave(reserved_bytes, unused_bytes=reserved_bytes)
            raise

    def _fits(self, body: bytes, around: bytes, ahead: bytes) -> bool:
        limit = min(self._settings.max_message_size, self._settings.mapped_file_size_commit_log - BLANK_HEADER_BYTES)
        return len(body) + len(around) + len(ahead) + len(self.topic) + FIXED_BYTES <= limit

    def _too_large(self) -> Confirm:
        confirm = Confirm()
        confirm.fail(MessageError(f"{self.declaration}: a message larger than max_message_size"))
        return confirm

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def retention(self) -> StreamRetention:
        """The stream's retention. Raises like :attr:`topics`."""
        store, retention = self.topics.store, self._retention
        limits = StreamLimits.of(self.declaration.arguments, self.policies.definition)
        if retention is None or retention.store is not store or retention.limits != limits:
            retention = self._retention = StreamRetention(store, self.topic, limits)
        return retention

    @property
    def policies(self) -> AppliedPolicies:
        """The policies that apply to it now."""
        return self._policies_of(self.declaration.vhost, self.declaration.name)

    def bounds(self) -> range:
        """Return the offsets of its messages. Reads files."""
        return self.retention.bounds(self.clock.wall_us() // 1000)

    def read(self, offset: int, count: int) -> list[StreamMessage]:
        """Return up to ``count`` messages from ``offset`` on, up to :data:`READ_BYTES` but at least one. If that offset
        has expired, start at the first message. Reads files.
        """
        store = self.topics.store
        queue = store.queues.get((self.topic, STREAM_QUEUE_ID))
        if queue is None:
            return []
        while offset < queue.max_offset:
            entries = queue.entries(offset, count)
            fitting = int(np.searchsorted(np.cumsum(entries["size"], dtype=np.int64), READ_BYTES, side="right"))
            record_parts = read_packed(store.commit_log, entries[: max(fitting, 1)])
            messages = [self._message(records, row) for records in record_parts for row in range(len(records))]
            if messages:
                return messages
            first = self.bounds().start
            if first <= offset:
                return []
            offset = first
        return []

    def _message(self, records: PackedRecords, row: int) -> StreamMessage:
        exchange, routing_key, properties, ahead = _published(records.properties(row), self.declaration.name)
        body = records.bodies[row]
        if ahead:
            properties, body = body[:ahead], body[ahead:]
        return StreamMessage(records.queue_offsets[row], exchange, routing_key, properties, body)

    def stats(self) -> dict[str, Any]:
        """Return what RabbitMQ's management shows of a stream, and its ``topic``. Reads files."""
        bounds = self.bounds()
        return {
            **self.declaration.columns(),
            "type": "stream",
            "state": "running",
            "messages": len(bounds),
            "messages_ready": len(bounds),
            "messages_unacknowledged": 0,
            "consumers": len(self.consumers),
            "first_offset": bounds.start,
            "committed_offset": bounds.stop - 1,
            "topic": self.topic,
            **self.policies.to_json(),
        }


# ── what stands around a body ────────────────────────────────────────────────────────────────────────────────────────


def around_body(envelope: Envelope) -> tuple[bytes, bytes]:
    """Return a record's properties for messages with this envelope, and the bytes to put ahead of their bodies."""
    fields = {}
    if envelope.exchange:
        fields[EXCHANGE] = quote_from_bytes(envelope.exchange, _PLAIN)
    if envelope.routing_keys and envelope.routing_keys[0]:
        fields[ROUTING_KEY] = quote_from_bytes(envelope.routing_keys[0], _PLAIN)
    else:
        fields[ROUTING_KEY] = "%"  # an empty key; without the property it would be the stream's name
    properties = envelope.properties
    if properties == NO_PROPERTIES:
        return encode_properties(fields), b""
    whole = encode_properties(fields | {PROPERTIES: base64.b64encode(properties).decode("ascii")})
    if len(whole) <= MAX_PROPERTIES_BYTES:
        return whole, b""
    return encode_properties(fields | {AHEAD: str(len(properties))}), properties


@functools.lru_cache(maxsize=256)
def _published(around: bytes, stream: str) -> tuple[str, str, bytes, int]:
    """Return exchange, routing key, AMQP's properties, and the number of their bytes ahead of the body."""
    properties = decode_properties(around)
    routing_key = properties.get(ROUTING_KEY)
    return (
        _text(properties.get(EXCHANGE, "")),
        stream if routing_key is None else "" if routing_key == "%" else _text(routing_key),
        base64.b64decode(properties[PROPERTIES]) if PROPERTIES in properties else NO_PROPERTIES,
        int(properties.get(AHEAD, 0)),
    )


def _text(quoted: str) -> str:
    return unquote_to_bytes(quoted).decode("utf-8", "surrogateescape")
