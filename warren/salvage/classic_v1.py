"""A classic queue's directory, version 1: journal and segments, read as a restarting broker reads them.

A restarted broker delivers a queue's persistent, unacked messages in the order of their seq_ids, below ``next_seq_id``
where a clean stop left terms. It has delivered before what lies below ``next_deliver_seq_id``, and all of it where
there are no terms. Positions are taken up segment by segment: memory is that of one segment and the journal's numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import numpy as np

from queue_index import directory as disk
from queue_index.record_format import JOURNAL, SEGMENT, Bools, Ints, Octets
from queue_index.recovery_terms import RecoveryTerms
from warren.salvage import classic_rules, classic_v1_findings, classic_v1_index
from warren.salvage.alike import STRETCH_BYTES, STRETCH_MESSAGES, cut_alike
from warren.salvage.index_file import Bodies, IndexFile
from warren.salvage.names import Json
from warren.salvage.needed_body import Reference, with_bodies
from warren.salvage.positions import JournalBySegment, Positions
from warren.salvage.queue_directory import (
    MSG_IDS,
    BodySource,
    Extent,
    Finding,
    IndexColumns,
    MsgIds,
    StoredMessage,
    Stretch,
    Summary,
    missing_body,
    one_by_one,
)
from warren.salvage.read_only import ReadOnlyFileSystem, below

KIND: Final = "rabbitmq-classic-v1"

_NO_EXPIRY_US: Final = 1 << 63
"""No broker writes such a number, and columns cannot hold it."""


@attrs.frozen(eq=False, kw_only=True)
class ClassicV1Directory:
    """Answers :class:`warren.salvage.queue_directory.QueueDirectory`."""

    files: ReadOnlyFileSystem
    path: str
    name: bytes
    segment_entry_count: int
    terms: RecoveryTerms | None
    """``None``: the queue was not stopped cleanly."""
    bodies: BodySource
    """The vhost's persistent store."""

    @property
    def kind(self) -> str:
        return KIND

    def summary(self) -> Summary:
        ready = payload_bytes = 0
        segments: list[Json] = []
        with self.journal() as journal:
            for positions in self.segments(journal):
                columns = positions.file.columns
                shorts = np.bincount(columns.delivers)
                segments.append(
                    {
                        "number": positions.number,
                        "publish": len(columns.publish_numbers),
                        "deliver": int((shorts >= 1).sum()),
                        "ack": int((shorts >= 2).sum()),
                        "unacked": int(positions.unacked.sum()),
                    }
                )
                sizes = self._deliverable_sizes(positions)
                ready += len(sizes)
                payload_bytes += int(sizes.sum())
            columns, size = journal.file.columns, journal.file.size
            persistent = int(columns.publish_persistent.sum())
            counts: dict[str, Json] = {
                "publish_persistent": persistent,
                "publish_transient": len(columns.publish_numbers) - persistent,
                "deliver": len(columns.delivers),
                "ack": len(columns.acks),
                "torn_bytes": size - columns.end,
            }
        details: dict[str, Json] = {"type": "classic", "version": 1, "journal": counts, "segments": segments}
        return Summary(ready, payload_bytes, details)

    def extent(self) -> Extent:
        journal = below(self.path, disk.JOURNAL_NAME)
        pieces = {n: self.files.size(below(self.path, disk.segment_name(n))) for n in sorted(self.segment_files())}
        return Extent(pieces, self.files.size(journal) if self.files.exists(journal) else 0, self.segment_entry_count)

    def messages(self, *, include_acked: bool = False) -> Iterator[StoredMessage | Finding]:
        return one_by_one(self.stretches(include_acked=include_acked))

    def stretches(
        self, *, include_acked: bool = False, only: range | None = None
    ) -> Iterator[StoredMessage | Stretch | Finding]:
        for one in classic_v1_findings.walk(self, only):
            if not isinstance(one, Finding):
                yield from self._stretches_of(one, include_acked=include_acked)
            elif one.severity == "damage":
                yield one

    def _stretches_of(
        self, positions: Positions, *, include_acked: bool
    ) -> Iterator[StoredMessage | Stretch | Finding]:
        """Of a segment that is open."""
        wanted = positions.unacked | positions.acked if include_acked else positions.unacked
        rel_seqs = np.flatnonzero(wanted & positions.persistent & self.seen(positions))
        bodies = positions.bodies(rel_seqs)
        for part, are_alike in self._alike(positions, rel_seqs, bodies):
            chosen, its_bodies = rel_seqs[part], bodies[part]
            stretch = self._stretch(positions, chosen, its_bodies) if are_alike else None
            if stretch is not None:
                yield stretch
            else:
                yield from self.messages_of(positions, chosen, its_bodies)

    def index_columns(self, only: range | None = None) -> Iterator[IndexColumns | Finding]:
        return classic_v1_index.of_directory(self, only)

    def references(self, *, persistent: bool) -> Iterator[MsgIds]:
        with self.journal() as journal:
            for positions in self.segments(journal):
                wanted = positions.unacked & (positions.persistent == persistent) & (positions.embedded_sizes == 0)
                yield _ids(positions.bodies(np.flatnonzero(wanted)))

    def knows_references(self) -> bool:
        return True

    def findings(self) -> Iterator[Finding]:
        return with_bodies(self.own_findings(), self.bodies)

    def own_findings(self) -> Iterator[Finding | Reference]:
        return classic_v1_findings.of_directory(self)

    def count(self, only: range) -> int:
        with self.journal() as journal:
            return sum(len(self._deliverable_sizes(positions)) for positions in self.segments(journal, only))

    def deliverable(self, only: range) -> Iterator[tuple[int, MsgIds]]:
        with self.journal() as journal:
            for positions in self.segments(journal, only):
                wanted = positions.unacked & positions.persistent & self.seen(positions)
                elsewhere = wanted & (positions.embedded_sizes == 0)
                yield int((wanted & ~elsewhere).sum()), _ids(positions.bodies(np.flatnonzero(elsewhere)))

    @contextmanager
    def journal(self) -> Iterator[JournalBySegment]:
        """The journal, open."""
        file = IndexFile.open(self.files, below(self.path, disk.JOURNAL_NAME), JOURNAL)
        try:
            yield JournalBySegment(file, self.segment_entry_count)
        finally:
            file.close()

    def segments(self, journal: JournalBySegment, only: range | None = None) -> Iterator[Positions]:
        """The segments that have a file or that the journal publishes to, in order; each is open until the next.

        ``only``: those with these numbers.
        """
        numbers = self.segment_files() | journal.published
        for number in sorted(numbers if only is None else filter(only.__contains__, numbers)):
            file = IndexFile.open(self.files, below(self.path, disk.segment_name(number)), SEGMENT)
            try:
                yield Positions.of(number, file, journal, self.segment_entry_count)
            finally:
                file.close()

    def segment_files(self) -> set[int]:
        """The numbers of the segment files there are."""
        numbers = ((name, disk.segment_number(name)) for name in self.files.list(self.path))
        return {number for name, number in numbers if number is not None and disk.segment_name(number) == name}

    def seen(self, positions: Positions) -> Bools:
        """Which positions a restarted broker looks at: those below ``next_seq_id``."""
        return classic_rules.seen(self.terms, positions.first_seq_id, len(positions.facts))

    def _deliverable_sizes(self, positions: Positions) -> Ints:
        """The payloads' sizes of what would be delivered."""
        rel_seqs = np.flatnonzero(positions.unacked & positions.persistent & self.seen(positions))
        bodies = positions.bodies(rel_seqs)
        there = positions.embedded_sizes[rel_seqs] > 0
        if not there.all():
            there[~there] = self.bodies.contains_each(_ids(bodies[~there]))
        sizes: Ints = bodies["size"][there].astype(np.int64)
        return sizes

    def _alike(self, positions: Positions, rel_seqs: Ints, bodies: Bodies) -> list[tuple[slice, bool]]:
        """Where to cut positions: see :func:`warren.salvage.alike.cut_alike`."""
        embedded = positions.embedded_sizes[rel_seqs]
        sizes = np.where(embedded == 0, bodies["size"].astype(np.int64), embedded)
        below = classic_rules.redelivered_below(self.terms)
        before = np.zeros(len(rel_seqs), np.bool_) if below is None else positions.first_seq_id + rel_seqs < below
        columns = before, positions.from_file[rel_seqs]
        return cut_alike(sizes, positions.acked[rel_seqs], embedded == 0, columns)

    def _stretch(self, positions: Positions, rel_seqs: Ints, bodies: Bodies) -> Stretch | None:
        """Messages that are alike as columns; ``None``: they are better read one by one."""
        if len(rel_seqs) < STRETCH_MESSAGES or int(bodies["expiry_us"].max()) >= _NO_EXPIRY_US:
            return None
        file = positions.file if positions.from_file[rel_seqs[0]] else positions.journal
        _, offsets, embedded_at = positions.records(rel_seqs)
        size = int(positions.embedded_sizes[rel_seqs[0]])
        embedded = size > 0
        encoded = _rows(file, np.array(embedded_at), size) if embedded else self.bodies.read_alike(_ids(bodies))
        if encoded is None:
            return None
        seq_ids = positions.first_seq_id + rel_seqs
        below = classic_rules.redelivered_below(self.terms)
        return Stretch(
            seq_ids=seq_ids,
            msg_ids=np.ascontiguousarray(bodies["msg_id"]).view(np.uint8).reshape(len(rel_seqs), -1),
            expiries_us=bodies["expiry_us"].astype(np.uint64),
            redelivered=below is None or int(seq_ids[0]) < below,
            encoded=encoded,
            path=file.path,
            offsets=np.array(offsets, np.int64),
        )

    def messages_of(self, positions: Positions, rel_seqs: Ints, bodies: Bodies) -> Iterator[StoredMessage | Finding]:
        """One by one, of a segment that is open; ``bodies``: of these positions' records."""
        redelivered_below = classic_rules.redelivered_below(self.terms)
        columns = zip(
            rel_seqs.tolist(),
            positions.acked[rel_seqs].tolist(),
            bodies["msg_id"].tolist(),
            bodies["expiry_us"].tolist(),
            positions.embedded_sizes[rel_seqs].tolist(),
            *positions.records(rel_seqs),
            strict=True,
        )
        first_seq_id = positions.first_seq_id
        elsewhere = positions.embedded_sizes[rel_seqs] == 0
        stored = self.bodies.read_each(_ids(bodies[elsewhere])) if elsewhere.any() else iter(())
        for rel_seq, acked, msg_id, expiry_us, embedded_size, file, offset, embedded_at in columns:
            seq_id = first_seq_id + rel_seq
            encoded = file.read(embedded_size, embedded_at) if embedded_size else next(stored)
            if not isinstance(encoded, bytes):
                if not acked:
                    yield missing_body(file.path, offset, seq_id, msg_id, encoded)
                continue
            redelivered = redelivered_below is None or seq_id < redelivered_below
            yield StoredMessage(seq_id, msg_id, True, redelivered, acked, expiry_us, encoded, file.path, offset)


def _ids(bodies: Bodies) -> MsgIds:
    return np.ascontiguousarray(bodies["msg_id"]).view(MSG_IDS)


def _rows(file: IndexFile, at: Ints, size: int) -> Octets | None:
    """``size`` bytes from each of these offsets; ``None``: they lie too far apart to be read at once."""
    low, high = int(at.min()), int(at.max()) + size
    if high - low > 4 * STRETCH_BYTES:
        return None
    window = np.frombuffer(file.read(high - low, low), np.uint8)
    rows: Octets = np.lib.stride_tricks.sliding_window_view(window, size)[at - low]
    return rows
