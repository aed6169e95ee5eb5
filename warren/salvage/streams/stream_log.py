"""A stream's directory as a log of chunks, up to where a restarting broker ends it.

::

    <node's data directory>/stream/<UId>/00000000000000000000.segment
                                        /00000000000000000000.index

*The end.* A broker looks for the last record of the last index whose chunk is in the segment with the right checksum,
and cuts both files off after it. Segments after it go; so do chunks that have no index record, whole or not. The
checksum covers the entries only: a chunk whose trailer is cut short counts.

*The beginning* is the first segment; retention deletes whole ones.

In between a broker's consumers stop at the first chunk that is damaged, or that does not begin at the offset at which
the one before it ends. Here the rest follows: from where the chunk ends according to its own header, or from the next
index record with a sound chunk. Segments without an index are read, too.
"""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from itertools import chain
from typing import Final, NamedTuple

import attrs
import numpy as np

from warren.salvage.queue_directory import UNREADABLE_FILE, Finding, Severity, damage_by, unreadable_file
from warren.salvage.read_only import ReadOnlyFileSystem, below, has_bytes_behind
from warren.salvage.streams.osiris_format import (
    CHUNK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    INDEX_SUFFIX,
    SEGMENT_HEADER,
    SEGMENT_SUFFIX,
    ChunkHeader,
    Index,
    file_name,
    file_offset,
    parse_chunk_header,
    read_index,
)
from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import File

DAMAGED_CHUNK: Final = "damaged chunk"
_ZEROS: Final = 8
"""Bytes: entries that end in as many zeros were not written completely, if nothing else is in the file after them."""


class Chunk(NamedTuple):
    """A chunk whose checksum is right."""

    header: ChunkHeader
    path: str
    position: int
    """In that file, in bytes."""
    data: bytes
    """Its entries."""


class BadChunk(NamedTuple):
    """What stands in place of a chunk."""

    header: ChunkHeader | None
    """``None`` if it is not a chunk's."""
    reason: str


@attrs.frozen(eq=False, repr=False)
class Segment:
    """A segment and its index."""

    path: str
    first_offset: int
    has_index: bool
    size: int
    end: int | None = None
    """Where a restarting broker cuts it off; ``None``: it does not."""

    @property
    def index_path(self) -> str:
        return self.path.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX

    @property
    def name(self) -> str:
        return posixpath.basename(self.path).removesuffix(SEGMENT_SUFFIX)


@attrs.frozen(eq=False, repr=False)
class StreamLog:
    """The segments of a stream."""

    files: ReadOnlyFileSystem
    path: str
    segments: list[Segment]
    """By offset, those alone that are read."""
    problems: list[Finding]
    """Of the directory, and of the log's end."""
    _indexes: dict[str, Index] = attrs.Factory(dict)
    """That of the last segment that needed one, by the segment's path."""

    @classmethod
    def open(cls, files: ReadOnlyFileSystem, path: str) -> StreamLog:
        """Look at a directory; raises :class:`StorageError` if it cannot be listed."""
        log = cls(files, path, [], [])
        names = files.list(path)
        segments = {offset for name in names if (offset := file_offset(name, SEGMENT_SUFFIX)) is not None}
        indexes = {offset for name in names if (offset := file_offset(name, INDEX_SUFFIX)) is not None}
        log._strange_names(names, segments, indexes)
        for offset in sorted(segments):
            if (segment := log._segment(offset, has_index=offset in indexes)) is not None:
                log.segments.append(segment)
        log._find_end()
        return log

    # ── chunks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def chunks(self, number: int) -> Iterator[Chunk | Finding]:
        """The sound chunks of a segment, in order, and all damage between them."""
        segment = self.segments[number]
        try:
            with closing(self.files.open_read(segment.path)) as file:
                if segment.size and file.pread(FILE_HEADER_BYTES, 0) != SEGMENT_HEADER:
                    yield Finding("damaged header", "damage", segment.path, 0, "the file does not begin as a segment")
                offset = yield from self._chunks_in(file, segment)
        except StorageError as error:
            yield unreadable_file(segment.path, error)
            return
        if number + 1 < len(self.segments) and offset < self.segments[number + 1].first_offset:
            detail = f"offsets {offset:,} to {self.segments[number + 1].first_offset - 1:,} are missing"
            yield Finding("missing segment", "damage", self._file(offset, SEGMENT_SUFFIX), None, detail)

    def _chunks_in(self, file: File, segment: Segment) -> Generator[Chunk | Finding, None, int]:
        """Returns the offset after the last chunk."""
        position, offset = FILE_HEADER_BYTES, segment.first_offset
        end = segment.size if segment.end is None else segment.end
        while position < end:
            chunk = chunk_at(file, segment.path, position)
            if isinstance(chunk, BadChunk):
                next_chunk = self._next_chunk(file, segment, position, chunk)
                following = None if next_chunk is None else next_chunk.header.offset
                yield Finding(DAMAGED_CHUNK, "damage", segment.path, position, _lost(chunk.reason, offset, following))
                if next_chunk is None:
                    return offset if chunk.header is None else chunk.header.next_offset
                position, offset, chunk = next_chunk.position, next_chunk.header.offset, next_chunk
            header = chunk.header
            if header.offset != offset:
                detail = f"the chunk begins at offset {header.offset:,}, the one before it ends at {offset:,}"
                yield Finding("wrong offset", "damage", segment.path, position, detail)
                if (indexed := indexed_offset(self._index(segment), position)) is not None:
                    header = header._replace(offset=indexed)
            yield chunk._replace(header=header)
            position, offset = position + header.size, header.next_offset
        return offset

    def _next_chunk(self, file: File, segment: Segment, position: int, bad: BadChunk) -> Chunk | None:
        """The next sound chunk after a damaged one; ``None`` if nothing says where one begins."""
        end, index = segment.size if segment.end is None else segment.end, self._index(segment)["position"]
        of_header = [] if bad.header is None else [position + bad.header.size]
        after = index if len(index) and bool((index[1:] >= index[:-1]).all()) else np.sort(index)
        for candidate in chain(of_header, map(int, after[np.searchsorted(after, position, "right") :])):
            if candidate < end:
                chunk = chunk_at(file, segment.path, candidate)
                if isinstance(chunk, Chunk) and chunk.header.offset >= segment.first_offset:
                    return chunk
        return None

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _find_end(self) -> None:
        """Find the last chunk that the index has; what comes after it is cut off."""
        indexed = [number for number, segment in enumerate(self.segments) if segment.has_index]
        while indexed:
            number = indexed.pop()
            segment = self.segments[number]
            has_chunks = segment.size > CHUNK_HEADER_BYTES or not indexed
            try:
                index = read_index(self.files.read(segment.index_path))
            except (DataError, StorageError) as error:
                self.problems.append(damage_by(error, UNREADABLE_FILE, segment.index_path))
                continue
            try:
                end = self._indexed_end(segment, index) if has_chunks else None
                self._cut(number, FILE_HEADER_BYTES if end is None else end)
            except StorageError:  # the reader of the segment reports it
                return
            if end is not None:
                return

    def _indexed_end(self, segment: Segment, index: Index) -> int | None:
        """Where the last chunk ends that the index has and that is sound."""
        with closing(self.files.open_read(segment.path)) as file:
            for record in index[::-1]:
                position = int(record["position"])
                if position >= FILE_HEADER_BYTES:
                    chunk = chunk_at(file, segment.path, position)
                    if isinstance(chunk, Chunk):
                        return position + chunk.header.size
        return None

    def unindexed(self, segment: Segment) -> Iterator[Chunk]:
        """The sound chunks after the end of a segment, which have no index record."""
        if segment.end is None or segment.size <= segment.end:
            return
        with closing(self.files.open_read(segment.path)) as file:
            position = segment.end
            while isinstance(chunk := chunk_at(file, segment.path, position), Chunk):
                yield chunk
                position += chunk.header.size

    def _cut(self, number: int, end: int) -> None:
        """Cut a segment off, and say what is cut off."""
        segment = self.segments[number] = attrs.evolve(self.segments[number], end=end)
        position, count = end, 0
        for chunk in self.unindexed(segment):
            position, count = position + chunk.header.size, count + 1
        if count:
            detail = f"none for {count:,} whole chunks from {end:,} on in the segment; a broker drops them"
            self._add("missing index records", "damage", segment.index_path, None, detail)
        if position < segment.size:
            self._rest(segment, position)

    def _rest(self, segment: Segment, position: int) -> None:
        """Report the bytes after the last whole chunk."""
        size, written = segment.size, segment.size
        with closing(self.files.open_read(segment.path)) as file:
            chunk = chunk_at(file, segment.path, position)
            if isinstance(chunk, BadChunk) and chunk.header is not None:
                written = position + chunk.header.data_start + chunk.header.data_bytes
            is_zeros = not has_bytes_behind(file, max(min(written, size) - _ZEROS, 0))
        reason = chunk.reason if isinstance(chunk, BadChunk) else "a chunk"
        detail = f"{size - position:,} bytes after the last chunk: {reason}"
        if is_zeros:
            self._add("leftover zeros", "leftover", segment.path, position, detail)
        elif written <= size and size - position >= CHUNK_HEADER_BYTES:
            self._add(DAMAGED_CHUNK, "damage", segment.path, position, f"{detail}; a broker drops them")
        else:
            self._add("leftover of a write", "leftover", segment.path, position, detail)

    # ── the directory ────────────────────────────────────────────────────────────────────────────────────────────────

    def _segment(self, offset: int, *, has_index: bool) -> Segment | None:
        path = self._file(offset, SEGMENT_SUFFIX)
        if not has_index:
            detail = "the segment is read without it"
            self._add("missing index", "damage", self._file(offset, INDEX_SUFFIX), None, detail)
        try:
            return Segment(path, offset, has_index, self.files.size(path))
        except StorageError as error:
            self.problems.append(unreadable_file(path, error))
            return None

    def _index(self, segment: Segment) -> Index:
        """The records of a segment's index; empty if it cannot be read."""
        if segment.path not in self._indexes:
            self._indexes.clear()  # one is enough
            data = b""
            if segment.has_index:
                with suppress(DataError, StorageError):
                    data = self.files.read(segment.index_path)
            self._indexes[segment.path] = read_index(data)
        return self._indexes[segment.path]

    def _strange_names(self, names: list[str], segments: set[int], indexes: set[int]) -> None:
        for offset in sorted(indexes - segments):
            path = self._file(offset, INDEX_SUFFIX)
            if (segments and offset < max(segments)) or self.files.size(path) > FILE_HEADER_BYTES:
                detail = "its index is there, the segment is not"
                self._add("missing segment", "damage", self._file(offset, SEGMENT_SUFFIX), None, detail)
            else:
                self._add("leftover index", "leftover", path, None, "a segment was about to be made")
        for name in names:
            if file_offset(name, SEGMENT_SUFFIX) is None and file_offset(name, INDEX_SUFFIX) is None:
                self._add(
                    "leftover file", "leftover", below(self.path, name), None, "no stream has a file of that name"
                )

    def _file(self, offset: int, suffix: str) -> str:
        return below(self.path, file_name(offset, suffix))

    def _add(self, kind: str, severity: Severity, path: str, offset: int | None, detail: str) -> None:
        self.problems.append(Finding(kind, severity, path, offset, detail))


def chunk_at(file: File, path: str, position: int) -> Chunk | BadChunk:
    """The chunk at ``position`` of a segment's file, or the reason why it cannot be read."""
    header = parse_chunk_header(file.pread(CHUNK_HEADER_BYTES, position))
    if header is None:
        return BadChunk(None, "no header of a chunk")
    start = position + header.data_start
    if start + header.data_bytes > file.size():
        return BadChunk(header, "a chunk that is cut short")
    data = file.pread(header.data_bytes, start)
    if zlib.crc32(data) != header.crc32:
        return BadChunk(header, f"the checksum of the chunk is not {header.crc32:08x}")
    return Chunk(header, path, position, data)


def indexed_offset(index: Index, position: int) -> int | None:
    """The offset of the chunk at ``position``, according to the index."""
    records = index[index["position"] == position]
    return int(records["offset"][0]) if len(records) else None


def _lost(reason: str, offset: int, following: int | None) -> str:
    if following is None:
        return f"{reason}; all from offset {offset:,} on in this segment is lost"
    return f"{reason}; offsets {offset:,} to {following - 1:,} are lost" if offset < following else reason
