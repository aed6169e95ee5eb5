"""Shapes of entries: what the entries of one kind have in common, learned from one of them.

Successive entries of a log differ in little: time, pid, sequence number, body, correlation. So an entry is seen as
*constants* with *holes* in between::

    constant · hole · constant · hole · … · constant

=========  =========================================================================================================
binary     u32 size · bytes
fixed      as many bytes as in the entry that it was learned from: those after the name of a pid's or reference's
           node, the value of an integer (whose tag, and whose size if it is a big one, belong to the constant before)
numbers    a list of naturals, whole: tag 107 (one byte each), 108, or 106 if it is empty
=========  =========================================================================================================

An entry fits a shape if every constant is there, byte for byte, and every hole holds what its kind says. The values of
an entry that fits are read from its holes. The entry that the shape was learned from was decoded in full, so the result
is the same as if this one were, too. An entry that does not fit is decoded in full.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Container
from typing import Final, Literal, NamedTuple

from warren.storage.errors import TermError
from warren.storage.term_walk import term_end

BINARY: Final = -1
NUMBERS: Final = -2
"""In place of a fixed hole's size."""

MAX_HOLES: Final = 32
"""An entry with more of them (decoded headers) is decoded about as fast as it is read."""

MAX_INTEGER_BYTES: Final = 7
"""As many as a map's key may have."""

LAYOUT_TIMES: Final = 8
"""How often a length is met before a layout is made for it, which costs as much as 100 entries."""
MAX_LAYOUTS: Final = 16
MAX_SIZES: Final = 64
"""Of each shape."""

PID_BYTES: Final = 12
"""Of a pid, after the name of its node."""

_U16, _U32 = struct.Struct(">H").unpack_from, struct.Struct(">I").unpack_from
_I32 = struct.Struct(">i").unpack_from
_SMALL_INTEGER, _INTEGER, _SMALL_BIG = 97, 98, 110
_NEW_PID, _REFERENCE, _NIL, _STRING, _LIST, _BINARY_TAG = 88, 90, 106, 107, 108, 109
_HEADERS = {104: 2, 105: 5, _LIST: 5, 116: 5}
"""Bytes before the first element of a tuple, a list, a map."""
_ONE_INTEGER = b"l\0\0\0\1b"
"""The start of a list of one integer above 255; most settles have one."""
_INTEGERS = {_SMALL_INTEGER: 1, _INTEGER: 1, _SMALL_BIG: 3}
"""Bytes before the value."""


class Hole(NamedTuple):
    term: int
    """Where its term begins."""
    start: int
    end: int
    kind: int
    """:data:`BINARY`, :data:`NUMBERS`, or its size."""


def find_holes(data: bytes, numbers_at: int, constants: Container[int]) -> list[Hole]:
    """The holes of an entry that is sound, in order; ``numbers_at``: where message ids stand, -1: nowhere.

    A term that begins at one of ``constants`` is no hole.
    """
    holes = []
    at, size = 1, len(data)
    while at < size:
        tag = data[at]
        if at == numbers_at:
            end = numbers(data, at)[1]
            holes.append(Hole(at, at, end, NUMBERS))
        elif tag in _HEADERS:
            end = at + _HEADERS[tag]
        else:
            end = term_end(data, at)
            start = _start(data, at, tag, end)
            if start and at not in constants:
                holes.append(Hole(at, start, end, BINARY if tag == _BINARY_TAG else end - start))
        at = end
    return holes


def _start(data: bytes, at: int, tag: int, end: int) -> int:
    """Where the hole in the term ``at`` … ``end`` begins; 0: it is a constant."""
    if tag == _BINARY_TAG:
        return at + 1
    if tag == _NEW_PID:
        return end - PID_BYTES
    if tag == _REFERENCE:
        return end - 4 - 4 * int(_U16(data, at + 1)[0])
    if tag == _SMALL_BIG and (data[at + 2] or data[at + 1] > MAX_INTEGER_BYTES):
        return 0
    return at + _INTEGERS[tag] if tag in _INTEGERS else 0


class Natural(NamedTuple):
    """A natural number in a hole."""

    hole: int
    """Its index; -1: no hole."""
    order: Literal["little", "big"]
    limit: int
    """From here on its bytes mean a negative number."""


class Layout(NamedTuple):
    """A shape with binaries of certain sizes: all constants have fixed places, and are compared at once."""

    is_of: Callable[[bytes], object]
    """Whether an entry has it, apart from the numbers, which have to be read."""
    ends: list[int]
    """As :meth:`Pattern.fit` returns it."""
    numbers_at: int
    """0: no numbers."""
    numbers_end: int


class Pattern:
    """The constants and the kinds of the holes of a shape."""

    def __init__(self, data: bytes, holes: list[Hole]) -> None:
        self.numbers: list[int] = []
        """Those of the entry that was fitted last."""
        self._data = data
        self._holes = holes
        self._ends = [0, *(hole.end for hole in holes)]
        constants = [data[start : hole.start] for start, hole in zip(self._ends, holes, strict=False)]
        self._steps = [(constant, len(constant), hole.kind) for constant, hole in zip(constants, holes, strict=True)]
        self._last = data[self._ends[-1] :]
        self._index = {hole.term: index for index, hole in enumerate(holes)}
        self.constant_sizes = [len(constant) for constant in constants]
        self._layouts: dict[int, Layout] = {}
        """By the length of an entry."""
        self._times: dict[int, int] = {}
        """How often entries of a length were met."""

    def index(self, term: int) -> int:
        """The index of the hole in the term at ``term`` in the entry that was learned from; -1: no hole."""
        return self._index.get(term, -1)

    def natural(self, term: int) -> Natural:
        """How to read the integer at ``term`` in what the shape was learned from."""
        index = self.index(term)
        tag = self._data[term] if index >= 0 else 0
        is_big = tag == _SMALL_BIG
        return Natural(index, "little" if is_big else "big", 1 << 31 if tag == _INTEGER else 1 << 64)

    def behind(self, at: int) -> tuple[int, int]:
        """How to find what is at ``at`` in another entry: a place (:meth:`fit`), and the bytes after it."""
        place = bisect_right(self._ends, at) - 1
        return place, at - self._ends[place]

    def fit(self, data: bytes) -> list[int] | None:
        """0, and where the holes end in ``data``; ``None``: it has another shape. The list is not to be changed.

        Hole i begins ``constant_sizes[i]`` after place i, and ends at place i + 1.
        """
        size = len(data)
        layout = self._layouts.get(size)
        if layout is not None and layout.is_of(data):
            if layout.numbers_at:
                try:
                    self.numbers, end = numbers(data, layout.numbers_at)
                except (IndexError, struct.error, TermError):
                    return None
                if end != layout.numbers_end:
                    return None
            return layout.ends
        ends = self._fit(data)
        if ends is not None and len(self._layouts) < MAX_LAYOUTS:
            times = self._times.get(size, 0) + 1
            if times == LAYOUT_TIMES:
                self._layouts[size] = self._layout(data, ends)
            elif len(self._times) < MAX_SIZES:
                self._times[size] = times
        return ends

    def _layout(self, data: bytes, ends: list[int]) -> Layout:
        """The layout of an entry that fits, and whose holes end there."""
        parts = []
        numbers_at = numbers_end = 0
        for (_, size, kind), before, end in zip(self._steps, ends, ends[1:], strict=False):
            start = before + size
            if kind == NUMBERS:
                numbers_at, numbers_end = start, end
            if kind == BINARY:
                start += 4
            parts.append(re.escape(data[before:start]) + b".{%d}" % (end - start))
        pattern = re.compile(b"".join(parts) + re.escape(self._last), re.DOTALL)
        return Layout(pattern.fullmatch, ends, numbers_at, numbers_end)

    def _fit(self, data: bytes) -> list[int] | None:
        ends = [0]
        at = 0
        starts_with = data.startswith
        try:
            for constant, size, kind in self._steps:
                if not starts_with(constant, at):
                    return None
                at += size
                if kind > 0:
                    at += kind
                elif kind == BINARY:
                    at += 4 + _U32(data, at)[0]
                else:
                    self.numbers, at = numbers(data, at)
                ends.append(at)
        except (IndexError, struct.error, TermError):
            return None
        return ends if at <= len(data) and data[at:] == self._last else None


def numbers(data: bytes, at: int) -> tuple[list[int], int]:
    """The list of naturals at ``at``, and the offset after it.

    Raises :class:`TermError`, :class:`IndexError` or :class:`struct.error` if something else is there.
    """
    tag = data[at]
    if tag == _NIL:
        return [], at + 1
    if tag == _STRING:
        start = at + 3
        end = start + int(_U16(data, at + 1)[0])
        if end > len(data):
            raise TermError("a list that is cut short")
        return list(data[start:end]), end
    if tag != _LIST:
        raise TermError("no list")
    if data.startswith(_ONE_INTEGER, at) and data[at + 10] == _NIL and data[at + 6] < 128:
        return [_U32(data, at + 6)[0]], at + 11
    values = []
    count = _U32(data, at + 1)[0]
    at += 5
    for _ in range(count):
        tag = data[at]
        if tag == _INTEGER:
            value = _I32(data, at + 1)[0]
            at += 5
        elif tag == _SMALL_INTEGER:
            value = data[at + 1]
            at += 2
        else:
            raise TermError("no list of integers")
        if value < 0:
            raise TermError("a negative number")
        values.append(value)
    if data[at] != _NIL:
        raise TermError("a list with a tail")
    return values, at + 1
