"""A file with nothing but the bodies: the bare write, read and fsync of what every durable peer must bring to the disk.

Where each body lies is in memory only, so this is no queue: it is what none can be much faster than.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from benchmarks.peers.peer import Peer, Promise, Queue, Token


class BareFile(Peer):
    """One file, one write a batch, one read a batch."""

    title = "a file of the bodies, bare"
    promises = frozenset({Promise.WRITTEN, Promise.FSYNCED})
    note = "system calls and nothing else"

    def queue(self, name: str) -> Queue:
        return _File(self.place.directory / name, fsync=self.place.promise is Promise.FSYNCED)

    @classmethod
    def version(cls) -> str:
        return platform.release()


class _File(Queue):
    def __init__(self, path: os.PathLike[str], *, fsync: bool) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._fsync = fsync
        self._sizes: list[int] = []
        self._taken = self._offset = 0

    def put(self, body: bytes) -> None:
        os.write(self._file, body)
        self._sizes.append(len(body))

    def put_many(self, bodies: Sequence[bytes]) -> None:
        os.write(self._file, b"".join(bodies))
        self._sizes += map(len, bodies)

    def settle(self) -> None:
        if self._fsync:
            os.fsync(self._file)

    def take(self) -> tuple[Token, bytes] | None:
        bodies = self.take_many(1)[1]
        return (None, bodies[0]) if bodies else None

    def take_many(self, count: int) -> tuple[Sequence[Token], list[bytes]]:
        sizes = self._sizes[self._taken : self._taken + count]
        data = os.pread(self._file, sum(sizes), self._offset)
        self._taken += len(sizes)
        self._offset += len(data)
        end = 0
        return (), [data[(end := end + size) - size : end] for size in sizes]
