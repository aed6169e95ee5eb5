"""What is damaged or left over in a classic queue's directory, version 2.

*Leftovers* are what a crash leaves: files that were opened and not yet written, zeros at a file's end, an entry of a
transient message that was kept in memory, and records without an entry: a message that is acked while its entry waits
in memory never gets one, and its record is deleted only with the segment. A hole of whole entries in an index looks the
same; so these records are counted, in one finding for each segment that has any. Everything else that a sound directory
does not have is *damage*.

In a durable queue every entry's persistent bit equals its message's; in another queue all entries say transient. A
directory with any persistent entry is a durable queue's.

One walk (:func:`walk`) finds everything that decides which messages are delivered. All readers of the directory use it,
so export reports the same about the index as verify. Only verify compares every message with its entry, and looks at
records that no live entry points at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from warren.queue_index.index import directory as disk
from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.index.record_format import Bools
from warren.queue_index.index.recovery_terms import v2_index_state
from warren.queue_index.message.message_format import MSG_ID_BYTES
from warren.salvage.classic.classic_v2_index import ClassicV2Index
from warren.salvage.classic.needed_body import Reference
from warren.salvage.classic.queue_file import QueueFile
from warren.salvage.classic.segment_v2 import BAD_HEADER, SegmentV2, problems_of
from warren.salvage.queue_directory import Finding, UnindexedMessage
from warren.salvage.queue_reader import compared
from warren.salvage.read_only import below
from warren.storage.errors import DataError


def walk(queue: ClassicV2Index, only: range | None = None) -> Iterator[SegmentV2 | Finding]:
    """The segments in order, each open until the next, and all findings about index and store files.

    ``only``: these segments.
    """
    for name in queue.strange_files():
        if name != disk.QUEUE_NAME_FILE:
            yield Finding("leftover file", "leftover", below(queue.path, name), None, "no file of a queue's index")
    entry_count = queue.entry_count()
    live: dict[int, int] = {}
    persistent_live, is_full = 0, False
    for segment in queue.segments(only):
        yield from problems_of(segment)
        yield from _index_file(segment, entry_count)
        yield from _store_file(segment, entry_count)
        yield from _entries(segment)
        yield segment
        yield from _unseen(queue, segment)
        live[segment.number] = int(segment.live.sum())
        persistent_live += int((segment.live & segment.persistent).sum())
        is_full = len(segment.entries) == entry_count and bool((segment.live | segment.acked)[-1])
    counts = None if queue.terms is None else v2_index_state(queue.terms, disk.RECOVERY_TERMS_FILE)
    words = _index_name, "live entries"
    yield from queue.changed(live if counts is None else counts, live, persistent_live, only, words)
    if only is None:
        yield from queue.missing_segments(queue.numbers(), is_full, _index_name)


def of_directory(queue: ClassicV2Index) -> Iterator[Finding | Reference]:
    """All findings about a queue's directory from its own files, and its references to the store."""
    is_durable = any(segment.persistent.any() for segment in queue.segments())
    for segment in walk(queue):
        if isinstance(segment, Finding):
            yield segment
            continue
        if segment.index_exists and segment.store.has_bytes_behind(0):
            yield from _records(segment)
        columns = queue.columns_of(segment)
        is_compared = columns.live & (columns.stored | columns.embedded | columns.persistent)
        yield from compared(columns.rows(np.flatnonzero(is_compared)), is_durable=is_durable)


def unindexed(queue: ClassicV2Index) -> Iterator[UnindexedMessage]:
    """Messages in a queue's store without an index entry, also those of segments without an index."""
    for segment in queue.segments():
        if segment.store.has_bytes_behind(0):
            yield from (message for message in _chain(segment) if isinstance(message, UnindexedMessage))


def _index_name(number: int) -> str:
    return f"{number}{v2.INDEX_SUFFIX}"


def _damage(kind: str, path: str, offset: int | None, detail: str) -> Finding:
    return Finding(kind, "damage", path, offset, detail)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _index_file(segment: SegmentV2, entry_count: int) -> Iterator[Finding]:
    """The index as a whole, if there is one."""
    if segment.header is None:
        return
    yield from _header(segment.header, segment.number, entry_count, segment.path)
    whole, torn = divmod(segment.index_size - v2.HEADER_SIZE, v2.ENTRY_SIZE)
    if torn:
        yield _damage("torn entry", segment.path, segment.index_size - torn, f"{torn} bytes that hold no whole entry")
    if whole > entry_count:
        offset = v2.HEADER_SIZE + entry_count * v2.ENTRY_SIZE
        detail = f"{whole} entries in a segment of {entry_count}"
        yield _damage("entries behind the segment's end", segment.path, offset, detail)


def _header(header: v2.SegmentHeader, number: int, entry_count: int, path: str) -> Iterator[Finding]:
    if header.entry_count(number) != entry_count:
        detail = f"positions {header.first} to {header.end} in segment {number} of {entry_count} each"
        yield _damage(BAD_HEADER, path, 5, detail)
    if not header.reserved_is_zero:
        yield _damage(BAD_HEADER, path, 21, "reserved bytes that are not 0")


def _store_file(segment: SegmentV2, entry_count: int) -> Iterator[Finding]:
    """The queue's own store as a whole, if there is one."""
    store = segment.store
    if not store.exists or store.problem is not None:
        return
    if not store.size:
        yield Finding("leftover empty file", "leftover", store.path, None, "opened, and not yet written")
        return
    if not store.has_bytes_behind(0):
        yield Finding("leftover zeros", "leftover", store.path, 0, f"a store of {store.size} zero bytes alone")
        return
    try:
        header = v2.decode_header(store.read(v2.HEADER_SIZE, 0), v2.STORE_MAGIC, store.path)
    except DataError as error:
        yield _damage(BAD_HEADER, error.path, error.offset, error.reason)
    else:
        yield from _header(header, segment.number, entry_count, store.path)
    if segment.header is None and (segment.problem is None or segment.problem.severity == "leftover"):
        yield from _store_alone(segment)


def _store_alone(segment: SegmentV2) -> Iterator[Finding]:
    """The findings about a store without an index."""
    store = segment.store
    if store.size > v2.HEADER_SIZE:
        detail = f"{store.size} bytes of messages, and {_index_name(segment.number)} is missing or says nothing of them"
        yield _damage("store without index", store.path, None, detail)
    else:
        detail = f"a header, and no {_index_name(segment.number)}"
        yield Finding("leftover empty file", "leftover", store.path, None, detail)


def _records(segment: SegmentV2) -> Iterator[Finding]:
    """Damaged records, and the number of messages without an entry."""
    first, count = 0, 0
    for message in _chain(segment):
        if isinstance(message, Finding):
            yield message
        else:
            first, count = first or message.offset, count + 1
    if count:
        yield orphan_records(segment.store.path, first, count, _index_name(segment.number))


def _chain(segment: SegmentV2) -> Iterator[Finding | UnindexedMessage]:
    """Check the chain of records. After a break, continue at the next record that an entry points at and that has
    the length in that entry.

    Damage in the record of a live entry is reported for the entry.
    """
    store, record_offsets = segment.store, _known_records(segment)
    entry_offsets = set(segment.entries["offset"][segment.here].tolist())
    live_offsets = set(segment.entries["offset"][segment.live & segment.here].tolist())
    contradicted = set(segment.entries["offset"][segment.inside].tolist()) - set(record_offsets)
    at = v2.HEADER_SIZE
    while at < store.size:
        head = store.read(v2.RECORD_HEAD_SIZE, at)
        following = (
            record_offsets[place] if (place := bisect_right(record_offsets, at)) < len(record_offsets) else store.size
        )
        end = at + v2.RECORD_HEAD_SIZE + v2.record_length(head) if len(head) == v2.RECORD_HEAD_SIZE else at
        if not any(head) or not at < end <= following or at in contradicted:
            yield from _break(store, at, following, is_live=at in live_offsets)
            at = following
            continue
        if (strange := v2.strange_head(head)) is not None:
            yield _damage("strange record", store.path, at, strange)
        if at not in live_offsets:
            encoded = v2.message_of(store.read(end - at, at), end - at - v2.RECORD_HEAD_SIZE)
            if not isinstance(encoded, bytes):
                yield _damage("damaged record", store.path, at, f"of no message that is left: {encoded}")
            elif at not in entry_offsets:
                yield UnindexedMessage(encoded, store.path, at)
        at = end


def orphan_records(path: str, offset: int, count: int, index_name: str) -> Finding:
    """Messages whose index entries are all zeros; ``offset``: of the first."""
    why = "acked before their entries were written, or their entries are lost"
    detail = f"{count} messages that no entry of {index_name} tells of: {why}"
    return Finding("orphan records", "leftover", path, offset, detail)


def _known_records(segment: SegmentV2) -> list[int]:
    """The offsets of records that an entry (perhaps an acked one) points at, and that have the length in that entry."""
    entries = segment.entries[segment.inside]
    places = zip(entries["offset"].tolist(), entries["length"].tolist(), strict=True)
    heads = ((offset, length, segment.store.read(v2.RECORD_HEAD_SIZE, offset)) for offset, length in places)
    return sorted({offset for offset, length, head in heads if v2.record_length(head) == length})


def _break(store: QueueFile, at: int, following: int, *, is_live: bool) -> Iterator[Finding]:
    """No record begins at ``at``; ``following``: where the next one does, or the end."""
    detail = f"{following - at} bytes that hold no whole record"
    if following < store.size:
        if not is_live:
            yield _damage("damaged record", store.path, at, detail)
    elif not store.has_bytes_behind(at):
        yield Finding("leftover zeros", "leftover", store.path, at, f"{following - at} zero bytes")
    elif not is_live:
        yield _damage("torn record", store.path, at, detail)


# ── entries ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _entries(segment: SegmentV2) -> Iterator[Finding]:
    """Values that no broker writes. If a live message's body is missing, the finding about that covers its entry."""
    entries, live = segment.entries, segment.live
    is_covered = live & (segment.persistent | segment.here)
    places = entries["msg_id"].copy().view(np.uint8).reshape(-1, MSG_ID_BYTES)
    checks: tuple[tuple[str, Bools], ...] = (
        ("status", entries["status"] > v2.MESSAGE),
        ("flags", entries["flags"] > v2.PERSISTENT),
        ("unused", entries["unused"] != 0),
        ("location", (entries["location"] > v2.IN_QUEUE_STORE) & ~is_covered),
        ("rest", (entries["location"] == v2.IN_QUEUE_STORE) & (entries["rest"] != 0) & ~is_covered),
        ("place", (entries["location"] == v2.IN_MEMORY) & places.any(axis=1) & ~is_covered),
    )
    for field, is_strange in checks:
        for rel_seq in np.flatnonzero(is_strange).tolist():
            value = places[rel_seq].tobytes().hex() if field == "place" else f"{int(entries[field][rel_seq]):#x}"
            detail = f"position {segment.first_seq_id + rel_seq}: {field} {value}"
            yield _damage("strange entry", segment.path, segment.entry_offset(rel_seq), detail)
    for rel_seq in np.flatnonzero(live & ~segment.persistent & (entries["location"] == v2.IN_MEMORY)).tolist():
        detail = f"position {segment.first_seq_id + rel_seq}: a transient message that was kept in memory alone"
        yield Finding("leftover entry", "leftover", segment.path, segment.entry_offset(rel_seq), detail)


def _unseen(queue: ClassicV2Index, segment: SegmentV2) -> Iterator[Finding]:
    seq_ids = segment.first_seq_id + np.arange(len(segment.entries))
    unseen = np.flatnonzero(segment.live & segment.persistent & ~queue.seen(seq_ids))
    if len(unseen) and queue.terms is not None:
        first = int(unseen[0])
        limit = f"next_seq_id is {queue.terms.next_seq_id}"
        detail = f"{len(unseen)} messages from position {segment.first_seq_id + first} on; {limit}"
        yield _damage("messages that no start sees", segment.path, segment.entry_offset(first), detail)
