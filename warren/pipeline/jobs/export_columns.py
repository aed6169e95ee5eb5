"""An export as Parquet: the fields of the lines as columns, and the messages of a part in one file.

Names, properties and headers are what JSON says of them; the last two are JSON as text. A body is the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from warren.msg_store.commit_log_format import Record
from warren.pipeline.message_arrays import message_arrays
from warren.pipeline.places import Kind
from warren.pipeline.schemas import EXPORTED_MESSAGES, EXPORTED_RECORDS
from warren.pipeline.table import Columns, as_batch
from warren.salvage.message_batches import ROW_BYTES, MessageBatch
from warren.salvage.names import as_text, to_json, to_text
from warren.salvage.rocketmq.message_lines import record_fields

GROUP_BYTES: Final = 32 << 20
"""Of messages, about, in a row group; they are held in memory together."""

GROUP_ROWS: Final = 1 << 16

_MESSAGES: Final = to_arrow_schema(EXPORTED_MESSAGES, timezone="UTC")
_RECORDS: Final = to_arrow_schema(EXPORTED_RECORDS, timezone="UTC")
_COLUMNS: Final = {field.name: field for schema in (_MESSAGES, _RECORDS) for field in schema}

_VARIED: Final = frozenset({"body", "body_sha256", "msg_id", "message_id"})
"""Columns that do not repeat themselves: a dictionary would be work for nothing."""


def columns_of(kinds: Kind) -> list[str]:
    """The columns of an export of nodes of these kinds; of a mix those of both, null where a row has none."""
    if kinds == Kind.BOTH:
        return list(_COLUMNS)
    return list((_RECORDS if kinds == Kind.TOPICS else _MESSAGES).names)


def empty_table(columns: Iterable[str]) -> pa.Table:
    """No rows."""
    return pa.schema([_COLUMNS[name] for name in columns]).empty_table()


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

    def add(self, rows: Columns, payload_bytes: int) -> None:
        """Add rows; columns that they do not have are null."""
        self._batches.append(as_batch(rows, self._schema))
        self._bytes += payload_bytes + len(rows) * ROW_BYTES
        self._rows += len(rows)
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


class ParquetRows:
    """Writes messages of a node to a part: what :class:`warren.salvage.json_lines.JsonLines` is to lines."""

    def __init__(self, part: ParquetPart, node: str) -> None:
        self._part = part
        self._node = as_text(node)
        self._records: list[dict[str, Any]] = []
        self._record_bytes = 0

    def messages(self, vhost: bytes, queue: bytes, batch: MessageBatch) -> None:
        """Messages of a queue."""
        names = {"node": self._node, "vhost": as_text(to_text(vhost)), "queue": as_text(to_text(queue))}
        self._part.add(Columns(len(batch), {**names, **message_arrays(batch)}), batch.payload_bytes)

    def record(self, position: int, record: Record) -> None:
        """A record of a topic."""
        fields = record_fields(record)
        said = {
            "properties": to_json(fields["properties"]),
            "tags": as_text(fields["tags"]),
            "keys": as_text(fields["keys"]),
        }
        self._records.append({**fields, **said, "position": position})
        self._record_bytes += len(record.body) + ROW_BYTES
        if self._record_bytes >= GROUP_BYTES or len(self._records) >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the records that are held back."""
        rows, self._records = self._records, []
        payload_bytes, self._record_bytes = self._record_bytes, 0
        if rows:
            columns = {name: [row[name] for row in rows] for name in _RECORDS.names if name != "node"}
            self._part.add(Columns(len(rows), {**columns, "node": self._node}), payload_bytes)
