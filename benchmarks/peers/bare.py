"""The bare writing, reading and syncing of the very bytes that the plain object writes, reads and syncs.

The plain object does the work once on a recorder; what is timed is that tape (:mod:`benchmarks.tape`), played by
nothing but system calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from benchmarks.peers.peer import Load, Place
from benchmarks.peers.warren_object import PlainObject
from benchmarks.peers.watch import Stretch, Watch
from benchmarks.tape import Player, RecordingFileSystem, Tape


class Bare(PlainObject):
    """A plain object on a recorder."""

    title = "the same bytes, bare"
    note = "system calls and nothing else"
    recorder: ClassVar[RecordingFileSystem]

    def __init__(self, place: Place, load: Load) -> None:
        Bare.recorder = RecordingFileSystem(str(place.directory))
        super().__init__(place, load, Bare.recorder)


class RecordingWatch(Watch):
    """Keeps the tape of every timed stretch, and of what happens between them."""

    def __init__(self) -> None:
        super().__init__()
        self._tapes: list[tuple[str, float, Tape]] = []

    @contextmanager
    def timing(self, name: str, amount: float = 0) -> Iterator[Stretch]:
        self._tapes.append(("", 0, Bare.recorder.take()))
        stretch = Stretch(amount)
        yield stretch
        self._tapes.append((name, stretch.amount, Bare.recorder.take()))

    def sample(self) -> None:
        """The recorder's memory is of no interest."""

    def play(self, directory: Path) -> None:
        """Time the tapes, in fresh files."""
        player = Player(str(directory))
        self._tapes.reverse()
        while self._tapes:
            name, amount, tape = self._tapes.pop()
            play: Callable[[], None] = player.prepare(tape)
            if name:
                with super().timing(name, amount):
                    play()
            else:
                play()
        player.close()
