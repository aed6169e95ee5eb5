"""Records that are checked and not taken apart: the same as the records, up to one that is not sound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import rocketmq_golden as golden
from warren.msg_store.commit_log.commit_log_format import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    Host,
    Record,
    RecordError,
    decode,
    encode,
)
from warren.msg_store.commit_log.packed_records import (
    PackedRecords,
    pack_unchecked,
    packed,
    packed_again,
    sound_records,
)

HOSTS = [Host(bytes((10, 1, 2, 3)), 50123), Host(bytes(range(16)), 1)]


def record_of(body: bytes, properties: bytes, born: int, store: int) -> Record:
    return Record(
        topic="events",
        queue_id=3,
        queue_offset=77,
        physical_offset=1 << 40,
        size=0,
        store_timestamp=2,
        born_timestamp=1,
        born_host=HOSTS[born],
        store_host=HOSTS[store],
        sys_flag=BORN_HOST_V6 * born | STORE_HOST_V6 * store,
        flag=-1,
        reconsume_times=2,
        prepared_transaction_offset=9,
        body_crc=0,
        body=body,
        properties=properties,
    )


def sound(data: bytes, *places: tuple[int, int]) -> PackedRecords:
    """The sound records at these places (offset, size)."""
    starts, sizes = np.array(places, np.int64).reshape(-1, 2).T
    return sound_records(data, starts, sizes)


@pytest.mark.parametrize("scenario", golden.SCENARIOS)
def test_every_record_of_the_real_one_is_packed_as_it_is(scenario: str) -> None:
    size = golden.settings(scenario).mapped_file_size_commit_log
    places: dict[int, list[tuple[int, int]]] = {}
    for line in golden.records(scenario):
        if not line.get("blank"):
            at = line["physicalOffset"] % size
            places.setdefault(line["physicalOffset"] - at, []).append((at, line["totalSize"]))
    for base, found in places.items():
        with open(f"{golden.directory(scenario)}/commitlog/{base:020d}", "rb") as file:
            data = file.read()
        for some in (found, found[::2], found[:1]):  # one after the other; with others between them; alone
            records = sound(data, *some)
            assert len(records) == len(some)
            for row, (at, _) in enumerate(some):
                assert_is(records, row, decode(data, at))


def assert_is(records: PackedRecords, row: int, record: Record) -> None:
    assert records.unpack(row) == record
    assert records.data(row) == encode(record)
    assert (records.bodies[row], records.properties(row)) == (record.body, record.properties)
    assert (records.queue_id(row), records.queue_offsets[row]) == (record.queue_id, record.queue_offset)
    assert records.topic_and_properties(row) == (record.topic, record.properties)
    assert records.store_timestamp(row) == record.store_timestamp


@given(
    st.binary(max_size=60),
    st.binary(max_size=30),
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
    st.data(),
)
def test_damaged_bytes_are_left_out_or_leave_body_and_place_as_they_were(
    body: bytes, properties: bytes, hosts: tuple[int, int], data: st.DataObject
) -> None:
    """Alone, among a few, among many; all of one shape or not, with or without something between them."""
    one = encode(record_of(body, properties, *hosts))
    others = data.draw(st.sampled_from([(0, 0), (0, 1), (1, 0), (0, 30), (30, 0), (15, 15)]))
    between = data.draw(st.integers(0, 40))
    other = one if data.draw(st.booleans()) else encode(record_of(b"another", b"KEYS\x01k", 0, 0))
    line = [other] * others[0] + [one] + [other] * others[1]
    octets, places = bytearray(), []
    for record in line:
        octets += bytes(between)
        places.append((len(octets), len(record)))
        octets += record
    assert len(sound(bytes(octets), *places)) == len(line)
    start, size = places[others[0]]
    octets[data.draw(st.integers(start, start + size - 1))] ^= data.draw(st.integers(1, 255))
    records = sound(bytes(octets), *places)
    assert len(records) in (others[0], len(line))
    assert records.bodies == [decode(record).body for record in line][: len(records)]
    for row, (at, _) in enumerate(places[: len(records)]):
        assert records.unpack(row) == decode(bytes(octets), at)


@given(st.binary(max_size=40), st.integers(0, 200), st.sampled_from([1, 2, 30]))
def test_a_record_that_is_not_all_there_is_left_out(body: bytes, kept: int, count: int) -> None:
    one = encode(record_of(body, b"KEYS\x01k", 0, 0))
    places = [(len(one) * number, len(one)) for number in range(count)]
    ahead = one * (count - 1)
    assert len(sound(ahead + one[:kept], *places)) == count - (kept < len(one))
    places[-1] = (places[-1][0], len(one) - 1)
    assert len(sound(ahead + one, *places)) == count - 1
    if kept < len(one):
        with pytest.raises(RecordError):
            pack_unchecked(one[:kept])


def test_one_record_with_more_behind_it_says_whether_its_body_is_what_was_stored() -> None:
    record = record_of(b"body", b"KEYS\x01k", 0, 0)
    data = encode(record)
    records, is_sound = pack_unchecked(data + b"more")
    assert is_sound
    assert_is(records, 0, decode(data))
    assert not pack_unchecked(data.replace(b"body", b"Body"))[1]


def test_records_that_were_checked_before_are_packed_from_their_bytes() -> None:
    written = [decode(encode(record_of(body, b"", 0, 1))) for body in (b"a", b"", b"ccc")]
    records = packed(*map(encode, written))
    assert records.bodies == [b"a", b"", b"ccc"]
    for row, record in enumerate(written):
        assert_is(records, row, record)
        assert_is(packed_again(record), 0, record)
    assert_is(records.take([2]), 0, written[2])
