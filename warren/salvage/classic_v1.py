"""A classic queue's directory, version 1: journal and segments, read as a restarting broker reads them.

A restarted broker delivers a queue's persistent, unacked messages in the order of their seq_ids, below ``next_seq_id``
where a clean stop left terms. It has delivered before what lies below ``next_deliver_seq_id``, and all of it where
there are no terms. Positions are read segment by segment: memory is that of one segment and the journal's numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import numpy as np

from warren.queue_index import directory as disk
from warren.queue_index.record_format import JOURNAL, SEGMENT, Bools, Ints
from warren.queue_index.recovery_terms import RecoveryTerms
from warren.salvage import classic_rules, classic_v1_findings, classic_v1_index
from warren.salvage.classic_rules import msg_ids_of
from warren.salvage.message_runs import RUN_MESSAGES, cut_runs, rows_at
from warren.salvage.names import Json
from warren.salvage.needed_body import Reference, with_bodies
from warren.salvage.positions import JournalBySegment, Positions
from warren.salvage.queue_directory import (
    BodySource,
    Extent,
    Finding,
    IndexColumns,
    MessageRun,
    MsgIds,
    StoredMessage,
    Summary,
    missing_body,
    one_by_one,
)
from warren.salvage.queue_index_file import Bodies, QueueIndexFile
from warren.salvage.read_only import ReadOnlyFileSystem, below

KIND: Final = "rabbitmq-classic-v1"


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
        return one_by_one(self.message_runs(include_acked=include_acked))

    def message_runs(
        self, *, include_acked: bool = False, only: range | None = None
    ) -> Iterator[StoredMessage | MessageRun | Finding]:
        for one in classic_v1_findings.walk(self, only):
            if not isinstance(one, Finding):
                yield from self._runs_of(one, include_acked=include_acked)
            elif one.severity == "damage":
                yield one

    def _runs_of(self, positions: Positions, *, include_acked: bool) -> Iterator[StoredMessage | MessageRun | Finding]:
        """Of a segment that is open."""
        wanted = positions.unacked | positions.acked if include_acked else positions.unacked
        rel_seqs = np.flatnonzero(wanted & positions.persistent & self.seen(positions))
        bodies = positions.bodies(rel_seqs)
        for part, is_run in self._cut(positions, rel_seqs, bodies):
            chosen, its_bodies = rel_seqs[part], bodies[part]
            run = self._run(positions, chosen, its_bodies) if is_run else None
            if run is not None:
                yield run
            else:
                yield from self.messages_of(positions, chosen, its_bodies)

    def index_columns(self, only: range | None = None) -> Iterator[IndexColumns | Finding]:
        return classic_v1_index.of_directory(self, only)

    def references(self, *, persistent: bool) -> Iterator[MsgIds]:
        with self.journal() as journal:
            for positions in self.segments(journal):
                wanted = positions.unacked & (positions.persistent == persistent) & (positions.embedded_sizes == 0)
                yield msg_ids_of(positions.bodies(np.flatnonzero(wanted)))

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
                yield int((wanted & ~elsewhere).sum()), msg_ids_of(positions.bodies(np.flatnonzero(elsewhere)))

    @contextmanager
    def journal(self) -> Iterator[JournalBySegment]:
        """The journal, open."""
        file = QueueIndexFile.open(self.files, below(self.path, disk.JOURNAL_NAME), JOURNAL)
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
            file = QueueIndexFile.open(self.files, below(self.path, disk.segment_name(number)), SEGMENT)
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
            there[~there] = self.bodies.contains_each(msg_ids_of(bodies[~there]))
        sizes: Ints = bodies["size"][there].astype(np.int64)
        return sizes

    def _cut(self, positions: Positions, rel_seqs: Ints, bodies: Bodies) -> list[tuple[slice, bool]]:
        """Where to cut positions: see :func:`warren.salvage.message_runs.cut_runs`."""
        embedded = positions.embedded_sizes[rel_seqs]
        sizes = np.where(embedded == 0, bodies["size"].astype(np.int64), embedded)
        before = classic_rules.redelivered(self.terms, positions.first_seq_id + rel_seqs)
        columns = before, positions.from_file[rel_seqs]
        return cut_runs(sizes, positions.acked[rel_seqs], embedded == 0, columns)

    def _run(self, positions: Positions, rel_seqs: Ints, bodies: Bodies) -> MessageRun | None:
        """Uniform messages as columns; ``None``: they are better read one by one."""
        if len(rel_seqs) < RUN_MESSAGES or int(bodies["expiry_us"].max()) >= classic_rules.NO_EXPIRY_US:
            return None
        file = positions.file if positions.from_file[rel_seqs[0]] else positions.journal
        _, offsets, embedded_at = positions.records(rel_seqs)
        size = int(positions.embedded_sizes[rel_seqs[0]])
        embedded = size > 0
        encoded = (
            rows_at(file, np.array(embedded_at), size) if embedded else self.bodies.read_uniform(msg_ids_of(bodies))
        )
        if encoded is None:
            return None
        seq_ids = positions.first_seq_id + rel_seqs
        return MessageRun(
            seq_ids=seq_ids,
            msg_ids=np.ascontiguousarray(bodies["msg_id"]).view(np.uint8).reshape(len(rel_seqs), -1),
            expiries_us=bodies["expiry_us"].astype(np.uint64),
            redelivered=bool(classic_rules.redelivered(self.terms, seq_ids[:1])[0]),
            encoded=encoded,
            path=file.path,
            offsets=np.array(offsets, np.int64),
        )

    def messages_of(self, positions: Positions, rel_seqs: Ints, bodies: Bodies) -> Iterator[StoredMessage | Finding]:
        """One by one, of a segment that is open; ``bodies``: of these positions' records."""
        seq_ids = positions.first_seq_id + rel_seqs
        columns = zip(
            seq_ids.tolist(),
            classic_rules.redelivered(self.terms, seq_ids).tolist(),
            positions.acked[rel_seqs].tolist(),
            bodies["msg_id"].tolist(),
            bodies["expiry_us"].tolist(),
            positions.embedded_sizes[rel_seqs].tolist(),
            *positions.records(rel_seqs),
            strict=True,
        )
        elsewhere = positions.embedded_sizes[rel_seqs] == 0
        stored = self.bodies.read_each(msg_ids_of(bodies[elsewhere])) if elsewhere.any() else iter(())
        for seq_id, redelivered, acked, msg_id, expiry_us, embedded_size, file, offset, embedded_at in columns:
            encoded = file.read(embedded_size, embedded_at) if embedded_size else next(stored)
            if not isinstance(encoded, bytes):
                if not acked:
                    yield missing_body(file.path, offset, seq_id, msg_id, encoded)
                continue
            yield StoredMessage(seq_id, msg_id, True, redelivered, acked, expiry_us, encoded, file.path, offset)
