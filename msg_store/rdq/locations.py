"""Where each message lies, and how many hold it: the store's index, in memory.

A *place* is a location packed into one integer, so that a million messages take some 150 MB with their ids, and so that
a concurrent reader sees the old place or the new one, never half of each.

The *count* of a message says how many references hold it. Counts are not on disk: after a dirty stop the index knows
places only, and is *uncounted* until :meth:`Locations.settle` receives the references. Meanwhile counts are changes
since the start, and may be negative; nothing is dropped.

Invariants: once counted, every message has a count above 0; only counts other than the usual one (1, or 0 while
uncounted) are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import attrs

from warren.storage.errors import UnknownMessageError

PLACE_BYTES = 20
"""A place on disk: file u32 · offset u64 · size u64."""

_FIELD_BITS = 64
_FIELD = (1 << _FIELD_BITS) - 1


class Location(NamedTuple):
    """A record's file (by number), its offset there and its bytes."""

    file: int
    offset: int
    size: int


def pack(file: int, offset: int, size: int) -> int:
    """The place of a location; orders by file, then by offset."""
    return (file << _FIELD_BITS | offset) << _FIELD_BITS | size


def pack_behind(file: int, offset: int, sizes: Iterable[int]) -> list[int]:
    """Return the places of consecutive records from ``offset`` on."""
    places = []
    start = file << _FIELD_BITS | offset
    for size in sizes:
        places.append(start << _FIELD_BITS | size)
        start += size
    return places


def unpack(place: int) -> Location:
    """The location of a place."""
    return Location(place >> 2 * _FIELD_BITS, place >> _FIELD_BITS & _FIELD, place & _FIELD)


@attrs.define(eq=False, repr=False)
class Locations:
    """msg_id → place and count."""

    places: dict[bytes, int] = attrs.field(factory=dict)
    counts: dict[bytes, int] = attrs.field(factory=dict)
    counted: bool = attrs.field(default=True, kw_only=True)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, msg_id: object) -> bool:
        return msg_id in self.places

    def find(self, msg_id: bytes) -> Location | None:
        """Return where a message lies; ``None`` if it is unknown."""
        place = self.places.get(msg_id)
        return None if place is None else unpack(place)

    def count(self, msg_id: bytes) -> int:
        """Return the references to a message; 0 if it is unknown."""
        return self.counts.get(msg_id, int(self.counted)) if msg_id in self.places else 0

    def add(self, msg_ids: Sequence[bytes], places: Iterable[int], shared: Mapping[bytes, int]) -> None:
        """Take in messages that were written just now; ``shared`` has the counts that are not 1."""
        self.places.update(zip(msg_ids, places, strict=True))
        if not self.counted:
            self.counts.update(dict.fromkeys(msg_ids, 1))
        self.counts.update(shared)

    def reference(self, msg_id: bytes, count: int = 1) -> None:
        """Count more references to a known message."""
        self._set_count(msg_id, self.count(msg_id) + count)

    def release(self, msg_id: bytes) -> Location | None:
        """Remove one reference; if it was the last, forget the message and return where it lies.

        Raises :class:`UnknownMessageError`.
        """
        if msg_id not in self.places:
            raise UnknownMessageError(msg_id.hex())
        count = self.count(msg_id) - 1
        if count or not self.counted:
            self._set_count(msg_id, count)
            return None
        return self._drop(msg_id)

    def move(self, msg_id: bytes, old: Location, new: Location) -> bool:
        """Record that a message was copied from ``old`` to ``new``; return ``False`` if it is no longer at ``old``."""
        if self.places.get(msg_id) != pack(*old):
            return False
        self.places[msg_id] = pack(*new)
        return True

    def settle(self, references: Iterable[tuple[bytes, int]]) -> list[Location]:
        """Add the references that the queues hold, and forget unreferenced messages; return where those lie.

        From now on the index is counted. Raises ``RuntimeError`` if a message was released too often.
        """
        places, counts = self.places, self.counts
        for msg_id, count in references:
            if msg_id in places:
                counts[msg_id] = counts.get(msg_id, 0) + count
        negative = [msg_id.hex() for msg_id, count in counts.items() if count < 0]
        if negative:
            raise RuntimeError(f"released more often than referenced: {', '.join(negative[:3])} …")
        unreferenced = [msg_id for msg_id in places if not counts.get(msg_id)]
        self.counted = True
        self.counts = {msg_id: count for msg_id, count in counts.items() if count > 1}
        return [unpack(places.pop(msg_id)) for msg_id in unreferenced]

    def locations(self) -> Iterator[Location]:
        """Every location, in no order."""
        return map(unpack, self.places.values())

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if a count is kept for nothing or says what it must not."""
        usual = int(self.counted)
        for msg_id, count in self.counts.items():
            if msg_id not in self.places or count == usual or (self.counted and count < 1):
                raise RuntimeError(f"message {msg_id.hex()} has the count {count}, place {self.places.get(msg_id)}")

    def _set_count(self, msg_id: bytes, count: int) -> None:
        if count == self.counted:
            self.counts.pop(msg_id, None)
        else:
            self.counts[msg_id] = count

    def _drop(self, msg_id: bytes) -> Location:
        self.counts.pop(msg_id, None)
        return unpack(self.places.pop(msg_id))
