"""The storage of huey's SQLite task queue; a task is gone when it is taken."""

from __future__ import annotations

from huey.storage import SqliteStorage

from benchmarks.peers.peer import Peer, Promise, Queue, Token


class HueyStorage(Peer):
    """``SqliteStorage``."""

    title = "huey, SqliteStorage"
    distribution = "huey"
    promises = frozenset({Promise.WRITTEN, Promise.FSYNCED})
    most = 5_000
    note = "no acks"

    def queue(self, name: str) -> Queue:
        fsync = self.place.promise is Promise.FSYNCED
        return _Storage(SqliteStorage(name, filename=str(self.place.directory / "huey.db"), fsync=fsync))


class _Storage(Queue):
    def __init__(self, inner: SqliteStorage) -> None:
        self._inner = inner

    def put(self, body: bytes) -> None:
        self._inner.enqueue(body)

    def take(self) -> tuple[Token, bytes] | None:
        found = self._inner.dequeue()
        return None if found is None else (None, bytes(found))
