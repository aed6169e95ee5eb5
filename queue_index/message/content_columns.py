"""Contents of many messages with properties of their own, made as columns.

Messages that are published together mostly have the same properties and headers, of the same types, and differ in the
values. Then the bytes around the values are the same in all, and a content is joined from these and the values, which
are encoded column by column. If messages differ in more than that, each is encoded by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warren.queue_index.message.amqp_tables import write_short_string
from warren.queue_index.message.message_format import TO_BODY, content_of
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
    """Contents of ``bodies`` (:func:`warren.queue_index.message.message_format.content_of`).

    ``common``: properties that all have; ``columns``: the properties that each message has its own value for, one
    column at least; ``None``: not set. Raises :class:`MessageError` for a value that has no place in them.
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
        self.sizes: Numbers | int = 0
        """Size of the pieces added so far: for each message, or the same for all."""
        self._rows: list[list[bytes | Numbers]] = [[]]
        self._values: list[Sequence[bytes]] = []

    def add(self, constant: bytes) -> None:
        """What all have."""
        self._rows[-1].append(constant)
        self.sizes = self.sizes + len(constant)

    def add_column(self, column: Numbers) -> None:
        """A number each, or bytes of one length; they may be filled in until :meth:`joined`."""
        self._rows[-1].append(column)
        self.sizes = self.sizes + column.itemsize

    def add_strings(self, strings: Sequence[Any], form: str, most: int = _MAX) -> None:
        """Add strings of at most ``most`` bytes, each preceded by its length as a number of type ``form``."""
        try:
            joined = "".join(strings)
            lengths = list(map(len, strings))
            if joined.isascii() and lengths[0] and lengths.count(lengths[0]) == self.count:  # a column of bytes
                values: list[bytes] = []
            else:
                values = list(map(str.encode, strings))
                lengths = list(map(len, values))
        except (TypeError, UnicodeEncodeError) as error:
            raise _DifferentError from error
        if max(lengths) > most:
            raise _DifferentError
        if values:
            self.add_values(values, np.array(lengths), form)
        else:
            self.add(lengths[0].to_bytes(np.dtype(form).itemsize, "big"))
            self.add_column(np.frombuffer(joined.encode(), f"V{lengths[0]}"))

    def add_values(self, values: Sequence[bytes], lengths: Numbers, form: str) -> None:
        """Bytes of different lengths, and before them their lengths as numbers of that form."""
        self.add_column(lengths.astype(form))
        self._values.append(values)
        self._rows.append([])
        self.sizes = self.sizes + lengths

    def joined(self) -> list[bytes]:
        """Return the contents; the pieces added last must be values."""
        rows = map(self._row_bytes, self._rows[:-1])
        pieces = [part for parts in zip(rows, self._values, strict=True) for part in parts]
        return list(map(b"".join, zip(*pieces, strict=True)))

    def _row_bytes(self, parts: list[bytes | Numbers]) -> list[bytes]:
        like = b"".join(part if isinstance(part, bytes) else bytes(part.itemsize) for part in parts)
        rows = np.empty((self.count, len(like)), np.uint8)
        rows[:] = np.frombuffer(like, np.uint8)
        at = 0
        for part in parts:
            if isinstance(part, bytes):
                at += len(part)
            else:
                rows[:, at : at + part.itemsize].view(part.dtype)[:, 0] = part
                at += part.itemsize
        row_bytes: list[bytes] = rows.view(f"V{at}")[:, 0].tolist()
        return row_bytes


def _joined(common: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], bodies: Sequence[bytes]) -> list[bytes]:
    names = [*(name for name, value in common.items() if value is not None and name not in columns), *columns]
    flags, writers = writers_of(tuple(names))
    pieces = _Pieces(len(bodies))
    properties_sizes = np.empty(len(bodies), ">u4")
    pieces.add_column(properties_sizes)
    pieces.add(flags)
    for name, _ in writers:
        if name not in columns:
            pieces.add(encode_values({name: common[name]})[len(flags) :])
        elif name == HEADERS:
            _add_headers(pieces, columns[name])
        elif name in SHORT_STRINGS:
            pieces.add_strings(columns[name], ">u1", _MAX_SHORT)
        else:
            raise _DifferentError
    properties_sizes[:] = pieces.sizes - properties_sizes.itemsize
    pieces.add(TO_BODY)
    pieces.add_values(bodies, np.array(list(map(len, bodies))), ">u4")
    return pieces.joined()


def _add_headers(pieces: _Pieces, tables: Sequence[Any]) -> None:
    if set(map(type, tables)) != {dict}:
        raise _DifferentError
    names = [*tables[0]]
    if [*chain.from_iterable(tables)] != names * len(tables):  # none has one twice: so each has those of the first
        raise _DifferentError
    values = [*chain.from_iterable(map(dict.values, tables))]
    table_sizes = np.empty(pieces.count, ">u4")
    pieces.add_column(table_sizes)
    sizes_before = pieces.sizes
    for index, name in enumerate(names):
        pieces.add(write_short_string(name))
        column = values[index :: len(names)]
        if type(column[0]) is int and set(map(type, column)) == {int} and _MIN <= min(column) <= max(column) <= _MAX:
            pieces.add(b"I")
            pieces.add_column(np.array(column, ">i4"))
        else:
            pieces.add(b"S")
            pieces.add_strings(column, ">u4")
    table_sizes[:] = pieces.sizes - sizes_before
