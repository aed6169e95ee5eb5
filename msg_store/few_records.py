"""The columns of a few records, made one by one: a message that is dispatched alone need not pay for arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from msg_store.columns import ColumnRequest, RecordColumns
from msg_store.commit_log_format import (
    ROLLBACK,
    SCHEDULE_TOPIC,
    Record,
    RecordError,
    decode,
    decode_properties,
    header_bytes,
)
from msg_store.property_entries import KEY_SEPARATOR, KEYS, TAGS, UNIQUE_KEY
from msg_store.record_check import delivery_time
from storage.java_hash import index_hash, java_hash

MOST_FEW_RECORDS: Final = 16
"""One costs about 20 µs here; all at once cost 300 µs, and next to nothing each."""

_TAGS, _KEYS, _UNIQUE_KEY, _KEY_SEPARATOR = (name.decode() for name in (TAGS, KEYS, UNIQUE_KEY, KEY_SEPARATOR))


def columns_of_few(
    data: bytes, base: int, starts: Sequence[int], stop: int, request: ColumnRequest
) -> RecordColumns | int:
    """As :func:`msg_store.many_records.gather_columns`."""
    lines: list[tuple[int, ...]] = []
    hashes: list[int] = []
    topics: dict[str, int] = {}
    for number, start in enumerate(starts):
        try:
            record = decode(data, start)
            if request.check_crc and not record.crc_ok:
                return number
            code, keys = _codes(record, request)
        except RecordError:
            return number
        hashes += keys
        topic = topics.setdefault(record.topic, len(topics))
        lines.append(
            (base + start, base + start + header_bytes(record.sys_flag), *_numbers(record), topic, code, len(keys))
        )
    longs = np.array(lines, np.int64).T
    ints = longs.astype(np.int32)
    return RecordColumns(
        start=base + starts[0],
        stop=base + stop,
        positions=longs[0],
        body_starts=longs[1],
        body_sizes=ints[2],
        physical_offsets=longs[3],
        sizes=ints[4],
        queue_ids=ints[5],
        queue_offsets=longs[6],
        sys_flags=ints[7],
        store_timestamps=longs[8],
        born_timestamps=longs[9],
        reconsume_times=ints[10],
        prepared_transaction_offsets=longs[11],
        topics=tuple(topics),
        topic_of=ints[12],
        tags_codes=longs[13],
        key_counts=ints[14],
        key_hashes=np.array(hashes, np.int32),
    )


def _numbers(record: Record) -> tuple[int, ...]:
    return (
        len(record.body),
        record.physical_offset,
        record.size,
        record.queue_id,
        record.queue_offset,
        record.sys_flag,
        record.store_timestamp,
        record.born_timestamp,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )


def _codes(record: Record, request: ColumnRequest) -> tuple[int, list[int]]:
    """The tags code and the key hashes; raises :class:`RecordError`."""
    properties = decode_properties(record.properties)
    code = None
    if record.topic == SCHEDULE_TOPIC:
        code = delivery_time(record.properties, record.store_timestamp, request.delay_levels_ms)
    if code is None:
        code = java_hash(properties.get(_TAGS, ""))
    if not request.with_keys or record.transaction_type == ROLLBACK:
        return code, []
    keys = [properties.get(_UNIQUE_KEY, ""), *properties.get(_KEYS, "").split(_KEY_SEPARATOR)]
    return code, [index_hash(f"{record.topic}#{key}") for key in keys if key]
