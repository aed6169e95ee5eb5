"""What is damaged or left over in a classic queue's directory, version 1.

*Leftovers* are what a crash in a flush leaves (formats: "From journal to segment"): a journal that repeats what its
segments say, acks of a segment that was deleted, zeros at a journal's end, a segment of zeros alone. Everything else
that a sound directory does not have is *damage*.

In a durable queue every record's persistent bit equals its message's; in another queue all records say transient. A
directory with any persistent record is a durable queue's.

One walk (:func:`walk`) finds everything that decides which messages are delivered. All readers of the directory use it,
so export reports the same about the index as verify. Only verify compares every message with its record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from warren.queue_index.index import directory as disk
from warren.queue_index.index.facts import ACKED, DELIVERED, IMPOSSIBLE, MINUS, NOTHING, PLUS, PUBLISHED
from warren.queue_index.index.record_format import BODY_SIZE, JOURNAL, Ints
from warren.salvage.classic.classic_directory import UNCOUNTED
from warren.salvage.classic.classic_v1_index import ClassicV1Index
from warren.salvage.classic.needed_body import Reference
from warren.salvage.classic.positions import JournalBySegment, Positions
from warren.salvage.classic.queue_file import QueueIndexFile
from warren.salvage.queue_directory import Finding, unreadable_file
from warren.salvage.queue_reader import compared
from warren.salvage.read_only import below
from warren.storage.columns import distinct

_KNOWN_FILES: Final = frozenset({disk.QUEUE_NAME_FILE, disk.JOURNAL_NAME})
_MAX_SEQ_ID: Final = 1 << 62
_MAX_NAMED: Final = 10


def walk(queue: ClassicV1Index, only: range | None = None) -> Iterator[Positions | Finding]:
    """The segments in order, each open until the next, and all findings about journal and segments.

    ``only``: these segments, and the journal as a whole.
    """
    yield from _strange_files(queue)
    with queue.journal() as journal:
        yield from _journal_as_a_whole(journal)
        yield from _empty_or_missing_journal(queue, journal.file)
        unacked: dict[int, int] = {}
        persistent_unacked, is_full = 0, False
        needless = {number for number in journal.published if journal.begins(number)}
        for positions in queue.segments(journal, only):
            yield from _segment_file(positions)
            yield from _journal_against_segment(positions)
            yield positions
            yield from _unseen(queue, positions)
            unacked[positions.number] = int(positions.unacked.sum())
            persistent_unacked += int((positions.unacked & positions.persistent).sum())
            is_full = len(positions.facts) == queue.segment_entry_count
        yield from _journal_without_segment(journal, set(unacked), queue.segment_entry_count, only)
        words = disk.segment_name, "unacked messages"
        counts = {} if queue.terms is None else dict(queue.terms.segments)
        yield from queue.changed(counts, unacked, persistent_unacked, only, words)
        if only is None:
            yield from queue.missing_segments(queue.segment_files() | needless, is_full, disk.segment_name)


def of_directory(queue: ClassicV1Index) -> Iterator[Finding | Reference]:
    """All findings about a queue's directory from its own files, and its references to the store."""
    is_durable: bool | None = None
    for positions in walk(queue):
        if isinstance(positions, Finding):
            yield positions
            continue
        if is_durable is None:
            is_durable = bool(positions.journal.columns.publish_persistent.any())
        is_durable = is_durable or bool(positions.file.columns.publish_persistent.any())
        columns = queue.columns_of(positions)
        yield from compared(columns.rows(np.flatnonzero(columns.embedded | columns.live)), is_durable=is_durable)


def _damage(kind: str, file: QueueIndexFile, offset: int | None, detail: str) -> Finding:
    return Finding(kind, "damage", file.path, offset, detail)


def _leftover(kind: str, file: QueueIndexFile, offset: int | None, detail: str) -> Finding:
    return Finding(kind, "leftover", file.path, offset, detail)


def _strange_files(queue: ClassicV1Index) -> Iterator[Finding]:
    segments = {disk.segment_name(number) for number in queue.segment_files()}
    yield from _impossible_segments(queue)
    for name in queue.files.list(queue.path):
        if name not in _KNOWN_FILES and name not in segments and not disk.has_impossible_number(name):
            yield Finding("leftover file", "leftover", below(queue.path, name), None, "no file of a queue's index")


def _impossible_segments(queue: ClassicV1Index) -> Iterator[Finding]:
    """Files that may hold messages, but whose names are not valid segment numbers."""
    for name in queue.files.list(queue.path):
        if disk.has_impossible_number(name):
            detail = "no segment has such a number; renamed, its messages can be read"
            yield Finding("impossible segment number", "damage", below(queue.path, name), None, detail)


def ends_in_zeros(file: QueueIndexFile) -> bool:
    """Whether nothing but zeros follows the last record: a leftover, and no torn record."""
    return file.columns.reason == "zeros" and not file.has_bytes_behind(file.columns.end)


def _journal_as_a_whole(journal: JournalBySegment) -> Iterator[Finding]:
    file, columns = journal.file, journal.file.columns
    if file.problem is not None:
        yield unreadable_file(file.path, file.problem)
    yield from _gaps(file)
    rest_bytes = file.size - columns.end
    if ends_in_zeros(file):
        yield _leftover(
            "leftover zeros", file, columns.end, f"{rest_bytes} zero bytes, as a dirty shutdown may leave them"
        )
    elif columns.reason == "zeros":
        yield _damage(
            "bytes behind zeros", file, columns.end, f"a record of zeros ends the journal, {rest_bytes} bytes early"
        )
    elif rest_bytes:
        yield _damage("torn record", file, columns.end, f"{rest_bytes} bytes that hold no whole record")
    for kind, numbers in (("deliver", columns.delivers), ("ack", columns.acks)):
        seq_ids, counts = np.unique(numbers, return_counts=True)
        for seq_id, count in zip(seq_ids[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
            yield _damage("too many records", file, None, f"{count} {kind} records of seq_id {seq_id}")


def _empty_or_missing_journal(queue: ClassicV1Index, journal: QueueIndexFile) -> Iterator[Finding]:
    """A broker creates the journal with a queue's first message, and empties it when all of it is in segments."""
    if not journal.exists and queue.segment_files() and not queue.is_converting:
        yield _damage("missing journal", journal, None, "messages and acks that are not in the segments are lost")
    elif not journal.size and not journal.problem and not queue.is_counted:
        state = "empty: all of it is in segments" if journal.exists else "missing: nothing was published"
        yield _leftover(UNCOUNTED, journal, None, f"{state}, or what stood in it is lost")


def _segment_file(positions: Positions) -> Iterator[Finding]:
    file = positions.file
    if file.exists and not file.size and file.problem is None:
        if positions.published_in_journal.any():
            yield _leftover("leftover empty file", file, None, "opened, and not yet written")
        else:
            yield _damage("empty segment", file, None, "its messages are lost: the journal does not have them either")
    if file.problem is not None:
        yield unreadable_file(file.path, file.problem)
    if file.only_zeros:
        yield _leftover("leftover zeros", file, 0, "a segment of zero bytes alone")
    yield from _gaps(file)
    for finding in positions.file_findings:
        yield _damage(finding.kind, file, finding.offset, finding.detail)


def _gaps(file: QueueIndexFile) -> Iterator[Finding]:
    for start, stop in file.gaps:
        detail = (
            f"{stop - start} bytes that hold no whole record; records continue at {stop}. Messages may be missing, and "
            "if acks were lost, messages come back"
        )
        is_zeros = file.layout is JOURNAL and not any(file.read(JOURNAL.head_size + BODY_SIZE, start))
        yield _damage("bytes behind zeros" if is_zeros else "damaged records", file, start, detail)


def _journal_against_segment(positions: Positions) -> Iterator[Finding]:
    """Compare the journal with a segment that it publishes to, or that has a file."""
    file, in_file, in_journal = positions.journal, positions.in_file.facts, positions.in_journal.facts
    for finding in positions.journal_findings:
        yield _damage(finding.kind, file, finding.offset, finding.detail)

    left = MINUS[in_journal, in_file]
    impossible = (left == IMPOSSIBLE) | (PLUS[in_file, np.where(left == IMPOSSIBLE, 0, left)] == IMPOSSIBLE)
    for rel_seq in np.flatnonzero(impossible).tolist():
        facts = f"{_words(in_journal[rel_seq])} here, {_words(in_file[rel_seq])} in its segment"
        detail = f"seq_id {positions.first_seq_id + rel_seq}: {facts}"
        yield _damage("contradicting records", file, _publish_at(positions, rel_seq), detail)

    unpublished = (in_journal != NOTHING) & ((in_journal | in_file) & PUBLISHED == 0) & ~impossible
    lost = unpublished if positions.file.exists else unpublished & (in_journal & ACKED == 0)
    for rel_seq in np.flatnonzero(lost).tolist():
        yield _damage(
            "entry without publish", file, None, _without_publish(positions.first_seq_id + rel_seq, in_journal[rel_seq])
        )
    yield from _repeated(
        "leftover acks", positions, np.flatnonzero(unpublished & ~lost), "of messages that are gone already"
    )

    twice = np.flatnonzero((in_journal & in_file & PUBLISHED != 0) & ~impossible)
    if len(twice):
        journal_bodies = file.bodies(positions.in_journal.body_at[twice])
        segment_bodies = positions.file.bodies(positions.in_file.body_at[twice])
        differ = journal_bodies != segment_bodies
        for rel_seq in twice[differ].tolist():
            detail = f"seq_id {positions.first_seq_id + rel_seq}: another message than in its segment"
            yield _damage("double publish", file, _publish_at(positions, rel_seq), detail)
        yield from _repeated("leftover publish", positions, twice[~differ], "that the segment has already")
    repeated = (
        (in_journal & PUBLISHED == 0)
        & (in_journal != NOTHING)
        & (in_file & PUBLISHED != 0)
        & (left != in_journal)
        & ~impossible
    )
    yield from _repeated("leftover acks", positions, np.flatnonzero(repeated), "that the segment has already")


def _repeated(kind: str, positions: Positions, rel_seqs: Ints, detail: str) -> Iterator[Finding]:
    """One finding for all of them: a crash in a flush repeats the whole journal."""
    if len(rel_seqs):
        first = int(rel_seqs[0])
        seq_ids = f"{len(rel_seqs)} from seq_id {positions.first_seq_id + first} on, {detail}"
        yield _leftover(kind, positions.journal, _publish_at(positions, first), seq_ids)


def _journal_without_segment(
    journal: JournalBySegment, visited: set[int], segment_entry_count: int, only: range | None
) -> Iterator[Finding]:
    """Acks and delivers in segments that have no other records."""
    delivers, acks = journal.outside(visited)
    if only is not None:
        low, high = only.start * segment_entry_count, min(only.stop * segment_entry_count, _MAX_SEQ_ID)
        delivers, acks = (seq_ids[(seq_ids >= low) & (seq_ids < high)] for seq_ids in (delivers, acks))
    for seq_id in distinct(delivers[~np.isin(delivers, acks)]).tolist():
        yield _damage("entry without publish", journal.file, None, _without_publish(seq_id, DELIVERED))
    if len(acks):
        numbers = [disk.segment_name(number) for number in distinct(acks // segment_entry_count).tolist()]
        names = ", ".join(numbers[:_MAX_NAMED]) + (" …" if len(numbers) > _MAX_NAMED else "")
        detail = f"{len(acks)} from seq_id {acks.min()} on, of segments that are gone already ({names})"
        yield _leftover("leftover acks", journal.file, None, detail)


def _unseen(queue: ClassicV1Index, positions: Positions) -> Iterator[Finding]:
    seq_ids = positions.first_seq_id + np.arange(len(positions.facts))
    unseen = np.flatnonzero(positions.unacked & positions.persistent & ~queue.seen(seq_ids))
    if len(unseen) and queue.terms is not None:
        first = unseen[:1]
        file = positions.file if positions.from_file[first[0]] else positions.journal
        detail = f"{len(unseen)} messages from seq_id {seq_ids[first[0]]} on; next_seq_id is {queue.terms.next_seq_id}"
        yield _damage("messages that no start sees", file, int(positions.record_offsets(first)[0]), detail)


def _publish_at(positions: Positions, rel_seq: int) -> int | None:
    """The offset of a position's publish record in the journal, if it has one."""
    if not positions.published_in_journal[rel_seq]:
        return None
    return int(positions.in_journal.body_at[rel_seq]) - positions.journal.layout.head_size


def _without_publish(seq_id: int, facts: int) -> str:
    return f"seq_id {seq_id}: {_words(facts)}, published nowhere"


def _words(facts: int) -> str:
    names = [
        name for bit, name in ((PUBLISHED, "published"), (DELIVERED, "delivered"), (ACKED, "acked")) if facts & bit
    ]
    return " and ".join(names) or "nothing"
