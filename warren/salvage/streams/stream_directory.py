"""A stream's directory as a queue: every message that its log has, in the order of the offsets.

A consumer that begins at the first offset gets all of them, none redelivered, and nothing is ever acked. A message's
seq_id is its offset; offsets between them are those of the broker's own chunks. Each segment can be read by itself.

Memory is that of one chunk, and of one index if something is damaged.

A segment's index has a record for each chunk, in order, which says what the chunk's header says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import attrs
import numpy as np

from warren.queue_index.message.message_format import MSG_ID_BYTES, Envelope, encode_without_id
from warren.salvage.classic.needed_body import Reference
from warren.salvage.names import Json
from warren.salvage.queue_directory import (
    MSG_IDS,
    UNREADABLE_FILE,
    UNREADABLE_QUEUE,
    BodySource,
    Extent,
    Finding,
    IndexColumns,
    MsgIds,
    OnFinding,
    SegmentColumns,
    SizedFile,
    StoredMessage,
    Summary,
    UnindexedMessage,
    damage_by,
)
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.salvage.streams.osiris_format import (
    FILE_HEADER_BYTES,
    INDEX_HEADER,
    INDEX_RECORD,
    MESSAGES,
    ChunkHeader,
    read_index,
)
from warren.salvage.streams.stream_log import Chunk, Segment, StreamLog
from warren.salvage.streams.stream_records import read_record
from warren.salvage.streams.sub_batches import records_in
from warren.storage.errors import DataError, MessageError, StorageError


def index_findings(
    segment: Segment, data: bytes, chunks: Sequence[tuple[int, ChunkHeader]], damaged: Collection[int | None]
) -> Iterator[Finding]:
    """``data``: the index; ``chunks``: the sound ones, with their positions; ``damaged``: the positions of the others,
    already reported."""
    path, index = segment.index_path, read_index(data)
    positions = index["position"]
    if data and not data.startswith(INDEX_HEADER):
        yield Finding("damaged header", "damage", path, 0, "the file does not begin as an index")
    rows = [
        (header.offset, header.timestamp_ms, header.epoch, at, header.type) for at, header in chunks if not at >> 32
    ]
    expected = {int(row["position"]): row for row in np.array(rows, INDEX_RECORD)}
    of_chunks = np.flatnonzero(np.isin(positions, list(expected)))
    end = len(positions) if segment.end is None else int(of_chunks[-1]) + 1 if len(of_chunks) else 0
    for number, record in enumerate(index):
        position, record_at = int(record["position"]), FILE_HEADER_BYTES + number * INDEX_RECORD.itemsize
        row = expected.pop(position, None)
        if row is not None and row != record:
            detail = f"{_described(record)}; the chunk at {position:,} is {_described(row)}"
            yield Finding("damaged index record", "damage", path, record_at, detail)
        elif row is None and number >= end:
            yield Finding("leftover index record", "leftover", path, record_at, f"no chunk at {position:,}")
        elif row is None and position not in damaged:
            yield Finding("damaged index record", "damage", path, record_at, f"no chunk begins at {position:,}")
    for position in expected:
        yield Finding("missing index record", "damage", path, None, f"of the chunk at {position:,} in the segment")
    if data and (rest := (len(data) - FILE_HEADER_BYTES) % INDEX_RECORD.itemsize):
        yield Finding("leftover of a write", "leftover", path, len(data) - rest, f"{rest} bytes of a record")


def _described(record: np.void) -> str:
    return ", ".join(f"{name} {record[name]}" for name in ("offset", "timestamp_ms", "epoch", "type"))


KIND: Final = "rabbitmq-stream"
_ROWS: Final = 4096


class StreamMessage(NamedTuple):
    """A message of a stream."""

    offset: int
    envelope: Envelope
    body: bytes
    chunk: Chunk
    """The chunk that it stands in."""

    def stored(self) -> StoredMessage:
        return StoredMessage(
            seq_id=self.offset,
            msg_id=b"",
            persistent=self.envelope.persistent,
            redelivered=False,
            acked=False,
            expiry_us=0,
            encoded=encode_without_id(self.envelope, self.body),
            path=self.chunk.path,
            offset=self.chunk.position,
            stream_offset=self.offset,
        )


class _Row(NamedTuple):
    """A message without its body."""

    offset: int
    persistent: bool
    size: int
    path: str
    position: int

    @classmethod
    def of(cls, message: StreamMessage) -> _Row:
        chunk = message.chunk
        return cls(message.offset, message.envelope.persistent, len(message.body), chunk.path, chunk.position)


@attrs.frozen(eq=False, repr=False, kw_only=True)
class StreamDirectory(QueueDirectory):
    """Implements :class:`warren.salvage.queue_reader.QueueDirectory`."""

    files: ReadOnlyFileSystem
    path: str
    name: bytes
    bodies: BodySource
    """Not used: the bodies are in the log."""
    kind = KIND

    def extent(self) -> Extent:
        log = StreamLog.open(self.files, self.path)
        pieces = {number: (SizedFile(segment.path, segment.size),) for number, segment in enumerate(log.segments)}
        return Extent(pieces, (), None)

    def summary(self, report: OnFinding = lambda _: None) -> Summary:
        try:
            log = StreamLog.open(self.files, self.path)
        except StorageError as error:
            report(damage_by(error, UNREADABLE_QUEUE, self.path))
            return Summary(0, 0, {"type": "stream", "unreadable": str(error)})
        for problem in log.problems:
            if problem.severity == "damage":
                report(problem)
        tallies = [_Tally(segment.name, segment.size) for segment in log.segments]
        for number, tally in enumerate(tallies):
            for chunk in log.chunks(number):
                if isinstance(chunk, Finding):
                    report(chunk)
                else:
                    tally.add(chunk, self._messages_in(chunk), report)
        sound = [tally for tally in tallies if tally.chunks]
        details: dict[str, Json] = {
            "type": "stream",
            "first_offset": sound[0].first_offset if sound else None,
            "last_offset": sound[-1].last_offset if sound else None,
            "segments": [tally.report() for tally in tallies],
        }
        return Summary(sum(tally.messages for tally in tallies), sum(tally.payload_bytes for tally in tallies), details)

    def deliveries(
        self, only: range | None, *, include_acked: bool
    ) -> Iterator[SegmentColumns | StoredMessage | Finding]:
        for message in self._messages(only):
            yield message.stored() if isinstance(message, StreamMessage) else message

    def count(self, only: range) -> int:
        chunks = (chunk for chunk in self._chunks(only) if isinstance(chunk, Chunk))
        return sum(isinstance(record, bytes) for chunk in chunks for _, record in _records_in(chunk))

    def deliverable(self, only: range) -> Iterator[tuple[int, MsgIds]]:
        yield self.count(only), np.empty(0, MSG_IDS)

    def index_columns(self, only: range | None = None) -> Iterator[IndexColumns | Finding]:
        rows: list[_Row] = []
        for message in self._messages(only):
            if isinstance(message, Finding):
                yield message
                continue
            if len(rows) >= _ROWS or (rows and rows[0].path != message.chunk.path):
                yield _columns(rows)
                rows = []
            rows.append(_Row.of(message))
        if rows:
            yield _columns(rows)

    def unindexed_messages(self) -> Iterator[UnindexedMessage]:
        log = StreamLog.open(self.files, self.path)
        for segment in log.segments:
            for chunk in log.unindexed(segment):
                for message in self._messages_in(chunk):
                    if isinstance(message, StreamMessage):
                        encoded = encode_without_id(message.envelope, message.body)
                        yield UnindexedMessage(encoded, chunk.path, chunk.position)

    def own_findings(self) -> Iterator[Finding | Reference]:
        log = StreamLog.open(self.files, self.path)
        yield from log.problems
        for number, segment in enumerate(log.segments):
            entries: list[tuple[int, ChunkHeader]] = []
            damaged: set[int | None] = set()
            for chunk in log.chunks(number):
                if isinstance(chunk, Finding):
                    damaged.add(chunk.offset)
                    yield chunk
                    continue
                entries.append((chunk.position, chunk.header))
                yield from (message for message in self._messages_in(chunk) if isinstance(message, Finding))
            if segment.has_index:
                try:
                    yield from index_findings(segment, self.files.read(segment.index_path), entries, damaged)
                except (DataError, StorageError) as error:
                    yield damage_by(error, UNREADABLE_FILE, segment.index_path)

    def _messages(self, only: range | None) -> Iterator[StreamMessage | Finding]:
        """The messages in these segments, and all damage that affects which there are."""
        for chunk in self._chunks(only):
            if isinstance(chunk, Finding):
                yield chunk
            else:
                yield from self._messages_in(chunk)

    def _chunks(self, only: range | None) -> Iterator[Chunk | Finding]:
        try:
            log = StreamLog.open(self.files, self.path)
        except StorageError as error:
            yield damage_by(error, UNREADABLE_QUEUE, self.path)
            return
        if only is None or 0 in only:
            yield from (problem for problem in log.problems if problem.severity == "damage")
        for number in range(len(log.segments)):
            if only is None or number in only:
                yield from log.chunks(number)

    def _messages_in(self, chunk: Chunk) -> Iterator[StreamMessage | Finding]:
        for offset, record in _records_in(chunk):
            if isinstance(record, MessageError):
                detail = f"offset {offset:,}: {record}"
                yield Finding("unreadable entry", "damage", chunk.path, chunk.position, detail)
            else:
                yield StreamMessage(offset, *read_record(record, self.name), chunk)


def _records_in(chunk: Chunk) -> Iterator[tuple[int, bytes | MessageError]]:
    """The records of a chunk with their offsets; of entries that cannot be read, the reason."""
    if chunk.header.type != MESSAGES:
        return
    number = 0
    try:
        for number, record in records_in(chunk.data):
            yield chunk.header.offset + number, record
    except MessageError as error:
        yield chunk.header.offset + number, error


@attrs.define
class _Tally:
    """A segment in numbers."""

    name: str
    bytes: int
    chunks: int = 0
    messages: int = 0
    payload_bytes: int = 0
    first: ChunkHeader | None = None
    last: ChunkHeader | None = None

    def add(self, chunk: Chunk, messages: Iterable[StreamMessage | Finding], report: OnFinding) -> None:
        self.chunks += 1
        self.first, self.last = self.first or chunk.header, chunk.header
        for message in messages:
            if isinstance(message, Finding):
                report(message)
            else:
                self.messages += 1
                self.payload_bytes += len(message.body)

    @property
    def first_offset(self) -> int | None:
        return None if self.first is None else self.first.offset

    @property
    def last_offset(self) -> int | None:
        return None if self.last is None else self.last.next_offset - 1

    def report(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "bytes": self.bytes,
            "chunks": self.chunks,
            "messages": self.messages,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "first_timestamp_ms": None if self.first is None else self.first.timestamp_ms,
            "last_timestamp_ms": None if self.last is None else self.last.timestamp_ms,
        }


def _columns(rows: list[_Row]) -> IndexColumns:
    """Rows of one file."""
    count = len(rows)
    return IndexColumns(
        seq_ids=np.array([row.offset for row in rows], np.int64),
        msg_ids=np.zeros((count, MSG_ID_BYTES), np.uint8),
        has_msg_id=np.zeros(count, np.bool_),
        persistent=np.array([row.persistent for row in rows]),
        delivered=None,
        acked=np.zeros(count, np.bool_),
        expiries_us=np.zeros(count, np.uint64),
        sizes=np.array([row.size for row in rows], np.int64),
        embedded=np.ones(count, np.bool_),
        in_journal=np.zeros(count, np.bool_),
        paths=(rows[0].path,),
        path_of=np.zeros(count, np.int8),
        offsets=np.array([row.position for row in rows], np.int64),
    )
