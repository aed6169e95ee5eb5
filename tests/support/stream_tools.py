"""Streams that tests write: chunks, segments and indexes, by the description of Osiris's format alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import attrs

from warren.salvage.queue_directory import Finding, StoredMessage
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.salvage.streams.stream_directory import StreamDirectory
from warren.storage.filesystem import RealFileSystem

TIME_MS = 1_700_000_000_000
TRACKING = 1

# AMQP 1.0


def text(value: bytes) -> bytes:
    return b"\xb1" + struct.pack(">I", len(value)) + value


def symbol(value: bytes) -> bytes:
    return b"\xa3" + bytes([len(value)]) + value


def compound(constructor: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return bytes([constructor]) + struct.pack(">II", len(content) + 4, len(parts)) + content


def section(code: int, *parts: bytes) -> bytes:
    """A section that is a list or a map."""
    return bytes([0, 0x53, code]) + compound(0xD0 if code == 0x73 else 0xD1, *parts)


def data(body: bytes) -> bytes:
    return b"\0Su\xb0" + struct.pack(">I", len(body)) + body


def record(body: bytes, key: bytes = b"s", exchange: bytes = b"") -> bytes:
    """A message as a broker writes it."""
    annotations = (symbol(b"x-routing-key"), text(key), symbol(b"x-exchange"), text(exchange))
    return section(0x72, *annotations) + data(body)


# chunks


def entry(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def sub_batch(compression: int, records: Sequence[bytes], compressed: bytes | None = None) -> bytes:
    plain = b"".join(map(entry, records))
    content = plain if compressed is None else compressed
    return struct.pack(">BHII", 0x80 | compression << 4, len(records), len(plain), len(content)) + content


@attrs.define
class StreamWriter:
    """Writes a stream's files; ``segment_bytes``: a segment that has as many is followed by the next one."""

    directory: Path
    segment_bytes: int = 1 << 30
    offset: int = 0
    segments: list[Path] = attrs.Factory(list)
    chunk_positions: list[int] = attrs.Factory(list)
    """Of the last segment."""

    def __attrs_post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        self._open()

    @property
    def indexes(self) -> list[Path]:
        return [path.with_suffix(".index") for path in self.segments]

    def write(self, *records: bytes) -> None:
        """A chunk of simple entries."""
        self.chunk(b"".join(map(entry, records)), len(records), len(records))

    def chunk(
        self,
        entries: bytes,
        entry_count: int,
        record_count: int,
        *,
        kind: int = 0,
        trailer: bytes = b"",
        bloom: bytes = b"",
    ) -> None:
        if self.segments[-1].stat().st_size >= self.segment_bytes:
            self._open()
        path, time_ms = self.segments[-1], TIME_MS + self.offset
        position = path.stat().st_size
        head = struct.pack(">BBHIqQQ", 0x50, kind, entry_count, record_count, time_ms, 1, self.offset)
        head += struct.pack(">IIIB3x", zlib.crc32(entries), len(entries), len(trailer), len(bloom))
        append(path, head + bloom + entries + trailer)
        append(self.indexes[-1], struct.pack(">QqQIB", self.offset, time_ms, 1, position, kind))
        self.chunk_positions.append(position)
        self.offset += record_count

    def _open(self) -> None:
        path = self.directory / f"{self.offset:020}.segment"
        self.segments.append(path)
        self.chunk_positions = []
        path.write_bytes(b"OSIL\0\0\0\1")
        path.with_suffix(".index").write_bytes(b"OSII\0\0\0\1")

    def opened(self, name: bytes = b"s") -> StreamDirectory:
        return opened(self.directory, name)


def append(path: Path, content: bytes) -> None:
    path.write_bytes(path.read_bytes() + content)


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def overwrite(path: Path, position: int, content: bytes) -> None:
    written = path.read_bytes()
    path.write_bytes(written[:position] + content + written[position + len(content) :])


# reading


class _NoBodies:
    """A stream needs none."""


def opened(directory: Path, name: bytes = b"s") -> StreamDirectory:
    files = ReadOnlyFileSystem(RealFileSystem())
    return StreamDirectory(files=files, path=str(directory), name=name, bodies=_NoBodies())  # type: ignore[arg-type]


def offsets_in(stream: StreamDirectory) -> list[int]:
    return [message.seq_id for message in stream.messages() if isinstance(message, StoredMessage)]


def damage_in(stream: StreamDirectory) -> list[tuple[str, str, int | None]]:
    """Kind, file and offset of each damage that reading it meets."""
    return [_shown(finding) for finding in stream.messages() if isinstance(finding, Finding)]


def findings_in(stream: StreamDirectory) -> list[tuple[str, str, int | None]]:
    """Kind, file and offset of all that verify says."""
    return [_shown(finding) for finding in stream.findings()]


def _shown(finding: Finding) -> tuple[str, str, int | None]:
    return finding.kind, Path(finding.path).name, finding.offset
