"""The web applications of the documentation: two web processes, one of them killed, and a worker that SIGTERM ends."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import warren
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).parents[1] / "examples" / "web"
PAGE = Path(__file__).parents[1] / "docs" / "web.md"
SERVERS = {
    "flask": ["gunicorn", "--workers=2", "--bind=127.0.0.1:{port}", "flask_app:app"],
    "django": ["gunicorn", "--workers=2", "--bind=127.0.0.1:{port}", "django_app:application"],
    "fastapi": ["uvicorn", "--workers=2", "--port={port}", "fastapi_app:app"],
}
MAILS = 40


@contextlib.contextmanager
def process(place: Path, name: str, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that works on ``place``; its output is in a file of its name."""
    environment = {**os.environ, "DATA": str(place / "data"), "PYTHONPATH": str(EXAMPLES.parents[1])}
    with (place / name).open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, *command], cwd=EXAMPLES, env=environment, stdout=output, stderr=output
        )
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            running.kill()
            raise


@pytest.fixture
def port() -> int:
    """A free one."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def post(port: int, body: str) -> int:
    """The status of an answer; 0: none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/mails", body)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def web_processes(server: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Those that answer, not the one that starts them, nor multiprocessing's own."""
    children = psutil.Process(server.pid).children()
    return [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.mark.slow
@pytest.mark.parametrize("framework", SERVERS)
def test_every_mail_that_a_web_process_accepted_is_sent(framework: str, tmp_path: Path, port: int) -> None:
    pytest.importorskip(framework)
    command = [part.format(port=port) for part in SERVERS[framework]]
    accepted: list[str] = []

    def accept(mail: str) -> bool:
        is_accepted = post(port, mail) == 202
        accepted.extend([mail] if is_accepted else [])
        return is_accepted

    with process(tmp_path, "worker", ["worker.py"]) as worker, process(tmp_path, "web", ["-m", *command]) as server:
        wait_until(lambda: accept("first"), "no web process answers", process=server)
        for number in range(MAILS):
            accept(f"mail {number}")
            if number == MAILS // 2:
                wait_until(lambda: len(web_processes(server)) == 2, "there are not two web processes")
                web_processes(server)[0].send_signal(signal.SIGKILL)
        assert len(accepted) > MAILS // 2

        def sent() -> set[str]:
            return {line.removeprefix("sent ") for line in (tmp_path / "worker").read_text().splitlines()}

        wait_until(lambda: sent() >= set(accepted), "not all mails were sent")
        worker.terminate()
        assert worker.wait(60) == 0
    with warren.open(tmp_path / "data") as node:
        assert node.queue("mails").get() is None


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_the_page_shows_the_files_that_run(example: str) -> None:
    assert f"```py\n{(EXAMPLES / example).read_text(encoding='utf-8').rstrip()}\n```" in PAGE.read_text(
        encoding="utf-8"
    )
