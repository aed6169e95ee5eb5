"""What was confirmed of a queue: a file that only grows, from which a run continues after a failure.

::

    {"warren": "republish ledger 1", "node", "vhost", "queue", "to"}
    <first position> <last position>                               of messages that the broker has, a line each time

A line is synced before the next messages go. A kill may leave half a line; it is cut off. The writer keeps the file
locked: a second attempt at the same queue waits, and then finds what the first one did.
"""

from __future__ import annotations

import bisect
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Final, Self

import attrs

from warren.salvage.names import to_json
from warren.storage.errors import DataError, shortly
from warren.storage.filesystem import RealFileSystem
from warren.tables.intervals import merged, runs
from warren.tables.pipeline_errors import PipelineError

_KIND: Final = "republish ledger 1"


@attrs.frozen(kw_only=True)
class Whose:
    """The queue of the messages, and their destination; names in their text form."""

    node: str
    vhost: str
    queue: str
    to: str

    def path(self, directory: str) -> str:
        """Return the path of the ledger."""
        key = "\0".join((self.node, self.vhost, self.queue)).encode("utf-8", "surrogateescape")
        return os.path.join(directory, f"{hashlib.sha256(key).hexdigest()[:32]}.ledger")

    def head(self) -> bytes:
        """Return the first line."""
        return to_json({"warren": _KIND, **attrs.asdict(self)}) + b"\n"


@attrs.define
class Ledger:
    """The ledger of one queue. Made by :meth:`open`."""

    path: str
    _file: IO[bytes]
    _intervals: list[tuple[int, int]]
    """Ranges of positions, ascending."""

    @classmethod
    @contextmanager
    def open(cls, directory: str, whose: Whose) -> Iterator[Self]:
        """Open the ledger in ``directory``, create it if it is missing, and wait while another process has it.

        Raises :class:`PipelineError` if it is about another broker, and :class:`DataError` if it is not a ledger.
        """
        path = whose.path(directory)
        try:
            with open(path, "a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                lines = _whole_lines(file)
                if not lines:
                    _append(file, whose.head())
                    RealFileSystem().sync_directory(directory)
                yield cls(path, file, merged(_ranges(path, lines, whose)))
        except OSError as error:
            raise PipelineError(f"{path}: {error.strerror or error}") from error

    def has(self, position: int) -> bool:
        """Whether the broker has that message."""
        at = bisect.bisect_right(self._intervals, (position, sys.maxsize)) - 1
        return at >= 0 and position <= self._intervals[at][1]

    def add(self, positions: Iterable[int]) -> None:
        """Record that the broker has these messages; synced when this returns."""
        _append(self._file, b"".join([b"%d %d\n" % interval for interval in runs(positions)]))


def _whole_lines(file: IO[bytes]) -> list[bytes]:
    data = file.read()
    whole_bytes = data.rfind(b"\n") + 1
    if whole_bytes < len(data):
        file.truncate(whole_bytes)
    return data[:whole_bytes].splitlines()


def _ranges(path: str, lines: list[bytes], whose: Whose) -> list[tuple[int, int]]:
    if not lines:
        return []
    try:
        head = json.loads(lines[0])
        if head["warren"] != _KIND:
            raise DataError(path, 0, f"is {shortly(head['warren'], 80)}, not {_KIND!r}")
        to = head["to"]
        intervals = []
        for line in lines[1:]:
            first, last = map(int, line.split())
            intervals.append((first, last))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(path, None, f"is no ledger: {shortly(error)}") from error
    if to != whose.to:
        raise PipelineError(f"{path}: is about messages that went to {to}; take another --out for {whose.to}")
    return intervals


def _append(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
