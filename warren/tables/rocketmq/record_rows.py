"""Good records of a CommitLog as rows of the table ``records``: each column is made when it is asked for."""

from __future__ import annotations

import functools
from binascii import hexlify
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from warren.actors.engines.topics.names import KEYS, TAGS
from warren.arrow.arrays import chosen, rows_of, slices
from warren.msg_store.commit_log.commit_log_format import Host
from warren.msg_store.commit_log.record_bodies import BATCH, COMPRESSED, batch_messages, sent_body
from warren.msg_store.commit_log.record_columns import Hosts, RecordColumns
from warren.storage.errors import DataError, MessageError
from warren.tables.property_maps import PropertyMaps
from warren.tables.read_options import ReadOptions

_HELD_BYTES: Final = 64 << 20
"""Of decompressed bodies, about, in the rows that are made together."""


@attrs.frozen
class Whence:
    """Where rows came from."""

    node: str
    file: str | None
    begin: int
    """The physical offset of the file's first byte."""


@attrs.frozen(eq=False, slots=False)
class RecordRows:
    """Some records of one window of a file."""

    columns: RecordColumns
    whence: Whence
    bodies: bool
    sent: Mapping[str, Any] = attrs.Factory(dict)
    """The columns that the messages have as they were sent, if any of them was stored in another form."""
    sent_properties: Sequence[bytes] | None = None

    def __len__(self) -> int:
        return len(self.columns)

    def column(self, name: str) -> Any:
        return self.sent[name] if name in self.sent else _COLUMNS[name](self)

    def body(self) -> pa.Array | None:
        if not self.bodies:
            return None
        spans = self.columns.spans
        return slices(spans.data, spans.body_starts, spans.body_sizes)

    def topic(self) -> pa.Array:
        return chosen(self.columns.topics, self.columns.topic_of)

    def message_id(self) -> pa.Array:
        """Store host and physical offset, in upper-case hexadecimal digits."""
        offsets = np.ascontiguousarray(self.columns.physical_offsets, ">i8").view(np.uint8).reshape(-1, 8)
        parts = []
        for hosts, row_numbers in self.columns.store_hosts():
            octets = np.concatenate((hosts, offsets[row_numbers]), axis=1)
            digits = np.frombuffer(hexlify(octets.tobytes()).upper(), np.uint8)
            parts.append((rows_of(digits.reshape(len(octets), -1), pa.string()), row_numbers))
        return _put_together(parts)

    @functools.cached_property
    def properties(self) -> PropertyMaps:
        if self.sent_properties is not None:
            return PropertyMaps.of(self.sent_properties)
        spans = self.columns.spans
        return PropertyMaps(spans.data, spans.properties_starts, spans.properties_sizes)


def rows_read(
    columns: RecordColumns, whence: Whence, path: str, options: ReadOptions, *, with_bodies: bool
) -> Iterator[RecordRows]:
    """The rows of records in the file at ``path``: at once, or as many together as have few bytes when decompressed.

    Of a record that is a batch: a row for each message. Raises :class:`DataError` for a body that is not what its flags
    say, if damage is to stop the task.
    """
    is_other = columns.sys_flags & COMPRESSED != 0 if with_bodies else np.zeros(len(columns), np.bool_)
    if options.raw_bodies or not (is_other | are_batches(columns)).any():
        yield RecordRows(columns, whence, with_bodies)
        return
    messages: list[_Message] = []
    held_bytes = 0
    for message in _sent_messages(columns, whence, path, options, with_bodies=with_bodies):
        messages.append(message)
        held_bytes += len(message[-2] or b"")
        if held_bytes >= _HELD_BYTES:
            yield _rows_of(columns, messages, whence, with_bodies=with_bodies)
            messages, held_bytes = [], 0
    if messages:
        yield _rows_of(columns, messages, whence, with_bodies=with_bodies)


def are_batches(columns: RecordColumns) -> npt.NDArray[np.bool_]:
    """Which records are batches of messages."""
    batches: npt.NDArray[np.bool_] = columns.sys_flags & BATCH == BATCH
    return batches


_Message = tuple[int, int, int, int, bytes | None, bytes]
"""The number of its record, its place in that, size, flag, body and properties."""


def _sent_messages(
    columns: RecordColumns, whence: Whence, path: str, options: ReadOptions, *, with_bodies: bool
) -> Iterator[_Message]:
    """The messages as they were sent; one for a record that is not what its flags say, without a body."""
    spans = columns.spans
    fields = (columns.sys_flags, columns.sizes, columns.flags, spans.properties_starts, spans.starts + spans.sizes)
    records = zip(spans.bodies(), *(column.tolist() for column in fields), strict=True)
    for row, (stored, sys_flag, size, flag, start, stop) in enumerate(records):
        is_batch = sys_flag & BATCH == BATCH
        body: bytes | None = None
        try:
            body = sent_body(sys_flag, stored) if is_batch or with_bodies else None
            batch = [*batch_messages(body)] if is_batch and body is not None else None
        except MessageError as error:
            if options.mode == "failfast":
                raise DataError(path, int(columns.positions[row]) - whence.begin, str(error)) from error
            body = batch = None
        for number, message in enumerate(batch or ()):
            yield row, number, *message
        if batch is None:
            yield row, 0, size, flag, body, spans.data[start:stop]


def _rows_of(columns: RecordColumns, messages: list[_Message], whence: Whence, *, with_bodies: bool) -> RecordRows:
    rows, numbers, sizes, flags, bodies, properties = zip(*messages, strict=True)
    records = columns.take(np.array(rows))
    sent = {
        "queue_offset": records.queue_offsets + np.array(numbers),
        "size": sizes,
        "flag": flags,
        "body": bodies if with_bodies else None,
    }
    return RecordRows(records, whence, with_bodies, sent, properties)


def _hosts(hosts: Hosts) -> pa.Array:
    """``10.1.2.3:50123`` and the like; few are distinct."""
    parts = []
    for rows, row_numbers in hosts:
        joined = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").reshape(-1)
        if (rows == rows[0]).all():
            distinct, host_of = joined[:1], np.zeros(len(rows), np.int64)
        else:
            distinct, host_of = np.unique(joined, return_inverse=True)
        texts = [
            str(Host(packed[:-4], int.from_bytes(packed[-4:], "big", signed=True)))
            for packed in (host.tobytes() for host in distinct)
        ]
        parts.append((chosen(texts, host_of), row_numbers))
    return _put_together(parts)


def _put_together(parts: list[tuple[pa.Array, npt.NDArray[np.int64]]]) -> pa.Array:
    """Merge partial columns, each with the rows that its values belong to."""
    if len(parts) == 1:
        return parts[0][0]
    order = np.argsort(np.concatenate([row_numbers for _, row_numbers in parts]), kind="stable")
    return pa.concat_arrays([values for values, _ in parts]).take(pa.array(order))


_COLUMNS: Final[dict[str, Callable[[RecordRows], Any]]] = {
    "node": lambda rows: rows.whence.node,
    "topic": RecordRows.topic,
    "queue_id": lambda rows: rows.columns.queue_ids,
    "queue_offset": lambda rows: rows.columns.queue_offsets,
    "physical_offset": lambda rows: rows.columns.physical_offsets,
    "size": lambda rows: rows.columns.sizes,
    "store_timestamp": lambda rows: rows.columns.store_timestamps,
    "born_timestamp": lambda rows: rows.columns.born_timestamps,
    "born_host": lambda rows: _hosts(rows.columns.born_hosts()),
    "store_host": lambda rows: _hosts(rows.columns.store_hosts()),
    "sys_flag": lambda rows: rows.columns.sys_flags,
    "flag": lambda rows: rows.columns.flags,
    "reconsume_times": lambda rows: rows.columns.reconsume_times,
    "prepared_transaction_offset": lambda rows: rows.columns.prepared_transaction_offsets,
    "tags": lambda rows: rows.properties.named(TAGS),
    "keys": lambda rows: rows.properties.named(KEYS),
    "properties": lambda rows: rows.properties.maps(),
    "body": RecordRows.body,
    "body_crc": lambda rows: rows.columns.body_crcs,
    "crc_ok": lambda rows: rows.columns.crcs_match(),
    "message_id": RecordRows.message_id,
    "file": lambda rows: rows.whence.file,
    "file_offset": lambda rows: rows.columns.positions - rows.whence.begin,
}
