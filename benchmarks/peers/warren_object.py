"""warren's engine without the runtime: a plain object, one thread, every batch handed over before the next."""

from __future__ import annotations

import os
from collections.abc import Sequence

from benchmarks.peers.peer import Load, Peer, Place, Promise, Queue, Token, Topic
from benchmarks.scenarios import open_vhost
from warren.actors.vhost import Vhost
from warren.msg_store.commit_log.commit_log import Batch, CommitLog
from warren.msg_store.commit_log.commit_log_format import Host
from warren.storage.filesystem import FileSystem, RealFileSystem
from warren.storage.topic_settings import TopicSettings
from warren.values.topic_record import properties_of_keys

_BORN_HOST, _STORE_HOST = Host.parse("10.0.0.1:50123"), Host.parse("10.0.0.2:10911")
_RAM_COUNT = 10_000
_BACKLOG = 500_000
"""From this many messages on, a program would limit how many the queue may keep in RAM."""


class PlainObject(Peer):
    """``warren.engine.open_vhost``."""

    title = "warren, the plain object"
    distribution = "warrenmq"
    promises = frozenset({Promise.WRITTEN, Promise.FSYNCED})
    note = "without threads, confirms and credit"

    def __init__(self, place: Place, load: Load, files: FileSystem | None = None) -> None:
        super().__init__(place, load)
        self.files: FileSystem = files or RealFileSystem()
        self.vhost = open_vhost(self.files, str(place.directory), sync=place.promise is Promise.FSYNCED)

    def queue(self, name: str) -> Queue:
        return _EngineQueue(self.vhost, name.encode(), paged=self.load.messages >= _BACKLOG)

    def topic(self, name: str) -> Topic:
        return _Log(self.files, os.path.join(self.place.directory, "commitlog"))

    def close(self) -> None:
        self.vhost.abandon()


class _EngineQueue(Queue):
    def __init__(self, vhost: Vhost, name: bytes, *, paged: bool) -> None:
        self._vhost = vhost
        self._queue = vhost.queue(name)
        self._envelope = vhost.envelope(name)
        if paged:
            rates = self._queue.state.rates
            rates.ingress = rates.ingress or 1.0
            self._queue.set_ram_duration_target(_RAM_COUNT / rates.total)

    def put(self, body: bytes) -> None:
        self._queue.publish(self._envelope, self._vhost.msg_ids.one(), body)
        self._vhost.sync()

    def put_many(self, bodies: Sequence[bytes]) -> None:
        self._queue.publish_many(self._envelope, self._vhost.msg_ids.many(len(bodies)), list(bodies))
        self._vhost.sync()

    def take(self) -> tuple[Token, bytes] | None:
        fetched = self._queue.fetch()
        return None if fetched is None else (fetched.seq_ids, fetched.bodies()[0])

    def ack(self, token: Token) -> None:
        self._queue.ack([token])
        self._vhost.sync()

    def take_many(self, count: int) -> tuple[Sequence[Token], list[bytes]]:
        parts = self._queue.fetch_many(count)
        return [part.seq_ids for part in parts], [body for part in parts for body in part.bodies()]

    def ack_many(self, tokens: Sequence[Token]) -> None:
        self._queue.ack(tokens)
        self._vhost.sync()

    def count(self) -> int:
        return len(self._queue)


class _Log(Topic):
    """The CommitLog; entries, keys and groups are built from it by the runtime."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._log = CommitLog.load(files, path, TopicSettings())
        self._done = 0

    def append_many(self, bodies: Sequence[bytes], keys: Sequence[str]) -> None:
        batch = Batch(
            topic="bench",
            queue_id=0,
            bodies=list(bodies),
            properties=properties_of_keys(keys),
            born_timestamp=1_700_000_000_000 + self._done,
            born_host=_BORN_HOST,
            store_host=_STORE_HOST,
            as_one=False,
        )
        self._done += len(self._log.append(batch, self._done, batch.born_timestamp).sizes)

    def read(self, count: int) -> list[bytes]:
        raise NotImplementedError
