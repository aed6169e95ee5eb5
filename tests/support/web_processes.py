"""Web processes, forked by gunicorn."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORKERS = 2


@contextmanager
def gunicorn(place: Path, application: str, *options: str) -> Iterator[str]:
    """A server of an application, ``module:name``, in a directory, with two workers; the path of its socket."""
    command = [sys.executable, "-m", "gunicorn", "-w", str(WORKERS), "-b", "unix:web", *options, application]
    with (place / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=place, stderr=log)
    try:
        yield str(place / "web")
    finally:
        server.terminate()
        assert server.wait(60) == 0, (place / "log").read_text()


def ask(path: str, what: object) -> int:
    """Ask for ``/what``: which process has answered, 0 where none could."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        try:
            connection.connect(path)
            web = http.client.HTTPConnection("web")
            web.sock = connection
            web.request("GET", f"/{what}")
            return int(web.getresponse().read())
        except (OSError, http.client.HTTPException):
            return 0
