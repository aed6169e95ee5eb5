"""A vhost with one classic queue of version 2, written byte by byte, for tests of what reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.vhost_on_disk import VhostOnDisk, encoded_message
from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.index.recovery_terms import V2_INDEX_STATE
from warren.queue_index.message.message_format import decode_message
from warren.salvage.classic.classic_directory import UNCOUNTED
from warren.salvage.queue_directory import UNREADABLE_BODY, Finding, StoredMessage
from warren.salvage.source import open_source
from warren.salvage.verify import verify_source
from warren.salvage.vhost import PERSISTENT_STORE
from warren.storage.erlang_terms import Term


def msg_id(position: int) -> bytes:
    return hashlib.md5(b"q%d" % position).digest()


def message(position: int, body: bytes, **envelope: Any) -> bytes:
    return encoded_message(msg_id(position), body, **envelope)


class V2QueueOnDisk:
    """``place`` becomes a node's directory with one vhost and one queue in it; segments have ``entries`` entries."""

    def __init__(self, place: Path, name: bytes = b"q", *, entries: int = 4, index_version: int = 2) -> None:
        self.entries = entries
        self.v1 = VhostOnDisk(place).queue(name, index_version)
        """The same queue, for what it has of version 1."""
        self.vhost, self.path = self.v1.vhost.path, self.v1.path

    def index(self, number: int) -> Path:
        return self.path / f"{number}.qi"

    def store(self, number: int) -> Path:
        return self.path / f"{number}.qs"

    def publish(
        self,
        position: int,
        body: bytes | None = None,
        *,
        stored: bool = False,
        persistent: bool = True,
        durable: bool = True,
        acked: bool = False,
        expiry_us: int = 0,
        encoded: bytes | None = None,
    ) -> bytes:
        """A message with its entry; ``stored``: in the vhost's store. Returns what is encoded."""
        body = b"body %d" % position if body is None else body
        encoded = message(position, body, persistent=persistent) if encoded is None else encoded
        entry = {"size": len(body), "expiry_us": expiry_us, "persistent": persistent and durable, "acked": acked}
        if stored:
            self.rdq(msg_id(position), encoded)
            self.entry(position, v2.encode_entry(msg_id=msg_id(position), **entry))  # type: ignore[arg-type]
        else:
            at = self.record(position // self.entries, v2.encode_record_v2(encoded))
            self.entry(position, v2.encode_entry(record=(at, len(encoded)), **entry))  # type: ignore[arg-type]
        return encoded

    def entry(self, position: int, entry: bytes) -> None:
        """At its place; what is missing before it are holes."""
        number, rel_seq = divmod(position, self.entries)
        path, at = self.index(number), v2.HEADER_SIZE + rel_seq * v2.ENTRY_SIZE
        data = path.read_bytes() if path.exists() else v2.encode_header(v2.INDEX_MAGIC, number, self.entries)
        path.write_bytes(data[:at].ljust(at, b"\0") + entry + data[at + v2.ENTRY_SIZE :])

    def record(self, number: int, record: bytes) -> int:
        """Append it to a segment's store; returns where it stands."""
        path = self.store(number)
        if not path.exists():
            path.write_bytes(v2.encode_header(v2.STORE_MAGIC, number, self.entries))
        with path.open("ab") as file:
            at = file.tell()
            file.write(record)
        return at

    def rdq(self, its_id: bytes, encoded: bytes) -> None:
        self.v1.vhost.store(0, its_id, encoded)

    def ack(self, position: int) -> None:
        number, rel_seq = divmod(position, self.entries)
        self.patch(self.index(number), v2.HEADER_SIZE + rel_seq * v2.ENTRY_SIZE, b"\0")

    def patch(self, path: Path, offset: int, data: bytes) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def flip(self, path: Path, bit: int) -> None:
        data = bytearray(path.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)

    def publish_v1(self, position: int, body: bytes | None = None, *, stored: bool = False) -> None:
        """In a segment file of version 1."""
        body = b"body %d" % position if body is None else body
        encoded = message(position, body)
        if stored:
            self.rdq(msg_id(position), encoded)
        self.v1.publish(position, body, msg_id=msg_id(position), embedded=None if stored else encoded)

    def stop_cleanly(
        self,
        live: Mapping[int, int],
        *,
        state: Term | None = None,
        next_seq_id: int | None = None,
        next_deliver_seq_id: int | None = None,
        persistent_count: int | None = None,
    ) -> None:
        segments: dict[Term, Term] = dict(live.items())
        others = ((V2_INDEX_STATE, (2, segments) if state is None else state),)
        self.v1.stop_cleanly(next_seq_id, next_deliver_seq_id, (), persistent_count, others)


def findings_at(place: Path) -> set[tuple[str, str, str, int | None]]:
    """What verify finds: kind, severity, file (``Q/…``: of the queue) and offset; without missing segments."""
    with open_source(str(place)) as source:
        found = [one for one in verify_source(source) if one.kind != UNCOUNTED]
    return {(one.kind, one.severity, _short(one.path), one.offset) for one in found}


def _short(path: str) -> str:
    _, _, inside = path.partition("/queues/")
    file = inside.partition("/")[2]
    return f"Q/{file}" if file else "Q" if inside else path.rpartition("/")[2]


def messages_at(place: Path, *, include_acked: bool = False) -> tuple[list[StoredMessage], list[Finding]]:
    """The messages of the one queue there, and what stands in the place of others."""
    with open_source(str(place)) as source:
        (queue,) = source.vhosts[0].queues
        found = list(queue.messages(include_acked=include_acked))
        messages = [one for one in found if isinstance(one, StoredMessage)]
        findings = [one for one in found if isinstance(one, Finding)]
        if not include_acked:
            there = len(messages) + sum(one.kind == UNREADABLE_BODY for one in findings)
            assert queue.count(range(1 << 62)) == queue.summary().ready == there
            deliverable = list(queue.deliverable(range(1 << 62)))
            bodies = source.vhosts[0].store(PERSISTENT_STORE)
            assert sum(own + int(bodies.contains_each(ids).sum()) for own, ids in deliverable) == there
        return messages, findings


def bodies_at(place: Path) -> dict[int, bytes]:
    """Position → body of what would be delivered."""
    return {one.seq_id: decode_message(one.encoded).body for one in messages_at(place)[0]}
