"""A vhost with one queue, written record by record, for tests of what reads it."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

from warren.queue_index import directory as disk
from warren.queue_index.message_format import Envelope, encode_message
from warren.queue_index.properties import Properties, encode_properties
from warren.queue_index.record_format import BODY, DELIVER, journal_publish_head, segment_publish_head
from warren.queue_index.recovery_terms import RecoveryTerms, encode_recovery_terms


class QueueOnDisk:
    """A vhost with one queue, written record by record."""

    def __init__(self, place: Path, name: bytes = b"q") -> None:
        self.vhost = place / disk.vhost_directory_name(b"/")
        self.directory = disk.queue_directory_name(b"/", name)
        self.queue = self.vhost / "queues" / self.directory
        self.queue.mkdir(parents=True)
        (self.vhost / "msg_store_persistent").mkdir()
        (self.vhost / ".vhost").write_bytes(b"/")
        (self.vhost / ".config").write_bytes(disk.vhost_config(4))
        (self.queue / ".queue_name").write_bytes(disk.queue_name_file(b"/", name))

    def append(self, name: str, data: bytes) -> None:
        with (self.queue / name).open("ab") as file:
            file.write(data)

    def journal(self, seq_id: int, body: bytes = b"body", *, persistent: bool = True, **envelope: Any) -> bytes:
        """Publish and deliver in the journal; returns the msg_id."""
        msg_id, record = self._body(seq_id, body, persistent, envelope)
        head = journal_publish_head(seq_id, persistent=persistent)
        self.append("journal.jif", head + record + struct.pack(">Q", DELIVER << 62 | seq_id))
        return msg_id

    def segment(self, seq_id: int, body: bytes = b"body", *, shorts: int = 1, persistent: bool = True) -> bytes:
        """Publish in the segment file, with so many short records behind it; returns the msg_id."""
        msg_id, record = self._body(seq_id, body, persistent, {})
        short = struct.pack(">H", 0x4000 | seq_id % 4)
        self.append(
            f"{seq_id // 4}.idx", segment_publish_head(seq_id % 4, persistent=persistent) + record + short * shorts
        )
        return msg_id

    def store(self, data: bytes) -> None:
        with (self.vhost / "msg_store_persistent" / "0.rdq").open("ab") as file:
            file.write(data)

    def bodyless(self, seq_id: int, msg_id: bytes, size: int, expiry_us: int = 0) -> None:
        """Publish in the journal a message whose body is in the store."""
        head = journal_publish_head(seq_id, persistent=True)
        self.append("journal.jif", head + BODY.pack(msg_id, expiry_us, size, 0))

    def stop_cleanly(
        self, next_seq_id: int | None, next_deliver_seq_id: int | None, unacked: tuple[tuple[int, int], ...] = ()
    ) -> None:
        terms = RecoveryTerms(unacked, next_seq_id, next_deliver_seq_id, None, None, None)
        (self.vhost / "recovery.dets").write_bytes(encode_recovery_terms({self.directory: terms}))

    def _body(self, seq_id: int, body: bytes, persistent: bool, envelope: dict[str, Any]) -> tuple[bytes, bytes]:
        msg_id = hashlib.md5(b"%d" % seq_id).digest()
        encoded = encoded_message(msg_id, body, persistent=persistent, **envelope)
        return msg_id, BODY.pack(msg_id, 0, len(body), len(encoded)) + encoded


def encoded_message(
    msg_id: bytes, body: bytes, *, keys: tuple[bytes, ...] = (b"q",), persistent: bool = True, **properties: Any
) -> bytes:
    encoded = encode_properties(Properties(**properties))
    return encode_message(Envelope(b"/", b"amq.direct", keys, encoded, persistent), msg_id, body)
