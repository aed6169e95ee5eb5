"""Where the parts of an encoded Erlang term begin and end, without decoding them.

Offsets refer to the given bytes, so that a part can be cut out, or pointed at. A walk goes forward only and without
recursion; it trusts no length further than the end of the bytes. A skipped part need not be a sound term
(:func:`warren.storage.erlang_terms.decode` decides that): only its extent is determined.
"""

from __future__ import annotations

import struct

from warren.storage.errors import TermError

_U16, _U32 = struct.Struct(">H").unpack_from, struct.Struct(">I").unpack_from

# Bytes of a leaf, its tag included.
_FIXED = {70: 9, 97: 2, 98: 5, 106: 1}  # float, small integer, integer, nil
_U8_COUNTED = frozenset({115, 119})  # small atoms
_U16_COUNTED = frozenset({100, 107, 118})  # atoms, string
_BINARY, _SMALL_BIG, _LARGE_BIG, _REFERENCE = 109, 110, 111, 90
_BEHIND_NODE = {88: 12, 103: 9, 89: 8, 120: 12}  # pids, ports: bytes after the node's name
_SMALL_TUPLE, _LARGE_TUPLE, _LIST, _MAP = 104, 105, 108, 116


def term_end(data: bytes, at: int) -> int:
    """Return the offset after the term at ``at``. Raise :class:`TermError` if it is cut short or has an unknown tag."""
    remaining = 1
    try:
        while remaining:
            tag = data[at]
            remaining -= 1
            if tag == _SMALL_TUPLE:
                remaining += data[at + 1]
                at += 2
            elif tag == _BINARY:
                at += 5 + _U32(data, at + 1)[0]
            elif tag == _LIST:
                remaining += _U32(data, at + 1)[0] + 1
                at += 5
            elif tag == _MAP:
                remaining += 2 * _U32(data, at + 1)[0]
                at += 5
            elif tag == _LARGE_TUPLE:
                remaining += _U32(data, at + 1)[0]
                at += 5
            else:
                at = _leaf_end(data, at, tag)
    except (IndexError, struct.error) as error:
        raise TermError("a term that is cut short") from error
    if at > len(data):
        raise TermError("a term that is cut short")
    return at


def _leaf_end(data: bytes, at: int, tag: int) -> int:
    size = _FIXED.get(tag)
    if size is not None:
        return at + size
    if tag in _U16_COUNTED:
        return at + 3 + int(_U16(data, at + 1)[0])
    if tag in _U8_COUNTED:
        return at + 2 + data[at + 1]
    if tag == _SMALL_BIG:
        return at + 3 + data[at + 1]
    if tag == _LARGE_BIG:
        return at + 6 + int(_U32(data, at + 1)[0])
    if tag in _BEHIND_NODE:
        return _node_end(data, at + 1) + _BEHIND_NODE[tag]
    if tag == _REFERENCE:
        return _node_end(data, at + 3) + 4 + 4 * int(_U16(data, at + 1)[0])
    raise TermError(f"tag {tag}, which is unknown or refused")


def _node_end(data: bytes, at: int) -> int:
    """Return the offset after a node's name, an atom."""
    tag = data[at]
    if tag not in (100, 115, 118, 119):
        raise TermError(f"tag {tag} in place of a node's name")
    return _leaf_end(data, at, tag)


def parts(data: bytes, at: int) -> list[int]:
    """Return the offset of each element of the tuple, list or map at ``at``, and finally the offset after the last.

    A map's keys and values alternate; for a list the last offset is where its tail begins. Raises :class:`TermError`
    for a term that has no elements or is cut short.
    """
    try:
        tag = data[at]
        count = data[at + 1] if tag == _SMALL_TUPLE else int(_U32(data, at + 1)[0])
    except (IndexError, struct.error) as error:
        raise TermError("a term that is cut short") from error
    if tag not in (_SMALL_TUPLE, _LARGE_TUPLE, _LIST, _MAP):
        raise TermError(f"tag {tag} in place of a tuple, list or map")
    at += 2 if tag == _SMALL_TUPLE else 5
    offsets = [at]
    for _ in range(2 * count if tag == _MAP else count):
        at = term_end(data, at)
        offsets.append(at)
    return offsets
