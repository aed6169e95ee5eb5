"""The bytes of an archive, decompressed as they are read. Its first bytes tell its kind.

A read returns about as many bytes as were asked for, and no decompressor takes more memory than :data:`MEMORY_BYTES`,
whatever the archive claims. A stream that ends early is an :class:`EOFError`, as :mod:`gzip` has it.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import IO, Final, Protocol

from warren.storage.errors import DataError

MEMORY_BYTES: Final = 256 << 20
_READ_BYTES: Final = 64 << 10
_ZSTD_READ_BYTES: Final = 1 << 10
"""Its decompressor cannot be told how much may come out: four bytes may be 128 KiB."""

HEAD_BYTES: Final = 6
ZIP: Final = "zip"
_KINDS: Final = {
    b"\x1f\x8b": "tar.gz",
    b"BZh": "tar.bz2",
    b"\xfd7zXZ\0": "tar.xz",
    b"\x28\xb5\x2f\xfd": "tar.zst",
    b"PK\3\4": ZIP,
    b"PK\5\6": ZIP,
}
BROKEN: Final = (EOFError, zlib.error, lzma.LZMAError)
"""What is raised for invalid bytes; and :class:`OSError` without an errno."""


class Readable(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes: ...


class Decompressor(Protocol):
    """What turns one compressed stream into its bytes, a part at a time."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def kind_of(head: bytes) -> str | None:
    """The kind of the archive that begins with ``head``; ``None`` if it is not compressed."""
    return next((kind for magic, kind in _KINDS.items() if head.startswith(magic)), None)


class Peeked:
    """A stream whose first bytes were looked at."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.head = b""
        while len(self.head) < HEAD_BYTES and (more := source.read(HEAD_BYTES - len(self.head))):
            self.head += more
        self._left = self.head
        self.count = 0
        """Bytes that were read."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""
        data, self._left = self._left[:size], self._left[size:]
        if not data:
            data = self._source.read(size)
        self.count += len(data)
        return data


def plain_of(source: Readable, kind: str | None, path: str) -> Readable:
    """The bytes of an archive of that kind; raises :class:`DataError` if a package that reads it is missing."""
    match kind:
        case "tar.gz":
            return _Plain(source, _Gzip, _READ_BYTES)
        case "tar.bz2":
            return _Plain(source, bz2.BZ2Decompressor, _READ_BYTES)
        case "tar.xz":
            return _Plain(source, lambda: lzma.LZMADecompressor(memlimit=MEMORY_BYTES), _READ_BYTES)
        case "tar.zst":
            return _Plain(source, _zstd(path), _ZSTD_READ_BYTES)
        case _:
            return source


class _Gzip:
    """zlib's decompressor with the attributes of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail


class _Plain:
    """The content of compressed streams that follow each other. Zeros after the last one are padding."""

    def __init__(self, source: Readable, new: Callable[[], Decompressor], read_bytes: int) -> None:
        self._source, self._new, self._read_bytes = source, new, read_bytes
        self._inner = new()
        self._compressed = b""
        self._pending = b""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""
        while not self._pending:
            if not self._more(size):
                return b""
        data, self._pending = self._pending[:size], self._pending[size:]
        return data

    def _more(self, size: int) -> bool:
        """Decompress some; whether there is anything left."""
        inner = self._inner
        if inner.eof:
            rest = (inner.unused_data or self._compressed).lstrip(b"\0")
            while not rest:
                if not (data := self._source.read(self._read_bytes)):
                    return False
                rest = data.lstrip(b"\0")
            self._inner, self._compressed = self._new(), rest
            inner = self._inner
        data = self._compressed
        if not data and getattr(inner, "needs_input", True):
            data = self._source.read(self._read_bytes)
            if not data:
                raise EOFError("unexpected end of data")
        self._compressed = b""
        self._pending = inner.decompress(data, size)
        return True


def _zstd(path: str) -> Callable[[], Decompressor]:
    """A function that makes a decompressor of the package zstandard."""
    try:
        import zstandard
    except ImportError:
        reason = 'a .tar.zst, which needs the package zstandard: pip install "warrenmq[zstd]"'
        raise DataError(path, None, reason) from None

    class Zstd:
        """zstandard's with the attributes of the others."""

        def __init__(self) -> None:
            self._inner = zstandard.ZstdDecompressor(max_window_size=MEMORY_BYTES).decompressobj()

        @property
        def eof(self) -> bool:
            return bool(self._inner.eof)

        @property
        def unused_data(self) -> bytes:
            return bytes(self._inner.unused_data)

        def decompress(self, data: bytes, max_length: int) -> bytes:
            try:
                return bytes(self._inner.decompress(data))
            except zstandard.ZstdError as error:
                raise zlib.error(str(error)) from None

    return Zstd
