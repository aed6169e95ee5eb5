"""Values by name in properties that have nothing in common: all of them joined, and their separators found at once.

A *span* is a string in the joined bytes: where it begins, how long it is, and whose it is. What counts as an entry and
which of equal names wins is said in :func:`msg_store.commit_log_format.decode_properties`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np

from msg_store.commit_log_format import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from msg_store.gathering import Bytes, Longs, Mask, by_value, gather, gather_rows
from storage.java_hash import Hashes, hash_rows, java_hash

TAGS: Final = b"TAGS"
KEYS: Final = b"KEYS"
UNIQUE_KEY: Final = b"UNIQ_KEY"
DELAY: Final = b"DELAY"
WANTED: Final = frozenset((TAGS, KEYS, UNIQUE_KEY, DELAY))
KEY_SEPARATOR: Final = b" "

_WORD: Final = np.dtype("<u8")
_PADDING: Final = bytes(_WORD.itemsize)

if max(map(len, WANTED)) > _WORD.itemsize:
    raise RuntimeError("names are compared as one word")


@attrs.frozen(eq=False)
class Spans:
    """Strings in the joined bytes, ascending by owner."""

    starts: Longs
    lengths: Longs
    owners: Longs
    """Whose each is: the number of the record's properties in what was joined."""

    def only(self, wanted: Mask) -> Spans:
        return Spans(self.starts[wanted], self.lengths[wanted], self.owners[wanted])


@attrs.frozen(eq=False)
class Values:
    """The wanted values of many records' properties."""

    joined: bytes
    text: Bytes
    """The same without the padding."""
    found: dict[bytes, Spans]

    def named(self, name: bytes) -> Spans:
        """The values under one of the :data:`WANTED` names, at most one of each owner."""
        return self.found[name]

    def keys(self) -> Spans:
        """What goes into the index, in the order of putting: an owner's unique key, then the parts of its KEYS."""
        unique, parts = self.found[UNIQUE_KEY], self._key_parts()
        order = np.argsort(np.concatenate((unique.owners, parts.owners)), kind="stable")
        return Spans(
            np.concatenate((unique.starts, parts.starts))[order],
            np.concatenate((unique.lengths, parts.lengths))[order],
            np.concatenate((unique.owners, parts.owners))[order],
        )

    def _key_parts(self) -> Spans:
        keys = self.found[KEYS]
        if not len(keys.starts):
            return keys
        stops = keys.starts + keys.lengths
        spaces = np.flatnonzero(self.text == KEY_SEPARATOR[0])
        which = np.searchsorted(keys.starts, spaces, side="right") - 1
        inside = (which >= 0) & (spaces < stops[which])
        spaces, which = spaces[inside], which[inside]
        starts = np.sort(np.concatenate((keys.starts, spaces + 1)))
        lengths = np.sort(np.concatenate((stops, spaces))) - starts
        owners = np.sort(np.concatenate((keys.owners, keys.owners[which])))
        return Spans(starts, lengths, owners).only(lengths > 0)

    def hashes(self, spans: Spans, prefixes: Hashes | None = None) -> Hashes:
        """Java's hashes of the spans; ``prefixes``: the hash of what is thought ahead of each of them."""
        hashes = np.zeros(len(spans.starts), np.uint32) if prefixes is None else prefixes.copy()
        for length, where in by_value(spans.lengths):
            rows = gather_rows(self.joined, spans.starts[where], length)
            ahead = hashes[where]
            hashes[where] = ahead * np.uint32(pow(31, length, 1 << 32)) + hash_rows(rows)
            high = rows & 0x80
            if high.any():
                for line in np.unique(np.flatnonzero(high) // length).tolist():
                    hashes[where[line]] = _hash_behind(int(ahead[line]), rows[line].tobytes())
        return hashes


def _hash_behind(prefix: int, value: bytes) -> int:
    text = value.decode("utf-8", "replace")
    units = len(text) + sum(character > "\uffff" for character in text)
    return (prefix * pow(31, units, 1 << 32) + java_hash(text)) & 0xFFFFFFFF


def find_values(properties: Sequence[bytes]) -> Values:
    """The wanted values in ``properties``, those of one record each."""
    joined = PROPERTY_SEPARATOR.join((*properties, _PADDING))
    text = np.frombuffer(joined, np.uint8)[: -len(_PADDING)]
    is_end = text == PROPERTY_SEPARATOR[0]
    marks = np.flatnonzero(is_end | (text == NAME_VALUE_SEPARATOR[0]))
    ends = is_end[marks]
    behind_end = np.concatenate(([True], ends[:-1]))
    named = np.flatnonzero(~ends & behind_end)
    starts = np.where(named > 0, marks[named - 1] + 1, 0)
    names = marks[named] - starts
    stops = marks[ends][np.cumsum(ends)[named]]
    lengths = stops - marks[named] - 1
    words = gather(joined, starts, _WORD)
    owner_stops = np.cumsum(np.fromiter(map(len, properties), np.int64, len(properties)) + 1)
    found = {}
    for name in WANTED:
        mask = (1 << 8 * len(name)) - 1
        like = (names == len(name)) & (lengths > 0)
        like &= words & np.uint64(mask) == np.uint64(int.from_bytes(name, "little"))
        spans = Spans(marks[named[like]] + 1, lengths[like], np.searchsorted(owner_stops, starts[like], side="right"))
        last = np.diff(spans.owners, append=-1) != 0
        found[name] = spans if last.all() else spans.only(last)
    return Values(joined, text, found)
