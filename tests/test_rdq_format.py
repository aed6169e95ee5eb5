"""The bytes of a store file: one codec, and a scan that nothing in the file can upset."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.msg_store.rdq import rdq_format
from warren.msg_store.rdq.rdq_format import (
    EndReason,
    Record,
    decode_record,
    encode_record,
    file_name,
    file_number,
    in_age_order,
    scan,
    scan_end,
)
from warren.storage.errors import DataError
from warren.storage.filesystem import File
from warren.storage.memory import MemoryFileSystem

A, B, C = (bytes([n]) * 16 for n in (0xA1, 0xB2, 0xC3))

messages = st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.binary(max_size=300)), max_size=12)


def file_of(content: bytes) -> File:
    handle = MemoryFileSystem().open_append("/0.rdq")
    handle.append(content)
    return handle


class CountingFile:
    """Hands out the bytes of a file and remembers how many."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.bytes_read = self.largest_read = 0

    def pread(self, size: int, offset: int) -> bytes:
        data = self._file.pread(size, offset)
        self.bytes_read += len(data)
        self.largest_read = max(self.largest_read, size)
        return data

    def size(self) -> int:
        return self._file.size()


def test_a_record_is_size_id_message_and_0xff() -> None:
    assert encode_record(A, b"hello") == b"\0\0\0\0\0\0\0\x15" + A + b"hello" + b"\xff"


def test_a_scan_says_where_every_record_stands() -> None:
    file = file_of(encode_record(A, b"hello") + encode_record(B, b"") + encode_record(C, b"x" * 100))
    found = scan(file, "0.rdq")
    assert list(found) == [Record(0, 30, A, True), Record(30, 25, B, True), Record(55, 125, C, True)]
    assert found.end == scan_end(file, "0.rdq")
    assert found.end is not None
    assert (found.end.offset, found.end.reason) == (180, EndReason.CLEAN)


def test_a_scan_may_begin_at_any_record() -> None:
    file = file_of(encode_record(A, b"hello") + encode_record(B, b""))
    assert list(scan(file, "0.rdq", start=30)) == [Record(30, 25, B, True)]


def test_an_empty_file_is_clean() -> None:
    assert scan_end(file_of(b""), "0.rdq").reason is EndReason.CLEAN


@pytest.mark.parametrize(
    ("behind", "reason"),
    [
        (bytes(3), EndReason.ZEROS),
        (bytes(4096), EndReason.ZEROS),
        (bytes(8) + encode_record(C, b"behind zeros"), EndReason.ZEROS),
        (b"\0\0\0\0\0\0\0\x0f" + bytes(100), EndReason.TOO_SMALL),
        (b"\0\0\0\1", EndReason.PAST_END),
        (encode_record(C, b"torn")[:-1], EndReason.PAST_END),
        (encode_record(C, b"torn")[:20], EndReason.PAST_END),
        (b"\xff" * 8 + bytes(100), EndReason.PAST_END),
    ],
)
def test_a_scan_stops_at_what_is_no_record(behind: bytes, reason: EndReason) -> None:
    found = scan(file_of(encode_record(A, b"hello") + behind), "0.rdq")
    assert [record.msg_id for record in found] == [A]
    assert found.end is not None
    assert (found.end.offset, found.end.reason, found.end.unread_bytes) == (30, reason, len(behind))


def test_a_record_without_its_marker_is_bad_and_passed_over() -> None:
    torn = encode_record(A, b"hello")[:-1] + b"\0"
    assert [(r.msg_id, r.good) for r in scan(file_of(torn + encode_record(B, b"")), "0.rdq")] == [(A, False), (B, True)]


def test_large_messages_are_passed_over_unread() -> None:
    file = CountingFile(file_of(encode_record(A, bytes(5_000_000)) + encode_record(B, bytes(5_000_000))))
    assert [record.size for record in scan(file, "0.rdq")] == [5_000_025, 5_000_025]  # type: ignore[arg-type]
    assert file.bytes_read < 500_000
    assert file.largest_read <= rdq_format.SCAN_CHUNK_BYTES


@given(messages, st.integers(min_value=24, max_value=400), st.data())
def test_a_cut_file_gives_the_records_before_the_cut(
    contents: list[tuple[bytes, bytes]], chunk_bytes: int, data: st.DataObject
) -> None:
    content = b"".join(encode_record(*item) for item in contents)
    cut = data.draw(st.integers(min_value=0, max_value=len(content)))
    whole, offset = [], 0
    for msg_id, message in contents:
        size = len(message) + 25
        if offset + size > cut:
            break
        whole.append(Record(offset, size, msg_id, True))
        offset += size
    with patch.object(rdq_format, "SCAN_CHUNK_BYTES", chunk_bytes):
        found = scan(file_of(content[:cut]), "0.rdq")
        assert list(found) == whole
    assert found.end is not None
    assert found.end.offset == offset


@given(st.binary(max_size=200) | st.lists(st.sampled_from([0, 16, 17, 255]), max_size=200).map(bytes))
def test_any_bytes_are_scanned_to_an_end(content: bytes) -> None:
    found = scan(file_of(content), "0.rdq")
    records = list(found)
    assert found.end is not None
    assert [r.offset for r in records] + [found.end.offset] == [0] + [r.offset + r.size for r in records]
    assert found.end.offset <= len(content)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (encode_record(A, b"hello")[:-3], "ends 3 bytes before"),
        (b"", "ends 30 bytes before"),
        (encode_record(B, b"hello"), "holds message b2b2"),
        (b"\0\0\0\0\0\0\0\x16" + encode_record(A, b"hello")[8:], "of 31 bytes, not 30"),
        (encode_record(A, b"hello")[:-1] + b"\xfe", "0xFF"),
    ],
)
def test_reading_a_damaged_record_names_file_offset_and_reason(record: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        decode_record(record, A, "7.rdq", 4711, 30)
    assert (caught.value.path, caught.value.offset) == ("7.rdq", 4711)


@given(st.binary(min_size=16, max_size=16), st.binary(max_size=300))
def test_what_was_encoded_is_decoded(msg_id: bytes, message: bytes) -> None:
    record = encode_record(msg_id, message)
    assert decode_record(record, msg_id, "0.rdq", 0, len(record)) == message


def test_files_are_numbered_by_name_and_others_are_not() -> None:
    assert [file_number(name) for name in ("0.rdq", "17.rdq", "0.rdt", "17.rdt")] == [0, 17, -1, -18]
    assert [file_name(number) for number in (0, 17, -1, -18)] == ["0.rdq", "17.rdq", "0.rdt", "17.rdt"]
    for name in ("clean.dot", "x.rdq", ".rdq", "07.rdq", "-1.rdq", "1.rdq.new", "²5.rdq"):
        assert file_number(name) is None


def test_a_leftover_comes_behind_its_file() -> None:
    names = ["10.rdq", "2.rdt", "warren.clean", "2.rdq", "3.rdq"]
    assert [file_name(number) for number in in_age_order(names)] == ["2.rdq", "2.rdt", "3.rdq", "10.rdq"]
