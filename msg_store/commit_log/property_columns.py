"""What dispatch needs from the properties of many records: tags codes, and hashes of the keys that go into the index.

Properties are ``name \\x01 value`` joined by ``\\x02``, in any order. There are two ways to read the properties of many
records at once. Both return what :func:`warren.msg_store.commit_log.commit_log_format.decode_properties` and
:mod:`warren.storage.java_hash` return for each record:

- by a *pattern*: properties of one writer mostly have the same names in the same order, and values of the same widths.
  Records whose properties are equally long are the rows of a matrix. All rows that have the same names and separators
  as the first one, at the same places, are read by its columns (:class:`_Pattern`).
- by their *entries*: properties that no pattern catches are joined, and all separators in them are found at once
  (:mod:`warren.msg_store.commit_log.property_entries`).
"""

from __future__ import annotations

import functools
from typing import Final, Self

import attrs
import numpy as np

from warren.msg_store.commit_log.commit_log_format import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    ROLLBACK,
    SCHEDULE_TOPIC,
    TRANSACTION_MASK,
    RecordError,
)
from warren.msg_store.commit_log.property_entries import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    TAGS,
    UNIQUE_KEY,
    USED_NAMES,
    find_values,
)
from warren.msg_store.commit_log.record_check import delivery_time
from warren.msg_store.commit_log.record_spans import RecordSpans
from warren.storage.columns import Bytes, Ints, Longs, Mask, by_value, gather_rows
from warren.storage.java_hash import Hashes, hash_rows, java_hash, to_index_hashes, to_tags_codes

_FEWEST_ROWS: Final = 16
_MOST_PATTERNS: Final = 4
"""A pattern costs as much as reading a good part of the rows by their entries: it must have a chance at many."""
_SAMPLE_ROWS: Final = 16
"""A pattern that catches less than a quarter of this many sample rows is not tried on all."""
_MOST_DIGITS: Final = 9
"""The most digits of a delay level that is read by columns."""


@attrs.frozen(eq=False, repr=False)
class PropertyCodes:
    """The resulting columns; see :class:`warren.msg_store.commit_log.record_columns.RecordColumns`."""

    tags_codes: Longs
    key_counts: Ints
    key_hashes: Ints
    bad_row: int | None
    """The first row whose delay level is not a number: a failure. Values of that row and later ones are meaningless."""

    @classmethod
    def none(cls, count: int) -> Self:
        """Return the columns of ``count`` good records whose properties are not needed."""
        return cls(np.zeros(count, np.int64), np.zeros(count, np.int32), np.empty(0, np.int32), None)


def read_properties(
    spans: RecordSpans, topics: tuple[str, ...], topic_of: Ints, *, delay_levels_ms: tuple[int, ...], with_keys: bool
) -> PropertyCodes:
    """The codes of good records."""
    reading = _Reading.of(spans, topics, topic_of, delay_levels_ms, with_keys)
    unread = [reading.read_by_patterns(width, rows) for width, rows in by_value(spans.properties_sizes) if width > 0]
    if any(map(len, unread)):
        reading.read_entries(np.sort(np.concatenate(unread)))
    return reading.result()


@attrs.frozen
class _Pattern:
    """The first row of a matrix: what the others must have in common with it to be read by columns."""

    row: Bytes
    mask: Bytes
    """The bits that must be equal: all at names and separators, the highest at the values that are hashed (ASCII)."""
    expected: Bytes
    """What they must be."""
    is_value: Mask
    columns: dict[bytes, tuple[int, int]]
    """Start and stop of each wanted value."""

    @classmethod
    def of(cls, row: Bytes) -> _Pattern:
        mask = np.full(len(row), 0xFF, np.uint8)
        is_value = np.zeros(len(row), np.bool_)
        columns: dict[bytes, tuple[int, int]] = {}
        at = 0
        for entry in row.tobytes().split(PROPERTY_SEPARATOR):
            name, separator, value = entry.partition(NAME_VALUE_SEPARATOR)
            start, stop = at + len(name) + 1, at + len(entry)
            if separator and name and value:
                is_value[start:stop] = True
                mask[start:stop] = 0x80 if name in USED_NAMES else 0
                if name in USED_NAMES:
                    columns[name] = start, stop
            at = stop + 1
        return cls(row, mask, np.where(is_value, 0, row), is_value, columns)

    def caught(self, matrix: Bytes) -> Mask:
        """The rows that have this pattern."""
        unlike = (matrix & self.mask) != self.expected
        separators = matrix == PROPERTY_SEPARATOR[0]
        if np.count_nonzero(separators) != np.count_nonzero(separators[0]) * len(matrix) or unlike.any():
            unlike |= separators & self.is_value
        if KEYS in self.columns and (spaces := matrix == KEY_SEPARATOR[0]).any():
            keys = slice(*self.columns[KEYS])
            unlike[:, keys] |= spaces[:, keys] != (self.row[keys] == KEY_SEPARATOR[0])
        return _rows_without(unlike)

    def keys(self) -> list[tuple[int, int]]:
        """From where to where each key goes, in the order of putting."""
        spans = [self.columns[UNIQUE_KEY]] if UNIQUE_KEY in self.columns else []
        if KEYS in self.columns:
            at, stop = self.columns[KEYS]
            for key in self.row[at:stop].tobytes().split(KEY_SEPARATOR):
                if key:
                    spans.append((at, at + len(key)))
                at += len(key) + 1
        return spans


def _rows_without(cells: Mask) -> Mask:
    """The rows in which nothing is set."""
    without = np.ones(len(cells), np.bool_)
    if cells.any():
        without[np.flatnonzero(cells) // cells.shape[1]] = False
    return without


@attrs.define(eq=False, repr=False, slots=False)
class _Reading:
    """The columns read so far. Each row is read once."""

    spans: RecordSpans
    delay_levels_ms: tuple[int, ...]
    with_keys: bool
    prefixes: Hashes
    """Of each row: the hash of topic + "#"."""
    scheduled: Mask
    has_keys: Mask
    """Rows that put keys into the index."""
    tags_codes: Longs
    key_counts: Ints
    keys: list[tuple[Longs, Hashes]] = attrs.Factory(list)
    """Rows, and the key hashes of each: a matrix with a line for each row."""
    bad_row: int | None = None

    @classmethod
    def of(
        cls,
        spans: RecordSpans,
        topics: tuple[str, ...],
        topic_of: Ints,
        delay_levels_ms: tuple[int, ...],
        with_keys: bool,
    ) -> _Reading:
        count = len(spans)
        prefixes = np.array([java_hash(f"{topic}#") for topic in topics], np.int64).astype(np.uint32)
        scheduled = np.zeros(count, np.bool_)
        if SCHEDULE_TOPIC in topics:
            scheduled = topic_of == topics.index(SCHEDULE_TOPIC)
        has_keys = np.full(count, with_keys) & (spans.sys_flags & TRANSACTION_MASK != ROLLBACK)
        codes = np.zeros(count, np.int64), np.zeros(count, np.int32)
        return cls(spans, delay_levels_ms, with_keys, prefixes[topic_of], scheduled, has_keys, *codes)

    @functools.cached_property
    def store_timestamps(self) -> Longs:
        return self.spans.store_timestamps()

    def read_by_patterns(self, width: int, rows: Longs) -> Longs:
        """Read those of ``rows`` that have a pattern in common; return the others.

        Their properties are ``width`` bytes long.
        """
        while len(rows) >= max(_FEWEST_ROWS, len(self.key_counts) // _MOST_PATTERNS):
            sample = self._matrix(width, rows[:: len(rows) // _SAMPLE_ROWS])
            pattern = _Pattern.of(sample[0])
            if np.count_nonzero(pattern.caught(sample)) * 4 < len(sample):
                break
            matrix = self._matrix(width, rows)
            caught = pattern.caught(matrix)
            self._leave_out_odd_delays(pattern, matrix, rows, caught)
            if caught.all():
                self.read_by(pattern, matrix, rows)
                return rows[:0]
            self.read_by(pattern, matrix[caught], rows[caught])
            rows = rows[~caught]
            if not caught[0]:
                break
        return rows

    def _matrix(self, width: int, rows: Longs) -> Bytes:
        spans = self.spans
        if spans.is_uniform and len(rows) == len(spans):
            start, size = int(spans.properties_starts[0]), int(spans.sizes[0])
            return np.ndarray((len(rows), width), np.uint8, spans.data, start, (size, 1))
        return gather_rows(spans.data, spans.properties_starts[rows], width)

    def _leave_out_odd_delays(self, pattern: _Pattern, matrix: Bytes, rows: Longs, caught: Mask) -> None:
        """Of scheduled rows only those are read by a pattern whose delay level is a few digits."""
        if DELAY in pattern.columns and self.scheduled[rows].any():
            start, stop = pattern.columns[DELAY]
            odd = (matrix[:, start:stop] - np.uint8(ord("0")) > 9).any(axis=1)
            caught &= ~(odd | (stop - start > _MOST_DIGITS)) | ~self.scheduled[rows]

    def read_by(self, pattern: _Pattern, matrix: Bytes, rows: Longs) -> None:
        """Read ``rows``, which the pattern has caught."""
        if TAGS in pattern.columns:
            start, stop = pattern.columns[TAGS]
            self.tags_codes[rows] = to_tags_codes(hash_rows(matrix[:, start:stop]))
        if DELAY in pattern.columns and self.delay_levels_ms:
            self._set_delivery_times(*pattern.columns[DELAY], matrix, rows)
        keys = pattern.keys()
        if not keys or not self.with_keys:
            return
        hashes = np.empty((len(rows), len(keys)), np.uint32)
        prefixes = self.prefixes[rows]
        for number, (start, stop) in enumerate(keys):
            ahead = prefixes * np.uint32(pow(31, stop - start, 1 << 32))
            hashes[:, number] = hash_rows(matrix[:, start:stop]) + ahead
        has_keys = self.has_keys[rows]
        if not has_keys.all():
            rows, hashes = rows[has_keys], hashes[has_keys]
        self.key_counts[rows] = len(keys)
        self.keys.append((rows, hashes))

    def _set_delivery_times(self, start: int, stop: int, matrix: Bytes, rows: Longs) -> None:
        scheduled = self.scheduled[rows]
        if not scheduled.any():
            return
        rows = rows[scheduled]
        delays = np.array(self.delay_levels_ms, np.int64)
        digits = matrix[scheduled, start:stop].astype(np.int64) - ord("0")
        levels = np.minimum(digits @ 10 ** np.arange(stop - start - 1, -1, -1), len(delays))
        due = self.store_timestamps[rows] + delays[levels - 1]
        self.tags_codes[rows] = np.where(levels > 0, due, self.tags_codes[rows])

    def read_entries(self, rows: Longs) -> None:
        """Read ``rows``, whatever they look like."""
        spans = self.spans
        starts, stops = spans.properties_starts[rows], (spans.starts + spans.sizes)[rows]
        data = spans.data
        values = find_values([data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)])
        tags = values.named(TAGS)
        self.tags_codes[rows[tags.owners]] = to_tags_codes(values.hashes(tags))
        delayed = rows[values.named(DELAY).owners]
        for row in delayed[self.scheduled[delayed]].tolist():
            self._set_delivery_time(row)
        if not self.with_keys:
            return
        keys = values.keys()
        keys = keys.only(self.has_keys[rows[keys.owners]])
        hashes = values.hashes(keys, self.prefixes[rows[keys.owners]])
        counts = np.bincount(keys.owners, minlength=len(rows))
        self.key_counts[rows] = counts
        firsts = np.cumsum(counts) - counts
        for count, positions in by_value(counts):
            if count:
                self.keys.append((rows[positions], hashes[firsts[positions][:, None] + np.arange(count)]))

    def _set_delivery_time(self, row: int) -> None:
        spans = self.spans
        properties = spans.data[int(spans.properties_starts[row]) : int(spans.starts[row] + spans.sizes[row])]
        try:
            due = delivery_time(properties, int(self.store_timestamps[row]), self.delay_levels_ms)
        except RecordError:
            self.bad_row = row if self.bad_row is None else min(row, self.bad_row)
            return
        if due is not None:
            self.tags_codes[row] = due

    def result(self) -> PropertyCodes:
        """Return the columns of all rows; every row must have been read."""
        return PropertyCodes(self.tags_codes, self.key_counts, to_index_hashes(self._hashes_in_order()), self.bad_row)

    def _hashes_in_order(self) -> Hashes:
        if len(self.keys) == 1 and len(self.keys[0][0]) == len(self.key_counts):
            return self.keys[0][1].reshape(-1)
        ends = np.cumsum(self.key_counts, dtype=np.int64)
        hashes = np.empty(int(ends[-1]), np.uint32)
        for rows, matrix in self.keys:
            count = matrix.shape[1]
            hashes[(ends[rows] - count)[:, None] + np.arange(count)] = matrix
        return hashes
