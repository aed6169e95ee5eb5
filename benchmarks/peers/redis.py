"""Redis streams with an append-only file, over a Unix socket: a stream a queue, one group that reads it, and an entry
that is acked is deleted. A reply comes when the append is written; with ``appendfsync always``, when it is fsynced."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from benchmarks.peers.peer import Can, Letter, Load, Peer, Place, Promise, Queue, Token, Topic

_GROUP, _CONSUMER = "group", "consumer"
_APPEND_FSYNC = {Promise.WRITTEN: "everysec", Promise.FSYNCED: "always"}
_DEADLINE_S = 10.0


class RedisStreams(Peer):
    """A server for the whole run, emptied by every process that uses it."""

    title = "Redis streams"
    promises = frozenset({Promise.WRITTEN, Promise.FSYNCED})
    does = frozenset({Can.LETTERS, Can.MANY_QUEUES, Can.THREADS, Can.HAND_OFF, Can.TOPIC})
    most = 30_000
    note = "a server, through redis-py"

    def __init__(self, place: Place, load: Load) -> None:
        super().__init__(place, load)
        self.client = redis.Redis(unix_socket_path=place.server.partition("|")[0])
        self.client.config_set("appendfsync", _APPEND_FSYNC[place.promise])
        self.client.flushall()
        self._streams: dict[str, _Stream] = {}

    def queue(self, name: str) -> Queue:
        if name not in self._streams:
            self._streams[name] = _Stream(self.client, name)
        return self._streams[name]

    def topic(self, name: str) -> Topic:
        return _Log(self.client, name)

    def close(self) -> None:
        self.client.flushall()
        self.client.close()

    @classmethod
    def version(cls) -> str:
        said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        return said.split("v=")[1].split()[0]

    @classmethod
    @contextmanager
    def server(cls, directory: Path) -> Iterator[str]:
        directory.mkdir(parents=True)
        path = directory / "redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--dir", str(directory)]
        command += ["--appendonly", "yes", "--save", "", "--logfile", str(directory / "redis.log")]
        with subprocess.Popen(command) as process:
            try:
                _wait_for(str(path))
                yield f"{path}|{process.pid}"
            finally:
                process.terminate()

    @classmethod
    def pid(cls, server: str) -> int | None:
        return int(server.partition("|")[2])


def _wait_for(path: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            redis.Redis(unix_socket_path=path).ping()
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


class _Stream(Queue):
    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client = client
        self._name = name
        client.xgroup_create(name, _GROUP, id="0", mkstream=True)

    def put(self, body: bytes) -> None:
        self._client.xadd(self._name, {b"b": body})

    def put_many(self, bodies: Sequence[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd(self._name, {b"b": body})
        pipeline.execute()

    def _read(self, count: int, block: int | None = None) -> list[Any]:
        found: Any = self._client.xreadgroup(_GROUP, _CONSUMER, {self._name: ">"}, count=count, block=block)
        if isinstance(found, dict):  # redis-py answers so in RESP3
            return [entry for entries in found.values() for part in entries for entry in part]
        return list(found[0][1]) if found else []

    def take(self) -> tuple[Token, bytes] | None:
        entries = self._read(1)
        return (entries[0][0], entries[0][1][b"b"]) if entries else None

    def ack(self, token: Token) -> None:
        self.ack_many([token])

    def take_many(self, count: int) -> tuple[Sequence[Token], list[bytes]]:
        entries = self._read(count)
        return [entry[0] for entry in entries], [entry[1][b"b"] for entry in entries]

    def ack_many(self, tokens: Sequence[Token]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xack(self._name, _GROUP, *tokens)
        pipeline.xdel(self._name, *tokens)
        pipeline.execute()

    def count(self) -> int:
        return int(self._client.xlen(self._name))

    @contextmanager
    def receiver(self, *, ack: bool) -> Iterator[Callable[[], bytes]]:
        def receive() -> bytes:
            [(token, fields)] = self._read(1, block=0)
            if ack:
                self.ack(token)
            return bytes(fields[b"b"])

        yield receive

    def send(self, letter: Letter) -> None:
        self._client.xadd(self._name, _fields(letter))

    def send_many(self, letters: Sequence[Letter]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for letter in letters:
            pipeline.xadd(self._name, _fields(letter))
        pipeline.execute()

    def receive_many(self, count: int) -> tuple[Sequence[Token], list[Letter]]:
        entries = self._read(count)
        return [token for token, _ in entries], [_letter(fields) for _, fields in entries]


def _fields(letter: Letter) -> Any:
    return {"b": letter.body, "i": letter.message_id} | letter.headers


def _letter(fields: dict[bytes, bytes]) -> Letter:
    headers = {name.decode(): value.decode() for name, value in fields.items() if name not in {b"b", b"i"}}
    return Letter(fields[b"b"], headers, fields[b"i"].decode())


class _Log(Topic):
    """A stream without deletions, and a key of Redis for each key, with the entry's id."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._stream = _Stream(client, name)
        self._client, self._name = client, name

    def append_many(self, bodies: Sequence[bytes], keys: Sequence[str]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd(self._name, {b"b": body})
        ids = pipeline.execute()
        self._client.mset(dict(zip(keys, ids, strict=True)))

    def read(self, count: int) -> list[bytes]:
        tokens, bodies = self._stream.take_many(count)
        if tokens:
            self._client.xack(self._name, _GROUP, *tokens)
        return bodies

    def find(self, key: str) -> bytes:
        token: Any = self._client.get(key)
        found: Any = self._client.xrange(self._name, token, token)
        return bytes(found[0][1][b"b"])
