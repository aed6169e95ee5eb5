"""Vhosts with classic queues of both versions, written byte by byte, for tests of what reads them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warren.msg_store.rdq.rdq_format import encode_record
from warren.queue_index.index import directory as disk
from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.index.record_format import ACK, BODY, DELIVER, journal_publish_head, segment_publish_head
from warren.queue_index.index.recovery_terms import V2_INDEX_STATE, RecoveryTerms, encode_recovery_terms
from warren.queue_index.message.message_format import Envelope, decode_message, encode_message
from warren.queue_index.properties import Properties, encode_properties
from warren.salvage.classic.classic_directory import UNCOUNTED
from warren.salvage.queue_directory import UNREADABLE_BODY, Finding, StoredMessage
from warren.salvage.source import open_source
from warren.salvage.verify import verify_source
from warren.salvage.vhost import PERSISTENT_STORE
from warren.storage.erlang_terms import Term

ENTRIES = 4
"""Entries of a segment."""


def encoded_message(
    msg_id: bytes, body: bytes, *, keys: tuple[bytes, ...] = (b"q",), persistent: bool = True, **properties: Any
) -> bytes:
    encoded = encode_properties(Properties(**properties))
    return encode_message(Envelope(b"/", b"amq.direct", keys, encoded, persistent), msg_id, body)


class VhostOnDisk:
    """``place`` becomes a node's directory with this vhost in it."""

    def __init__(self, place: Path, name: bytes = b"/", *, entries: int = ENTRIES) -> None:
        self.name, self.entries = name, entries
        self.path = place / "msg_stores" / "vhosts" / disk.vhost_directory_name(name)
        (self.path / "queues").mkdir(parents=True)
        for store in ("msg_store_persistent", "msg_store_transient"):
            (self.path / store).mkdir()
        (self.path / ".vhost").write_bytes(name)
        (self.path / ".config").write_bytes(disk.vhost_config(entries))

    def queue(self, name: bytes, index_version: int = 1) -> QueueOnDisk:
        path = self.path / "queues" / disk.queue_directory_name(self.name, name)
        path.mkdir()
        (path / ".queue_name").write_bytes(disk.queue_name_file(self.name, name, index_version))
        return QueueOnDisk(self, path, name)

    def append(self, name: str, data: bytes) -> None:
        """To a file of the vhost."""
        with (self.path / name).open("ab") as file:
            file.write(data)

    def store(self, number: int, msg_id: bytes, message: bytes) -> None:
        self.append(f"msg_store_persistent/{number}.rdq", encode_record(msg_id, message))


class QueueOnDisk:
    """One queue; ``publish`` writes to its journal or to a segment."""

    def __init__(self, vhost: VhostOnDisk, path: Path, name: bytes) -> None:
        self.vhost, self.path, self.name = vhost, path, name

    def msg_id(self, seq_id: int) -> bytes:
        return hashlib.md5(self.name + b"%d" % seq_id).digest()

    def message(self, seq_id: int, body: bytes, **envelope: Any) -> bytes:
        return encoded_message(self.msg_id(seq_id), body, **{"keys": (self.name,), **envelope})

    def publish(
        self,
        seq_id: int,
        body: bytes = b"body",
        *,
        embedded: bytes | None = None,
        in_journal: bool = False,
        persistent: bool = True,
        shorts: int = 0,
        expiry_us: int = 0,
        msg_id: bytes | None = None,
    ) -> None:
        """Deliver and ack records follow as ``shorts`` says; without ``embedded`` the body is in the store."""
        message = embedded or b""
        record = BODY.pack(msg_id or self.msg_id(seq_id), expiry_us, len(body), len(message)) + message
        if in_journal:
            heads = [struct.pack(">Q", kind << 62 | seq_id) for kind in (DELIVER, ACK)[:shorts]]
            data = journal_publish_head(seq_id, persistent=persistent) + record + b"".join(heads)
            self.append(disk.JOURNAL_NAME, data)
        else:
            rel_seq = seq_id % self.vhost.entries
            data = segment_publish_head(rel_seq, persistent=persistent) + record
            self.append(
                disk.segment_name(seq_id // self.vhost.entries), data + struct.pack(">H", 0x4000 | rel_seq) * shorts
            )

    def journal(self, seq_id: int, body: bytes = b"body", *, persistent: bool = True, **envelope: Any) -> bytes:
        """Publish and deliver a whole message in the journal; returns its msg_id."""
        message = self.message(seq_id, body, persistent=persistent, **envelope)
        self.publish(seq_id, body, embedded=message, in_journal=True, persistent=persistent, shorts=1)
        return self.msg_id(seq_id)

    def segment(self, seq_id: int, body: bytes = b"body", *, shorts: int = 1) -> None:
        """Publish a whole message in its segment file, followed by ``shorts`` short records."""
        self.publish(seq_id, body, embedded=self.message(seq_id, body), shorts=shorts)

    def bodyless(self, seq_id: int, msg_id: bytes, size: int, expiry_us: int = 0) -> None:
        """Publish in the journal a message whose body is in the store."""
        self.publish(seq_id, bytes(size), in_journal=True, expiry_us=expiry_us, msg_id=msg_id)

    def stop_cleanly(
        self,
        next_seq_id: int | None,
        next_deliver_seq_id: int | None,
        unacked: tuple[tuple[int, int], ...] = (),
        persistent_count: int | None = None,
        others: tuple[Any, ...] = (),
    ) -> None:
        """``unacked``: segments and how many of their messages are not acked."""
        terms = RecoveryTerms(unacked, next_seq_id, next_deliver_seq_id, None, persistent_count, None, others)
        (self.vhost.path / "recovery.dets").write_bytes(encode_recovery_terms({self.path.name: terms}))

    def append(self, name: str, data: bytes) -> None:
        """To a file of the queue; one with segments has a journal."""
        if disk.segment_number(name) is not None:
            (self.path / disk.JOURNAL_NAME).touch()
        with (self.path / name).open("ab") as file:
            file.write(data)


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
        state: Any = None,
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
