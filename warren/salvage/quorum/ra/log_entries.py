"""What a queue's log has at an index: an entry, one that cannot be read, or nothing."""

from __future__ import annotations

from typing import NamedTuple

import attrs


class LogEntry(NamedTuple):
    """An entry; its checksum is right."""

    index: int  # type: ignore[assignment]
    term: int
    data: bytes
    """An Erlang term."""
    path: str
    offset: int
    """Of ``data`` in the file."""


@attrs.frozen
class Hole:
    """Indexes, first and last, that no file has."""

    first: int
    last: int


@attrs.frozen
class BadEntry:
    """An entry that is there and cannot be read."""

    index: int
    term: int
    path: str
    offset: int
    """Of the entry, or of its record."""
    reason: str
    length: int = 0
    """Of what stands there in place of the entry; 0: that is not known."""
