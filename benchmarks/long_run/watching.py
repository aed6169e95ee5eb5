"""The run itself: its programs, what is done to them, and a sample every few seconds."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import attrs

from benchmarks.long_run.ledger import Ledger
from benchmarks.long_run.program import Program

SAMPLE_EVERY_S: Final = 5.0
LIMIT: Final = 200_000_000
"""vm_memory_high_watermark of both nodes, bytes."""
DRAIN_S: Final = 300.0


@attrs.define
class LongRun:
    """Used in a ``with``: all its programs have ended when it is left."""

    directory: Path
    seconds: float
    takeover_count: int = 24
    """How often a host closes, or is killed."""
    ledger: Ledger = attrs.Factory(Ledger)
    samples: list[dict[str, Any]] = attrs.Factory(list)
    takeovers: list[tuple[float, str]] = attrs.field(factory=list, init=False)
    """When, and how: "closed" or "killed"."""
    programs: list[Program] = attrs.Factory(list)
    mortals: int = 0
    server: Program = attrs.field(init=False)
    clients: Program = attrs.field(init=False)
    steady: Program = attrs.field(init=False)
    mortal: Program = attrs.field(init=False)
    _stack: ExitStack = attrs.Factory(ExitStack)

    def __enter__(self) -> Self:
        with self._stack:  # which closes unless all has begun
            self._begin_all()
            self._stack = self._stack.pop_all()
        return self

    def _begin_all(self) -> None:
        config = self.directory / "warren.toml"
        config.write_text(f"[node]\nvm_memory_high_watermark = {LIMIT}\n", encoding="utf-8")
        served = str(self.directory / "served")
        self.server = self._begin("serve", "warren", "serve", served, "--port", "0", "--config", str(config))
        found = re.search(r":(\d+)$", self.server.hear().strip())
        if found is None:
            raise RuntimeError("warren serve did not say where it listens")
        self.clients = self._begin("clients", "benchmarks.long_run.clients", found.group(1))
        self.steady = self._member("steady")
        self.mortal = self._new_mortal()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self, name: str, module: str, *arguments: str) -> Program:
        begun = Program(self.ledger, name, module, *arguments)
        self._stack.callback(begun.stop)
        self.programs.append(begun)
        if module.startswith("benchmarks."):
            begun.expect("ready")
        return begun

    def _member(self, name: str) -> Program:
        return self._begin(name, "benchmarks.long_run.member", str(self.directory / "shared"), name, str(LIMIT))

    def _new_mortal(self) -> Program:
        self.mortals += 1
        return self._member(f"mortal{self.mortals}")

    # ── while it runs ───────────────────────────────────────────────────────────────────────────────────────────

    def run(self, progress: Callable[[float], None]) -> None:
        """Run until the time is over and all takeovers have happened; tell ``progress`` the seconds passed."""
        start, between, number = time.monotonic(), self.seconds / (self.takeover_count + 1), 0
        while (passed := time.monotonic() - start) < self.seconds or number < self.takeover_count:
            progress(passed)
            if number < self.takeover_count and passed > (number + 1) * between:
                self._take_over(passed, number)
                number += 1
            self._sample(passed)
            time.sleep(max(0.0, min(SAMPLE_EVERY_S, self.seconds / 40) - (time.monotonic() - start - passed)))

    def _take_over(self, passed: float, number: int) -> None:
        """The steady program hosts first: it closes, then the other one, which hosts by then, is killed."""
        if number % 2 == 0:
            self.steady.tell("reopen")
            self.steady.expect("ready")
        else:
            self.mortal.kill()
            self.mortal = self._new_mortal()
        self.takeovers.append((passed, "killed" if number % 2 else "closed"))

    def _sample(self, passed: float) -> None:
        shared = self.directory / "shared"
        topics = allocated(shared / "topics")
        self.samples.append(
            {
                "seconds": round(passed, 1),
                "steady": self.steady.size(),
                "server": self.server.size(),
                "disk_mb": {
                    "shared": (allocated(shared) - topics) / 1e6,
                    "topics": topics / 1e6,
                    "served": allocated(self.directory / "served") / 1e6,
                },
                "waits": self.ledger.take_waits(),
            }
        )

    # ── its end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> dict[str, int]:
        """End publishing, let everything come out, and say what did not (:meth:`Ledger.missing`)."""
        for program in (self.clients, self.steady, self.mortal):
            program.tell("drain")
        end = time.monotonic() + DRAIN_S
        before, missing = -1, self.ledger.missing()
        while time.monotonic() < end:
            time.sleep(2.0)
            confirmed, missing = sum(self.ledger.confirmed.values()), self.ledger.missing()
            if not missing and confirmed == before:
                break
            before = confirmed
        for program in (self.clients, self.steady, self.mortal):
            program.tell("end")
            program.expect("ended")
            program.end()
        return missing

    def result(self) -> dict[str, Any]:
        missing = self.drain()
        return {
            "limit_mb": LIMIT / 1e6,
            "seconds": self.seconds,
            "takeovers": self.takeovers,
            **self.ledger.totals(),
            "missing": sum(missing.values()),
            "failures": [failure for program in self.programs for failure in program.failures],
            "samples": self.samples,
        }


def allocated(directory: Path) -> int:
    """Bytes that its files have on the disk; files come and go meanwhile."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
