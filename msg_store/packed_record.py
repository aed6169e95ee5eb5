"""A record as its bytes, checked and not taken apart: what a reader needs of most messages is their bodies.

Few readers look at hosts, flags and times. So here is only where the parts lie; :meth:`PackedRecord.unpack` gives the
record itself.
"""

from __future__ import annotations

from zlib_ng.zlib_ng import crc32

from warren.msg_store.commit_log_format import CRC_MASK, Located, Record, RecordError, decode, locate


class PackedRecord:
    """One sound record. Made by :func:`pack`."""

    __slots__ = ("_data", "_located")

    def __init__(self, data: bytes, located: Located) -> None:
        self._data = data
        self._located = located

    @property
    def data(self) -> bytes:
        """All of it."""
        return self._data

    @property
    def queue_id(self) -> int:
        return self._located[2]

    @property
    def queue_offset(self) -> int:
        return self._located[3]

    @property
    def body(self) -> bytes:
        _, _, _, _, _, start, size, _ = self._located
        return self._data[start : start + size]

    @property
    def properties(self) -> bytes:
        """In their stored form."""
        return self._data[self._located[-1] :]

    def unpack(self) -> Record:
        """The record, all of it."""
        return decode(self._data)


def packed(data: bytes) -> PackedRecord:
    """The record that these bytes are; they were checked before."""
    return PackedRecord(data, locate(data))


def pack(data: memoryview, position: int, size: int) -> PackedRecord:
    """The record of ``size`` bytes that begins at ``position``.

    Raises :class:`RecordError` where it is not all there, its parts do not add up to the size, or the body does not fit
    its checksum.
    """
    record = bytes(data[position : position + size])
    located = locate(record)
    found, crc, _, _, _, body_start, body_size, _ = located
    if found != size:
        raise RecordError(f"its size is {found}, and not {size}")
    if body_size and crc32(record[body_start : body_start + body_size]) & CRC_MASK != crc:
        raise RecordError("the body does not fit its checksum")
    return PackedRecord(record, located)
