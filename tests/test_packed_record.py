"""A record that is checked and not taken apart: the same as the record, or an error, whatever the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import rocketmq_golden as golden
from warren.msg_store.commit_log_format import BORN_HOST_V6, STORE_HOST_V6, Host, Record, RecordError, decode, encode
from warren.msg_store.packed_record import pack

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


@pytest.mark.parametrize("scenario", golden.SCENARIOS)
def test_every_record_of_the_real_one_is_packed_as_it_is(scenario: str) -> None:
    size = golden.settings(scenario).mapped_file_size_commit_log
    for line in golden.records(scenario):
        if line.get("blank"):
            continue
        base, at = line["physicalOffset"] - line["physicalOffset"] % size, line["physicalOffset"] % size
        with open(f"{golden.directory(scenario)}/commitlog/{base:020d}", "rb") as file:
            file.seek(at)
            data = file.read(line["totalSize"])
        packed, record = pack(memoryview(data), 0, len(data)), decode(data)
        assert packed.unpack() == record
        assert (packed.body, packed.properties) == (record.body, record.properties)
        assert (packed.queue_id, packed.queue_offset) == (record.queue_id, record.queue_offset)


@given(
    st.binary(max_size=60),
    st.binary(max_size=30),
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
    st.integers(0, 40),
    st.data(),
)
def test_damaged_bytes_are_an_error_or_leave_body_and_place_as_they_were(
    body: bytes, properties: bytes, hosts: tuple[int, int], ahead: int, data: st.DataObject
) -> None:
    sound = encode(record_of(body, properties, *hosts))
    octets = bytearray(bytes(ahead) + sound)
    assert pack(memoryview(octets), ahead, len(sound)).unpack() == decode(sound)
    at = data.draw(st.integers(ahead, len(octets) - 1))
    octets[at] ^= data.draw(st.integers(1, 255))
    try:
        packed = pack(memoryview(octets), ahead, len(sound))
    except RecordError:
        return
    assert packed.body == body
    assert packed.unpack() == decode(bytes(octets), ahead)


@given(st.binary(max_size=40), st.integers(0, 200))
def test_a_record_that_is_not_all_there_is_an_error(body: bytes, kept: int) -> None:
    sound = encode(record_of(body, b"KEYS\x01k", 0, 0))
    if kept < len(sound):
        with pytest.raises(RecordError):
            pack(memoryview(sound[:kept]), 0, len(sound))
    with pytest.raises(RecordError):
        pack(memoryview(sound), 0, len(sound) - 1)
