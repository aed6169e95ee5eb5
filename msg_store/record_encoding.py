"""The bytes that a batch becomes in the CommitLog.

One record is made by :mod:`msg_store.commit_log_format`; the others are copies of its constant bytes, joined to the
bodies and the properties, and the columns that differ are filled in: in place where all records are of one size, else
in a matrix of heads that is cut up before.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from msg_store.body_crcs import body_crcs
from msg_store.commit_log_format import BORN_HOST_V6, STORE_HOST_V6, Record, encode, header_bytes
from msg_store.message_batch import Measured, MessageIllegalError

_FEW: Final = 4
"""Fewer records than this are not worth a column."""
Column = npt.NDArray[Any]


@attrs.frozen
class Place:
    """Where the first of some records goes; the others follow."""

    physical_offset: int
    queue_offset: int
    store_timestamp: int


def head_type(sys_flag: int) -> list[tuple[str, str]]:
    """The fields of a record up to and with its body's length, as numpy knows them."""
    return [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", "V20" if sys_flag & BORN_HOST_V6 else "V8"),
        ("store_timestamp", ">i8"),
        ("store_host", "V20" if sys_flag & STORE_HOST_V6 else "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_size", ">i4"),
    ]


def encode_records(measured: Measured, start: int, stop: int, place: Place) -> bytes | memoryview:
    """The bytes of the ``start``-th to ``stop``-th record of a batch.

    Raises :class:`MessageIllegalError` where a number does not fit into its field.
    """
    try:
        if stop - start < _FEW:
            return _one_by_one(measured, start, stop, place)
        if measured.size is None:
            return _of_many_sizes(measured, start, stop, place)
        return _of_one_size(measured, start, stop, place)
    except (struct.error, OverflowError) as error:
        raise MessageIllegalError(f"{measured.batch.topic}: a number does not fit its field: {error}") from None


def _properties_of(measured: Measured, number: int) -> bytes:
    properties = measured.batch.properties
    return properties if isinstance(properties, bytes) else properties[number]


def _sample(measured: Measured, number: int, place: Place) -> bytes:
    """One record of the batch."""
    batch = measured.batch
    return encode(
        Record(
            topic=batch.topic,
            queue_id=batch.queue_id,
            queue_offset=place.queue_offset,
            physical_offset=place.physical_offset,
            size=0,
            store_timestamp=place.store_timestamp,
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


def _one_by_one(measured: Measured, start: int, stop: int, place: Place) -> bytes:
    records = []
    for number in range(start, stop):
        record = _sample(measured, number, place)
        records.append(record)
        place = attrs.evolve(
            place,
            physical_offset=place.physical_offset + len(record),
            queue_offset=place.queue_offset + measured.batch.is_queued,
        )
    return b"".join(records)


def _fill_places(fields: Column, measured: Measured, start: int, stop: int, place: Place) -> None:
    """The columns that differ wherever the records come from. (Arrays go in faster than single numbers.)"""
    batch, sizes, count = measured.batch, measured.sizes[start:stop], stop - start
    fields["physical_offset"] = begins(place.physical_offset, sizes, measured.size)
    first = place.queue_offset
    fields["queue_offset"] = np.arange(first, first + count) if batch.is_queued else np.full(count, first)
    fields["flag"] = np.full(count, batch.flag) if isinstance(batch.flag, int) else batch.flag[start:stop]
    fields["store_timestamp"] = np.full(count, place.store_timestamp)
    fields["born_timestamp"] = np.full(count, batch.born_timestamp)
    fields["crc"] = body_crcs(batch.bodies[start:stop])


def begins(start: int, sizes: npt.NDArray[np.int32], size: int | None) -> npt.NDArray[np.int64]:
    """Where records begin that lie one behind the other from ``start``; ``size``: of all of them, if it is one."""
    if size is not None:
        return np.arange(start, start + len(sizes) * size, size, dtype=np.int64)
    ends = np.cumsum(sizes, dtype=np.int64)
    return ends + start - sizes


def _of_one_size(measured: Measured, start: int, stop: int, place: Place) -> memoryview:
    batch, count, size = measured.batch, stop - start, measured.sizes[start]
    head_size, record = header_bytes(measured.sys_flag), _sample(measured, start, place)
    head, bodies = record[:head_size], batch.bodies[start:stop]
    if isinstance(batch.properties, bytes):
        # Between two bodies stand the end of one record and the head of the next: so one join makes them all.
        rest = record[head_size + len(bodies[0]) :]
        joined, skipped = bytearray(rest + head).join([b"", *bodies, b""]), len(rest)
    else:
        properties = batch.properties[start:stop]
        between = record[head_size + len(bodies[0]) : len(record) - len(properties[0])]
        pieces = [head] * (4 * count)
        pieces[1::4], pieces[2::4], pieces[3::4] = bodies, [between] * count, properties
        joined, skipped = bytearray().join(pieces), 0
    layout = np.dtype([*head_type(measured.sys_flag), ("rest", f"V{size - head_size}")])
    _fill_places(np.frombuffer(joined, layout, count, skipped), measured, start, stop, place)
    return memoryview(joined)[skipped : skipped + measured.size * count]


def _of_many_sizes(measured: Measured, start: int, stop: int, place: Place) -> bytes:
    batch, count, head_size = measured.batch, stop - start, header_bytes(measured.sys_flag)
    bodies = batch.bodies[start:stop]
    heads = np.empty((count, head_size), np.uint8)
    heads[:] = np.frombuffer(_sample(measured, start, place), np.uint8, head_size)
    fields = heads.view(np.dtype(head_type(measured.sys_flag)))[:, 0]
    _fill_places(fields, measured, start, stop, place)
    fields["size"] = measured.sizes[start:stop]
    fields["body_size"] = list(map(len, bodies))
    octets = heads.tobytes()
    pieces = [b""] * (4 * count)
    pieces[0::4] = [octets[at : at + head_size] for at in range(0, len(octets), head_size)]
    pieces[1::4] = bodies
    topic = bytes((len(measured.topic),)) + measured.topic
    if isinstance(batch.properties, bytes):
        pieces[2::4] = [topic + len(batch.properties).to_bytes(2, "big") + batch.properties] * count
    else:
        properties = batch.properties[start:stop]
        pieces[2::4] = [topic + len(each).to_bytes(2, "big") for each in properties]
        pieces[3::4] = properties
    return b"".join(pieces)
