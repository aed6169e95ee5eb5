"""The columns of many records at once: every field is gathered from all of them in one step.

Where a record's later fields stand depends on its earlier ones: the widths of its hosts on its flags, its topic on its
body's length. So the fields are gathered one after the other. Where a record turns out not to be good, the bytes at its
begin are taken instead of those that its lengths point at: they are there, and its numbers are not looked at.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from msg_store.body_crcs import crcs_within
from msg_store.columns import ColumnRequest, RecordColumns
from msg_store.commit_log_format import (
    BORN_HOST_V6,
    FIXED_BYTES,
    HEAD_BYTES,
    IPV6_EXTRA_BYTES,
    STORE_HOST_V6,
    head_type,
)
from msg_store.gathering import Ints, Longs, Mask, by_value, gather
from msg_store.property_columns import PropertyRows, read_properties
from storage.java_hash import java_text

_HEAD: Final = np.dtype(head_type(0)[:9])
_LONG: Final = np.dtype(">i8")
_TAIL: Final = np.dtype(head_type(0)[-3:])
_TOPIC_SIZE: Final = np.dtype(">i1")
_PROPERTIES_SIZE: Final = np.dtype(">i2")
_HOST_BYTES: Final = 8

if _HEAD.itemsize != HEAD_BYTES or HEAD_BYTES + 2 * _HOST_BYTES + 8 + _TAIL.itemsize + 3 != FIXED_BYTES:
    raise RuntimeError("the record's columns do not add up")


def gather_columns(data: bytes, base: int, starts: Longs, stop: int, request: ColumnRequest) -> RecordColumns | int:
    """The columns of the records that begin at ``starts`` in ``data``, by their sizes one behind the other up to
    ``stop``; or which of them is the first that is not good. ``data`` begins at the physical offset ``base``."""
    sizes = np.diff(starts, append=stop)
    heads = gather(data, starts, _HEAD)
    sys_flags = heads["sys_flag"].astype(np.int32)
    after_born_host = starts + (HEAD_BYTES + _HOST_BYTES) + _extra(sys_flags, BORN_HOST_V6)
    after_store_host = after_born_host + (_LONG.itemsize + _HOST_BYTES) + _extra(sys_flags, STORE_HOST_V6)
    good = after_store_host + _TAIL.itemsize <= starts + sizes
    tails = gather(data, _believed(after_store_host, good, starts), _TAIL)
    body_starts = after_store_host + _TAIL.itemsize
    body_sizes = np.maximum(tails["body_size"].astype(np.int64), 0)
    topic_starts = body_starts + body_sizes + 1
    good &= topic_starts <= starts + sizes
    topic_sizes = gather(data, _believed(topic_starts - 1, good, starts), _TOPIC_SIZE).astype(np.int64)
    properties_starts = topic_starts + topic_sizes + 2
    good &= (topic_sizes >= 0) & (properties_starts <= starts + sizes)
    properties_sizes = gather(data, _believed(properties_starts - 2, good, starts), _PROPERTIES_SIZE).astype(np.int32)
    properties_sizes = np.maximum(properties_sizes, 0)
    good &= properties_starts + properties_sizes == starts + sizes
    if good.all() and request.check_crc:
        good = _crcs_match(data, body_starts, body_sizes, heads["crc"])
    if not good.all():
        return int(good.argmin())
    topics, topic_of = _topics(data, topic_starts, topic_sizes)
    store_timestamps = gather(data, after_born_host, _LONG).astype(np.int64)
    codes = read_properties(
        PropertyRows(
            data=data,
            starts=properties_starts,
            sizes=properties_sizes,
            topics=topics,
            topic_of=topic_of,
            sys_flags=sys_flags,
            store_timestamps=store_timestamps,
            delay_levels_ms=request.delay_levels_ms,
            with_keys=request.with_keys,
        )
    )
    if codes.bad_row is not None:
        return codes.bad_row
    return RecordColumns(
        start=base + int(starts[0]),
        stop=base + stop,
        positions=base + starts,
        physical_offsets=heads["physical_offset"].astype(np.int64),
        sizes=sizes.astype(np.int32),
        queue_ids=heads["queue_id"].astype(np.int32),
        queue_offsets=heads["queue_offset"].astype(np.int64),
        sys_flags=sys_flags,
        store_timestamps=store_timestamps,
        born_timestamps=heads["born_timestamp"].astype(np.int64),
        reconsume_times=tails["reconsume_times"].astype(np.int32),
        prepared_transaction_offsets=tails["prepared_transaction_offset"].astype(np.int64),
        body_starts=base + body_starts,
        body_sizes=body_sizes.astype(np.int32),
        topics=topics,
        topic_of=topic_of,
        tags_codes=codes.tags_codes,
        key_counts=codes.key_counts,
        key_hashes=codes.key_hashes,
    )


def _extra(sys_flags: Ints, flag: int) -> Longs:
    """What a host takes beyond an IPv4 one."""
    return (sys_flags & flag).astype(np.int64) * (IPV6_EXTRA_BYTES // 4) // (flag // 4)


def _believed(positions: Longs, good: Mask, starts: Longs) -> Longs:
    """Positions to read from: where a record is not good, its begin instead, which is there."""
    return positions if good.all() else np.where(good, positions, starts)


def _crcs_match(data: bytes, body_starts: Longs, body_sizes: Longs, crcs: npt.NDArray[np.uint32]) -> Mask:
    found = crcs_within(data, body_starts.tolist(), (body_starts + body_sizes).tolist())
    matches: Mask = (found == crcs) | (body_sizes == 0)
    return matches


def _topics(data: bytes, starts: Longs, sizes: Longs) -> tuple[tuple[str, ...], Ints]:
    """The distinct topics, and which of them each record has."""
    numbers: dict[str, int] = {}
    topic_of = np.empty(len(starts), np.int32)
    for size, where in by_value(sizes):
        if not size:
            topic_of[where] = numbers.setdefault("", len(numbers))
            continue
        rows = gather(data, starts[where], np.dtype((np.bytes_, size)))
        if (rows == rows[0]).all():
            rows = rows[:1]
        listed = rows.tolist()
        distinct = {row: java_text(row.ljust(size, b"\0")) for row in set(listed)}
        of_row = {row: numbers.setdefault(topic, len(numbers)) for row, topic in distinct.items()}
        topic_of[where] = [of_row[row] for row in listed]
    return tuple(numbers), topic_of
