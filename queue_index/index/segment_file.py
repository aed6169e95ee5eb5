"""A segment file as the engine reads it: strictly, and as runs.

It is read in one piece (RabbitMQ does the same) and stays in memory only as long as a run still needs payloads from it.
If less than half of a large one is wanted it is scanned (:func:`scan_segment`): the positions of its records are kept,
and payloads are read one by one (:meth:`SegmentFile.part`). Contents that a sound file cannot have raise
:class:`DataError`; a torn end is reported separately, because a crash in a flush leaves one: the journal still has all
that was torn.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any, Final, cast

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.index.entries import SegmentEntries, entry_count, no_entries, segment_entries
from warren.queue_index.index.facts import DELIVERED as FACT_DELIVERED
from warren.queue_index.index.facts import PUBLISHED
from warren.queue_index.index.record_format import BODY_SIZE, SEGMENT, Bools, Columns, Ints, Octets, parse, parse_file
from warren.queue_index.message.message_format import payload_bytes
from warren.queue_index.queue.run import (
    DELIVERED,
    EMBEDDED,
    IN_RAM,
    IN_STORE,
    INDEXED,
    PERSISTENT,
    Batch,
    PackedTerms,
    Run,
)
from warren.storage.columns import gather, gather_rows
from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem

_NEAR_BYTES: Final = 4096  # records that stand no farther apart are read together
_SMALL_FILE_BYTES: Final = 8 << 20  # read as a whole, as its other parts are likely to be read next


@attrs.define(eq=False, repr=False)
class SegmentFile:
    """A segment file's bytes and entries. ``good_bytes`` is less than ``len(data)`` if the end is torn.

    If the file was scanned, ``data`` is empty.
    """

    data: bytes
    entries: SegmentEntries
    good_bytes: int

    @property
    def is_whole(self) -> bool:
        """Whether its bytes are here."""
        return len(self.data) >= self.good_bytes

    def part(self, files: FileSystem, path: str, mask: Bools) -> SegmentFile:
        """Read only the records of the positions in ``mask``: as a file that consists of their bodies."""
        entries = self.entries
        rel_seqs = np.flatnonzero(mask)
        rel_seqs = rel_seqs[np.argsort(entries.body_at[rel_seqs], kind="stable")]
        starts = entries.body_at[rel_seqs].astype(np.int64)
        ends = starts + BODY_SIZE + entries.embedded[rel_seqs]
        cuts = np.flatnonzero(starts[1:] - ends[:-1] > _NEAR_BYTES) + 1
        pieces: list[bytes] = []
        body_at, moved_to = np.zeros(len(mask), np.int64), 0
        handle = files.open_read(path)
        try:
            for low, high in pairwise([0, *cuts.tolist(), len(rel_seqs)] if len(rel_seqs) else []):
                start, end = int(starts[low]), int(ends[low:high].max())
                pieces.append(handle.pread(end - start, start))
                body_at[rel_seqs[low:high]] = starts[low:high] - start + moved_to
                moved_to += end - start
        finally:
            handle.close()
        data = b"".join(pieces)
        if len(data) != moved_to:
            raise DataError(path, len(data), "the file has become shorter")
        return SegmentFile(data, attrs.evolve(entries, body_at=body_at), len(data))

    def columns(self, rel_seqs: Ints) -> Batch:
        """Return the messages published at these positions of the file."""
        body_offsets = self.entries.body_at[rel_seqs]
        octets = np.frombuffer(self.data, np.uint8)
        steps = np.diff(body_offsets)
        if len(body_offsets) > 1 and steps[0] and (steps == steps[0]).all():
            step = int(steps[0])
            low = min(int(body_offsets[0]), int(body_offsets[-1]))
            rows = np.lib.stride_tricks.as_strided(
                octets[low:], (len(body_offsets), BODY_SIZE), (abs(step), 1), writeable=False
            )
            bodies = np.ascontiguousarray(rows if step > 0 else rows[::-1])
            stop = int(body_offsets[-1]) + step
            offsets: range | array[int] = range(int(body_offsets[0]) + BODY_SIZE, stop + BODY_SIZE, step)
        else:
            bodies = gather_rows(self.data, body_offsets, BODY_SIZE)
            offsets = array("q", (body_offsets + BODY_SIZE).tobytes())
        lengths = self.entries.embedded[rel_seqs]
        total = int(lengths.sum())
        terms = None
        if total:
            is_uniform = bool((lengths == lengths[0]).all())
            terms = PackedTerms(self.data, offsets, int(lengths[0]) if is_uniform else array("q", lengths.tobytes()))
            if total * 2 < len(self.data):  # most of the file is not needed: do not hold it
                terms = terms.part(0, len(terms))
        return Batch(
            count=len(body_offsets),
            ids=bodies[:, :16].tobytes(),
            sizes=_folded(self._possible(rel_seqs, bodies[:, 24:28].copy().view(">u4").ravel())),
            expiries=_folded(bodies[:, 16:24].copy().view(">u8").ravel()),
            terms=terms,
        )

    def total_size(self, rel_seqs: Ints) -> int:
        """The payloads' sizes of the messages at these positions, added up."""
        sizes = gather(self.data, self.entries.body_at[rel_seqs] + 24, np.dtype(">u4"))
        return int(self._possible(rel_seqs, sizes).sum(dtype=np.int64))

    def _possible(self, rel_seqs: Ints, sizes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Return the messages' sizes from the file, but correct one that exceeds its message, if that is embedded."""
        embedded = self.entries.embedded[rel_seqs]
        impossible = (embedded > 0) & (sizes > embedded)
        if impossible.any():
            starts = self.entries.body_at[rel_seqs] + BODY_SIZE
            for index in np.flatnonzero(impossible).tolist():
                start = int(starts[index])
                sizes[index] = payload_bytes(self.data[start : start + int(embedded[index])])
        return sizes

    def runs(self, first_seq_id: int, mask: Bools, facts: Octets) -> list[Run]:
        """Return the positions in ``mask`` as runs. ``facts``: those of file and journal together."""
        rel_seqs = np.flatnonzero(mask)
        if not len(rel_seqs):
            return []
        batch = self.columns(rel_seqs)
        embedded = self.entries.embedded[rel_seqs] > 0
        flags = np.where(embedded, EMBEDDED | IN_RAM, IN_STORE) | INDEXED
        flags |= np.where(self.entries.persistent[rel_seqs], PERSISTENT, 0)
        flags |= np.where(facts[rel_seqs] & FACT_DELIVERED, DELIVERED, 0)
        cuts = np.flatnonzero((np.diff(rel_seqs) != 1) | (np.diff(flags) != 0)) + 1
        edges = [0, *cuts.tolist(), len(rel_seqs)]
        return [
            Run(first_seq_id + int(rel_seqs[low]), batch, low, high - low, int(flags[low]))
            for low, high in pairwise(edges)
        ]


def _folded(column: npt.NDArray[np.integer[Any]]) -> int | list[int]:
    """A column of equal numbers as that number."""
    first = int(column[0])
    return first if (column == first).all() else cast(list[int], column.tolist())


def read_segment(files: FileSystem, path: str, segment_entry_count: int) -> SegmentFile:
    """Read a segment file; one with only zeros counts as empty."""
    return _whole(path, files.read(path), segment_entry_count)


def _whole(path: str, data: bytes, segment_entry_count: int) -> SegmentFile:
    if data[:1] in (b"", b"\0") and data.count(0) == len(data):
        return SegmentFile(data, no_entries(0), 0)
    columns = parse(SEGMENT, data)
    return SegmentFile(data, _sound_entries(path, columns, segment_entry_count), columns.end)


def scan_segment(files: FileSystem, path: str, segment_entry_count: int) -> SegmentFile:
    """Read the positions of a segment file's records, window by window; a small file is read as a whole."""
    handle = files.open_read(path)
    try:
        if (size := handle.size()) <= _SMALL_FILE_BYTES:
            return _whole(path, handle.pread(size, 0), segment_entry_count)
        columns = parse_file(SEGMENT, handle)
    finally:
        handle.close()
    if not columns.end:  # nothing but zeros, or no record: it tells which
        return read_segment(files, path, segment_entry_count)
    return SegmentFile(b"", _sound_entries(path, columns, segment_entry_count), columns.end)


def _sound_entries(path: str, columns: Columns, segment_entry_count: int) -> SegmentEntries:
    """The entries of a file that is sound, except perhaps at its end."""
    count = entry_count(columns, segment_entry_count)
    entries, findings = segment_entries(columns, count)
    for finding in findings:
        if finding.kind != "torn record":
            raise DataError(path, finding.offset, f"{finding.kind}: {finding.detail}")
    return entries


def published(entries: SegmentEntries) -> Bools:
    return (entries.facts & PUBLISHED).astype(np.bool_)
