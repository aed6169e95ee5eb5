"""A message in the store compared with the references to it: the rules.

On one machine a queue asks the store for what it needs; on Spark both come as rows and are joined. These rules apply to
both cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import attrs

from warren.queue_index.message.message_format import decode_message
from warren.salvage.queue_directory import BodySource, Finding, missing_body
from warren.storage.errors import DataError, MessageError, StorageError, UnknownMessageError


class Reference(NamedTuple):
    """An unacked position whose body lies in the store; there are as many as messages, so it is a tuple."""

    msg_id: bytes
    persistent: bool
    seq_id: int
    size: int
    """Of the payload, as the index says."""
    path: str
    """The index file that has it, and where."""
    offset: int


class Contents(NamedTuple):
    """What verify needs to know about an encoded message."""

    problem: str | None
    """Why it cannot be decoded; the other fields mean nothing then."""
    msg_id: bytes
    payload_bytes: int
    persistent: bool


def contents_of(encoded: bytes) -> Contents:
    """Decode a message."""
    try:
        message = decode_message(encoded)
    except MessageError as error:
        return Contents(str(error), b"", 0, False)
    payload_bytes = len(message.body) if message.counted_bytes is None else message.counted_bytes
    return Contents(None, message.msg_id, payload_bytes, message.persistent)


def contradictions(
    contents: Contents, msg_id: bytes, size: int | None, is_persistent: bool | None
) -> Iterator[tuple[str, str]]:
    """Report a broken message, or one that its record does not describe; ``None``: the record does not say."""
    if contents.problem is not None:
        yield "unreadable message", contents.problem
        return
    if contents.msg_id != msg_id:
        yield "wrong message", f"the record is of {msg_id.hex()}, the message is {contents.msg_id.hex()}"
    if size is not None and contents.payload_bytes != size:
        yield "wrong size", f"the record says {size} bytes, the payload has {contents.payload_bytes}"
    if is_persistent is not None and contents.persistent != is_persistent:
        words = ("transient", "persistent")
        yield "wrong persistence", f"the record says {words[is_persistent]}, the message {words[contents.persistent]}"


def looked_up(reference: Reference, bodies: BodySource) -> Iterator[Finding]:
    """The findings about a reference, looked up in the store."""
    try:
        contents = contents_of(bodies.read(reference.msg_id))
    except (DataError, StorageError, UnknownMessageError) as error:
        yield unanswered(reference, error)
        return
    yield from answered(reference, contents)


def with_bodies(findings: Iterable[Finding | Reference], bodies: BodySource) -> Iterator[Finding]:
    """A directory's own findings, and those about its persistent references, looked up in the store."""
    for finding in findings:
        if not isinstance(finding, Reference):
            yield finding
        elif finding.persistent:
            yield from looked_up(finding, bodies)


def unanswered(reference: Reference, error: Exception) -> Finding:
    """The finding if the store does not have the message, or cannot read it."""
    return missing_body(reference.path, reference.offset, reference.seq_id, reference.msg_id, error)


def answered(reference: Reference, contents: Contents) -> Iterator[Finding]:
    """The findings if the store has the message. A queue with a persistent record is a durable one."""
    for kind, detail in contradictions(contents, reference.msg_id, reference.size, reference.persistent):
        text = f"message {reference.seq_id}: {detail}"
        yield Finding(kind, "damage", reference.path, reference.offset, text)


# ── unreferenced bodies ──────────────────────────────────────────────────────────────────────────────────────────────


def orphan(path: str, offset: int, msg_id: bytes, size: int) -> Finding:
    """An unreferenced good record of the store; ``size``: of the record."""
    return Finding("orphan body", "leftover", path, offset, f"{msg_id.hex()}, {size} bytes")


def orphaned_message(path: str, offset: int, msg_id: bytes, contents: Contents) -> Iterator[Finding]:
    """What is wrong with the message of an unreferenced record."""
    for kind, detail in contradictions(contents, msg_id, None, None):
        yield Finding(kind, "damage", path, offset, detail)


def bad_record(path: str, offset: int, msg_id: bytes, *, has_good_copy: bool) -> Finding:
    """A record that was not written whole. If a compaction was copying it, there is a good copy."""
    detail = f"{msg_id.hex()}: the record does not end in 0xFF"
    if path.endswith(".rdt") or has_good_copy:
        return Finding("leftover of a copy", "leftover", path, offset, detail)
    return Finding("torn record", "damage", path, offset, detail)


def garbage(path: str, offset: int, detail: str) -> Finding:
    """Bytes that stop a scan, with messages after them: a broker from 3.13 on compacts inside a file."""
    return Finding("leftover garbage between records", "leftover", path, offset, detail)


def in_store(finding: Finding, *, is_persistent: bool) -> Finding:
    """Turn damage into a leftover in the transient store, which is wiped at every start."""
    if is_persistent or finding.severity == "leftover":
        return finding
    return attrs.evolve(finding, kind=f"leftover {finding.kind}", severity="leftover")
