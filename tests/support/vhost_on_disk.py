"""A vhost's directory written byte by byte, for tests of what reads it: queues with their index, a store."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from warren.msg_store.rdq_format import encode_record
from warren.queue_index import directory as disk
from warren.queue_index.message_format import Envelope, encode_message
from warren.queue_index.properties import Properties, encode_properties
from warren.queue_index.record_format import ACK, BODY, DELIVER, journal_publish_head, segment_publish_head

ENTRIES = 4
"""Of a segment."""


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

    def queue(self, name: bytes) -> QueueOnDisk:
        path = self.path / "queues" / disk.queue_directory_name(self.name, name)
        path.mkdir()
        (path / ".queue_name").write_bytes(disk.queue_name_file(self.name, name))
        return QueueOnDisk(self, path, name)

    def append(self, name: str, data: bytes) -> None:
        """To a file of the vhost."""
        with (self.path / name).open("ab") as file:
            file.write(data)

    def store(self, number: int, msg_id: bytes, message: bytes) -> None:
        self.append(f"msg_store_persistent/{number}.rdq", encode_record(msg_id, message))


class QueueOnDisk:
    """One queue; ``publish`` writes where it is told to."""

    def __init__(self, vhost: VhostOnDisk, path: Path, name: bytes) -> None:
        self.vhost, self.path, self.name = vhost, path, name

    def msg_id(self, seq_id: int) -> bytes:
        return hashlib.md5(self.name + b"%d" % seq_id).digest()

    def message(self, seq_id: int, body: bytes, **properties: object) -> bytes:
        encoded = encode_properties(Properties(**properties))  # type: ignore[arg-type]
        return encode_message(Envelope(b"/", b"", (self.name,), encoded, True), self.msg_id(seq_id), body)

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
    ) -> None:
        """With delivers and acks behind it as ``shorts`` says; without ``embedded`` its body is in the store."""
        message = embedded or b""
        record = BODY.pack(self.msg_id(seq_id), expiry_us, len(body), len(message)) + message
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

    def append(self, name: str, data: bytes) -> None:
        """To a file of the queue."""
        with (self.path / name).open("ab") as file:
            file.write(data)
