"""Messages of topics: their properties, and stored messages.

Times are ``datetime`` or seconds since 1970 on the way in, seconds on the way out; files and indexes know milliseconds.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from warren.actors.engines.topics import names
from warren.msg_store.commit_log.commit_log_format import (
    MAX_PROPERTIES_BYTES,
    Host,
    Record,
    decode_properties,
    encode_properties,
)
from warren.msg_store.commit_log.packed_records import PackedRecords
from warren.storage.call_arguments import seconds_of
from warren.storage.errors import MessageError, WarrenError, shown

Moment = datetime.datetime | float
"""A ``datetime`` (one without a time zone is local), or seconds since 1970."""

HERE: Final = Host(bytes((127, 0, 0, 1)), 0)
"""The born host of messages that are appended in this process, unless another one is given."""

_FLAGS: Final = range(-(1 << 31), 1 << 31)
_TIMESTAMPS_MS: Final = range(1 << 63)

_RESERVED: Final = frozenset(
    {
        names.KEYS,
        names.TAGS,
        names.DELAY,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.RETRY_TOPIC,
        names.ORIGIN_MESSAGE_ID,
        names.TRANSACTION_PREPARED,
        names.PRODUCER_GROUP,
        names.PREPARED_QUEUE_OFFSET,
    }
)
"""Reserved properties: they have arguments of their own, or belong to the store."""


def to_ms(moment: Moment) -> int:
    """Milliseconds since 1970. Raises :class:`MessageError` for anything but a time."""
    seconds = seconds_of(moment)
    if seconds is None:
        raise MessageError(f"a time is a datetime or seconds since 1970, not {shown(moment)}")
    return round(seconds * 1000)


@attrs.frozen
class Origin:
    """What a message records about its producer."""

    flag: int = 0
    """A number of 32 bits that applications can use."""
    born_timestamp: int | None = None
    """Milliseconds since 1970; ``None``: the time of the append."""
    born_host: Host = HERE

    @classmethod
    def of(cls, flag: int = 0, born_at: Moment | None = None, born_host: str | None = None) -> Origin:
        """Return the origin from an append's arguments. Raises :class:`MessageError` if they do not fit a record."""
        if not isinstance(flag, int) or int(flag) not in _FLAGS:  # for other types, a range is searched from end to end
            raise MessageError(f"a flag has 32 bits, unlike {shown(flag)}")
        born_ms = None if born_at is None else to_ms(born_at)
        if born_ms is not None and born_ms not in _TIMESTAMPS_MS:
            raise MessageError(f"a message cannot be born at {born_at}")
        return cls(flag, born_ms, HERE if born_host is None else _host(born_host))


def _host(text: str) -> Host:
    try:
        return Host.parse(text)
    except ValueError:
        raise MessageError(f"a host is an address and a port, such as 10.1.2.3:50123, unlike {shown(text)}") from None


def check_key(key: str) -> str:
    """Raise :class:`MessageError` unless this is a valid key: a space separates keys."""
    if not key or " " in key or "\x01" in key or "\x02" in key or "\0" in key:
        raise MessageError(f"a key cannot be {shown(key)}: it is not empty, and holds no space, no separator, no NUL")
    try:
        key.encode("utf-8")
    except UnicodeEncodeError:
        raise MessageError(f"a key cannot be {shown(key)}: it is no text") from None
    return key


def encode_message_properties(
    keys: str | Iterable[str] | None, tag: str | None, properties: Mapping[str, str] | None
) -> bytes:
    """Return a message's properties in their stored form. Raises :class:`MessageError` for invalid ones."""
    if tag is None and not properties:
        if keys is None:
            return b""
        if type(keys) is str:
            return _key_alone(keys)
    stored: dict[str, str] = {}
    if keys is not None:
        key_list = [keys] if isinstance(keys, str) else list(keys)
        if key_list:
            stored[names.KEYS] = " ".join(map(check_key, key_list))
    if tag is not None:
        stored[names.TAGS] = tag
    for name, value in (properties or {}).items():
        if name in _RESERVED:
            raise MessageError(f"the property {shown(name)} is the store's own")
        if not isinstance(name, str) or not isinstance(value, str):
            raise MessageError(f"the property {shown(name)} is no text")
        stored[name] = value
    try:
        encoded = encode_properties(stored)
    except (WarrenError, UnicodeEncodeError, TypeError) as error:
        raise MessageError(f"no properties of a message: {error}") from None
    if b"\0" in encoded:  # a record with a NUL at its end counts as torn
        raise MessageError("properties of a message cannot hold a NUL")
    if len(encoded) > MAX_PROPERTIES_BYTES:
        raise MessageError(f"{len(encoded)} bytes of properties; {MAX_PROPERTIES_BYTES} at most")
    return encoded


def _key_alone(key: str) -> bytes:
    """Return the properties of a message with only this key, the most frequent case."""
    encoded = b"KEYS\x01" + check_key(key).encode()
    if len(encoded) > MAX_PROPERTIES_BYTES:
        raise MessageError(f"{len(encoded)} bytes of properties; {MAX_PROPERTIES_BYTES} at most")
    return encoded


def properties_of_keys(keys: Sequence[str], common: bytes = b"") -> list[bytes]:
    """Return the properties of many messages, each with one key; ``common``: the others, of all, in stored form.

    Raises as :func:`encode_message_properties` does for the keys.
    """
    if not keys:
        return []
    check_key("".join(keys) or "-")
    if not all(keys):
        check_key("")
    behind = "\x02" + common.decode() if common else ""
    joined = f"{behind}\0KEYS\x01".join(keys)  # neither keys nor properties contain a NUL
    return f"KEYS\x01{joined}{behind}".encode().split(b"\0")


class StoredMessage:
    """A message in a topic. Its fields are decoded on access."""

    __slots__ = ("_body", "_properties", "_records", "_row", "_unpacked")

    def __init__(self, records: PackedRecords, row: int = 0, body: bytes | None = None) -> None:
        self._records = records
        self._row = row
        """Its row in the records."""
        self._body = records.bodies[row] if body is None else body
        self._unpacked: Record | None = None
        self._properties: dict[str, str] | None = None

    @property
    def record(self) -> Record:
        """The record as it is in the CommitLog."""
        if self._unpacked is None:
            self._unpacked = self._records.unpack(self._row)
        return self._unpacked

    @property
    def body(self) -> bytes:
        """As it was sent: a body that a client of RocketMQ compressed is decompressed here, each time.

        Raises :class:`MessageError` if that is not possible.
        """
        return self._records.sent_body(self._row) if self._records.has_compressed else self._body

    @property
    def raw_body(self) -> bytes:
        """As it is stored."""
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        """All properties, including the store's own."""
        if self._properties is None:
            self._properties = decode_properties(self._records.properties(self._row))
        return self._properties

    @property
    def topic(self) -> str:
        """The topic that it was first appended to: for a retry, not the topic of the retries."""
        return self.properties.get(names.RETRY_TOPIC, self.record.topic)

    @property
    def queue_id(self) -> int:
        return self._records.queue_id(self._row)

    @property
    def queue_offset(self) -> int:
        """Its number in the queue."""
        return self._records.queue_offsets[self._row]

    @property
    def keys(self) -> list[str]:
        return self.properties.get(names.KEYS, "").split()

    @property
    def key(self) -> str | None:
        """The first of its keys."""
        return next(iter(self.keys), None)

    @property
    def tag(self) -> str | None:
        return self.properties.get(names.TAGS)

    @property
    def physical_offset(self) -> int:
        """Its offset in the CommitLog."""
        return self.record.physical_offset

    @property
    def flag(self) -> int:
        """A number that its producer gave it."""
        return self.record.flag

    @property
    def stored_at(self) -> float:
        """Seconds since 1970."""
        return self.record.store_timestamp / 1000

    @property
    def born_at(self) -> float:
        """When its producer made it: seconds since 1970."""
        return self.record.born_timestamp / 1000

    @property
    def born_host(self) -> str:
        """Its producer's address and port."""
        return str(self.record.born_host)

    @property
    def store_host(self) -> str:
        """Address and port of the broker that stored it."""
        return str(self.record.store_host)

    @property
    def attempts(self) -> int:
        """How often it was sent back by a consumer before."""
        return self.record.reconsume_times

    @property
    def message_id(self) -> str:
        """RocketMQ's offsetMsgId: store host and physical offset, in upper-case hexadecimal digits."""
        return self.record.message_id()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.record.topic} {self.queue_id}:{self.queue_offset}>"
