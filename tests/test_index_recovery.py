"""An index comes back from its files: after a clean stop, after a crash, and in steps."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs
import pytest

from tests.support.index_tools import (
    ENVELOPE,
    JOURNAL,
    JOURNAL_PUBLISH_BYTES,
    PATH,
    SETTINGS,
    SIZE,
    TERM_BYTES,
    Position,
    every_body,
    journal_ack,
    journal_deliver,
    journal_publish,
    msg_id,
    new_index,
    number_of,
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
from tests.support.index_tools import term as term_of
from warren.queue_index.index.journal_replay import open_clean
from warren.queue_index.index.queue_index import QueueIndex
from warren.queue_index.index.recovery import DirtyRecovery
from warren.queue_index.message.message_format import Envelope, encode_message
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.errors import DataError, StorageError
from warren.storage.faults import SimulatedCrash
from warren.storage.memory import MemoryFile, MemoryFileSystem


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


def of_file(*records: bytes) -> bytes:
    return b"".join(records)


def seq_ids(index: QueueIndex) -> list[int]:
    return [position.seq_id for position in unacked(index)]


def six_segments(files: MemoryFileSystem) -> None:
    """Segments 0 … 5 with eight persistent messages each, and an empty journal."""
    index = new_index(files)
    for number in range(6):
        index.publish(run_of(number * 8, 8, unencoded=True), None)
    index.flush()


# After a crash


def test_transient_messages_are_acked_in_recovery(files: MemoryFileSystem) -> None:
    index = new_index(files)
    index.publish(run_of(0, 8, persistent=False), None)
    index.publish(run_of(8, 4, persistent=False, embedded=False), None)
    index.publish(run_of(12, 4), None)
    index.deliver([range(2), range(9, 10)])
    index.flush()
    index.publish(run_of(16, 2, persistent=False), None)
    index.publish(run_of(18), None)
    index.sync()
    left = files.after_process_crash()
    index = recover(left)
    assert seq_ids(index) == [12, 13, 14, 15, 18]
    assert left.list(PATH) == [".queue_name", "1.idx", "2.idx", "journal.jif"]
    assert left.read(segment(2)) == segment_publish(18)
    assert left.read(segment(1)).endswith(segment_short(11, 11, 10, 10, 9, 8, 8))


def test_what_does_not_survive_is_acked_in_memory_only(files: MemoryFileSystem) -> None:
    index = new_index(files)
    index.publish(run_of(0, 4, persistent=False), None)
    index.publish(run_of(4, 2), None)
    index.flush()
    before, index = files.contents(), new_index(files)
    recovery = DirtyRecovery(files, index, every_body)
    assert (recovery.finished, files.contents()) == (True, before)
    assert (index.segments[0].unacked, index.dirty_count) == (2, 8)


def test_crash_between_segment_append_and_journal_truncate_is_not_counted_twice(files: MemoryFileSystem) -> None:
    index = new_index(files)
    index.publish(run_of(0, 8), None)
    index.deliver([range(3)])
    index.ack([range(2)])
    index.sync()
    files.fail("truncate", JOURNAL)
    with pytest.raises(StorageError):
        index.flush()
    left = files.after_process_crash()
    assert left.size(JOURNAL) == 8 * JOURNAL_PUBLISH_BYTES + 3 * 8 + 2 * 8
    written = left.read(segment(0))
    index = recover(left)
    assert unacked(index) == [Position(2, delivered=True)] + [Position(n) for n in range(3, 8)]
    assert index.segments[0].unacked == 6
    assert left.read(segment(0)) == written


def test_crash_after_a_segment_was_deleted_leaves_leftovers_that_count_for_nothing(files: MemoryFileSystem) -> None:
    index = new_index(files)
    index.publish(run_of(0, 2), None)
    index.publish(run_of(8), None)
    index.flush()
    index.deliver([range(2)])
    index.ack([range(2)])
    index.sync()
    files.fail("truncate", JOURNAL)
    with pytest.raises(StorageError):
        index.flush()
    left = files.after_process_crash()
    assert left.read(JOURNAL) == journal_deliver(0, 1) + journal_ack(0, 1)
    assert left.list(PATH) == [".queue_name", "1.idx", "journal.jif"]
    assert unacked(recover(left)) == [Position(8)]


def test_crash_in_a_flush_whose_deliver_never_reached_the_journals_file(files: MemoryFileSystem) -> None:
    index = new_index(files)
    index.publish(run_of(0, 2), None)
    index.sync()
    index.deliver([range(1)])
    files.fail("truncate", JOURNAL)
    with pytest.raises(StorageError):
        index.flush()
    left = files.after_process_crash()
    assert left.read(JOURNAL) == journal_publish(0) + journal_publish(1)
    assert left.read(segment(0)) == segment_publish(1) + segment_publish(0) + segment_short(0)
    assert unacked(recover(left)) == [Position(0, delivered=True), Position(1)]


@pytest.mark.parametrize("lost", [1, 5, 20, TERM_BYTES - 1, TERM_BYTES])
@pytest.mark.parametrize("behind", [0, 39, 4096])
def test_a_publish_whose_end_came_back_as_zeros_is_dropped(files: MemoryFileSystem, lost: int, behind: int) -> None:
    """Its head was in a page that had reached the disk, the rest in one that had not."""
    half = journal_publish(2)[:-lost] + bytes(lost)
    put(files, JOURNAL, journal_publish(0) + journal_publish(1) + half + bytes(behind))
    assert unacked(recover(files)) == [Position(0), Position(1)]


def test_what_follows_a_page_that_came_back_as_zeros_is_dropped_too(files: MemoryFileSystem) -> None:
    half = journal_publish(1)[:-60] + bytes(60)
    put(files, JOURNAL, journal_publish(0) + half + journal_publish(2) + journal_deliver(2))
    assert unacked(recover(files)) == [Position(0)]


def test_a_message_in_which_a_whole_page_came_back_as_zeros_is_dropped(files: MemoryFileSystem) -> None:
    large = encode_message(Envelope(b"/", b"", (b"q" * 250,), b"", True), msg_id(1), b"large " * 700)
    data = journal_publish(0) + journal_publish(1, embedded=large)
    start = 8192 - len(data) + 100  # the second message's envelope lies in a page of its own
    many = b"".join(journal_ack(n) for n in range(1000, 1000 + start // 8)) if start > 0 else b""
    whole = many + data
    end_of_page = len(whole) // 4096 * 4096
    hole = whole[: end_of_page - 4096] + bytes(4096) + whole[end_of_page:]
    put(files, JOURNAL, hole)
    assert unacked(recover(files)) == [Position(0)]


def before_a_border(lost: int) -> bytes:
    """Position 0 is published, 1 comes and goes; the next record's first ``lost`` bytes are the last of a sector."""

    def records(size: int) -> bytes:
        filling = journal_publish(1, embedded=encode_message(ENVELOPE, msg_id(1), b"." * size))
        return journal_publish(0) + filling + journal_deliver(1) + journal_ack(1)

    return records(1 + -(len(records(1)) + lost) % 512)


@pytest.mark.parametrize("lost", [8, 9, 12, 20, 24, 30, 39])
@pytest.mark.parametrize("stored", [True, False])
def test_a_publish_whose_head_was_in_a_lost_sector_is_not_one_of_position_0(
    files: MemoryFileSystem, lost: int, stored: bool
) -> None:
    record = journal_publish(2, embedded=b"" if stored else None)
    put(files, JOURNAL, before_a_border(lost) + bytes(lost) + record[lost:] + journal_publish(3))
    assert seq_ids(recover(files)) == [0]


@pytest.mark.parametrize("lost", range(1, 8))
def test_a_deliver_whose_head_was_in_a_lost_sector_is_no_publish(files: MemoryFileSystem, lost: int) -> None:
    records = journal_deliver(0, *range(21, 60))
    put(files, JOURNAL, before_a_border(lost) + bytes(lost) + records[lost:])
    assert seq_ids(recover(files)) == [0]


@pytest.mark.parametrize("stored", [True, False])
def test_a_sound_record_may_begin_anywhere_before_the_end_of_a_sector(stored: bool) -> None:
    for room in range(42):
        files = MemoryFileSystem()
        put(files, JOURNAL, before_a_border(room) + journal_publish(2, embedded=b"" if stored else None))
        assert seq_ids(recover(files)) == [0, 2], room


@pytest.mark.parametrize("body", [bytes(20), bytes(4000)], ids=["small", "most of a page"])
def test_a_message_whose_body_is_zeros_is_whole(files: MemoryFileSystem, body: bytes) -> None:
    message = encode_message(ENVELOPE, msg_id(1), body)
    put(files, JOURNAL, journal_publish(0) + journal_publish(1, embedded=message))
    index = recover(files)
    assert [term for run in index.read(0, 8) for term in run.terms()] == [term_of(0), message]


def test_torn_segment_end_is_cut_on_recovery(files: MemoryFileSystem) -> None:
    put(files, segment(0), segment_publish(5) + segment_publish(4)[:-1])
    put(files, JOURNAL, journal_publish(4) + journal_publish(5))
    assert unacked(recover(files)) == [Position(4), Position(5)]
    assert files.read(segment(0)) == segment_publish(5) + segment_publish(4)
    assert files.size(JOURNAL) == 0


def test_a_segment_of_nuls_is_cut_to_nothing_and_written_anew(files: MemoryFileSystem) -> None:
    put(files, segment(0), bytes(300))
    put(files, JOURNAL, journal_publish(4) + journal_deliver(4))
    assert unacked(recover(files)) == [Position(4, delivered=True)]
    assert files.read(segment(0)) == segment_publish(4) + segment_short(4)


@pytest.mark.parametrize(
    "end",
    [journal_publish(3)[:-1], journal_deliver(1)[:3], bytes(39), bytes(40), bytes(4000), bytes(40) + journal_ack(1)],
    ids=["publish", "deliver", "39 zeros", "40 zeros", "many zeros", "behind zeros"],
)
def test_what_stands_before_a_journals_torn_end_is_good(files: MemoryFileSystem, end: bytes) -> None:
    put(files, JOURNAL, journal_publish(1) + journal_publish(2) + journal_deliver(2) + end)
    assert unacked(recover(files)) == [Position(1), Position(2, delivered=True)]


def test_a_whole_life_in_the_journal_and_leftovers_leave_no_segment(files: MemoryFileSystem) -> None:
    put(files, JOURNAL, journal_publish(1) + journal_deliver(1, 40) + journal_ack(1, 40, 90))
    assert recover(files).bounds() == (0, 0)
    assert files.list(PATH) == [".queue_name", "journal.jif"]


@pytest.mark.parametrize(
    ("in_journal", "in_segment", "where", "reason"),
    [
        (journal_ack(3), segment_publish(3), segment(0), "rel_seq 3"),
        (journal_publish(3) + journal_ack(3), b"", segment(0), "rel_seq 3"),
        (journal_publish(3) * 2, segment_publish(3), JOURNAL, "double publish"),
        (b"", segment_publish(3) * 2, segment(0), "double publish"),
    ],
    ids=["ack without deliver", "ack without deliver in the journal", "two publishes", "two publishes in the segment"],
)
def test_what_no_crash_leaves_is_damage(
    files: MemoryFileSystem, in_journal: bytes, in_segment: bytes, where: str, reason: str
) -> None:
    put(files, segment(0), in_segment)
    put(files, JOURNAL, in_journal)
    with pytest.raises(DataError, match=reason) as caught:
        recover(files)
    assert caught.value.path == where


def test_other_files_in_the_directory_are_left_alone(files: MemoryFileSystem) -> None:
    put(files, f"{PATH}/07.idx", b"not a segment's name")
    put(files, f"{PATH}/1.idx.bak", b"nor this")
    put(files, segment(1), segment_publish(9))
    assert seq_ids(recover(files)) == [9]
    assert files.read(f"{PATH}/07.idx") == b"not a segment's name"


@pytest.mark.parametrize("torn", [b"", journal_publish(9)[:-3]], ids=["whole", "torn"])
def test_a_short_journal_goes_on_where_nothing_is_synced(files: MemoryFileSystem, torn: bytes) -> None:
    good = journal_publish(0) + journal_publish(1) + journal_publish(2) + journal_deliver(0, 1) + journal_ack(0)
    put(files, JOURNAL, good + torn)
    index = recover(files, sync=False)
    assert (files.exists(segment(0)), files.read(JOURNAL)) == (False, good)
    assert unacked(index) == [Position(1, delivered=True), Position(2)]
    index.publish(run_of(8), None)
    index.ack([range(1, 2)])
    index.write_out()
    assert files.read(JOURNAL) == good + journal_publish(8) + journal_ack(1)
    files = files.after_process_crash()
    index = recover(files, sync=False)
    assert unacked(index) == [Position(2), Position(8)]
    index.flush()
    assert [name for name in files.list(PATH) if name.endswith("idx")] == ["0.idx", "1.idx"]


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (journal_publish(0) + journal_publish(1, persistent=False), [0]),
        (journal_publish(0) + journal_deliver(9) + journal_ack(9), [0]),
        (b"".join(map(journal_publish, range(1000))), list(range(1000))),
    ],
    ids=["something is lost", "a segment is empty", "long"],
)
def test_a_journal_that_cannot_stay_as_it_is_is_moved_into_segments(
    files: MemoryFileSystem, data: bytes, left: list[int]
) -> None:
    put(files, JOURNAL, data)
    index = recover(files, sync=False)
    assert [position.seq_id for position in unacked(index)] == left
    assert files.size(JOURNAL) == 0


# What is found


def test_messages_bytes_and_references_are_counted_wherever_they_stand(files: MemoryFileSystem) -> None:
    index = new_index(files)
    index.publish(run_of(0, 4), None)
    index.publish(run_of(4, 4, embedded=False), None)
    index.publish(run_of(8, 2, persistent=False), None)
    index.flush()
    index.publish(run_of(10, 3, unencoded=True), None)
    index.publish(run_of(13, 2, embedded=False), None)
    index.sync()
    told: list[bytes] = []
    recovery = DirtyRecovery(files, new_index(files), lambda one: number_of(one) != 5, told.extend)
    while recovery.step():
        pass
    assert recovery.take_found() == (4 + 3 + 3 + 2, 12 * SIZE)
    assert recovery.take_found() == (0, 0)
    assert sorted(told) == [msg_id(n) for n in (4, 6, 7, 13, 14)]


# In steps


def test_the_head_is_scanned_first_and_counts_grow(files: MemoryFileSystem) -> None:
    six_segments(files)
    index = new_index(files)
    recovery = DirtyRecovery(files, index, every_body)
    assert list(index.segments) == [5]  # the highest one: now the next seq_id is known
    assert (recovery.bounds, recovery.scanned_to, recovery.take_found()) == ((0, 48), 0, (8, 8 * SIZE))
    for number in range(5):
        assert not recovery.finished
        assert recovery.step() == (number < 4)
        assert list(index.segments) == [5, *range(number + 1)]
        assert (recovery.take_found(), recovery.bounds) == ((8, 8 * SIZE), (0, 48))
        assert recovery.scanned_to == (8 * (number + 1) if number < 4 else 48)
    assert recovery.finished


def test_segments_at_the_end_without_messages_are_deleted_before_they_are_used_again(files: MemoryFileSystem) -> None:
    six_segments(files)
    for number in (4, 5):
        start = 8 * number
        handle = files.open_append(segment(number))
        handle.append(segment_short(*range(start, start + 8)) * 2)
        handle.close()
    index = new_index(files)
    recovery = DirtyRecovery(files, index, every_body)
    assert (list(index.segments), recovery.bounds) == ([3], (0, 32))
    assert files.list(PATH) == [".queue_name", "0.idx", "1.idx", "2.idx", "3.idx", "journal.jif"]


def test_segments_that_the_journal_speaks_of_are_scanned_before_the_others(files: MemoryFileSystem) -> None:
    six_segments(files)
    put(files, JOURNAL, journal_deliver(17, 9) + journal_ack(9))
    index = new_index(files)
    DirtyRecovery(files, index, every_body)
    assert list(index.segments) == [1, 2, 5]


def test_a_second_crash_while_scanning_forgets_nothing_that_was_appended(files: MemoryFileSystem) -> None:
    six_segments(files)
    put(files, JOURNAL, journal_deliver(40, 41) + journal_ack(41) + journal_publish(48)[:-1])
    index = new_index(files)
    recovery = DirtyRecovery(files, index, every_body)
    assert not recovery.finished
    index.publish(run_of(48, 3), None)
    index.ack([range(40, 41)])
    index.deliver([range(42, 43)])
    index.sync()
    again = recover(files.after_process_crash())
    assert seq_ids(again) == [*range(40), *range(42, 51)]
    assert [position.seq_id for position in unacked(again) if position.delivered] == [42]


# After a clean stop


def test_a_stopped_queue_goes_on_in_the_same_journal(files: MemoryFileSystem) -> None:
    index = new_index(files)
    index.publish(run_of(0, 2), None)
    counts = index.close()
    index = new_index(files)
    open_clean(files, index, counts)
    index.publish(run_of(2), None)
    index.deliver([range(1)])
    index.sync()
    assert files.read(JOURNAL) == of_file(*map(journal_publish, range(3)), journal_deliver(0))
    assert unacked(index) == [Position(0, delivered=True), Position(1), Position(2)]


def test_zeros_behind_a_clean_journal_are_cut_before_anything_is_appended(files: MemoryFileSystem) -> None:
    put(files, JOURNAL, journal_publish(0) + bytes(100))
    index = new_index(files)
    open_clean(files, index, [(0, 1)])
    index.publish(run_of(1), None)
    index.sync()
    assert files.read(JOURNAL) == journal_publish(0) + journal_publish(1)


def test_a_torn_journal_was_not_stopped_cleanly(files: MemoryFileSystem) -> None:
    put(files, JOURNAL, journal_publish(0) + journal_publish(1)[:-1])
    with pytest.raises(DataError, match="not a whole record") as caught:
        open_clean(files, new_index(files), [(0, 1)])
    assert (caught.value.path, caught.value.offset) == (JOURNAL, JOURNAL_PUBLISH_BYTES)


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (journal_publish(0), "double publish: seq_id 0"),
        (journal_ack(0), "record out of order: seq_id 0"),
    ],
    ids=["published twice", "acked before it was delivered"],
)
def test_a_clean_journal_with_a_record_that_cannot_follow_is_damaged(
    files: MemoryFileSystem, last: bytes, said: str
) -> None:
    put(files, JOURNAL, journal_publish(0) + last)
    with pytest.raises(DataError, match=said) as caught:
        open_clean(files, new_index(files), [(0, 1)])
    assert (caught.value.path, caught.value.offset) == (JOURNAL, JOURNAL_PUBLISH_BYTES)


def test_without_a_journal_the_terms_alone_say_what_is_there(files: MemoryFileSystem) -> None:
    six_segments(files)
    files.delete(JOURNAL)
    index, start = new_index(files), files.operations
    open_clean(files, index, [(number, 8) for number in range(6)])
    assert files.operations == start
    assert index.bounds() == (0, 48)
    assert [p.seq_id for p in positions(index.read(6, 10))] == [6, 7, 8, 9]


# A crash anywhere


@attrs.define
class Life:
    """A queue's life on a disk that may die: what is published to stay, what is acked, and what of both is safe."""

    files: MemoryFileSystem
    published: set[int] = attrs.Factory(set)
    acked: set[int] = attrs.Factory(set)
    safe: set[int] = attrs.Factory(set)
    safely_acked: set[int] = attrs.Factory(set)

    def live(self) -> None:
        index = new_index(self.files)
        self._publish(index, 0, 6)
        self._publish(index, 6, 1)
        self._publish(index, 7, 1, persistent=False)
        self._ack(index, [range(2)])
        self._settle(index.sync)
        self._publish(index, 8, 4)
        self._ack(index, [range(2, 4), range(9, 10)])
        self._settle(index.flush)
        self._publish(index, 12, 2)
        self._publish(index, 14, 2, persistent=False)
        index.deliver([range(4, 6)])
        self._settle(index.sync)
        index.ack([range(4, 6)])
        self.acked |= {4, 5}
        self._ack(index, [range(6, 9)])
        self._settle(index.sync)
        index.deliver([range(10, 13), range(15, 16)])
        self._settle(index.flush)
        index.ack([range(10, 13)])
        self.acked |= {10, 11, 12}
        self._settle(index.close)

    def _publish(self, index: QueueIndex, start: int, count: int, *, persistent: bool = True) -> None:
        if persistent:
            self.published |= set(range(start, start + count))
        index.publish(run_of(start, count, persistent=persistent, embedded=start % 4 == 0), None)

    def _ack(self, index: QueueIndex, ranges: list[range]) -> None:
        self.acked |= {n for part in ranges for n in part}
        index.deliver(ranges)
        index.ack(ranges)

    def _settle(self, make_safe: Callable[[], object]) -> None:
        published, acked = set(self.published), set(self.acked)
        make_safe()
        self.safe, self.safely_acked = published, acked

    def check(self, left: MemoryFileSystem) -> None:
        """What was safe is there, what was safely acked is not, and the rest is what was published."""
        found = set(seq_ids(recover(left)))
        assert found >= self.safe - self.acked
        assert found <= self.published - self.safely_acked


def lives(*, torn: bool) -> list[Life]:
    """One life for every operation in which it can end, and the whole one."""
    found: list[Life] = []
    while True:
        life = Life(MemoryFileSystem(len(found)))
        life.files.make_directories(PATH.rpartition("/")[0])  # the vhost is older than its queue
        life.files.sync_all()
        life.files.crash_at(len(found) + 1, torn=torn)
        found.append(life)
        try:
            life.live()
        except SimulatedCrash:
            continue
        return found


@pytest.mark.parametrize("torn", [False, True], ids=["between operations", "within one"])
def test_a_process_may_die_at_any_operation(torn: bool) -> None:
    found = lives(torn=torn)
    assert len(found) > 25
    for life in found:
        life.check(life.files.after_process_crash())


@pytest.mark.slow
def test_power_may_be_lost_at_any_operation() -> None:
    for number, life in enumerate(lives(torn=True)):
        for seed in range(12):
            life.check(life.files.after_power_loss(random.Random(1000 * number + seed)))


@pytest.mark.slow
@pytest.mark.parametrize("step_by_step", [False, True], ids=["at once", "in steps"])
def test_a_recovery_may_die_at_any_operation(step_by_step: bool) -> None:
    for life in lives(torn=True):
        for operation in range(1, 30):
            left = life.files.after_process_crash()
            left.crash_at(operation, torn=True)
            try:
                index = new_index(left, SETTINGS)
                recovery = DirtyRecovery(left, index, every_body)
                if not step_by_step:
                    while recovery.step():
                        pass
                index.flush(even_if_clean=True)
            except SimulatedCrash:
                life.check(left.after_process_crash())
            else:
                life.check(left.after_process_crash())
                break


class OpenFiles(MemoryFileSystem):
    """Which of its files are open to be written."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[MemoryFile] = []

    def open_append(self, path: str) -> MemoryFile:
        self.opened.append(super().open_append(path))
        return self.opened[-1]

    @property
    def open_now(self) -> list[str]:
        return [handle.path for handle in self.opened if handle._open]


def test_a_recovery_that_fails_leaves_no_file_open() -> None:
    """With a disk that refuses writes, every new try kept a descriptor; and the disk could not be unmounted."""
    failures = 0
    for operation in range(1, 30):
        tried = OpenFiles()
        put(tried, JOURNAL, journal_publish(0) + journal_publish(1)[:-3])  # to be cut
        tried.opened.clear()
        tried.fail_at(operation)
        try:
            queue = VariableQueue.recover(queue_files(tried))
        except StorageError:
            failures += 1
        else:
            queue.abandon()
        assert not tried.open_now
    assert failures
