"""Values by name in properties that have nothing in common: all of them joined, and their separators found at once.

A *span* is a string in the joined bytes: where it begins, how long it is, and whose it is. What counts as an entry and
which of several equal names wins is defined by
:func:`warren.msg_store.commit_log.commit_log_format.decode_properties`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np

from warren.msg_store.commit_log.commit_log_format import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from warren.storage.columns import Bytes, Longs, Mask, by_value, gather, stable_order
from warren.storage.java_hash import Hashes, hash_rows, java_text

TAGS: Final = b"TAGS"
KEYS: Final = b"KEYS"
UNIQUE_KEY: Final = b"UNIQ_KEY"
DELAY: Final = b"DELAY"
USED_NAMES: Final = frozenset((TAGS, KEYS, UNIQUE_KEY, DELAY))
KEY_SEPARATOR: Final = b" "

_BYTE: Final = np.dtype(np.uint8)
_UNIT: Final = np.dtype("<u2")
_WORD: Final = np.dtype("<u8")

_WIDTHS: Final = np.array([4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 256, *(1 << bits for bits in range(9, 16))])
"""Strings are padded with zeros to the next larger width: each zero multiplies a hash by 31, and that is
undone. The last holds any string that a record can hold."""
_PADDING: Final = bytes(int(_WIDTHS[-1]))
_MULTIPLIER: Final = 31


def _powers(factor: int) -> Hashes:
    """``factor`` to the power of 0, 1, 2 …, modulo 2^32."""
    factors = np.full(len(_PADDING), factor, np.uint32)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)


_POWERS: Final = _powers(_MULTIPLIER)
_INVERSE_POWERS: Final = _powers(pow(_MULTIPLIER, -1, 1 << 32))

if max(map(len, USED_NAMES)) > _WORD.itemsize:
    raise RuntimeError("names are compared as one word")


@attrs.frozen(eq=False, repr=False)
class Spans:
    """Strings in the joined bytes, ascending by owner."""

    starts: Longs
    lengths: Longs
    owners: Longs
    """The owner of each span: the number of the record's properties among the joined ones."""

    def only(self, mask: Mask) -> Spans:
        return Spans(self.starts[mask], self.lengths[mask], self.owners[mask])


@attrs.frozen(eq=False, repr=False)
class Values:
    """The values of many records' properties under the :data:`USED_NAMES`."""

    joined: bytes
    text: Bytes
    """The same without the padding."""
    spans: dict[bytes, Spans]

    def named(self, name: bytes) -> Spans:
        """The values under one of the :data:`USED_NAMES`, at most one of each owner."""
        return self.spans[name]

    def keys(self) -> Spans:
        """Return the keys for the index in the order of putting: an owner's unique key, then the parts of its KEYS."""
        unique, parts = self.spans[UNIQUE_KEY], self._key_parts()
        order = stable_order(np.concatenate((unique.owners, parts.owners)))
        return Spans(
            np.concatenate((unique.starts, parts.starts))[order],
            np.concatenate((unique.lengths, parts.lengths))[order],
            np.concatenate((unique.owners, parts.owners))[order],
        )

    def _key_parts(self) -> Spans:
        keys = self.spans[KEYS]
        if not len(keys.starts):
            return keys
        stops = keys.starts + keys.lengths
        spaces = np.flatnonzero(self.text == KEY_SEPARATOR[0])
        key_numbers = np.searchsorted(keys.starts, spaces, side="right") - 1
        inside = (key_numbers >= 0) & (spaces < stops[key_numbers])
        spaces, key_numbers = spaces[inside], key_numbers[inside]
        starts = np.sort(np.concatenate((keys.starts, spaces + 1)))
        lengths = np.sort(np.concatenate((stops, spaces))) - starts
        owners = np.sort(np.concatenate((keys.owners, keys.owners[key_numbers])))
        return Spans(starts, lengths, owners).only(lengths > 0)

    def hashes(self, spans: Spans, prefixes: Hashes | None = None) -> Hashes:
        """Return Java's hashes of the spans; ``prefixes``: the hash of the prefix of each."""
        ahead = np.zeros(len(spans.starts), np.uint32) if prefixes is None else prefixes
        hashes = _hash_items(self.joined, _BYTE, spans.starts, spans.lengths, ahead)
        odd = self._beyond_ascii(spans)
        if len(odd):
            starts, stops = spans.starts[odd].tolist(), (spans.starts + spans.lengths)[odd].tolist()
            values = [self.joined[start:stop] for start, stop in zip(starts, stops, strict=True)]
            text = java_text(PROPERTY_SEPARATOR.join((*values, b""))).encode("utf-16-le")
            ends = np.flatnonzero(np.frombuffer(text, _UNIT) == PROPERTY_SEPARATOR[0])
            begins = np.concatenate(([0], ends[:-1] + 1))
            hashes[odd] = _hash_items(text + 2 * _PADDING, _UNIT, begins, ends - begins, ahead[odd])
        return hashes

    def _beyond_ascii(self, spans: Spans) -> Longs:
        """The spans with bytes that stand for other characters, or for part of one."""
        if self.joined.isascii():
            return np.empty(0, np.int64)
        until = np.concatenate(([0], np.cumsum(self.text >= 0x80)))
        return np.flatnonzero(until[spans.starts + spans.lengths] > until[spans.starts])


def _hash_items(text: bytes, item_type: np.dtype[Any], starts: Longs, lengths: Longs, ahead: Hashes) -> Hashes:
    """Hash strings of bytes or of UTF-16 units in a padded text, each after a prefix whose hash is in ``ahead``."""
    hashes: Hashes = ahead * _POWERS[lengths]
    for number, positions in by_value(np.searchsorted(_WIDTHS, lengths)):
        width, behind = int(_WIDTHS[number]), lengths[positions]
        rows = gather(text, starts[positions] * item_type.itemsize, np.dtype((np.void, width * item_type.itemsize)))
        items = rows.view(item_type).reshape(len(positions), width)
        items *= np.arange(width) < behind[:, None]
        hashes[positions] += hash_rows(items) * _INVERSE_POWERS[width - behind]
    return hashes


def find_values(properties: Sequence[bytes]) -> Values:
    """Return the wanted values in ``properties``, which has one element for each record."""
    joined = PROPERTY_SEPARATOR.join((*properties, _PADDING))
    text = np.frombuffer(joined, np.uint8)[: -len(_PADDING)]
    is_end = text == PROPERTY_SEPARATOR[0]
    marks = np.flatnonzero(is_end | (text == NAME_VALUE_SEPARATOR[0]))
    ends = is_end[marks]
    behind_end = np.concatenate(([True], ends[:-1]))
    name_marks = np.flatnonzero(~ends & behind_end)
    starts = np.where(name_marks > 0, marks[name_marks - 1] + 1, 0)
    names = marks[name_marks] - starts
    stops = marks[ends][np.cumsum(ends)[name_marks]]
    lengths = stops - marks[name_marks] - 1
    words = gather(joined, starts, _WORD)
    owner_stops = np.cumsum(np.fromiter(map(len, properties), np.int64, len(properties)) + 1)
    spans_by_name = {}
    for name in USED_NAMES:
        mask = (1 << 8 * len(name)) - 1
        like = (names == len(name)) & (lengths > 0)
        like &= words & np.uint64(mask) == np.uint64(int.from_bytes(name, "little"))
        spans = Spans(
            marks[name_marks[like]] + 1, lengths[like], np.searchsorted(owner_stops, starts[like], side="right")
        )
        last = np.diff(spans.owners, append=-1) != 0
        spans_by_name[name] = spans if last.all() else spans.only(last)
    return Values(joined, text, spans_by_name)
