"""A classic queue's directory whose conversion between versions 1 and 2 was interrupted by a crash.

A conversion goes segment by segment: it publishes each message of the old index into the new one, at the same position,
and then deletes the old files. So a message may be in both, and each index may have messages that the other lacks.
``.qi`` takes precedence; ``.idx`` and journal *add* the messages that it lacks. Bodies stay in the vhost's store.

The directory is read as a whole, because the two versions have segments of different sizes. Memory is that of one
segment of each, and of the positions' numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Final

import attrs
import numpy as np

from warren.queue_index.index import directory as disk
from warren.queue_index.index.record_format import Ints
from warren.salvage.classic.classic_directory import CHANGED
from warren.salvage.classic.classic_v1 import ClassicV1Directory
from warren.salvage.classic.classic_v2 import KIND, ClassicV2Directory
from warren.salvage.classic.needed_body import Reference
from warren.salvage.queue_directory import (
    BodySource,
    Extent,
    Finding,
    MsgIds,
    OnFinding,
    SegmentColumns,
    StoredMessage,
    Summary,
    UnindexedMessage,
)
from warren.salvage.queue_reader import QueueDirectory, messages_of

DAMAGED_COPY: Final = "damaged copy"
"""Kind of a finding: a message that cannot be read through ``.qi``, but through the old index."""

_NONE: Final = np.empty(0, np.int64)


@attrs.frozen(eq=False, repr=False, kw_only=True)
class ClassicConvertingDirectory(QueueDirectory):
    """Implements :class:`warren.salvage.queue_reader.QueueDirectory` with the directories of both versions."""

    path: str
    name: bytes
    bodies: BodySource
    v1: ClassicV1Directory
    """What is left of the index of version 1, by itself."""
    v2: ClassicV2Directory
    """The index of version 2, by itself."""
    kind = KIND

    def summary(self, report: OnFinding = lambda _: None) -> Summary:
        old, new = self._v1_alone.summary(report).details, self._v2_alone.summary(report).details
        ready = payload_bytes = 0
        for sizes in map(self.ready_sizes, self.segment_columns()):
            ready += len(sizes)
            payload_bytes += int(sizes.sum())
        left = {"journal": old["journal"], "segments": old["segments"]}
        return Summary(ready, payload_bytes, {**new, "converting": left})

    def extent(self) -> Extent:
        old, new = self.v1.extent(), self.v2.extent()
        return Extent({}, (*old.files(), *new.files()), None)

    def deliveries(
        self, only: range | None, *, include_acked: bool
    ) -> Iterator[SegmentColumns | StoredMessage | Finding]:
        if only is None or only:
            added = self._added()
            of_v2 = self._of_v2(added, include_acked=include_acked)
            of_v1 = self._of_v1(added, include_acked=include_acked)
            yield from map(itemgetter(1), heapq.merge(of_v2, of_v1, key=itemgetter(0)))

    def segment_columns(self, only: range | None = None, *, stored: bool = False) -> Iterator[SegmentColumns]:
        """The segments of the new index, then those of the old one."""
        if only is None or only:
            added = self._added()
            for new in self.v2.segment_columns(stored=stored):
                yield attrs.evolve(new, restored=new.restored & ~np.isin(new.seq_ids, added))
            for old in self.v1.segment_columns(stored=stored):
                yield attrs.evolve(old, restored=np.isin(old.seq_ids, added))

    def index_columns(self, only: range | None = None) -> Iterator[SegmentColumns | Finding]:
        by_version: tuple[list[SegmentColumns], list[SegmentColumns]] = [], []
        for segments, index_columns in zip(by_version, (self.v2.index_columns, self.v1.index_columns), strict=True):
            for columns in index_columns() if only is None or only else ():
                if not isinstance(columns, Finding):
                    segments.append(columns)
                elif not _is_of_other_version(columns) and columns.kind != CHANGED:
                    yield columns
        new, old = by_version
        live = np.concatenate([_NONE, *(columns.seq_ids[~columns.acked] for columns in new)])
        old = [columns.rows(np.flatnonzero(~np.isin(columns.seq_ids, live))) for columns in old]
        old_seq_ids = np.concatenate([_NONE, *(columns.seq_ids for columns in old)])
        new = [columns.rows(np.flatnonzero(~np.isin(columns.seq_ids, old_seq_ids))) for columns in new]
        yield from _in_order([columns for columns in new + old if len(columns)])

    def references(self, *, persistent: bool) -> Iterator[MsgIds]:
        yield from self.v2.references(persistent=persistent)
        yield from self.v1.references(persistent=persistent)

    def knows_references(self) -> bool:
        return self.v2.knows_references()

    def unindexed_messages(self) -> Iterator[UnindexedMessage]:
        return self.v2.unindexed_messages()

    def own_findings(self) -> Iterator[Finding | Reference]:
        detail = "a change of version that a crash cut short: .qi counts, and .idx adds what it lacks"
        yield Finding("leftover conversion", "leftover", self.path, None, detail)
        for queue in (self._v2_alone, self._v1_alone):
            for finding in queue.own_findings():
                if not (isinstance(finding, Finding) and _is_of_other_version(finding)):
                    yield finding

    @property
    def _v1_alone(self) -> ClassicV1Directory:
        """Without terms: a clean stop counts the messages of one index only."""
        return attrs.evolve(self.v1, index=attrs.evolve(self.v1.index, terms=None))

    @property
    def _v2_alone(self) -> ClassicV2Directory:
        return attrs.evolve(self.v2, index=attrs.evolve(self.v2.index, terms=None))

    # ── the two together ─────────────────────────────────────────────────────────────────────────────────────────────

    def _added(self) -> Ints:
        """The positions, ascending, of live messages of the old index that cannot be read through the new one."""
        old = np.concatenate([_NONE, *(columns.seq_ids[columns.ready] for columns in self.v1.segment_columns())])
        v2 = self.v2
        for columns in v2.segment_columns():
            common = columns.rows(v2.present_rows(columns))
            common = common.rows(np.flatnonzero(np.isin(common.seq_ids, old)))
            here = common.rows(np.flatnonzero(~common.stored))
            is_good = [isinstance(message, bytes) for message in here.segment.read_each(here)]
            good = np.concatenate([common.seq_ids[common.stored], here.seq_ids[np.array(is_good, np.bool_)]])
            old = np.setdiff1d(old, good, assume_unique=True)
        return np.sort(old)

    def _of_v2(self, added: Ints, *, include_acked: bool) -> Iterator[tuple[int, StoredMessage | Finding]]:
        """The messages of the new index. One that the old index adds is a damaged copy here, not a missing message."""
        replaced, seq_id = set(added.tolist()), 0
        for segment in self._v2_alone.walk():
            if isinstance(segment, Finding):
                if segment.severity == "damage":
                    yield seq_id, segment
                continue
            seq_id = segment.first_seq_id
            columns = self.v2.index.columns_of(segment)
            selected = columns.restored & (columns.live | include_acked)
            for seq_id, message in messages_of(columns.rows(np.flatnonzero(selected)), self.bodies):
                if seq_id not in replaced:
                    yield seq_id, message
                elif isinstance(message, Finding):
                    yield seq_id, attrs.evolve(message, kind=DAMAGED_COPY)

    def _of_v1(self, added: Ints, *, include_acked: bool) -> Iterator[tuple[int, StoredMessage | Finding]]:
        """The messages that the old index adds; a finding comes after the message that precedes it."""
        seq_id = 0
        v2_seq_ids = _NONE
        if include_acked:  # the new index has entries for these
            v2_seq_ids = np.concatenate([_NONE, *(columns.seq_ids for columns in self.v2.segment_columns())])
        for positions in self._v1_alone.walk():
            if isinstance(positions, Finding):
                if positions.severity == "damage":
                    yield seq_id, positions
                continue
            seq_id = positions.first_seq_id
            columns = self.v1.index.columns_of(positions)
            selected = np.isin(columns.seq_ids, added)
            if include_acked:
                selected |= columns.acked & columns.restored & ~np.isin(columns.seq_ids, v2_seq_ids)
            for _, message in messages_of(columns.rows(np.flatnonzero(selected)), self.bodies):
                seq_id = message.seq_id if isinstance(message, StoredMessage) else seq_id
                yield seq_id, message


def _is_of_other_version(finding: Finding) -> bool:
    """Whether it reports a file of the other version's index."""
    name = finding.path.rpartition("/")[2]
    return finding.kind == "leftover file" and (disk.is_of_v1(name) or disk.is_of_v2(name))


def _in_order(parts: list[SegmentColumns]) -> Iterator[SegmentColumns]:
    """Cut each part where another one continues, and yield the pieces in the order of their positions."""
    ends = [np.full(len(part), number, np.int64) for number, part in enumerate(parts)]
    seq_ids = np.concatenate([_NONE, *(part.seq_ids for part in parts)])
    part_of = np.concatenate([_NONE, *ends])
    row_of = np.concatenate([_NONE, *(np.arange(len(part)) for part in parts)])
    order = np.argsort(seq_ids, kind="stable")
    part_of, row_of = part_of[order], row_of[order]
    edges = [0, *(np.flatnonzero(np.diff(part_of)) + 1).tolist(), len(order)]
    for low, high in pairwise(edges if len(order) else ()):
        yield parts[int(part_of[low])].rows(row_of[low:high])
