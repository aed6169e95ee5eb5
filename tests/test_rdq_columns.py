"""The scan of a store file by columns finds what the scan record by record finds, whatever the file holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.msg_store.rdq.rdq_columns import MOST_RECORD_BYTES, ColumnScan, RdqColumns
from warren.msg_store.rdq.rdq_format import Record, encode_record, scan
from warren.storage.filesystem import File
from warren.storage.memory import MemoryFileSystem

ids = st.binary(min_size=16, max_size=16)
records = st.builds(
    lambda msg_id, message, repeats: encode_record(msg_id, message) * repeats,
    ids,
    st.binary(max_size=60) | st.integers(0, 3000).map(bytes),
    st.sampled_from([1, 1, 1, 2, 30]),
)
damage = st.sampled_from([b"", bytes(7), bytes(40), b"\0\0\0\0\0\0\0\x0f" + bytes(30), b"\xff" * 40, b"\0\0\0\0\0\0\1"])


def file_of(content: bytes) -> File:
    handle = MemoryFileSystem().open_append("/0.rdq")
    handle.append(content)
    return handle


def rows(found: RdqColumns) -> list[Record]:
    columns = (found.offsets.tolist(), found.sizes.tolist(), found.msg_ids, found.good.tolist())
    return [Record(at, size, msg_id.tobytes(), good) for at, size, msg_id, good in zip(*columns, strict=True)]


def check_against_scan(content: bytes, window_bytes: int, *, with_messages: bool) -> None:
    file = file_of(content)
    expected = scan(file, "0.rdq")
    found = ColumnScan(file, "0.rdq", window_bytes=window_bytes, with_messages=with_messages)
    got = []
    for columns in found:
        assert len(columns)
        got += rows(columns)
        if with_messages or columns.has_messages:
            for row, start, size in zip(rows(columns), columns.message_starts, columns.message_sizes, strict=True):
                message = columns.data[start : start + size]
                assert message == content[row.offset + 24 : row.offset + row.size - 1]
    assert got == list(expected)
    assert found.end == expected.end


@given(st.lists(records, max_size=8), damage, st.integers(1, 5000), st.booleans(), st.data())
def test_both_scans_find_the_same(
    parts: list[bytes], behind: bytes, window_bytes: int, with_messages: bool, data: st.DataObject
) -> None:
    content = b"".join(parts) + behind
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, max(len(content) - 1, 0)))
        content = content[:at] + data.draw(st.sampled_from([b"\0", b"\xff", b"\x10", b""])) + content[at + 1 :]
    check_against_scan(content, window_bytes, with_messages=with_messages)


@given(st.binary(max_size=300), st.integers(1, 100))
def test_both_scans_find_the_same_in_any_bytes(content: bytes, window_bytes: int) -> None:
    check_against_scan(content, window_bytes, with_messages=True)


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_torn_end_is_the_same_end(cut: int) -> None:
    content = encode_record(b"a" * 16, bytes(100)) * 100
    check_against_scan(content[:-cut], 4096, with_messages=True)


def test_long_messages_that_are_not_asked_for_are_not_read() -> None:
    class Counting:
        def __init__(self, file: File) -> None:
            self.file, self.bytes_read, self.size = file, 0, file.size

        def pread(self, size: int, offset: int) -> bytes:
            data = self.file.pread(size, offset)
            self.bytes_read += len(data)
            return data

    for body_bytes, count in ((3_000_000, 3), (4_200, 1_000)):
        file = Counting(file_of(encode_record(b"a" * 16, bytes(body_bytes)) * count))
        found = list(ColumnScan(file, "0.rdq", window_bytes=1 << 16))  # type: ignore[arg-type]
        assert [row.size for columns in found for row in rows(columns)] == [body_bytes + 25] * count
        assert not any(columns.has_messages for columns in found[1:])
        assert file.bytes_read < 300_000


def test_long_and_short_messages_in_turn_are_the_same_as_in_a_scan() -> None:
    sizes = [5_000, 5_000, 10, 3_000, *[20] * 50, *[2_000] * 40, 999_999, 10, 1_500]
    content = b"".join(encode_record(bytes([size % 251]) * 16, bytes(size)) for size in sizes)
    for damaged in (content, content[:-700], content[:6_000] + b"\0" + content[6_001:], content + bytes(40)):
        for window_bytes in (1, 4096, 1 << 20):
            check_against_scan(damaged, window_bytes, with_messages=False)


def test_a_size_that_no_message_has_is_not_read() -> None:
    class Sparse:
        """Two gibibytes that claim to be one record."""

        largest = 0

        def size(self) -> int:
            return 2 * MOST_RECORD_BYTES

        def pread(self, size: int, offset: int) -> bytes:
            self.largest = max(self.largest, size)
            begin = (2 * MOST_RECORD_BYTES - 9).to_bytes(8, "big")
            return (begin + bytes(size))[:size] if offset == 0 else b"\xff" * min(size, self.size() - offset)

    file = Sparse()
    (found,) = ColumnScan(file, "0.rdq", window_bytes=1 << 16, with_messages=True)  # type: ignore[arg-type]
    assert rows(found) == [Record(0, 2 * MOST_RECORD_BYTES, bytes(16), True)]
    assert not found.has_messages
    assert file.largest <= 1 << 16
