"""The standard library's queues in memory: what no queue of Python's objects is faster than."""

from __future__ import annotations

import platform
import queue
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.peers.peer import Can, Load, Peer, Place, Promise, Queue, Token


class StandardQueue(Peer):
    """``queue.Queue``."""

    title = "queue.Queue"
    promises = frozenset({Promise.VOLATILE})
    does = frozenset({Can.MANY_QUEUES, Can.HAND_OFF, Can.THREADS})
    note = "in RAM"

    def __init__(self, place: Place, load: Load) -> None:
        super().__init__(place, load)
        self._queues: dict[str, Queue] = {}

    def queue(self, name: str) -> Queue:
        if name not in self._queues:
            self._queues[name] = self.new_queue()
        return self._queues[name]

    def new_queue(self) -> Queue:
        return _StandardQueue()

    @classmethod
    def version(cls) -> str:
        return platform.python_version()


class StandardDeque(StandardQueue):
    """``collections.deque``."""

    title = "collections.deque"
    does = frozenset({Can.MANY_QUEUES})

    def new_queue(self) -> Queue:
        return _StandardDeque()


class _StandardQueue(Queue):
    def __init__(self) -> None:
        self._inner: queue.Queue[bytes] = queue.Queue()

    def put(self, body: bytes) -> None:
        self._inner.put(body)

    def take(self) -> tuple[Token, bytes] | None:
        try:
            return None, self._inner.get_nowait()
        except queue.Empty:
            return None

    def ack(self, token: Token) -> None:
        self._inner.task_done()

    @contextmanager
    def receiver(self, *, ack: bool) -> Iterator[Callable[[], bytes]]:
        yield self._inner.get


class _StandardDeque(Queue):
    def __init__(self) -> None:
        self._inner: deque[bytes] = deque()

    def put(self, body: bytes) -> None:
        self._inner.append(body)

    def take(self) -> tuple[Token, bytes] | None:
        return (None, self._inner.popleft()) if self._inner else None
