"""A crash at every operation: what was synced and is referred to is there afterwards, and nothing is half there."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator

import pytest

from tests.crash_points.losses import SECTOR_BYTES
from tests.crash_points.stores import DIRECTORY, SETTINGS, Life, Promises, body, key, recover, small_pieces
from tests.support.effort import every, times
from tests.support.runtime_tools import hand_node
from warren.msg_store.rdq.message_store import MessageStore
from warren.msg_store.rdq.rdq_format import HEADER, OVERHEAD_BYTES, encode_record
from warren.msg_store.rdq.store_reader import StoreReader
from warren.queue_index.message.msg_ids import MsgIds, numbered_id
from warren.storage.errors import DataError, StorageError
from warren.storage.faults import SimulatedCrash
from warren.storage.memory import MemoryFileSystem


@pytest.fixture(autouse=True)
def _small_pieces() -> Iterator[None]:
    with small_pieces():
        yield


def roll_over(life: Life) -> None:
    """Files fill up, with a sync in the middle of one."""
    life.write(*range(100, 108))
    life.sync()
    life.write(*range(108, 125))
    life.flush()
    life.write(*range(125, 130))
    life.sync()


def empty_a_file(life: Life) -> None:
    """Closed files lose all they have."""
    life.write(*range(100, 135))
    life.sync()
    life.remove(*range(100, 122))
    life.write(*range(135, 140))
    life.flush()
    life.remove(*range(122, 130))
    life.sync()


def compact_all(life: Life) -> None:
    """Pair after pair is combined, with and without holes in the left file, while the store is written to."""
    life.write(*range(100, 200))
    life.sync()
    life.remove(*(n for n in range(100, 200) if n % 6 > 0 and n not in (101, 102)))
    more = 210
    while life.store.compact(max_steps=3):
        life.write(more)
        life.flush()
        more += 1
    life.sync()


def stop(life: Life) -> None:
    """A clean stop, with everything still in the buffer."""
    life.write(*range(100, 115))
    life.remove(100, 101)
    life.stop()


def begin(files: MemoryFileSystem) -> Life:
    """A store that has been there for a while: two closed files with holes and a current one."""
    store = MessageStore.open(files, DIRECTORY, SETTINGS)
    store.set_references([])
    life = Life(store, Promises())
    life.write(*range(30))
    life.sync()
    life.remove(3, 4, 11, 12, 13, 14)
    life.sync()
    files.sync_all()
    return life


def crashes(work: Callable[[Life], None], *, torn: bool) -> Iterator[tuple[MemoryFileSystem, Promises]]:
    """``work`` cut off at each of its operations, one after the other."""
    operation = 0
    while True:
        operation += 1
        files = MemoryFileSystem(operation)
        life = begin(files)
        files.crash_at(operation, torn=torn)
        try:
            work(life)
        except SimulatedCrash:
            yield files, life.promises
        else:
            return


def assert_it_goes_on(store: MessageStore) -> None:
    numbers = range(300, 330)
    store.write_many([key(n) for n in numbers], [body(n) for n in numbers])
    store.compact()
    store.sync()
    store.check_invariants()
    assert store.read_many([key(n) for n in numbers]) == [body(n) for n in numbers]


WORKS = [roll_over, empty_a_file, compact_all, stop]


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("work", WORKS)
def test_what_was_issued_survives_the_process(work: Callable[[Life], None], torn: bool) -> None:
    for files, promises in crashes(work, torn=torn):
        after = files.after_process_crash()
        assert_it_goes_on(recover(after, promises, promises.issued - promises.removed))


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
def test_what_was_synced_survives_a_power_loss(work: Callable[[Life], None]) -> None:
    for files, promises in crashes(work, torn=True):
        for seed in range(times(6, quick=2)):
            after = files.after_power_loss(random.Random(seed))
            recover(after, promises, promises.synced - promises.removed)


@pytest.mark.slow
@pytest.mark.parametrize("work", [compact_all, empty_a_file])
def test_a_recovery_may_crash_too(work: Callable[[Life], None]) -> None:
    for number, (files, promises) in enumerate(crashes(work, torn=True)):
        kept = promises.synced - promises.removed
        after = files.after_power_loss(random.Random(number))
        operation = 1 + number % every(8) - every(8)  # in a quick run at every eighth operation
        while True:
            operation += every(8)
            attempt = after.after_process_crash()
            attempt.crash_at(operation, torn=True)
            try:
                recover(attempt, promises, kept)
            except SimulatedCrash:
                recover(attempt.after_power_loss(random.Random(operation)), promises, kept)
            else:
                recover(attempt.after_power_loss(random.Random(operation)), promises, kept)
                break


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
