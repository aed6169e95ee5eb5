"""Reopening an index after a clean stop: its journal is replayed, record by record.

The recovery terms say how many messages of each segment are unacked, and the journal's file is continued. Unlike a scan
this needs no columns: a program that publishes to an existing queue does not import what reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from warren.queue_index.index import directory as names
from warren.queue_index.index.facts import ACKED, ADD, DELIVERED, IMPOSSIBLE, NOTHING, PUBLISHED
from warren.queue_index.index.queue_index import QueueIndex
from warren.queue_index.index.record_format import BODY_SIZE, EMBEDDED_SIZE_AT, JOURNAL
from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem

_ADDING: Final = tuple(map(ADD.by_left, (PUBLISHED, PUBLISHED, DELIVERED, ACKED)))
"""By kind of record: what each set of facts becomes."""
_HEAD_SIZE: Final = JOURNAL.head_size
_NUMBER_MASK: Final = (1 << JOURNAL.number_bits) - 1


def open_clean(files: FileSystem, index: QueueIndex, counts: Iterable[tuple[int, int]]) -> None:
    """Reopen an index after a clean stop; ``counts``: (segment, unacked) of its recovery terms.

    Raises :class:`DataError` if the journal is not whole: then it was not stopped cleanly.
    """
    path = f"{index.path}/{names.JOURNAL_NAME}"
    data = files.read(path) if files.exists(path) else b""
    end = _replay(index, path, data)
    for number, unacked in counts:
        index.segment(number).unacked = unacked
    for number, segment in index.segments.items():
        if not 0 <= segment.unacked <= index.segment_entry_count:
            raise DataError(path, None, f"with the recovery terms, segment {number} has {segment.unacked} unacked")
    if data:
        index.journal.continue_at(end)


def _replay(index: QueueIndex, path: str, data: bytes) -> int:
    """Note what the journal says of each position; return where its records end."""
    facts: dict[int, int] = {}
    publishes: dict[int, bytes] = {}
    start, size, short_kinds = 0, len(data), JOURNAL.short_kinds
    while start < size:
        end = start + _HEAD_SIZE
        head = int.from_bytes(data[start:end], "big")
        kind, seq_id = head >> JOURNAL.number_bits, head & _NUMBER_MASK
        if kind not in short_kinds:
            embedded_size = int.from_bytes(data[end + EMBEDDED_SIZE_AT : end + BODY_SIZE], "big")
            end += BODY_SIZE + embedded_size
            if not head and not embedded_size and end <= size and not any(data[start:end]):
                break  # zeros end a journal as well
        if end > size:
            raise DataError(path, start, "torn record: the journal goes on with something that is not a whole record")
        fact = _ADDING[kind][facts.get(seq_id, NOTHING)]
        if fact == IMPOSSIBLE:
            what = "record out of order" if kind in short_kinds else "double publish"
            raise DataError(path, start, f"{what}: seq_id {seq_id}")
        facts[seq_id] = fact
        if fact == PUBLISHED:
            publishes[seq_id] = data[start:end]
        elif not fact:
            del publishes[seq_id]
        index.dirty_count += 1
        start = end
    for seq_id, fact in facts.items():
        number, rel_seq = divmod(seq_id, index.segment_entry_count)
        index.segment(number).put(rel_seq, fact)
    for seq_id, record in publishes.items():
        number, rel_seq = divmod(seq_id, index.segment_entry_count)
        index.segment(number).hold(rel_seq, [record])
    return start
