"""A typed store file, ``<n>.sqs``: a header and typed records, as RabbitMQ's branch ``msg-store-v2`` writes them.

    "RSQS" · version u8 = 2 · zeros                            64 bytes, which no broker checks
    type u8 = 3 · size u32 · msg_id 16 bytes · message         a message (big-endian; size counts the whole record)
    type u8 = 2 · size u32 · zeros                             a hole of 5 bytes or more
    type u8 = 1                                                a byte of a smaller hole: at most four in a row

Compaction moves messages from the file's end into holes, and leaves a hole where a message was smaller. So a message
follows each hole, unless the file ends there. If the broker crashed meanwhile, a message may stand twice.

A record that runs past the end of the file was not written whole. Anything else that is not in this table is damage. A
broker cuts the file there, and the walk stops, because nothing shows where the next record begins.
"""

from __future__ import annotations

from collections.abc import Generator
from struct import Struct
from typing import Final

from warren.msg_store.rdq import rdq_format
from warren.msg_store.rdq.rdq_format import MSG_ID_BYTES, TYPED_SUFFIX, EndReason, Record, ScanEnd
from warren.storage.errors import DataError
from warren.storage.filesystem import File

FILE_HEADER: Final = b"RSQS\2".ljust(64, b"\0")
HEADER: Final = Struct(f">BI{MSG_ID_BYTES}s")
"""type, size, msg_id"""

_HOLE_BYTE, _HOLE, _MESSAGE = 1, 2, 3
_HOLE_HEADER: Final = Struct(">BI")
_LEAST_BYTES: Final = {_HOLE_BYTE: 1, _HOLE: _HOLE_HEADER.size, _MESSAGE: HEADER.size}

_LONG_BYTES: Final = 1024
"""After a record of this size, only the next one's header is read if no messages are asked for."""
_MOST_PASSED: Final = 8192
"""Records that are collected, without their messages, before they are yielded."""


def encode_record(msg_id: bytes, message: bytes) -> bytes:
    """The record that stores ``message`` under ``msg_id`` (16 bytes)."""
    return HEADER.pack(_MESSAGE, HEADER.size + len(message), msg_id) + message


def encode_hole(size: int) -> bytes:
    """A hole of ``size`` bytes."""
    if size < _HOLE_HEADER.size:
        return bytes([_HOLE_BYTE]) * size
    return _HOLE_HEADER.pack(_HOLE, size).ljust(size, b"\0")


def decode_stored(record: bytes, msg_id: bytes, path: str, offset: int, size: int) -> bytes:
    """The message in a record of a store file of either format: :func:`.rdq_format.decode_record` for both."""
    if not path.endswith(TYPED_SUFFIX):
        return rdq_format.decode_record(record, msg_id, path, offset, size)
    if record[: HEADER.size] != HEADER.pack(_MESSAGE, size, msg_id) or len(record) < size:
        raise DataError(path, offset, f"not a record of {size} bytes with message {msg_id.hex()}")
    return record[HEADER.size :]


def walk(
    file: File, window_bytes: int, most_bytes: int, *, with_messages: bool
) -> Generator[tuple[list[Record], bytes, int], None, ScanEnd]:
    """Yield the messages' records in batches; return where and why the walk stopped.

    A batch has the bytes of the file that hold its records, and the offset of the first of these bytes. They are empty
    if messages are not asked for, or if a record that is longer than ``window_bytes`` makes them more than
    ``most_bytes``.
    """
    file_size, at = file.size(), len(FILE_HEADER)
    if file_size < at:
        return ScanEnd(0, EndReason.SHORT_HEADER if file_size else EndReason.CLEAN, file_size)
    batch: list[Record] = []
    reason, is_after_hole, is_long = None, False, not with_messages
    while at < file_size and reason is None:
        base, count = at, len(batch)
        data = file.pread(min(HEADER.size if is_long else max(window_bytes, HEADER.size), file_size - at), at)
        limit = base + len(data)
        while at < file_size:
            head = data[at - base : at - base + HEADER.size]
            if len(head) < HEADER.size and at + len(head) < file_size:
                break
            size = _size(head, file_size - at, is_after_hole=is_after_hole)
            if isinstance(size, EndReason):
                reason = size
                break
            is_after_hole = head[0] != _MESSAGE
            if not is_after_hole:
                if with_messages and batch and at + size > limit:
                    break
                batch.append(Record(at, size, head[-MSG_ID_BYTES:], True))
            at += size
        is_long = not with_messages and at - base >= _LONG_BYTES * max(len(batch) - count, 1)
        if at == base and reason is None:  # the file was cut under the walk
            reason = EndReason.PAST_END
        if batch and (with_messages or len(batch) >= _MOST_PASSED):
            yield batch, _through(file, data, base, batch[-1], most_bytes) if with_messages else b"", base
            batch = []
    if batch:
        yield batch, b"", batch[0].offset
    return ScanEnd(at, reason or EndReason.CLEAN, file_size)


def _size(head: bytes, room: int, *, is_after_hole: bool) -> int | EndReason:
    """The size of the record that begins with ``head``, or of a run of holes of one byte."""
    kind = head[0]
    if kind not in _LEAST_BYTES:
        return EndReason.NO_TYPE
    if is_after_hole and kind != _MESSAGE:
        return EndReason.TWO_HOLES
    if kind == _HOLE_BYTE:
        size = len(head) - len(head.lstrip(head[:1]))
        return size if size < _HOLE_HEADER.size else EndReason.LONG_RUN
    if len(head) < _HOLE_HEADER.size:
        return EndReason.PAST_END
    size = _HOLE_HEADER.unpack_from(head)[1]
    if size < _LEAST_BYTES[kind]:
        return EndReason.TOO_SMALL
    return size if size <= room else EndReason.PAST_END


def _through(file: File, data: bytes, base: int, last: Record, most_bytes: int) -> bytes:
    """``data``, which begins at ``base``, extended to the end of the last record; empty if that is too much."""
    size = last.offset + last.size - base
    if len(data) < size <= most_bytes:
        data += file.pread(size - len(data), base + len(data))
    return data if len(data) >= size else b""
