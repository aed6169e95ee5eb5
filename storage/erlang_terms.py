"""Erlang terms as bytes: the external term format, as far as a broker's files need it.

Terms. A *term* is what Erlang keeps: atoms, numbers, binaries, tuples, lists, maps. In Python:

======================================  ======================================
atom ``true``, ``false``                ``bool``
any other atom, ``undefined`` too       :class:`Atom` (a ``str``)
integer, float                          ``int``, ``float``
binary                                  ``bytes``
tuple, list, map                        ``tuple``, ``list``, ``dict``
string (a list of bytes, packed)        ``list`` of ``int``
improper list                           :class:`ImproperList`
pid, reference, port                    :class:`Opaque`
======================================  ======================================

Reading trusts no length: what is read is whole, shallow, and costs memory and time in proportion to its bytes.

A map's key is an atom, a binary, a pid or its like, an integer below 2**56, or a tuple of all these except integers.
Any other key is its encoding, as :class:`Opaque`, because an attacker who can choose Python's hashes can make a
``dict`` slow; :func:`decode_opaque` reads it. Of equal keys the last one counts, and to Python ``true`` equals 1.

Refused although Erlang allows it: integers above 2040 bits, bit strings, funs, and a list whose tail is written as one
more list. None of them occurs in a broker's files.

Writing chooses the tags that OTP 25's ``term_to_binary`` chooses.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, cast

import attrs

from warren.storage.errors import TermError

MAX_DEPTH: Final = 64
"""Levels of nesting that are read. A message's headers need about ten; reading recurses for each."""

MAX_INFLATED_BYTES: Final = 1 << 20
"""What a compressed term may grow to; a broker compresses none of its files. As Python's objects it may be a hundred
times as large: a list of empty lists is."""

_VERSION = 131
_COMPRESSED = 80
_NEW_FLOAT, _SMALL_INTEGER, _INTEGER = 70, 97, 98
_SMALL_BIG = 110
_SMALL_TUPLE, _LARGE_TUPLE, _NIL, _STRING, _LIST, _MAP = 104, 105, 106, 107, 108, 116
_BINARY = 109
_ATOM, _SMALL_ATOM, _ATOM_UTF8, _SMALL_ATOM_UTF8 = 100, 115, 118, 119
_NEW_PID, _PID, _NEW_PORT, _V4_PORT, _NEWER_REFERENCE = 88, 103, 89, 120, 90

_U16, _U32, _DOUBLE = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">d")

_CONTAINERS = {_SMALL_TUPLE: 1, _LARGE_TUPLE: 4, _LIST: 4, _MAP: 4}
"""Width in bytes of the arity after the tag; that many elements (of a map: pairs) follow it."""
_ATOMS = {_ATOM: (2, "latin-1"), _SMALL_ATOM: (1, "latin-1"), _ATOM_UTF8: (2, "utf-8"), _SMALL_ATOM_UTF8: (1, "utf-8")}
"""Width in bytes of the length after the tag, and the encoding of the name that follows."""
_BEHIND_NODE = {_NEW_PID: 12, _PID: 9, _NEW_PORT: 8, _V4_PORT: 12}
"""Bytes of a pid or a port after the node's name, an atom."""
_KEY_INTEGERS: Final = 1 << 56
"""Python's hash of a smaller integer is the integer; larger ones can be chosen to collide."""

_CUT_SHORT: Final = "a term that is cut short"


class Atom(str):
    """An Erlang atom; equal to a ``str`` with the same characters."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Atom({str.__repr__(self)})"


@attrs.frozen
class Opaque:
    """A pid, reference, port, or a map's key: nothing to look into, but it can be compared and written again."""

    encoded: bytes
    """Its encoding, tag first, without the version byte."""


@attrs.frozen
class ImproperList:
    """A list that ends in something else than a list: ``[1, 2 | three]``. A broker's way of saving a word of a pair."""

    elements: tuple[Term, ...]
    """At least one."""
    tail: Term
    """No list."""


Term: TypeAlias = "Atom | Opaque | ImproperList | bool | int | float | bytes | Sequence[Term] | Mapping[Term, Term]"


def decode(
    data: bytes | memoryview, *, max_depth: int = MAX_DEPTH, max_inflated_bytes: int = MAX_INFLATED_BYTES
) -> Term:
    """Return the term that ``data`` holds, from the version byte to the end of ``data``.

    Raises :class:`TermError` for anything else, and for terms nested deeper than ``max_depth`` or compressed ones
    that grow beyond ``max_inflated_bytes``.
    """
    plain = bytes(data)
    if plain[:1] != b"\x83":
        raise TermError("not an Erlang term: its first byte is not 131")
    if plain[1:2] == bytes([_COMPRESSED]):
        plain = b"\x83" + _inflate(plain, max_inflated_bytes)
    try:
        term, end = _term(plain, 1, max_depth, 0)
    except (IndexError, struct.error) as error:
        raise TermError(_CUT_SHORT) from error
    if end > len(plain):
        raise TermError(_CUT_SHORT)
    if end < len(plain):
        raise TermError(f"{len(plain) - end} bytes after the term")
    return term


def decode_opaque(key: Term) -> Term:
    """A map's key as a term, if it is :class:`Opaque` and no pid or its like."""
    return decode(b"\x83" + key.encoded) if isinstance(key, Opaque) else key


def pid_key(encoded_pid: bytes) -> bytes:
    """Bytes that sort as Erlang/OTP 25 sorts pids, and are equal where Erlang's are; from a pid's encoding, tag first.

    The order is that of ``erts/emulator/beam/utils.c`` (``erts_cmp_compound``), and was compared with what
    ``lists:sort/1`` makes of pids: serial, id, the node's name (its UTF-8 bytes, a shorter one first), creation::

        u32 serial · u32 id · <name, 00 as 00 FF> · 00 00 · u32 creation

    Raises :class:`TermError` for anything but a pid.
    """
    if encoded_pid[:1] not in (b"X", b"g"):
        raise TermError("no pid")
    try:
        name, at = _name(encoded_pid, 1)
    except IndexError as error:
        raise TermError("a pid that is cut short") from error
    if len(encoded_pid) != at + _BEHIND_NODE[encoded_pid[0]]:
        raise TermError(f"a pid of {len(encoded_pid)} bytes")
    number, serial, creation = encoded_pid[at : at + 4], encoded_pid[at + 4 : at + 8], encoded_pid[at + 8 :]
    return b"".join((serial, number, name.encode().replace(b"\0", b"\0\xff"), b"\0\0", creation.rjust(4, b"\0")))


def node_of_pid(key: bytes) -> str:
    """The name of the node of a pid, from its :func:`pid_key`."""
    return key[8:-6].replace(b"\0\xff", b"\0").decode()


def encode(term: Term) -> bytes:
    """``term`` as OTP 25 writes it, version byte first (a map's pairs in the order of the ``dict``).

    A list of 1 … 65535 integers 0 … 255 becomes a string. Raises :class:`TermError` for a value without an encoding.
    """
    parts: list[bytes] = [b"\x83"]
    _write(term, parts, MAX_DEPTH)
    return b"".join(parts)


def _inflate(data: bytes, limit: int) -> bytes:
    """Return the content of a compressed term: u32 uncompressed size · zlib stream."""
    if len(data) < 6:
        raise TermError("a compressed term that is cut short")
    (size,) = _U32.unpack_from(data, 2)
    if size > limit:
        raise TermError(f"a compressed term of {size} bytes, more than {limit}")
    inflater = zlib.decompressobj()
    try:
        inside = inflater.decompress(data[6:], size + 1)
    except zlib.error as error:
        raise TermError(f"a compressed term that cannot be inflated: {error}") from error
    if len(inside) != size or not inflater.eof or inflater.unused_data:
        raise TermError("a compressed term that does not have the size it claims")
    return inside


def _term(data: bytes, at: int, max_depth: int, depth: int) -> tuple[Term, int]:
    """Return the term at ``at``, with ``depth`` containers around it, and the offset after it.

    Values may be cut short if the bytes are: that offset then lies beyond them.
    """
    tag = data[at]
    if tag not in _CONTAINERS:
        return _leaf_term(data, at, tag)
    start = at + 1 + _CONTAINERS[tag]
    count = int.from_bytes(data[at + 1 : start], "big")
    elements = 2 * count if tag == _MAP else count
    if elements > len(data) - start:
        raise TermError(f"{elements} elements in {len(data) - start} bytes" if start <= len(data) else _CUT_SHORT)
    if tag == _LIST and not elements and data[start] != _NIL:
        raise TermError("a tail without elements")
    if depth >= max_depth:
        raise TermError(f"nested deeper than {max_depth} levels")
    if tag == _MAP:
        return _map(data, start, count, max_depth, depth + 1)
    terms: list[Term] = []
    at = start
    for _ in range(count):
        element, at = _term(data, at, max_depth, depth + 1)
        terms.append(element)
    if tag != _LIST:
        return tuple(terms), at
    if data[at] == _NIL:
        return terms, at + 1
    if data[at] in (_LIST, _STRING):
        raise TermError("a list that goes on in its tail")
    tail, at = _term(data, at, max_depth, depth + 1)
    return ImproperList(tuple(terms), tail), at


def _map(data: bytes, at: int, pairs: int, max_depth: int, depth: int) -> tuple[Term, int]:
    mapping: dict[Term, Term] = {}
    for _ in range(pairs):
        start = at
        key, at = _term(data, start, max_depth, depth)
        if not isinstance(key, (Atom, bytes)) and not _is_safe_key(key):
            key = Opaque(data[start:at])
        mapping[key], at = _term(data, at, max_depth, depth)
    return mapping, at


def _is_safe_key(key: Term) -> bool:
    """Whether its hash cannot be chosen."""
    match key:
        case bool() | Atom() | bytes() | Opaque():
            return True
        case int():
            return abs(key) < _KEY_INTEGERS
        case tuple():
            return all(type(element) is not int and _is_safe_key(element) for element in key)
        case _:
            return False


def _leaf_term(data: bytes, at: int, tag: int) -> tuple[Term, int]:
    """Return the term without elements at ``at``, and the offset after it."""
    if tag == _BINARY:
        end = at + 5 + _U32.unpack_from(data, at + 1)[0]
        return data[at + 5 : end], end
    if tag in _ATOMS:
        name, end = _name(data, at)
        return (name == "true" if name in ("true", "false") else Atom(name)), end
    if tag == _SMALL_INTEGER:
        return data[at + 1], at + 2
    if tag == _INTEGER:
        return int.from_bytes(data[at + 1 : at + 5], "big", signed=True), at + 5
    if tag == _NIL:
        return [], at + 1
    if tag == _STRING:
        end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "big")
        return list(data[at + 3 : end]), end
    if tag == _SMALL_BIG:
        end, is_negative = at + 3 + data[at + 1], data[at + 2]
        if is_negative > 1:
            raise TermError(f"an integer with sign {is_negative}")
        value = int.from_bytes(data[at + 3 : end], "little")
        return (-value if is_negative else value), end
    if tag == _NEW_FLOAT:
        (number,) = _DOUBLE.unpack_from(data, at + 1)
        if not math.isfinite(number):
            raise TermError("a float that is not finite")
        return number, at + 9
    return _opaque(data, at, tag)


def _opaque(data: bytes, at: int, tag: int) -> tuple[Term, int]:
    if tag in _BEHIND_NODE:
        end = _name(data, at + 1)[1] + _BEHIND_NODE[tag]
    elif tag == _NEWER_REFERENCE:
        (words,) = _U16.unpack_from(data, at + 1)
        if not 1 <= words <= 5:
            raise TermError(f"a reference of {words} words")
        end = _name(data, at + 3)[1] + 4 + 4 * words
    else:
        raise TermError(f"tag {tag}, which is unknown or refused")
    return Opaque(data[at:end]), end


def _name(data: bytes, at: int) -> tuple[str, int]:
    """Return the name of the atom at ``at``, and the offset after it."""
    if data[at] not in _ATOMS:
        raise TermError(f"tag {data[at]} in place of a node's name")
    length_bytes, encoding = _ATOMS[data[at]]
    start = at + 1 + length_bytes
    end = start + int.from_bytes(data[at + 1 : start], "big")
    try:
        return data[start:end].decode(encoding), end
    except UnicodeDecodeError as error:
        raise TermError("an atom that is not UTF-8") from error


def _write(term: Term, parts: list[bytes], depth_left: int) -> None:
    if depth_left < 0:
        raise TermError(f"nested deeper than {MAX_DEPTH} levels")
    match term:
        case tuple():
            fits = len(term) < 256
            parts.append(struct.pack(">BB" if fits else ">BI", _SMALL_TUPLE if fits else _LARGE_TUPLE, len(term)))
            for element in term:
                _write(element, parts, depth_left - 1)
        case list():
            _write_list(term, parts, depth_left - 1)
        case ImproperList():
            _write_improper(term, parts, depth_left - 1)
        case dict():
            parts.append(struct.pack(">BI", _MAP, len(term)))
            for key, element in term.items():
                _write(key, parts, depth_left - 1)
                _write(element, parts, depth_left - 1)
        case _:
            parts.append(_leaf(term))


def _leaf(term: Term) -> bytes:
    match term:
        case bool():
            return _atom("true" if term else "false")
        case int():
            return _integer(term)
        case float() if math.isfinite(term):
            return struct.pack(">Bd", _NEW_FLOAT, term)
        case Atom():
            return _atom(term)
        case bytes():
            return struct.pack(">BI", _BINARY, len(term)) + term
        case Opaque():
            return term.encoded
        case _:
            raise TermError(f"{term!r} has no encoding")


def _write_list(elements: list[Term], parts: list[bytes], depth_left: int) -> None:
    if not elements:
        parts.append(bytes([_NIL]))
        return
    if len(elements) < 65536 and all(type(element) is int and 0 <= element < 256 for element in elements):
        parts += (struct.pack(">BH", _STRING, len(elements)), bytes(cast(list[int], elements)))
        return
    parts.append(struct.pack(">BI", _LIST, len(elements)))
    for element in elements:
        _write(element, parts, depth_left)
    parts.append(bytes([_NIL]))


def _write_improper(term: ImproperList, parts: list[bytes], depth_left: int) -> None:
    if not term.elements or isinstance(term.tail, list | ImproperList):
        raise TermError("an improper list without elements, or with a list for a tail")
    parts.append(struct.pack(">BI", _LIST, len(term.elements)))
    for element in term.elements:
        _write(element, parts, depth_left)
    _write(term.tail, parts, depth_left)


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return struct.pack(">BB", _SMALL_INTEGER, value)
    if -(1 << 31) <= value < 1 << 31:
        return struct.pack(">Bi", _INTEGER, value)
    size = (abs(value).bit_length() + 7) // 8
    if size > 255:
        raise TermError(f"an integer of {size} bytes has no encoding here")
    return struct.pack(">BBB", _SMALL_BIG, size, value < 0) + abs(value).to_bytes(size, "little")


def _atom(name: str) -> bytes:
    if len(name) > 255:
        raise TermError(f"an atom of {len(name)} characters")
    try:
        encoded = name.encode("latin-1")
    except UnicodeEncodeError:
        encoded = name.encode()
        if len(encoded) > 255:
            return struct.pack(">BH", _ATOM_UTF8, len(encoded)) + encoded
        return struct.pack(">BB", _SMALL_ATOM_UTF8, len(encoded)) + encoded
    return struct.pack(">BH", _ATOM, len(encoded)) + encoded
