"""diskcache.Deque: a queue in SQLite, large bodies in files; a message is gone when it is taken."""

from __future__ import annotations

from collections.abc import Sequence

from diskcache import Cache, Deque

from benchmarks.peers.peer import Peer, Promise, Queue, Token

_SYNCHRONOUS = {Promise.WRITTEN: 1, Promise.FSYNCED: 2}


class DiskcacheDeque(Peer):
    """``Deque``."""

    title = "diskcache.Deque"
    distribution = "diskcache"
    promises = frozenset({Promise.WRITTEN, Promise.FSYNCED})
    most = 5_000
    note = "no acks"

    def queue(self, name: str) -> Queue:
        settings = {"sqlite_synchronous": _SYNCHRONOUS[self.place.promise], "eviction_policy": "none"}
        return _Deque(Deque.fromcache(Cache(str(self.place.directory), size_limit=1 << 40, **settings)))


class _Deque(Queue):
    def __init__(self, inner: Deque) -> None:
        self._inner = inner

    def put(self, body: bytes) -> None:
        self._inner.append(body)

    def put_many(self, bodies: Sequence[bytes]) -> None:
        with self._inner.transact():
            self._inner.extend(bodies)

    def take(self) -> tuple[Token, bytes] | None:
        try:
            return None, self._inner.popleft()
        except IndexError:
            return None

    def take_many(self, count: int) -> tuple[Sequence[Token], list[bytes]]:
        with self._inner.transact():
            return super().take_many(count)
