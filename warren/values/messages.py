"""Messages of users: the arguments of a publish as an envelope, and delivered messages.

Properties are AMQP's, under their names. Times are seconds here and whole milliseconds on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict, TypeVar

from warren.actors.engines.declared.texts import MAX_SHORT_STRING_BYTES
from warren.actors.queue.intake import PublishKey
from warren.queue_index.message.message_format import Envelope, Message, decode_message
from warren.queue_index.properties import Properties, decode_properties, encode_values
from warren.queue_index.queue.fetching import Fetched
from warren.storage.call_arguments import check_flag
from warren.storage.errors import MessageError, shown

MAX_EXPIRATION_S = 315_360_000.0
"""Ten years: the longest time to live."""

SHARED: Final = frozenset({"persistent", "delivery_mode", "expiration", "priority"})
"""The properties that messages handed over together share."""


MAX_DUE_MS: Final = 253_402_128_000_000
"""The latest time at which a message can be due: two days before the end of 9999, so that it exists in every time zone.
"""
LATER: Final = frozenset({"delay", "at"})
"""Arguments of a publish that say when its message is due (:mod:`warren.values.scheduling`)."""
KEY_ARGUMENTS: Final = frozenset({"unique", "unique_for"})
"""Arguments of a publish about a key, which are not properties (:mod:`warren.verbs.unique_publishing`)."""
OF_FEW: Final = LATER | KEY_ARGUMENTS
"""Rare arguments of a publish that need a separate code path."""


class PublishArguments(TypedDict, total=False):
    """The arguments of a publish beside the body."""

    headers: Mapping[str, Any] | None
    persistent: bool
    """Survives a stop, in a durable queue. The default."""
    expiration: float | None
    """Seconds after which a message that was not taken expires."""
    priority: int | None
    content_type: str | None
    content_encoding: str | None
    correlation_id: str | None
    reply_to: str | None
    message_id: str | None
    timestamp: int | None
    """Seconds since the Unix epoch."""
    type: str | None
    user_id: str | None
    app_id: str | None
    delay: float | timedelta | None
    """Seconds after which the message is due; until then it waits on disk (:mod:`warren.values.scheduling`)."""
    at: datetime | float | None
    """When it is due instead, as a datetime (local, if it has no time zone) or in seconds since the Unix epoch."""


T = TypeVar("T")
Each: TypeAlias = list[T] | list[T | None]
"""A value for each message, or ``None`` for a message without one."""


class PublishManyArguments(TypedDict, total=False):
    """The arguments of a publish of many messages beside their bodies: for all, or, where marked, a list for each."""

    headers: Mapping[str, Any] | list[Mapping[str, Any] | None] | None
    """For all, or each."""
    persistent: bool
    expiration: float | None
    priority: int | None
    content_type: str | Each[str] | None
    """For all, or each; so are all below."""
    content_encoding: str | Each[str] | None
    correlation_id: str | Each[str] | None
    reply_to: str | Each[str] | None
    message_id: str | Each[str] | None
    timestamp: int | Each[int] | None
    type: str | Each[str] | None
    user_id: str | Each[str] | None
    app_id: str | Each[str] | None
    delay: float | timedelta | list[float | timedelta | None] | None
    at: datetime | float | list[datetime | float | None] | None


class QueuePublishArguments(PublishArguments, total=False):
    """The additional arguments of a queue's publish."""

    unique: str | bytes | int | None
    """A key: while a message with it is in the queue, no other one is stored. ``True``: the body itself."""
    unique_for: float | None
    """Seconds from now for which the key is taken, whether the message is in the queue or not."""


class QueuePublishManyArguments(PublishManyArguments, total=False):
    """The additional arguments of a queue's publish of many messages."""

    unique: Each[str] | Each[bytes] | Each[int] | Each[str | bytes | int] | bool | None
    """A key each; or ``True``: the bodies themselves."""
    unique_for: float | None


class Shared(NamedTuple):
    """The values that messages to one target must share to be handed over together."""

    persistent: bool
    expiration_ms: int | None
    priority: int


NOTHING_SHARED: Final = Shared(True, None, 0)
"""The values of messages that set none of them."""


def publish_values(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Shared]:
    """Return the properties of messages by AMQP's names, and what they share. Raises :class:`MessageError`."""
    values = dict(arguments)
    if not KEY_ARGUMENTS.isdisjoint(values):
        raise MessageError(
            "unique and unique_for are for messages that are published into one queue, now; other queues look at the "
            "header x-deduplication-header, if they are declared with x-message-deduplication"
        )
    persistent = values.pop("persistent", True)
    check_flag(persistent, "persistent")
    expiration = values.pop("expiration", None)
    if "delivery_mode" in values:
        raise MessageError("a publish knows no delivery_mode")
    values["delivery_mode"] = 2 if persistent else 1
    expiration_ms = None
    if expiration is not None:
        expiration_ms = milliseconds("an expiration", expiration)
        values["expiration"] = str(expiration_ms)
    priority = values.get("priority")
    if priority is not None and (
        not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= 255
    ):
        raise MessageError(f"a priority is 0 … 255, not {shown(priority)}")
    return values, Shared(persistent, expiration_ms, priority or 0)


def publish_key(vhost: str, exchange: str, routing_keys: Iterable[str], arguments: Mapping[str, Any]) -> PublishKey:
    """Return the envelope of messages. Raises :class:`MessageError` for invalid values."""
    values, shared = publish_values(arguments)
    keys = tuple(map(_bytes, routing_keys))
    check_routing_keys(keys)
    envelope = Envelope(_bytes(vhost), _bytes(exchange), keys, encode_values(values), shared.persistent)
    return PublishKey(envelope, shared.expiration_ms, shared.priority)


def content_key(vhost: str, exchange: str, routing_key: str, shared: Shared) -> PublishKey:
    """Return the envelope of messages with properties of their own."""
    keys = (_bytes(routing_key),)
    envelope = Envelope(_bytes(vhost), _bytes(exchange), keys, b"", shared.persistent, of_contents=True)
    return PublishKey(envelope, shared.expiration_ms, shared.priority)


def columns_of(arguments: Mapping[str, Any], count: int) -> dict[str, list[Any]]:
    """Return the arguments of a publish of ``count`` messages that are lists. Raises :class:`MessageError`."""
    columns = {name: argument for name, argument in arguments.items() if isinstance(argument, list)}
    for name, column in columns.items():
        if name in SHARED:
            raise MessageError(f"{name} is one for all messages of a publish")
        if len(column) != count:
            raise MessageError(f"{name} of {len(column)} messages, and {count} bodies")
    return columns


def check_routing_keys(keys: Sequence[bytes]) -> None:
    """Raise :class:`MessageError` if the first, which is sent with a delivery, is too long for that."""
    if keys and len(keys[0]) > MAX_SHORT_STRING_BYTES:
        raise MessageError(f"a routing key cannot be {shown(keys[0])}: more than {MAX_SHORT_STRING_BYTES} bytes")


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise MessageError(f"a routing key cannot be {shown(text)}: {error.reason}") from None


def milliseconds(what: str, seconds: float) -> int:
    """Return a time in milliseconds; ``what`` names it in errors. Raises :class:`MessageError` if it is invalid."""
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise MessageError(f"{what} is a number of seconds, not {shown(seconds)}")
    if not 0 <= seconds <= MAX_EXPIRATION_S:
        raise MessageError(f"{what} is 0 … {MAX_EXPIRATION_S:.0f} seconds, not {shown(seconds)}")
    return round(seconds * 1000)


def as_body(body: object) -> bytes:
    """Return a body as immutable bytes. Raises :class:`MessageError` if it is not bytes."""
    if type(body) is bytes:
        return body
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise MessageError(f"a body is bytes, not {type(body).__name__}: encode it first")


def as_bodies(bodies: Iterable[object]) -> list[bytes]:
    """:func:`as_body` for many."""
    if isinstance(bodies, (bytes, bytearray, memoryview, str)) or not isinstance(bodies, Iterable):
        raise MessageError(f"bodies are a list or another iterable of bytes, not {shown(bodies)}")
    payloads: list[Any] = list(bodies)
    if set(map(type, payloads)) <= {bytes}:
        return payloads
    return [as_body(body) for body in payloads]


class ReceivedMessage:
    """A message as a queue has it. It is decoded when more than its body is needed."""

    __slots__ = ("_body", "_decoded", "_fetched", "_index")

    def __init__(self, fetched: Fetched | tuple[bytes], index: int = 0, body: bytes | None = None) -> None:
        self._fetched = fetched
        """The encoded message is at ``index`` here."""
        self._index = index
        self._body = body
        self._decoded: Message | Properties | None = None
        """The decoded message, or the part that was requested."""

    @property
    def message(self) -> Message:
        """The decoded message. Raises :class:`MessageError` if the bytes on disk are not a message."""
        message = self._decoded
        if not isinstance(message, Message):
            fetched = self._fetched
            term = fetched[self._index] if isinstance(fetched, tuple) else fetched.term(self._index)
            message = self._decoded = decode_message(term)
        return message

    @property
    def body(self) -> bytes:
        """The payload. Raises :class:`MessageError` if the bytes on disk are not a message."""
        if self._body is None:
            self._body = self.message.body
        return self._body

    @property
    def properties(self) -> Properties:
        """AMQP's basic properties."""
        decoded, fetched = self._decoded, self._fetched
        if decoded is None:
            encoded = None if isinstance(fetched, tuple) else fetched.properties(self._index)
            decoded = self._decoded = self.message if encoded is None else decode_properties(encoded)
        return decoded.properties if isinstance(decoded, Message) else decoded

    @property
    def headers(self) -> Mapping[str, Any]:
        return self.properties.headers or {}

    @property
    def exchange(self) -> str:
        """The exchange that it was published to; "": the default one."""
        return self.message.exchange.decode("utf-8", "surrogateescape")

    @property
    def routing_key(self) -> str:
        return self.message.routing_keys[0].decode("utf-8", "surrogateescape")

    @property
    def persistent(self) -> bool:
        return self.message.persistent

    def __repr__(self) -> str:
        try:
            return f"<{type(self).__name__} {self.body[:40]!r}>"
        except MessageError:
            return f"<{type(self).__name__} that cannot be read>"


class DelayedMessage(ReceivedMessage):
    """A message that waits until it is due."""

    __slots__ = ("due_ms",)

    def __init__(self, entry: Sequence[Any]) -> None:
        due_ms, term = entry
        super().__init__((term,))
        self.due_ms: int = due_ms
        """When it is due: milliseconds since 1970."""

    @property
    def due(self) -> datetime:
        """When it is due, in local time; of a later time than a ``datetime`` can express, the last one."""
        return datetime.fromtimestamp(min(self.due_ms, MAX_DUE_MS) / 1000).astimezone()

    @property
    def message_id(self) -> str | bytes | None:
        """The id with which it can be cancelled."""
        return self.properties.message_id


def delayed_messages(entries: Iterable[Sequence[Any]]) -> list[DelayedMessage]:
    """Make messages of the entries that a verb returns: when each is due, and its term."""
    return list(map(DelayedMessage, entries))
