"""A snapshot: the queue's state at one index, in place of the log up to there.

::

    snapshot.dat   "RASN" · version, 1 · u32 CRC-32 of what follows · u32 length of the meta term · meta term · state
    indexes        "RASI" · version, 1 · u32 CRC-32 of what follows · term (from RabbitMQ 4.3 on)

The meta term is a map (index, term, cluster, machine_version); the state, up to the file's end, is the machine's.
``indexes`` beside it lists the entries up to the snapshot's index that are still needed, from high to low: an index,
or ``{First,Last}``. Its form is read off Ra's source; older ones are the bare term.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from warren.storage.erlang_terms import Atom, Term, decode, encode
from warren.storage.errors import DataError, TermError, shortly

SNAPSHOT_MAGIC: Final = b"RASN"
INDEXES_MAGIC: Final = b"RASI"
SNAPSHOT_VERSION: Final = 1
SNAPSHOT_HEADER: Final = struct.Struct(">4sBI")
"""Magic, version, checksum."""
META_LENGTH: Final = struct.Struct(">I")
MAX_META_BYTES: Final = 1 << 20

Member = tuple[str, str]
Ranges = tuple[tuple[int, int], ...]


@attrs.frozen
class SnapshotMeta:
    """A snapshot's description of itself."""

    index: int
    term: int
    machine_version: int
    members: tuple[Member, ...]
    """As (server's name, node)."""


def parse_header(header: bytes, path: str, magic: bytes = SNAPSHOT_MAGIC) -> int:
    """The checksum in a file's first nine bytes. Raises :class:`DataError` if they are no such file's."""
    if len(header) < SNAPSHOT_HEADER.size:
        raise DataError(path, 0, "shorter than its header")
    file_magic, version, checksum = SNAPSHOT_HEADER.unpack_from(header)
    if file_magic != magic:
        raise DataError(path, 0, f"begins with {file_magic!r} in place of {magic!r}")
    if version != SNAPSHOT_VERSION:
        raise DataError(path, 4, f"version {version}, not {SNAPSHOT_VERSION}")
    return int(checksum)


def parse_meta(data: bytes, path: str) -> SnapshotMeta:
    """The meta term in ``data``. Raises :class:`DataError` if it is invalid."""
    offset = SNAPSHOT_HEADER.size + META_LENGTH.size
    try:
        meta = decode(data)
    except TermError as error:
        raise DataError(path, offset, f"no meta term: {error}") from error
    if not isinstance(meta, Mapping):
        raise DataError(path, offset, "a meta term that is no map")
    numbers = [meta.get(Atom(key), 0 if key == "machine_version" else None) for key in _NUMBERS]
    index, term, version = (
        number if type(number) is int and 0 <= number < 1 << 64 else _no_number(key, path, offset)
        for key, number in zip(_NUMBERS, numbers, strict=True)
    )
    return SnapshotMeta(index, term, version, _members(meta.get(Atom("cluster")), path, offset))


_NUMBERS = ("index", "term", "machine_version")


def _no_number(key: str, path: str, offset: int) -> int:
    raise DataError(path, offset, f"a meta term whose {key} is no number")


def _members(cluster: Term | None, path: str, offset: int) -> tuple[Member, ...]:
    """The cluster is a list of members, or (later) a map of them."""
    members: list[Member] = []
    for member in cluster if isinstance(cluster, (list, Mapping)) else ():
        match member:
            case (Atom(name), Atom(node)):
                members.append((str(name), str(node)))
            case _:
                raise DataError(path, offset, "a meta term whose cluster is no list of members")
    return tuple(members)


def encode_snapshot(meta: Mapping[Term, Term], state: Term) -> bytes:
    """``snapshot.dat``."""
    encoded = encode(meta)
    covered = META_LENGTH.pack(len(encoded)) + encoded + encode(state)
    return SNAPSHOT_HEADER.pack(SNAPSHOT_MAGIC, SNAPSHOT_VERSION, zlib.crc32(covered)) + covered


def parse_indexes(data: bytes, path: str) -> Ranges:
    """The ranges (first, last) in ``indexes``, ascending. Raises :class:`DataError` if it is damaged."""
    start = 0
    if data[: len(INDEXES_MAGIC)] == INDEXES_MAGIC:
        start = SNAPSHOT_HEADER.size
        if parse_header(data, path, INDEXES_MAGIC) != zlib.crc32(data[start:]):
            raise DataError(path, 0, "its checksum is wrong")
    try:
        ranges = decode(data[start:])
    except TermError as error:
        raise DataError(path, start, f"no list of indexes: {error}") from error
    if not isinstance(ranges, list):
        raise DataError(path, start, "no list of indexes")
    return tuple(sorted(_range(element, path, start) for element in ranges))


def _range(element: Term, path: str, offset: int) -> tuple[int, int]:
    match element:
        case bool():
            pass
        case int(index):
            return index, index
        case (int(first), int(last)):
            return first, last
    raise DataError(path, offset, f"no index: {shortly(element, 80)}")


def encode_indexes(ranges: Sequence[tuple[int, int]]) -> bytes:
    """``indexes``, from ascending ranges (first, last)."""
    term: list[Term] = [first if first == last else (first, last) for first, last in reversed(ranges)]
    data = encode(term)
    return SNAPSHOT_HEADER.pack(INDEXES_MAGIC, SNAPSHOT_VERSION, zlib.crc32(data)) + data
