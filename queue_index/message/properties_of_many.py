"""Properties of many messages, decoded as columns.

Messages of one publisher mostly have the same properties and headers, of the same types and about the same lengths, and
differ in the values. Properties of equal length are the rows of a matrix: outside of the values all must have the bytes
of the first one, and each value is a column then. Messages that are like few others are decoded one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from operator import itemgetter
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.message.amqp_tables import long_string, text
from warren.queue_index.properties import HEADERS, NAMES, OCTETS, Properties, decode_properties, names_in
from warren.storage.columns import by_value

_WORTH_COLUMNS: Final = 16
"""Fewer that are alike are decoded one by one."""
_STRING, _SIGNED_INTEGER = b"SI"
_U32 = struct.Struct(">I")


class _NoColumnsError(Exception):
    """A header of another type than those that columns are made of."""


@attrs.frozen
class _Place:
    """Where rows have a value: ``at … end-1``. ``number``: what they are as a number; none: a string."""

    name: str
    """A header's, or a property's."""
    at: int
    end: int
    number: str = ""

    def column(self, rows: npt.NDArray[np.uint8], otherwise: Any) -> list[Any]:
        """Return the values; ``otherwise`` converts bytes that are not UTF-8."""
        part = rows[:, self.at : self.end]
        if self.number:
            numbers: list[Any] = np.ascontiguousarray(part).view(self.number)[:, 0].tolist()
            return numbers
        ended = np.zeros((len(part), part.shape[1] + 1), np.uint8)
        ended[:, :-1] = part
        encoded = ended.tobytes()
        if encoded.count(0) == len(ended):  # none has a zero of its own: all are decoded together
            try:
                return encoded.decode().split("\0")[:-1]
            except UnicodeDecodeError:
                pass
        return list(map(otherwise, np.ascontiguousarray(part).view(f"V{part.shape[1]}")[:, 0].tolist()))


def decode_many(encoded: Sequence[bytes]) -> list[Properties]:
    """Apply :func:`~warren.queue_index.properties.decode_properties` to each; raise the same errors."""
    if len(encoded) < _WORTH_COLUMNS:
        return list(map(decode_properties, encoded))
    flags = {data[:2] for data in encoded}
    names = [name for name in NAMES if any(name in names_in(flag_word) for flag_word in flags)]
    decoded = list(map(Properties.__new__, repeat(Properties, len(encoded))))
    values = list(map(vars, decoded))
    for name, column in zip(names, decode_columns(encoded, names), strict=True):
        _put(values, name, column)
    return decoded


def decode_columns(encoded: Sequence[bytes], names: Sequence[str]) -> list[list[Any]]:
    """Return a list of values for each property in ``names``; raises as :func:`decode_many` does."""
    count = len(encoded)
    if count >= _WORTH_COLUMNS and encoded.count(encoded[0]) == count:
        first = decode_properties(encoded[0])
        if first.headers is None:
            return [[getattr(first, name)] * count for name in names]
    lengths = list(map(len, encoded))
    if count >= _WORTH_COLUMNS and lengths.count(lengths[0]) == count:
        columns, fits = _columns(encoded, names)
        if columns and fits is None:
            return [list(islice(column, count)) for column in columns]
    decoded_columns: list[list[Any]] = [[None] * count for _ in names]
    for _, indices in by_value(np.array(lengths)):
        _decode_alike(encoded, indices.tolist(), names, decoded_columns)
    return decoded_columns


def _decode_alike(
    encoded: Sequence[bytes], indices: Sequence[int], names: Sequence[str], decoded_columns: list[list[Any]]
) -> None:
    """Decode the properties at ``indices``, which have one length."""
    while len(indices) >= _WORTH_COLUMNS:
        columns, fits = _columns(itemgetter(*indices)(encoded), names)
        if not columns:
            break
        chosen = indices
        indices = ()
        if fits is not None:
            numbers = np.asarray(chosen)
            chosen, indices = numbers[fits].tolist(), numbers[~fits].tolist()
        for values, column in zip(decoded_columns, columns, strict=True):
            for index, value in zip(chosen, column, strict=False):
                values[index] = value
    for index in indices:
        properties = decode_properties(encoded[index])
        for name, values in zip(names, decoded_columns, strict=True):
            values[index] = getattr(properties, name)


def _columns(
    encoded: Sequence[bytes], names: Sequence[str]
) -> tuple[list[Iterable[Any]], npt.NDArray[np.bool_] | None]:
    """Return the columns of the messages that are like the first one, and a mask of them (``None``: all); empty if few.

    The column of a value that is common to all is infinite.
    """
    first = encoded[0]
    first_properties = decode_properties(first)
    try:
        headers, others = _places(first)
    except _NoColumnsError:
        return [], None
    rows = np.frombuffer(b"".join(encoded), np.uint8).reshape(len(encoded), len(first))
    differs, varying = rows != rows[0], set()
    for place in (*headers, *others):
        part = differs[:, place.at : place.end]
        if part.any():
            varying.add(place)
            part[:] = False
    fits = None
    if differs.any():
        fits = ~differs.any(axis=1)
        if np.count_nonzero(fits) < _WORTH_COLUMNS:
            return [], None
        rows = rows[fits]
    columns: dict[str, Iterable[Any]] = {place.name: place.column(rows, text) for place in others if place in varying}
    if first_properties.headers is not None and HEADERS in names:
        like: dict[str, Any] = {**first_properties.headers}
        tables = list(map(dict.copy, repeat(like, len(rows))))
        columns[HEADERS] = tables
        names_once = len(like) == len(headers)
        for place in headers:
            if place in varying or not names_once:  # of equal names the last one counts
                _put(tables, place.name, place.column(rows, long_string))
    return [columns[name] if name in columns else repeat(getattr(first_properties, name)) for name in names], fits


def _put(into: list[dict[str, Any]], name: str, column: Iterable[Any]) -> None:
    for entry, value in zip(into, column, strict=False):
        entry[name] = value


def _places(data: bytes) -> tuple[list[_Place], list[_Place]]:
    """Return where decodable properties have their values: the headers, and the others except octets."""
    headers: list[_Place] = []
    others: list[_Place] = []
    at = 2
    for name in names_in(data[:2]):
        if name in OCTETS:
            at += 1
        elif name == "timestamp":
            others.append(_Place(name, at, at + 8, ">u8"))
            at += 8
        elif name == HEADERS:
            end = at + 4 + _U32.unpack_from(data, at)[0]
            at += 4
            while at < end:
                headers.append(place := _header_place(data, at))
                at = place.end
        else:
            start, at = at + 1, at + 1 + data[at]
            others.append(_Place(name, start, at))
    return headers, others


def _header_place(data: bytes, at: int) -> _Place:
    """Return the place of the header that begins at ``at``."""
    tag_at = at + 1 + data[at]
    name, tag, start = data[at + 1 : tag_at].decode("utf-8", "surrogateescape"), data[tag_at], tag_at + 5
    if tag == _STRING:
        return _Place(name, start, start + int(_U32.unpack_from(data, tag_at + 1)[0]))
    if tag == _SIGNED_INTEGER:
        return _Place(name, tag_at + 1, start, ">i4")
    raise _NoColumnsError
