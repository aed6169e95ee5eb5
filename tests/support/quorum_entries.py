"""Entries of quorum queues for tests: those that a real broker wrote, and some made by hand."""

from __future__ import annotations

import struct
import tarfile
from functools import cache
from pathlib import Path

from warren.storage.erlang_terms import Atom, ImproperList, Opaque, Term, encode

UNDEFINED, NONE, NO_REPLY = Atom("undefined"), Atom("none"), Atom("noreply")


# ── what a broker wrote ──────────────────────────────────────────────────────────────────────────────────────────────


@cache
def entries_of(archive: Path) -> list[bytes]:
    """Every entry in the write-ahead logs and segments of a node that is whole, in no order."""
    entries = []
    for name, data in _files(archive):
        if name.endswith(".wal"):
            entries += _of_wal(data)
        elif name.endswith(".segment"):
            entries += _of_segment(data)
    return entries


@cache
def snapshot_states(archive: Path) -> list[bytes]:
    """The machines' states in the snapshots, as terms."""
    states = []
    for name, data in _files(archive):
        if name.endswith("snapshot.dat"):
            (meta_size,) = struct.unpack_from(">I", data, 9)
            states.append(data[13 + meta_size :])
    return states


def _files(archive: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(archive) as tar:
        members = [member for member in tar.getmembers() if member.isfile() and "/quorum/" in member.name]
        return [(member.name, file.read()) for member in members if (file := tar.extractfile(member)) is not None]


def _of_wal(data: bytes) -> list[bytes]:
    entries = []
    at = 5
    while at + 27 <= len(data):
        if not data[at] & 0x40:
            at += 2 + int.from_bytes(data[at + 3 : at + 5])
        at += 3
        _, size, _, _ = struct.unpack_from(">IIQQ", data, at)
        at += 24
        if not size or at + size > len(data):
            break
        entries.append(data[at : at + size])
        at += size
    return entries


def _of_segment(data: bytes) -> list[bytes]:
    (room,) = struct.unpack_from(">H", data, 6)
    records = [struct.unpack_from(">QQQII", data, 8 + 32 * number) for number in range(room)]
    return [data[offset : offset + size] for _, _, offset, size, _ in records if offset]


# ── made by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────


def pid(number: int, serial: int = 0, node: bytes = b"d\0\3n@h", creation: int = 7) -> Opaque:
    """A pid; ``node``: the encoded atom."""
    return Opaque(b"X" + node + struct.pack(">III", number, serial, creation))


def content(body: list[Term], properties: Term = NONE, encoded: Term = b"\x10\0\2") -> Term:
    """AMQP 0.9.1's."""
    return (Atom("content"), 60, properties, encoded, Atom("rabbit_framing_amqp_0_9_1"), body)


def basic_message(
    body: list[Term],
    properties: Term = NONE,
    encoded: Term = b"\x10\0\2",
    key: bytes = b"orders",
    *,
    persistent: bool = True,
) -> Term:
    """A message as a quorum queue has it: without an id."""
    exchange = (Atom("resource"), b"/", Atom("exchange"), b"")
    return (Atom("basic_message"), exchange, [key], content(body, properties, encoded), b"", persistent)


def p_basic(expiration: Term = UNDEFINED, headers: Term = UNDEFINED, priority: Term = UNDEFINED) -> Term:
    """Properties that stand decoded."""
    rest = (UNDEFINED,) * 6
    return (Atom("P_basic"), UNDEFINED, UNDEFINED, headers, 2, priority, UNDEFINED, UNDEFINED, expiration, *rest)


def usr(command: Term, reply_mode: Term = NO_REPLY, ts: int = 1_795_250_432_574) -> bytes:
    """An entry with a command to the queue."""
    return encode((Atom("$usr"), {Atom("ts"): ts}, command, reply_mode))


def notify(correlation: int, publisher: Opaque) -> Term:
    """The reply mode of what a channel sends."""
    return (Atom("notify"), correlation, publisher)


def called(command: Term, caller: Opaque) -> bytes:
    """An entry with a command whose sender waits for the answer."""
    reference = Opaque(b"Z\0\3d\0\3n@h" + struct.pack(">IIII", 7, 1, 2, 3))
    origin = (caller, ImproperList((Atom("alias"),), reference))
    meta: Term = {Atom("from"): origin, Atom("ts"): 1_795_250_432_574}
    return encode((Atom("$usr"), meta, command, Atom("await_consensus")))
