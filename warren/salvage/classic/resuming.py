"""Finds where the records of a damaged journal or segment file continue after the damage.

Records have no start mark, and their heads say how long they are; so one damaged head hides all records after it. A
*place where they continue* is one with

* a publish whose message decodes, and bears the id that the record says; or
* several records in a row whose numbers can be a queue's, or such ones up to the file's end.

Records before the break are checked, too: a record with a damaged size swallows those after it, and what follows is
read out of step until nothing fits. So the break is at the first publish with an invalid message.

The bytes between are a *gap*. Publishes in a gap are lost; so are acks, and the messages that they settled may come
back. A file that is sound, or torn only at its end, has no gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import attrs
import numpy as np

from warren.queue_index.index.record_format import BODY_SIZE, JOURNAL, Columns, Ints, Layout, Octets, Parser, body_at
from warren.salvage.classic.needed_body import contents_of
from warren.salvage.read_only import MAX_MESSAGE_BYTES, WINDOW_BYTES, has_bytes_behind
from warren.storage.filesystem import File, data_windows

Read = Callable[[int, int], bytes]
"""``read(size, offset)``; it returns less only at the end of the file."""

Gap = tuple[int, int]
"""Where the bytes without records begin, and where records continue."""

_RECORDS_IN_A_ROW: Final = 4
_MAX_GAPS: Final = 100
_MAX_TRIES: Final = 100_000
"""Places in a gap that look like a record at first sight; the bound on what a hostile file can cost."""
_MAX_GAP_BYTES: Final = 256 << 20
_SEARCH_BYTES: Final = 256 << 10
"""Searched at a time; it is held about forty times over, as numbers."""
_LOOK_BACK: Final = 64
_TERM: Final = 0x83
_EMBEDDED_AT: Final = BODY_SIZE - 4


def read_records(layout: Layout, file: File, read: Read, first: Columns) -> tuple[Columns, list[Gap]]:
    """All records of a file that can be read; ``first``: those up to the first break; ``read``: reads the file."""
    columns, size = first, file.size()
    parts: list[Columns] = []
    gaps: list[Gap] = []
    start = 0
    while len(gaps) < _MAX_GAPS and columns.end < size and columns.reason != "complete":
        if columns.reason == "zeros" and not has_bytes_behind(file, columns.end):
            break
        broken = _first_unsound(layout, read, columns)
        resumed = _next_place(layout, file, read, broken + 1)
        if resumed is None:
            break
        parts.append(columns if broken == columns.end else parsed(layout, read, start, broken))
        gaps.append((broken, resumed))
        start = resumed
        columns = parsed(layout, read, start, size)
    return (_joined([*parts, columns]), gaps) if gaps else (columns, gaps)


def parsed(layout: Layout, read: Read, start: int, stop: int) -> Columns:
    """The records from ``start`` to the first break, at most to ``stop``; offsets are those of the file."""
    parser, at, window = Parser(layout), start, WINDOW_BYTES
    while not parser.finished:
        data = read(min(window, stop - at), at)
        is_last = at + len(data) >= stop
        taken = parser.feed(data, final=is_last)
        at, window = at + taken, WINDOW_BYTES
        if is_last:
            break
        if not taken and not parser.finished:  # a publish that is longer than the window
            window = layout.head_size + BODY_SIZE + body_at(data, layout.head_size).embedded_size
            if window > min(MAX_MESSAGE_BYTES, stop - at):
                parser.feed(data, final=True)
    columns = parser.columns()
    return attrs.evolve(columns, body_at=columns.body_at + start, end=columns.end + start) if start else columns


def _joined(parts: list[Columns]) -> Columns:
    def column(name: str) -> Ints:
        joined: Ints = np.concatenate([getattr(part, name) for part in parts])
        return joined

    return attrs.evolve(
        parts[-1],
        publish_numbers=column("publish_numbers"),
        publish_persistent=column("publish_persistent").astype(np.bool_),
        body_at=column("body_at"),
        embedded_sizes=column("embedded_sizes"),
        delivers=column("delivers"),
        acks=column("acks"),
    )


def _first_unsound(layout: Layout, read: Read, columns: Columns) -> int:
    """The first publish with an invalid message, from which on records were read out of step; else their end."""
    broken = columns.end
    last = len(columns.publish_numbers)
    for index in range(last - 1, max(last - 1 - _LOOK_BACK, -1), -1):
        body, embedded = int(columns.body_at[index]), int(columns.embedded_sizes[index])
        if embedded and _is_message(read, body, embedded):
            break
        if embedded:
            broken = body - layout.head_size
    return broken


def _is_message(read: Read, body: int, embedded: int) -> bool:
    """Whether the publish whose body is at ``body`` has a valid message with the msg_id of the publish."""
    if embedded > MAX_MESSAGE_BYTES:
        return False
    data = read(BODY_SIZE + embedded, body)
    if len(data) < BODY_SIZE + embedded or data[BODY_SIZE] != _TERM:
        return False
    contents = contents_of(data[BODY_SIZE:])
    return contents.problem is None and contents.msg_id in (b"", data[:16])


def _next_place(layout: Layout, file: File, read: Read, start: int) -> int | None:
    """The first offset from ``start`` on where records continue."""
    size = file.size()
    candidates = islice(_candidates(layout, file, start, size), _MAX_TRIES)
    return next((offset for offset in candidates if _go_on(layout, read, offset, size)), None)


def _candidates(layout: Layout, file: File, start: int, size: int) -> Iterator[int]:
    """Offsets at which a record seems to begin; holes are stepped over."""
    reach = layout.head_size + BODY_SIZE + 1
    for at in data_windows(file, start, min(size, start + _MAX_GAP_BYTES), _SEARCH_BYTES):
        data = file.pread(_SEARCH_BYTES + reach, at)
        count = min(len(data), _SEARCH_BYTES)
        if data.count(0) == len(data):
            continue
        padded = np.frombuffer(data + bytes(reach), np.uint8)
        kinds = padded[:count] >> 6
        is_record = np.isin(kinds, layout.publish_kinds) & _may_be_publish(layout, padded, count)
        if layout is JOURNAL:
            # a seq_id below 2^40; in a segment two bytes alone make a short record, which any text has
            is_record |= np.isin(kinds, layout.short_kinds)
            is_record &= (padded[:count] & 0x3F == 0) & (padded[1 : count + 1] == 0) & (padded[2 : count + 2] == 0)
        yield from (at + np.flatnonzero(is_record)).tolist()


def _may_be_publish(layout: Layout, padded: Octets, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Where a publish's body may follow the head, of an embedded message or of one in the store."""
    body = layout.head_size

    def number(place: int) -> Ints:
        octets = [padded[body + place + index : body + place + index + count].astype(np.int64) for index in range(4)]
        numbers: Ints = octets[0] << 24 | octets[1] << 16 | octets[2] << 8 | octets[3]
        return numbers

    embedded, sizes = number(_EMBEDDED_AT), number(_EMBEDDED_AT - 4)
    is_term = padded[body + BODY_SIZE : body + BODY_SIZE + count] == _TERM
    has_id = padded[body : body + count] | padded[body + 1 : body + 1 + count] != 0
    is_publish: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.where(
        embedded > 0, is_term & (embedded <= MAX_MESSAGE_BYTES), has_id & (sizes > 0) & (sizes < 1 << 31)
    )
    return is_publish


def _go_on(layout: Layout, read: Read, offset: int, size: int) -> bool:
    """Whether records certainly continue at ``offset``."""
    head_size, at = layout.head_size, offset
    for count in range(_RECORDS_IN_A_ROW):
        if at == size:
            return count > (0 if layout is JOURNAL else 1)
        head = read(head_size + BODY_SIZE, at)
        if len(head) < head_size:
            return False
        value = int.from_bytes(head[:head_size], "big")
        kind, number = value >> layout.number_bits, value & ((1 << layout.number_bits) - 1)
        if layout is JOURNAL and number >> 40:
            return False
        if kind in layout.short_kinds:
            at += head_size
            continue
        if kind not in layout.publish_kinds or len(head) < head_size + BODY_SIZE:
            return False
        body = body_at(head, head_size)
        if body.embedded_size:
            return _is_message(read, at + head_size, body.embedded_size)
        if not body.size or not any(body.msg_id):
            return False
        at += head_size + BODY_SIZE
    return True
