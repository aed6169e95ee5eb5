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

Reading goes through erlang_py, and never before :func:`_check` has walked the bytes: that library trusts every length
and recurses at every level. What passes the walk is whole, shallow, and costs memory and time in proportion to its
bytes.

Refused although Erlang allows it: integers above 2040 bits, bit strings, funs, a list whose tail is written as one
more list, and keys of maps other than atoms, binaries, pids and their like, integers below 2**56, and tuples of all
these but integers (whoever can choose Python's hashes can make a ``dict`` slow). None of them occurs in a broker's
files. Of equal keys the last one counts, and to Python ``true`` equals 1.

Writing chooses the tags that OTP 25's ``term_to_binary`` chooses (the library chooses others for atoms and lists).
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import attrs
import erlang

from warren.storage.errors import TermError

MAX_DEPTH: Final = 64
"""Levels of nesting that are read. A message's headers need about ten; the library recurses twice for each."""

MAX_INFLATED_BYTES: Final = 1 << 24
"""What a compressed term may grow to; a broker compresses none of its files."""

_VERSION = 131
_COMPRESSED = 80
_NEW_FLOAT, _SMALL_INTEGER, _INTEGER = 70, 97, 98
_SMALL_BIG = 110
_SMALL_TUPLE, _LARGE_TUPLE, _NIL, _STRING, _LIST, _MAP = 104, 105, 106, 107, 108, 116
_BINARY = 109
_ATOM, _SMALL_ATOM, _ATOM_UTF8, _SMALL_ATOM_UTF8 = 100, 115, 118, 119
_NEW_PID, _PID, _NEW_PORT, _V4_PORT, _NEWER_REFERENCE = 88, 103, 89, 120, 90
_TAIL = -1
"""What is walked behind the elements of an improper list; no tag."""

_U16, _U32 = struct.Struct(">H"), struct.Struct(">I")

_FIXED = {_SMALL_INTEGER: 1, _INTEGER: 4, _NEW_FLOAT: 8, _NIL: 0}
"""Bytes behind the tag."""
_COUNTED = {_SMALL_ATOM: 1, _SMALL_ATOM_UTF8: 1, _ATOM: 2, _ATOM_UTF8: 2, _STRING: 2, _BINARY: 4}
"""Bytes of the length behind the tag; that many bytes follow it."""
_CONTAINERS = {_SMALL_TUPLE: 1, _LARGE_TUPLE: 4, _LIST: 4, _MAP: 4}
"""Bytes of the arity behind the tag; that many elements (of a map: pairs) follow it."""
_OPAQUE = {_NEW_PID: 12, _PID: 9, _NEW_PORT: 8, _V4_PORT: 12}
"""Bytes behind the node's name, an atom."""
_ATOMS = frozenset({_ATOM, _SMALL_ATOM, _ATOM_UTF8, _SMALL_ATOM_UTF8})
_IN_KEYS = _ATOMS | {_BINARY, _NEW_PID, _PID, _NEW_PORT, _V4_PORT, _NEWER_REFERENCE, _SMALL_TUPLE}
_KEYS = _IN_KEYS | {_SMALL_INTEGER, _INTEGER, _SMALL_BIG}
_KEY_INTEGER_BYTES = 7
"""Python's hash of an integer this long is the integer; longer ones can be chosen to collide."""

_AS_IT_IS = frozenset({bool, int, float, str})
"""What erlang_py says in the same way."""
_OPAQUE_TYPES = frozenset({erlang.OtpErlangPid, erlang.OtpErlangPort, erlang.OtpErlangReference})


class Atom(str):
    """An Erlang atom; equal to a ``str`` with the same characters."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Atom({str.__repr__(self)})"


@attrs.frozen
class Opaque:
    """A pid, reference or port: nothing to look into, but it can be compared and written again."""

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
    """The term that ``data`` holds, version byte first, and nothing behind it.

    Raises :class:`TermError` for anything else, and for terms nested deeper than ``max_depth`` or compressed ones
    that grow beyond ``max_inflated_bytes``.
    """
    plain = bytes(data)
    if plain[:1] != b"\x83":
        raise TermError("no Erlang term: its first byte is not 131")
    if plain[1:2] == bytes([_COMPRESSED]):
        plain = b"\x83" + _inflate(plain, max_inflated_bytes)
    _check(plain, max_depth)
    return _from_library(erlang.binary_to_term(plain))


def pid_key(encoded_pid: bytes) -> bytes:
    """Bytes that sort as Erlang/OTP 25 sorts pids, and are equal where Erlang's are; from a pid's encoding, tag first.

    The order is that of ``erts/emulator/beam/utils.c`` (``erts_cmp_compound``), and was compared with what
    ``lists:sort/1`` makes of pids: serial, id, the node's name (its UTF-8 bytes, a shorter one first), creation::

        u32 serial · u32 id · <name, 00 as 00 FF> · 00 00 · u32 creation

    Raises :class:`TermError` for what is no pid.
    """
    tag = encoded_pid[:1]
    rest = {b"X": 12, b"g": 9}.get(tag)
    if rest is None:
        raise TermError("no pid")
    try:
        node_end = _atom_end(encoded_pid, 1)
    except (IndexError, struct.error) as error:
        raise TermError("a pid that is cut short") from error
    if len(encoded_pid) != node_end + rest:
        raise TermError(f"a pid of {len(encoded_pid)} bytes")
    number, serial = encoded_pid[node_end : node_end + 4], encoded_pid[node_end + 4 : node_end + 8]
    creation = encoded_pid[node_end + 8 :].rjust(4, b"\0")
    is_latin_1 = encoded_pid[1] in (_ATOM, _SMALL_ATOM)
    name = encoded_pid[1 + (3 if encoded_pid[1] in (_ATOM, _ATOM_UTF8) else 2) : node_end]
    if is_latin_1:
        name = name.decode("latin-1").encode()
    return b"".join((serial, number, name.replace(b"\0", b"\0\xff"), b"\0\0", creation))


def node_of_pid(key: bytes) -> str:
    """The name of the node of a pid, from its :func:`pid_key`."""
    return key[8:-6].replace(b"\0\xff", b"\0").decode()


def encode(term: Term) -> bytes:
    """``term`` as OTP 25 writes it, version byte first (a map's pairs in the order of the ``dict``).

    A list of 1 … 65535 integers 0 … 255 becomes a string. Raises :class:`TermError` for what has no encoding here.
    """
    parts: list[bytes] = [b"\x83"]
    _write(term, parts, MAX_DEPTH)
    return b"".join(parts)


def _inflate(data: bytes, limit: int) -> bytes:
    """The inside of a compressed term: u32 size of it · zlib stream."""
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


def _check(data: bytes, max_depth: int) -> None:
    """Walk the term behind the version byte, without recursion; raises :class:`TermError` unless it can be trusted."""
    try:
        end = _walk(data, max_depth)
    except (IndexError, struct.error) as error:
        raise TermError("a term that is cut short") from error
    if end > len(data):
        raise TermError("a term that is cut short")
    if end < len(data):
        raise TermError(f"{len(data) - end} bytes behind the term")


@attrs.define
class _Open:
    """A container whose elements are being walked."""

    tag: int
    remaining: int
    is_key: bool


def _walk(data: bytes, max_depth: int) -> int:
    """The offset behind the term; may lie beyond the data where the last element does."""
    position = 1
    open_containers = [_Open(tag=0, remaining=1, is_key=False)]
    while open_containers:
        container = open_containers[-1]
        if not container.remaining:
            if container.tag == _LIST and data[position] != _NIL:
                _to_tail(container, data[position])
            else:
                open_containers.pop()
                position += container.tag == _LIST
            continue
        tag = data[position]
        is_key = container.is_key
        if container.tag == _MAP and container.remaining % 2 == 0:
            is_key = True
            if tag not in _KEYS or (tag == _SMALL_BIG and data[position + 1] > _KEY_INTEGER_BYTES):
                raise TermError(f"a map's key with tag {tag}")
        elif is_key and tag not in _IN_KEYS:
            raise TermError(f"tag {tag} in a map's key")
        container.remaining -= 1
        if tag not in _CONTAINERS:
            position = _leaf_end(data, position)
            continue
        arity, position = _number(data, position + 1, _CONTAINERS[tag])
        elements = 2 * arity if tag == _MAP else arity
        if elements > len(data) - position:
            raise TermError(f"{elements} elements in {len(data) - position} bytes")
        if tag == _LIST and not elements and data[position] != _NIL:
            raise TermError("a tail without elements")
        if len(open_containers) > max_depth:
            raise TermError(f"nested deeper than {max_depth} levels")
        open_containers.append(_Open(tag, elements, is_key))
    return position


def _to_tail(container: _Open, tag: int) -> None:
    """Walk one more term, what an improper list ends in."""
    if tag in (_LIST, _STRING):
        raise TermError("a list that goes on in its tail")
    container.tag, container.remaining = _TAIL, 1


def _leaf_end(data: bytes, position: int) -> int:
    """The offset behind the term at ``position`` that has no elements."""
    tag = data[position]
    if tag in _FIXED:
        if tag == _NEW_FLOAT and not math.isfinite(struct.unpack_from(">d", data, position + 1)[0]):
            raise TermError("a float that is not finite")
        return position + 1 + _FIXED[tag]
    if tag in _COUNTED:
        size, start = _number(data, position + 1, _COUNTED[tag])
        if tag in (_ATOM_UTF8, _SMALL_ATOM_UTF8):
            try:
                data[start : start + size].decode()
            except UnicodeDecodeError as error:
                raise TermError("an atom that is not UTF-8") from error
        return start + size
    if tag == _SMALL_BIG:
        if data[position + 2] > 1:
            raise TermError(f"an integer with sign {data[position + 2]}")
        return position + 3 + data[position + 1]
    if tag in _OPAQUE:
        return _atom_end(data, position + 1) + _OPAQUE[tag]
    if tag == _NEWER_REFERENCE:
        words, start = _number(data, position + 1, 2)
        if not 1 <= words <= 5:
            raise TermError(f"a reference of {words} words")
        return _atom_end(data, start) + 4 + 4 * words
    raise TermError(f"tag {tag}, which is unknown or refused")


def _atom_end(data: bytes, position: int) -> int:
    if data[position] not in _ATOMS:
        raise TermError(f"tag {data[position]} in place of a node's name")
    return _leaf_end(data, position)


def _number(data: bytes, position: int, width: int) -> tuple[int, int]:
    """The unsigned number of ``width`` bytes at ``position``, and the offset behind it."""
    end = position + width
    if end > len(data):
        raise TermError("a term that is cut short")
    return int.from_bytes(data[position:end], "big"), end


def _from_library(value: Any) -> Term:
    """erlang_py's objects as ours."""
    kind = type(value)
    if kind in _AS_IT_IS:
        return cast(Term, value)
    if kind is erlang.OtpErlangBinary:
        return cast(bytes, value.value)
    if kind is erlang.OtpErlangAtom:
        return Atom(value.value.decode("latin-1") if isinstance(value.value, bytes) else value.value)
    if kind is tuple:
        return tuple([_from_library(element) for element in value])
    if kind is list:
        return [_from_library(element) for element in value]
    if kind is erlang.OtpErlangList:
        *elements, tail = [_from_library(element) for element in value.value]
        return ImproperList(tuple(elements), tail)
    if kind is dict:
        return {_from_library(key): _from_library(element) for key, element in value.items()}
    if kind in _OPAQUE_TYPES:
        return Opaque(value.binary())
    if kind is bytes:  # a packed string
        return list(value)
    if value is None:
        return Atom("undefined")
    raise TermError(f"a {kind.__name__}, which is refused")


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
