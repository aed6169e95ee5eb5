"""A record as its bytes, checked and not taken apart: what a reader needs of most messages is their bodies.

Taking a record apart costs several times what finding out that it is sound costs, and few readers look at hosts, flags
and times. So here is only where the parts lie; :meth:`PackedRecord.unpack` gives the record itself.
"""

from __future__ import annotations

import struct
from typing import Final

from zlib_ng.zlib_ng import crc32

from msg_store.commit_log_format import (
    BORN_HOST_V6,
    MESSAGE_MAGIC,
    STORE_HOST_V6,
    Record,
    RecordError,
    decode,
    header_bytes,
)

_OUTLINE = struct.Struct(">iIIiiqqi")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_BYTE = struct.Struct(">b")

_HOST_FLAGS: Final = BORN_HOST_V6 | STORE_HOST_V6
_BODY_AT: Final = {
    flags: header_bytes(flags) for flags in (0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6)
}
_CRC_MASK: Final = 0x7FFFFFFF


class PackedRecord:
    """One sound record. Made by :func:`pack`."""

    __slots__ = ("_body_at", "_body_end", "_data", "_topic_end", "queue_id", "queue_offset")

    def __init__(  # noqa: PLR0917 - one for every message that is read
        self, data: bytes, queue_id: int, queue_offset: int, body_at: int, body_end: int, topic_end: int
    ) -> None:
        self._data = data
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self._body_at = body_at
        self._body_end = body_end
        self._topic_end = topic_end

    @property
    def body(self) -> bytes:
        return self._data[self._body_at : self._body_end]

    @property
    def properties(self) -> bytes:
        """In their stored form."""
        return self._data[self._topic_end + 2 :]

    def unpack(self) -> Record:
        """The record, all of it."""
        return decode(self._data)


def pack(data: memoryview, position: int, size: int) -> PackedRecord:
    """The record of ``size`` bytes that begins at ``position``.

    Raises :class:`RecordError` where it is not all there, its parts do not add up to the size, or the body does not fit
    its checksum.
    """
    try:
        found_size, magic, crc, queue_id, _, queue_offset, _, sys_flag = _OUTLINE.unpack_from(data, position)
        body_at = _BODY_AT[sys_flag & _HOST_FLAGS]
        (body_size,) = _INT.unpack_from(data, position + body_at - 4)
        body_end = body_at + body_size if body_size > 0 else body_at
        (topic_size,) = _BYTE.unpack_from(data, position + body_end)
        topic_end = body_end + 1 + topic_size
        (properties_size,) = _SHORT.unpack_from(data, position + topic_end)
    except struct.error:
        raise RecordError("its fields do not fit into the file") from None
    stop = topic_end + 2 + (properties_size if properties_size > 0 else 0)
    record = bytes(data[position : position + size])
    if found_size != size or magic != MESSAGE_MAGIC or topic_size < 0 or stop != size or len(record) != size:
        raise RecordError("its parts do not add up")
    if body_size > 0 and crc32(record[body_at:body_end]) & _CRC_MASK != crc:
        raise RecordError("the body does not fit its checksum")
    return PackedRecord(record, queue_id, queue_offset, body_at, body_end, topic_end)
