"""A vhost's directory written byte by byte, for tests of what reads it: queues with their index, a store."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

from warren.msg_store.rdq.rdq_format import encode_record
from warren.queue_index.index import directory as disk
from warren.queue_index.index.record_format import ACK, BODY, DELIVER, journal_publish_head, segment_publish_head
from warren.queue_index.index.recovery_terms import RecoveryTerms, encode_recovery_terms
from warren.queue_index.message.message_format import Envelope, encode_message
from warren.queue_index.properties import Properties, encode_properties

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
