"""persist-queue: its queue on SQLite, and the one with acks. Both commit as they document it: persist-queue's
``SQLiteQueue`` with ``auto_commit=False`` does so at ``task_done()``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from persistqueue import Empty, SQLiteAckQueue, SQLiteQueue

from benchmarks.peers.peer import Load, Peer, Place, Promise, Queue, Token
from benchmarks.peers.sqlite import _SYNCHRONOUS


class PersistAckQueue(Peer):
    """``SQLiteAckQueue``."""

    title = "persist-queue, SQLiteAckQueue"
    distribution = "persist-queue"
    promises = frozenset({Promise.WRITTEN, Promise.FSYNCED})
    most = 1500

    def __init__(self, place: Place, load: Load) -> None:
        super().__init__(place, load)
        self._inner: Any = SQLiteAckQueue(str(place.directory), auto_commit=True)
        _set_synchronous(self._inner, place.promise)

    def queue(self, name: str) -> Queue:
        return _AckQueue(self._inner)


class PersistQueue(PersistAckQueue):
    """``SQLiteQueue``: a cursor is kept for what was taken; ``task_done`` deletes it."""

    title = "persist-queue, SQLiteQueue"
    most = 5_000

    def __init__(self, place: Place, load: Load) -> None:
        Peer.__init__(self, place, load)
        self._inner = SQLiteQueue(str(place.directory), auto_commit=False)
        _set_synchronous(self._inner, place.promise)

    def queue(self, name: str) -> Queue:
        return _PlainQueue(self._inner)


def _set_synchronous(inner: Any, promise: Promise) -> None:
    for connection in {inner._putter, inner._getter}:
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[promise]}")


class _PlainQueue(Queue):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def put(self, body: bytes) -> None:
        self._inner.put(body)

    def take(self) -> tuple[Token, bytes] | None:
        try:
            return None, self._inner.get(block=False)
        except Empty:
            return None

    def ack(self, token: Token) -> None:
        self._inner.task_done()

    def ack_many(self, tokens: Sequence[Token]) -> None:
        self._inner.task_done()


class _AckQueue(_PlainQueue):
    def take(self) -> tuple[Token, bytes] | None:
        try:
            taken = self._inner.get(block=False, raw=True)
        except Empty:
            return None
        return taken["pqid"], taken["data"]

    def ack(self, token: Token) -> None:
        self._inner.ack(id=token)

    def ack_many(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            self._inner.ack(id=token)
