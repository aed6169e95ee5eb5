"""A file's bytes in memory; bytes written long ago are kept compressed.

A content is *blocks*, followed by what was *written since*. As soon as that is as large as a block
(:data:`BLOCK_BYTES`), it becomes one; a large write is a block of its own, however large it is. A :class:`PlainBlocks`,
shared by the contents of a file system, keeps the latest blocks plain, up to a limit in bytes, and compresses the
oldest. So a journal that is written and cut off again and again costs no compression, and a backlog takes little
memory. A block that is read again is plain again, as the latest.

Invariants (:meth:`PackedContent.check_invariants`): blocks follow one another without gaps; each is plain, or packed,
or (read again since it was packed) both.
"""

from __future__ import annotations

import bisect
import weakref
from collections import deque
from typing import Final

from zlib_ng import zlib_ng

BLOCK_BYTES: Final = 64 << 10
PLAIN_BYTES: Final = 64 << 20
"""The number of bytes of blocks that stay plain."""
_LEVEL: Final = 1


class Block:
    """Bytes that were written and are never changed."""

    __slots__ = ("__weakref__", "packed", "plain", "size")

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self.plain: bytes | None = data
        self.packed: bytes | None = None

    def pack(self) -> None:
        """Keep the bytes compressed alone."""
        if self.plain is not None:
            if self.packed is None:
                self.packed = zlib_ng.compress(self.plain, _LEVEL)
            self.plain = None

    def unpack(self) -> bytes:
        """Keep the uncompressed bytes, too."""
        if self.packed is None:
            raise RuntimeError("a block that is neither plain nor packed")
        self.plain = zlib_ng.decompress(self.packed)
        return self.plain


class PlainBlocks:
    """The plain blocks, in the order in which they became so; unreferenced blocks are not kept."""

    __slots__ = ("_limit_bytes", "_line", "plain_bytes")

    def __init__(self, limit_bytes: int = PLAIN_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._line: deque[tuple[weakref.ref[Block], int]] = deque()
        self.plain_bytes = 0
        """What the line's blocks were when they joined it."""

    def enter(self, block: Block) -> None:
        """A block is plain from now on; the oldest ones are packed."""
        self._line.append((weakref.ref(block), block.size))
        self.plain_bytes += block.size
        while self.plain_bytes > self._limit_bytes:
            reference, size = self._line.popleft()
            self.plain_bytes -= size
            oldest = reference()
            if oldest is not None:
                oldest.pack()


class PackedContent:
    """The bytes of one file."""

    __slots__ = ("_blocks", "_fresh", "_fresh_at", "_plain", "_starts", "size")

    def __init__(self, plain: PlainBlocks) -> None:
        self._plain = plain
        self._starts: list[int] = []
        self._blocks: list[Block] = []
        self._fresh: list[bytes] = []
        self._fresh_at = 0
        self.size = 0

    def append(self, data: bytes) -> None:
        """Write at the end."""
        if not data:
            return
        self._fresh.append(data)
        self.size += len(data)
        if self.size - self._fresh_at >= BLOCK_BYTES:
            self._seal()

    def _seal(self) -> None:
        block = Block(self._written_since())
        self._starts.append(self._fresh_at)
        self._blocks.append(block)
        self._fresh = []
        self._fresh_at = self.size
        self._plain.enter(block)

    def _written_since(self) -> bytes:
        if len(self._fresh) > 1:
            self._fresh = [b"".join(self._fresh)]
        return self._fresh[0] if self._fresh else b""

    def _bytes_of(self, block: Block) -> bytes:
        if block.plain is not None:
            return block.plain
        data = block.unpack()
        self._plain.enter(block)
        return data

    def read(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer only at the end."""
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        if offset >= self._fresh_at:
            return self._written_since()[offset - self._fresh_at : end - self._fresh_at]
        parts: list[bytes] = []
        for index in range(bisect.bisect_right(self._starts, offset) - 1, len(self._blocks)):
            start = self._starts[index]
            if start >= end:
                break
            parts.append(self._bytes_of(self._blocks[index])[max(offset - start, 0) : end - start])
        if end > self._fresh_at:
            parts.append(self._written_since()[: end - self._fresh_at])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, data: bytes, offset: int) -> None:
        """Write at a position; a gap before it becomes zeros."""
        if offset == self.size:
            self.append(data)
        elif data:
            behind = self.read(self.size, offset + len(data))
            self.truncate(offset)
            self.append(data)
            self.append(behind)

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""
        if size >= self.size:
            self.append(bytes(size - self.size))
            return
        retained = bisect.bisect_right(self._starts, size) - 1 if size < self._fresh_at else len(self._blocks)
        start = self._fresh_at if retained == len(self._blocks) else self._starts[retained]
        rest = self.read(size - start, start)
        del self._starts[retained:], self._blocks[retained:]
        self._fresh, self._fresh_at, self.size = [], start, start
        self.append(rest)

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory that it takes, the packed ones as packed."""
        blocks = sum(len(block.plain or b"") + len(block.packed or b"") for block in self._blocks)
        return blocks + self.size - self._fresh_at

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the content contradicts itself."""
        at = 0
        for start, block in zip(self._starts, self._blocks, strict=True):
            if start != at or not block.size:
                raise RuntimeError(f"a block of {block.size} bytes at {start}, after one that ends at {at}")
            if block.plain is None and block.packed is None:
                raise RuntimeError(f"the block at {start} has no content")
            at += block.size
        if at != self._fresh_at or self.size != at + sum(map(len, self._fresh)):
            raise RuntimeError(f"{self.size} bytes counted, blocks end at {at}, {self._fresh_at} counted")
