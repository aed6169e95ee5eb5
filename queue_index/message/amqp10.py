"""AMQP 1.0's types and a message's sections, as far as a broker's files need them.

A value is one *constructor* byte that says what it is, and it (everything big-endian)::

    40 null · 41 true · 42 false · 43 uint 0 · 44 ulong 0 · 45 the empty list
    5x one byte · 6x two · 7x four · 8x eight · 9x sixteen
    Ax u8 size · bytes                      Bx u32 size · bytes
    Cx u8 size · u8 count · values          Dx u32 size · u32 count · values       lists and maps
    Ex u8 size · u8 count · one constructor · the values without theirs            arrays; Fx with u32
    00 descriptor · value                   described: the descriptor says what the value means

A *section* of a message is a described value whose descriptor is a number below, or its name as a symbol.

In Python a value looks as it does among Erlang's terms, where a broker keeps values that it decoded: ``("utf8",
b"…")``, ``("uint", 5)``, ``("list", […])``, ``("map", [(key, value), …])``, ``("array", type, […])``, ``("described",
descriptor, value)``, ``True``, ``False``, ``NULL``; and ``("as_is", constructor, bytes)`` for decimals and numbers that
are not finite. So what is read here and what stands decoded in a term is one.

Reading costs time and memory in proportion to the bytes, whatever they claim: every element takes a byte, except in
arrays of values without bytes, and a message may hold :data:`MOST_EMPTY_ELEMENTS` such elements in all.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from warren.storage.erlang_terms import Atom, Term
from warren.storage.errors import MessageError

MAX_DEPTH: Final = 64
"""Levels of nested values that are read."""

MOST_EMPTY_ELEMENTS: Final = 10_000

NULL: Final = Atom("null")

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)
"""The sections, in the order in which they stand in a message."""

_NAMES: Final = {
    b"amqp:header:list": HEADER,
    b"amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    b"amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    b"amqp:properties:list": PROPERTIES,
    b"amqp:application-properties:map": APPLICATION_PROPERTIES,
    b"amqp:data:binary": DATA,
    b"amqp:amqp-sequence:list": SEQUENCE,
    b"amqp:amqp-value:*": VALUE,
    b"amqp:footer:map": FOOTER,
}

_DESCRIBED, _EMPTY_LIST = 0x00, 0x45
_CONSTANTS: Final[dict[int, Term]] = {
    0x40: NULL, 0x41: True, 0x42: False, 0x43: (Atom("uint"), 0), 0x44: (Atom("ulong"), 0),
}  # fmt: skip
_NUMBERS: Final = {
    constructor: (Atom(kind), struct.Struct(code))
    for constructor, kind, code in (
        (0x50, "ubyte", ">B"), (0x51, "byte", ">b"), (0x52, "uint", ">B"), (0x53, "ulong", ">B"), (0x54, "int", ">b"),
        (0x55, "long", ">b"), (0x60, "ushort", ">H"), (0x61, "short", ">h"), (0x70, "uint", ">I"), (0x71, "int", ">i"),
        (0x72, "float", ">f"), (0x73, "char", ">I"), (0x80, "ulong", ">Q"), (0x81, "long", ">q"),
        (0x82, "double", ">d"), (0x83, "timestamp", ">q"), (0x98, "uuid", ">16s"),
    )
}  # fmt: skip
_AS_IS: Final = {0x72: 4, 0x74: 4, 0x82: 8, 0x84: 8, 0x94: 16}
"""Sizes of decimals, which are kept as bytes, and of floats, which are if they are not finite."""
_BOOLEAN: Final = 0x56
_BYTES: Final = {
    0xA0: ("binary", 1), 0xA1: ("utf8", 1), 0xA3: ("symbol", 1),
    0xB0: ("binary", 4), 0xB1: ("utf8", 4), 0xB3: ("symbol", 4),
}  # fmt: skip
_COMPOUNDS: Final = {0xC0: ("list", 1), 0xC1: ("map", 1), 0xD0: ("list", 4), 0xD1: ("map", 4)}
_ARRAYS: Final = {0xE0: 1, 0xF0: 4}
_ELEMENT_TYPES: Final = (
    {constructor: kind for constructor, (kind, _) in _NUMBERS.items()}
    | {constructor: Atom(kind) for constructor, (kind, _) in (_BYTES | _COMPOUNDS).items()}
    | dict.fromkeys(_ARRAYS, Atom("array"))
    | dict.fromkeys((0x41, 0x42, _BOOLEAN), Atom("boolean"))
    | {0x40: NULL, 0x43: Atom("uint"), 0x44: Atom("ulong"), _EMPTY_LIST: Atom("list")}
)
"""The element types of arrays, by constructor."""


class Section(NamedTuple):
    """A section of a message; ``code``: one of the above."""

    code: int
    content: Term


# ── bytes → values ───────────────────────────────────────────────────────────────────────────────────────────────────


def read_sections(data: bytes) -> list[Section]:
    """All of the sections in ``data``; raises :class:`MessageError` for anything else."""
    reader = _Reader(data)
    sections = []
    position = 0
    while position < len(data):
        value, position = reader.value(position, len(data), MAX_DEPTH)
        match value:
            case ("described", descriptor, content) if (code := _section_code(descriptor)) is not None:
                sections.append(Section(code, content))
            case _:
                raise MessageError("a value that is not a message section")
    return sections


def read_value(data: bytes) -> Term:
    """Return the value that ``data`` holds as a whole; raise :class:`MessageError` for anything else."""
    value, end = _Reader(data).value(0, len(data), MAX_DEPTH)
    if end != len(data):
        raise MessageError(f"{len(data) - end} bytes after the value")
    return value


def _section_code(descriptor: Term) -> int | None:
    match descriptor:
        case ("ulong", int(code)) if HEADER <= code <= FOOTER:
            return code
        case ("symbol", bytes(name)):
            return _NAMES.get(name)
        case _:
            return None


class _Reader:
    """Reads values out of ``data``; every method returns one and the offset after it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._empty_left = MOST_EMPTY_ELEMENTS

    def value(self, position: int, limit: int, depth_left: int) -> tuple[Term, int]:
        """The value whose constructor stands at ``position`` and that ends before ``limit``."""
        if not depth_left:
            raise MessageError(f"values nested deeper than {MAX_DEPTH} levels")
        constructor, position = self._number(position, 1, limit)
        if constructor == _DESCRIBED:
            descriptor, position = self.value(position, limit, depth_left - 1)
            content, end = self.value(position, limit, depth_left - 1)
            return (Atom("described"), descriptor, content), end
        return self._content(constructor, position, limit, depth_left)

    def _content(self, constructor: int, position: int, limit: int, depth_left: int) -> tuple[Term, int]:
        """Return the value after its constructor."""
        if constructor in _CONSTANTS:
            return _CONSTANTS[constructor], position
        if constructor == _EMPTY_LIST:
            return (Atom("list"), []), position
        if constructor in _BYTES:
            kind, width = _BYTES[constructor]
            start, end = self._sized(position, width, limit)
            return (Atom(kind), self._data[start:end]), end
        if constructor in _NUMBERS:
            return self._fixed(constructor, position, limit)
        if constructor in _COMPOUNDS:
            return self._compound(constructor, position, limit, depth_left)
        if constructor in _ARRAYS:
            return self._array(_ARRAYS[constructor], position, limit, depth_left)
        if constructor in _AS_IS:
            return self._as_is(constructor, position, limit)
        if constructor == _BOOLEAN:
            number, end = self._number(position, 1, limit)
            if number > 1:
                raise MessageError(f"a boolean that is {number}")
            return bool(number), end
        raise MessageError(f"a value with the unknown constructor {constructor:#04x}")

    def _fixed(self, constructor: int, position: int, limit: int) -> tuple[Term, int]:
        kind, codec = _NUMBERS[constructor]
        end = self._within(position + codec.size, limit)
        (number,) = codec.unpack_from(self._data, position)
        if isinstance(number, float) and number - number != 0:  # infinite, or not a number
            return self._as_is(constructor, position, limit)
        return (kind, number), end

    def _as_is(self, constructor: int, position: int, limit: int) -> tuple[Term, int]:
        end = self._within(position + _AS_IS[constructor], limit)
        return (Atom("as_is"), constructor, self._data[position:end]), end

    def _compound(self, constructor: int, position: int, limit: int, depth_left: int) -> tuple[Term, int]:
        """A list or a map. Its count is ignored: its size says as much, and is what a broker uses."""
        kind, width = _COMPOUNDS[constructor]
        start, end = self._sized(position, width, limit)
        position = self._within(start + width, end)
        values = []
        while position < end:
            value, position = self.value(position, end, depth_left - 1)
            values.append(value)
        if kind == "list":
            return (Atom(kind), values), end
        if len(values) % 2:
            raise MessageError("a map with a key that has no value")
        return (Atom(kind), list(zip(values[::2], values[1::2], strict=True))), end

    def _array(self, width: int, position: int, limit: int, depth_left: int) -> tuple[Term, int]:
        start, end = self._sized(position, width, limit)
        count, position = self._number(start, width, end)
        descriptors = list[Term]()
        constructor, position = self._number(position, 1, end)
        while constructor == _DESCRIBED:
            descriptor, position = self.value(position, end, depth_left - 1 - len(descriptors))
            descriptors.append(descriptor)
            constructor, position = self._number(position, 1, end)
        if constructor not in _ELEMENT_TYPES:
            raise MessageError(f"an array of values with the constructor {constructor:#04x}")
        if constructor in _CONSTANTS or constructor == _EMPTY_LIST:
            self._empty_left -= count
            if self._empty_left < 0:
                raise MessageError(f"more than {MOST_EMPTY_ELEMENTS} elements that take no bytes")
        elif count > end - position:
            raise MessageError(f"{count} elements in {end - position} bytes")
        if depth_left <= len(descriptors) + 1:
            raise MessageError(f"values nested deeper than {MAX_DEPTH} levels")
        elements: list[Term] = []
        for _ in range(count):
            element, position = self._content(constructor, position, end, depth_left - 1 - len(descriptors))
            elements.append(element)
        if position != end:
            raise MessageError(f"{end - position} bytes after the elements of an array")
        kind: Term = _ELEMENT_TYPES[constructor]
        for descriptor in reversed(descriptors):
            kind = (Atom("described"), descriptor, kind)
            elements = [(Atom("described"), descriptor, element) for element in elements]
        return (Atom("array"), kind, elements), end

    def _sized(self, position: int, width: int, limit: int) -> tuple[int, int]:
        """Start and end of what a number of ``width`` bytes counts the bytes of."""
        size, start = self._number(position, width, limit)
        return start, self._within(start + size, limit)

    def _number(self, position: int, width: int, limit: int) -> tuple[int, int]:
        end = self._within(position + width, limit)
        return int.from_bytes(self._data[position:end], "big"), end

    @staticmethod
    def _within(end: int, limit: int) -> int:
        if end > limit:
            raise MessageError("an AMQP 1.0 value that is cut short")
        return end


# ── values → bytes ───────────────────────────────────────────────────────────────────────────────────────────────────

_WIDEST: Final = {
    str(kind): (constructor, codec)
    for constructor, (kind, codec) in _NUMBERS.items()
    if constructor not in range(0x52, 0x56)
}
"""Each number in the form that it has in an array."""
_SMALL: Final = {"uint": (0x52, 0, 256), "ulong": (0x53, 0, 256), "int": (0x54, -128, 128), "long": (0x55, -128, 128)}
"""Constructor and range (without its end) of numbers that take one byte."""
_SHORT: Final = {"binary": 0xA0, "utf8": 0xA1, "symbol": 0xA3, "list": 0xC0, "map": 0xC1, "array": 0xE0}
_WIDER: Final = 0x10
"""The difference between the constructors with a length of four bytes and of one."""
_MOST_SHORT: Final = 255


def encode_section(code: int, content: Term) -> bytes:
    """Encode a section as a broker does; raises :class:`MessageError` for an invalid value."""
    return bytes([_DESCRIBED, 0x53, code]) + encode_value(content)


def encode_value(value: Term, depth_left: int = MAX_DEPTH) -> bytes:
    """Return a value in the shortest form, as a broker writes it; raise :class:`MessageError` for an invalid value."""
    if not depth_left:
        raise MessageError(f"values nested deeper than {MAX_DEPTH} levels")
    match value:
        case ("described", descriptor, content):
            parts = [encode_value(part, depth_left - 1) for part in (descriptor, content)]
            return bytes([_DESCRIBED]) + b"".join(parts)
        case ("list", []):
            return bytes([_EMPTY_LIST])
        case (("list" | "map" | "array") as kind, *_):
            count, content = _counted(value, depth_left)
            if count < _MOST_SHORT and len(content) < _MOST_SHORT:
                return bytes([_SHORT[kind], len(content) + 1, count]) + content
            return bytes([_SHORT[kind] + _WIDER]) + struct.pack(">II", len(content) + 4, count) + content
        case _:
            return _leaf(value, depth_left)


def _leaf(value: Term, depth_left: int) -> bytes:
    match value:
        case bool():
            return b"\x41" if value else b"\x42"
        case "null" | "undefined":
            return b"\x40"
        case ("boolean", bool(plain)):
            return bytes([_BOOLEAN, plain])
        case (("uint" | "ulong") as kind, int(number)) if number == 0:
            return b"\x43" if kind == "uint" else b"\x44"
        case (("uint" | "ulong" | "int" | "long") as kind, int(number)) if number in range(*_SMALL[kind][1:]):
            return bytes([_SMALL[kind][0], number & 0xFF])
        case ("as_is", int(constructor), bytes(content)) if _AS_IS.get(constructor) == len(content):
            return bytes([constructor]) + content
        case (("binary" | "utf8" | "symbol") as kind, bytes(content)):
            is_short = len(content) < _MOST_SHORT
            size = len(content).to_bytes(1 if is_short else 4, "big")
            return bytes([_SHORT[kind] + (0 if is_short else _WIDER)]) + size + content
        case (str(kind), _) if kind in _WIDEST:
            return bytes([_WIDEST[kind][0]]) + _element(kind, value, depth_left)
        case _:
            raise MessageError(f"{value!r:.100} in place of an AMQP 1.0 value")


def _counted(value: Term, depth_left: int) -> tuple[int, bytes]:
    """How many values are in a list, map or array, and their bytes."""
    match value:
        case ("list", list(elements)):
            return len(elements), b"".join([encode_value(element, depth_left - 1) for element in elements])
        case ("map", list(pairs)) if all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            return 2 * len(pairs), b"".join([encode_value(part, depth_left - 1) for pair in pairs for part in pair])
        case ("array", kind, list(elements)):
            content = [_element(kind, element, depth_left - 1) for element in elements]
            return len(elements), _constructor(kind, depth_left) + b"".join(content)
        case _:
            raise MessageError(f"{value!r:.100} in place of an AMQP 1.0 value")


def _constructor(kind: Term, depth_left: int) -> bytes:
    """Return the constructor before an array's elements."""
    match kind:
        case ("described", descriptor, inner_kind) if depth_left:
            return (
                bytes([_DESCRIBED])
                + encode_value(descriptor, depth_left - 1)
                + _constructor(inner_kind, depth_left - 1)
            )
        case "null":
            return b"\x40"
        case "boolean":
            return bytes([_BOOLEAN])
        case str() if kind in _SHORT:
            return bytes([_SHORT[kind] + _WIDER])
        case str() if kind in _WIDEST:
            return bytes([_WIDEST[kind][0]])
        case _:
            raise MessageError(f"an array of {kind!r:.100}")


def _element(kind: Term, value: Term, depth_left: int) -> bytes:
    """A value of an array, without a constructor."""
    if depth_left <= 0:
        raise MessageError(f"values nested deeper than {MAX_DEPTH} levels")
    match kind, value:
        case "null", _:
            return b""
        case ("boolean", bool(plain)) | ("boolean", ("boolean", bool(plain))):
            return bytes([plain])
        case ("described", _, inner_kind), ("described", _, content):
            return _element(inner_kind, content, depth_left - 1)
        case ("binary" | "utf8" | "symbol", (str(value_kind), bytes(content))) if value_kind == kind:
            return struct.pack(">I", len(content)) + content
        case ("list" | "map" | "array", (str(value_kind), *_)) if value_kind == kind:
            count, content = _counted(value, depth_left)
            return struct.pack(">II", len(content) + 4, count) + content
        case str(), (str(value_kind), (int() | float() | bytes()) as number) if value_kind == kind and kind in _WIDEST:
            codec = _WIDEST[kind][1]
            try:
                packed = number if isinstance(number, bytes) else codec.pack(number)  # a uuid; a char, as 3.13 keeps it
            except (struct.error, OverflowError) as error:
                raise MessageError(f"{value!r:.100} in place of an AMQP 1.0 value") from error
            if len(packed) != codec.size:
                raise MessageError(f"{value!r:.100} in place of an AMQP 1.0 value")
            return packed
        case _:
            raise MessageError(f"{value!r:.100} in an array of {kind!r:.100}")
