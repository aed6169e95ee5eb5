"""Contents of many messages with properties of their own, made as columns.

Messages that are published together mostly have the same properties and headers, of the same types, and differ in the
values. Then what stands around the values is the same in all, and a content is joined of it and of the values, which
are made bytes column by column. Where messages differ in more than that, each is encoded by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warren.queue_index.amqp_tables import write_short_string
from warren.queue_index.message_format import TO_BODY, content_of
from warren.queue_index.properties import HEADERS, SHORT_STRINGS, encode_values, writers_of

_WORTH_COLUMNS: Final = 8
_MAX_SHORT: Final = 255
_MIN, _MAX = -(1 << 31), (1 << 31) - 1
Numbers = npt.NDArray[Any]


class _DifferentError(Exception):
    """The messages differ in more than their values."""


def contents_of_columns(
    common: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], bodies: Sequence[bytes]
) -> list[bytes]:
    """Contents of ``bodies`` (:func:`warren.queue_index.message_format.content_of`).

    ``common``: properties that all have; ``columns``: those of which each message has its own, one column at least;
    ``None``: not set. Raises :class:`MessageError` for a value that has no place in them.
    """
    if len(bodies) >= _WORTH_COLUMNS and all(bodies):
        try:
            return _joined(common, columns, bodies)
        except _DifferentError:
            pass
    names = tuple(columns)
    rows = zip(*columns.values(), strict=True)
    return [
        content_of(encode_values({**common, **dict(zip(names, row, strict=True))}), body)
        for row, body in zip(rows, bodies, strict=True)
    ]


class _Pieces:
    """What contents are joined of: rows of one width, and by turns with them bytes of different lengths."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.sizes: Numbers = np.zeros(count, np.int64)
        """Bytes of what has come."""
        self._rows: list[list[bytes | Numbers]] = [[]]
        self._values: list[Sequence[bytes]] = []

    def add(self, constant: bytes) -> None:
        """What all have."""
        self._rows[-1].append(constant)
        self.sizes += len(constant)

    def add_numbers(self, numbers: Numbers) -> None:
        """A number each; they may be filled in until :meth:`joined`."""
        self._rows[-1].append(numbers)
        self.sizes += numbers.itemsize

    def add_values(self, values: Sequence[bytes], lengths: Numbers, form: str) -> None:
        """Bytes of different lengths, and before them their lengths as numbers of that form."""
        self.add_numbers(lengths.astype(form))
        self._values.append(values)
        self._rows.append([])
        self.sizes += lengths

    def joined(self) -> list[bytes]:
        """The contents; they end with what came last, which is values."""
        rows = map(self._row_bytes, self._rows[:-1])
        pieces = [part for parts in zip(rows, self._values, strict=True) for part in parts]
        return list(map(b"".join, zip(*pieces, strict=True)))

    def _row_bytes(self, parts: list[bytes | Numbers]) -> list[bytes]:
        widths = [len(part) if isinstance(part, bytes) else part.itemsize for part in parts]
        rows = np.empty((self.count, sum(widths)), np.uint8)
        at = 0
        for part, width in zip(parts, widths, strict=True):
            column = rows[:, at : at + width]
            if isinstance(part, bytes):
                column[:] = np.frombuffer(part, np.uint8)
            else:
                column.view(part.dtype)[:, 0] = part
            at += width
        made: list[bytes] = rows.view(f"V{at}")[:, 0].tolist()
        return made


def _joined(common: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], bodies: Sequence[bytes]) -> list[bytes]:
    names = [*(name for name, value in common.items() if value is not None and name not in columns), *columns]
    flags, writers = writers_of(tuple(names))
    pieces = _Pieces(len(bodies))
    properties_sizes = np.empty(len(bodies), ">u4")
    pieces.add_numbers(properties_sizes)
    pieces.add(flags)
    for name, _ in writers:
        if name not in columns:
            pieces.add(encode_values({name: common[name]})[len(flags) :])
        elif name == HEADERS:
            _add_headers(pieces, columns[name])
        elif name in SHORT_STRINGS:
            values, lengths = _encoded(columns[name])
            if lengths.max() > _MAX_SHORT:
                raise _DifferentError
            pieces.add_values(values, lengths, ">u1")
        else:
            raise _DifferentError
    properties_sizes[:] = pieces.sizes - properties_sizes.itemsize
    pieces.add(TO_BODY)
    pieces.add_values(bodies, _lengths(bodies), ">u4")
    return pieces.joined()


def _add_headers(pieces: _Pieces, tables: Sequence[Any]) -> None:
    if set(map(type, tables)) != {dict} or len(kinds := set(map(tuple, tables))) > 1:
        raise _DifferentError
    names = next(iter(kinds))
    table_sizes = np.empty(pieces.count, ">u4")
    pieces.add_numbers(table_sizes)
    before = pieces.sizes.copy()
    values = zip(*map(dict.values, tables), strict=True) if names else ()
    for name, column in zip(names, values, strict=True):
        pieces.add(write_short_string(name))
        kind = type(column[0])
        if kind is int and set(map(type, column)) == {int} and _MIN <= min(column) <= max(column) <= _MAX:
            pieces.add(b"I")
            pieces.add_numbers(np.array(column, ">i4"))
        else:
            pieces.add(b"S")
            pieces.add_values(*_encoded(column), ">u4")
    table_sizes[:] = pieces.sizes - before


def _encoded(values: Sequence[Any]) -> tuple[list[bytes], Numbers]:
    """Strings as bytes, and their lengths."""
    if set(map(type, values)) != {str}:
        raise _DifferentError
    try:
        encoded = list(map(str.encode, values))
    except UnicodeEncodeError as error:
        raise _DifferentError from error
    return encoded, _lengths(encoded)


def _lengths(strings: Sequence[bytes]) -> Numbers:
    return np.fromiter(map(len, strings), np.int64, len(strings))
