"""Batches: messages that are appended to the CommitLog in one go, and what of them may be stored.

A :class:`Batch` is messages of one topic and queue that share everything but their bodies and, perhaps, their
properties. :func:`measure` refuses what RocketMQ refuses and computes the sizes of the records, before their positions
are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from warren.msg_store.commit_log.commit_log_format import (
    BORN_HOST_V6,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    PREPARED,
    STORE_HOST_V6,
    Host,
    header_bytes,
)
from warren.storage.errors import WarrenError

_LENGTH_FIELDS_BYTES = 3
"""The topic's length and the properties'."""
_TOO_LARGE = 1 << 31


class MessageIllegalError(WarrenError):
    """A message that RocketMQ refuses (MESSAGE_ILLEGAL): its topic is too long, or all of it too large."""


class PropertiesSizeExceededError(MessageIllegalError):
    """The properties take more bytes than a record's length field can hold (PROPERTIES_SIZE_EXCEEDED)."""


@attrs.frozen(kw_only=True)
class Batch:
    """Messages of one topic and queue, appended together. Times in milliseconds since 1970."""

    topic: str
    queue_id: int
    bodies: Sequence[bytes]
    properties: bytes | Sequence[bytes] = b""
    """In their stored form; one for all, or one each."""
    born_timestamp: int
    born_host: Host
    store_host: Host
    sys_flag: int = 0
    """The bits for the hosts' widths are ignored: the hosts determine them."""
    flag: int | Sequence[int] = 0
    """The user's; one for all, or one each."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    as_one: bool = True
    """Whether all records go into one file, as RocketMQ's batches do: if they do not fit, all go to the next file.
    ``False``: each goes where it fits, as if they were put one by one."""

    @property
    def stored_sys_flag(self) -> int:
        flags = self.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
        return flags | BORN_HOST_V6 * self.born_host.is_v6 | STORE_HOST_V6 * self.store_host.is_v6

    @property
    def is_queued(self) -> bool:
        """Whether its messages take numbers of their queue; see
        :attr:`~warren.msg_store.commit_log.record_columns.RecordColumns.are_queued`."""
        return not self.sys_flag & PREPARED


@attrs.frozen(eq=False, repr=False)
class Measured:
    """A batch that may be stored."""

    batch: Batch
    topic: bytes
    sys_flag: int
    sizes: npt.NDArray[np.int32]
    """The sizes of its records."""
    total: int
    size: int | None
    """The size of each record, if all bodies have one size, and all properties; else ``None``."""

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def largest(self) -> int:
        return int(self.sizes.max()) if self.size is None else self.size

    def fitting(self, start: int, room: int) -> int:
        """How many records from the ``start``-th on go together into ``room`` bytes."""
        count = len(self) - start
        if self.batch.as_one:
            return count if self.total <= room else 0
        if self.size is not None:
            return min(count, max(room, 0) // self.size)
        return int(np.searchsorted(np.cumsum(self.sizes[start:], dtype=np.int64), room, side="right"))


def measure(batch: Batch, max_message_size: int) -> Measured:
    """Measure a batch. Raises :class:`MessageIllegalError` if a message, or a batch that goes as one, is refused."""
    topic, flags, count = _topic_bytes(batch.topic), batch.stored_sys_flag, len(batch.bodies)
    _check_flags(batch.flag, count)
    fixed = header_bytes(flags) + _LENGTH_FIELDS_BYTES + len(topic)
    body_size, bodies = _lengths(batch.bodies)
    if isinstance(batch.properties, bytes):
        _check_properties(batch.properties)
        properties_size, properties = len(batch.properties), None
    else:
        if len(batch.properties) != count:
            raise ValueError(f"{count} bodies, and properties of {len(batch.properties)} messages")
        properties_size, properties = _lengths(batch.properties)
        if max(properties or (properties_size,)) > MAX_PROPERTIES_BYTES:
            _check_properties(max(batch.properties, key=len))
    if bodies is None and properties is None:
        size = fixed + body_size + properties_size
        if count and size * (count if batch.as_one else 1) > max_message_size:
            raise _too_large(batch, size, max_message_size)
        return Measured(batch, topic, flags, np.full(count, size, np.int32), size * count, size)
    sizes = np.full(count, fixed, np.int64)
    sizes += body_size if bodies is None else np.array(bodies)
    sizes += properties_size if properties is None else np.array(properties)
    total, largest = int(sizes.sum()), int(sizes.max())
    if (total if batch.as_one else largest) > max_message_size:
        raise _too_large(batch, largest, max_message_size)
    return Measured(batch, topic, flags, sizes.astype(np.int32), total, None)


def _lengths(strings: Sequence[bytes]) -> tuple[int, list[int] | None]:
    """Their common length (0 without any), or a list of them."""
    lengths = list(map(len, strings))
    first = lengths[0] if lengths else 0
    return (first, None) if lengths.count(first) == len(lengths) else (0, lengths)


def _topic_bytes(topic: str) -> bytes:
    try:
        encoded = topic.encode("utf-8")
    except UnicodeEncodeError:
        raise MessageIllegalError(f"the topic {topic!r} is no text") from None
    if len(encoded) > MAX_TOPIC_BYTES:
        raise MessageIllegalError(f"the topic {topic!r} takes {len(encoded)} bytes; {MAX_TOPIC_BYTES} are allowed")
    return encoded


def _check_flags(flag: int | Sequence[int], count: int) -> None:
    flags = (flag,) if isinstance(flag, int) else flag
    if not isinstance(flag, int) and len(flags) != count:
        raise ValueError(f"{count} bodies, and flags of {len(flags)} messages")
    if flags and not -_TOO_LARGE <= min(flags) <= max(flags) < _TOO_LARGE:
        raise MessageIllegalError("a flag has more than 32 bits")


def _check_properties(properties: bytes) -> None:
    if len(properties) <= MAX_PROPERTIES_BYTES:
        return
    units = len(properties.decode("utf-8", "replace").encode("utf-16-le")) // 2
    kind = MessageIllegalError if units > MAX_PROPERTIES_BYTES else PropertiesSizeExceededError
    raise kind(f"properties of {len(properties)} bytes; {MAX_PROPERTIES_BYTES} are allowed")


def _too_large(batch: Batch, size: int, max_message_size: int) -> MessageIllegalError:
    subject = f"{len(batch.bodies)} messages of up to" if len(batch.bodies) > 1 else "a message of"
    return MessageIllegalError(f"{batch.topic}: {subject} {size} bytes; maxMessageSize is {max_message_size}")
