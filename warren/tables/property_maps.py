"""The properties of many messages as Arrow's maps, and single ones of them as columns.

:func:`warren.msg_store.commit_log.commit_log_format.decode_properties` defines what counts: entries without name or
value vanish, the last of equal names wins. All properties are joined, each record's after a separator, and all
separators are found at once. Only a record whose bytes are no UTF-8 is read alone first, as Java reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from warren.arrow.arrays import slices
from warren.msg_store.commit_log.commit_log_format import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from warren.storage.columns import Longs
from warren.storage.java_hash import java_text

_END, _NAMED = PROPERTY_SEPARATOR[0], NAME_VALUE_SEPARATOR[0]
_FEW: Final = 16
"""Entries of a record up to which equal names are looked for by comparing each with each."""


@attrs.frozen(eq=False, slots=False)
class PropertyMaps:
    """The properties of ``len(starts)`` messages, which lie in ``data``."""

    data: bytes
    starts: Longs
    """Each comes after at least one other byte, of the properties' length."""
    sizes: Longs

    @classmethod
    def of(cls, stored: Sequence[bytes]) -> PropertyMaps:
        """The properties of messages that do not lie in one piece of data."""
        sizes = np.array([len(properties) for properties in stored], np.int64)
        return cls(b"\0" + b"\0".join(stored), np.cumsum(sizes + 1) - sizes, sizes)

    def maps(self) -> pa.Array:
        """All properties, a map for each message."""
        entries = self._entries
        offsets = np.concatenate(([0], np.cumsum(np.bincount(entries.owners, minlength=len(self.starts)))))
        return pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32)), entries.names, entries.values)

    def named(self, name: str) -> pa.Array:
        """The values under one name; null for a record without it."""
        entries = self._entries
        numbers = entries.code_of(name)
        entry_of = np.full(len(self.starts), -1, np.int64)
        entry_of[entries.owners[numbers]] = numbers
        return entries.values.take(pa.array(entry_of, mask=entry_of < 0))

    @functools.cached_property
    def _entries(self) -> _Entries:
        return _entries_of(self._text())

    def _text(self) -> pa.Array:
        """Each record's properties, after a separator, as UTF-8."""
        lines = slices(self.data, self.starts - 1, self.sizes + 1)
        _, offsets, data = lines.buffers()
        octets = np.frombuffer(data, np.uint8).copy()
        octets[np.frombuffer(offsets, np.int32)[: len(lines)]] = _END
        lines = pa.Array.from_buffers(pa.binary(), len(lines), [None, offsets, pa.py_buffer(octets)])
        try:
            return lines.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([java_text(line) for line in lines.to_pylist()], pa.string())


@attrs.frozen(eq=False, slots=False)
class _Entries:
    """Names and values that count; of each record in the order in which its names first came."""

    names: pa.Array
    values: pa.Array
    owners: Longs
    """Ascending."""

    def code_of(self, name: str) -> Longs:
        """Which of the entries have that name."""
        codes, names = self._coded
        code = names.index(name) if name in names else -1
        return np.flatnonzero(codes == code)

    @functools.cached_property
    def _coded(self) -> tuple[npt.NDArray[np.int32], list[str]]:
        coded = self.names.dictionary_encode()
        return coded.indices.to_numpy(), coded.dictionary.to_pylist()

    def without_older(self) -> _Entries:
        """Of a record's entries with equal names, keep only the last, in the place of the first."""
        codes, owners = self._coded[0], self.owners
        if not _has_equal(codes, owners):
            return self
        last: dict[tuple[int, int], int] = {}
        for number, key in enumerate(zip(owners.tolist(), codes.tolist(), strict=True)):
            last[key] = number  # a dict keeps the place of the first
        retained = np.fromiter(last.values(), np.int64, len(last))
        return _Entries(self.names.take(pa.array(retained)), self.values.take(pa.array(retained)), owners[retained])


def _entries_of(lines: pa.Array) -> _Entries:
    """The entries of texts that each begin with a separator."""
    _, offsets, data = lines.buffers()
    begins = np.frombuffer(offsets, np.int32)[: len(lines) + 1]
    octets = np.frombuffer(data, np.uint8)[: int(begins[-1])] if len(lines) else np.empty(0, np.uint8)
    ends = np.flatnonzero(octets == _END)
    starts, stops = ends + 1, np.append(ends[1:], len(octets)) if len(ends) else ends
    marks = np.append(np.flatnonzero(octets == _NAMED), len(octets))
    name_ends = marks[np.searchsorted(marks, starts)]
    good = np.flatnonzero((name_ends > starts) & (name_ends + 1 < stops))
    starts, stops, name_ends = starts[good], stops[good], name_ends[good]
    owners = np.searchsorted(begins[:-1], starts, side="right") - 1
    text = octets.data
    names = _as_strings(slices(text, starts, name_ends - starts))
    values = _as_strings(slices(text, name_ends + 1, stops - name_ends - 1))
    return _Entries(names, values, owners).without_older()


def _as_strings(array: pa.Array) -> pa.Array:
    """Bytes that are known to be UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers())


def _has_equal(codes: npt.NDArray[np.int32], owners: Longs) -> bool:
    """Whether a record has two entries of one name."""
    if not len(owners):
        return False
    most = int(np.bincount(owners).max())
    if most > _FEW:
        joined = owners << 32 | codes
        return len(np.unique(joined)) < len(joined)
    return any(
        bool(((codes[step:] == codes[:-step]) & (owners[step:] == owners[:-step])).any()) for step in range(1, most)
    )
