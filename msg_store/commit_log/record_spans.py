"""From bytes to a table of spans: where records lie in a buffer, and where the parts of each of them lie.

There are two steps. :func:`record_starts` follows the records from each to the next by their sizes alone. Then
:meth:`RecordSpans.locate` looks at what those sizes claim, and keeps the records up to the first that is not good: one
whose fields do not add up to its size. :mod:`warren.msg_store.commit_log.record_check` finds what such a record is, and
where the next one begins.

Where a record's later fields lie depends on its earlier ones: the widths of its hosts on its flags, its topic on the
length of its body. So these lengths are gathered one after the other, each from all records at once. A run of records
that have all lengths in common (*uniform* ones, as one producer writes them) is recognised by a strided read of each
length, and all further reading of it is strided too. Measured on windows of 1 MiB: 15 ns for each of 4,161 uniform
records, 78 ns for each of 2,762 whose sizes vary.

A single record (a lookup, a message that is dispatched alone) is no table here: its lengths are unpacked one by one
(:func:`warren.msg_store.commit_log.commit_log_format.locate`). That takes 1 µs a record, and the table of 17 records
takes 67 µs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, Self

import attrs
import numpy as np
import numpy.typing as npt

from warren.msg_store.commit_log.commit_log_format import (
    BORN_HOST_V6,
    FIXED_BYTES,
    HEAD_BYTES,
    HOST_BYTES,
    IPV6_EXTRA_BYTES,
    MAGIC_AT,
    MESSAGE_MAGIC_V2,
    MESSAGE_MAGICS,
    SCHEDULE_TOPIC,
    STORE_HOST_V6,
    SYS_FLAG_AT,
    Located,
    RecordError,
    header_bytes,
    locate,
)
from warren.storage.columns import Ints, Longs, Mask, equal_run, every, gather

_START = struct.Struct(">II")
_INT: Final = np.dtype(">i4")
_LONG: Final = np.dtype(">i8")
_MAGIC: Final = np.dtype(">u4")
_TOPIC_SIZE: Final = np.dtype(">i1")
_TOPIC_SIZE_V2: Final = np.dtype(">i2")
_PROPERTIES_SIZE: Final = np.dtype(">i2")

_RUN: Final = 8
"""After this many records of one size, a longer run is searched for."""


def record_starts(data: bytes, at: int, limit: int) -> tuple[Longs, int]:
    """Return where records begin, by their sizes alone, and where the last one ends: at or before ``limit``."""
    parts: list[Longs] = []
    single: list[int] = []
    previous = equal = 0
    last, unpack, add = limit - FIXED_BYTES, _START.unpack_from, single.append
    while at <= last:
        size, magic = unpack(data, at)
        if magic not in MESSAGE_MAGICS or size < FIXED_BYTES or size > limit - at:
            break
        add(at)
        at += size
        if size != previous:
            previous = size
            equal = 0
            continue
        equal += 1
        if equal == _RUN:
            equal = 0
            count = equal_run(data, at, size, limit)
            if count:
                parts += [np.array(single, np.int64), at + size * np.arange(count)]
                single.clear()
                at += size * count
    return np.concatenate([*parts, np.array(single, np.int64)]), at


@attrs.frozen(eq=False, repr=False)
class RecordSpans:
    """Good records in a buffer, and where their parts lie in it; the columns have a number for each record."""

    data: bytes
    base: int
    """The physical offset of the first byte of ``data``."""
    starts: Longs
    sizes: Longs
    sys_flags: Ints
    body_starts: Longs
    body_sizes: Longs
    """A negative length counts as none, here and of properties."""
    topic_starts: Longs
    properties_starts: Longs
    """After their length; the topic ends before it."""
    is_uniform: bool
    """Whether they are consecutive, with all sizes equal, including those of their parts."""

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def locate(cls, data: bytes, base: int, starts: Longs, stop: int) -> Self:
        """Locate the records at ``starts``, which are consecutive by their sizes and end at ``stop``; keep those before
        the first that is not good."""
        sizes = np.empty_like(starts)
        sizes[:-1] = starts[1:] - starts[:-1]
        sizes[-1] = stop - starts[-1]
        return cls.of_sizes(data, base, starts, sizes)

    @classmethod
    def of_sizes(cls, data: bytes, base: int, starts: Longs, sizes: Longs) -> Self:
        """The same of records at ``starts``, ascending, that lie in ``data`` and may have something between them."""
        return cls._uniform(data, base, starts, sizes) or cls._any(data, base, starts, sizes)

    @classmethod
    def of(cls, data: bytes, base: int, starts: Sequence[int], located: Sequence[Located]) -> Self:
        """Make spans of records that were located one by one."""
        lines = np.array(located, np.int64)
        sizes, _, _, _, sys_flags, body_starts, body_sizes, topic_starts, properties_starts = lines.T
        return cls(
            data,
            base,
            np.array(starts, np.int64),
            sizes,
            sys_flags.astype(np.int32),
            body_starts,
            body_sizes,
            topic_starts,
            properties_starts,
            is_uniform=len(located) == 1,
        )

    @classmethod
    def _uniform(cls, data: bytes, base: int, starts: Longs, sizes: Longs) -> Self | None:
        """All of them, if they are uniform and good."""
        if not (sizes == sizes[0]).all():
            return None
        start, size, count = int(starts[0]), int(sizes[0]), len(starts)
        if int(starts[-1]) - start != size * (count - 1):
            return None
        try:
            _, _, _, _, sys_flag, body_start, body_size, topic_start, properties_start = locate(data, start)
        except RecordError:
            return None
        lengths = (
            (start + MAGIC_AT, _MAGIC),
            (start + SYS_FLAG_AT, _INT),
            (body_start - _INT.itemsize, _INT),
            (topic_start - _TOPIC_SIZE.itemsize, _TOPIC_SIZE),
            (properties_start - _PROPERTIES_SIZE.itemsize, _PROPERTIES_SIZE),
        )
        for at, kind in lengths:
            column = every(data, at, size, count, kind.newbyteorder("="))  # whether they are equal is asked faster so
            if not (column == column[0]).all():
                return None
        ahead = starts - start
        return cls(
            data,
            base,
            starts,
            sizes,
            np.full(count, sys_flag, np.int32),
            ahead + body_start,
            np.full(count, body_size, np.int64),
            ahead + topic_start,
            ahead + properties_start,
            is_uniform=True,
        )

    @classmethod
    def _any(cls, data: bytes, base: int, starts: Longs, sizes: Longs) -> Self:
        """Those before the first that is not good."""
        stops = starts + sizes
        sys_flags = gather(data, starts + SYS_FLAG_AT, _INT).astype(np.int32)
        body_starts = starts + _header_bytes(sys_flags)
        good = body_starts <= stops
        body_sizes = gather(data, _believed(body_starts - _INT.itemsize, good, starts), _INT).astype(np.int64)
        body_sizes = np.maximum(body_sizes, 0)
        is_v2 = gather(data, starts + MAGIC_AT, _MAGIC) == MESSAGE_MAGIC_V2
        topic_starts = body_starts + body_sizes + _TOPIC_SIZE.itemsize + is_v2
        good &= topic_starts <= stops
        topic_sizes = gather(data, _believed(topic_starts - _TOPIC_SIZE.itemsize, good, starts), _TOPIC_SIZE)
        if is_v2.any():
            wide = gather(data, _believed(topic_starts - _TOPIC_SIZE_V2.itemsize, good, starts), _TOPIC_SIZE_V2)
            topic_sizes = np.where(is_v2, wide, topic_sizes)
        properties_starts = topic_starts + topic_sizes + _PROPERTIES_SIZE.itemsize
        good &= (topic_sizes >= 0) & (properties_starts <= stops)
        ahead = _believed(properties_starts - _PROPERTIES_SIZE.itemsize, good, starts)
        good &= properties_starts + np.maximum(gather(data, ahead, _PROPERTIES_SIZE), 0) == stops
        spans = cls(
            data,
            base,
            starts,
            sizes,
            sys_flags,
            body_starts,
            body_sizes,
            topic_starts,
            properties_starts,
            is_uniform=False,
        )
        return spans if good.all() else spans.take(slice(int(good.argmin())))

    def take(self, rows: slice | Longs) -> Self:
        """Some of them."""
        whole = isinstance(rows, slice) and rows.step in (None, 1)
        return attrs.evolve(
            self,
            starts=self.starts[rows],
            sizes=self.sizes[rows],
            sys_flags=self.sys_flags[rows],
            body_starts=self.body_starts[rows],
            body_sizes=self.body_sizes[rows],
            topic_starts=self.topic_starts[rows],
            properties_starts=self.properties_starts[rows],
            is_uniform=self.is_uniform and whole,
        )

    @property
    def stop(self) -> int:
        """The physical offset after the last record."""
        return self.base + int(self.starts[-1] + self.sizes[-1])

    @property
    def topic_sizes(self) -> Longs:
        return self.properties_starts - _PROPERTIES_SIZE.itemsize - self.topic_starts

    def may_be_scheduled(self) -> bool:
        """Whether one of them, by the length of its topic, may be a scheduled message."""
        sample = self.take(slice(1)) if self.is_uniform else self
        return bool((sample.topic_sizes == len(SCHEDULE_TOPIC)).any())

    @property
    def properties_sizes(self) -> Longs:
        return self.starts + self.sizes - self.properties_starts

    def read(self, positions: Longs, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An item of each record, at a position that depends on nothing but the sizes of its parts."""
        if self.is_uniform:
            return every(self.data, int(positions[0]), int(self.sizes[0]), len(positions), dtype)
        return gather(self.data, positions, dtype)

    def store_timestamps(self) -> Longs:
        """In milliseconds since 1970."""
        after_host = HEAD_BYTES + HOST_BYTES
        if self.is_uniform:
            after_host += IPV6_EXTRA_BYTES * bool(int(self.sys_flags[0]) & BORN_HOST_V6)
            return every(self.data, int(self.starts[0]) + after_host, int(self.sizes[0]), len(self), _LONG).astype(
                np.int64
            )
        return gather(self.data, self.starts + after_host + _extra(self.sys_flags, BORN_HOST_V6), _LONG).astype(
            np.int64
        )

    def bodies(self) -> list[bytes]:
        """Every body as an object of its own."""
        if self.is_uniform and self.body_sizes[0]:
            bodies: list[bytes] = self.read(self.body_starts, np.dtype(f"V{self.body_sizes[0]}")).tolist()
            return bodies
        starts, stops = self.body_starts.tolist(), (self.body_starts + self.body_sizes).tolist()
        return [self.data[start:stop] for start, stop in zip(starts, stops, strict=True)]


def _believed(positions: Longs, good: Mask, starts: Longs) -> Longs:
    """Return positions that are safe to read from: for a record that is not good, its beginning instead."""
    return positions if good.all() else np.where(good, positions, starts)


def _header_bytes(sys_flags: Ints) -> Longs | int:
    return header_bytes(0) + _extra(sys_flags, BORN_HOST_V6) + _extra(sys_flags, STORE_HOST_V6)


def _extra(sys_flags: Ints, flag: int) -> Longs | int:
    """What a host takes beyond an IPv4 one."""
    if not (sys_flags & flag).any():
        return 0
    return (sys_flags & flag).astype(np.int64) * (IPV6_EXTRA_BYTES // 4) // (flag // 4)
