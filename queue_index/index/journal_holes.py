"""Where a power loss has taken a part of a journal that was not synced, and left what looks like records.

Unwritten parts of a disk are zeros, in whole pages or sectors, and there are no checksums. So after a crash a journal
ends before the first record that has such zeros at a place that is never zero in a sound one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from warren.queue_index.index.record_format import BODY_SIZE, JOURNAL, Columns, body_at, parse
from warren.queue_index.message.message_format import decode_message
from warren.storage.errors import MessageError

_PAGE_BYTES: Final = 4096
"""The unit in which a file system writes, and so in which lost data comes back as zeros."""

_SECTOR_BYTES: Final = 512
"""The unit that a disk writes whole or not at all."""


def without_holes(data: bytes, columns: Columns) -> Columns:
    """Return the records of the journal ``data`` before the first one that lost a part."""
    for first_hole in (_first_lost_head, _first_lost_part):
        if (hole := first_hole(data, columns)) is not None:
            columns = parse(JOURNAL, data[:hole])
    return columns


def _first_lost_part(data: bytes, columns: Columns) -> int | None:
    """Return the start of the first publish that lost a part in a power loss: its message is invalid and has zeros.

    A page that was never synced comes back as zeros, at its end or all of it; a sound message does not end in a NUL. So
    only messages that do, and those that a whole page fits into, are looked at. What follows such a page was not synced
    either.
    """
    octets = np.frombuffer(data, np.uint8)
    embedded = np.flatnonzero(columns.embedded_sizes)
    starts = columns.body_at[embedded] + BODY_SIZE
    ends = starts + columns.embedded_sizes[embedded]
    doubtful = (octets[ends - 1] == 0) | (ends - starts >= _PAGE_BYTES)
    places: list[tuple[int, int]] = sorted(zip(starts[doubtful].tolist(), ends[doubtful].tolist(), strict=True))
    for start, end in places:
        first_page = -(-start // _PAGE_BYTES) * _PAGE_BYTES
        pages = range(first_page, end - _PAGE_BYTES + 1, _PAGE_BYTES)
        if (data[end - 1] == 0 or any(not octets[at : at + _PAGE_BYTES].any() for at in pages)) and not _is_message(
            data[start:end]
        ):
            return start - BODY_SIZE - JOURNAL.head_size
    return None


def _first_lost_head(data: bytes, columns: Columns) -> int | None:
    """Return the start of the first record whose head was, at least in part, in a sector lost in a power loss.

    Zeros are the head of a persistent publish of seq_id 0, which in a sound journal is the first record or none; and
    without its first bytes any record's head is that of a publish. What follows was not synced either.
    """
    octets = np.frombuffer(data, np.uint8)
    starts = columns.body_at - JOURNAL.head_size
    lost = -starts % _SECTOR_BYTES
    doubtful = (lost > 0) & (lost < JOURNAL.head_size + BODY_SIZE)
    doubtful[doubtful] = octets[starts[doubtful]] == 0
    for at in np.flatnonzero(doubtful).tolist():
        start, end = int(starts[at]), int(starts[at] + lost[at])
        if not any(data[start:end]) and (end - start >= JOURNAL.head_size or not _is_publish(data, columns, at)):
            return start
    return None


def _is_publish(data: bytes, columns: Columns, at: int) -> bool:
    """Whether a record is the publish that it looks like: of a new position, and its message has its id too."""
    body = int(columns.body_at[at])
    message = data[body + BODY_SIZE : body + BODY_SIZE + int(columns.embedded_sizes[at])]
    if columns.publish_numbers[at] in columns.publish_numbers[:at]:
        return False
    return not message or body_at(data, body).msg_id in message


def _is_message(term: bytes) -> bool:
    try:
        decode_message(term)
    except MessageError:
        return False
    return True
