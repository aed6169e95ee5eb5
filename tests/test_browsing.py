"""Browsing page by page: the same messages as in one go, and no work done twice."""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs
import pytest

from tests.support.index_tools import SETTINGS, Bodies, msg_id, queue_files
from tests.support.runtime_tools import hand_node
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.browsing import Browsed
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.counted import CountedFileSystem

ENVELOPE = Envelope(b"/", b"", (b"q",), b"", True)
TRANSIENT = attrs.evolve(ENVELOPE, persistent=False)


class CountingBodies(Bodies):
    read_count = 0

    def read_many(self, msg_ids: Sequence[bytes]) -> list[bytes]:
        self.read_count += len(msg_ids)
        return super().read_many(msg_ids)


def pages(queue: VariableQueue, size: int) -> list[Browsed]:
    """All of a queue as its actor is asked for it."""
    found: list[Browsed] = []
    while page := list(queue.browse(found[-1].seq_id + 1 if found else 0, size)):
        found += page
    return found


def publish(queue: VariableQueue, count: int, envelope: Envelope = ENVELOPE, size: int = 20) -> None:
    start = queue.state.next_seq_id
    queue.publish_many(envelope, b"".join(map(msg_id, range(start, start + count))), [bytes(size)] * count)


def queue_of_all_parts(seed: int) -> VariableQueue:
    """Messages in all five lists, of all kinds, with gaps; pending ones between them and in each way."""
    drawn = random.Random(seed)
    settings = attrs.evolve(SETTINGS, msg_store_io_batch_size=1, queue_index_embed_msgs_below=100)
    queue = VariableQueue.create(queue_files(CountedFileSystem(), settings))
    for _ in range(12):
        publish(queue, drawn.randrange(1, 9), drawn.choice([ENVELOPE, TRANSIENT]), drawn.choice([20, 200]))
    taken = [tag for part in queue.fetch_many(30) for tag in part.seq_ids]
    queue.state.target_ram_count = drawn.randrange(10)
    queue.resume()
    for _ in range(6):
        publish(queue, drawn.randrange(1, 9), drawn.choice([ENVELOPE, TRANSIENT]), drawn.choice([20, 200]))
    queue.state.target_ram_count = None
    publish(queue, 5)
    queue.requeue(drawn.sample(taken, 12))
    queue.fetch_many(3)
    queue.check_invariants()
    return queue


@pytest.mark.parametrize("seed", range(20))
def test_the_ids_at_positions_are_what_browsing_shows(seed: int) -> None:
    """Wherever they are: in Q1 to Q4, in delta with its holes, pending; and there is nothing at any other."""
    queue = queue_of_all_parts(seed)
    expected = {one.seq_id: one.msg_id for one in queue.browse()}
    positions = range(queue.state.next_seq_id + 20)
    for step in (1, 3):
        some = positions[::step]
        assert queue.ids_at(some) == [expected.get(seq_id) for seq_id in some]
    for seq_id in positions:
        assert queue.ids_at([seq_id, seq_id]) == [expected.get(seq_id)] * 2
    queue.check_invariants()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_pages_of_any_size_are_what_one_go_shows(seed: int) -> None:
    queue = queue_of_all_parts(seed)
    before, whole = queue.status(), list(queue.browse())
    assert [one.seq_id for one in whole] == sorted({one.seq_id for one in whole})
    assert len(whole) == queue.depth
    assert {one.unacked for one in whole} == {True, False}
    for size in (1, 2, 7, 1000):
        assert pages(queue, size) == whole
    assert queue.status() == before | {"disk_reads": queue.status()["disk_reads"]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_the_last_of_a_queue_of_all_parts_are_found_without_reading_a_message(seed: int) -> None:
    queue = queue_of_all_parts(seed)
    whole, reads = [one.seq_id for one in queue.browse()], queue.status()["disk_reads"]
    for count in range(len(whole) + 3):
        first, found = queue.first_of_last(count)
        assert [seq_id for seq_id in whole if seq_id >= first] == whole[len(whole) - min(count, len(whole)) :]
        assert found == min(count, len(whole))
    assert queue.status()["disk_reads"] - reads < len(whole) * len(whole)


def test_browsing_a_backlog_page_by_page_reads_each_segment_and_each_body_once() -> None:
    files, bodies = CountedFileSystem(), CountingBodies()
    settings = attrs.evolve(SETTINGS, segment_entry_count=1000, msg_store_io_batch_size=1)
    parts = attrs.evolve(queue_files(files, settings), persistent_store=StoreClient(bodies))
    queue = VariableQueue.create(parts)
    for _ in range(20):
        publish(queue, 300, size=20)
        publish(queue, 200, size=5000)
    queue.set_ram_duration_target(0.0)
    while queue.state.waiting_bump:
        queue.bump()
    queue.flush()
    assert queue.state.delta.count > 8000
    size = sum(files.size(f"{parts.path}/{name}") for name in files.list(parts.path))
    before, bodies.read_count = files.account.copy(), 0
    assert [one.seq_id for one in pages(queue, 64)] == list(range(10_000))
    assert files.account.since(before).read_bytes <= size
    assert bodies.read_count == 4000


def test_browsing_page_by_page_passes_over_what_was_seen_without_a_step() -> None:
    """10,000 runs: singly published, of two kinds in turn; and as many pending acks."""
    queue = VariableQueue.create(queue_files(CountedFileSystem(), attrs.evolve(SETTINGS, segment_entry_count=16384)))
    for _ in range(5000):
        publish(queue, 1, ENVELOPE)
        publish(queue, 1, TRANSIENT)
    queue.fetch_many(5000)
    state = queue.state
    walked = 0

    class Watched:
        """One of the queue's parts; every run that it gives is counted."""

        def __init__(self, part: object) -> None:
            self.part = part

        def since(self, seq_id: int) -> object:
            nonlocal walked
            for run in self.part.since(seq_id):  # type: ignore[attr-defined]
                walked += 1
                yield run

    for name in ("q1", "q2", "q3", "q4", "ram_pending", "disk_pending", "index_pending"):
        setattr(state, name, Watched(getattr(state, name)))
    page_size = 100
    assert [one.seq_id for one in pages(queue, page_size)] == list(range(10_000))
    assert walked <= 10_000 + 10_000 // page_size * 3 + 10, "a page walks over its own runs, and one of each part"


def test_a_browse_through_the_node_is_answered_in_turns_of_a_page_each() -> None:
    scene = hand_node()
    try:
        queue = scene.node.queue("q", arguments={"x-max-priority": 1})
        queue.publish_many([b"%d" % number for number in range(600)])
        queue.publish_many([b"%d" % number for number in range(600, 1000)], priority=1)
        turns = queue._verbs.actor.turn_count
        assert [int(one.body) for one in queue.browse()] == [*range(600, 1000), *range(600)]
        assert queue._verbs.actor.turn_count - turns == 4, "of 256 messages each"
        assert [int(one.body) for one in queue.browse(limit=402)] == [*range(600, 1000), 0, 1]
    finally:
        scene.node.close()
