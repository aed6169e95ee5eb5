"""Checks one record of the CommitLog as RocketMQ's dispatch and recovery do: whether it is good, and where to go on.

Only what decides this is read, in a few small reads: the head, the topic, the properties; the body not at all, or piece
by piece if its checksum is to be verified. So bytes that claim to be a record of 2 GiB cost no memory.

A record is good if its magic is a message's, and its fields fit before the end of the file and add up to its size. Its
position is not compared with the physical offset in it. A scheduled message whose delay level is not a number is a
failure too: the original fails on it.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from typing import Final

import attrs

from warren.msg_store.commit_log.commit_log_format import (
    BLANK_HEADER_BYTES,
    BLANK_MAGIC,
    BORN_HOST_V6,
    CRC_AT,
    HEAD_BYTES,
    IPV6_EXTRA_BYTES,
    MESSAGE_MAGICS,
    SCHEDULE_TOPIC,
    STORE_HOST_V6,
    SYS_FLAG_AT,
    Blank,
    RecordError,
    decode_properties,
    header_bytes,
    peek,
    topic_length_bytes,
)

Read = Callable[[int, int], bytes]
"""Physical offset and size → the bytes there; fewer where the file ends before."""

DELAY_PROPERTY: Final = "DELAY"
_HOST_BYTES: Final = 8
_BODY_PIECE_BYTES: Final = 1 << 20
_INT_BITS: Final = 31
_NUMBER = re.compile(r"[+-]?\d+")

WRONG_CRC: Final = "a record's body does not match its CRC"


@attrs.frozen
class Failure:
    """Bytes at ``physical_offset`` that are no good record."""

    physical_offset: int
    reason: str
    resume_at: int | None
    """Where RocketMQ's dispatch goes on: after the fields if only their sum is wrong (and after a body with a wrong
    CRC, which dispatch does not check); ``None``: at the next file."""

    @property
    def kind(self) -> str:
        """Kind of a finding, whose detail is the reason."""
        return "wrong checksum" if self.reason == WRONG_CRC else "damaged record"


@attrs.frozen
class RecordHeader:
    """A good record, as far as it can be described without its body."""

    size: int
    body_start: int
    """The physical offset of the body."""
    body_size: int


def check(read: Read, at: int, end: int, *, check_crc: bool = False) -> RecordHeader | Blank | Failure:
    """What begins at ``at``, in a file (or a log) that ends at ``end``."""
    try:
        size, magic = peek(_exactly(read, at, BLANK_HEADER_BYTES, end), 0)
        if magic == BLANK_MAGIC:
            return Blank(at, size)
        if magic not in MESSAGE_MAGICS:
            return Failure(at, f"its magic is 0x{magic:08X}", None)
        if size < 0:
            return Failure(at, f"its size is {size}", None)
        return _check_message(read, at, end, size, check_crc)
    except RecordError as error:
        return Failure(at, str(error), None)


def _check_message(read: Read, at: int, end: int, size: int, check_crc: bool) -> RecordHeader | Failure:
    head = _exactly(read, at, HEAD_BYTES, end)
    crc = int.from_bytes(head[CRC_AT : CRC_AT + 4], "big")
    sys_flag = int.from_bytes(head[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big")
    body_start = at + header_bytes(sys_flag)
    widest_host = _HOST_BYTES + (IPV6_EXTRA_BYTES if sys_flag & (BORN_HOST_V6 | STORE_HOST_V6) else 0)
    _fits_into_size(widest_host, size)
    (body_size,) = struct.unpack(">i", _exactly(read, body_start - 4, 4, end))
    body_size = max(body_size, 0)
    topic_length = _exactly(read, body_start + body_size, topic_length_bytes(peek(head, 0)[1]), end)
    topic_start = body_start + body_size + len(topic_length)
    topic_size = int.from_bytes(topic_length, "big", signed=True)
    if topic_size < 0:
        raise RecordError(f"its topic's length is {topic_size}")
    _fits_into_size(topic_size, size)
    topic = _exactly(read, topic_start, topic_size, end)
    properties_start = topic_start + topic_size + 2
    (properties_size,) = struct.unpack(">h", _exactly(read, properties_start - 2, 2, end))
    properties_size = max(properties_size, 0)
    _fits_into_size(properties_size, size)
    properties = _exactly(read, properties_start, properties_size, end)
    if topic == SCHEDULE_TOPIC.encode():
        delay_level(properties)
    stop = properties_start + properties_size
    if stop - at != size:
        return Failure(at, f"its fields take {stop - at} bytes, its size says {size}", stop)
    if check_crc and body_size and _crc_of(read, body_start, body_size) != crc:
        return Failure(at, WRONG_CRC, stop)
    return RecordHeader(size, body_start, body_size)


def _exactly(read: Read, at: int, size: int, end: int) -> bytes:
    if at + size <= end:
        data = read(at, size)
        if len(data) == size:
            return data
    raise RecordError("its fields do not fit into the file")


def _fits_into_size(field_size: int, size: int) -> None:
    """Reject a field longer than the record: the original reads it into an array of the record's size, and fails."""
    if field_size > size:
        raise RecordError(f"a field of it takes {field_size} bytes, its size says {size}")


def _crc_of(read: Read, body_start: int, body_size: int) -> int:
    crc = 0
    for at in range(body_start, body_start + body_size, _BODY_PIECE_BYTES):
        crc = zlib.crc32(read(at, min(_BODY_PIECE_BYTES, body_start + body_size - at)), crc)
    return crc & 0x7FFFFFFF


def delay_level(properties: bytes) -> int | None:
    """A scheduled message's delay level, as Java parses it; ``None`` without. Raises :class:`RecordError`."""
    text = decode_properties(properties).get(DELAY_PROPERTY)
    if text is None:
        return None
    if len(text) <= _MOST_DIGITS and _NUMBER.fullmatch(text) and max(text) <= "\uffff":
        level = int(text)
        if -(1 << _INT_BITS) <= level < 1 << _INT_BITS:
            return level
    raise RecordError(f"its delay level is {text[:_MOST_DIGITS]!r}, no number that Java can read")


_MOST_DIGITS = 40
"""The most digits of a number. (Java also accepts any number of leading zeros.)"""


def delivery_time(properties: bytes, store_timestamp: int, delay_levels_ms: tuple[int, ...]) -> int | None:
    """Return when a scheduled message is due, in milliseconds since 1970; ``None`` if it has no delay level.

    A level beyond the table counts as its last.
    """
    level = min(delay_level(properties) or 0, len(delay_levels_ms))
    if level <= 0:
        return None
    due = (store_timestamp + delay_levels_ms[level - 1]) & _MASK_64
    return due - (1 << 64) if due >> 63 else due


_MASK_64 = (1 << 64) - 1
