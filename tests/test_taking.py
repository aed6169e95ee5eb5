"""Messages that leave from wherever they stand: the named situations. Any mixture of them is in the vhost machine."""

from __future__ import annotations

import attrs
import pytest

from tests.support.index_tools import DELIVERING, SETTINGS, Bodies, msg_id, queue_files
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.counted import CountedFileSystem
from warren.storage.settings import Settings

ENVELOPE = Envelope(b"/", b"", (b"q",), b"", True)
LARGE = 5000
PAGING = attrs.evolve(SETTINGS, msg_store_io_batch_size=1)


class CountingBodies(Bodies):
    read_count = 0

    def read_many(self, msg_ids: object) -> list[bytes]:
        self.read_count += len(msg_ids)  # type: ignore[arg-type]
        return super().read_many(msg_ids)  # type: ignore[arg-type]


def publish(queue: VariableQueue, count: int, size: int = 20) -> None:
    start = queue.state.next_seq_id
    queue.publish_many(ENVELOPE, b"".join(map(msg_id, range(start, start + count))), [bytes(size)] * count)


def wanted(*seq_ids: int) -> dict[int, bytes]:
    return {seq_id: msg_id(seq_id) for seq_id in seq_ids}


def squeeze(queue: VariableQueue, target: int) -> None:
    queue.state.rates.ingress = 1.0
    queue.set_ram_duration_target(target + 0.5)
    while queue.state.waiting_bump:
        queue.bump()


def full_queue(settings: Settings = PAGING) -> VariableQueue:
    """Messages in each of its lists: Q4, Q3, delta, Q2 and Q1, in this order."""
    queue = VariableQueue.create(queue_files(CountedFileSystem(), settings))
    publish(queue, 40, LARGE)
    squeeze(queue, 4)
    queue.state.target_ram_count = 12
    publish(queue, 10, LARGE)
    queue.resume()
    publish(queue, 4, LARGE)
    taken = queue.fetch_many(3)
    queue.requeue([part.seq_ids for part in taken])
    queue.check_invariants()
    return queue


def standing(queue: VariableQueue) -> dict[str, list[int]]:
    s = queue.state
    lists = {"q4": s.q4, "q3": s.q3, "q2": s.q2, "q1": s.q1}
    return {name: [n for run in one for n in run.seq_ids] for name, one in lists.items()}


def drained(queue: VariableQueue) -> list[tuple[int, bool]]:
    return [(seq_id, part.redelivered) for part in queue.fetch_many(1000) for seq_id in part.seq_ids]


def test_one_from_the_middle_of_each_list_leaves_all_others_where_they_are() -> None:
    queue = full_queue()
    before, delta = standing(queue), queue.state.delta
    assert all(len(one) > 1 for one in before.values()), before
    assert delta.count > 2
    start, end = delta.bounds
    chosen = [before["q4"][1], before["q3"][1], (start + end) // 2, before["q2"][1], before["q1"][1]]
    in_ram, count = queue.state.ram_msg_count, delta.count
    fetched = queue.take(wanted(*chosen))
    queue.check_invariants()
    assert [n for part in fetched for n in part.seq_ids] == chosen
    assert standing(queue) == {name: [n for n in one if n not in chosen] for name, one in before.items()}
    assert (delta.count, delta.bounds) == (count - 1, (start, end))
    assert queue.state.ram_msg_count < in_ram, "nobody came into RAM"
    queue.ack([part.seq_ids for part in fetched])
    rest = drained(queue)
    assert [n for n, _ in rest] == [n for n in range(54) if n not in chosen]
    assert {n for n, redelivered in rest if redelivered} == {0, 2}, "those that were fetched before, without the 1"


def test_what_was_taken_and_comes_back_stands_in_its_old_place_and_is_redelivered() -> None:
    queue = full_queue()
    before, bounds = standing(queue), queue.state.delta.bounds
    chosen = [before["q4"][1], before["q3"][1], bounds[0] + 2, before["q2"][1], before["q1"][1]]
    queue.take(wanted(*chosen))
    queue.requeue(chosen)
    queue.check_invariants()
    assert standing(queue) == before
    assert queue.state.delta.bounds == bounds
    rest = drained(queue)
    assert [n for n, _ in rest] == [*range(54)]
    assert {n for n, redelivered in rest if redelivered} == {0, 1, 2, *chosen}


def test_a_message_of_another_id_a_pending_one_and_one_that_is_gone_are_not_taken() -> None:
    queue = full_queue()
    assert queue.fetch() is not None
    assert queue.fetch(ack_required=False) is not None
    before = queue.status()
    there = {0: msg_id(0), 1: msg_id(1), 7: msg_id(8), 30: bytes(16), 53: msg_id(0), 54: msg_id(54), 10**9: msg_id(5)}
    assert queue.take(there) == []
    assert queue.remove(there) == []
    after = queue.status()
    for name in ("disk_reads", "avg_egress_rate", "avg_ack_ingress_rate", "avg_ingress_rate", "avg_ack_egress_rate"):
        del before[name], after[name]
    assert after == before


def test_removing_reads_no_body() -> None:
    bodies = CountingBodies()
    parts = attrs.evolve(queue_files(CountedFileSystem(), PAGING), persistent_store=StoreClient(bodies))
    queue = VariableQueue.create(parts)
    publish(queue, 100, LARGE)
    squeeze(queue, 0)
    assert sum(map(len, queue.remove(wanted(*range(10, 90, 3))))) == 27
    assert bodies.read_count == 0
    assert len(bodies.bodies) == 73
    queue.check_invariants()


def test_a_sparse_page_of_delta_is_read_in_one_go_and_its_bodies_too() -> None:
    files, bodies = CountedFileSystem(), CountingBodies()
    settings = attrs.evolve(PAGING, segment_entry_count=1000)
    queue = VariableQueue.create(attrs.evolve(queue_files(files, settings), persistent_store=StoreClient(bodies)))
    publish(queue, 1000, LARGE)
    squeeze(queue, 0)
    queue.flush()
    size = sum(files.size(f"{queue.state.index.path}/{name}") for name in files.list(queue.state.index.path))
    before = files.account.copy()
    taken = queue.take(wanted(*range(1, 600, 2)))
    assert sum(part.count for part in taken) == 300 == bodies.read_count
    assert files.account.since(before).read_bytes <= size


@pytest.mark.parametrize("lazy", [False, True])
def test_all_but_the_last_may_be_removed_and_the_last_then_too(lazy: bool) -> None:
    for settings in (PAGING, attrs.evolve(PAGING, deliver_with_publish=True)):
        queue = full_queue(settings)
        queue.set_mode("lazy" if lazy else "default")
        assert sum(map(len, queue.remove(wanted(*range(53))))) == 53
        queue.check_invariants()
        assert (len(queue), [one.seq_id for one in queue.browse()]) == (1, [53])
        assert sum(map(len, queue.remove(wanted(53)))) == 1
        queue.check_invariants()
        assert (len(queue), queue.fetch()) == (0, None)
        publish(queue, 2)
        assert [n for n, _ in drained(queue)] == [54, 55]


@pytest.mark.parametrize("which", ["q4", "q3", "delta", "q2", "q1"])
def test_a_list_that_was_emptied_is_passed_over(which: str) -> None:
    queue = full_queue()
    before = standing(queue) | {"delta": [*range(*queue.state.delta.bounds)]}
    assert sum(map(len, queue.remove(wanted(*before[which])))) == len(before[which])
    queue.check_invariants()
    publish(queue, 3)
    queue.check_invariants()
    assert [n for n, _ in drained(queue)] == [n for n in range(57) if n not in before[which]]


@pytest.mark.parametrize("stop", [False, True])
def test_where_deliver_records_say_nothing_what_is_delivered_behind_a_gap_counts_as_delivered(stop: bool) -> None:
    """In a broker's directory only next_deliver_seq_id tells; it goes over the gap that was taken."""
    parts = queue_files(CountedFileSystem(), DELIVERING)
    queue = VariableQueue.create(parts)
    publish(queue, 10)
    queue.remove(wanted(2, 3, 7))
    assert drained(queue)[:3] == [(0, False), (1, False), (4, False)]
    assert queue.state.next_deliver_seq_id == 10
    if stop:
        terms = queue.close(bytes(16))
        queue = VariableQueue.recover(parts, terms, store_recovered=True)
    else:
        queue.requeue([range(10)])
    assert drained(queue) == [(n, True) for n in (0, 1, 4, 5, 6, 8, 9)]


def test_where_deliver_records_say_nothing_one_that_was_taken_and_comes_back_is_redelivered() -> None:
    queue = VariableQueue.create(queue_files(CountedFileSystem(), DELIVERING))
    publish(queue, 6)
    queue.take(wanted(3))
    queue.requeue([3])
    assert [redelivered for _, redelivered in drained(queue)] == [True] * 4 + [False] * 2, (
        "and those before it, perhaps"
    )


def test_a_stop_while_a_gap_lies_ahead_counts_what_stands_before_its_end_as_delivered() -> None:
    parts = queue_files(CountedFileSystem(), DELIVERING)
    queue = VariableQueue.create(parts)
    publish(queue, 6)
    queue.remove(wanted(3))
    queue = VariableQueue.recover(parts, queue.close(bytes(16)), store_recovered=True)
    assert drained(queue) == [(0, True), (1, True), (2, True), (4, False), (5, False)]
