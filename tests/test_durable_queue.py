"""DurableQueue does what queue.Queue is documented to do, and keeps what it has."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import warren
from tests.support.forked import in_child
from warren.durable_queue import DurableQueue, ShutDown
from warren.errors import WrongProcessError

New = Callable[..., DurableQueue]
SHORT_S = 0.02


@pytest.fixture
def new(tmp_path: Path) -> Iterator[New]:
    """Queues of one directory, all closed at the end."""
    made: list[DurableQueue] = []

    def make(maxsize: int = 0, *, name: str = "jobs", serializer: Any = "json", **options: Any) -> DurableQueue:
        made.append(DurableQueue(tmp_path / "node", name, maxsize, serializer, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Do something in another thread; what comes back waits for its outcome."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def finished() -> Any:
        thread.join(10)
        assert outcome, "it still waits"
        return outcome[0]

    return finished


# ── as documented for queue.Queue ────────────────────────────────────────────────────────────────────────────────────


def test_first_in_first_out(new: New) -> None:
    jobs = new()
    for number in range(5):
        jobs.put(number)
    assert [jobs.get() for _ in range(5)] == list(range(5))


def test_sizes_count_what_waits(new: New) -> None:
    jobs = new(maxsize=2)
    assert (jobs.qsize(), jobs.empty(), jobs.full()) == (0, True, False)
    jobs.put("a")
    assert (jobs.qsize(), jobs.empty(), jobs.full()) == (1, False, False)
    jobs.put("b")
    assert (jobs.qsize(), jobs.empty(), jobs.full()) == (2, False, True)
    jobs.get()
    assert (jobs.qsize(), jobs.full(), jobs.unfinished_tasks) == (1, False, 2)


@pytest.mark.parametrize("maxsize", [0, -1])
def test_without_a_limit_it_is_never_full(new: New, maxsize: int) -> None:
    jobs = new(maxsize)
    for number in range(20):
        jobs.put_nowait(number)
    assert not jobs.full()


def test_a_full_queue_raises_full_at_once_or_after_the_timeout(new: New) -> None:
    jobs = new(maxsize=1)
    jobs.put(1)
    with pytest.raises(queue.Full):
        jobs.put_nowait(2)
    with pytest.raises(queue.Full):
        jobs.put(2, block=False, timeout=60)
    began = time.monotonic()
    with pytest.raises(queue.Full):
        jobs.put(2, timeout=SHORT_S)
    assert time.monotonic() - began >= SHORT_S
    assert jobs.qsize() == 1


def test_an_empty_queue_raises_empty_at_once_or_after_the_timeout(new: New) -> None:
    jobs = new()
    with pytest.raises(queue.Empty):
        jobs.get_nowait()
    with pytest.raises(queue.Empty):
        jobs.get(block=False, timeout=60)
    began = time.monotonic()
    with pytest.raises(queue.Empty):
        jobs.get(timeout=SHORT_S)
    assert time.monotonic() - began >= SHORT_S


@pytest.mark.parametrize("verb", ["get", "put"])
def test_a_timeout_that_is_none_is_an_error(new: New, verb: str) -> None:
    jobs = new()
    arguments = ("item",) if verb == "put" else ()
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            getattr(jobs, verb)(*arguments, timeout=timeout)


@pytest.mark.parametrize("wrong", [{"maxsize": "5"}, {"mxsize": 5}, {"path_or_node": ""}, {"name": None}])
def test_wrong_arguments_make_no_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(warren.errors.InvalidValueError):
        DurableQueue(**({"path_or_node": "node", "name": "jobs"} | wrong))
    assert list(tmp_path.iterdir()) == []


def test_a_put_that_waits_for_room_goes_on_when_something_is_got(new: New) -> None:
    jobs = new(maxsize=1)
    jobs.put(1)
    put = in_thread(lambda: jobs.put(2, timeout=10))
    assert jobs.get() == 1
    assert put() is None
    assert jobs.get() == 2


def test_a_get_that_waits_goes_on_when_something_is_put(new: New) -> None:
    jobs = new()
    got = in_thread(lambda: jobs.get(timeout=10))
    jobs.put("late")
    assert got() == "late"


def test_getters_that_wait_get_one_item_each(new: New) -> None:
    jobs = new()
    waiting = [in_thread(lambda: jobs.get(timeout=10)) for _ in range(5)]
    for number in range(5):
        jobs.put(number)
    assert sorted(got() for got in waiting) == list(range(5))
    assert jobs.empty()


def test_a_limit_holds_whoever_puts_at_the_same_time(new: New) -> None:
    jobs = new(maxsize=3)

    def put(number: int) -> bool:
        try:
            jobs.put_nowait(number)
        except queue.Full:
            return False
        return True

    putting = [in_thread(partial(put, number)) for number in range(10)]
    assert sum(done() for done in putting) == jobs.qsize() == 3


def test_join_waits_until_every_item_is_done(new: New) -> None:
    jobs = new()
    jobs.join()
    for number in range(3):
        jobs.put(number)
    joined = in_thread(jobs.join)
    done: list[int] = []
    for _ in range(3):
        assert jobs.unfinished_tasks == 3 - len(done)
        done.append(jobs.get())
        jobs.task_done()
    assert joined() is None
    assert jobs.unfinished_tasks == 0


def test_done_more_often_than_got_is_an_error(new: New) -> None:
    jobs = new()
    with pytest.raises(ValueError, match="too many times"):
        jobs.task_done()
    jobs.put(1)
    jobs.get()
    jobs.task_done()
    with pytest.raises(ValueError, match="too many times"):
        jobs.task_done()


@pytest.mark.slow
def test_workers_do_everything_once(new: New) -> None:
    jobs = new(maxsize=10)
    done: list[int] = []

    def work() -> None:
        while (number := jobs.get()) is not None:
            done.append(number)
            jobs.task_done()
        jobs.task_done()

    workers = [in_thread(work) for _ in range(4)]
    for number in range(200):
        jobs.put(number)
    jobs.join()
    assert sorted(done) == list(range(200))
    for _ in workers:
        jobs.put(None)
    assert [finished() for finished in workers] == [None] * 4


def test_after_a_shutdown_nothing_is_put_and_what_is_there_is_got(new: New) -> None:
    jobs = new()
    jobs.put(1)
    jobs.shutdown()
    with pytest.raises(ShutDown):
        jobs.put(2)
    assert jobs.get() == 1
    with pytest.raises(ShutDown):
        jobs.get()
    with pytest.raises(ShutDown):
        jobs.get_nowait()


def test_a_shutdown_at_once_wakes_everybody_and_loses_nothing(new: New) -> None:
    jobs, full = new(), new(maxsize=1, name="full")
    full.put(1)
    waiting = [in_thread(jobs.get), in_thread(lambda: full.put(2)), in_thread(full.join)]
    for one in (jobs, full):
        one.shutdown(immediate=True)
    outcomes = [finished() for finished in waiting]
    assert [type(outcome) for outcome in outcomes[:2]] == [ShutDown, ShutDown]
    assert outcomes[2] is None
    with pytest.raises(ShutDown):
        full.get()
    full.close()
    assert new(name="full").get() == 1


def test_shut_down_is_the_standard_librarys_where_it_has_one() -> None:
    assert ShutDown is getattr(queue, "ShutDown", ShutDown)


# ── what is on disk ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_not_done_is_there_when_the_queue_is_opened_again(new: New) -> None:
    jobs = new()
    for number in range(4):
        jobs.put(number)
    assert [jobs.get() for _ in range(3)] == [0, 1, 2]
    jobs.task_done()
    jobs.close()
    again = new()
    assert [again.get() for _ in range(3)] == [1, 2, 3]
    again.task_done()
    assert again.unfinished_tasks == 2


@pytest.mark.slow
def test_what_a_killed_process_had_got_comes_back(new: New, tmp_path: Path) -> None:
    program = f"""
        import os
        from warren.durable_queue import DurableQueue
        jobs = DurableQueue({str(tmp_path / "node")!r}, "jobs", serializer="json")
        for number in range(3):
            jobs.put(number)
        jobs.get()
        jobs.task_done()
        jobs.get()
        os.kill(os.getpid(), 9)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=False)
    assert ended.returncode == -9, ended.stderr
    jobs = new()
    found = [jobs.get() for _ in range(jobs.qsize())]
    assert found[-2:] == [1, 2]  # an ack that was not on disk yet may have been lost


def test_done_is_the_oldest_item_of_the_calling_thread(new: New) -> None:
    jobs = new()
    for name in ("a", "b", "c"):
        jobs.put(name)
    assert jobs.get() == "a"
    assert in_thread(lambda: (jobs.get(), jobs.task_done()))() == ("b", None)
    jobs.close()
    again = new()
    assert [again.get(), again.get()] == ["a", "c"]


def test_a_thread_that_got_nothing_does_the_oldest_item_of_all(new: New) -> None:
    jobs = new()
    jobs.put("a")
    jobs.get()
    assert in_thread(jobs.task_done)() is None
    assert jobs.unfinished_tasks == 0


def test_several_queues_share_a_directory_and_those_of_one_name_are_one(new: New) -> None:
    first, same, other = new(maxsize=1), new(maxsize=1), new(name="other")
    first.put(1)
    put = in_thread(lambda: same.put(2, timeout=10))
    assert other.empty()
    assert first.get() == 1
    assert put() is None
    assert first.get() == 2


def test_items_that_others_publish_are_got(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        with DurableQueue(node, "jobs") as jobs:
            got = in_thread(lambda: jobs.get(timeout=10))
            node.queue("jobs").publish(b"from elsewhere")
            assert got() == b"from elsewhere"
        assert len(node.queue("jobs")) == 1  # the node is the caller's, and open


@pytest.mark.slow
def test_join_notices_what_is_done_elsewhere(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node, DurableQueue(node, "jobs") as jobs:
        jobs.put(b"1")
        joined = in_thread(jobs.join)
        node.queue("jobs").purge()
        assert joined() is None


def test_a_queue_that_is_deleted_says_so(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node, DurableQueue(node, "jobs") as jobs:
        got = in_thread(lambda: jobs.get(timeout=10))
        jobs.put(b"1"), got()
        waiting = in_thread(lambda: jobs.get(timeout=10))
        node.delete_queue("jobs")
        assert isinstance(waiting(), warren.WarrenError)


def test_a_node_that_takes_nothing_is_full(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        node._running.gate.set(frozenset({"memory"}))
        for maxsize in (0, 5):
            jobs = DurableQueue(node, "jobs", maxsize)
            with pytest.raises(queue.Full):
                jobs.put_nowait(b"1")
            with pytest.raises(queue.Full):
                jobs.put(b"1", timeout=SHORT_S)
        node._running.gate.set(frozenset())


def test_a_forked_child_closes_nothing_of_its_parent(new: New) -> None:
    jobs = new()
    jobs.put(1), jobs.get()
    assert in_child(jobs.close) == "None"
    jobs.task_done()
    assert jobs.unfinished_tasks == 0


# ── serializers ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("serializer", "item"),
    [
        (None, b"\x00bytes"),
        ("json", {"a": [1, None, "späť"]}),
        ("pickle", {1, 2, (3, "x")}),
        ((str.encode, bytes.decode), "text"),
    ],
)
def test_items_come_as_they_were_put(new: New, serializer: Any, item: Any) -> None:
    jobs = new(serializer=serializer)
    jobs.put(item)
    assert jobs.get() == item


@pytest.mark.parametrize("serializer", ["yaml", 1, (str.encode,), (1, 2)])
def test_an_unknown_serializer_is_refused(tmp_path: Path, serializer: Any) -> None:
    with pytest.raises(warren.errors.InvalidValueError, match="serializer"):
        DurableQueue(tmp_path / "node", "jobs", serializer=serializer)


@pytest.mark.parametrize(("serializer", "item"), [(None, "text"), (None, 3), ("json", {1})])
def test_an_item_that_cannot_be_bytes_is_refused_and_nothing_is_put(new: New, serializer: Any, item: Any) -> None:
    jobs = new(serializer=serializer)
    with pytest.raises((TypeError, warren.errors.MessageError)):
        jobs.put(item)
    assert jobs.empty()


def test_an_item_that_cannot_be_read_counts_as_got(new: New) -> None:
    new(serializer=None).put(b"no json")
    jobs = new()
    with pytest.raises(ValueError, match="Expecting value"):
        jobs.get()
    jobs.task_done()
    assert jobs.unfinished_tasks == 0


def test_puts_that_are_not_waited_for_are_there(new: New) -> None:
    jobs = new(confirm=False)
    for number in range(10):
        jobs.put(number)
    jobs.close()
    assert new().qsize() == 10


# ── other processes ──────────────────────────────────────────────────────────────────────────────────────────────────


def _work_off(jobs: DurableQueue, done: DurableQueue, count: int) -> None:
    for _ in range(count):
        done.put([os.getpid(), jobs.get(timeout=60)])
        jobs.task_done()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_multiprocessing_share_a_queue(tmp_path: Path, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    with (
        DurableQueue(tmp_path / "data", "jobs", serializer="json") as jobs,
        DurableQueue(tmp_path / "data", "done", serializer="json") as done,
    ):
        workers = [context.Process(target=_work_off, args=(jobs, done, 20), daemon=True) for _ in range(2)]
        for worker in workers:
            worker.start()
        for number in range(40):
            jobs.put(number)
        for worker in workers:  # before the queue, which would wait for ever for one that has died
            worker.join(60)
            assert worker.exitcode == 0
        jobs.join()
        found = [done.get(timeout=60) for _ in range(40)]
        assert sorted(number for _, number in found) == list(range(40))
        assert {process for process, _ in found} == {worker.pid for worker in workers}


def test_a_queue_of_a_node_does_not_go_to_another_process(tmp_path: Path) -> None:
    with (
        warren.open(tmp_path / "data") as node,
        DurableQueue(node, "jobs") as jobs,
        pytest.raises(WrongProcessError),
    ):
        pickle.dumps(jobs)
