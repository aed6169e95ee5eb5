"""A classic queue's directory, version 2: index segments and the queue's own store, as a restarting broker reads them.

A restarted broker delivers a queue's persistent messages that are not acked in the order of their positions, below
``next_seq_id`` where a clean stop left terms. It has delivered before what lies below ``next_deliver_seq_id``, and all
of it where there are no terms. What it cannot find, or what fails its check, is acked; here that is a finding.
Positions are read segment by segment: memory is that of one segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np

from warren.queue_index import directory as disk
from warren.queue_index import index_v2_format as v2
from warren.queue_index.message_format import MSG_ID_BYTES, decode_message, locate_body
from warren.queue_index.message_template import MessageTemplate
from warren.queue_index.record_format import Bools, Ints, Octets
from warren.queue_index.recovery_terms import RecoveryTerms
from warren.salvage import classic_rules, classic_v2_findings, classic_v2_index
from warren.salvage.classic_rules import msg_ids_of
from warren.salvage.message_runs import RUN_MESSAGES, cut_runs, rows_at
from warren.salvage.names import Json
from warren.salvage.needed_body import Reference, with_bodies
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
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.segment_v2 import SegmentV2, read_message
from warren.storage.errors import DataError, MessageError, StorageError

KIND: Final = "rabbitmq-classic-v2"


_HEADERS_ASKED = 16
"""So many files of a directory are asked how many entries a segment has."""


@attrs.frozen(eq=False, kw_only=True)
class ClassicV2Directory:
    """Answers :class:`warren.salvage.queue_directory.QueueDirectory`."""

    files: ReadOnlyFileSystem
    path: str
    name: bytes
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
        for segment in self.segments():
            live, acked = int(segment.live.sum()), int(segment.acked.sum())
            segments.append(
                {
                    "number": segment.number,
                    "entries": live + acked,
                    "live": live,
                    "acked": acked,
                    "qi_bytes": segment.index_size,
                    "qs_bytes": segment.store.size,
                }
            )
            rel_seqs = self.had(segment)
            ready += len(rel_seqs)
            payload_bytes += int(segment.entries["size"][rel_seqs].sum(dtype=np.int64))
        return Summary(ready, payload_bytes, {"type": "classic", "version": 2, "segments": segments})

    def extent(self) -> Extent:
        pieces = {
            number: sum(
                self.files.size(path)
                for suffix in (v2.INDEX_SUFFIX, v2.STORE_SUFFIX)
                if self.files.exists(path := below(self.path, f"{number}{suffix}"))
            )
            for number in self.numbers()
        }
        return Extent(pieces, 0, self.entry_count())

    def messages(self, *, include_acked: bool = False) -> Iterator[StoredMessage | Finding]:
        return one_by_one(self.message_runs(include_acked=include_acked))

    def message_runs(
        self, *, include_acked: bool = False, only: range | None = None
    ) -> Iterator[StoredMessage | MessageRun | Finding]:
        for one in classic_v2_findings.walk(self, only):
            if not isinstance(one, Finding):
                yield from self._runs_of(one, include_acked=include_acked)
            elif one.severity == "damage":
                yield one

    def _runs_of(self, segment: SegmentV2, *, include_acked: bool) -> Iterator[StoredMessage | MessageRun | Finding]:
        """Of one that is open."""
        rel_seqs = self._wanted(segment, include_acked=include_acked)
        entries, disputed, inside = segment.entries[rel_seqs], segment.disputed[rel_seqs], segment.inside[rel_seqs]
        elsewhere, acked = segment.elsewhere[rel_seqs], segment.acked[rel_seqs]
        before = self.redelivered(segment.first_seq_id + rel_seqs)
        sizes = np.where(elsewhere, entries["size"], entries["length"]).astype(np.int64)
        single = acked | disputed | ~(elsewhere | inside)
        for part, is_run in cut_runs(sizes, single, elsewhere, (before,)):
            run = self._run(segment, rel_seqs[part]) if is_run else None
            if run is not None:
                yield run
            else:
                for _, found in self._one_by_one(segment, rel_seqs[part]):
                    yield found

    def messages_of(self, segment: SegmentV2, *, include_acked: bool) -> Iterator[tuple[int, StoredMessage | Finding]]:
        """Of one that is open, one by one, each with its position, also what is no message."""
        return self._one_by_one(segment, self._wanted(segment, include_acked=include_acked))

    def index_columns(self, only: range | None = None) -> Iterator[IndexColumns | Finding]:
        return classic_v2_index.of_directory(self, only)

    def references(self, *, persistent: bool) -> Iterator[MsgIds]:
        for segment in self.segments():
            wanted = segment.live & segment.elsewhere & (segment.persistent == persistent)
            yield msg_ids_of(segment.entries[wanted])

    def knows_references(self) -> bool:
        return all(segment.problem is None for segment in self.segments())

    def findings(self) -> Iterator[Finding]:
        return with_bodies(self.own_findings(), self.bodies)

    def own_findings(self) -> Iterator[Finding | Reference]:
        return classic_v2_findings.of_directory(self)

    def count(self, only: range) -> int:
        return sum(len(self.had(segment)) for segment in self.segments(only))

    def deliverable(self, only: range) -> Iterator[tuple[int, MsgIds]]:
        for segment in self.segments(only):
            wanted = segment.live & segment.persistent & self.seen(segment)
            yield int((wanted & segment.inside).sum()), msg_ids_of(segment.entries[wanted & segment.elsewhere])

    # ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def numbers(self) -> list[int]:
        """Of the segments that have a file, in order."""
        return sorted(set(self._files()))

    def segments(self, only: range | None = None) -> Iterator[SegmentV2]:
        """The segments that have a file, in order; each is open until the next. ``only``: those with these numbers."""
        entry_count = self.entry_count()
        for number in self.numbers():
            if only is not None and number not in only:
                continue
            segment = SegmentV2.open(self.files, self.path, number, entry_count)
            try:
                yield segment
            finally:
                segment.close()

    def entry_count(self) -> int:
        """Entries of a segment: what most headers say; 4096 where none says anything."""
        said: Counter[int] = Counter()
        for number in self.numbers()[:_HEADERS_ASKED]:
            for suffix, magic in ((v2.INDEX_SUFFIX, v2.INDEX_MAGIC), (v2.STORE_SUFFIX, v2.STORE_MAGIC)):
                path = below(self.path, f"{number}{suffix}")
                try:
                    file = self.files.open_read(path)
                    try:
                        count = v2.decode_header(file.pread(v2.HEADER_SIZE, 0), magic, path).entry_count(number)
                    finally:
                        file.close()
                except (DataError, StorageError):
                    continue
                if count is not None:
                    said[count] += 1
        most = max(said.values(), default=0)
        likely = {count for count, times in said.items() if times == most}
        return v2.DEFAULT_ENTRIES if v2.DEFAULT_ENTRIES in likely or not likely else max(likely)

    def strange_files(self) -> list[str]:
        """The names of files that belong to no segment."""
        return sorted(set(self.files.list(self.path)) - {name for names in self._files().values() for name in names})

    def _files(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for name in self.files.list(self.path):
            number = disk.segment_number_v2(name)
            if number is not None and (number + 1) * v2.MAX_ENTRIES <= v2.MAX_POSITION:
                found.setdefault(number, []).append(name)
        return found

    def _wanted(self, segment: SegmentV2, *, include_acked: bool) -> Ints:
        wanted = segment.live | segment.acked if include_acked else segment.live
        return np.flatnonzero(wanted & segment.persistent & self.seen(segment))

    def seen(self, segment: SegmentV2) -> Bools:
        """Which positions a restarted broker looks at: those below ``next_seq_id``."""
        return classic_rules.seen(self.terms, segment.first_seq_id, len(segment.entries))

    def had(self, segment: SegmentV2) -> Ints:
        """The relative positions of what would be delivered, as far as that is known without the messages."""
        wanted = segment.live & segment.persistent & self.seen(segment)
        there = wanted & segment.inside
        stored = np.flatnonzero(wanted & segment.elsewhere)
        if len(stored):
            there[stored] = self.bodies.contains_each(msg_ids_of(segment.entries[stored]))
        return np.flatnonzero(there)

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, segment: SegmentV2, rel_seqs: Ints) -> MessageRun | None:
        """Uniform messages as columns; ``None``: they are better read one by one."""
        entries = segment.entries[rel_seqs]
        if len(rel_seqs) < RUN_MESSAGES or int(entries["expiry_us"].max()) >= classic_rules.NO_EXPIRY_US:
            return None
        if segment.elsewhere[rel_seqs[0]]:
            ids: Octets | None = np.ascontiguousarray(entries["msg_id"]).view(np.uint8).reshape(len(rel_seqs), -1)
            encoded = self.bodies.read_uniform(msg_ids_of(entries))
        else:
            encoded = _rows(segment, entries["offset"].astype(np.int64), int(entries["length"][0]))
            template = None if encoded is None else MessageTemplate.of(encoded[0].tobytes())
            ids = (
                None if encoded is None or template is None or not template.fits(encoded) else template.msg_ids(encoded)
            )
        if encoded is None or ids is None:
            return None
        return MessageRun(
            seq_ids=segment.first_seq_id + rel_seqs,
            msg_ids=ids,
            expiries_us=entries["expiry_us"].astype(np.uint64),
            redelivered=bool(self.redelivered(segment.first_seq_id + rel_seqs[:1])[0]),
            encoded=encoded,
            path=segment.path,
            offsets=segment.entry_offsets(rel_seqs),
        )

    def _one_by_one(self, segment: SegmentV2, rel_seqs: Ints) -> Iterator[tuple[int, StoredMessage | Finding]]:
        entries = segment.entries[rel_seqs]
        elsewhere = segment.elsewhere[rel_seqs]
        stored = self.bodies.read_each(msg_ids_of(entries[elsewhere])) if elsewhere.any() else iter(())
        seq_ids = segment.first_seq_id + rel_seqs
        columns = zip(
            rel_seqs.tolist(),
            seq_ids.tolist(),
            segment.acked[rel_seqs].tolist(),
            self.redelivered(seq_ids).tolist(),
            elsewhere.tolist(),
            entries["msg_id"].tolist(),
            entries["expiry_us"].tolist(),
            segment.entry_offsets(rel_seqs).tolist(),
            strict=True,
        )
        for rel_seq, seq_id, acked, redelivered, is_elsewhere, msg_id, expiry_us, offset in columns:
            encoded = next(stored) if is_elsewhere else read_message(segment, rel_seq)
            if isinstance(encoded, bytes):
                its_id = msg_id if is_elsewhere else _msg_id_of(encoded)
                found = seq_id, its_id, True, redelivered, acked, expiry_us, encoded, segment.path, offset
                yield seq_id, StoredMessage(*found)
            elif acked:
                continue
            elif isinstance(encoded, Finding):
                yield seq_id, encoded
            else:
                yield seq_id, missing_body(segment.path, offset, seq_id, msg_id, encoded)

    def redelivered(self, seq_ids: Ints) -> Bools:
        """Which were delivered before, as far as one can know."""
        return classic_rules.redelivered(self.terms, seq_ids)


def _msg_id_of(encoded: bytes) -> bytes:
    """The id that stands in a message; nothing where it is none, which whoever decodes it will say."""
    place = locate_body(encoded)
    if place is not None:
        return encoded[place[2] : place[2] + MSG_ID_BYTES]
    try:
        return decode_message(encoded).msg_id
    except MessageError:
        return b""


def _rows(segment: SegmentV2, at: Ints, length: int) -> Octets | None:
    """The messages of the records at these offsets; ``None``: one is not sound, or they lie too far apart."""
    size = v2.RECORD_HEAD_SIZE + length
    rows = rows_at(segment.store, at, size)
    if rows is None:
        return None
    heads = np.ascontiguousarray(rows[:, : v2.RECORD_HEAD_SIZE]).view(v2.RECORD_HEAD)[:, 0]
    if (heads["length"] != length).any():
        return None
    data, checked = memoryview(rows.tobytes()), heads["flags"] & v2.CHECKSUM != 0
    starts = range(v2.RECORD_HEAD_SIZE, len(data) + v2.RECORD_HEAD_SIZE, size)
    checksums = np.array([v2.checksum_of(data[start : start + length]) for start in starts], np.uint16)
    return None if (checked & (checksums != heads["checksum"])).any() else rows[:, v2.RECORD_HEAD_SIZE :]
