"""A moment of the queue in numbers: what the engine says of itself, and what the system says of the process."""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Final

import attrs

from warren.queue_index.queue.variable_queue import VariableQueue

_PROCESS_STATUS: Final = "/proc/self/status"


@attrs.frozen(kw_only=True)
class Frame:
    """The five lists of a queue, and how far the work is. ``done``: messages confirmed, or fetched and acked."""

    q1: int
    q2: int
    delta: int
    q3: int
    q4: int
    in_memory: int
    """Messages whose payload is in memory."""
    target: int | None
    """How many messages the queue may keep in memory; ``None``: any number."""
    done: int
    elapsed_s: float
    peak_memory_bytes: int
    """The peak of the process that has the queue."""

    @classmethod
    def of(cls, queue: VariableQueue, done: int, elapsed_s: float) -> Frame:
        state = queue.state
        return cls(
            q1=len(state.q1),
            q2=len(state.q2),
            delta=state.delta.count,
            q3=len(state.q3),
            q4=len(state.q4),
            in_memory=state.ram_msg_count,
            target=state.target_ram_count,
            done=done,
            elapsed_s=elapsed_s,
            peak_memory_bytes=peak_memory_bytes(),
        )

    @property
    def ready(self) -> int:
        """Messages in the queue."""
        return self.q1 + self.q2 + self.delta + self.q3 + self.q4

    @property
    def rate(self) -> float:
        """Messages done in a second."""
        return self.done / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def to_line(self) -> str:
        """As one line of JSON, without its end."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_line(cls, line: str | bytes) -> Frame:
        return cls(**json.loads(line))


@attrs.define
class Peaks:
    """The most of each, over all frames seen."""

    in_memory: int = 0
    """While there was a limit; from the first frame on that was within it, if there was one."""
    on_disk_only: int = 0
    _within: bool = False

    def see(self, frame: Frame) -> None:
        if frame.target is not None:
            if not self._within and frame.in_memory <= frame.target:
                self._within, self.in_memory = True, 0
            self.in_memory = max(self.in_memory, frame.in_memory)
        self.on_disk_only = max(self.on_disk_only, frame.delta)


def peak_memory_bytes() -> int:
    """The most memory that this process has had resident.

    Linux says it of the program that runs now; ``getrusage`` would count the parent's as it was at the fork.
    """
    if os.path.exists(_PROCESS_STATUS):
        with open(_PROCESS_STATUS, encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def disk_usage(directory: str) -> tuple[int, int]:
    """Files below ``directory``, and their bytes; what vanishes meanwhile is not counted."""
    files = size = 0
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return 0, 0
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                inner_files, inner_size = disk_usage(entry.path)
                files, size = files + inner_files, size + inner_size
            else:
                files, size = files + 1, size + entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue
    return files, size
