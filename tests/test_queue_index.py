"""One queue's index: what is written, when, in which order, and what is read back."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable

import attrs
import numpy as np
import pytest

from tests.crash_points.losses import KEPT, LOST, ChosenSurvivors
from tests.support.index_tools import (
    DELIVERING,
    JOURNAL,
    JOURNAL_PUBLISH_BYTES,
    NAME_FILE,
    PATH,
    SEGMENT_PUBLISH_BYTES,
    SETTINGS,
    Position,
    journal_ack,
    journal_deliver,
    journal_publish,
    msg_id,
    new_index,
    positions,
    put,
    queue_files,
    recover,
    run_of,
    segment,
    segment_publish,
    segment_short,
    unacked,
)
from warren.queue_index.index.journal_replay import open_clean
from warren.queue_index.index.queue_index import QueueIndex
from warren.queue_index.index.record_matrix import RecordMatrix
from warren.queue_index.index.segment_file import read_segment
from warren.queue_index.index.segment_journal import SegmentJournal
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.run import Run
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.errors import DataError, DiskFullError, NoRoomError, StorageError
from warren.storage.faults import SimulatedCrash
from warren.storage.memory import MemoryFileSystem

ENVELOPE = Envelope(b"/", b"", (b"q",), b"\x10\x00\x02", persistent=True)


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
def index(files: MemoryFileSystem) -> QueueIndex:
    return new_index(files)


def publish(index: QueueIndex, *runs: Run) -> None:
    for run in runs:
        index.publish(run, None)


def publish_batch(index: QueueIndex, *runs: Run, target_ram_count: int | None = None, descending: bool = False) -> None:
    for run in runs:
        index.pre_publish(run, target_ram_count, descending=descending)
    index.end_batch(target_ram_count)


def journal(files: MemoryFileSystem, index: QueueIndex) -> bytes:
    """The journal, with what waits for a sync."""
    index.sync()
    return files.read(JOURNAL)


def since(files: MemoryFileSystem, start: int) -> list[tuple[str, str]]:
    """Operations on the disk after the first ``start``: kind, and the file's name."""
    return [(kind, path.rpartition("/")[2]) for kind, path in list(files.plan.log)[start:]]


# Beginnings


def test_a_queue_that_never_wrote_has_no_directory(files: MemoryFileSystem, index: QueueIndex) -> None:
    index.flush()
    index.sync()
    index.release()
    assert index.read(0, 0) == []
    assert index.bounds() == (0, 0)
    assert index.close() == ()
    assert files.operations == 0


def test_the_first_write_makes_a_directory_that_says_whose_it_is(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0))
    assert files.contents() == {NAME_FILE: b"VHOST: /\nQUEUE: q\n", JOURNAL: b""}
    assert since(files, 0)[-2:] == [("sync_directory", "Q"), ("sync_directory", "queues")]


def test_a_crash_leaves_the_queues_name_whole_or_missing() -> None:
    for operation in range(1, 40):
        files = MemoryFileSystem(operation)
        files.crash_at(operation, torn=True)
        try:
            index = new_index(files)
            publish(index, run_of(0))
            index.sync()
        except SimulatedCrash:
            left = files.after_process_crash()
            assert left.contents().get(NAME_FILE, b"VHOST: /\nQUEUE: q\n") == b"VHOST: /\nQUEUE: q\n"
        else:
            assert operation > 8
            return
    pytest.fail("a first write takes fewer operations")


def test_a_name_that_a_killed_process_left_unsynced_is_synced_before_a_journal_stands_beside_it() -> None:
    files = MemoryFileSystem()
    files.make_directories(PATH.rpartition("/")[0])
    files.fail("sync_directory")
    with pytest.raises(StorageError):
        publish(new_index(files), run_of(0))  # named, and killed before that was synced
    files = files.after_process_crash()
    assert list(files.contents()) == [NAME_FILE]
    made = 0
    for operation in range(1, 9):
        left = files.after_process_crash()
        left.crash_at(operation)
        with contextlib.suppress(SimulatedCrash):
            publish(new_index(left), run_of(0))
        for choices in itertools.product((KEPT, LOST), repeat=6):
            after = left.after_power_loss(ChosenSurvivors(choices)).contents()
            made += JOURNAL in after
            assert NAME_FILE in after or JOURNAL not in after
    assert made


@pytest.mark.parametrize("kind", ["append", "create"])
def test_a_flush_behind_a_full_disk_names_the_directory_before_a_segment_is_in_it(kind: str) -> None:
    for operation in range(1, 30):
        files = MemoryFileSystem()
        index = new_index(files)
        files.fail(kind, "*.queue_name.new", error=DiskFullError)
        publish(index, run_of(0, 3))
        files.crash_at(operation)
        try:
            index.flush()
        except SimulatedCrash:
            left = files.after_process_crash().contents()
            assert NAME_FILE in left or segment(0) not in left
        else:
            assert operation > 10
            return
    pytest.fail("a flush takes fewer operations")


# The journal


def test_records_wait_in_memory_until_a_sync(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0), run_of(1, embedded=False, persistent=False, expiry_us=77))
    index.deliver([range(1)])
    index.ack([range(1)])
    assert files.size(JOURNAL) == 0
    index.sync()
    assert files.read(JOURNAL) == (
        journal_publish(0)
        + journal_publish(1, persistent=False, embedded=b"", expiry_us=77)
        + journal_deliver(0)
        + journal_ack(0)
    )
    assert files.synced_size(JOURNAL) == files.size(JOURNAL)


def test_what_is_written_out_survives_the_process_but_is_not_safe(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0, 3))
    index.write_out()
    assert (files.size(JOURNAL), files.synced_size(JOURNAL)) == (3 * JOURNAL_PUBLISH_BYTES, 0)
    assert (index.written_ticket, index.safe_ticket) == (3, 0)
    index.sync()
    assert index.safe_ticket == 3


def test_a_single_message_is_its_publish_then_its_deliver(files: MemoryFileSystem) -> None:
    index = new_index(files, DELIVERING)
    publish(index, run_of(0), run_of(1))
    assert journal(files, index) == journal_publish(0) + journal_deliver(0) + journal_publish(1) + journal_deliver(1)


def test_a_message_published_as_delivered_gets_its_deliver_record(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0, delivered=True), run_of(1))
    assert journal(files, index) == journal_publish(0) + journal_deliver(0) + journal_publish(1)


def test_a_batch_is_all_publishes_then_all_delivers(files: MemoryFileSystem) -> None:
    index = new_index(files, DELIVERING)
    publish_batch(index, run_of(2, 2), run_of(5, 2))
    assert journal(files, index) == b"".join(map(journal_publish, (2, 3, 5, 6))) + journal_deliver(2, 3, 5, 6)


def test_a_batch_is_written_when_it_holds_as_many_as_a_segment(files: MemoryFileSystem) -> None:
    index = new_index(files, DELIVERING)
    publish_batch(index, run_of(5, 3), run_of(8, 7))
    expected = b"".join(map(journal_publish, range(5, 13))) + journal_deliver(*range(5, 13))
    expected += journal_publish(13) + journal_publish(14) + journal_deliver(13, 14)
    assert journal(files, index) == expected


def test_a_descending_batch_is_cut_at_its_low_end(files: MemoryFileSystem) -> None:
    index = new_index(files, DELIVERING)
    publish_batch(index, run_of(16, 5), run_of(8, 8), descending=True)
    first = [*range(16, 21), *range(13, 16)]
    expected = b"".join(map(journal_publish, first)) + journal_deliver(*first)
    expected += b"".join(map(journal_publish, range(8, 13))) + journal_deliver(*range(8, 13))
    assert journal(files, index) == expected


def test_records_made_in_a_matrix_are_those_of_single_messages(files: MemoryFileSystem, index: QueueIndex) -> None:
    run = run_of(0, 8, unencoded=True, expiry_us=5)
    publish(index, run.window(0, 2), run.window(2, 6), run_of(8, 8, unencoded=True, persistent=False))
    expected = [journal_publish(n, expiry_us=5) for n in range(8)]
    expected += [journal_publish(n, persistent=False) for n in range(8, 16)]
    assert journal(files, index) == b"".join(expected)


def test_batches_that_waited_are_written_in_their_order_with_what_came_between(
    files: MemoryFileSystem, index: QueueIndex
) -> None:
    publish(index, run_of(0, 8, unencoded=True))
    index.deliver([range(8)])
    publish(index, run_of(8, 8, unencoded=True), run_of(16, 2))
    index.ack([range(3)])
    expected = b"".join(map(journal_publish, range(8))) + journal_deliver(*range(8))
    expected += b"".join(map(journal_publish, range(8, 18))) + journal_ack(*range(3))
    assert journal(files, index) == expected


def test_acks_of_one_call_are_written_last_first(files: MemoryFileSystem) -> None:
    queue = VariableQueue.create(queue_files(files, DELIVERING))
    queue.publish_many(ENVELOPE, b"".join(map(msg_id, range(20))), [b"body"] * 20)
    queue.fetch_many(20)
    queue.sync()
    before = files.size(JOURNAL)
    queue.ack([range(4), range(9, 13)])
    queue.sync()
    assert files.read(JOURNAL)[before:] == journal_ack(12, 11, 10, 9, 3, 2, 1, 0)


def test_acks_are_written_in_the_order_of_their_ranges(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0, 8), run_of(8, 2))
    index.deliver([range(10)])
    before = len(journal(files, index))
    index.ack([range(9, 6, -1), range(2, 4)])
    assert journal(files, index)[before:] == journal_ack(9, 8, 7, 2, 3)


@pytest.mark.parametrize(
    "action",
    [lambda index: index.publish(run_of(1), None), lambda index: index.deliver([range(1, 4)])],
    ids=["publish twice", "deliver twice"],
)
def test_what_cannot_follow_is_a_bug(index: QueueIndex, action: Callable[[QueueIndex], None]) -> None:
    publish(index, run_of(0, 4))
    index.deliver([range(2)])
    with pytest.raises(RuntimeError, match="position 1 of segment 0"):
        action(index)


def test_what_comes_behind_a_write_ahead_that_was_not_safe_meets_the_failure(
    files: MemoryFileSystem, index: QueueIndex
) -> None:
    """The records that had no place yet were taken for a mistake of the queue's."""
    files.fail("sync", JOURNAL)
    with pytest.raises(StorageError):
        index.write_ahead(0, msg_id(0), [1], [b"term"])
    index.publish(run_of(0), None)
    with pytest.raises(StorageError, match="unusable since"):
        index.sync()


def test_an_ack_of_what_was_not_delivered_is_a_bug(index: QueueIndex) -> None:
    publish(index, run_of(0, 4))
    with pytest.raises(RuntimeError, match="action 4 on position 2 of segment 0"):
        index.ack([range(2, 3)])


# Flushes


def test_flush_writes_descending_positions(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0, 6))
    index.deliver([range(3)])
    index.flush()
    before = files.size(segment(0))
    publish(index, run_of(6, 2, embedded=False, persistent=False, expiry_us=9))
    index.deliver([range(3, 5), range(7, 8)])
    index.ack([range(4), range(7, 8)])
    index.flush()
    assert files.read(segment(0))[before:] == (
        segment_publish(6, persistent=False, embedded=b"", expiry_us=9)
        + segment_short(4)
        + segment_short(3, 3)
        + segment_short(2, 1, 0)
    )
    assert files.size(JOURNAL) == 0


def test_a_publish_and_its_deliver_stand_together_in_a_segment(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0, 3), run_of(3, embedded=False))
    index.deliver([range(1, 3)])
    index.flush()
    assert files.read(segment(0)) == (
        segment_publish(3, embedded=b"")
        + segment_publish(2)
        + segment_short(2)
        + segment_publish(1)
        + segment_short(1)
        + segment_publish(0)
    )


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "transient"])
def test_messages_encoded_late_and_early_flush_to_the_same_bytes(persistent: bool) -> None:
    flushed = []
    for unencoded in (True, False):
        files = MemoryFileSystem()
        index = new_index(files)
        publish(index, run_of(0, 8, unencoded=unencoded, persistent=persistent, expiry_us=list(range(8))))
        index.deliver([range(2, 7)])
        index.ack([range(3, 5)])
        index.flush()
        flushed.append(files.read(segment(0)))
    assert flushed[0] == flushed[1]
    assert len(flushed[0]) == 6 * SEGMENT_PUBLISH_BYTES + 3 * 2


def test_publish_deliver_ack_within_one_journal_leaves_no_trace_in_a_segment(
    files: MemoryFileSystem, index: QueueIndex
) -> None:
    publish(index, run_of(0, 3))
    index.deliver([range(3)])
    index.ack([range(1, 2)])
    index.flush()
    assert files.read(segment(0)) == segment_publish(2) + segment_short(2) + segment_publish(0) + segment_short(0)


def test_a_segment_that_was_acked_before_its_first_flush_never_exists(
    files: MemoryFileSystem, index: QueueIndex
) -> None:
    publish(index, run_of(0, 8))
    index.deliver([range(8)])
    index.ack([range(8)])
    index.flush()
    assert sorted(files.contents()) == [NAME_FILE, JOURNAL]
    assert index.segments == {}


def test_a_flush_deletes_a_segment_in_which_everything_is_acked(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0, 8), run_of(8, 8))
    index.deliver([range(16)])
    index.flush()
    index.ack([range(9)])
    index.flush()
    assert files.list(PATH) == [".queue_name", "1.idx", "journal.jif"]
    assert index.close() == ((1, 7),)


def test_a_flush_drops_what_waits_for_the_journal(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0))
    start = files.operations
    index.flush()
    assert ("append", "journal.jif") not in since(files, start)
    index.sync()
    assert files.size(JOURNAL) == 0


def test_records_that_a_flush_drops_are_never_made(index: QueueIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(RecordMatrix, "journal_bytes")
    publish(index, run_of(0, 8, unencoded=True))
    index.flush()
    index.sync()
    assert unacked(index) == [Position(number) for number in range(8)]


def test_flushing_nothing_touches_no_file(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0))
    index.flush()
    start = files.operations
    index.flush()
    assert since(files, start) == []
    index.flush(even_if_clean=True)
    assert since(files, start) == [("truncate", "journal.jif"), ("sync", "journal.jif")]


@pytest.mark.parametrize("count", [10, 11])
def test_more_unflushed_actions_than_allowed_flush(files: MemoryFileSystem, count: int) -> None:
    index = new_index(files, attrs.evolve(SETTINGS, queue_index_max_journal_entries=10))
    for n in range(count):
        publish(index, run_of(n))
    assert index.dirty_count == count % 11


def test_one_call_that_acks_many_flushes_once_at_its_end(files: MemoryFileSystem) -> None:
    index = new_index(files, attrs.evolve(SETTINGS, queue_index_max_journal_entries=10))
    publish(index, run_of(0, 8))
    index.flush()
    index.deliver([range(8)])
    start = files.operations
    index.ack([range(7, 3, -1), range(3, 0, -1)])
    assert [kind for kind, name in since(files, start) if name == "0.idx"] == ["append", "sync"]
    assert index.dirty_count == 0


def test_a_flush_may_fall_between_a_single_messages_publish_and_deliver(files: MemoryFileSystem) -> None:
    index = new_index(files, DELIVERING)
    index.publish(run_of(0), 0)
    assert files.read(segment(0)) == segment_publish(0)
    assert journal(files, index) == journal_deliver(0)


@pytest.mark.parametrize("empty", [False, True], ids=["a batch", "an empty batch"])
def test_more_unflushed_actions_than_the_target_flush_at_a_batchs_end(files: MemoryFileSystem, empty: bool) -> None:
    index = new_index(files)
    publish(index, run_of(0, 4))
    publish_batch(index, *([] if empty else [run_of(4, 4)]), target_ram_count=3)
    assert (index.dirty_count, files.size(JOURNAL)) == (0, 0)


# Safety


def test_segments_are_synced_before_the_journal_is_cut(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0, 8), run_of(8, 8), run_of(16, 1))
    index.deliver([range(8)])
    index.flush()
    publish(index, run_of(17))
    index.ack([range(8)])
    index.deliver([range(8, 9)])
    index.sync()
    start = files.operations
    index.flush()
    assert since(files, start) == [
        ("delete", "0.idx"),
        ("append", "1.idx"),
        ("sync", "1.idx"),
        ("append", "2.idx"),
        ("sync", "2.idx"),
        ("sync_directory", "Q"),
        ("truncate", "journal.jif"),
        ("sync", "journal.jif"),
    ]


def test_a_sync_is_one_append_and_one_sync(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0, 3), run_of(3))
    index.deliver([range(2)])
    start = files.operations
    index.sync()
    index.sync()
    assert since(files, start) == [("append", "journal.jif"), ("sync", "journal.jif")]


def test_without_sync_nothing_is_synced_and_all_that_is_written_out_is_safe(files: MemoryFileSystem) -> None:
    index = new_index(files, sync=False)
    publish(index, run_of(0, 3))
    index.write_out()
    assert index.safe_ticket == index.written_ticket == 3
    publish(index, run_of(3))
    index.sync()
    index.flush()
    assert {kind for kind, _ in files.plan.log} == {"make_directory", "create", "append", "rename", "truncate"}


def test_a_flush_makes_everything_safe(index: QueueIndex) -> None:
    publish(index, run_of(0, 3))
    index.flush()
    assert index.safe_ticket == index.written_ticket == 3


def test_a_full_disk_in_a_flush_loses_nothing_that_was_synced(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0, 8), run_of(8, 8))
    index.sync()
    files.capacity_bytes = files.used_bytes + 600
    with pytest.raises(DiskFullError):
        index.flush()
    files.capacity_bytes = None
    assert unacked(recover(files.after_process_crash())) == [Position(n) for n in range(16)]


def test_a_journal_whose_messages_are_acked_gives_its_room_back_on_a_full_disk(
    files: MemoryFileSystem, index: QueueIndex
) -> None:
    publish(index, run_of(0, 8), run_of(8, 4))
    index.sync()
    files.capacity_bytes = files.used_bytes
    publish(index, run_of(12))
    with pytest.raises(NoRoomError):
        index.sync()
    index.deliver([range(13)])
    index.ack([range(13)])
    index.sync()
    assert index.safe_ticket == index.written_ticket
    assert files.contents() == {NAME_FILE: b"VHOST: /\nQUEUE: q\n", JOURNAL: b""}
    assert unacked(recover(files.after_process_crash())) == []


def test_what_is_unacked_moves_into_segments_if_the_journal_finds_no_room(
    files: MemoryFileSystem, index: QueueIndex
) -> None:
    publish(index, run_of(0, 8), run_of(8, 4))
    index.sync()
    index.deliver([range(7)])
    index.ack([range(7)])
    publish(index, run_of(12, 2))
    files.capacity_bytes = files.used_bytes + 2 * SEGMENT_PUBLISH_BYTES
    with pytest.raises(NoRoomError):
        index.sync()
    assert sorted(files.contents()) == [NAME_FILE, JOURNAL]
    index.deliver([range(8, 14)])
    index.ack([range(8, 14)])
    index.sync()
    assert files.read(JOURNAL) == b""
    assert unacked(recover(files.after_process_crash())) == [Position(7)]


@pytest.mark.parametrize("end", ["clean", "killed", "without power"])
def test_acks_after_a_flush_that_had_room_for_a_part_are_not_forgotten(
    files: MemoryFileSystem, index: QueueIndex, end: str
) -> None:
    publish(index, run_of(0, 8), run_of(8, 8))
    index.sync()
    files.sync_all()  # the directories above
    files.capacity_bytes = files.used_bytes + 9 * SEGMENT_PUBLISH_BYTES
    with pytest.raises(NoRoomError):
        index.flush()
    index.deliver([range(7)])
    index.ack([range(7)])
    index.sync()
    files.capacity_bytes = None
    if end == "clean":
        counts = index.close()
        again = new_index(files)
        open_clean(files, again, counts)
    else:
        again = recover(files.after_process_crash() if end == "killed" else files.after_power_loss(random.Random(1)))
    again.check_invariants()
    assert [position.seq_id for position in unacked(again)] == [*range(7, 16)]


def test_a_clean_stop_after_a_flush_that_only_deleted_a_segment_leaves_no_ack_without_one(
    files: MemoryFileSystem, index: QueueIndex
) -> None:
    publish(index, run_of(0, 8, embedded=False))
    index.flush()
    publish(index, run_of(8, 8))
    index.deliver([range(8)])
    index.ack([range(8)])
    index.sync()
    files.capacity_bytes = files.used_bytes
    with pytest.raises(NoRoomError):
        index.flush()
    with pytest.raises(NoRoomError):
        index.close()
    files.capacity_bytes = None
    counts = index.close()
    again = new_index(files)
    open_clean(files, again, counts)
    assert unacked(again) == [Position(n) for n in range(8, 16)]


def test_a_late_ack_needs_no_room_if_its_segment_is_deleted(files: MemoryFileSystem) -> None:
    index = new_index(files, DELIVERING)
    index.publish(run_of(0), 0)  # flushed before its deliver
    publish(index, run_of(1, 7))
    index.sync()
    files.capacity_bytes = files.used_bytes
    publish(index, run_of(8, 4))
    index.ack([range(12)])
    index.sync()
    assert files.contents() == {NAME_FILE: b"VHOST: /\nQUEUE: q\n", JOURNAL: b""}


# Handles


def test_what_was_written_out_before_a_release_is_synced_after_it(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0))
    index.write_out()
    index.release()
    index.sync()
    assert files.synced_size(JOURNAL) == JOURNAL_PUBLISH_BYTES
    assert index.safe_ticket == 1


def test_a_reset_leaves_nothing_and_the_queue_begins_anew(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0, 8), run_of(8, 2))
    index.flush()
    publish(index, run_of(10, 2))
    index.reset()
    assert files.contents() == {}
    assert (index.segments, index.dirty_count, index.safe_ticket) == ({}, 0, 12)
    assert index.read(0, 16) == []
    publish(index, run_of(0, embedded=False))
    index.sync()
    assert files.contents() == {NAME_FILE: b"VHOST: /\nQUEUE: q\n", JOURNAL: journal_publish(0, embedded=b"")}
    index.check_invariants()


# Reading


@pytest.mark.parametrize("acked", [3, 280, 350])
def test_a_file_and_a_journal_that_reach_to_different_positions_are_read_together(
    files: MemoryFileSystem, acked: int
) -> None:
    index = new_index(files, attrs.evolve(SETTINGS, segment_entry_count=1024))
    publish(index, run_of(0, 300))
    index.flush()
    publish(index, run_of(300, 100))
    index.deliver([range(acked, acked + 1)])
    index.ack([range(acked, acked + 1)])
    expected = [n for n in range(400) if n != acked]
    assert [p.seq_id for p in positions(index.read(0, 1024))] == expected
    index.flush()
    index.deliver([range(1)])
    index.ack([range(1)])
    assert [p.seq_id for p in positions(index.read(0, 1024))] == expected[1:]
    index.sync()
    index = recover(files.after_process_crash(), settings=index.settings)
    assert [p.seq_id for p in positions(index.read(0, 1024))] == expected[1:]


def test_a_segment_read_in_pieces_is_read_as_it_stands(index: QueueIndex) -> None:
    publish(index, run_of(0, 8))
    index.deliver([range(8)])
    index.flush()
    assert [p.seq_id for p in positions(index.read(0, 3))] == [0, 1, 2]
    index.ack([range(4, 5)])
    assert [p.seq_id for p in positions(index.read(3, 8))] == [3, 5, 6, 7]
    assert [p.seq_id for p in positions(index.read(0, 3))] == [0, 1, 2]
    index.ack([range(1, 3)])
    index.flush()
    assert [p.seq_id for p in positions(index.read(0, 3))] == [0]


@pytest.mark.parametrize("order", ["ascending", "descending", "mixed"])
def test_a_segment_is_read_whatever_the_order_of_its_records(files: MemoryFileSystem, order: str) -> None:
    numbers = {"ascending": range(8), "descending": range(7, -1, -1), "mixed": (3, 1, 7, 5, 0, 2, 6, 4)}[order]
    put(files, segment(0), b"".join(segment_publish(n, expiry_us=n) for n in numbers))
    index = new_index(files)
    assert positions(index.read(0, 8)) == [Position(n, expiry_us=n) for n in range(8)]
    assert positions(index.read(2, 4)) == [Position(2, expiry_us=2), Position(3, expiry_us=3)]


def test_segment_of_nuls_counts_as_empty(files: MemoryFileSystem, index: QueueIndex) -> None:
    put(files, segment(0), bytes(5000))
    put(files, segment(1), b"")
    assert index.read(0, 16) == []
    read = read_segment(files, segment(0), 8)
    assert (read.good_bytes, read.entries.unacked) == (0, 0)


def test_what_stands_before_a_torn_end_is_read(files: MemoryFileSystem, index: QueueIndex) -> None:
    put(files, segment(0), segment_publish(1) + segment_publish(0)[:-1])
    assert positions(index.read(0, 8)) == [Position(1)]
    assert read_segment(files, segment(0), 8).good_bytes == SEGMENT_PUBLISH_BYTES


@pytest.mark.parametrize(
    ("records", "offset", "reason"),
    [
        (segment_publish(1) + segment_publish(1), SEGMENT_PUBLISH_BYTES, "double publish"),
        (segment_short(3), None, "entry without publish"),
        (segment_publish(1) + segment_short(1, 1, 1), None, "too many records"),
        (b"\xc0\x09" + segment_publish(1)[2:], 0, "position out of range"),
    ],
)
def test_damage_names_file_offset_and_reason(
    files: MemoryFileSystem, index: QueueIndex, records: bytes, offset: int | None, reason: str
) -> None:
    put(files, segment(0), records)
    with pytest.raises(DataError, match=reason) as caught:
        index.read(0, 8)
    assert (caught.value.path, caught.value.offset) == (segment(0), offset)


def test_a_segment_that_contradicts_its_journal_is_damage(files: MemoryFileSystem, index: QueueIndex) -> None:
    publish(index, run_of(0, 3))
    put(files, segment(0), segment_publish(2))
    with pytest.raises(DataError, match="rel_seq 2") as caught:
        index.read(0, 8)
    assert caught.value.path == segment(0)


def test_boundaries_and_bounds(index: QueueIndex) -> None:
    assert [index.next_segment_boundary(n) for n in (0, 7, 8)] == [8, 8, 16]
    publish(index, run_of(11, 2), run_of(31))
    assert index.bounds() == (8, 32)


def test_a_wrong_count_is_found_out(index: QueueIndex) -> None:
    publish(index, run_of(0))
    index.check_invariants()
    index.segments[0].unacked = -1
    with pytest.raises(RuntimeError, match="segment 0"):
        index.check_invariants()
    index.segments[0].unacked, index.safe_ticket = 1, 2
    with pytest.raises(RuntimeError, match="safe"):
        index.check_invariants()


# A segment's journal


def test_a_segments_journal_counts_what_is_unacked_and_knows_its_highest_position() -> None:
    known = SegmentJournal(3, 8, unacked=4)
    assert (known.empty, known.highest) == (True, 0)
    known.add(1, 2, 6)
    known.add(2, 2, 3)
    known.add(4, 2, 3)
    assert (known.unacked, known.empty, known.highest) == (7, False, 6)
    assert known.facts.tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
    known.forget()
    assert (known.unacked, known.empty, known.highest) == (7, True, 0)


def test_an_impossible_action_changes_nothing() -> None:
    known = SegmentJournal(0, 8)
    known.add(1, 0, 4)
    known.add(2, 2, 3)
    with pytest.raises(RuntimeError, match="position 2 of segment 0"):
        known.add(2, 0, 4)
    assert np.array_equal(known.facts[:4], [1, 1, 3, 1])
