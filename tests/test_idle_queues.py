"""Ten thousand queues, most of them idle: what one of them costs, and that a rest changes nothing but that."""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from hypothesis.stateful import invariant

from tests.support.effort import times
from tests.support.index_tools import PATH, VHOST, Bodies, body, msg_id, queue_files, run_of
from tests.support.vhost_machine import NAMES, DefaultProfile, RabbitProfile, machine_settings
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.pending_acks import PendingAcks
from warren.queue_index.queue.run_queue import RunQueue
from warren.queue_index.queue.variable_queue import QueueFiles, VariableQueue
from warren.storage.filesystem import FileSystem, RealFileSystem
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import Settings

ENVELOPE = Envelope(VHOST, b"", (b"q",), b"", True)
SHARED = Settings()


def parts_maker(root: str, files: FileSystem) -> Callable[[int], QueueFiles]:
    """Makes the parts of queue ``n``: all that thousands of queues share is shared."""
    store, synced = Bodies(), dict[str, bool]()
    directory = f"{root}/vhosts/628WB79CIFDYO9LJI6DKMI09L/queues"

    def clock() -> int:
        return 0

    def parts(n: int) -> QueueFiles:
        return QueueFiles(
            files=files,
            path=f"{directory}/{n:025d}",
            vhost=VHOST,
            queue=b"queue-%d" % n,
            settings=SHARED,
            persistent_store=StoreClient(store),
            transient_store=StoreClient(store),
            clock=clock,
            sync=False,
            synced=synced,
        )

    return parts


def publish(queue: VariableQueue, numbers: range, *, confirm: bool = False) -> None:
    queue.publish_many(ENVELOPE, b"".join(map(msg_id, numbers)), [body(n) for n in numbers], confirm=confirm)


class WatchedFileSystem(MemoryFileSystem):
    """One on which the directory of all queues is there for good, and that says which directories were synced."""

    def __init__(self) -> None:
        super().__init__(0)
        self.synced: list[str] = []
        self.make_directories(PATH.rpartition("/")[0])
        self.sync_all()

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self.synced.append(path)


def bodies_of(queue: VariableQueue, count: int = 1000) -> list[bytes]:
    return [one for part in queue.fetch_many(count, ack_required=False) for one in part.bodies()]


def bytes_each(count: int, make: Callable[[int], VariableQueue]) -> float:
    """What a queue holds on to, everything that is its own included."""
    keep = make(count)  # what the first of all makes for all
    gc.collect()
    queues: list[VariableQueue | None] = [None] * count
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n in range(count):
            queues[n] = make(n)
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
        del keep


def test_an_empty_queue_costs_two_kilobytes(tmp_path: Path) -> None:
    parts = parts_maker(str(tmp_path), RealFileSystem())
    limit_bytes = 2048 if sys.version_info < (3, 12) else 2100  # later objects are larger
    assert bytes_each(1000, lambda n: VariableQueue.create(parts(n))) < limit_bytes


@pytest.mark.slow
def test_so_does_one_that_was_found_empty_after_a_crash(tmp_path: Path) -> None:
    files = RealFileSystem(max_open_files=100)
    assert files.descriptors is not None
    parts = parts_maker(str(tmp_path), files)

    def used_up(n: int) -> None:
        queue = VariableQueue.create(parts(n))
        publish(queue, range(3))
        queue.fetch_many(3, ack_required=False)
        queue.write_out()
        queue.abandon()

    for n in range(201):
        used_up(n)
    assert bytes_each(200, lambda n: VariableQueue.recover(parts(n))) < 2560
    assert len(files.descriptors) == 0


@pytest.mark.slow
@pytest.mark.parametrize("used_up", [False, True])
def test_and_one_at_rest_with_all_of_its_messages_on_disk(tmp_path: Path, used_up: bool) -> None:
    files = RealFileSystem(max_open_files=100)
    assert files.descriptors is not None
    parts = parts_maker(str(tmp_path), files)

    def rested(n: int) -> VariableQueue:
        queue = VariableQueue.create(parts(n))
        queue.set_mode("lazy")
        publish(queue, range(100), confirm=True)
        if used_up:
            queue.fetch_many(50)
            queue.ack_up_to(49)
            queue.fetch_many(50, ack_required=False)
        queue.sync()
        assert queue.drain_confirmed() == [range(100)]
        queue.rest()
        assert queue.state.delta.count == (0 if used_up else 100)
        return queue

    assert bytes_each(200, rested) < 2560
    assert len(files.descriptors) == 0, "its journal is closed"


# What a rest is, and is not


def test_a_queue_goes_on_after_a_rest() -> None:
    files = MemoryFileSystem(0)
    queue = VariableQueue.create(queue_files(files))
    queue.rest()
    assert not files.is_directory(PATH), "a queue that nobody ever used has nothing on disk"
    publish(queue, range(20))
    pending = queue.fetch_many(5)
    queue.rest()
    publish(queue, range(20, 30))
    queue.requeue([part.seq_ids for part in pending])
    queue.rest()
    queue.check_invariants()
    assert bodies_of(queue) == [body(n) for n in range(30)]
    queue.rest()
    assert files.list(PATH) == [".queue_name", "journal.jif"]
    assert files.size(f"{PATH}/journal.jif") == 0


def test_coming_back_from_a_rest_syncs_no_directory() -> None:
    """The names are there for good since the first time; two fsyncs would make a first publish slow."""
    files = WatchedFileSystem()
    queue = VariableQueue.create(queue_files(files))
    publish(queue, range(3))
    queue.rest()
    files.synced.clear()
    publish(queue, range(3, 6))
    queue.sync()
    assert files.synced == []


def test_a_queue_that_was_deleted_makes_and_syncs_its_directory_anew() -> None:
    files = WatchedFileSystem()
    queue = VariableQueue.create(queue_files(files))
    publish(queue, range(3))
    queue.rest()
    queue.purge()
    assert not files.is_directory(PATH)
    files.synced.clear()
    publish(queue, range(3, 6))
    assert {PATH, PATH.rpartition("/")[0]} <= set(files.synced)
    queue.sync()
    again = VariableQueue.recover(queue_files(files.after_power_loss(random.Random(0))))
    assert bodies_of(again) == [body(n) for n in range(3, 6)]


def test_a_queue_that_wakes_syncs_no_directory_again() -> None:
    files = WatchedFileSystem()
    parts = queue_files(files)
    queue = VariableQueue.create(parts)
    publish(queue, range(3))
    queue.sync()
    assert files.synced.count(PATH.rpartition("/")[0]) == 1
    awake = VariableQueue.recover(parts, queue.close(), store_recovered=True)
    files.synced.clear()
    publish(awake, range(3, 6))
    awake.sync()
    assert files.synced == []
    again = VariableQueue.recover(queue_files(files.after_power_loss(random.Random(0))))
    assert bodies_of(again) == [body(n) for n in range(6)]


def test_what_a_rest_wrote_survives_a_power_loss() -> None:
    files = WatchedFileSystem()
    queue = VariableQueue.create(queue_files(files))
    publish(queue, range(20), confirm=True)
    queue.rest()
    assert queue.drain_confirmed() == [range(20)]
    again = VariableQueue.recover(queue_files(files.after_power_loss(random.Random(0))))
    assert bodies_of(again) == [body(n) for n in range(20)]


def test_confirms_that_wait_outlive_a_rest() -> None:
    queue = VariableQueue.create(queue_files(MemoryFileSystem(0), attrs.evolve(SHARED, queue_index_embed_msgs_below=1)))
    publish(queue, range(3), confirm=True)
    queue.rest()
    assert queue.drain_confirmed() == [], "their bodies are not safe yet"
    queue.sync()
    assert queue.drain_confirmed() == [range(3)]


def test_empty_parts_share_nothing_that_one_of_them_fills() -> None:
    one, other = RunQueue(), RunQueue()
    one.append(run_of(0, 3))
    assert (len(one), len(other), list(other)) == (3, 0, [])
    other.prepend(run_of(7, 1))
    assert [run.start for run in other] == [7]
    held, empty = PendingAcks(), PendingAcks()
    held.add(run_of(0, 3))
    assert (len(held), len(empty), empty.find(1), empty.within(0, 9), empty.remove(0, 9)) == (3, 0, None, [], [])
    assert held.clear() != []
    held.add(run_of(4, 1))
    assert list(empty) == []
    assert empty.clear() == []


def test_a_part_that_holds_something_keeps_it_when_released() -> None:
    queue, pending = RunQueue([run_of(0, 3)]), PendingAcks()
    pending.add(run_of(3, 2))
    queue.release()
    pending.release()
    assert (len(queue), queue.first_seq_id, len(pending)) == (3, 0, 2)
    queue.take_left(3)
    pending.remove(3, 5)
    queue.release()
    pending.release()
    queue.append(run_of(5, 1))
    pending.add(run_of(6, 1))
    assert (queue.head.start, [run.start for run in pending]) == (5, [6])


def test_confirms_are_kept_when_released() -> None:
    queue = VariableQueue.create(queue_files(MemoryFileSystem(0)))
    confirms = queue.confirms
    publish(queue, range(2))
    confirms.release()
    confirms.expect(range(2))
    confirms.release()
    queue.sync()
    assert confirms.drain() == [range(2)]
    confirms.release()
    assert confirms.drain() == []


# Everything that a vhost can do, with a rest of every queue after every step


class RestingDefault(DefaultProfile):
    @invariant()
    def everybody_rests(self) -> None:
        for name in NAMES:
            queue, model = self.both(name)
            queue.rest()
            if not queue.recovering:
                model.gone.clear()
            queue.check_invariants()


class RestingRabbit(RabbitProfile):
    everybody_rests = RestingDefault.everybody_rests


for _machine in (RestingDefault, RestingRabbit):
    _machine.TestCase.settings = machine_settings(times(20))
TestQueuesThatRestAllTheTime = RestingDefault.TestCase
TestRabbitsQueuesThatRestAllTheTime = RestingRabbit.TestCase
