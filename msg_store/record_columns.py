"""Good records of the CommitLog by columns: what dispatch, recovery, rebuild and scans ask of millions of them.

:func:`read_columns` walks one file (or the part of it that the log fills) in windows. Neighbouring good records come
as one :class:`RecordColumns`; between them stand the :class:`Blank` at the end of a file and every :class:`Failure`.

In a window the records are first found by their sizes alone (a stretch of equal ones in a few steps), then every field
is gathered from all of them at once, and the sums of the field lengths are compared with the sizes. From the first
record that is not good on, all that was gathered is dropped: :mod:`msg_store.record_check` says what that one is.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from msg_store.commit_log_format import (
    BORN_HOST_V6,
    FIXED_BYTES,
    HEAD_BYTES,
    IPV6_EXTRA_BYTES,
    MESSAGE_MAGIC,
    STORE_HOST_V6,
    Blank,
)
from msg_store.gathering import Ints, Longs, Mask, by_value, gather
from msg_store.property_columns import PropertyRows, read_properties
from msg_store.record_check import Failure, Outline, Read, check

__all__ = ["Blank", "Failure", "RecordColumns", "read_columns"]

WINDOW_BYTES: Final = 4 << 20
"""Read at once; a record that is longer is read as a whole."""

_HEAD: Final = np.dtype(
    [
        ("size", ">u4"),
        ("magic", ">u4"),
        ("crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
    ]
)
_LONG: Final = np.dtype(">i8")
_TAIL: Final = np.dtype([("reconsume_times", ">i4"), ("prepared", ">i8"), ("body_size", ">i4")])
_TOPIC_SIZE: Final = np.dtype(">i1")
_PROPERTIES_SIZE: Final = np.dtype(">i2")
_HOST_BYTES: Final = 8
_START = struct.Struct(">II")

if _HEAD.itemsize != HEAD_BYTES or HEAD_BYTES + 2 * _HOST_BYTES + 8 + _TAIL.itemsize + 3 != FIXED_BYTES:
    raise RuntimeError("the record's columns do not add up")

_REACH_BEHIND_FAILURE_BYTES: Final = 4096
"""Looked at behind a failure, and twice as much whenever that was good: among failures nothing is gathered in vain."""
_STRETCH: Final = 8
"""So many records of one size, and a longer stretch of them is looked for."""


@attrs.frozen(kw_only=True, eq=False)
class RecordColumns:
    """``n`` ≥ 1 good records that lie one behind the other, by columns of ``n`` numbers. Times in milliseconds."""

    start: int
    """The physical offset of the first."""
    stop: int
    """The physical offset behind the last."""
    positions: Longs
    """Physical offsets where each lies."""
    physical_offsets: Longs
    """As the records say; that is what is dispatched."""
    sizes: Ints
    queue_ids: Ints
    queue_offsets: Longs
    sys_flags: Ints
    store_timestamps: Longs
    born_timestamps: Longs
    reconsume_times: Ints
    prepared_transaction_offsets: Longs
    body_starts: Longs
    """Physical offsets of the bodies, seen from :attr:`positions`."""
    body_sizes: Ints
    topics: tuple[str, ...]
    """Distinct."""
    topic_of: Ints
    """Where in :attr:`topics` each one's topic stands."""
    tags_codes: Longs
    """What a ConsumeQueue entry keeps: the hash of the tags, 0 without; of a scheduled message when it is due."""
    key_counts: Ints
    """Keys that each puts into the index; none for a rollback, and none without ``with_keys``."""
    key_hashes: Ints
    """The index hashes of all these keys, in the order of putting."""

    def __len__(self) -> int:
        return len(self.positions)


def read_columns(
    read: Read,
    start: int,
    end: int,
    *,
    check_crc: bool = False,
    delay_levels_ms: tuple[int, ...] = (),
    with_keys: bool = True,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[RecordColumns | Blank | Failure]:
    """What lies in one file from ``start`` (where a record begins) on; ``end``: of the file, or of the log in it.

    Nothing behind ``end`` is read or believed. The walk is over behind a blank record, behind a failure that names no
    ``resume_at``, and at ``end``: neither of these two comes last then. With ``check_crc`` a body whose sum is wrong is
    a failure. Memory: a window, or the longest good record.
    """
    request = _Request(check_crc=check_crc, delay_levels_ms=delay_levels_ms, with_keys=with_keys)
    window = _Window(read, start, read(start, min(window_bytes, end - start)) if start < end else b"")
    at, reach = start, window_bytes
    while at < end:
        columns = _scan(window, at, min(at + reach, window.stop, end), request)
        if columns is not None:
            yield columns
            at = columns.stop
            reach *= 2
            continue
        found = check(window.read, at, end, check_crc=check_crc)
        if isinstance(found, Outline):
            if at + found.size <= min(at + reach, window.stop):
                raise RuntimeError(f"the record at {at} is good, and not good by columns")
            reach = max(reach, found.size)
            if at + found.size <= window.stop:
                continue
            window = _Window(read, at, read(at, min(max(window_bytes, found.size), end - at)))
            if len(window.data) >= found.size:
                continue
            found = Failure(at, "its bytes cannot be read", None)
        yield found
        if isinstance(found, Blank) or found.resume_at is None:
            return
        at = found.resume_at
        reach = _REACH_BEHIND_FAILURE_BYTES


@attrs.frozen
class _Window:
    """Bytes at hand; others are read when asked for."""

    source: Read
    base: int
    data: bytes

    @property
    def stop(self) -> int:
        return self.base + len(self.data)

    def read(self, at: int, size: int) -> bytes:
        if self.base <= at and at + size <= self.stop:
            return self.data[at - self.base : at - self.base + size]
        return self.source(at, size)


@attrs.frozen(kw_only=True)
class _Request:
    """What is asked of every window."""

    check_crc: bool
    delay_levels_ms: tuple[int, ...]
    with_keys: bool


def _scan(window: _Window, at: int, stop: int, request: _Request) -> RecordColumns | None:
    """The good records from ``at`` on that end at ``stop`` or before; ``None`` without any."""
    starts, stop = _walk(window.data, at - window.base, stop - window.base)
    while len(starts):
        found = _gather_columns(window, starts, stop, request)
        if isinstance(found, RecordColumns):
            return found
        starts, stop = starts[:found], int(starts[found])
    return None


def _walk(data: bytes, at: int, limit: int) -> tuple[Longs, int]:
    """Where records begin, by their sizes alone, and where the last of them ends: at ``limit`` or before."""
    parts: list[Longs] = []
    single: list[int] = []
    previous = alike = 0
    last, unpack, add = limit - FIXED_BYTES, _START.unpack_from, single.append
    while at <= last:
        size, magic = unpack(data, at)
        if magic != MESSAGE_MAGIC or size < FIXED_BYTES or size > limit - at:
            break
        add(at)
        at += size
        if size != previous:
            previous = size
            alike = 0
            continue
        alike += 1
        if alike == _STRETCH:
            alike = 0
            count = _stretch(data, at, size, limit)
            if count:
                parts += [np.array(single, np.int64), at + size * np.arange(count)]
                single.clear()
                at += size * count
    return np.concatenate([*parts, np.array(single, np.int64)]), at


def _stretch(data: bytes, at: int, size: int, limit: int) -> int:
    """How many records from ``at`` on begin like the one before it: with that size, and a message's magic."""
    most = (limit - at) // size
    begins: Longs = np.ndarray((most,), np.int64, data, at, (size,)) if most else np.empty(0, np.int64)
    like = int.from_bytes(data[at - size : at - size + 8], sys.byteorder, signed=True)
    done, step = 0, 64
    while done < most:
        alike = begins[done : done + step] == like
        if not alike.all():
            return done + int(alike.argmin())
        done += len(alike)
        step *= 8
    return most


def _gather_columns(window: _Window, starts: Longs, stop: int, request: _Request) -> RecordColumns | int:
    """The columns of the records that begin at ``starts``; or which of them is the first that is not good."""
    data = window.data
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
        start=window.base + int(starts[0]),
        stop=window.base + stop,
        positions=window.base + starts,
        physical_offsets=heads["physical_offset"].astype(np.int64),
        sizes=sizes.astype(np.int32),
        queue_ids=heads["queue_id"].astype(np.int32),
        queue_offsets=heads["queue_offset"].astype(np.int64),
        sys_flags=sys_flags,
        store_timestamps=store_timestamps,
        born_timestamps=heads["born_timestamp"].astype(np.int64),
        reconsume_times=tails["reconsume_times"].astype(np.int32),
        prepared_transaction_offsets=tails["prepared"].astype(np.int64),
        body_starts=window.base + body_starts,
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
    view = memoryview(data)
    stops = (body_starts + body_sizes).tolist()
    actual = [zlib.crc32(view[start:stop]) for start, stop in zip(body_starts.tolist(), stops, strict=True)]
    matches: Mask = (np.array(actual, np.int64) & 0x7FFFFFFF == crcs) | (body_sizes == 0)
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
        distinct = {row: row.ljust(size, b"\0").decode("utf-8", "replace") for row in set(listed)}
        of_row = {row: numbers.setdefault(topic, len(numbers)) for row, topic in distinct.items()}
        topic_of[where] = [of_row[row] for row in listed]
    return tuple(numbers), topic_of
