"""What dispatch asks of the properties of many records: tags codes, and the hashes of the keys that go into the index.

Properties are ``name \\x01 value`` joined by ``\\x02``, in any order. Those of one writer mostly look alike: the same
names in the same order, values of the same widths. So records whose properties are equally long are laid out as a
matrix, and its first row is the *pattern*: where the names and separators stand. Every row that has the same bytes
there is read by columns with it; the rows that are left try the next pattern, and what no pattern catches (few of a
kind, or with characters beyond ASCII in tags or keys) is read one by one. Both ways give what
:func:`msg_store.commit_log_format.decode_properties` and :mod:`storage.java_hash` give of each record.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np

from msg_store.commit_log_format import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    ROLLBACK,
    SCHEDULE_TOPIC,
    TRANSACTION_MASK,
    RecordError,
)
from msg_store.gathering import Bytes, Ints, Longs, Mask, by_value, gather_rows
from msg_store.record_check import delivery_time
from storage.java_hash import Hashes, hash_many, hash_rows, java_hash, to_index_hashes, to_tags_codes

TAGS: Final = b"TAGS"
KEYS: Final = b"KEYS"
UNIQUE_KEY: Final = b"UNIQ_KEY"
DELAY: Final = b"DELAY"
_WANTED = frozenset((TAGS, KEYS, UNIQUE_KEY, DELAY))
_KEY_SEPARATOR: Final = b" "

_FEWEST_ROWS: Final = 8
"""Fewer are read one by one."""
_WORTH_A_PATTERN: Final = 32
"""A pattern that catches less than one row in so many costs more than reading them one by one …"""
_MOST_POOR_PATTERNS: Final = 3
"""… and after so many of them nothing better is hoped for."""
_MOST_DIGITS: Final = 9
"""Of a delay level that is read by columns."""
_LONG_STRING_BYTES: Final = 0x8000
"""Not hashed by columns: the powers end here."""


@attrs.frozen(eq=False)
class PropertyRows:
    """Where the properties of ``n`` good records lie in a buffer, and what else their codes depend on."""

    data: bytes
    starts: Longs
    """In the buffer."""
    sizes: Ints
    topics: tuple[str, ...]
    topic_of: Ints
    sys_flags: Ints
    store_timestamps: Longs
    delay_levels_ms: tuple[int, ...]
    with_keys: bool

    def one(self, row: int) -> bytes:
        start = int(self.starts[row])
        return self.data[start : start + int(self.sizes[row])]


@attrs.frozen(eq=False)
class PropertyCodes:
    """The columns that come of it; see :class:`msg_store.record_columns.RecordColumns`."""

    tags_codes: Longs
    key_counts: Ints
    key_hashes: Ints
    bad_row: int | None
    """The first whose delay level is no number: a failure. What is said of it and of those behind it means nothing."""


def read_properties(rows: PropertyRows) -> PropertyCodes:
    """The codes of all rows."""
    reading = _Reading.of(rows)
    for width, where in by_value(rows.sizes):
        if width > 0:
            reading.read_width(width, where)
    return reading.result()


@attrs.frozen
class _Pattern:
    """The first row of a matrix: what the others must have in common with it to be read by columns."""

    row: Bytes
    frame: Bytes
    """0xFF at names and separators, which must be equal."""
    value: Bytes
    """0xFF at values, which must hold no separator."""
    high: Bytes
    """0x80 at the values that are hashed, which must be ASCII."""
    columns: dict[bytes, tuple[int, int]]
    """From where to where each wanted value goes."""

    @classmethod
    def of(cls, row: Bytes) -> _Pattern:
        frame = np.full(len(row), 0xFF, np.uint8)
        high = np.zeros(len(row), np.uint8)
        columns: dict[bytes, tuple[int, int]] = {}
        at = 0
        for entry in row.tobytes().split(PROPERTY_SEPARATOR):
            name, separator, value = entry.partition(NAME_VALUE_SEPARATOR)
            start, stop = at + len(name) + 1, at + len(entry)
            if separator and name and value:
                frame[start:stop] = 0
                if name in _WANTED:
                    columns[name] = start, stop
                    high[start:stop] = 0x80
            at = stop + 1
        return cls(row, frame, ~frame, high, columns)

    def caught(self, matrix: Bytes) -> Mask:
        """The rows that look like this one."""
        cells = matrix ^ self.row
        cells &= self.frame
        cells |= matrix & self.high
        cells |= (matrix == PROPERTY_SEPARATOR[0]).view(np.uint8) & self.value
        caught = _rows_without(cells)
        if KEYS in self.columns:
            keys = slice(*self.columns[KEYS])
            spaces = matrix[:, keys] == _KEY_SEPARATOR[0]
            caught &= _rows_without((spaces ^ (self.row[keys] == _KEY_SEPARATOR[0])).view(np.uint8))
        return caught

    def keys(self) -> list[tuple[int, int]]:
        """From where to where each key goes, in the order of putting."""
        found = [self.columns[UNIQUE_KEY]] if UNIQUE_KEY in self.columns else []
        if KEYS in self.columns:
            at, stop = self.columns[KEYS]
            for key in self.row[at:stop].tobytes().split(_KEY_SEPARATOR):
                if key:
                    found.append((at, at + len(key)))
                at += len(key) + 1
        return found


def _rows_without(cells: Bytes) -> Mask:
    """The rows that are all zeros."""
    without = np.ones(len(cells), np.bool_)
    if cells.any():
        without[np.flatnonzero(cells) // cells.shape[1]] = False
    return without


@attrs.define(eq=False)
class _Reading:
    """What has been read of the rows so far. Each of them is read once."""

    rows: PropertyRows
    prefixes: Hashes
    """Hashes of topic + "#", a topic each."""
    scheduled: Mask
    has_keys: Mask
    """Rows that put keys into the index."""
    tags_codes: Longs
    key_counts: Ints
    keys: list[tuple[Longs, Hashes]] = attrs.Factory(list)
    """Rows, and the key hashes of each: a matrix with a line for each row."""
    bad_row: int | None = None

    @classmethod
    def of(cls, rows: PropertyRows) -> _Reading:
        count = len(rows.starts)
        prefixes = np.array([java_hash(f"{topic}#") for topic in rows.topics], np.int64).astype(np.uint32)
        scheduled = np.zeros(count, np.bool_)
        if SCHEDULE_TOPIC in rows.topics:
            scheduled = rows.topic_of == rows.topics.index(SCHEDULE_TOPIC)
        has_keys = np.full(count, rows.with_keys) & (rows.sys_flags & TRANSACTION_MASK != ROLLBACK)
        return cls(rows, prefixes, scheduled, has_keys, np.zeros(count, np.int64), np.zeros(count, np.int32))

    def read_width(self, width: int, where: Longs) -> None:
        """Read the rows ``where``, whose properties are all ``width`` bytes long."""
        poor = 0
        matrix = self._matrix(width, where)
        while len(where) >= _FEWEST_ROWS and poor < _MOST_POOR_PATTERNS:
            pattern = _Pattern.of(matrix[0])
            caught = pattern.caught(matrix)
            self._leave_out_odd_delays(pattern, matrix, where, caught)
            if caught.all():
                return self.read_by(pattern, matrix, where)
            self.read_by(pattern, matrix[caught], where[caught])
            poor += int(np.count_nonzero(caught)) * _WORTH_A_PATTERN < len(where)
            if not caught[0]:
                caught[0] = True
                self.read_singly(where[:1])
            matrix, where = matrix[~caught], where[~caught]
        return self.read_singly(where)

    def _matrix(self, width: int, where: Longs) -> Bytes:
        if len(where) < _FEWEST_ROWS:
            return np.empty((0, width), np.uint8)
        return gather_rows(self.rows.data, self.rows.starts[where], width)

    def _leave_out_odd_delays(self, pattern: _Pattern, matrix: Bytes, where: Longs, caught: Mask) -> None:
        """Of scheduled rows only those are read by columns whose delay level is a few digits."""
        if DELAY in pattern.columns and self.scheduled[where].any():
            start, stop = pattern.columns[DELAY]
            odd = (matrix[:, start:stop] - ord("0") > 9).any(axis=1)
            caught &= ~(odd | (stop - start > _MOST_DIGITS)) | ~self.scheduled[where]

    def read_by(self, pattern: _Pattern, matrix: Bytes, where: Longs) -> None:
        """Read the rows ``where``, which the pattern has caught, by columns."""
        if TAGS in pattern.columns:
            start, stop = pattern.columns[TAGS]
            self.tags_codes[where] = to_tags_codes(hash_rows(matrix[:, start:stop]))
        if DELAY in pattern.columns:
            self._set_delivery_times(*pattern.columns[DELAY], matrix, where)
        keys = pattern.keys()
        if not keys or not self.rows.with_keys:
            return
        hashes = np.empty((len(where), len(keys)), np.uint32)
        prefixes = self.prefixes[self.rows.topic_of[where]]
        for number, (start, stop) in enumerate(keys):
            ahead = prefixes * np.uint32(pow(31, stop - start, 1 << 32))
            hashes[:, number] = hash_rows(matrix[:, start:stop]) + ahead
        self._put_keys(where, hashes)

    def _set_delivery_times(self, start: int, stop: int, matrix: Bytes, where: Longs) -> None:
        scheduled = self.scheduled[where]
        delays = np.array(self.rows.delay_levels_ms, np.int64)
        if not scheduled.any() or not len(delays):
            return
        where = where[scheduled]
        digits = matrix[scheduled, start:stop].astype(np.int64) - ord("0")
        levels = np.minimum(digits @ 10 ** np.arange(stop - start - 1, -1, -1), len(delays))
        due = self.rows.store_timestamps[where] + delays[levels - 1]
        self.tags_codes[where] = np.where(levels > 0, due, self.tags_codes[where])

    def _put_keys(self, where: Longs, hashes: Hashes) -> None:
        has_keys = self.has_keys[where]
        if not has_keys.all():
            where, hashes = where[has_keys], hashes[has_keys]
        self.key_counts[where] = hashes.shape[1]
        self.keys.append((where, hashes))

    def read_singly(self, where: Longs) -> None:
        """Read the rows ``where`` one by one; their strings are hashed together."""
        tagged: list[int] = []
        tags: list[bytes] = []
        keyed: list[int] = []
        keys: list[bytes] = []
        for row in where.tolist():
            properties = self.rows.one(row)
            found = _wanted(properties)
            due = self._delivery_time(row, properties) if self.scheduled[row] and DELAY in found else None
            if due is not None:
                self.tags_codes[row] = due
            elif TAGS in found:
                tagged.append(row)
                tags.append(found[TAGS])
            if self.has_keys[row]:
                prefix = self.rows.topics[self.rows.topic_of[row]].encode() + b"#"
                new = [found.get(UNIQUE_KEY, b""), *found.get(KEYS, b"").split(_KEY_SEPARATOR)]
                new = [prefix + key for key in new if key]
                keys += new
                keyed += [row] * len(new)
        self.tags_codes[tagged] = to_tags_codes(_hashes(tags))
        if keyed:
            self._put_single_keys(np.array(keyed), _hashes(keys))

    def _put_single_keys(self, keyed: Longs, hashes: Hashes) -> None:
        counts = np.bincount(keyed, minlength=len(self.key_counts))
        self.key_counts += counts.astype(np.int32)
        firsts = np.concatenate(([0], np.flatnonzero(keyed[1:] != keyed[:-1]) + 1))
        for count, which in by_value(counts[keyed[firsts]]):
            self.keys.append((keyed[firsts[which]], hashes[firsts[which][:, None] + np.arange(count)]))

    def _delivery_time(self, row: int, properties: bytes) -> int | None:
        try:
            return delivery_time(properties, int(self.rows.store_timestamps[row]), self.rows.delay_levels_ms)
        except RecordError:
            self.bad_row = row if self.bad_row is None else min(row, self.bad_row)
            return None

    def result(self) -> PropertyCodes:
        """The columns of all rows, every one of which has been read."""
        return PropertyCodes(self.tags_codes, self.key_counts, to_index_hashes(self._hashes_in_order()), self.bad_row)

    def _hashes_in_order(self) -> Hashes:
        if len(self.keys) == 1 and len(self.keys[0][0]) == len(self.key_counts):
            return self.keys[0][1].reshape(-1)
        ends = np.cumsum(self.key_counts, dtype=np.int64)
        hashes = np.empty(int(ends[-1]), np.uint32)
        for where, matrix in self.keys:
            count = matrix.shape[1]
            hashes[(ends[where] - count)[:, None] + np.arange(count)] = matrix
        return hashes


def _wanted(properties: bytes) -> dict[bytes, bytes]:
    """The wanted ones among a record's properties."""
    found: dict[bytes, bytes] = {}
    for entry in properties.split(PROPERTY_SEPARATOR):
        name, _, value = entry.partition(NAME_VALUE_SEPARATOR)
        if name in _WANTED and value:
            found[name] = value
    return found


def _hashes(strings: list[bytes]) -> Hashes:
    """Java's hashes of strings of any length and in any characters."""
    hashes = np.empty(len(strings), np.uint32)
    plain = [number for number, text in enumerate(strings) if len(text) < _LONG_STRING_BYTES and text.isascii()]
    hashes[plain] = hash_many([strings[number] for number in plain])
    for number in set(range(len(strings))).difference(plain):
        hashes[number] = java_hash(strings[number].decode("utf-8", "replace")) & 0xFFFFFFFF
    return hashes
