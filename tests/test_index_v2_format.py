"""The bytes of a classic queue's files, version 2, both ways."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from warren.queue_index.index import directory as disk
from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.index.directory import segment_number_v2
from warren.storage.errors import DataError

NUMBERS = st.integers(0, v2.MAX_POSITION // v2.MAX_ENTRIES - 1)


def test_a_header_is_what_the_broker_writes() -> None:
    data = v2.encode_header(v2.INDEX_MAGIC, 2)
    assert data == b"RCQI\x02" + (8192).to_bytes(8, "big") + (12288).to_bytes(8, "big") + bytes(43)
    assert v2.encode_header(v2.STORE_MAGIC, 2) == b"RCQS" + data[4:]


@given(number=NUMBERS, entries=st.integers(1, v2.MAX_ENTRIES), magic=st.sampled_from([v2.INDEX_MAGIC, v2.STORE_MAGIC]))
def test_a_header_comes_back(number: int, entries: int, magic: int) -> None:
    header = v2.decode_header(v2.encode_header(magic, number, entries) + b"rest", magic, "f")
    assert header == v2.SegmentHeader(number * entries, (number + 1) * entries)
    assert header.entry_count(number) == entries
    if number:
        assert header.entry_count(number + 1) is None


@pytest.mark.parametrize(
    ("data", "offset", "reason"),
    [
        (b"", 0, "shorter than a header"),
        (v2.encode_header(v2.INDEX_MAGIC, 0)[:63], 0, "63 bytes"),
        (v2.encode_header(v2.STORE_MAGIC, 0), 0, "begins with 52435153"),
        (b"RCQI\x03" + bytes(59), 4, "version 3"),
    ],
)
def test_what_no_broker_takes_for_a_header(data: bytes, offset: int, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        v2.decode_header(data, v2.INDEX_MAGIC, "n.qi")
    assert (caught.value.path, caught.value.offset) == ("n.qi", offset)


@pytest.mark.parametrize(("first", "end"), [(0, 0), (5, 4), (1, 4097), (0, v2.MAX_ENTRIES + 1), (0, 1 << 63)])
def test_a_range_that_no_segment_0_has(first: int, end: int) -> None:
    assert v2.SegmentHeader(first, end).entry_count(0) is None


def test_an_entry_is_what_the_broker_writes() -> None:
    # of a real 0.qi: position 12, a record of 177 bytes at 8510, 1 byte of payload
    data = bytes.fromhex("01010002000000000000213e000000b10000000000000001000660d93445fb3f")
    (entry,) = v2.decode_entries(data)
    assert (entry["status"], entry["flags"], entry["location"]) == (v2.MESSAGE, v2.PERSISTENT, v2.IN_QUEUE_STORE)
    assert (entry["offset"], entry["length"], entry["size"]) == (8510, 177, 1)
    expiry_us = int(entry["expiry_us"])
    assert v2.encode_entry(record=(8510, 177), size=1, expiry_us=expiry_us) == data


@given(
    place=st.one_of(
        st.none(), st.binary(min_size=16, max_size=16), st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
    ),
    size=st.integers(0, 2**32 - 1),
    expiry_us=st.integers(0, 2**64 - 1),
    persistent=st.booleans(),
    acked=st.booleans(),
)
def test_an_entry_comes_back(
    place: bytes | tuple[int, int] | None, size: int, expiry_us: int, persistent: bool, acked: bool
) -> None:
    its_id, record = (place if isinstance(place, bytes) else None), (place if isinstance(place, tuple) else None)
    data = v2.encode_entry(
        msg_id=its_id, record=record, size=size, expiry_us=expiry_us, persistent=persistent, acked=acked
    )
    (entry,) = v2.decode_entries(data + data[:31])
    assert (entry["status"], entry["flags"], entry["unused"]) == (not acked, persistent, 0)
    assert (entry["size"], entry["expiry_us"]) == (size, expiry_us)
    assert entry["location"] == (0 if place is None else 1 if its_id is not None else 2)
    if its_id is not None:
        assert entry["msg_id"].tobytes() == its_id
    elif record is not None:
        assert (entry["offset"], entry["length"], entry["rest"]) == (*record, 0)


def test_a_record_is_what_the_broker_writes() -> None:
    assert v2.encode_record_v2(b"123456789") == b"\0\0\0\x09\x01\x39\x26\x00" + b"123456789"
    assert v2.encode_record_v2(b"123456789", with_checksum=False) == b"\0\0\0\x09" + bytes(4) + b"123456789"


@given(message=st.binary(max_size=300), with_checksum=st.booleans())
def test_a_record_comes_back(message: bytes, with_checksum: bool) -> None:
    record = v2.encode_record_v2(message, with_checksum=with_checksum)
    assert v2.record_length(record) == len(message)
    assert v2.message_of(record, len(message)) == message
    assert v2.strange_head(record) is None
    (head,) = np.frombuffer(record[: v2.RECORD_HEAD_SIZE], v2.RECORD_HEAD)
    assert (head["length"], head["flags"]) == (len(message), with_checksum)


@given(message=st.binary(max_size=100), data=st.data())
def test_a_record_with_a_flipped_bit_gives_its_message_or_none(message: bytes, data: st.DataObject) -> None:
    record = bytearray(v2.encode_record_v2(message))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    body = bytes(record[v2.RECORD_HEAD_SIZE :])
    assume(body == message or v2.checksum_of(body) != v2.checksum_of(message))  # 16 bits miss one flip in 65,536
    found = v2.message_of(bytes(record), len(message))
    assert isinstance(found, str) or found == message
    if found == message and v2.checksum_of(message):
        assert v2.strange_head(bytes(record)) is not None


@given(message=st.binary(max_size=100), data=st.data())
def test_a_record_of_another_length_gives_nothing(message: bytes, data: st.DataObject) -> None:
    record = v2.encode_record_v2(message)
    cut = data.draw(st.integers(0, len(record) - 1))
    assert isinstance(v2.message_of(record[:cut], len(message)), str)
    assert isinstance(v2.message_of(record + b"x", len(message) + 1), str)


@pytest.mark.parametrize(
    ("name", "number"),
    [("0.qi", 0), ("12.qs", 12), ("01.qi", None), ("x.qi", None), ("1.qx", None), ("1.qi~", None), ("1.idx", None)],
)
def test_names_of_files(name: str, number: int | None) -> None:
    assert segment_number_v2(name) == number


@pytest.mark.parametrize("queue", [b"q", b"", b"INDEX: v2", b"INDEX: v1", b"a\nb", b"q\0\x05", "очередь".encode()])
@pytest.mark.parametrize("index_version", [1, 2])
def test_a_queue_name_file_says_the_version_of_the_index(queue: bytes, index_version: int) -> None:
    data = disk.queue_name_file(b"/", queue, index_version)
    assert disk.parse_queue_name(data, "f") == (b"/", queue, index_version)


@pytest.mark.parametrize("data", [b"", b"VHOST: /\nQUEUE: q", b"VHOST: /\nINDEX: v2\n", b"QUEUE: q\nINDEX: v2\n"])
def test_anything_else_is_no_queue_name_file(data: bytes) -> None:
    with pytest.raises(DataError, match="QUEUE"):
        disk.parse_queue_name(data, "f")
