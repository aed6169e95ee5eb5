"""Rows that are to be appended to topics, staged by tasks as Arrow files until the driver appends all of them.

A task takes what a user's frame has, checks each row as far as that can be done without the node, and encodes it, so
that no row can cause a failure once appending has begun. A file is written by one run of one task, under a unique name;
only those count whose :class:`Staged` came to the driver.

======================  ==============================================================================================
``body``                binary or string; required
``topic``               string; without one, the row's topic is the option ``topic``
``keys``                string (keys with blanks between them) or array of strings
``tags``                string
``properties``          map of strings
``queue_id``            whole number; without one a message's first key chooses, or it is the next queue's turn
``delay_level``         whole number, 1 to 18; 0 or null: at once
======================  ==============================================================================================
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegralType, MapType, StringType, StructType

from warren.actors.engines.topics.names import check_user_topic
from warren.arrow.arrays import schema_of
from warren.msg_store.commit_log.commit_log_format import FIXED_BYTES, MAX_PROPERTIES_BYTES
from warren.storage.errors import WarrenError
from warren.storage.filesystem import RealFileSystem
from warren.tables.pipeline_errors import PipelineError
from warren.values.topic_record import encode_message_properties

WRITE_PROPERTY: Final = "WARREN_WRITE"
"""A property of each message written under an epoch: ``query/epoch/row``, by which a retry recognises it."""

RESERVE_BYTES: Final = 512
"""Bytes of a message's properties that are reserved for that one, and for those that a delay adds."""

SCHEMA: Final = schema_of("topic string, queue_id int, key string, delay_level int, body binary, properties binary")
"""The columns of a staged file; ``key`` chooses the queue, ``properties`` are as they are stored."""

_MOST_LEVEL: Final = 18
_MOST_QUEUE_ID: Final = (1 << 31) - 1


@attrs.frozen
class Staged(WriterCommitMessage):
    """What a task reports to the driver."""

    partition: int
    directory: str
    path: str | None
    """The path of its file; ``None`` if it had no row."""
    rows: int
    query: str | None
    """The name of the query; ``None``: a write without a name, which is not repeated."""
    queue_ids: Mapping[str, int]
    """By topic: the highest queue id that was named, -1 without."""
    largest_bytes: int
    """The size of the largest message, with everything around it."""


def check_columns(schema: StructType, *, has_topic: bool) -> None:
    """Raise :class:`PipelineError` unless rows of this schema can be appended."""
    for field in schema.fields:
        if field.name not in _ALLOWED:
            raise PipelineError(f"a topic has no column {field.name!r}; it has {', '.join(_ALLOWED)}")
        if not any(_fits(field.dataType, kind) for kind in _ALLOWED[field.name]):
            kinds = " or ".join(map(_type_name, _ALLOWED[field.name]))
            raise PipelineError(f"the column {field.name} is {field.dataType.simpleString()}, and not {kinds}")
    if "body" not in schema.names:
        raise PipelineError("to be written to a topic, a frame needs a column body")
    if not has_topic and "topic" not in schema.names:
        raise PipelineError("which topic: option topic, or a column topic")


_STRING: Final = StringType()
_ALLOWED: Final[dict[str, tuple[Any, ...]]] = {
    "body": (BinaryType(), _STRING),
    "topic": (_STRING,),
    "keys": (_STRING, ArrayType(_STRING)),
    "tags": (_STRING,),
    "properties": (MapType(_STRING, _STRING),),
    "queue_id": (IntegralType,),
    "delay_level": (IntegralType,),
}


def _fits(data_type: DataType, kind: Any) -> bool:
    if isinstance(kind, type):
        return isinstance(data_type, kind)
    return bool(data_type.simpleString() == kind.simpleString())  # whether nulls are allowed does not matter


def _type_name(kind: Any) -> str:
    return "a whole number" if isinstance(kind, type) else str(kind.simpleString())


# ── in a task ────────────────────────────────────────────────────────────────────────────────────────────────────────


def stage(
    batches: Iterable[pa.RecordBatch],
    directory: str,
    *,
    partition: int,
    query: str | None,
    topic: str | None,
    sync: bool,
) -> Staged:
    """Write the rows to a new file in ``directory``; raises :class:`PipelineError` for one that cannot be appended.

    ``topic``: of rows that name none. ``sync``: the file is to outlive a power loss.
    """
    path = os.path.join(directory, f"{partition:06d}-{uuid.uuid4().hex}.arrow")
    rows = largest = 0
    queue_ids: dict[str, int] = {}
    try:
        os.makedirs(directory, exist_ok=True)
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for batch in batches:
                encoded = _encoded(batch, topic, rows, queue_ids)
                writer.write_batch(encoded)
                rows += encoded.num_rows
                largest = max(largest, _largest(encoded))
        if rows and sync:
            files = RealFileSystem()
            with closing(files.open_read(path)) as handle:
                handle.sync()
            files.sync_directory(directory)
    except OSError as error:
        _remove(path)
        raise PipelineError(f"{path}: {error.strerror or error}") from error
    except BaseException:
        _remove(path)
        raise
    if not rows:
        _remove(path)
    return Staged(partition, directory, path if rows else None, rows, query, queue_ids, largest)


def _encoded(batch: pa.RecordBatch, topic: str | None, first: int, queue_ids: dict[str, int]) -> pa.RecordBatch:
    columns = {name: batch.column(name) for name in batch.schema.names}
    nulls = [None] * batch.num_rows

    def values(name: str) -> list[Any]:
        return columns[name].to_pylist() if name in columns else nulls

    body = columns["body"].cast(pa.binary())
    topics = [topic if row_topic is None else row_topic for row_topic in values("topic")]
    row_queue_ids = values("queue_id")
    keys, levels, properties = [], values("delay_level"), []
    maps, tags = values("properties"), values("tags")
    for row, row_keys in enumerate(values("keys")):
        try:
            split = _keys(row_keys)
            keys.append(split[0] if split else None)
            properties.append(_properties(split, tags[row], maps[row]))
            name = _checked(topics[row], row_queue_ids[row], levels[row])
        except WarrenError as error:
            raise PipelineError(f"row {first + row} of its partition: {error}") from error
        queue_ids[name] = max(queue_ids.get(name, -1), -1 if row_queue_ids[row] is None else row_queue_ids[row])
    if body.null_count:
        row = first + body.is_null().index(True).as_py()
        raise PipelineError(f"row {row} of its partition: its body is null")
    arrays = [
        pa.array(topics, pa.string()),
        pa.array(row_queue_ids, pa.int32()),
        pa.array(keys, pa.string()),
        pa.array(levels, pa.int32()),
        body,
        pa.array(properties, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _keys(keys: str | list[str] | None) -> list[str]:
    return (keys or "").split() if keys is None or isinstance(keys, str) else keys


def _properties(keys: list[str], tag: str | None, properties: Any) -> bytes:
    if not keys and tag is None and not properties:
        return b""
    user_properties = {name: value for name, value in properties or () if name != WRITE_PROPERTY}
    encoded = encode_message_properties(keys or None, tag, user_properties)
    if len(encoded) > MAX_PROPERTIES_BYTES - RESERVE_BYTES:
        raise PipelineError(f"{len(encoded)} bytes of properties; {MAX_PROPERTIES_BYTES - RESERVE_BYTES} at most")
    return encoded


def _checked(topic: str | None, queue_id: int | None, level: int | None) -> str:
    """Check all three, and return the topic."""
    if topic is None:
        raise PipelineError("it has no topic")
    check_user_topic(topic)
    if queue_id is not None and not 0 <= queue_id <= _MOST_QUEUE_ID:
        raise PipelineError(f"there is no queue {queue_id}")
    if level is not None and not 0 <= level <= _MOST_LEVEL:
        raise PipelineError(f"there is no delay level {level}")
    return topic


def _largest(encoded: pa.RecordBatch) -> int:
    sizes = (
        size
        for columns in zip(*(encoded.column(name).to_pylist() for name in ("body", "properties", "topic")), strict=True)
        if (size := sum(map(len, columns)))
    )
    return max(sizes, default=0) + FIXED_BYTES + RESERVE_BYTES


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


# ── in the driver ────────────────────────────────────────────────────────────────────────────────────────────────────

_CHUNK_ROWS: Final = 1024
_CHUNK_BYTES: Final = 4 << 20


def chunks(paths: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """The rows of staged files in order, some at a time. Raises :class:`PipelineError` for a file that is gone."""
    for path in paths:
        try:
            with pa.memory_map(path) as source:
                reader = pa.ipc.open_file(source)
                for number in range(reader.num_record_batches):
                    yield from _cut(reader.get_batch(number))
        except (OSError, pa.ArrowInvalid) as error:
            raise PipelineError(f"{path}: a staged file cannot be read: {error}") from error


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, min(_CHUNK_ROWS, batch.num_rows * _CHUNK_BYTES // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
