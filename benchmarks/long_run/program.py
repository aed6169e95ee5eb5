"""A program of the run, as the one that watches sees it."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading

import psutil

from benchmarks.long_run.ledger import Ledger


class Program:
    """One that says lines; a thread hands those of the ledger to it."""

    def __init__(self, ledger: Ledger, name: str, module: str, *arguments: str) -> None:
        """``name``: what it is called where it failed."""
        command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._name, self._ledger = name, ledger
        self._others: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.failures: list[str] = []
        self.seen = psutil.Process(self._process.pid)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("failed"):
                self.failures.append(f"{self._name}: {line.strip()}")
            elif line.startswith(("confirmed ", "got ", "waited ")):
                if line.endswith("\n"):
                    self._ledger.hear(line)
            else:
                self._others.put(line)
        self._others.put("")

    def hear(self, timeout: float = 120.0) -> str:
        """The next line that is not the ledger's; "" at its end."""
        return self._others.get(timeout=timeout)

    def expect(self, word: str) -> None:
        line = self.hear()
        if not line.startswith(word):
            raise RuntimeError(f"{self._name} says {line!r}, not {word!r}")

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")

    def kill(self) -> None:
        """At once; what it had said by then is heard."""
        self._process.kill()
        self._process.wait()
        self._reading.join()

    def end(self) -> None:
        """Wait until it ends by itself, as ordered before."""
        self._process.wait(timeout=120)
        self._reading.join()

    def stop(self) -> None:
        """Where it still runs: as a user stops it."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=120)
        self._reading.join()

    def size(self) -> dict[str, float]:
        """What it takes now."""
        with self.seen.oneshot():
            return {
                "rss_mb": self.seen.memory_info().rss / 1e6,
                "descriptors": self.seen.num_fds(),
                "threads": self.seen.num_threads(),
            }
