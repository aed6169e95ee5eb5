"""What a queue's directory holds, whatever the format of its files: messages, columns, findings and numbers.

What a format implements, and what follows from it: :class:`warren.salvage.queue_reader.QueueDirectory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

import attrs
import numpy as np
import numpy.typing as npt

from warren.salvage.names import Json
from warren.storage.errors import DataError, StorageError, UnknownMessageError, WarrenError
from warren.storage.filesystem import FileSystem

Severity = Literal["damage", "leftover", "unread"]

MsgIds = npt.NDArray[np.bytes_]
MSG_IDS: Final = np.dtype("S16")
"""Compares as bytes do. It hides NULs at the end, which is harmless while every id is 16 bytes."""

MISSING_BODY: Final = "missing body"
UNREADABLE_BODY: Final = "unreadable body"
UNREADABLE_FILE: Final = "unreadable file"
UNREADABLE_QUEUE: Final = "unreadable queue"
"""Kinds of findings: a message that the store does not have, one that it has and cannot give; a whole file, a queue."""


@attrs.frozen
class Finding:
    """Something that a sound directory does not have (damage), or need not have (leftover), or that may be sound but is
    not read (unread)."""

    kind: str
    severity: Severity
    path: str
    """Of the file, below the source's root."""
    offset: int | None
    """In bytes; ``None`` if it is not a single place."""
    detail: str

    def __str__(self) -> str:
        where = self.path if self.offset is None else f"{self.path}, offset {self.offset}"
        return f"{where}: {self.kind}: {self.detail}"


OnFinding = Callable[[Finding], object]
"""Is called with each finding."""


class StoredMessage(NamedTuple):
    """A stored message; a tuple, because an export makes millions of them."""

    seq_id: int
    msg_id: bytes
    persistent: bool
    redelivered: bool
    acked: bool
    expiry_us: int
    """Microseconds since the epoch; 0: none."""
    encoded: bytes
    """The message: see :mod:`warren.queue_index.message.message_format`."""
    path: str
    """The index file that has it, and where."""
    offset: int
    delivery_count: int | None = None
    """How often it came back, of a quorum queue; ``None``: the format counts no deliveries."""
    stream_offset: int | None = None
    """``None``: it is in no stream."""


class UnindexedMessage(NamedTuple):
    """A message in a queue's own store without an entry in the queue's index, acked or not."""

    encoded: bytes
    """The message: see :mod:`warren.queue_index.message.message_format`."""
    path: str
    """The file that has it, and where."""
    offset: int


@attrs.frozen(eq=False, repr=False)
class MessageRun:
    """Many messages whose encoded forms have one length, as columns. All are persistent and none is acked."""

    seq_ids: npt.NDArray[np.int64]
    msg_ids: npt.NDArray[np.uint8]
    """A row of 16 bytes each."""
    expiries_us: npt.NDArray[np.uint64]
    redelivered: bool
    encoded: npt.NDArray[np.uint8]
    """A row each."""
    path: str
    offsets: npt.NDArray[np.int64]

    def first(self, count: int) -> MessageRun:
        """The first ``count`` messages."""
        columns = ("seq_ids", "msg_ids", "expiries_us", "encoded", "offsets")
        return attrs.evolve(self, **{name: getattr(self, name)[:count] for name in columns})

    def messages(self) -> Iterator[StoredMessage]:
        """One by one."""
        columns = zip(self.seq_ids.tolist(), self.expiries_us.tolist(), self.offsets.tolist(), strict=True)
        for index, (seq_id, expiry_us, offset) in enumerate(columns):
            msg_id, encoded = self.msg_ids[index].tobytes(), self.encoded[index].tobytes()
            yield StoredMessage(seq_id, msg_id, True, self.redelivered, False, expiry_us, encoded, self.path, offset)


@attrs.frozen(eq=False, repr=False, kw_only=True)
class IndexColumns:
    """Messages as the queue's own files describe them, acked and transient ones too: a row each, as columns."""

    seq_ids: npt.NDArray[np.int64]
    msg_ids: npt.NDArray[np.uint8]
    """A row of 16 bytes each."""
    has_msg_id: npt.NDArray[np.bool_]
    """Whether the id is known; if not, its bytes mean nothing."""
    persistent: npt.NDArray[np.bool_]
    delivered: npt.NDArray[np.bool_] | None
    """``None`` if the format does not record it."""
    acked: npt.NDArray[np.bool_]
    """Acked, but still in the files."""
    expiries_us: npt.NDArray[np.uint64]
    """Microseconds since the epoch; 0: none."""
    sizes: npt.NDArray[np.int64]
    """Of the payloads."""
    embedded: npt.NDArray[np.bool_]
    """Whether the message stands in the queue's own files."""
    in_journal: npt.NDArray[np.bool_]
    paths: tuple[str, ...]
    path_of: npt.NDArray[np.int8]
    """Each row's index in ``paths``."""
    offsets: npt.NDArray[np.int64]
    """Where its record begins in that file."""

    def __len__(self) -> int:
        return len(self.seq_ids)

    def rows(self, chosen: slice | npt.NDArray[np.int64]) -> Self:
        """Some of them."""
        fields = ((field.name, getattr(self, field.name)) for field in attrs.fields(type(self)))
        columns: dict[str, Any] = {name: column[chosen] for name, column in fields if isinstance(column, np.ndarray)}
        return attrs.evolve(self, **columns)


class OpenSegment(Protocol):
    """A segment's open files, from which messages are read."""

    def read_each(self, columns: SegmentColumns) -> Iterator[bytes | Finding]:
        """The encoded messages in these rows, or why one cannot be read. None of them is in the store."""

    def read_uniform(self, columns: SegmentColumns) -> npt.NDArray[np.uint8] | None:
        """The same as the rows of a matrix, if all have one size and are in one file; ``None``: they are better read
        one by one."""


@attrs.frozen(eq=False, repr=False, kw_only=True)
class SegmentColumns(IndexColumns):
    """A segment's messages: which of them are delivered, and how to read them; valid while it is open."""

    live: npt.NDArray[np.bool_]
    """Whether the queue still has it."""
    restored: npt.NDArray[np.bool_]
    """Whether a restarted broker looks at it: it is persistent, and the terms of a clean stop do not exclude it."""
    redelivered: npt.NDArray[np.bool_]
    stored: npt.NDArray[np.bool_]
    """Whether it stands in the vhost's store."""
    inside: npt.NDArray[np.bool_]
    """Whether it stands in the queue's own files, within their bounds."""
    encoded_sizes: npt.NDArray[np.int64]
    """Bytes of it there."""
    segment: OpenSegment

    @property
    def ready(self) -> npt.NDArray[np.bool_]:
        """Which of them a restarted broker would deliver, if they can be read."""
        return self.live & self.restored

    def store_ids(self, chosen: slice | npt.NDArray[np.bool_] = slice(None)) -> MsgIds:
        """The msg_ids by which the store is asked for these."""
        return np.ascontiguousarray(self.msg_ids[chosen]).reshape(-1).view(MSG_IDS)


class SizedFile(NamedTuple):
    """A file, or the part of it that begins at ``start``."""

    path: str
    size_bytes: int
    start: int = 0


def sized(files: FileSystem, paths: Iterable[str]) -> tuple[SizedFile, ...]:
    """The existing files among these, each as a whole."""
    return tuple(SizedFile(path, files.size(path)) for path in paths if files.exists(path))


@attrs.frozen
class Extent:
    """How large a directory is, and in which parts it can be read."""

    pieces: Mapping[int, tuple[SizedFile, ...]]
    """The numbers of its segments, ascending, and each one's files; empty: it is read as a whole."""
    shared: tuple[SizedFile, ...]
    """What every part reads: a journal, or all of a directory that is read as a whole."""
    seq_ids_per_piece: int | None
    """Segment n holds the seq_ids from n times this on; ``None``: unknown."""
    logs: tuple[SizedFile, ...] = ()
    """The logs that its node keeps for all such queues."""
    logs_share_bytes: int = 0
    """What counts of them to this queue."""

    @property
    def shared_bytes(self) -> int:
        """What every part reads, with its share of :attr:`logs`."""
        return self.logs_share_bytes + sum(file.size_bytes for file in self.shared)

    def piece_bytes(self, number: int) -> int:
        """Of a segment's files; 0 if there is no such segment."""
        return sum(file.size_bytes for file in self.pieces.get(number, ()))

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return self.shared_bytes + sum(map(self.piece_bytes, self.pieces))

    def files(self, only: range | None = None) -> Iterator[SizedFile]:
        """The files that are opened to read it; ``only``: to read these segments."""
        yield from (*self.shared, *self.logs)
        for number, piece in self.pieces.items():
            if only is None or number in only:
                yield from piece


@attrs.frozen
class Summary:
    """A queue in numbers. ``details`` are the format's own."""

    ready: int
    """Messages that a restarted broker would deliver."""
    payload_bytes: int
    """Of their payloads."""
    details: dict[str, Json]
    """``type`` (classic, quorum or stream) and, of a classic queue, ``version`` first."""


class BodySource(Protocol):
    """A message store, as far as a queue needs it."""

    def contains(self, msg_id: bytes) -> bool: ...

    def read(self, msg_id: bytes) -> bytes:
        """Raises :class:`warren.storage.errors.UnknownMessageError`, or :class:`warren.storage.errors.DataError`."""

    def contains_each(self, msg_ids: MsgIds) -> npt.NDArray[np.bool_]:
        """The same as :meth:`contains` for many."""

    def read_each(self, msg_ids: MsgIds) -> Iterator[bytes | WarrenError]:
        """Each one's body, or the error that :meth:`read` would raise."""

    def read_uniform(self, msg_ids: MsgIds) -> npt.NDArray[np.uint8] | None:
        """The bodies as the rows of a matrix; ``None`` if they differ in size, or are better read one by one."""


def missing_body(path: str, offset: int, seq_id: int, msg_id: bytes, error: Exception) -> Finding:
    """The finding about a body that the store cannot read; ``path``, ``offset``: the index record that refers to it."""
    if isinstance(error, UnknownMessageError):
        return Finding(MISSING_BODY, "damage", path, offset, f"message {seq_id}: the store has no {msg_id.hex()}")
    return Finding(UNREADABLE_BODY, "damage", path, offset, f"message {seq_id}, {msg_id.hex()}: {error}")


def missing_bodies(path: str, count: int) -> Finding:
    """The finding about ``count`` messages whose bodies are not where the index says; ``path``: of the queue."""
    messages = "1 message" if count == 1 else f"{count:,} messages"
    return Finding(MISSING_BODY, "damage", path, None, f"the index has {messages} whose bodies are not there")


def unreadable_file(path: str, error: StorageError) -> Finding:
    """The finding about a file that cannot be read."""
    return damage_by(error, UNREADABLE_FILE, path)


def damage_by(error: WarrenError, kind: str, path: str = "") -> Finding:
    """The finding about what an error says; ``path``: of the file, if the error does not name it."""
    if isinstance(error, DataError):
        return Finding(kind, "damage", error.path or path, error.offset, error.reason)
    return Finding(kind, "damage", path, None, str(error))
