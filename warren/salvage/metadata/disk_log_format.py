"""A file of Erlang's ``disk_log``, in the internal format (OTP 25)::

    file     01 02 03 04 · 63 58 4D 0B (closed properly) or 06 07 08 09 · item*
    item     u32 bytes of the term · "bWLA" · term                     terms of less than 65,528 bytes
             u32 bytes of the term · "bWLA" · MD5 of the u32 · term    longer ones

A process that was killed leaves the file open, and its last item may be incomplete. Erlang's own reader passes over
bytes that are no item until the next one begins. So does :func:`read_items`; each gap is one finding.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Final

from warren.salvage.queue_directory import Finding, OnFinding
from warren.storage.erlang_terms import Term, decode
from warren.storage.errors import DataError, TermError

_MAGIC: Final = b"\1\2\3\4"
_STATES: Final = (b"cXM\x0b", b"\6\7\x08\t")
_HEAD_BYTES: Final = 8
_ITEM_MAGIC: Final = b"bWLA"
_SIZE: Final = struct.Struct(">I")
_ITEM_HEAD_BYTES: Final = _SIZE.size + len(_ITEM_MAGIC)
_DIGESTED_FROM: Final = 65_528
"""Terms from this size on have a digest of their size before them."""
_DIGEST_BYTES: Final = 16


def read_items(data: bytes, path: str, report: OnFinding) -> Iterator[tuple[int, Term]]:
    """Yield the offset and the term of each item; report every gap, and every item that is no readable term.

    Raises :class:`DataError` if it is no such file.
    """
    if data[:4] != _MAGIC or data[4:_HEAD_BYTES] not in _STATES:
        raise DataError(path, 0, "no disk_log file: it does not begin as one")
    position = gap = _HEAD_BYTES
    while position < len(data):
        extent = _extent(data, position)
        if extent is None:
            position = _next_candidate(data, position)
            continue
        start, end = extent
        try:
            term = decode(data[start:end])
        except TermError as error:
            if position != gap or not _is_item(data, end):  # a magic in the middle of other bytes
                position = _next_candidate(data, position)
                continue
            report(Finding("unreadable log item", "damage", path, position, str(error)))
        else:
            _report_gap(path, gap, position, report)
            yield position, term
        position = gap = end
    _report_gap(path, gap, len(data), report, at_end=True)


def _extent(data: bytes, position: int) -> tuple[int, int] | None:
    """Where the term of the item at ``position`` begins and ends; ``None`` if there is no whole item."""
    start = position + _ITEM_HEAD_BYTES
    if data[position + _SIZE.size : start] != _ITEM_MAGIC:
        return None
    encoded_size = data[position : position + _SIZE.size]
    (size,) = _SIZE.unpack(encoded_size)
    if size >= _DIGESTED_FROM:
        digest = hashlib.md5(encoded_size, usedforsecurity=False).digest()
        if data[start : start + _DIGEST_BYTES] != digest:
            return None
        start += _DIGEST_BYTES
    return (start, start + size) if start + size <= len(data) else None


def _is_item(data: bytes, position: int) -> bool:
    """Whether an item, or the end of the file, follows."""
    return position == len(data) or _extent(data, position) is not None


def _next_candidate(data: bytes, position: int) -> int:
    """Where the next item could begin after ``position``."""
    magic_at = data.find(_ITEM_MAGIC, position + _SIZE.size + 1)
    return len(data) if magic_at < 0 else magic_at - _SIZE.size


def _report_gap(path: str, start: int, end: int, report: OnFinding, *, at_end: bool = False) -> None:
    if start == end:
        return
    kind = "torn log" if at_end else "damaged log"
    where = " at the end, an item that was not written completely" if at_end else " that are no item"
    report(Finding(kind, "damage", path, start, f"{end - start:,} bytes{where}"))
