"""The bytes that a batch becomes in the CommitLog.

Records of one size are rows of a matrix: their constant bytes stay in it, warm in the cache, from batch to batch, and
only the columns that differ are filled in. Of records of many sizes the heads are made so, and the rest is joined to
them piece by piece. The layout itself is :mod:`warren.msg_store.commit_log.commit_log_format`'s, which makes the sample
that is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.msg_store.commit_log.body_crcs import body_crcs
from warren.msg_store.commit_log.commit_log_format import Record, encode, head_type, header_bytes
from warren.msg_store.commit_log.message_batch import Measured, MessageIllegalError

_FEW: Final = 4
"""Fewer records than this are not worth a matrix."""
_KEPT_BYTES: Final = 1 << 20
"""A matrix above this is not kept: it would not stay in the cache, and cost memory."""
_CACHED_TEMPLATES: Final = 8
"""Topics and queues whose matrices are kept at a time."""

Column = npt.NDArray[Any]


@attrs.frozen
class AppendPosition:
    """Where the first of some records goes; the others follow."""

    physical_offset: int
    queue_offset: int
    store_timestamp: int


class RecordEncoder:
    """Makes records. Not thread-safe: the matrices that it keeps are refilled each time."""

    __slots__ = ("_matrices",)

    def __init__(self) -> None:
        self._matrices: dict[tuple[object, ...], _RecordMatrix] = {}

    def encode(self, measured: Measured, start: int, stop: int, position: AppendPosition) -> bytes | memoryview:
        """The bytes of the ``start``-th to ``stop``-th record of a batch, to be used before the next call.

        Raises :class:`MessageIllegalError` if a number does not fit into its field.
        """
        try:
            if stop - start < _FEW:
                return _one_by_one(measured, start, stop, position)
            if measured.size is None:
                return _joined(measured, start, stop, position)
            rows = self._rows(measured, stop - start)
            return rows.fill(measured, start, stop, position)
        except (struct.error, OverflowError) as error:
            raise MessageIllegalError(f"{measured.batch.topic}: a number does not fit its field: {error}") from None

    def _rows(self, measured: Measured, count: int) -> _RecordMatrix:
        batch = measured.batch
        common = batch.properties if isinstance(batch.properties, bytes) else None
        properties_size = len(_properties_of(measured, 0))
        hosts = batch.born_host.packed + batch.store_host.packed
        numbers = (batch.queue_id, batch.reconsume_times, batch.prepared_transaction_offset)
        template = (measured.topic, measured.size, measured.sys_flag, hosts, common, properties_size, *numbers)
        rows = self._matrices.get(template)
        if rows is None or rows.room < count:
            rows = _RecordMatrix(measured, count, vary_properties=common is None)
            if rows.is_worth_keeping:
                if len(self._matrices) >= _CACHED_TEMPLATES:
                    del self._matrices[next(iter(self._matrices))]
                self._matrices[template] = rows
        return rows


def _properties_of(measured: Measured, number: int) -> bytes:
    properties = measured.batch.properties
    return properties if isinstance(properties, bytes) else properties[number]


def _sample(measured: Measured, number: int, position: AppendPosition) -> bytes:
    """One record of the batch."""
    batch = measured.batch
    return encode(
        Record(
            topic=batch.topic,
            queue_id=batch.queue_id,
            queue_offset=position.queue_offset,
            physical_offset=position.physical_offset,
            size=0,
            store_timestamp=position.store_timestamp,
            born_timestamp=batch.born_timestamp,
            born_host=batch.born_host,
            store_host=batch.store_host,
            sys_flag=measured.sys_flag,
            flag=batch.flag if isinstance(batch.flag, int) else batch.flag[number],
            reconsume_times=batch.reconsume_times,
            prepared_transaction_offset=batch.prepared_transaction_offset,
            body_crc=0,
            body=batch.bodies[number],
            properties=_properties_of(measured, number),
        )
    )


def _one_by_one(measured: Measured, start: int, stop: int, position: AppendPosition) -> bytes:
    records = []
    for number in range(start, stop):
        record = _sample(measured, number, position)
        records.append(record)
        position = attrs.evolve(
            position,
            physical_offset=position.physical_offset + len(record),
            queue_offset=position.queue_offset + measured.batch.is_queued,
        )
    return b"".join(records)


def _fill_positions(fields: Column, measured: Measured, start: int, stop: int, position: AppendPosition) -> None:
    """The columns that differ wherever the records come from. (Arrays go in faster than single numbers.)"""
    batch, sizes, count = measured.batch, measured.sizes[start:stop], stop - start
    fields["physical_offset"] = begins(position.physical_offset, sizes, measured.size)
    first = position.queue_offset
    fields["queue_offset"] = np.arange(first, first + count) if batch.is_queued else np.full(count, first)
    fields["flag"] = np.full(count, batch.flag) if isinstance(batch.flag, int) else batch.flag[start:stop]
    fields["store_timestamp"] = np.full(count, position.store_timestamp)
    fields["born_timestamp"] = np.full(count, batch.born_timestamp)
    fields["crc"] = body_crcs(batch.bodies[start:stop])


def begins(start: int, sizes: npt.NDArray[np.int32], size: int | None) -> npt.NDArray[np.int64]:
    """Return where consecutive records begin, from ``start`` on; ``size``: the common size, if there is one."""
    if size is not None:
        return np.arange(start, start + len(sizes) * size, size, dtype=np.int64)
    ends = np.cumsum(sizes, dtype=np.int64)
    return ends + start - sizes


class _RecordMatrix:
    """A matrix of records of one template, and views of the columns in which they differ."""

    __slots__ = ("_fields", "_matrix", "room")

    def __init__(self, measured: Measured, room: int, *, vary_properties: bool) -> None:
        sample = _sample(measured, 0, AppendPosition(0, 0, 0))
        body_size = len(measured.batch.bodies[0])
        properties_size = len(_properties_of(measured, 0)) if vary_properties else 0
        rest = len(sample) - header_bytes(measured.sys_flag) - body_size - properties_size
        parts = [("body", f"V{body_size}"), ("rest", f"V{rest}"), ("properties", f"V{properties_size}")]
        layout = np.dtype([*head_type(measured.sys_flag), *(part for part in parts if part[1] != "V0")])
        self.room = room
        self._matrix = np.empty((room, len(sample)), np.uint8)
        self._matrix[:] = np.frombuffer(sample, np.uint8)
        self._fields = self._matrix.view(layout)[:, 0]

    @property
    def is_worth_keeping(self) -> bool:
        return self._matrix.nbytes <= _KEPT_BYTES

    def fill(self, measured: Measured, start: int, stop: int, position: AppendPosition) -> memoryview:
        count, batch = stop - start, measured.batch
        fields = self._fields[:count]
        _fill_positions(fields, measured, start, stop, position)
        self._fill_bytes(fields, "body", batch.bodies[start:stop])
        if not isinstance(batch.properties, bytes):
            self._fill_bytes(fields, "properties", batch.properties[start:stop])
        return self._matrix[:count].reshape(-1).data

    @staticmethod
    def _fill_bytes(fields: Column, name: str, strings: Sequence[bytes]) -> None:
        names = fields.dtype.names
        if names is not None and name in names:
            column = fields[name]
            column[:] = np.frombuffer(b"".join(strings), column.dtype)


def _joined(measured: Measured, start: int, stop: int, position: AppendPosition) -> bytes:
    """Records of different sizes: heads from a matrix, the rest joined to them."""
    batch, head_size = measured.batch, header_bytes(measured.sys_flag)
    bodies = batch.bodies[start:stop]
    heads = np.empty((stop - start, head_size), np.uint8)
    heads[:] = np.frombuffer(_sample(measured, start, position), np.uint8, head_size)
    fields = heads.view(np.dtype(head_type(measured.sys_flag)))[:, 0]
    _fill_positions(fields, measured, start, stop, position)
    fields["size"] = measured.sizes[start:stop]
    fields["body_size"] = list(map(len, bodies))
    octets = heads.tobytes()
    slices = [octets[at : at + head_size] for at in range(0, len(octets), head_size)]
    topic = bytes((len(measured.topic),)) + measured.topic
    if isinstance(batch.properties, bytes):
        rest = topic + len(batch.properties).to_bytes(2, "big") + batch.properties
        return b"".join(chain.from_iterable(zip(slices, bodies, [rest] * len(slices), strict=True)))
    properties = batch.properties[start:stop]
    rests = [topic + len(encoded).to_bytes(2, "big") for encoded in properties]
    return b"".join(chain.from_iterable(zip(slices, bodies, rests, properties, strict=True)))
