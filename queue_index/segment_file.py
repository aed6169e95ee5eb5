"""A segment file as the engine reads it: whole, strictly, and as runs.

A segment is read in one piece (RabbitMQ does the same) and stays in memory only as long as a run still needs payloads
from it. What a sound file cannot hold raises :class:`DataError`; a torn end is told apart, because it is what a crash
in a flush leaves: the journal still has all that was torn.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any, cast

import attrs
import numpy as np
import numpy.typing as npt

from queue_index.entries import DELIVERED as FACT_DELIVERED
from queue_index.entries import PUBLISHED, SegmentEntries, no_entries, segment_entries
from queue_index.record_format import BODY_SIZE, SEGMENT, Bools, Ints, Octets, parse
from queue_index.run import DELIVERED, EMBEDDED, IN_RAM, IN_STORE, INDEXED, PERSISTENT, Batch, PackedTerms, Run
from storage.errors import DataError
from storage.filesystem import FileSystem


@attrs.define
class SegmentFile:
    """A segment file's bytes and entries. ``good_bytes`` is less than ``len(data)`` where the end is torn."""

    data: bytes
    entries: SegmentEntries
    good_bytes: int

    def columns(self, rel_seqs: Ints) -> Batch:
        """The messages published at these positions of the file."""
        at = self.entries.body_at[rel_seqs]
        octets = np.frombuffer(self.data, np.uint8)
        steps = np.diff(at)
        if len(at) > 1 and steps[0] and (steps == steps[0]).all():
            step = int(steps[0])
            low = min(int(at[0]), int(at[-1]))
            rows = np.lib.stride_tricks.as_strided(octets[low:], (len(at), BODY_SIZE), (abs(step), 1), writeable=False)
            bodies = np.ascontiguousarray(rows if step > 0 else rows[::-1])
            stop = int(at[-1]) + step
            offsets: range | array[int] = range(int(at[0]) + BODY_SIZE, stop + BODY_SIZE, step)
        else:
            bodies = octets[at[:, None] + np.arange(BODY_SIZE)]
            offsets = array("q", (at + BODY_SIZE).tobytes())
        lengths = self.entries.embedded[rel_seqs]
        total = int(lengths.sum())
        terms: PackedTerms | list[bytes] | None = None
        if total:
            terms = PackedTerms(self.data, offsets, _folded(lengths))
            if total * 2 < len(self.data):  # most of the file is not asked for: do not hold it
                terms = terms.many(0, len(terms))
        return Batch(
            count=len(at),
            ids=bodies[:, :16].tobytes(),
            sizes=_folded(bodies[:, 24:28].copy().view(">u4").ravel()),
            expiries=_folded(bodies[:, 16:24].copy().view(">u8").ravel()),
            terms=terms,
        )

    def total_size(self, rel_seqs: Ints) -> int:
        """The payloads' sizes of the messages at these positions, added up."""
        octets = np.frombuffer(self.data, np.uint8)
        at = self.entries.body_at[rel_seqs] + 24
        return int(sum(octets[at + place].astype(np.int64).sum() << (24 - 8 * place) for place in range(4)))

    def runs(self, first_seq_id: int, wanted: Bools, facts: Octets) -> list[Run]:
        """The wanted positions as runs. ``facts``: what file and journal know together."""
        rel_seqs = np.flatnonzero(wanted)
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
    """Read a segment file; a missing one, and one that holds only zeros, is empty."""
    data = files.read(path) if files.exists(path) else b""
    if data[:1] in (b"", b"\0") and data.count(0) == len(data):
        return SegmentFile(data, no_entries(segment_entry_count), 0)
    columns = parse(SEGMENT, data)
    entries, findings = segment_entries(columns, segment_entry_count)
    for finding in findings:
        if finding.kind != "torn record":
            raise DataError(path, finding.offset, f"{finding.kind}: {finding.detail}")
    return SegmentFile(data, entries, columns.end)


def published(entries: SegmentEntries) -> Bools:
    return (entries.facts & PUBLISHED).astype(np.bool_)
