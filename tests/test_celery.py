"""A Celery application and its worker in one process, on a directory."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import celery.signals
import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu import Queue

import warren.kombu  # noqa: F401 - the URL
from tests.support.server_tools import WORKERS, ask, gunicorn
from tests.support.waiting import wait_until
from warren.handles.shared_node import lease_node

PATIENCE_S = 60
POOLS = ("solo", "threads")


class Tally:
    """What tasks have done, counted; and whether all of it is."""

    def __init__(self) -> None:
        self.done: Counter[Any] = Counter()
        self.moments: list[float] = []
        self._changed = threading.Condition()

    def add(self, what: Any) -> None:
        with self._changed:
            self.done[what] += 1
            self.moments.append(time.monotonic())
            self._changed.notify_all()

    def wait_for(self, total: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.done.total() >= total, PATIENCE_S), self.done


@pytest.fixture
def tally() -> Tally:
    return Tally()


def new_app(directory: Path, **settings: Any) -> Any:
    app = Celery("tests", broker=f"warren://{directory}", backend="cache+memory://", set_as_current=False)
    app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=False, **settings)
    return app


@pytest.fixture
def app(tmp_path: Path, tally: Tally) -> Iterator[Any]:
    app = new_app(tmp_path / "node")
    add_tasks(app, tally)
    yield app
    app.pool.force_close_all()
    app.close()


def add_tasks(app: Any, tally: Tally) -> None:
    """Not shared: Celery would give the first application's tasks to all later ones."""

    @app.task(name="count", shared=False)
    def count(number: int) -> int:
        tally.add(number)
        return 2 * number

    @app.task(name="fails twice", shared=False, bind=True, max_retries=5)
    def fails_twice(task: Any) -> str:
        tally.add(task.request.retries)
        if task.request.retries < 2:
            raise task.retry(countdown=0.05)
        return f"done at attempt {task.request.retries}"

    @app.task(name="crashes", shared=False, acks_late=True, reject_on_worker_lost=True)
    def crashes() -> None:
        raise RuntimeError("on purpose")

    @app.task(name="rejects", shared=False, bind=True, acks_late=True)
    def rejects(task: Any) -> None:
        tally.add("rejected")
        raise celery.exceptions.Reject("no", requeue=tally.done["rejected"] < 3)

    @app.task(name="holds", shared=False, acks_late=True)
    def holds() -> None:
        tally.add("held")


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """A worker in this process sets the root logger's level, and leaves it so."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)


@contextmanager
def worker(app: Any, pool: str, **options: Any) -> Iterator[Any]:
    """A worker in a thread of its own, stopped at the end."""
    with start_worker(
        app, pool=pool, concurrency=4, perform_ping_check=False, shutdown_timeout=PATIENCE_S, **options
    ) as one:
        yield one


def queues(directory: Path) -> dict[str, int]:
    """What a directory has left in its queues."""
    lease = lease_node(directory)
    try:
        stats = [queue.stats() for queue in lease.node.queues()]
        return {one["name"]: one["messages"] for one in stats if one["messages"]}
    finally:
        lease.release()


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_a_thousand_tasks_are_done_once_and_their_results_come_back(
    app: Any, tally: Tally, tmp_path: Path, pool: str
) -> None:
    many = 1000
    with worker(app, pool) as running:
        assert running.consumer.loop.__name__ == "asynloop"
        results = [app.tasks["count"].delay(number) for number in range(many)]
        tally.wait_for(many)
        assert [result.get(timeout=PATIENCE_S) for result in results] == [2 * number for number in range(many)]
    assert tally.done == Counter(range(many))
    assert queues(tmp_path / "node") == {}


def test_tasks_that_were_sent_before_the_worker_started_are_done(app: Any, tally: Tally) -> None:
    app.tasks["count"].delay(1)
    app.pool.force_close_all()
    with worker(app, "solo"):
        tally.wait_for(1)


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_a_task_is_retried(app: Any, tally: Tally, pool: str) -> None:
    with worker(app, pool):
        assert app.tasks["fails twice"].delay().get(timeout=PATIENCE_S) == "done at attempt 2"
    assert tally.done == Counter(range(3))


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_tasks_wait_for_their_countdown_and_others_go_on(app: Any, tally: Tally, pool: str) -> None:
    """More of them wait than the prefetch count lets through: Celery raises it while they do."""
    with worker(app, pool, prefetch_multiplier=1):
        for number in range(6):
            app.tasks["count"].apply_async((number,), countdown=3600)
        began = time.monotonic()
        app.tasks["count"].apply_async((101,), countdown=1)
        app.tasks["count"].delay(100)
        tally.wait_for(2)
    assert tally.done == Counter([100, 101])
    assert max(tally.moments) - began >= 1


@pytest.mark.slow
def test_a_failing_task_is_acked_and_its_error_comes_back(app: Any, tmp_path: Path) -> None:
    with worker(app, "threads"), pytest.raises(RuntimeError, match="on purpose"):
        app.tasks["crashes"].delay().get(timeout=PATIENCE_S)
    assert queues(tmp_path / "node") == {}


@pytest.mark.slow
def test_a_task_that_rejects_its_message_gets_it_again(app: Any, tally: Tally, tmp_path: Path) -> None:
    with worker(app, "threads"):
        app.tasks["rejects"].delay()
        tally.wait_for(3)
        # The last rejection is on its way when the task has counted it.
        wait_until(lambda: not queues(tmp_path / "node"), "a message is left")
    assert tally.done["rejected"] == 3
    assert queues(tmp_path / "node") == {}


@pytest.mark.slow
def test_tasks_are_routed_to_queues_and_priorities_go_first(app: Any, tally: Tally) -> None:
    app.conf.update(
        task_queues=[Queue("urgent", max_priority=9), Queue("celery")],
        task_routes={"count": {"queue": "urgent"}},
        worker_prefetch_multiplier=1,
    )
    for priority in (1, 9, 5):
        app.tasks["count"].apply_async((priority,), priority=priority)
    with start_worker(app, pool="solo", concurrency=1, perform_ping_check=False):
        tally.wait_for(3)
    assert list(tally.done) == [9, 5, 1]


@pytest.mark.slow
def test_a_worker_answers_its_remote_control(app: Any) -> None:
    with worker(app, "threads", hostname="a@b"):
        control = app.control
        assert control.ping(timeout=5, limit=1) == [{"a@b": {"ok": "pong"}}]
        assert control.inspect(timeout=5, limit=1).registered()["a@b"]


@pytest.mark.slow
def test_events_of_a_worker_are_received(app: Any, tally: Tally) -> None:
    seen: list[str] = []
    ready = threading.Event()
    done = threading.Event()

    def watch() -> None:
        with app.connection() as connection:

            def note(event: dict[str, Any]) -> None:
                seen.append(event["type"])
                if event["type"] == "task-succeeded":
                    done.set()

            receiver = app.events.Receiver(connection, handlers={"*": note})
            with receiver.consumer_context() as (consuming, _, _):
                ready.set()
                while not done.is_set():
                    consuming.drain_events(timeout=PATIENCE_S)

    thread = threading.Thread(target=watch)
    with worker(app, "threads", task_events=True):
        thread.start()
        assert ready.wait(PATIENCE_S)
        app.tasks["count"].delay(1)
        assert done.wait(PATIENCE_S)
        thread.join()
    assert "task-received" in seen


@pytest.mark.slow
def test_chains_groups_and_chords_work(app: Any) -> None:
    count = app.tasks["count"]
    with worker(app, "threads"):
        assert (count.s(1) | count.s() | count.s()).apply_async().get(timeout=PATIENCE_S) == 8
        group = celery.group(count.s(number) for number in range(5))
        assert group.apply_async().get(timeout=PATIENCE_S) == [0, 2, 4, 6, 8]


@pytest.mark.slow
def test_what_a_killed_process_did_not_ack_is_done_by_the_next(app: Any, tally: Tally, tmp_path: Path) -> None:
    program = f"""
        import os, warren.kombu
        from celery import Celery
        app = Celery("tests", broker="warren://{tmp_path}/node", broker_transport_options={{"confirm_publish": True}})
        app.set_default()

        @app.task(name="holds", acks_late=True)
        def holds():
            os.kill(os.getpid(), 9)

        holds.delay()
        app.WorkController(pool_cls="solo").start()
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=False)
    assert ended.returncode == -9, ended.stderr
    with worker(app, "solo"):
        tally.wait_for(1)
    assert tally.done == Counter(["held"])


@pytest.mark.slow
def test_the_configuration_alone_names_the_transport(tmp_path: Path) -> None:
    program = f"""
        from celery import Celery
        app = Celery("tests", broker="warren://{tmp_path}/node")
        app.conf.broker_transport = "warren.kombu:Transport"

        @app.task
        def job(): ...

        job.delay()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
    assert queues(tmp_path / "node") == {"celery": 1}


# ── several processes ────────────────────────────────────────────────────────────────────────────────────────────────


SHOP = """
import os, sys
import warren.kombu
from celery import Celery

place = os.path.dirname(os.path.abspath(__file__))
app = Celery("shop", broker=f"warren://{place}/node", backend=f"file://{place}/results")
app.conf.update(
    broker_connection_retry_on_startup=False,
    broker_transport_options={"confirm_publish": True},
    beat_schedule={"tick": {"task": "note", "schedule": 0.2, "args": ("tick",)}},
    beat_schedule_filename=f"{place}/schedule",
)

@app.task(name="note")
def note(what):
    with open(f"{place}/notes", "a") as notes:
        notes.write(f"{what} {os.getpid()}\\n")
    return what

@app.task(name="again")
def again(what):
    note.delay(what)

def web(environ, start_response):
    what = environ["PATH_INFO"][1:]
    note.delay(what).get(timeout=60)
    again.delay(what)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % os.getpid()]
"""


@pytest.mark.slow
def test_prefork_workers_beat_and_two_web_processes_share_a_directory(tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    (tmp_path / "results").mkdir()
    (tmp_path / "shop.py").write_text(SHOP)
    notes = tmp_path / "notes"

    def begin(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", *arguments], cwd=tmp_path, stderr=subprocess.DEVNULL)

    def noted() -> Counter[str]:
        return Counter(line.split()[0] for line in notes.read_text().splitlines()) if notes.exists() else Counter()

    def wait_for(*what: str) -> None:
        wait_until(lambda: Counter(what) <= noted(), f"not all of {what} is done")

    worker = begin("celery", "-A", "shop", "worker", "--pool", "prefork", "-c", "2", "-l", "ERROR")
    beat = begin("celery", "-A", "shop", "beat", "-l", "ERROR")
    try:
        with gunicorn(tmp_path, "shop:web") as web:
            answered: list[int] = []

            def both_have_answered() -> bool:
                answered.append(ask(web, f"web-{len(answered)}"))
                return len({*answered} - {0}) == WORKERS

            wait_until(both_have_answered, "not both web processes answer")
            done = [f"web-{number}" for number, process in enumerate(answered) if process]
            wait_for(*done, *done, "tick")
            worker.kill()  # and with it perhaps the host
            worker.wait()
            worker = begin("celery", "-A", "shop", "worker", "--pool", "prefork", "-c", "2", "-l", "ERROR")
            assert ask(web, "later")
            wait_for("later", "later")
    finally:
        for process in (worker, beat):
            process.terminate()
        for process in (worker, beat):
            process.wait(PATIENCE_S)
    assert noted()[done[0]] >= 2  # an ack that is on its way when a host ends counts for nothing
