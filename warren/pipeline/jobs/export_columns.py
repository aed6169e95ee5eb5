"""An export as Parquet: the fields of the lines as columns, and the messages of a part in one file.

Names, properties and headers are what JSON says of them; the last two are JSON as text. A body is the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msg_store.commit_log_format import Record, decode_properties
from storage.errors import MessageError
from warren.pipeline.arrays import as_text, hexadecimal, repeated, rows_of
from warren.pipeline.places import Kind
from warren.pipeline.tables.envelopes import Envelopes
from warren.salvage.export import Exported, Report
from warren.salvage.names import to_json, to_text
from warren.salvage.queue_directory import UNREADABLE_BODY, Finding, StoredMessage, Stretch
from warren.salvage.rocketmq.message_lines import KEYS, TAGS
from warren.salvage.stretch_lines import alike_bodies

GROUP_BYTES: Final = 32 << 20
"""Of messages, about, in a row group; they are held in memory together."""

GROUP_ROWS: Final = 1 << 16

_OVERHEAD_BYTES: Final = 256
_HEAD: Final = {"node": pa.string(), "position": pa.int64()}
_TAIL: Final = {"body": pa.binary(), "body_sha256": pa.string()}

MESSAGES: Final = {
    **_HEAD,
    "vhost": pa.string(),
    "queue": pa.string(),
    "seq_id": pa.int64(),
    "msg_id": pa.string(),
    "persistent": pa.bool_(),
    "redelivered": pa.bool_(),
    "expiry_us": pa.int64(),
    "delivery_count": pa.int64(),
    "size": pa.int64(),
    "exchange": pa.string(),
    "routing_keys": pa.list_(pa.field("element", pa.string())),
    "properties": pa.string(),
    "headers": pa.string(),
    **_TAIL,
}
"""Columns of messages of queues: name → type."""

RECORDS: Final = {
    **_HEAD,
    "topic": pa.string(),
    "queue_id": pa.int64(),
    "queue_offset": pa.int64(),
    "physical_offset": pa.int64(),
    "size": pa.int64(),
    "store_timestamp": pa.int64(),
    "born_timestamp": pa.int64(),
    "born_host": pa.string(),
    "store_host": pa.string(),
    "sys_flag": pa.int64(),
    "flag": pa.int64(),
    "reconsume_times": pa.int64(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.string(),
    **_TAIL,
    "crc_ok": pa.bool_(),
    "message_id": pa.string(),
}
"""Columns of records of topics."""

_VARIED: Final = frozenset({"body", "body_sha256", "msg_id", "message_id"})
"""Columns that do not repeat themselves: a dictionary would be work for nothing."""


_TYPES: Final = {**MESSAGES, **RECORDS}


def columns_of(kinds: Kind) -> list[str]:
    """The columns of an export of nodes of these kinds; of a mix those of both, null where a row has none."""
    if kinds == Kind.BOTH:
        return list(_TYPES)
    return list(RECORDS if kinds == Kind.TOPICS else MESSAGES)


def empty_table(columns: Iterable[str]) -> pa.Table:
    """No rows."""
    return pa.schema([(name, _TYPES[name]) for name in columns]).empty_table()


class ParquetPart:
    """The file of a part."""

    def __init__(self, path: str, columns: Iterable[str]) -> None:
        self._schema = empty_table(columns).schema
        repeated = [name for name in self._schema.names if name not in _VARIED]
        # Of a list the column in the file is what it is made of.
        paths = ["routing_keys.list.element" if name == "routing_keys" else name for name in repeated]
        self._writer = pq.ParquetWriter(path, self._schema, use_dictionary=paths)
        self._batches: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0

    def add(self, count: int, columns: Mapping[str, pa.Array], byte_count: int) -> None:
        """So many rows; columns that are not there are null."""
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in self._schema
        ]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._bytes += byte_count + count * _OVERHEAD_BYTES
        self._rows += count
        if self._bytes >= GROUP_BYTES or self._rows >= GROUP_ROWS:
            self._write()

    def close(self) -> None:
        """Write the rest."""
        self._write()
        self._writer.close()

    def _write(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches))
        self._batches = []
        self._bytes = self._rows = 0


class ColumnExporter:
    """Turns messages into columns, and counts: what :class:`warren.salvage.export.Exporter` is to lines."""

    def __init__(self, part: ParquetPart, report: Report, node: str) -> None:
        self.exported = Exported()
        self.number = 0
        """The position of the next message."""
        self._part = part
        self._report = report
        self._node = as_text(node)
        self._rows: list[dict[str, Any]] = []
        self._row_bytes = 0
        self._columns: Mapping[str, pa.DataType] = MESSAGES
        self._envelopes = Envelopes()

    def problem(self, finding: Finding) -> None:
        """Tell it, and count it, if it is damage."""
        if finding.severity == "damage":
            self.exported.problems += 1
            self._report(finding)

    def messages(self, vhost: bytes, queue: bytes, found: Iterable[StoredMessage | Stretch | Finding]) -> None:
        """Some of the messages of a queue, in order."""
        names = {"vhost": as_text(to_text(vhost)), "queue": as_text(to_text(queue))}
        for one in found:
            if isinstance(one, Finding):
                if one.kind == UNREADABLE_BODY:
                    self._skip()
                self.problem(one)
            elif isinstance(one, StoredMessage):
                self._message(names, one)
            elif not self._stretch(names, one):
                for message in one.messages():
                    self._message(names, message)

    def record(self, record: Record) -> None:
        """A record of a topic."""
        properties = decode_properties(record.properties)
        self._add(
            RECORDS,
            len(record.body),
            {
                "topic": record.topic,
                "queue_id": record.queue_id,
                "queue_offset": record.queue_offset,
                "physical_offset": record.physical_offset,
                "size": record.size,
                "store_timestamp": record.store_timestamp,
                "born_timestamp": record.born_timestamp,
                "born_host": str(record.born_host),
                "store_host": str(record.store_host),
                "sys_flag": record.sys_flag,
                "flag": record.flag,
                "reconsume_times": record.reconsume_times,
                "tags": as_text(properties.get(TAGS)),
                "keys": as_text(properties.get(KEYS)),
                "properties": to_json(properties).decode(),
                "body": record.body,
                "body_sha256": sha256(record.body).hexdigest(),
                "crc_ok": record.crc_ok,
                "message_id": record.message_id(),
            },
        )

    def flush(self) -> None:
        """Hand over the rows that were held back."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        columns = {
            name: pa.array([row.get(name) for row in rows], of)
            for name, of in self._columns.items()
            if name not in _HEAD
        }
        first = self.number - len(rows)
        self._hand_over(len(rows), first, columns, self._row_bytes)
        self._row_bytes = 0

    def _message(self, names: Mapping[str, str | None], message: StoredMessage) -> None:
        try:
            envelope, body = self._envelopes.split(message.encoded)
        except MessageError as error:
            said = f"message {message.seq_id}: {error}"
            self._skip()
            self.problem(Finding("unreadable message", "damage", message.path, message.offset, said))
            return
        row = {
            **names,
            "seq_id": message.seq_id,
            "msg_id": message.msg_id.hex() or None,
            "persistent": message.persistent,
            "redelivered": message.redelivered,
            "expiry_us": _signed(message.expiry_us) or None,
            "delivery_count": message.delivery_count,
            "size": len(body),
            **envelope._asdict(),
            "body": body,
            "body_sha256": sha256(body).hexdigest(),
        }
        self._add(MESSAGES, len(body), row)

    def _skip(self) -> None:
        """A position that no row has."""
        self.flush()
        self.number += 1

    def _add(self, columns: Mapping[str, pa.DataType], size: int, row: dict[str, Any]) -> None:
        if self._rows and self._columns is not columns:
            self.flush()
        self._columns = columns
        self._rows.append(row)
        self._row_bytes += size
        self._count(1, size)
        if self._row_bytes >= GROUP_BYTES or len(self._rows) >= GROUP_ROWS:
            self.flush()

    def _stretch(self, names: Mapping[str, str | None], stretch: Stretch) -> bool:
        """Many messages at once; ``False``: they differ in more than body and id."""
        bodies = alike_bodies(stretch)
        if bodies is None:
            return False
        try:
            envelope, _ = self._envelopes.split(stretch.encoded[0].tobytes())
        except MessageError:
            return False
        self.flush()
        count, size = bodies.shape
        data = np.ascontiguousarray(bodies)
        digests = b"".join([sha256(body).digest() for body in data])
        same = {**names, "persistent": True, "redelivered": stretch.redelivered, "size": size, **envelope._asdict()}
        columns = {
            **{name: repeated(value, count, MESSAGES[name]) for name, value in same.items()},
            "seq_id": pa.array(stretch.seq_ids, pa.int64()),
            "msg_id": hexadecimal(stretch.msg_ids),
            "expiry_us": pa.array(stretch.expiries_us.view(np.int64), mask=stretch.expiries_us == 0),
            "body": rows_of(data, pa.binary()),
            "body_sha256": hexadecimal(np.frombuffer(digests, np.uint8).reshape(count, -1)),
        }
        self._count(count, count * size)
        self._hand_over(count, self.number - count, columns, count * size)
        return True

    def _hand_over(self, count: int, first: int, columns: Mapping[str, pa.Array], byte_count: int) -> None:
        head = {
            "node": repeated(self._node, count, pa.string()),
            "position": pa.array(np.arange(first, first + count, dtype=np.int64)),
        }
        self._part.add(count, {**head, **columns}, byte_count)

    def _count(self, messages: int, payload_bytes: int) -> None:
        self.number += messages
        self.exported.messages += messages
        self.exported.payload_bytes += payload_bytes


def _signed(number: int) -> int:
    """64 bits without a sign as Parquet's, with one."""
    return number - (1 << 64) if number >= 1 << 63 else number
