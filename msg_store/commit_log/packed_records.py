"""Records as their bytes, checked and not taken apart: what a reader needs of most messages is their bodies.

Few readers look at hosts, flags and times. So records that were read together have columns only for what every reader
needs, bodies and queue offsets; the rest of a record is looked up in its bytes on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from zlib_ng.zlib_ng import crc32

from warren.msg_store.commit_log.body_crcs import body_crcs
from warren.msg_store.commit_log.commit_log_format import (
    CRC_MASK,
    FIXED_BYTES,
    MESSAGE_MAGICS,
    Located,
    Record,
    RecordError,
    decode,
    decode_physical_offset,
    decode_store_timestamp,
    encode,
    head_type,
    locate,
    topic_text,
)
from warren.msg_store.commit_log.record_bodies import COMPRESSED, sent_body
from warren.msg_store.commit_log.record_spans import RecordSpans
from warren.storage.columns import Longs
from warren.storage.errors import MessageError

_HEAD = np.dtype(head_type(0)[:8])
_MOST_FEW_RECORDS = 16
"""Each costs about 2 µs on its own; all at once 90 µs, and next to nothing each."""


class PackedRecords:
    """Sound records, in the order of their queue. Made by :func:`packed` and :func:`sound_records`.

    They share the bytes that they were read with.
    """

    __slots__ = ("_data", "_first", "_starts", "bodies", "end", "has_compressed", "queue_offsets")

    def __init__(
        self,
        data: bytes,
        starts: Sequence[int] | Longs,
        bodies: list[bytes],
        queue_offsets: list[int],
        first: Located | None = None,
        *,
        has_compressed: bool,
    ) -> None:
        self._data = data
        self._starts = starts
        self._first = first
        """Where the parts of the first one lie, if that is known."""
        self.bodies = bodies
        """As they are stored."""
        self.has_compressed = has_compressed
        """Whether any of the bodies may be compressed."""
        self.queue_offsets = queue_offsets
        self.end = queue_offsets[-1] + 1 if queue_offsets else 0
        """The queue offset after the last record, at which a reader goes on."""

    def __len__(self) -> int:
        return len(self.bodies)

    def take(self, rows: Iterable[int]) -> PackedRecords:
        """Some of them."""
        rows = list(rows)
        bodies, offsets = [self.bodies[row] for row in rows], [self.queue_offsets[row] for row in rows]
        starts = [self._starts[row] for row in rows]
        return PackedRecords(self._data, starts, bodies, offsets, has_compressed=self.has_compressed)

    def sent_bodies(self) -> list[bytes]:
        """The bodies as they were sent. Raises :class:`MessageError` if one is not of the compression that it has."""
        return [self.sent_body(row) for row in range(len(self))]

    # ── one of them ─────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, row: int) -> int:
        return int(self._starts[row])

    def _located(self, row: int) -> Located:
        return self._first if self._first is not None and not row else locate(self._data, self._start(row))

    def data(self, row: int = 0) -> bytes:
        """All of a record."""
        start = self._start(row)
        return self._data[start : start + self._located(row)[0]]

    def sent_body(self, row: int = 0) -> bytes:
        """The body as it was sent. Raises :class:`MessageError` if it is not of the compression that it has."""
        try:
            return sent_body(self._located(row)[4], self.bodies[row])
        except MessageError as error:
            place = decode_physical_offset(self._data, self._start(row))
            raise MessageError(f"the record at {place}: {error}; raw_body has it as it is stored") from error

    def queue_id(self, row: int = 0) -> int:
        return self._located(row)[2]

    def properties(self, row: int = 0) -> bytes:
        """In their stored form."""
        start = self._start(row)
        located = self._located(row)
        size, properties_start = located[0], located[-1]
        return self._data[properties_start : start + size]

    def topic_and_properties(self, row: int = 0) -> tuple[str, bytes]:
        """Both in one go."""
        start, located = self._starts[row], self._first
        if located is None or row:
            located = locate(self._data, start)
        size, _, _, _, _, _, _, topic_start, properties_start = located
        topic = topic_text(self._data, topic_start, properties_start - 2)
        return topic, self._data[properties_start : start + size]

    def store_timestamp(self, row: int = 0) -> int:
        """When it was stored, in milliseconds since 1970."""
        return decode_store_timestamp(self._data, self._start(row))

    def unpack(self, row: int = 0) -> Record:
        """The record, all of it."""
        return decode(self._data, self._start(row))


def packed(*data: bytes) -> PackedRecords:
    """The records that these bytes are, each all of one; they were checked before."""
    return _packed(b"".join(data), [0, *accumulate(map(len, data[:-1]))])


def packed_again(record: Record) -> PackedRecords:
    """A record that was taken apart."""
    return packed(encode(record))


def _packed(data: bytes, starts: Sequence[int]) -> PackedRecords:
    bodies: list[bytes] = []
    queue_offsets: list[int] = []
    flags = 0
    for start in starts:
        _, _, _, queue_offset, sys_flag, body_start, body_size, _, _ = locate(data, start)
        bodies.append(data[body_start : body_start + body_size])
        queue_offsets.append(queue_offset)
        flags |= sys_flag
    return PackedRecords(data, starts, bodies, queue_offsets, has_compressed=bool(flags & COMPRESSED))


def pack_unchecked(data: bytes) -> tuple[PackedRecords, bool]:
    """The one record that ``data`` begins with, and whether its body fits its checksum.

    Raises :class:`RecordError` if it is incomplete, or its parts do not add up to its size.
    """
    located = size, crc, _, queue_offset, flags, body_start, body_size, _, _ = locate(data)
    body = data[body_start : body_start + body_size]
    is_sound = not body or crc32(body) & CRC_MASK == crc
    has_compressed = bool(flags & COMPRESSED)
    return PackedRecords(data[:size], (0,), [body], [queue_offset], located, has_compressed=has_compressed), is_sound


def sound_records(data: bytes, starts: Longs, sizes: Longs) -> PackedRecords:
    """The records at these places, ascending and not one in another, up to the first that is not sound.

    That is one that is not all there, whose parts do not add up to its size, or whose body does not fit its checksum.
    """
    is_whole = (sizes >= FIXED_BYTES) & (starts + sizes <= len(data))
    if not is_whole.all():
        count = int(is_whole.argmin())
        starts, sizes = starts[:count], sizes[:count]
    if len(starts) <= _MOST_FEW_RECORDS:
        return _few_sound_records(data, starts.tolist(), sizes.tolist())
    spans = RecordSpans.of_sizes(data, 0, starts, sizes)
    if not len(spans):
        return PackedRecords(data, (), [], [], has_compressed=False)
    heads = spans.read(spans.starts, _HEAD)
    bodies = spans.bodies()
    good = (heads["size"] == spans.sizes) & np.isin(heads["magic"], MESSAGE_MAGICS)
    good &= (heads["crc"] == body_crcs(bodies)) | (spans.body_sizes == 0)
    count = len(bodies) if good.all() else int(good.argmin())
    offsets: list[int] = heads["queue_offset"][:count].tolist()
    has_compressed = bool(np.bitwise_or.reduce(heads["sys_flag"]) & COMPRESSED)
    return PackedRecords(data, spans.starts[:count], bodies[:count], offsets, has_compressed=has_compressed)


def _few_sound_records(data: bytes, starts: list[int], sizes: list[int]) -> PackedRecords:
    bodies: list[bytes] = []
    queue_offsets: list[int] = []
    flags = 0
    for start, size in zip(starts, sizes, strict=True):
        try:
            record_size, crc, _, queue_offset, sys_flag, body_start, body_size, _, _ = locate(data, start)
        except RecordError:
            break
        body = data[body_start : body_start + body_size]
        if record_size != size or (body_size and crc32(body) & CRC_MASK != crc):
            break
        bodies.append(body)
        queue_offsets.append(queue_offset)
        flags |= sys_flag
    has_compressed = bool(flags & COMPRESSED)
    return PackedRecords(data, starts[: len(bodies)], bodies, queue_offsets, has_compressed=has_compressed)
