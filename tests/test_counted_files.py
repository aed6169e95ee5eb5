"""Files that count: whom they charge, what they take of the disk, and what of real memory.

What they promise as files, every file system does: test_filesystem.py.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zlib_ng import zlib_ng

from warren.storage import packed_content
from warren.storage.counted import CountedFileSystem, DiskAccount
from warren.storage.packed_content import BLOCK_BYTES, PackedContent, PlainBlocks


def test_what_is_done_is_charged_to_the_one_whose_turn_it_is() -> None:
    files, mine, nested = CountedFileSystem(), DiskAccount(), DiskAccount()
    with files.charging(mine):
        handle = files.open_append("/f")
        handle.append(b"abcd")
        with files.charging(nested):
            handle.pread(3, 0)
            files.read("/f")
        handle.sync()
        files.sync_directory("/")
    assert attrs.astuple(mine) == (0, 0, 1, 4, 2)
    assert attrs.astuple(nested) == (2, 7, 0, 0, 0)
    assert attrs.astuple(files.account) == (0, 0, 0, 0, 0)


def test_an_account_is_what_came_since_it_was_copied() -> None:
    account = DiskAccount(reads=1, read_bytes=10)
    before = account.copy()
    account.add(DiskAccount(reads=2, read_bytes=5, writes=1, written_bytes=7, syncs=3))
    assert attrs.astuple(account.since(before)) == (2, 5, 1, 7, 3)


def test_a_deleted_file_takes_no_room_whoever_still_writes_to_it() -> None:
    files = CountedFileSystem()
    handle = files.open_append("/f")
    handle.append(bytes(100))
    files.delete("/f")
    handle.append(bytes(50))
    assert (files.used_bytes, handle.size()) == (0, 150)
    files.open_append("/f").append(bytes(7))
    assert files.used_bytes == 7
    files.check_invariants()


def test_a_replaced_file_takes_no_room() -> None:
    files = CountedFileSystem()
    files.open_append("/old").append(bytes(100))
    files.open_append("/new").append(bytes(30))
    files.rename("/new", "/old")
    assert files.used_bytes == 30
    files.check_invariants()


def test_a_backlog_of_zeros_takes_little_memory_and_reads_as_it_was_written() -> None:
    plain = PlainBlocks(limit_bytes=4 * BLOCK_BYTES)
    content = PackedContent(plain)
    for number in range(1000):
        content.append(number.to_bytes(8, "big") + bytes(9992))
    assert content.size == 10_000_000
    assert content.kept_bytes < 1_000_000
    for number in (0, 1, 500, 999):
        assert content.read(8, 10_000 * number) == number.to_bytes(8, "big")
    assert content.read(content.size, 0).count(0) >= 9_992_000
    assert plain.plain_bytes <= 4 * BLOCK_BYTES
    content.check_invariants()


def test_one_write_larger_than_all_that_stays_plain_is_kept_and_read() -> None:
    content = PackedContent(PlainBlocks(limit_bytes=1000))
    content.append(b"x" * BLOCK_BYTES * 3)
    assert content.kept_bytes < BLOCK_BYTES
    assert content.read(5, BLOCK_BYTES * 2) == b"xxxxx"
    content.check_invariants()


def test_a_journal_that_is_cut_off_again_and_again_is_never_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise AssertionError("compressed")

    monkeypatch.setattr(zlib_ng, "compress", refuse)
    content = PackedContent(PlainBlocks(limit_bytes=4 * BLOCK_BYTES))
    for _ in range(50):
        for _ in range(3):
            content.append(bytes(BLOCK_BYTES))
        content.truncate(0)
    assert content.size == content.kept_bytes == 0


_sizes = st.integers(0, 70)
_operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(max_size=40)),
        st.tuples(st.just("write"), st.binary(max_size=40), _sizes),
        st.tuples(st.just("truncate"), _sizes),
        st.tuples(st.just("read"), _sizes, _sizes),
    ),
    max_size=30,
)


@given(_operations, st.integers(0, 100))
def test_a_packed_content_is_the_bytes_that_were_written(operations: list[tuple[Any, ...]], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_content, "BLOCK_BYTES", 16)
        content, model = PackedContent(PlainBlocks(limit)), bytearray()
        for name, *rest in operations:
            if name == "append":
                model += rest[0]
                content.append(*rest)
            elif name == "write":
                data, offset = rest
                if data:
                    model.extend(bytes(max(0, offset - len(model))))
                    model[offset : offset + len(data)] = data
                content.write(data, offset)
            elif name == "truncate":
                model = model[: rest[0]].ljust(rest[0], b"\0")
                content.truncate(rest[0])
            else:
                size, offset = rest
                assert content.read(size, offset) == model[offset : offset + size]
            content.check_invariants()
            assert content.size == len(model)
        assert content.read(content.size, 0) == model
