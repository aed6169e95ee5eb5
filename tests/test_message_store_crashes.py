"""What a crash left of a store, case by case; crashes at any operation are in :mod:`tests.crash_points.stores`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.crash_points.losses import SECTOR_BYTES
from tests.crash_points.stores import DIRECTORY, SETTINGS, begin, compact_all, key, recover, small_pieces
from tests.support.effort import times
from tests.support.runtime_tools import hand_node
from warren.msg_store.rdq.message_store import MessageStore
from warren.msg_store.rdq.rdq_format import HEADER, OVERHEAD_BYTES, encode_record
from warren.msg_store.rdq.store_reader import StoreReader
from warren.queue_index.message.msg_ids import MsgIds, numbered_id
from warren.storage.errors import DataError, StorageError
from warren.storage.memory import MemoryFileSystem


@pytest.fixture(autouse=True)
def _small_pieces() -> Iterator[None]:
    with small_pieces():
        yield


@pytest.mark.slow
def test_a_failed_operation_comes_out_and_loses_nothing() -> None:
    for skip in range(12):
        for kind in ("append", "sync", "sync_directory", "create", "truncate", "pwrite", "delete"):
            files = MemoryFileSystem(skip)
            life = begin(files)
            files.fail(kind, skip=skip)
            with contextlib.suppress(StorageError):
                compact_all(life)
            life.store.abandon()
            recover(files, life.promises, life.promises.issued - life.promises.removed)


def test_a_copy_torn_within_its_id_passes_for_no_other_message() -> None:
    """A power loss in a compaction: the next sector of the copy of 300 never came, what follows it did."""
    ids = MsgIds(b"store-id")
    numbered = dict(enumerate([ids.one() for _ in range(300)], 1))
    torn_at = HEADER.size - 1
    first = (numbered[256], b"<256>".ljust(SECTOR_BYTES - OVERHEAD_BYTES - torn_at, b"."))
    copied = (numbered[300], b"<300>" * 200)
    left, whole = encode_record(*first), encode_record(*copied)
    files = MemoryFileSystem()
    files.make_directories(DIRECTORY)
    assert len(left) + torn_at == SECTOR_BYTES, "a sector begins at the id's last byte"
    torn = whole[:torn_at] + bytes(SECTOR_BYTES) + whole[torn_at + SECTOR_BYTES :]
    files.open_append(f"{DIRECTORY}/0.rdq").append(left + torn)
    files.open_append(f"{DIRECTORY}/0.rdt").append(whole)
    reader = StoreReader.open(files, DIRECTORY)
    assert [reader.read(msg_id) for msg_id, _ in (first, copied)] == [first[1], copied[1]]
    reader.close()
    store = MessageStore.open(files, DIRECTORY, SETTINGS)
    assert store.set_references([(first[0], 1), (copied[0], 1)]) == []
    assert [store.read(msg_id) for msg_id, _ in (first, copied)] == [first[1], copied[1]]


@pytest.mark.parametrize("leftover", [False, True], ids=["its leftover is gone", "its leftover came back"])
def test_a_copy_that_a_power_loss_tore_does_not_come_back_when_its_original_is_gone(*, leftover: bool) -> None:
    """A compaction was cut as it appended messages 1 and 2 of file 1 to message 0 of file 0."""
    kept, whole, torn = (encode_record(key(n), bytes([n]) * 700) for n in range(3))
    current = encode_record(key(3), b"3" * 50)
    files = MemoryFileSystem()
    files.make_directories(DIRECTORY)
    at = len(kept + whole) + 100
    copied = (kept + whole + torn)[:at] + bytes(SECTOR_BYTES) + (kept + whole + torn)[at + SECTOR_BYTES :]
    for number, data in enumerate((copied, whole + torn, current)):
        files.open_append(f"{DIRECTORY}/{number}.rdq").append(data)
    if leftover:
        files.open_append(f"{DIRECTORY}/0.rdt").append(kept)
    store = MessageStore.open(files, DIRECTORY, SETTINGS)
    assert [store.read(key(n)) for n in range(4)] == [b"\0" * 700, b"\1" * 700, b"\2" * 700, b"3" * 50]
    assert store.set_references([(key(0), 1), (key(3), 1)]) == []
    store.check_invariants()
    assert files.contents()[f"{DIRECTORY}/0.rdq"] == kept + whole
    assert not files.exists(f"{DIRECTORY}/1.rdq")
    again = MessageStore.open(files.after_process_crash(), DIRECTORY, SETTINGS)  # an ack was lost
    assert again.set_references([(key(n), 1) for n in range(4)]) == [key(2)]
    assert [again.read(key(n)) for n in (0, 1, 3)] == [b"\0" * 700, b"\1" * 700, b"3" * 50]


def test_a_message_written_again_in_a_later_file_cuts_nothing_that_is_needed() -> None:
    damaged, again, behind = (
        encode_record(key(0), b"?" * 600),
        encode_record(key(0), b"0" * 600),
        encode_record(key(1), b"1"),
    )
    files = MemoryFileSystem()
    files.make_directories(DIRECTORY)
    for number, data in enumerate((damaged + behind, again)):
        files.open_append(f"{DIRECTORY}/{number}.rdq").append(data)
    store = MessageStore.open(files, DIRECTORY, SETTINGS)
    assert [store.read(key(n)) for n in range(2)] == [b"0" * 600, b"1"]
    assert files.contents()[f"{DIRECTORY}/0.rdq"] == damaged + behind


def test_no_id_is_that_of_another_whose_end_is_torn() -> None:
    drawn = b"\0randoms"
    of_queue = MsgIds(drawn)
    many = of_queue.many(70_000)
    made = [many[at : at + 16] for at in range(0, len(many), 16)] + [of_queue.one() for _ in range(300)]
    assert made == [numbered_id(number, drawn) for number in range(1, len(made) + 1)]
    there = set(made)
    for msg_id in made[:: times(1, quick=50)]:
        for end in range(16):
            torn = msg_id[:end].ljust(16, b"\0")
            assert torn == msg_id or torn not in there


def test_the_ids_of_messages_for_several_queues_have_the_same_form() -> None:
    ids = hand_node().node._running.new_msg_ids(2)
    drawn = ids[8:16]
    assert ids == numbered_id(1, drawn) + numbered_id(2, drawn)
    assert any(drawn)


def test_a_torn_record_in_a_closed_file_is_damage() -> None:
    files = MemoryFileSystem()
    begin(files).store.abandon()
    handle = files.open_append(f"{DIRECTORY}/0.rdq")
    handle.truncate(handle.size() - 1)
    store = MessageStore.open(files, DIRECTORY, SETTINGS)
    assert [type(error) for error in store.unreadable] == [DataError]
