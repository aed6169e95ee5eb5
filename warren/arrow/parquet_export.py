"""An export as Parquet: the fields of the lines as columns, and the messages of a part in one file.

Names, properties and headers are what JSON says of them; the last two are JSON as text. A body is the bytes. One
machine's file and those of Spark's tasks have the same columns, and can be read as one table.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from warren.arrow.arrays import Columns, as_batch, schema_of
from warren.arrow.message_arrays import message_arrays
from warren.msg_store.commit_log.commit_log_format import Record
from warren.salvage.classic.orphans import Orphan
from warren.salvage.message_batches import ROW_BYTES, MessageBatch
from warren.salvage.names import as_text, to_json, to_text
from warren.salvage.rocketmq.record_lines import record_fields

GROUP_BYTES: Final = 32 << 20
"""About the bytes of messages in a row group, which are held in memory together."""

GROUP_ROWS: Final = 1 << 16

MESSAGES: Final[pa.Schema] = schema_of(
    "node string, position long, vhost string, queue string, seq_id long, msg_id string, persistent boolean, "
    "redelivered boolean, expiry_us long, delivery_count long, stream_offset long, size long, exchange string, "
    "routing_keys array<string>, properties string, headers string, encoded_properties binary, body binary, "
    "body_sha256 string"
)
"""The columns of an export of queues, in order."""

RECORDS: Final[pa.Schema] = schema_of(
    "node string, position long, topic string, queue_id long, queue_offset long, physical_offset long, size long, "
    "store_timestamp long, born_timestamp long, born_host string, store_host string, sys_flag long, flag long, "
    "reconsume_times long, tags string, keys string, properties string, body binary, body_sha256 string, "
    "crc_ok boolean, message_id string"
)
"""The columns of an export of topics, in order; numbers are ``long``, so that one file can hold both."""

ACKED: Final = pa.field("acked", pa.bool_())
ORPHAN: Final = pa.field("orphan", pa.bool_())
"""Columns that are there where such messages were asked for: true, or null as a line leaves them out."""

_VARIED: Final = frozenset({"body", "body_sha256", "msg_id", "message_id", "position", "seq_id"})
"""Columns that do not repeat themselves: a dictionary would be work for nothing."""

_UNSORTED: Final = frozenset({"body", "body_sha256"})
"""Columns without statistics: their minimum and maximum are of no use."""


class ParquetFile:
    """A Parquet file with these columns; ``sink``: its path, or a file object that pyarrow can write to."""

    def __init__(self, sink: Any, schema: pa.Schema) -> None:
        self._schema = schema
        # Of a list the column in the file is what it is made of.
        paths = {name: "routing_keys.list.element" if name == "routing_keys" else name for name in schema.names}
        self._writer = pq.ParquetWriter(
            sink,
            schema,
            use_dictionary=[path for name, path in paths.items() if name not in _VARIED],
            write_statistics=[path for name, path in paths.items() if name not in _UNSORTED],
        )
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
    """Writes messages of a node to a file: what :class:`warren.salvage.json_lines.JsonLines` is to lines."""

    def __init__(self, file: ParquetFile, node: str) -> None:
        self._file = file
        self._node = as_text(node)
        self._records: list[dict[str, Any]] = []
        self._record_bytes = 0

    def messages(self, vhost: bytes, queue: bytes, batch: MessageBatch) -> None:
        """Write messages of a queue."""
        names = {"node": self._node, "vhost": as_text(to_text(vhost)), "queue": as_text(to_text(queue))}
        self._file.add(Columns(len(batch), {**names, **message_arrays(batch)}), batch.payload_bytes)

    def orphan(self, orphan: Orphan) -> None:
        """Write a stored message that no queue's entry refers to."""
        (vhost, queue), envelope, body = orphan.names, orphan.envelope, orphan.body
        fields = {
            "node": self._node,
            "vhost": as_text(vhost),
            "queue": None if queue is None else as_text(queue),
            "msg_id": orphan.msg_id.hex() or None,
            "persistent": orphan.persistent,
            "size": len(body),
            "exchange": envelope.exchange,
            "routing_keys": [envelope.routing_keys],
            "properties": envelope.properties,
            "headers": envelope.headers,
            "encoded_properties": [envelope.unsaid],
            "body": [body],
            "body_sha256": sha256(body).hexdigest(),
            "orphan": True,
        }
        self._file.add(Columns(1, fields), len(body))

    def record(self, position: int, record: Record) -> None:
        """Write a record of a topic."""
        fields = record_fields(record)
        texts = {
            "properties": to_json(fields["properties"]),
            "tags": as_text(fields["tags"]),
            "keys": as_text(fields["keys"]),
        }
        self._records.append({**fields, **texts, "position": position})
        self._record_bytes += len(record.body) + ROW_BYTES
        if self._record_bytes >= GROUP_BYTES or len(self._records) >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the records that are held back."""
        rows, self._records = self._records, []
        payload_bytes, self._record_bytes = self._record_bytes, 0
        if rows:
            columns = {name: [row[name] for row in rows] for name in RECORDS.names if name != "node"}
            self._file.add(Columns(len(rows), {**columns, "node": self._node}), payload_bytes)


@contextmanager
def parquet_rows(
    write: Callable[[bytes], object],
    node: str,
    *,
    include_acked: bool = False,
    orphans: bool = False,
    records: bool = False,
) -> Iterator[ParquetRows]:
    """Yield what writes a node's messages as a Parquet file, whose bytes go to ``write``; ``records``: of topics.

    ``include_acked``, ``orphans``: there may be such messages; a column marks them. After an exception the file's
    end is not written, so that no reader takes the file for complete.
    """
    sink = Sink(write)
    extra_columns = [*([ACKED] if include_acked else ()), *([ORPHAN] if orphans else ())]
    try:
        file = ParquetFile(
            pa.PythonFile(sink, mode="w"), RECORDS if records else pa.schema([*MESSAGES, *extra_columns])
        )
        rows = ParquetRows(file, node)
        yield rows
        rows.flush()
        file.close()
    finally:
        sink.end()


@attrs.define(slots=False)
class Sink(io.RawIOBase):
    """A write-only file object for pyarrow."""

    _write: Callable[[bytes], object] | None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._write is not None:
            self._write(data)
        return len(data)

    def end(self) -> None:
        """Discard all that pyarrow writes from here on: it ends an unfinished file when it lets go of it."""
        self._write = None
