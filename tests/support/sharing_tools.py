"""Processes of a shared directory, and who of them hosts it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import TracebackType
from typing import Self

from warren.storage.lock_file import LOCK_FILE
from warren.storage.lock_holder import lock_holder

PATIENCE_S = 60.0


class Member:
    """A process that has a directory open (:mod:`tests.support.sharing_child`)."""

    def __init__(self, directory: Path, role: str, *arguments: object) -> None:
        self.lines: list[str] = []
        """What it has said, as far as it was read."""
        self._heard: Queue[str | None] = Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.sharing_child", str(directory), role, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._heard.put(line.strip())
        self._heard.put(None)

    def hear(self, what: str = "") -> str:
        """The next line that begins so."""
        while True:
            try:
                line = self._heard.get(timeout=PATIENCE_S)
            except Empty:
                raise AssertionError(f"process {self.process.pid} says nothing") from None
            assert line is not None, f"process {self.process.pid} has ended"
            self.lines.append(line)
            if line.startswith(what):
                return line

    def kill(self) -> None:
        """Kill it; what it had said before is heard."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._hear_rest()

    def end(self) -> None:
        """Let it end by itself."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        assert self.process.wait(PATIENCE_S) == 0
        self._hear_rest()

    def _hear_rest(self) -> None:
        self._reader.join()
        while (line := self._heard.get()) is not None:
            self.lines.append(line)

    def confirmed(self) -> int | None:
        """The last number that it was told is safe."""
        found = [line.split() for line in self.lines if line.startswith("confirmed")]
        return int(found[-1][1]) if found else None


def host_of(directory: Path) -> int:
    """The process that hosts the node."""
    holder = lock_holder(str(directory / LOCK_FILE))
    found = re.match(r"process (\d+), .*, shared$", holder or "")
    assert found is not None, holder
    return int(found[1])
