"""Typed store files: the messages between holes are found, and what no broker writes ends the scan at its offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sqs_writer import HEADER, hole, sqs, stored
from warren.msg_store.rdq import sqs_format
from warren.msg_store.rdq.rdq_columns import MOST_RECORD_BYTES, ColumnScan
from warren.msg_store.rdq.rdq_format import EndReason, Record, file_name, file_number, in_age_order
from warren.msg_store.rdq.store_reader import StoreReader
from warren.storage.errors import DataError
from warren.storage.filesystem import File
from warren.storage.memory import MemoryFileSystem

A, B, C = (bytes([letter]) * 16 for letter in b"abc")
ONE = stored(A, b"hello")
END = 64 + len(ONE)

Found = tuple[list[tuple[Record, bytes | None]], tuple[int, EndReason]]


def file_of(content: bytes) -> File:
    handle = MemoryFileSystem().open_append("/0.sqs")
    handle.append(content)
    return handle


def scanned(content: bytes, *, window_bytes: int = 4096, with_messages: bool = True) -> Found:
    """The records with their messages, if those were read, and where and why the scan stopped."""
    scan = ColumnScan(file_of(content), "0.sqs", window_bytes=window_bytes, with_messages=with_messages)
    rows: list[tuple[Record, bytes | None]] = []
    for columns in scan:
        assert len(columns)
        for record, start, size in zip(columns.records(), columns.message_starts, columns.message_sizes, strict=True):
            rows.append((record, columns.data[start : start + size] if columns.has_messages else None))
    end = scan.finish()
    assert end.file_size == len(content)
    return rows, (end.offset, end.reason)


def messages(content: bytes) -> list[tuple[bytes, bytes | None]]:
    return [(record.msg_id, message) for record, message in scanned(content)[0]]


def test_the_codec_is_the_format() -> None:
    assert sqs_format.FILE_HEADER == HEADER
    assert sqs_format.encode_record(A, b"hello") == ONE == bytes.fromhex("030000001a") + A + b"hello"
    assert [sqs_format.encode_hole(size) for size in range(1, 300)] == [hole(size) for size in range(1, 300)]
    assert hole(4) == b"\1\1\1\1"
    assert hole(6) == b"\2\0\0\0\6\0"
    assert sqs_format.decode_stored(ONE, A, "1.sqs", 64, len(ONE)) == b"hello"


@pytest.mark.parametrize("size", [*range(1, 8), 21, 5000])
def test_messages_before_and_after_a_hole_are_found(size: int) -> None:
    content = sqs(hole(size), stored(A, b"first"), hole(size), stored(B, b""), stored(C, b"c"), hole(size))
    for window_bytes in (21, 30, 4096):
        rows, end = scanned(content, window_bytes=window_bytes)
        assert [(row.msg_id, message) for row, message in rows] == [(A, b"first"), (B, b""), (C, b"c")]
        assert end == (len(content), EndReason.CLEAN)


@pytest.mark.parametrize("content", [b"", HEADER, HEADER + hole(4), HEADER + hole(9)])
def test_a_file_without_messages_ends_cleanly(content: bytes) -> None:
    assert scanned(content) == ([], (len(content), EndReason.CLEAN))


CORRUPTIONS = {
    "type 0": (bytes(100), 0, EndReason.NO_TYPE),
    "type 4": (b"\4" + ONE[1:], 0, EndReason.NO_TYPE),
    "a type in the last byte": (b"\xff", 0, EndReason.NO_TYPE),
    "a hole of 4 bytes": (b"\2\0\0\0\4" + ONE, 0, EndReason.TOO_SMALL),
    "a hole of no bytes": (b"\2\0\0\0\0" + ONE, 0, EndReason.TOO_SMALL),
    "a message of 20 bytes": (b"\3\0\0\0\x14" + bytes(15), 0, EndReason.TOO_SMALL),
    "two holes": (hole(9) + hole(9) + ONE, 9, EndReason.TWO_HOLES),
    "a small hole after a hole": (hole(9) + hole(1) + ONE, 9, EndReason.TWO_HOLES),
    "a hole after a small hole": (hole(3) + hole(9) + ONE, 3, EndReason.TWO_HOLES),
    "a torn hole after a hole": (hole(5) + b"\2\xff", 5, EndReason.TWO_HOLES),
    "five bytes of small holes": (b"\1" * 5 + ONE, 0, EndReason.LONG_RUN),
    "small holes without end": (b"\1" * 5000, 0, EndReason.LONG_RUN),
    "a torn size": (b"\3\0\0", 0, EndReason.PAST_END),
    "a torn hole": (hole(50)[:-1], 0, EndReason.PAST_END),
    "a hole of 4 GB": (b"\2\xff\xff\xff\xff" + ONE, 0, EndReason.PAST_END),
    "a message of 4 GB": (b"\3\xff\xff\xff\xff" + ONE, 0, EndReason.PAST_END),
}


@pytest.mark.parametrize("situation", CORRUPTIONS)
def test_what_no_broker_writes_ends_the_scan_there(situation: str) -> None:
    damage, at, reason = CORRUPTIONS[situation]
    for window_bytes in (21, 33, 4096):
        for with_messages in (False, True):
            rows, end = scanned(sqs(ONE, damage), window_bytes=window_bytes, with_messages=with_messages)
            assert [row for row, _ in rows] == [Record(64, len(ONE), A, True)]
            assert end == (END + at, reason)


@pytest.mark.parametrize("cut", range(1, len(ONE)))
def test_a_torn_last_record_is_dropped(cut: int) -> None:
    rows, end = scanned(sqs(ONE, stored(B, b"hello"))[:-cut])
    assert [row.msg_id for row, _ in rows] == [A]
    assert end == (END, EndReason.PAST_END)


@pytest.mark.parametrize("size", [1, 5, 63])
def test_a_torn_header_is_told(size: int) -> None:
    assert scanned(HEADER[:size]) == ([], (0, EndReason.SHORT_HEADER))


def test_the_header_is_not_checked() -> None:
    assert messages(b"?" * 64 + ONE) == [(A, b"hello")]


def test_messages_longer_than_a_window_are_read() -> None:
    long = bytes(range(256)) * 40
    content = sqs(stored(A, long), hole(3), stored(B, long), stored(C, b"short"), hole(9000), stored(A, long))
    for window_bytes in (1, 100, 4096, 1 << 20):
        rows, end = scanned(content, window_bytes=window_bytes)
        assert [message for _, message in rows] == [long, long, b"short", long]
        assert end == (len(content), EndReason.CLEAN)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 1, 2, 3, 4, 5, 21, 40, 2000]) | st.integers(0, 90),
            st.binary(min_size=16, max_size=16),
            st.binary(max_size=60) | st.integers(0, 3000).map(bytes),
        ),
        max_size=30,
    ),
    st.integers(0, 9),
    st.integers(1, 5000),
    st.booleans(),
)
def test_any_messages_and_holes_come_back(
    records: list[tuple[int, bytes, bytes]], last_hole: int, window_bytes: int, with_messages: bool
) -> None:
    content, expected = HEADER, []
    for hole_bytes, msg_id, message in records:
        content += hole(hole_bytes)
        expected.append((Record(len(content), 21 + len(message), msg_id, True), message if with_messages else None))
        content += stored(msg_id, message)
    content += hole(last_hole)
    found = scanned(content, window_bytes=window_bytes, with_messages=with_messages)
    assert found == (expected, (len(content), EndReason.CLEAN))


@given(
    st.lists(st.sampled_from([ONE, stored(B, bytes(3000)), *map(hole, (1, 4, 5, 2000)), b"\0", b"\3"]), max_size=20),
    st.integers(1, 5000),
)
def test_the_scan_does_not_depend_on_the_window(parts: list[bytes], window_bytes: int) -> None:
    content = sqs(*parts)
    rows, end = scanned(content, window_bytes=1 << 20)
    assert scanned(content, window_bytes=window_bytes) == (rows, end)
    records, without_messages = (
        [row for row, _ in rows],
        scanned(content, window_bytes=window_bytes, with_messages=False),
    )
    assert ([row for row, _ in without_messages[0]], without_messages[1]) == (records, end)


class Counting:
    """A file that counts what is read of it."""

    def __init__(self, file: File) -> None:
        self.file, self.bytes_read, self.largest, self.size = file, 0, 0, file.size

    def pread(self, size: int, offset: int) -> bytes:
        data = self.file.pread(size, offset)
        self.bytes_read += len(data)
        self.largest = max(self.largest, size)
        return data


def test_long_messages_that_are_not_asked_for_are_not_read() -> None:
    file = Counting(file_of(sqs(*[stored(A, bytes(4200))] * 10_000)))
    scan = ColumnScan(file, "0.sqs", window_bytes=1 << 16)  # type: ignore[arg-type]
    assert sum(len(columns) for columns in scan) == 10_000
    assert file.bytes_read < 300_000


def test_a_message_of_a_gigabyte_and_more_is_not_read() -> None:
    class Sparse:
        largest = 0

        def size(self) -> int:
            return 2 * MOST_RECORD_BYTES

        def pread(self, size: int, offset: int) -> bytes:
            self.largest = max(self.largest, size)
            return (b"\3" + (self.size() - 64).to_bytes(4, "big")).ljust(size, b"\0") if offset == 64 else bytes(size)

    file = Sparse()
    (columns,) = ColumnScan(file, "0.sqs", window_bytes=1 << 16, with_messages=True)  # type: ignore[arg-type]
    assert list(columns.records()) == [Record(64, 2 * MOST_RECORD_BYTES - 64, bytes(16), True)]
    assert not columns.has_messages
    assert file.largest <= 1 << 16


def test_a_file_that_is_cut_under_the_scan_ends() -> None:
    class Shrinking:
        def size(self) -> int:
            return 10_000

        def pread(self, size: int, offset: int) -> bytes:
            return sqs(ONE)[offset : offset + size]

    for with_messages in (False, True):
        scan = ColumnScan(Shrinking(), "0.sqs", window_bytes=1, with_messages=with_messages)  # type: ignore[arg-type]
        assert [record for columns in scan for record in columns.records()] == [Record(64, len(ONE), A, True)]
        assert (scan.finish().offset, scan.finish().reason) == (END, EndReason.PAST_END)


# ── a store of both formats ──────────────────────────────────────────────────────────────────────────────────────────


def test_typed_files_are_numbered_after_all_others() -> None:
    names = ["0.sqs", "3.sqs", "2.rdt", "2.rdq", "10.rdq", f"{(1 << 30) - 1}.rdq", f"{(1 << 30) - 1}.sqs"]
    ordered = ["2.rdq", "2.rdt", "10.rdq", f"{(1 << 30) - 1}.rdq", "0.sqs", "3.sqs", f"{(1 << 30) - 1}.sqs"]
    assert [file_name(number) for number in in_age_order(names)] == ordered
    assert all(-(1 << 31) <= number < 1 << 31 for number in in_age_order(names)), "columns of places have four bytes"
    for name in ("01.sqs", ".sqs", "-1.sqs", "x.sqs", f"{1 << 30}.sqs", f"{1 << 30}.rdq", f"{1 << 30}.rdt"):
        assert file_number(name) is None


def store_of(**files: bytes) -> StoreReader:
    system = MemoryFileSystem()
    system.make_directories("/store")
    for name, content in files.items():
        system.open_append(f"/store/{name.strip('_').replace('_', '.')}").append(content)
    return StoreReader.open(system, "/store")


def test_a_message_that_stands_twice_is_read_once() -> None:
    store = store_of(_5_sqs=sqs(stored(B, b"moved"), hole(2), ONE, stored(B, b"moved")))
    assert (len(store), store.read(A), store.read(B)) == (2, b"hello", b"moved")
    assert [record.msg_id for _, record in store.records()] == [B, A, B]
    assert store.unreadable == []


def test_what_stands_after_damage_is_not_searched() -> None:
    store = store_of(_5_sqs=sqs(ONE, b"\0", stored(B, b"lost")))
    assert (store.contains(A), store.contains(B), store.has_all_needed()) == (True, False, True)
    (error,) = store.unreadable
    assert (error.path, error.offset) == ("/store/5.sqs", END)
    assert "a type that no record has; 26 bytes cannot be read" in str(error)


def test_a_record_that_changed_after_the_scan_is_damage() -> None:
    system = MemoryFileSystem()
    system.make_directories("/store")
    file = system.open_append("/store/1.sqs")
    file.append(sqs(ONE, stored(B, b"b")))
    for at, data in ((64, b"\2"), (66, b"\1"), (70, b"z")):
        store = StoreReader.open(system, "/store")
        file.pwrite(data, at)
        with pytest.raises(DataError, match=rf"1\.sqs, offset 64: not a record of 26 bytes with message {A.hex()}"):
            store.read(A)
        assert store.read(B) == b"b"
        file.pwrite(ONE, 64)
    file.truncate(END - 1)
    with pytest.raises(DataError, match="not a record of 26 bytes"):
        store.read(A)
