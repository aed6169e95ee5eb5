"""Timing the engine and its bare counterpart in turn: A B A B.

A :class:`Scenario` opens a directory and goes through *phases* (publish, fetch and ack). It runs once on a recorder:
that gives a tape for each phase, and is the engine's warm-up. Then engine and tape take turns, each in a fresh
directory of the same file system, with the garbage collected before.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from benchmarks.figures import Bar, Figure, Spread, ratios
from benchmarks.tape import Player, RecordingFileSystem, Tape
from warren.storage.filesystem import FileSystem, RealFileSystem

Phase = Callable[[], int]
"""Does its work and returns with how many messages."""
Tick = Callable[[], None]
"""Told after every step, for the one who watches."""


class Scenario(Protocol):
    """What is measured."""

    def open(self, files: FileSystem, path: str) -> None:
        """Get ready in a directory that does not exist yet; not timed."""

    def phases(self) -> Sequence[tuple[str, Phase]]:
        """Names, and what is timed, in order."""

    def close(self) -> None:
        """Give everything up, as it is."""


@attrs.define
class Timed:
    """One phase's times (seconds), pair by pair; ``bare`` is empty where the engine does nothing to the disk."""

    messages: int
    tape: Tape
    ours: list[float] = attrs.Factory(list)
    bare: list[float] = attrs.Factory(list)

    @property
    def rates(self) -> list[float]:
        return [self.messages / seconds for seconds in self.ours]

    @property
    def bare_rates(self) -> list[float]:
        return [self.messages / seconds for seconds in self.bare]

    @property
    def note(self) -> str:
        """What the system is asked to do in this phase."""
        tape, parts = self.tape, []
        if tape.bytes_written:
            parts.append(f"{tape.bytes_written / self.messages:,.0f} B written a message, in {tape.writes:,} writes")
        if tape.bytes_read:
            parts.append(f"{tape.bytes_read / self.messages:,.0f} B read")
        return "; ".join(parts) or "nothing is written"

    def figure(self, group: str, title: str, bare_name: str, bar: Bar | None) -> Figure:
        """Our rates, beside those of the bare counterpart, if there is one."""
        return Figure(
            group=group,
            title=title,
            unit="messages/s",
            ours=Spread.of(self.rates),
            counterpart=Spread.of(self.bare_rates) if self.bare else None,
            counterpart_name=bare_name if self.bare else "",
            ratio=ratios(self.rates, self.bare_rates) if self.bare else None,
            bar=bar,
            note=self.note,
        )


def seconds_of(work: Callable[[], object]) -> float:
    """How long it takes."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def answer_of(module: str, *arguments: object) -> Any:
    """Run a module in a process of its own; return the JSON in the last line that it prints."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_bytes() -> int:
    """Return the peak memory of this process; what the system counts for a child may be its parent's."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def in_turn(scenario: Scenario, directory: str, repeats: int, tick: Tick) -> dict[str, Timed]:
    """Times of a scenario's phases, by name, from ``repeats`` pairs."""
    results = _recorded(scenario, os.path.join(directory, "recorded"))
    tick()
    for _ in range(repeats):
        _run_ours(scenario, os.path.join(directory, "ours"), results)
        tick()
        _run_bare(os.path.join(directory, "bare"), results)
        tick()
    return results


def _recorded(scenario: Scenario, path: str) -> dict[str, Timed]:
    recorder = RecordingFileSystem(path)
    scenario.open(recorder, path)
    opening = recorder.take()
    results = {"": Timed(0, opening)}
    for name, phase in scenario.phases():
        messages = phase()
        results[name] = Timed(messages, recorder.take())
    scenario.close()
    shutil.rmtree(path)
    return results


def _run_ours(scenario: Scenario, path: str, results: dict[str, Timed]) -> None:
    scenario.open(RealFileSystem(), path)
    for name, phase in scenario.phases():
        results[name].ours.append(seconds_of(phase))
    scenario.close()
    shutil.rmtree(path)


def _run_bare(path: str, results: dict[str, Timed]) -> None:
    player = Player(path)
    for result in results.values():
        play = player.prepare(result.tape)
        if not result.messages:  # getting ready is not timed
            play()
        elif len(result.tape):
            result.bare.append(seconds_of(play))
    player.close()
    shutil.rmtree(path)
