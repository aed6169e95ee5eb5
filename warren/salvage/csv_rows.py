"""Messages as CSV (RFC 4180, UTF-8): the fields of a line of JSON as columns, under a row of their names.

``routing_keys``, ``properties`` and ``headers`` are JSON; what is null is empty; ``true`` and ``false`` are JSON's. A
name that is not UTF-8 is written as :func:`~warren.salvage.names.as_text` has it. The column ``body_encoding``
says how each body is written.
"""

from __future__ import annotations

import csv
import io
from base64 import b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

from warren.msg_store.commit_log.commit_log_format import Record
from warren.salvage.classic.orphans import Orphan
from warren.salvage.envelopes import Envelope
from warren.salvage.message_batches import Body, MessageBatch
from warren.salvage.names import as_text, to_json, to_text
from warren.salvage.rocketmq.record_lines import body_text, record_fields

MESSAGE_COLUMNS: Final = (
    *("vhost", "queue", "seq_id", "msg_id", "persistent", "redelivered", "expiry_us", "delivery_count"),
    *("stream_offset", "size", "exchange", "routing_keys", "properties", "headers", "encoded_properties"),
    *("body", "body_encoding", "body_sha256", "acked", "orphan"),
)
RECORD_COLUMNS: Final = (
    *("topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp", "born_timestamp"),
    *("born_host", "store_host", "sys_flag", "flag", "reconsume_times", "tags", "keys", "properties"),
    *("body", "body_encoding", "body_sha256", "crc_ok", "message_id"),
)


class CsvRows:
    """Writes messages as rows; ``with_text``: bodies that are UTF-8 as text."""

    def __init__(
        self, write: Callable[[bytes], object], columns: Sequence[str] = MESSAGE_COLUMNS, *, with_text: bool = False
    ) -> None:
        self._write = write
        self._with_text = with_text
        self._text = io.StringIO(newline="")
        self._rows = csv.DictWriter(self._text, columns)
        self._rows.writeheader()

    def messages(self, vhost: bytes, queue: bytes, batch: MessageBatch) -> None:
        """Messages of a queue."""
        names = {"vhost": as_text(to_text(vhost)), "queue": as_text(to_text(queue))}
        for row in batch.mixed().rows:
            fields = {
                **names,
                "seq_id": row.seq_id,
                "msg_id": row.msg_id.hex(),
                "persistent": _word(row.persistent),
                "redelivered": _word(row.redelivered),
                "expiry_us": row.expiry_us or None,
                "delivery_count": row.delivery_count,
                "stream_offset": row.stream_offset,
                "acked": _word(row.acked or None),
            }
            self._rows.writerow({**fields, **self._content(row.envelope, row.body)})
        self.flush()

    def orphan(self, orphan: Orphan) -> None:
        """A stored message that no entry of a queue refers to."""
        vhost, queue = orphan.names
        fields = {
            "vhost": as_text(vhost),
            "queue": None if queue is None else as_text(queue),
            "msg_id": orphan.msg_id.hex(),
            "persistent": _word(orphan.persistent),
            "orphan": _word(True),
        }
        self._rows.writerow({**fields, **self._content(orphan.envelope, orphan.body)})
        self.flush()

    def record(self, position: int, record: Record) -> None:
        """A record of a topic."""
        fields = record_fields(record)
        texts = {name: as_text(fields[name]) for name in ("topic", "tags", "keys")}
        properties, crc_ok = to_json(fields["properties"]).decode(), _word(fields["crc_ok"])
        details = {"properties": properties, "crc_ok": crc_ok, "body_sha256": fields["body_sha256"]}
        self._rows.writerow({**fields, **texts, **self._body(record.body), **details})
        self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        self._write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()

    def _content(self, envelope: Envelope, body: Body) -> dict[str, Any]:
        return {
            "size": len(body),
            "exchange": envelope.exchange,
            "routing_keys": to_json(envelope.routing_keys).decode(),
            "properties": envelope.properties.decode(),
            "headers": None if envelope.headers is None else envelope.headers.decode(),
            "encoded_properties": None if envelope.unsaid is None else b64encode(envelope.unsaid).decode(),
            **self._body(body),
        }

    def _body(self, body: Body) -> dict[str, str]:
        text, encoding = body_text(body) if self._with_text else (b64encode(body).decode(), "base64")
        return {"body": text, "body_encoding": encoding, "body_sha256": sha256(body).hexdigest()}


def _word(value: bool | None) -> str | None:
    return None if value is None else "true" if value else "false"
