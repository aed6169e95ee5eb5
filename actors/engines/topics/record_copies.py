"""Copies of records in another topic: what stays the same, and how the properties change.

Retries, delayed messages and transactions all work this way: a message waits in a topic of the store's own, and its
properties name its real topic. Body, flag, born time and both hosts are copied. Properties keep their bytes and their
order, because RocketMQ's could not be rebuilt; a new property goes to the end and replaces one of the same name.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import attrs

from warren.actors.engines.topics.names import REAL_QUEUE_ID, REAL_TOPIC
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import (
    BORN_HOST_V6,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    STORE_HOST_V6,
    Record,
    RecordError,
    decode_properties,
    encode_properties,
)


def with_properties(raw: bytes, changes: Mapping[str, str]) -> bytes:
    """Set some of the stored properties; raises :class:`RecordError` for invalid names and values."""
    return _each_with_properties((raw,), changes)[0]


def all_with_properties(properties: bytes | Sequence[bytes], changes: Mapping[str, str]) -> bytes | list[bytes]:
    """The same for a batch: properties that all messages share, or those of each message."""
    if isinstance(properties, bytes):
        return with_properties(properties, changes)
    return _each_with_properties(properties, changes)


def _each_with_properties(column: Sequence[bytes], changes: Mapping[str, str]) -> list[bytes]:
    if not changes:
        return list(column)
    names = {name.encode("utf-8") for name in changes}
    added = encode_properties(dict(changes))
    changed = []
    for raw in column:
        parts = [part for part in raw.split(PROPERTY_SEPARATOR) if part.partition(NAME_VALUE_SEPARATOR)[0] not in names]
        if parts and not parts[-1]:
            parts.pop()  # a separator at the end, as some writers have it; or there are no properties
        parts.append(added)
        changed.append(PROPERTY_SEPARATOR.join(parts))
    return changed


def copy_of(record: Record, *, topic: str, queue_id: int, properties: bytes, sys_flag: int | None = None) -> Batch:
    """Return a copy of the record for another topic. It belongs to no transaction, unless ``sys_flag`` says so."""
    flags = record.sys_flag if sys_flag is None else sys_flag
    return Batch(
        topic=topic,
        queue_id=queue_id,
        bodies=(record.body,),
        properties=properties,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_host=record.store_host,
        sys_flag=flags & ~(BORN_HOST_V6 | STORE_HOST_V6),
        flag=record.flag,
        reconsume_times=record.reconsume_times,
    )


def real_place(record: Record, properties: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Return the topic and queue_id of a waiting message. Raises :class:`RecordError` if it does not name them."""
    decoded = decode_properties(record.properties) if properties is None else properties
    topic, queue_id = decoded.get(REAL_TOPIC), decoded.get(REAL_QUEUE_ID, "")
    if topic is None or not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= _MOST_DIGITS):
        raise RecordError(
            f"the record at physical offset {record.physical_offset} (topic {record.topic!r}) does not say where it"
            f" belongs: {REAL_TOPIC} {topic!r:.200}, {REAL_QUEUE_ID} {queue_id!r:.50}"
        )
    return topic, int(queue_id)


_MOST_DIGITS = 9
"""The most digits of a queue_id, which fits into a record's 32 bits."""


def merged(batches: Sequence[Batch]) -> list[Batch]:
    """Merge neighbouring batches that differ only in bodies and properties."""
    runs = [list(run) for _, run in itertools.groupby(batches, _common)]
    return [run[0] if len(run) == 1 else _one_batch(run) for run in runs]


def _common(batch: Batch) -> Batch:
    return attrs.evolve(batch, bodies=(), properties=b"", as_one=False)


def _one_batch(run: Sequence[Batch]) -> Batch:
    bodies = [body for batch in run for body in batch.bodies]
    properties: list[bytes] = []
    for batch in run:
        batch_properties = batch.properties
        properties += (
            [batch_properties] * len(batch.bodies) if isinstance(batch_properties, bytes) else batch_properties
        )
    return attrs.evolve(run[0], bodies=bodies, properties=properties, as_one=False)
