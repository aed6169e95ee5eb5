"""Compaction: which two files are combined, in which order of operations, and what may happen in between."""

from __future__ import annotations

from random import Random

import pytest

from warren.msg_store.rdq import compaction
from warren.msg_store.rdq.message_store import MessageStore
from warren.msg_store.rdq.rdq_format import encode_record, scan
from warren.msg_store.rdq.store_reader import StoreReader
from warren.storage.errors import DiskFullError, StorageError
from warren.storage.faults import FaultRules
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import Settings

DIRECTORY = "/store"
SETTINGS = Settings(msg_store_file_size_limit=1000)


def key(n: int) -> bytes:
    return n.to_bytes(16, "big")


def body(n: int) -> bytes:
    """A message whose record takes 100 bytes: ten fill a file, and message n stands in file n // 10."""
    return f"<{n}>".encode().ljust(75, b".")


def records(*numbers: int) -> bytes:
    return b"".join(encode_record(key(n), body(n)) for n in numbers)


def content(files: MemoryFileSystem, name: str) -> bytes:
    return files.read(f"{DIRECTORY}/{name}")


def write(store: MessageStore, *numbers: int) -> None:
    store.write_many([key(n) for n in numbers], [body(n) for n in numbers])
    store.flush()


def store_with(files: MemoryFileSystem, count: int, kept: set[int]) -> MessageStore:
    """A store to which ``count`` messages were written, and then all but ``kept`` removed."""
    store = MessageStore.open(files, DIRECTORY, SETTINGS)
    store.set_references([])
    write(store, *range(count))
    store.sync()
    store.remove_many([key(n) for n in range(count) if n not in kept])
    return store


def assert_readable(store: MessageStore, numbers: set[int]) -> None:
    assert store.read_many([key(n) for n in sorted(numbers)]) == [body(n) for n in sorted(numbers)]
    store.check_invariants()


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem(rules=FaultRules(damage=True))


KEPT = {0, 1, 5, 9, 12, 13, 19, 25}
"""In file 0 a prefix (0, 1) and a tail (5, 9); in file 1 three; file 2 is the current one."""


# Which files


def test_two_full_files_are_not_enough_to_compact(files: MemoryFileSystem) -> None:
    assert not store_with(files, 20, {0, 10}).needs_compaction()
    assert store_with(MemoryFileSystem(), 21, {0, 10}).needs_compaction()


def test_half_garbage_is_not_enough_to_compact(files: MemoryFileSystem) -> None:
    kept = {*range(3), *range(10, 15), *range(20, 28)}
    store = store_with(files, 32, kept)
    assert store.status().garbage_fraction == 0.5
    assert not store.needs_compaction()
    store.remove_many([key(0)])
    assert store.needs_compaction()


def test_the_oldest_pair_that_fits_one_file_is_combined(files: MemoryFileSystem) -> None:
    kept = {*range(8), 10, 11, 12, 20, 21, 30, 31}
    store = store_with(files, 45, kept)
    assert store.compact(until_idle=False) is False
    assert files.list(DIRECTORY) == ["0.rdq", "1.rdq", "3.rdq", "4.rdq"]
    assert content(files, "1.rdq") == records(10, 11, 12, 20, 21)
    assert_readable(store, kept)


def test_the_current_file_is_left_alone(files: MemoryFileSystem) -> None:
    assert not store_with(files, 29, {*range(9), 10, 11, 28}).needs_compaction()
    assert store_with(MemoryFileSystem(), 31, {*range(9), 10, 11, 28}).needs_compaction()


def test_compaction_goes_on_until_there_is_little_garbage(files: MemoryFileSystem) -> None:
    kept = {n for n in range(200) if n % 5 == 0}
    store = store_with(files, 200, kept)
    store.compact()
    assert store.status().garbage_fraction <= 0.5
    assert not store.needs_compaction()
    assert_readable(store, kept)


# What happens


def test_the_right_files_messages_follow_the_lefts(files: MemoryFileSystem) -> None:
    store = store_with(files, 26, KEPT)
    store.compact()
    assert files.list(DIRECTORY) == ["0.rdq", "2.rdq"]
    assert content(files, "0.rdq") == records(0, 1, 5, 9, 12, 13, 19)
    assert_readable(store, KEPT)


def test_the_order_of_operations_is_the_one_that_loses_nothing(files: MemoryFileSystem) -> None:
    store = store_with(files, 26, KEPT)
    before = files.operations
    store.compact()
    done = [f"{kind} {path.removeprefix(DIRECTORY).strip('/')}".strip() for kind, path in list(files.plan.log)[before:]]
    assert done == [
        "create 0.rdt",
        "append 0.rdt",
        "sync 0.rdt",
        "pwrite 0.rdt",  # its first byte: now it is a file of records
        "sync 0.rdt",
        "sync_directory",
        "truncate 0.rdq",
        "truncate 0.rdq",
        "pwrite 0.rdq",
        "sync 0.rdq",
        "delete 0.rdt",
        "pwrite 0.rdq",
        "sync 0.rdq",
        "delete 1.rdq",
    ]


def test_a_left_file_without_holes_needs_no_leftover(files: MemoryFileSystem) -> None:
    store = store_with(files, 26, {0, 1, 12, 25})
    before = files.operations
    store.compact()
    assert [kind for kind, _ in list(files.plan.log)[before:]] == ["truncate", "truncate", "pwrite", "sync", "delete"]
    assert content(files, "0.rdq") == records(0, 1, 12)


def test_what_is_copied_in_pieces_is_the_same(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "COPY_BYTES", 64)
    store = store_with(files, 26, KEPT)
    store.compact()
    assert content(files, "0.rdq") == records(0, 1, 5, 9, 12, 13, 19)
    assert_readable(store, KEPT)


def test_a_pair_that_runs_empty_meanwhile_leaves_no_file() -> None:
    for interrupted_at in range(1, 15):
        files = MemoryFileSystem()
        store = store_with(files, 26, KEPT)
        store.compact(max_steps=interrupted_at)
        store.remove_many([key(n) for n in KEPT - {25}])
        store.compact()
        assert_readable(store, {25})
        assert [name for name in files.list(DIRECTORY) if name != "2.rdq"] == []


def test_a_stop_finishes_the_pair_under_way(files: MemoryFileSystem) -> None:
    store = store_with(files, 26, KEPT)
    store.compact(max_steps=7)
    store.close(b"token")
    again = MessageStore.open(files, DIRECTORY, SETTINGS, token=b"token")
    assert again.clean
    assert_readable(again, KEPT)


# What goes wrong


def test_a_damaged_file_is_left_as_it_is(files: MemoryFileSystem) -> None:
    store = store_with(files, 26, KEPT)
    files.flip_bit(f"{DIRECTORY}/1.rdq", 300, 7)  # the size of message 13's record: a scan stops here
    before = files.contents()
    store.compact()
    assert not store.needs_compaction()
    assert files.contents() == before
    assert [(e.path, e.reason) for e in store.unreadable] == [("/store/1.rdq", "a scan finds 100 of 300 valid bytes")]
    assert_readable(store, KEPT - {13})


def test_a_disk_too_full_to_begin_is_no_harm(files: MemoryFileSystem) -> None:
    store = store_with(files, 26, KEPT)
    before = files.contents()
    files.capacity_bytes = files.used_bytes
    with pytest.raises(DiskFullError):
        store.compact()
    assert files.contents() == before
    files.capacity_bytes = None
    store.compact()
    assert_readable(store, KEPT)


@pytest.mark.parametrize(
    ("kind", "pattern", "skip"),
    [("truncate", "*.rdq", 1), ("pwrite", "*.rdq", 0), ("sync", "*0.rdq", 0), ("delete", "*.rdq", 0)],
)
def test_a_store_whose_compaction_broke_off_stops_and_is_whole_after_a_restart(
    files: MemoryFileSystem, kind: str, pattern: str, skip: int
) -> None:
    store = store_with(files, 26, KEPT)
    files.fail(kind, pattern, skip=skip)
    with pytest.raises(StorageError):
        store.compact()
    with pytest.raises(StorageError, match="broke off"):
        store.flush()
    assert store.read_many([key(n) for n in KEPT]) == [body(n) for n in KEPT]
    store.abandon()
    again = MessageStore.open(files, DIRECTORY, SETTINGS)
    assert again.set_references((key(n), 1) for n in KEPT) == []
    assert_readable(again, KEPT)


# What a crash left


def test_a_leftover_is_brought_in_where_the_scan_stops(files: MemoryFileSystem) -> None:
    files.make_directories(DIRECTORY)
    files.open_append(f"{DIRECTORY}/0.rdq").append(records(0, 1) + bytes(400))
    files.open_append(f"{DIRECTORY}/0.rdt").append(records(5, 9))
    files.open_append(f"{DIRECTORY}/1.rdq").append(records(12, 13))
    assert StoreReader.open(files, DIRECTORY).read(key(9)) == body(9)
    store = MessageStore.open(files, DIRECTORY, SETTINGS)
    assert store.set_references((key(n), 1) for n in (0, 1, 5, 9, 12, 13)) == []
    assert_readable(store, {0, 1, 5, 9, 12, 13})
    assert files.list(DIRECTORY) == ["0.rdq", "1.rdq"]
    assert content(files, "0.rdq") == records(0, 1, 5, 9)


def test_a_leftover_copied_back_in_part_is_trusted_more_than_the_copy(files: MemoryFileSystem) -> None:
    files.make_directories(DIRECTORY)
    torn = records(5)[:50] + bytes(49) + b"\xff"
    files.open_append(f"{DIRECTORY}/0.rdq").append(records(0) + torn + bytes(100))
    files.open_append(f"{DIRECTORY}/0.rdt").append(records(5))
    assert StoreReader.open(files, DIRECTORY).read(key(5)) == body(5)
    assert MessageStore.open(files, DIRECTORY, SETTINGS).read(key(5)) == body(5)


def test_a_leftover_that_is_not_complete_is_not_trusted(files: MemoryFileSystem) -> None:
    store = store_with(files, 26, KEPT)
    store.compact(max_steps=2)
    assert content(files, "0.rdt")[:1] == b"\xff"
    assert list(scan(files.open_read(f"{DIRECTORY}/0.rdt"), "0.rdt")) == []
    again = MessageStore.open(files.after_process_crash(), DIRECTORY, SETTINGS)
    assert again.set_references((key(n), 1) for n in KEPT) == []
    assert_readable(again, KEPT)


def test_a_leftover_without_its_file_becomes_it(files: MemoryFileSystem) -> None:
    files.make_directories(DIRECTORY)
    files.open_append(f"{DIRECTORY}/3.rdt").append(records(5))
    files.sync_all()
    assert MessageStore.open(files, DIRECTORY, SETTINGS).read(key(5)) == body(5)
    assert files.list(DIRECTORY) == ["3.rdq"]
    for seed in range(20):
        assert StoreReader.open(files.after_power_loss(Random(seed)), DIRECTORY).read(key(5)) == body(5)
