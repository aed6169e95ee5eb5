"""A classic queue's directory in the middle of a change from one version to the other, which a crash cut short.

Either change publishes each message of the old index into the new one, at the same position, before the old one's
files go: segment by segment. So both may tell of a message, and what one lacks the other has. What ``.qi`` can give
counts; ``.idx`` and journal *add* what it cannot. Bodies in the vhost's store stay where they are.

It is read as a whole, for segments of the two have different sizes. Memory is that of one segment of each, and of the
positions' numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Final

import attrs
import numpy as np

from warren.queue_index import directory as disk
from warren.queue_index.record_format import Ints
from warren.queue_index.recovery_terms import RecoveryTerms
from warren.salvage import classic_v1_findings, classic_v2_findings
from warren.salvage.classic_rules import CHANGED
from warren.salvage.classic_v1 import ClassicV1Directory
from warren.salvage.classic_v2 import KIND, ClassicV2Directory
from warren.salvage.needed_body import Reference, with_bodies
from warren.salvage.positions import Positions
from warren.salvage.queue_directory import (
    MSG_IDS,
    BodySource,
    Extent,
    Finding,
    IndexColumns,
    MessageRun,
    MsgIds,
    QueueDirectory,
    StoredMessage,
    Summary,
)
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.salvage.segment_v2 import read_message

DAMAGED_COPY: Final = "damaged copy"
"""Kind of a finding: of a message that ``.qi`` cannot give, and the old index can."""

_NONE: Final = np.empty(0, np.int64)


@attrs.frozen(eq=False, kw_only=True)
class ClassicConvertingDirectory:
    """Answers :class:`warren.salvage.queue_directory.QueueDirectory`."""

    files: ReadOnlyFileSystem
    path: str
    name: bytes
    segment_entry_count: int
    """Of version 1."""
    terms: RecoveryTerms | None
    """``None``: the queue was not stopped cleanly."""
    bodies: BodySource
    """The vhost's persistent store."""

    @property
    def kind(self) -> str:
        return KIND

    @property
    def v1(self) -> ClassicV1Directory:
        """What is left of the index of version 1, by itself."""
        return ClassicV1Directory(
            files=self.files,
            path=self.path,
            name=self.name,
            segment_entry_count=self.segment_entry_count,
            terms=self.terms,
            bodies=self.bodies,
        )

    @property
    def v2(self) -> ClassicV2Directory:
        """What there is of version 2, by itself."""
        return ClassicV2Directory(
            files=self.files, path=self.path, name=self.name, terms=self.terms, bodies=self.bodies
        )

    def summary(self) -> Summary:
        v1, v2 = self.v1, self.v2
        old, new = v1.summary().details, v2.summary().details
        ready, payload_bytes, added = 0, 0, self._added()
        for segment in v2.segments():
            rel_seqs = v2.had(segment)
            sizes = segment.entries["size"][rel_seqs[~np.isin(segment.first_seq_id + rel_seqs, added)]]
            ready += len(sizes)
            payload_bytes += int(sizes.sum(dtype=np.int64))
        for positions, rel_seqs in self._in_v1(added):
            bodies = positions.bodies(rel_seqs)
            there = positions.embedded_sizes[rel_seqs] > 0
            there[~there] = self.bodies.contains_each(np.ascontiguousarray(bodies["msg_id"][~there]).view(MSG_IDS))
            ready += int(there.sum())
            payload_bytes += int(bodies["size"][there].sum(dtype=np.int64))
        left = {"journal": old["journal"], "segments": old["segments"]}
        return Summary(ready, payload_bytes, {**new, "converting": left})

    def extent(self) -> Extent:
        old, new = self.v1.extent(), self.v2.extent()
        return Extent({}, old.shared_bytes + sum(old.pieces.values()) + sum(new.pieces.values()), None)

    def messages(self, *, include_acked: bool = False) -> Iterator[StoredMessage | Finding]:
        added = self._added()
        of_v2 = self._of_v2(added, include_acked=include_acked)
        of_v1 = self._of_v1(added, include_acked=include_acked)
        yield from map(itemgetter(1), heapq.merge(of_v2, of_v1, key=itemgetter(0)))

    def message_runs(
        self, *, include_acked: bool = False, only: range | None = None
    ) -> Iterator[StoredMessage | MessageRun | Finding]:
        return self.messages(include_acked=include_acked) if only is None or only else iter(())

    def index_columns(self, only: range | None = None) -> Iterator[IndexColumns | Finding]:
        found: tuple[list[IndexColumns], list[IndexColumns]] = [], []
        queues: tuple[QueueDirectory, QueueDirectory] = self.v2, self.v1
        for columns, queue in zip(found, queues, strict=True):
            for one in queue.index_columns() if only is None or only else ():
                if not isinstance(one, Finding):
                    columns.append(one)
                elif not _is_of_other_version(one) and one.kind != CHANGED:
                    yield one
        new, old = found
        live = np.concatenate([_NONE, *(one.seq_ids[~one.acked] for one in new)])
        old = [one.rows(np.flatnonzero(~np.isin(one.seq_ids, live))) for one in old]
        told = np.concatenate([_NONE, *(one.seq_ids for one in old)])
        new = [one.rows(np.flatnonzero(~np.isin(one.seq_ids, told))) for one in new]
        yield from _in_order([one for one in new + old if len(one)])

    def count(self, only: range) -> int:
        return self.summary().ready if only else 0

    def deliverable(self, only: range) -> Iterator[tuple[int, MsgIds]]:
        if not only:
            return
        v2, added = self.v2, self._added()
        for segment in v2.segments():
            wanted = segment.live & segment.persistent & v2.seen(segment)
            wanted &= ~np.isin(segment.first_seq_id + np.arange(len(wanted)), added)
            ids = np.ascontiguousarray(segment.entries["msg_id"][wanted & segment.elsewhere]).view(MSG_IDS)
            yield int((wanted & segment.inside).sum()), ids
        for positions, rel_seqs in self._in_v1(added):
            stored = rel_seqs[positions.embedded_sizes[rel_seqs] == 0]
            ids = np.ascontiguousarray(positions.bodies(stored)["msg_id"]).view(MSG_IDS)
            yield len(rel_seqs) - len(stored), ids

    def references(self, *, persistent: bool) -> Iterator[MsgIds]:
        yield from self.v2.references(persistent=persistent)
        yield from self.v1.references(persistent=persistent)

    def knows_references(self) -> bool:
        return self.v2.knows_references()

    def findings(self) -> Iterator[Finding]:
        return with_bodies(self.own_findings(), self.bodies)

    def own_findings(self) -> Iterator[Finding | Reference]:
        detail = "a change of version that a crash cut short: .qi counts, and .idx adds what it lacks"
        yield Finding("leftover conversion", "leftover", self.path, None, detail)
        for queue in (self._v2_alone, self._v1_alone):
            for found in queue.own_findings():
                if not (isinstance(found, Finding) and _is_of_other_version(found)):
                    yield found

    @property
    def _v1_alone(self) -> ClassicV1Directory:
        """Without terms: a clean stop counts messages once, and it is one index that it counts."""
        return attrs.evolve(self.v1, terms=None)

    @property
    def _v2_alone(self) -> ClassicV2Directory:
        return attrs.evolve(self.v2, terms=None)

    # ── the two together ─────────────────────────────────────────────────────────────────────────────────────────────

    def _added(self) -> Ints:
        """The positions, ascending, of live messages of the old index that the new one cannot give."""
        v1, v2 = self.v1, self.v2
        with v1.journal() as journal:
            of_v1 = [
                positions.first_seq_id + np.flatnonzero(positions.unacked & positions.persistent & v1.seen(positions))
                for positions in v1.segments(journal)
            ]
        old = np.concatenate([_NONE, *of_v1])
        for segment in v2.segments():
            rel_seqs = v2.had(segment)
            common = rel_seqs[np.isin(segment.first_seq_id + rel_seqs, old)]
            is_good = [
                bool(segment.elsewhere[rel_seq]) or isinstance(read_message(segment, rel_seq), bytes)
                for rel_seq in common.tolist()
            ]
            old = np.setdiff1d(old, segment.first_seq_id + common[np.array(is_good, np.bool_)], assume_unique=True)
        return np.sort(old)

    def _in_v1(self, wanted: Ints) -> Iterator[tuple[Positions, Ints]]:
        """The segments of the old index, with those of their positions that are among these."""
        v1 = self.v1
        with v1.journal() as journal:
            for positions in v1.segments(journal):
                seq_ids = positions.first_seq_id + np.arange(len(positions.facts))
                yield positions, np.flatnonzero(np.isin(seq_ids, wanted))

    def _of_v2(self, added: Ints, *, include_acked: bool) -> Iterator[tuple[int, StoredMessage | Finding]]:
        """What the new index gives. What the old one adds is damaged here, and not missing."""
        replaced, at = set(added.tolist()), 0
        for one in classic_v2_findings.walk(self._v2_alone):
            if isinstance(one, Finding):
                if one.severity == "damage":
                    yield at, one
                continue
            at = one.first_seq_id
            for at, found in self.v2.messages_of(one, include_acked=include_acked):
                if at not in replaced:
                    yield at, found
                elif isinstance(found, Finding):
                    yield at, attrs.evolve(found, kind=DAMAGED_COPY)

    def _of_v1(self, added: Ints, *, include_acked: bool) -> Iterator[tuple[int, StoredMessage | Finding]]:
        """What the old index adds; a finding stands behind the message before it."""
        v1, at = self.v1, 0
        told = self._told_by_v2() if include_acked else _NONE
        for one in classic_v1_findings.walk(self._v1_alone):
            if isinstance(one, Finding):
                if one.severity == "damage":
                    yield at, one
                continue
            at = one.first_seq_id
            seq_ids = one.first_seq_id + np.arange(len(one.facts))
            wanted = np.isin(seq_ids, added)
            if include_acked:
                wanted |= one.acked & one.persistent & v1.seen(one) & ~np.isin(seq_ids, told)
            rel_seqs = np.flatnonzero(wanted)
            for found in v1.messages_of(one, rel_seqs, one.bodies(rel_seqs)):
                at = found.seq_id if isinstance(found, StoredMessage) else at
                yield at, found

    def _told_by_v2(self) -> Ints:
        """The positions of which the new index says anything."""
        parts = [segment.first_seq_id + np.flatnonzero(segment.live | segment.acked) for segment in self.v2.segments()]
        return np.concatenate([_NONE, *parts])


def _is_of_other_version(found: Finding) -> bool:
    """Whether it says of one version's index that it is none of the other version."""
    name = found.path.rpartition("/")[2]
    return found.kind == "leftover file" and (disk.is_of_v1(name) or disk.is_of_v2(name))


def _in_order(parts: list[IndexColumns]) -> Iterator[IndexColumns]:
    """Cut where another part goes on, and each piece in its turn."""
    ends = [np.full(len(part), number, np.int64) for number, part in enumerate(parts)]
    seq_ids = np.concatenate([_NONE, *(part.seq_ids for part in parts)])
    part_of, row_of = np.concatenate([_NONE, *ends]), np.concatenate([_NONE, *map(_row_numbers, parts)])
    order = np.argsort(seq_ids, kind="stable")
    part_of, row_of = part_of[order], row_of[order]
    edges = [0, *(np.flatnonzero(np.diff(part_of)) + 1).tolist(), len(order)]
    for low, high in pairwise(edges if len(order) else ()):
        yield parts[int(part_of[low])].rows(row_of[low:high])


def _row_numbers(columns: IndexColumns) -> Ints:
    return np.arange(len(columns))
