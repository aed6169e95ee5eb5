"""A record that is stored once more, in another topic: what of it stays, and how its properties change.

Retries, delayed messages and transactions all work so: a message waits in a topic of the store's own, and its
properties say where it belongs. Body, flag, born time and both hosts go with it. Properties keep their bytes and their
order, because RocketMQ's could not be rebuilt; a property that is set goes to the end and replaces one of its name.
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
    """Stored properties with some of them set; raises :class:`RecordError` for names and values that cannot be."""
    return _each_with_properties((raw,), changes)[0]


def all_with_properties(properties: bytes | Sequence[bytes], changes: Mapping[str, str]) -> bytes | list[bytes]:
    """The same for a batch's properties: those of all, or those of each."""
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
        kept = [part for part in raw.split(PROPERTY_SEPARATOR) if part.partition(NAME_VALUE_SEPARATOR)[0] not in names]
        if kept and not kept[-1]:
            kept.pop()  # a separator at the end, as some writers have it; or there are no properties
        kept.append(added)
        changed.append(PROPERTY_SEPARATOR.join(kept))
    return changed


def copy_of(record: Record, *, topic: str, queue_id: int, properties: bytes, sys_flag: int | None = None) -> Batch:
    """The record as it is appended to another topic. It has been in no transaction, unless the caller says so."""
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
    said = decode_properties(record.properties) if properties is None else properties
    topic, queue_id = said.get(REAL_TOPIC), said.get(REAL_QUEUE_ID, "")
    if topic is None or not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= _MOST_DIGITS):
        raise RecordError(
            f"the record at physical offset {record.physical_offset} (topic {record.topic!r}) does not say where it"
            f" belongs: {REAL_TOPIC} {topic!r:.200}, {REAL_QUEUE_ID} {queue_id!r:.50}"
        )
    return topic, int(queue_id)


_MOST_DIGITS = 9
"""Of a queue's number: it fits into a record's 32 bits."""


def merged(batches: Sequence[Batch]) -> list[Batch]:
    """The same messages in the same order, in fewer batches: neighbours that share all but bodies and properties."""
    runs = [list(run) for _, run in itertools.groupby(batches, _common)]
    return [run[0] if len(run) == 1 else _one_batch(run) for run in runs]


def _common(batch: Batch) -> Batch:
    return attrs.evolve(batch, bodies=(), properties=b"", as_one=False)


def _one_batch(run: Sequence[Batch]) -> Batch:
    bodies = [body for batch in run for body in batch.bodies]
    each: list[bytes] = []
    for batch in run:
        own = batch.properties
        each += [own] * len(batch.bodies) if isinstance(own, bytes) else own
    return attrs.evolve(run[0], bodies=bodies, properties=each, as_one=False)
