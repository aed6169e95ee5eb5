"""queuelib's queue on disk, which Scrapy uses. It records its position only when it is closed: a kill loses it all."""

from __future__ import annotations

from queuelib import FifoDiskQueue

from benchmarks.peers.peer import Peer, Promise, Queue, Token


class Queuelib(Peer):
    """``FifoDiskQueue``."""

    title = "queuelib"
    distribution = "queuelib"
    promises = frozenset({Promise.VOLATILE})
    note = "no acks"

    def queue(self, name: str) -> Queue:
        return _Fifo(FifoDiskQueue(str(self.place.directory / name)))


class _Fifo(Queue):
    def __init__(self, inner: FifoDiskQueue) -> None:
        self._inner = inner

    def put(self, body: bytes) -> None:
        self._inner.push(body)

    def take(self) -> tuple[Token, bytes] | None:
        body = self._inner.pop()
        return None if body is None else (None, body)
