"""The messages of a chunk, those of sub-batches too.

A broker does not look into a compressed sub-batch: clients of the stream protocol compress and decompress, and a
consumer over AMQP 0-9-1 fails at one. Here its messages are read. Gzip needs nothing; the others need pyarrow.

Snappy comes in frames, as its clients write it::

    chunk    u8 type · u24 bytes (little-endian) · bytes
             0x00 masked CRC-32C · compressed     0x01 masked CRC-32C · as they are     0x80 … 0xFF to be skipped
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from warren.msg_store.compression import decompressed, load_pyarrow
from warren.salvage.streams.osiris_format import SubBatch, parse_entries
from warren.storage.errors import MessageError

_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_MOST_BYTES: Final = 256 << 20
"""Of a sub-batch without compression: a damaged number would fill the memory."""
_SNAPPY_COMPRESSED, _SNAPPY_PLAIN, _SNAPPY_SKIPPED = 0x00, 0x01, 0x80
_SNAPPY_CHECKSUM_BYTES: Final = 4
_SNAPPY_MOST_BYTES: Final = 1 << 16
"""Of a frame."""


def records_in(data: bytes) -> Iterator[tuple[int, bytes | MessageError]]:
    """The records of a chunk's entries, each with its number; of a sub-batch that cannot be read, the reason.

    Raises :class:`MessageError` at an invalid entry.
    """
    number = 0
    for entry in parse_entries(data):
        if isinstance(entry, bytes):
            yield number, entry
            number += 1
            continue
        try:
            for position, record in enumerate(_plain_entries(entry)):
                yield number + position, record
        except MessageError as error:
            yield number, error
        number += entry.record_count


def _plain_entries(batch: SubBatch) -> Iterator[bytes]:
    for entry in parse_entries(_inflated(batch) if batch.compression else batch.data):
        if not isinstance(entry, bytes):
            raise MessageError("a sub-batch in a sub-batch")
        yield entry


def _inflated(batch: SubBatch) -> bytes:
    """The entries of a compressed sub-batch; raises :class:`MessageError`."""
    size = batch.uncompressed_bytes
    name = _NAMES[batch.compression] if batch.compression < len(_NAMES) else str(batch.compression)
    if size > _MOST_BYTES:
        raise MessageError(f"a sub-batch of {size:,} bytes without compression")
    match name:
        case "gzip" | "lz4" | "zstd":
            data = decompressed(batch.data, name, size)
        case "snappy":
            data = _snappy(batch.data)
        case _:
            raise MessageError(f"a sub-batch with the unknown compression {name}")
    if len(data) != size:
        raise MessageError(f"a sub-batch whose {name} does not have {size:,} bytes")
    return data


def _snappy(data: bytes) -> bytes:
    arrow = load_pyarrow("snappy")
    try:
        return b"".join(_snappy_frames(data, arrow))
    except (OSError, ValueError) as error:
        raise MessageError(f"no snappy: {error}") from error


def _snappy_frames(data: bytes, arrow: Any) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        kind, length = data[position], int.from_bytes(data[position + 1 : position + 4], "little")
        content = data[position + 4 : position + 4 + length]
        position += 4 + length
        if position > len(data):
            raise ValueError("a frame that is cut short")
        if kind == _SNAPPY_PLAIN:
            yield content[_SNAPPY_CHECKSUM_BYTES:]
        elif kind == _SNAPPY_COMPRESSED:
            block = content[_SNAPPY_CHECKSUM_BYTES:]
            yield bytes(arrow.decompress(block, _snappy_size(block), codec="snappy"))
        elif kind < _SNAPPY_SKIPPED:
            raise ValueError(f"a frame of the unknown type {kind:#04x}")


def _snappy_size(block: bytes) -> int:
    """The size without compression, which a block of snappy begins with: seven bits a byte, the last ones first."""
    size = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(block[:3]) if _goes_on(block, place))
    if size > _SNAPPY_MOST_BYTES:
        raise ValueError(f"a block of {size:,} bytes")
    return size


def _goes_on(block: bytes, place: int) -> bool:
    """Whether all bytes before ``place`` have the bit that says that one more follows."""
    return all(byte & 0x80 for byte in block[:place])
