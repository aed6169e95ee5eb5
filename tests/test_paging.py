"""How far a queue pages: payloads in the index leave RAM too, those of ready messages and of unacked ones."""

from __future__ import annotations

import random

import attrs
import pytest

from tests.support.index_tools import PATH, Bodies, body, msg_id, queue_files
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.counted import CountedFileSystem
from warren.storage.filesystem import FileSystem
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import RABBITMQ_3_10, Settings

ENVELOPE = Envelope(b"/", b"", (b"q",), b"", True)
TRANSIENT = attrs.evolve(ENVELOPE, persistent=False)
SMALL = Settings(segment_entry_count=256, msg_store_io_batch_size=64)


def new_queue(settings: Settings = SMALL, files: FileSystem | None = None, number: int = 0) -> VariableQueue:
    parts = queue_files(CountedFileSystem() if files is None else files, settings)
    return VariableQueue.create(attrs.evolve(parts, path=f"{parts.path}{number}"))


def publish(queue: VariableQueue, count: int, envelope: Envelope = ENVELOPE, size: int | None = None) -> None:
    numbers = range(queue.state.next_seq_id, queue.state.next_seq_id + count)
    bodies = [body(n) if size is None else body(n).ljust(size, b".") for n in numbers]
    queue.publish_many(envelope, b"".join(map(msg_id, numbers)), bodies)


def page_to(queue: VariableQueue, target_ram_count: int) -> None:
    """Give it a target, and let it page until it is done."""
    queue.state.target_ram_count = target_ram_count
    queue.resume()
    while queue.state.waiting_bump:
        queue.bump()
    queue.check_invariants()


def taken(queue: VariableQueue, count: int = 100_000) -> list[bytes]:
    return [one for part in queue.fetch_many(count, ack_required=False) for one in part.bodies()]


def disk() -> MemoryFileSystem:
    """One that loses what was not synced, and on which the directory of all queues is there for good."""
    files = MemoryFileSystem(random.Random(1))
    files.make_directories(PATH.rpartition("/")[0])
    files.sync_all()
    return files


# ── ready messages ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_hundred_queues_of_small_messages_at_target_0_keep_one_message_each() -> None:
    files = CountedFileSystem()
    queues = [new_queue(Settings(), files, number) for number in range(200)]
    for queue in queues:
        publish(queue, 100, size=1000)
    assert sum(queue.state.ram_bytes for queue in queues) == 20_000_000
    for queue in queues:
        page_to(queue, 0)
    assert sum(queue.state.ram_bytes for queue in queues) == 200_000
    for queue in queues:
        assert sum(run.batch.count for run in queue.state.q3) == 1, "and what is left holds on to no others"
        assert queue.state.delta.count == 99


def test_under_the_profile_of_3_10_what_is_left_of_the_heads_segment_stays() -> None:
    queue = new_queue(attrs.evolve(RABBITMQ_3_10, segment_entry_count=256, msg_store_io_batch_size=64))
    publish(queue, 1000)
    taken(queue, 100)
    page_to(queue, 0)
    assert (len(queue.state.q3), queue.state.ram_msg_count) == (256, 256)
    taken(queue, 100)
    publish(queue, 500)
    page_to(queue, 0)
    assert (queue.state.q3.first_seq_id, queue.state.delta.start) == (200, 256)


@pytest.mark.parametrize("envelope", [ENVELOPE, TRANSIENT])
def test_what_is_above_a_small_target_goes_and_the_messages_next_out_stay(envelope: Envelope) -> None:
    queue = new_queue()
    publish(queue, 1000, envelope)
    page_to(queue, 50)
    state = queue.state
    assert (len(state.q4), len(state.q3), state.ram_msg_count) == (50, 1, 51), "Q3 keeps its oldest"
    assert (state.delta.start, state.delta.count) == (51, 949)
    assert taken(queue) == [body(n) for n in range(1000)]


def test_bodies_in_the_store_leave_their_positions_in_ram_as_before() -> None:
    queue = new_queue(attrs.evolve(SMALL, queue_index_embed_msgs_below=1))
    publish(queue, 1000)
    page_to(queue, 50)
    assert queue.state.ram_msg_count <= 50
    assert len(queue.state.q3) >= 256
    page_to(queue, 0)
    assert len(queue.state.q3) == 1


def test_delta_that_begins_inside_a_segment_takes_messages_back_and_gives_all_in_order() -> None:
    queue, drawn = new_queue(), random.Random(5)
    publish(queue, 300)
    publish(queue, 300, TRANSIENT)
    page_to(queue, 0)
    assert queue.state.delta.start == 1
    found = []
    while len(queue):
        fetched = [tag for part in queue.fetch_many(drawn.randrange(1, 30)) for tag in part.seq_ids]
        back = drawn.sample(fetched, drawn.randrange(len(fetched)))
        queue.requeue(back)
        queue.ack([tag for tag in fetched if tag not in back])
        found += [tag for tag in fetched if tag not in back]
        page_to(queue, drawn.choice([0, 0, 3, 200]))
    assert sorted(found) == list(range(600))
    assert queue.status()["messages_ram"] == 0


def test_a_crash_with_a_segment_that_is_partly_loaded_loses_nothing() -> None:
    files = disk()
    parts = queue_files(files, SMALL)
    queue = VariableQueue.create(parts)
    publish(queue, 600)
    page_to(queue, 0)
    queue.ack([part.seq_ids for part in queue.fetch_many(70)])
    page_to(queue, 10)
    assert queue.state.q3.first_seq_id == 70
    assert queue.state.delta.start is not None
    assert queue.state.delta.start < 256
    queue.sync()
    queue.abandon()
    again = VariableQueue.recover(attrs.evolve(parts, files=files.after_power_loss(random.Random(2))))
    assert taken(again) == [body(n) for n in range(70, 600)]


def test_a_queue_that_was_recovered_has_one_message_in_ram_until_somebody_comes() -> None:
    files = CountedFileSystem()
    parts = queue_files(files, SMALL)
    queue = VariableQueue.create(parts)
    publish(queue, 600)
    terms = queue.close(bytes(16))
    queue = VariableQueue.recover(parts, terms, store_recovered=True)
    assert (queue.state.ram_msg_count, queue.state.delta.count) == (1, 599)
    assert taken(queue, 1) == [body(0)]
    assert queue.state.ram_msg_count == 255, "without a target a load brings what is left of the segment"
    assert taken(queue) == [body(n) for n in range(1, 600)]


@pytest.mark.slow
def test_draining_at_target_0_holds_a_few_messages_at_a_time_and_reads_a_segment_a_few_times() -> None:
    """A segment of 2 MB: so large that parts of it are read by themselves."""
    files = CountedFileSystem()
    queue = new_queue(Settings(segment_entry_count=2000), files)
    publish(queue, 6000, size=1000)
    page_to(queue, 0)
    queue.flush()
    size, most = sum(files.size(f"{queue.state.index.path}/{number}.idx") for number in range(3)), 0
    before = files.account.copy()
    for number in range(6000):
        [fetched] = queue.fetch_many(1)
        assert fetched.bodies() == [body(number).ljust(1000, b".")]
        queue.ack([fetched.seq_ids])
        most = max(most, queue.state.ram_msg_count)
    done = files.account.since(before)
    assert most <= 64
    assert done.read_bytes <= 2.5 * size, "to see what is where, and each body"
    assert done.syncs <= 3 * 6000 * 2 // 64, "a flush for every 64 records, and not for each"
    queue.flush()
    assert [name for name in files.list(queue.state.index.path) if name.endswith(".idx")] == []


def test_a_lazy_queue_with_a_target_is_not_read_anew_for_each_message() -> None:
    files = CountedFileSystem()
    queue = new_queue(Settings(segment_entry_count=2000), files)
    queue.set_mode("lazy")
    publish(queue, 2000)
    queue.state.target_ram_count = 0
    queue.flush()
    size, before = files.size(f"{queue.state.index.path}/0.idx"), files.account.copy()
    for number in range(2000):
        assert taken(queue, 1) == [body(number)]
    assert files.account.since(before).read_bytes <= 3 * size


# ── pending acks ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("envelope", [ENVELOPE, TRANSIENT])
def test_unacked_messages_whose_bodies_are_in_the_index_are_paged(envelope: Envelope) -> None:
    queue = new_queue()
    publish(queue, 1000, envelope)
    queue.fetch_many(1000)
    page_to(queue, 10)
    state = queue.state
    assert (state.ram_ack_count, len(state.disk_pending)) == (10, 990)
    assert state.ram_bytes == 10 * len(body(0))
    assert all(body(seq_id) in term for seq_id, term in queue.read_pending([range(1000)]))
    queue.requeue([range(500), range(990, 1000)])
    queue.ack([range(500, 990)])
    queue.check_invariants()
    assert taken(queue) == [body(n) for n in (*range(500), *range(990, 1000))]
    assert (state.pending_ack_count, state.ram_bytes) == (0, 0)
    queue.flush()
    assert not any(state.index._files.size(f"{state.index.path}/{name}") for name in ("journal.jif",))


def test_under_the_profile_of_3_10_they_are_not() -> None:
    queue = new_queue(attrs.evolve(RABBITMQ_3_10, segment_entry_count=256))
    publish(queue, 1000)
    queue.fetch_many(1000)
    page_to(queue, 10)
    assert (queue.state.ram_ack_count, len(queue.state.disk_pending)) == (1000, 0)


def test_unacked_messages_in_store_and_index_are_paged_from_the_last_delivered_on() -> None:
    store = Bodies()
    parts = queue_files(CountedFileSystem(), SMALL)
    queue = VariableQueue.create(attrs.evolve(parts, persistent_store=StoreClient(store)))
    for _ in range(10):
        publish(queue, 5)
        publish(queue, 5, size=5000)
    queue.fetch_many(100)
    page_to(queue, 30)
    state = queue.state
    assert state.ram_ack_count == 30
    assert min(run.start for run in state.disk_pending) == 30
    queue.requeue([range(100)])
    assert [one[:20] for one in taken(queue)] == [body(n) for n in range(100)]
    assert store.bodies == {}


def test_a_paged_unacked_message_comes_back_after_a_crash_if_it_is_persistent() -> None:
    files = disk()
    parts = queue_files(files, SMALL)
    queue = VariableQueue.create(parts)
    publish(queue, 50, TRANSIENT)
    publish(queue, 50)
    queue.fetch_many(100)
    page_to(queue, 0)
    queue.sync()
    queue.abandon()
    again = VariableQueue.recover(attrs.evolve(parts, files=files.after_power_loss(random.Random(2))))
    fetched = again.fetch_many(100, ack_required=False)
    assert [one for part in fetched for one in part.bodies()] == [body(n) for n in range(50, 100)]
    assert all(part.redelivered for part in fetched)


def test_a_queue_keeps_no_more_in_ram_than_it_is_told_to_whatever_the_memory() -> None:
    queue = new_queue(attrs.evolve(SMALL, target_ram_count_max=100))
    for _ in range(20):
        publish(queue, 50)
        while queue.state.waiting_bump:
            queue.bump()
        assert queue.state.ram_msg_count <= 100 + SMALL.msg_store_io_batch_size  # it pages by batches
    for target in (None, 0.0, None):
        queue.set_ram_duration_target(target)
        assert queue.state.target_ram_count == (0 if target == 0.0 else 100)
    taken = [one for fetched in queue.fetch_many(1000, ack_required=False) for one in fetched.bodies()]
    assert taken == [body(n) for n in range(1000)]
