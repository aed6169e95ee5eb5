"""Web processes that gunicorn forks, on one directory: before the application is loaded, and after it (``preload``)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import warren
from tests.support.server_tools import WORKERS, ask, gunicorn
from tests.support.sharing_tools import host_of
from tests.support.waiting import wait_until

pytest.importorskip("gunicorn")

APP = """
import os, warren

node = warren.open(os.path.dirname(os.path.abspath(__file__)) + "/data", share=True, sync="os")
queue, topic = node.queue("orders"), node.topic("seen", queues=1)

def web(environ, start_response):
    body = environ["PATH_INFO"][1:].encode()
    queue.publish(body).wait(60)
    topic.append(body).wait(60)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % os.getpid()]
"""


@pytest.mark.slow
@pytest.mark.parametrize("preload", [False, True])
def test_workers_that_gunicorn_forks_share_a_directory(tmp_path: Path, preload: bool) -> None:
    answered: dict[int, int] = {}

    def ask_on(path: str) -> set[int]:
        answered[len(answered)] = ask(path, len(answered))
        return set(answered.values()) - {0}

    (tmp_path / "app.py").write_text(APP)
    with gunicorn(tmp_path, "app:web", *(["--preload"] if preload else [])) as path:
        wait_until(lambda: len(ask_on(path)) == WORKERS, "not all workers answer")
        host = host_of(tmp_path / "data")
        assert (host in answered.values()) != preload  # with it, the process that forks has opened the node
        victim = host if not preload else max(answered.values())
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(ask_on(path)) == WORKERS + 1, "there is no new worker")
    with warren.open(tmp_path / "data") as node:
        found = [int(one.body) for one in node.queue("orders").get_many(len(answered) + 1)]
        records = [int(one.body) for one in node.topic("seen").read("check")]
    done = [what for what, process in answered.items() if process]
    assert found == sorted(found)
    assert set(found) >= set(done)
    assert set(records) >= set(done)
