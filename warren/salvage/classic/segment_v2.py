"""One segment of a classic queue, version 2, opened for reading: its entries as columns, its messages on demand.

A segment is ``<n>.qi``, which is held in memory (32 bytes a position), and ``<n>.qs``, which is held in memory, too, if
it is not larger than :data:`warren.salvage.read_only.WHOLE_BYTES`, from the first read of a message on. An index file
that a broker would reject counts as empty and is reported; a store whose header is damaged is still read, because every
record is checked.

An entry's place in ``.qs`` holds no msg_id. So if two entries claim one record, neither gets it: nothing tells which of
them is right, and an acked message's body must not come back in place of another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from typing import Final

import attrs
import numpy as np

from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.index.index_v2_format import Entries
from warren.queue_index.index.record_format import Bools, Ints, Octets
from warren.salvage.classic.message_runs import rows_at
from warren.salvage.classic.queue_file import QueueFile
from warren.salvage.queue_directory import MISSING_BODY, UNREADABLE_BODY, Finding, SegmentColumns, unreadable_file
from warren.salvage.read_only import MAX_MESSAGE_BYTES, ReadOnlyFileSystem, below
from warren.storage.errors import DataError, StorageError

BAD_HEADER: Final = "bad header"


@attrs.frozen(eq=False, repr=False, slots=False)  # slots would leave no room for the cached columns
class SegmentV2:
    """A segment's positions; columns by relative position, as far as the index file goes."""

    number: int
    first_seq_id: int
    path: str
    """Of the index file."""
    index_exists: bool
    index_size: int
    header: v2.SegmentHeader | None
    """``None``: the index is missing, or a broker would reject it."""
    problem: Finding | None
    """Why the index file is not used."""
    entries: Entries
    store: QueueFile

    @classmethod
    def open(cls, files: ReadOnlyFileSystem, directory: str, number: int, entry_count: int) -> SegmentV2:
        """Read the index file, at most ``entry_count`` entries of it."""
        path = below(directory, f"{number}{v2.INDEX_SUFFIX}")
        store = QueueFile.open(files, below(directory, f"{number}{v2.STORE_SUFFIX}"))
        exists, size, header, problem, data = files.exists(path), 0, None, None, b""
        if exists:
            try:
                with closing(files.open_read(path)) as file:
                    size = file.size()
                    data = file.pread(v2.HEADER_SIZE + entry_count * v2.ENTRY_SIZE, 0)
                header = v2.decode_header(data, v2.INDEX_MAGIC, path)
            except DataError as error:
                problem = _no_index(path, size, data, error)
            except StorageError as error:
                problem = unreadable_file(path, error)
        entries = v2.decode_entries(data[v2.HEADER_SIZE :] if header is not None else b"")
        return cls(number, number * entry_count, path, exists, size, header, problem, entries, store)

    def close(self) -> None:
        """Close its files."""
        self.store.close()

    # ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def live(self) -> Bools:
        """Positions of messages that are not acked."""
        return np.asarray(self.entries["status"] == v2.MESSAGE)

    @cached_property
    def acked(self) -> Bools:
        """Positions of acked messages whose entries are not all zeros. Messages kept in memory were in no store."""
        written = self.entries.view(np.uint8).reshape(-1, v2.ENTRY_SIZE).any(axis=1)
        return np.asarray(written & (self.entries["status"] == v2.NOTHING))

    @cached_property
    def persistent(self) -> Bools:
        return np.asarray(self.entries["flags"] & v2.PERSISTENT != 0)

    @cached_property
    def elsewhere(self) -> Bools:
        """Entries whose message is in the vhost's store."""
        return np.asarray(self.entries["location"] == v2.IN_VHOST_STORE)

    @cached_property
    def here(self) -> Bools:
        """Entries that say that their message is in the queue's own store."""
        return np.asarray((self.entries["location"] == v2.IN_QUEUE_STORE) & (self.entries["rest"] == 0))

    @cached_property
    def inside(self) -> Bools:
        """Entries whose record lies within the store's file."""
        size, offsets, lengths = self.store.size, self.entries["offset"], self.entries["length"].astype(np.uint64)
        ends = np.minimum(offsets, np.uint64(v2.MAX_POSITION)).astype(np.uint64) + lengths
        is_in_file = (offsets >= v2.HEADER_SIZE) & (ends + np.uint64(v2.RECORD_HEAD_SIZE) <= size)
        return np.asarray(self.here & is_in_file & (lengths <= MAX_MESSAGE_BYTES))

    @cached_property
    def disputed(self) -> Bools:
        """Entries whose record is claimed by another entry, too, perhaps by an acked one."""
        disputed = np.zeros(len(self.entries), np.bool_)
        rel_seqs = np.flatnonzero(self.inside)
        _, inverse, counts = np.unique(self.entries["offset"][rel_seqs], return_inverse=True, return_counts=True)
        disputed[rel_seqs] = counts[inverse] > 1
        return disputed

    def entry_offset(self, rel_seq: int) -> int:
        """An entry's offset in the index file."""
        return v2.HEADER_SIZE + rel_seq * v2.ENTRY_SIZE

    def entry_offsets(self, rel_seqs: Ints) -> Ints:
        """Where these entries begin in the index file."""
        return v2.HEADER_SIZE + rel_seqs * v2.ENTRY_SIZE

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def read_each(self, columns: SegmentColumns) -> Iterator[bytes | Finding]:
        return (read_message(self, rel_seq) for rel_seq in (columns.seq_ids - self.first_seq_id).tolist())

    def read_uniform(self, columns: SegmentColumns) -> Octets | None:
        rel_seqs = columns.seq_ids - self.first_seq_id
        if self.disputed[rel_seqs].any():
            return None
        return _rows(self.store, self.entries["offset"][rel_seqs].astype(np.int64), int(columns.encoded_sizes[0]))


def problems_of(segment: SegmentV2) -> Iterator[Finding]:
    """Why the segment's index, or its store, cannot be read."""
    if segment.problem is not None:
        yield segment.problem
    if segment.store.problem is not None:
        yield unreadable_file(segment.store.path, segment.store.problem)


def read_message(segment: SegmentV2, rel_seq: int) -> bytes | Finding:
    """A message in the queue's own store, checked; else why it cannot be read."""
    entry = segment.entries[rel_seq]
    offset, length = int(entry["offset"]), int(entry["length"])
    kind, reason = UNREADABLE_BODY, ""
    if not segment.here[rel_seq]:
        kind, reason = MISSING_BODY, _nowhere(int(entry["location"]), int(entry["rest"]))
    elif not segment.store.exists:
        kind, reason = MISSING_BODY, f"there is no {segment.store.path.rpartition('/')[2]}"
    elif not segment.inside[rel_seq]:
        kind, reason = MISSING_BODY, f"{length} bytes at {offset} are out of the bounds of {segment.store.path}"
    elif segment.disputed[rel_seq]:
        reason = f"another entry claims the record at {offset} of {segment.store.path}, too"
    else:
        message = v2.message_of(segment.store.read(v2.RECORD_HEAD_SIZE + length, offset), length)
        if isinstance(message, bytes):
            return message
        reason = f"at {offset} of {segment.store.path}: {message}"
    detail = f"message {segment.first_seq_id + rel_seq}: {reason}"
    return Finding(kind, "damage", segment.path, segment.entry_offset(rel_seq), detail)


def _nowhere(location: int, rest: int) -> str:
    if location == v2.IN_MEMORY:
        return "it was kept in memory alone"
    if location == v2.IN_QUEUE_STORE:
        return f"its place ends in {rest}, which has no meaning"
    return f"it is in a place that is not known ({location})"


def _no_index(path: str, size: int, data: bytes, error: DataError) -> Finding:
    """Why an index file is not used. A crash may leave an empty file, or one of zeros."""
    if not size:
        return Finding("leftover empty file", "leftover", path, None, "made, and not written")
    if not any(data) and len(data) == size:
        return Finding("leftover zeros", "leftover", path, 0, f"an index of {size} zero bytes alone")
    return Finding(BAD_HEADER, "damage", path, error.offset, error.reason)


def _rows(store: QueueFile, at: Ints, length: int) -> Octets | None:
    """The messages of the records at these offsets; ``None`` if one is damaged, or if they lie too far apart."""
    size = v2.RECORD_HEAD_SIZE + length
    rows = rows_at(store, at, size)
    if rows is None:
        return None
    heads = np.ascontiguousarray(rows[:, : v2.RECORD_HEAD_SIZE]).view(v2.RECORD_HEAD)[:, 0]
    if (heads["length"] != length).any():
        return None
    data, checked = memoryview(rows.tobytes()), heads["flags"] & v2.CHECKSUM != 0
    starts = range(v2.RECORD_HEAD_SIZE, len(data) + v2.RECORD_HEAD_SIZE, size)
    checksums = np.array([v2.checksum_of(data[start : start + length]) for start in starts], np.uint16)
    return None if (checked & (checksums != heads["checksum"])).any() else rows[:, v2.RECORD_HEAD_SIZE :]
