"""Decompresses what others have compressed, up to a bound: a few bytes can stand for very many.

Gzip and zlib need nothing. LZ4, in its frames, and zstd need pyarrow.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, Literal

from warren.storage.errors import MessageError

Compression = Literal["gzip", "lz4", "zlib", "zstd"]

_WINDOW_BITS: Final = {"zlib": 15, "gzip": 31}
"""The headers that zlib reads, by its numbers for them with the largest window."""

_READ_BYTES: Final = 1 << 18


def decompressed(data: bytes, compression: Compression, most_bytes: int) -> bytes:
    """Return what was compressed. Raises :class:`MessageError` if it ends early, is of another compression, or has more
    than ``most_bytes``."""
    arrow = None if compression in _WINDOW_BITS else load_pyarrow(compression)
    try:
        if arrow is None:
            content = _inflated(data, _WINDOW_BITS[compression], most_bytes)
        else:
            content = _read(arrow.CompressedInputStream(arrow.BufferReader(data), compression), most_bytes)
    except (OSError, ValueError, zlib.error) as error:
        raise MessageError(f"no {compression}: {error}") from error
    if len(content) > most_bytes:
        raise MessageError(f"{compression} of more than {most_bytes:,} bytes")
    return content


def _inflated(data: bytes, window_bits: int, most_bytes: int) -> bytes:
    inflater = zlib.decompressobj(window_bits)
    content = inflater.decompress(data, most_bytes + 1)
    if not inflater.eof and len(content) <= most_bytes:
        raise zlib.error("it ends early")
    return content


def _read(stream: Any, most_bytes: int) -> bytes:
    """Read up to one byte more than that: a part at a time, because pyarrow sets the memory for a whole read aside."""
    parts: list[bytes] = []
    remaining = most_bytes + 1
    while remaining and (part := stream.read(min(remaining, _READ_BYTES))):
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)


def load_pyarrow(compression: str) -> Any:
    """Return pyarrow, which this compression needs. Raises :class:`MessageError` if it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise MessageError(f"{compression}, which needs pyarrow: install warrenmq[parquet]") from error
    return pyarrow
