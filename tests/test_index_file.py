"""One index file: its bytes, its chains, and what damage does to it."""

from __future__ import annotations

import contextlib
import random
import struct
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import rocketmq_golden as golden
from tests.support.effort import times
from warren.queue_index.topics.index_file import IndexFile, SlotTable
from warren.queue_index.topics.index_file_format import Header, Layout, is_file_name, name_after
from warren.storage.errors import DataError
from warren.storage.filesystem import RealFileSystem
from warren.storage.memory import MemoryFileSystem

SMALL = Layout(slot_count=7, item_count=40)
ALWAYS = (0, 1 << 62)
T0 = 1_700_000_000_000


def put(file: IndexFile, *keys: tuple[int, int, int]) -> None:
    """Put (key hash, physical offset, store timestamp) each."""
    hashes, offsets, timestamps = zip(*keys, strict=True)
    file.put(np.array(hashes, np.int32), np.array(offsets, np.int64), np.array(timestamps, np.int64))


def find(file: IndexFile, key_hash: int, max_num: int = 64, begin: int = 0, end: int = 1 << 62) -> list[int]:
    found: list[int] = []
    file.find(key_hash, found, max_num, begin, end)
    return found


def new_file(files: MemoryFileSystem, header: Header | None = None) -> IndexFile:
    files.make_directories("/index")
    return IndexFile.create(files, "/index/1", SMALL, header or Header())


def reopened(files: MemoryFileSystem, *, writable: bool = False) -> IndexFile:
    return IndexFile.load(files, "/index/1", SMALL, writable=writable)


def test_the_default_file_is_420_000_040_bytes_long() -> None:
    assert Layout(5_000_000, 20_000_000).file_size == 420_000_040


@pytest.mark.parametrize("scenario", golden.SCENARIOS)
def test_headers_of_the_real_one_both_ways(scenario: str) -> None:
    count = 0
    for _, _, _, _, _, answers in golden.answers(scenario):
        for file in answers.get("indexFiles", []):
            header = Header.decode(bytes.fromhex(file["headerHex"]))
            assert header.encode().hex() == file["headerHex"]
            assert attrs.asdict(header) == {
                "begin_timestamp": file["beginTimestamp"],
                "end_timestamp": file["endTimestamp"],
                "begin_physical_offset": file["beginPhyOffset"],
                "end_physical_offset": file["endPhyOffset"],
                "hash_slot_count": file["hashSlotCount"],
                "index_count": file["indexCount"],
            }
            count += 1
    assert count


def test_a_file_without_items_counts_from_one_and_says_zero() -> None:
    assert Header.decode(bytes(40)).index_count == 1
    assert Header.decode(b"").index_count == 1
    assert Header.decode(struct.pack(">qqqqii", 0, 0, 0, 0, 0, -5)).index_count == 1
    assert Header().encode() == bytes(40)


def test_names() -> None:
    assert is_file_name("20261120210431719")
    assert not any(map(is_file_name, ("", "abc", "2026112021043171x", "20261120210431719.tmp", "²")))
    assert name_after("20261120210431719", None) == "20261120210431719"
    assert name_after("20261120210431720", "20261120210431719") == "20261120210431720"
    for late_or_equal in ("20261120210431719", "20261120210431000"):
        assert name_after(late_or_equal, "20261120210431719") == "20261120210431720"


def test_a_chain_is_followed_newest_first_over_other_keys_of_the_slot() -> None:
    file = new_file(MemoryFileSystem())
    put(file, (7, 0, T0), (14, 100, T0), (7, 200, T0))
    put(file, (7, 300, T0), (8, 300, T0))
    assert find(file, 7) == [300, 200, 0]
    assert find(file, 7, max_num=2) == [300, 200]
    assert find(file, 7, max_num=0) == []
    assert find(file, 14) == [100]
    assert find(file, 21) == []
    assert find(file, 8) == [300]
    assert file.header.hash_slot_count == 2
    file.check_invariants()


def test_the_first_item_of_a_rolled_file_counts_from_the_end_of_the_file_before() -> None:
    before = Header(begin_timestamp=T0 - 9000, end_timestamp=T0, begin_physical_offset=1, end_physical_offset=50)
    file = new_file(MemoryFileSystem(), before.follow())
    assert file.header.begin_timestamp == file.header.end_timestamp == T0
    put(file, (1, 60, T0 + 5999), (2, 70, T0 + 7998), (3, 70, T0 + 7999), (4, 80, T0 - 1))
    assert file.items()["time_difference_s"].tolist() == [5, 1, 2, 0]
    assert file.header.begin_timestamp == T0 + 5999
    assert file.header.begin_physical_offset == 60
    assert find(file, 1, begin=T0 + 5999, end=T0 + 6000) == []  # it reads back later than it was
    assert find(file, 1, begin=T0 + 10999, end=T0 + 10999) == [60]


def test_times_that_do_not_fit_are_zero_or_the_most() -> None:
    far = T0 + (0x7FFFFFFF + 5) * 1000
    file = new_file(MemoryFileSystem())
    put(file, (1, 0, T0), (1, 1, far), (1, 2, 0), (1, 3, -1))
    assert file.items()["time_difference_s"].tolist() == [0, 0x7FFFFFFF, 0, 0]
    no_begin = IndexFile.create(file.files, "/index/2", SMALL, Header())
    put(no_begin, (1, 0, -1), (1, 1, T0))
    assert no_begin.items()["time_difference_s"].tolist() == [0, 0]


def test_more_keys_than_there_is_room_for_are_refused() -> None:
    file = new_file(MemoryFileSystem())
    with pytest.raises(RuntimeError, match="room for 39"):
        put(file, *[(1, 0, T0)] * 40)
    put(file, *[(1, 0, T0)] * 39)
    assert file.is_full
    assert file.room == 0


def test_only_items_are_written_before_a_flush_and_slots_before_a_timed_one_never() -> None:
    files = MemoryFileSystem()
    file = new_file(files)
    put(file, (5, 0, T0), (5, 9, T0))
    assert files.read("/index/1")[: SMALL.item_offset(1)] == bytes(SMALL.item_offset(1))
    assert files.read("/index/1")[SMALL.item_offset(1) : SMALL.item_offset(1) + 4] == bytes((0, 0, 0, 5))
    file.flush(with_slots=False)
    assert reopened(files).header.index_count == 3
    assert len(reopened(files).used_slots()[0]) == 0
    assert file.has_unflushed
    file.flush()
    assert not file.has_unflushed
    assert find(reopened(files), 5) == [9, 0]
    assert files.synced_size("/index/1") == SMALL.file_size


def test_what_was_written_is_found_in_a_copy_and_is_not_safe_yet() -> None:
    files = MemoryFileSystem()
    file = new_file(files)
    put(file, (5, 0, T0), (5, 9, T0))
    files.plan.log.clear()
    file.write()
    assert [kind for kind, _ in files.plan.log] == ["pwrite", "pwrite"]
    assert find(reopened(files), 5) == [9, 0]
    assert file.has_unflushed
    file.flush()
    assert not file.has_unflushed
    files.plan.log.clear()
    file.write()
    assert not files.plan.log
    put(file, *[(n, n, T0) for n in range(9, 46)])
    file.write()  # full: its header may not come before its slots
    assert not reopened(files).is_full
    file.flush()
    assert find(reopened(files), 5) == [9, 0]


def test_slots_of_a_full_file_are_on_the_disk_before_its_header() -> None:
    files = MemoryFileSystem()
    file = new_file(files)
    put(file, *[(n, n, T0) for n in range(39)])
    files.plan.log.clear()
    file.flush(with_slots=False)
    assert [kind for kind, _ in files.plan.log] == ["sync", "pwrite", "sync", "pwrite", "sync"]
    assert find(file, 38) == [38]  # read in place from now on
    assert find(reopened(files), 38) == [38]


def test_a_shorter_file_is_lengthened_or_read_as_zeros() -> None:
    files = MemoryFileSystem()
    file = new_file(files)
    put(file, (3, 0, T0), (10, 9, T0))
    file.flush()
    file.close()
    files.open_append("/index/1").truncate(SMALL.item_offset(2))
    short = reopened(files)
    assert find(short, 3) == []  # item 2 is zeros now: it ends the chain
    assert files.size("/index/1") == SMALL.item_offset(2)
    reopened(files, writable=True).close()
    assert files.size("/index/1") == SMALL.file_size


def test_a_default_file_stays_sparse_and_its_table_small(tmp_path: Path) -> None:
    file = IndexFile.create(RealFileSystem(), str(tmp_path / "1"), Layout(5_000_000, 20_000_000), Header())
    for number in range(100):
        put(file, (number * 49_999, number, T0))
    file.flush()
    assert find(file, 49_999) == [1]
    assert (tmp_path / "1").stat().st_blocks * 512 < 2_000_000
    file.close()
    again = IndexFile.load(RealFileSystem(), str(tmp_path / "1"), file.layout, writable=True)
    put(again, (49_999, 100, T0))
    assert find(again, 49_999) == [100, 1]
    again.flush()
    assert (tmp_path / "1").stat().st_blocks * 512 < 2_000_000
    again.close()


def test_a_table_is_read_and_written_whole_beyond_one_piece() -> None:
    layout = Layout(slot_count=(1 << 16) * 4 + 3, item_count=2)
    files = MemoryFileSystem()
    handle = files.open_append("/1")
    handle.truncate(layout.file_size)
    table = SlotTable.empty(layout)
    slots = np.arange(layout.slot_count, dtype=np.int32)
    table.put(slots, slots + 1)
    table.write(handle)
    assert not table.is_dirty
    written = files.read("/1")
    assert written[:40] == bytes(40)
    assert written[40 : layout.item_offset(0)] == (slots + 1).astype(">i4").tobytes()
    assert written[layout.item_offset(0) :] == bytes(40)
    assert (SlotTable.load(layout, handle).values == slots + 1).all()


# ── the rules that end a chain, on bytes made for them ─────────────────────────────────────────────────────────────


def made(slot_value: int, *items: tuple[int, int, int, int], count: int | None = None) -> IndexFile:
    """A file whose slot 5 says ``slot_value``, with these items (key hash, offset, seconds, previous)."""
    files = MemoryFileSystem()
    files.make_directories("/index")
    handle = files.open_append("/index/1")
    handle.truncate(SMALL.file_size)
    stated = len(items) + 1 if count is None else count
    handle.pwrite(struct.pack(">qqqqii", T0, T0 + 60_000, 0, 900, 1, stated), 0)
    handle.pwrite(struct.pack(">i", slot_value), SMALL.slot_offset(5))
    for number, item in enumerate(items, 1):
        handle.pwrite(struct.pack(">iqii", *item), SMALL.item_offset(number))
    return reopened(files)


FIRST = (5, 100, 10, 0)


@pytest.mark.parametrize(
    ("file", "answer"),
    [
        (made(2, FIRST, (5, 200, 20, 1)), [200, 100]),
        (made(0, FIRST), []),
        (made(-1, FIRST), []),
        (made(3, FIRST), []),  # beyond the index count
        (made(2, FIRST), []),  # the index count itself: an item of zeros
        (made(2, FIRST, (5, 200, 20, 1), count=2), [200, 100]),  # the index count itself: an item that was there once
        (made(1, FIRST, count=0), []),
        (made(2, FIRST, (5, 200, -1, 1)), []),
        (made(2, FIRST, (5, 200, 20, 2)), [200]),  # itself
        (made(2, FIRST, (5, 200, 20, 4)), [200]),  # beyond the index count
        (made(2, FIRST, (5, 200, 20, -7)), [200]),
        (made(2, FIRST, (12, 200, 20, 1)), [100]),  # another key of the slot
    ],
)
def test_what_ends_a_chain(file: IndexFile, answer: list[int]) -> None:
    assert find(file, 5) == answer


def test_a_slot_that_is_ahead_of_the_header_is_no_chain_when_a_key_is_put() -> None:
    for ahead, previous in ((3, 0), (2, 2), (1, 1), (-4, 0)):  # 2 is the new item itself
        file = made(ahead, FIRST)
        writable = reopened(file.files, writable=True)  # type: ignore[arg-type]
        put(writable, (5, 200, T0))
        assert writable.items(2)["previous"].tolist() == [previous]
        assert writable.header.hash_slot_count == 1 + (previous == 0)


def test_an_item_older_than_the_query_ends_the_chain() -> None:
    file = made(3, FIRST, (5, 200, 1, 1), (5, 300, 20, 2))
    assert find(file, 5, begin=T0 + 5_000) == [300]  # the first would be in time again
    assert find(file, 5, begin=T0 + 5_000, end=T0 + 19_999) == []


def test_a_loop_is_an_error_that_names_the_item() -> None:
    file = made(3, (5, 100, 10, 3), (5, 200, 20, 1), (5, 300, 20, 2))
    with pytest.raises(DataError, match="item 1 names a newer one, 3") as caught:
        find(file, 5)
    assert caught.value.offset == SMALL.item_offset(1)
    assert find(file, 5, max_num=3) == [300, 200, 100]


def test_an_item_behind_the_end_of_the_file_is_an_error() -> None:
    file = made(40, FIRST, count=41)
    with pytest.raises(DataError, match="names item 40"):
        find(file, 5)


@settings(max_examples=times(150))
@given(seed=st.integers(0, 1 << 32), where=st.sampled_from(["header", "slots", "items", "anywhere"]))
def test_damage_gives_an_answer_or_an_error_and_ends(seed: int, where: str) -> None:
    rng = random.Random(seed)
    files = MemoryFileSystem()
    file = new_file(files)
    put(file, *[(rng.choice((0, 5, 12, 7, 8)), n * 10, T0 + n * 500) for n in range(rng.choice((20, 39)))])
    file.flush()
    file.close()
    first = {"header": 0, "slots": 40, "items": SMALL.item_offset(0), "anywhere": 0}[where]
    behind = {"header": 40, "slots": SMALL.item_offset(0)}.get(where, SMALL.file_size)
    handle = files.open_append("/index/1")
    for _ in range(rng.randint(1, 30)):
        junk = rng.choice((rng.randbytes(4), rng.randrange(45).to_bytes(4, "big")))
        place = rng.randrange(first, behind)
        handle.pwrite(junk[: behind - place], place)
    for writable in (False, True):
        damaged = reopened(files, writable=writable)
        for key_hash in (0, 5, 12, 7, 8, 1):
            found: list[int] = []
            with contextlib.suppress(DataError):
                damaged.find(key_hash, found, 1 << 30, rng.choice((0, T0 + 3_000)), 1 << 62)
            assert len(found) <= 40
        if writable and damaged.room:
            put(damaged, (5, 1000, T0))
            damaged.flush()
        damaged.close()
