"""The queue that everybody can write in an hour, written well: a table in SQLite.

Write-ahead log; an integer key that the program counts itself; a cursor in memory for what is taken, a delete when it
is acked; one transaction a batch, statements prepared once (sqlite3 keeps them). ``synchronous=NORMAL`` is "written": a
power loss may take the last transactions; ``FULL`` is "fsynced".
"""

from __future__ import annotations

import json
import sqlite3
import threading
from _queue import SimpleQueue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, repeat

from benchmarks.peers.peer import Can, Letter, Load, Peer, Place, Promise, Queue, Token, Topic

_SYNCHRONOUS = {Promise.WRITTEN: "NORMAL", Promise.FSYNCED: "FULL"}
_BATCH = 1000


class Sqlite(Peer):
    """One database for all queues."""

    title = "SQLite table"
    promises = frozenset({Promise.WRITTEN, Promise.FSYNCED})
    does = frozenset(set(Can) - {Can.EXPORT})
    imports = "import sqlite3"
    one_message = """
connection = sqlite3.connect({path!r}, isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("PRAGMA synchronous = NORMAL")
connection.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, body BLOB)")
connection.execute("INSERT INTO queue VALUES (1, ?)", (b"one",))
connection.close()
"""

    def __init__(self, place: Place, load: Load) -> None:
        super().__init__(place, load)
        self._own = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._queues: dict[str, Queue] = {}

    @property
    def connection(self) -> sqlite3.Connection:
        """The calling thread's own."""
        try:
            found: sqlite3.Connection = self._own.connection
        except AttributeError:
            found = self._own.connection = self._connect()
        return found

    def _connect(self) -> sqlite3.Connection:
        path = self.place.directory / "queue.db"
        connection = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self.place.promise]}")
        self._opened.append(connection)
        return connection

    def queue(self, name: str) -> Queue:
        if name not in self._queues:
            self._queues[name] = _OneQueue(self) if self.load.queues == 1 else _OneOfMany(self, name)
        return self._queues[name]

    def topic(self, name: str) -> Topic:
        return _Log(self)

    def close(self) -> None:
        for connection in self._opened:
            connection.close()

    @classmethod
    def version(cls) -> str:
        return sqlite3.sqlite_version


class _OneQueue(Queue):
    """A table of its own, by its integer key alone."""

    def __init__(self, peer: Sqlite) -> None:
        self._peer = peer
        connection = peer.connection
        connection.execute("CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, properties TEXT, body BLOB)")
        [(last,)] = connection.execute("SELECT max(id) FROM queue")
        self._ids = count((last or 0) + 1)
        self._taken = 0
        self._bell: SimpleQueue[None] | None = None

    def put(self, body: bytes) -> None:
        self._peer.connection.execute("INSERT INTO queue VALUES (?, NULL, ?)", (next(self._ids), body))
        if self._bell is not None:
            self._bell.put(None)

    def put_many(self, bodies: Sequence[bytes]) -> None:
        self._insert("INSERT INTO queue VALUES (?, NULL, ?)", zip(self._ids_for(bodies), bodies, strict=True))

    def _ids_for(self, messages: Sequence[object]) -> range:
        first = next(self._ids)
        self._ids = count(first + len(messages))
        return range(first, first + len(messages))

    def _insert(self, statement: str, rows: Iterator[tuple[object, ...]]) -> None:
        connection = self._peer.connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(statement, rows)
        connection.execute("COMMIT")

    def take(self) -> tuple[Token, bytes] | None:
        row: tuple[int, bytes] | None = self._peer.connection.execute(
            "SELECT id, body FROM queue WHERE id > ? ORDER BY id LIMIT 1", (self._taken,)
        ).fetchone()
        if row is not None:
            self._taken = row[0]
        return row

    def ack(self, token: Token) -> None:
        self._peer.connection.execute("DELETE FROM queue WHERE id = ?", (token,))

    def take_many(self, count: int) -> tuple[Sequence[Token], list[bytes]]:
        rows = self._peer.connection.execute(
            "SELECT id, body FROM queue WHERE id > ? ORDER BY id LIMIT ?", (self._taken, count)
        ).fetchall()
        if not rows:
            return (), []
        self._taken = rows[-1][0]
        return range(rows[0][0], self._taken + 1), [row[1] for row in rows]

    def ack_many(self, tokens: Sequence[Token]) -> None:
        self._peer.connection.execute("DELETE FROM queue WHERE id BETWEEN ? AND ?", (tokens[0], tokens[-1]))

    def consume(self, count: int) -> Iterator[bytes]:
        """In batches: to get all messages, a program takes and deletes them so."""
        while count:
            tokens, bodies = self.take_many(min(count, _BATCH))
            yield from bodies
            self.ack_many(tokens)
            count -= len(bodies)

    def count(self) -> int:
        [(found,)] = self._peer.connection.execute("SELECT count(*) FROM queue")
        return int(found)

    @contextmanager
    def receiver(self, *, ack: bool) -> Iterator[Callable[[], bytes]]:
        """The taker sleeps until the giver, a thread of the same program, rings."""
        bell = self._bell = SimpleQueue()

        def receive() -> bytes:
            bell.get()
            taken = self.take()
            if taken is None:
                raise RuntimeError("rung for nothing")
            if ack:
                self.ack(taken[0])
            return taken[1]

        yield receive
        self._bell = None

    def send(self, letter: Letter) -> None:
        properties = json.dumps({"headers": letter.headers, "message_id": letter.message_id})
        self._peer.connection.execute("INSERT INTO queue VALUES (?, ?, ?)", (next(self._ids), properties, letter.body))

    def send_many(self, letters: Sequence[Letter]) -> None:
        rows = (
            (number, json.dumps({"headers": letter.headers, "message_id": letter.message_id}), letter.body)
            for number, letter in zip(self._ids_for(letters), letters, strict=True)
        )
        self._insert("INSERT INTO queue VALUES (?, ?, ?)", rows)

    def receive_many(self, count: int) -> tuple[Sequence[Token], list[Letter]]:
        rows = self._peer.connection.execute(
            "SELECT id, properties, body FROM queue WHERE id > ? ORDER BY id LIMIT ?", (self._taken, count)
        ).fetchall()
        if not rows:
            return (), []
        self._taken = rows[-1][0]
        return range(rows[0][0], self._taken + 1), [
            Letter(body, **json.loads(properties)) for _, properties, body in rows
        ]


class _OneOfMany(Queue):
    """One table for all queues, by queue and number."""

    def __init__(self, peer: Sqlite, name: str) -> None:
        self._peer = peer
        self._connection = peer.connection
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS queues (queue TEXT, id INTEGER, body BLOB, PRIMARY KEY (queue, id))"
            " WITHOUT ROWID"
        )
        self._name = name
        [(last,)] = self._connection.execute("SELECT max(id) FROM queues WHERE queue = ?", (name,))
        self._ids = count((last or 0) + 1)
        self._taken = 0

    def put(self, body: bytes) -> None:
        self._connection.execute("INSERT INTO queues VALUES (?, ?, ?)", (self._name, next(self._ids), body))

    def put_many(self, bodies: Sequence[bytes]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO queues VALUES (?, ?, ?)", zip(repeat(self._name), self._ids, bodies))
        self._connection.execute("COMMIT")

    def take(self) -> tuple[Token, bytes] | None:
        tokens, bodies = self.take_many(1)
        return (tokens[0], bodies[0]) if bodies else None

    def ack(self, token: Token) -> None:
        self.ack_many([token])

    def take_many(self, count: int) -> tuple[Sequence[Token], list[bytes]]:
        rows = self._connection.execute(
            "SELECT id, body FROM queues WHERE queue = ? AND id > ? ORDER BY id LIMIT ?",
            (self._name, self._taken, count),
        ).fetchall()
        if not rows:
            return (), []
        self._taken = rows[-1][0]
        return range(rows[0][0], self._taken + 1), [row[1] for row in rows]

    def ack_many(self, tokens: Sequence[Token]) -> None:
        self._connection.execute(
            "DELETE FROM queues WHERE queue = ? AND id BETWEEN ? AND ?", (self._name, tokens[0], tokens[-1])
        )

    def count(self) -> int:
        [(found,)] = self._connection.execute("SELECT count(*) FROM queues WHERE queue = ?", (self._name,))
        return int(found)


class _Log(Topic):
    """A table with an index on the key, and a row for where the group is."""

    def __init__(self, peer: Sqlite) -> None:
        self._connection = peer.connection
        self._connection.execute("CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, key TEXT, body BLOB)")
        self._connection.execute("CREATE INDEX IF NOT EXISTS by_key ON log (key)")
        self._connection.execute("CREATE TABLE IF NOT EXISTS groups (name TEXT PRIMARY KEY, place INTEGER)")
        self._connection.execute("INSERT OR IGNORE INTO groups VALUES ('group', 0)")
        self._place = 0

    def append(self, body: bytes, key: str) -> None:
        self._connection.execute("INSERT INTO log (key, body) VALUES (?, ?)", (key, body))

    def append_many(self, bodies: Sequence[bytes], keys: Sequence[str]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        rows = zip(keys, bodies, strict=True)
        self._connection.executemany("INSERT INTO log (key, body) VALUES (?, ?)", rows)
        self._connection.execute("COMMIT")

    def read(self, count: int) -> list[bytes]:
        rows = self._connection.execute(
            "SELECT id, key, body FROM log WHERE id > ? ORDER BY id LIMIT ?", (self._place, count)
        ).fetchall()
        if rows:
            self._place = rows[-1][0]
            self._connection.execute("UPDATE groups SET place = ? WHERE name = 'group'", (self._place,))
        return [row[2] for row in rows]

    def find(self, key: str) -> bytes:
        row = self._connection.execute("SELECT body FROM log WHERE key = ? ORDER BY id DESC LIMIT 1", (key,)).fetchone()
        return bytes(row[0])
