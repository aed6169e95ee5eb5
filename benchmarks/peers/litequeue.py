"""litequeue: messages are locked by ``pop`` and done with by ``done``; it has a transaction, for batches."""

from __future__ import annotations

from collections.abc import Sequence

from litequeue import LiteQueue

from benchmarks.peers.peer import Peer, Promise, Queue, Token
from benchmarks.peers.sqlite import _SYNCHRONOUS


class LiteQueues(Peer):
    """``LiteQueue``."""

    title = "litequeue"
    distribution = "litequeue"
    promises = frozenset({Promise.WRITTEN, Promise.FSYNCED})
    most = 1500

    def queue(self, name: str) -> Queue:
        inner = LiteQueue(str(self.place.directory / f"{name}.db"))
        inner.conn.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self.place.promise]}")
        return _LiteQueue(inner)


class _LiteQueue(Queue):
    def __init__(self, inner: LiteQueue) -> None:
        self._inner = inner

    def put(self, body: bytes) -> None:
        self._inner.put(body.decode("latin-1"))

    def put_many(self, bodies: Sequence[bytes]) -> None:
        with self._inner.transaction():
            super().put_many(bodies)

    def take(self) -> tuple[Token, bytes] | None:
        message = self._inner.pop()
        return None if message is None else (message.message_id, message.data.encode("latin-1"))

    def ack(self, token: Token) -> None:
        self._inner.done(token)

    def ack_many(self, tokens: Sequence[Token]) -> None:
        with self._inner.transaction():
            super().ack_many(tokens)
