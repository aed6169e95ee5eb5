"""A message store at work and what it has promised, step by step; tests of its crashes run it and check it.

Files fill up, lose all they have, are combined; the store is stopped, killed and recovered.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from unittest.mock import patch

import attrs

from tests.crash_points.recording import Record, recording
from warren.msg_store.rdq import compaction, recovery
from warren.msg_store.rdq.message_store import MessageStore
from warren.msg_store.rdq.store_reader import StoreReader
from warren.queue_index.message.msg_ids import numbered_id
from warren.storage.memory import MemoryFileSystem
from warren.storage.pieces import Pieces
from warren.storage.settings import Settings

DIRECTORY = "/vhost/store"
SETTINGS = Settings(msg_store_file_size_limit=1000)
TOKEN = b"token"


def key(n: int) -> bytes:
    return numbered_id(n, b"store-id")


def body(n: int) -> bytes:
    return f"<{n}>".encode().ljust(60 + n * 7 % 50, b".")


def in_pieces(message: bytes) -> Pieces:
    """As large messages come."""
    return Pieces((message[:3], memoryview(message)[3:-2], message[-2:]), len(message))


@contextlib.contextmanager
def small_pieces() -> Iterator[None]:
    """Copy so little at a time that a crash may fall between two pieces of a record."""
    with patch.object(compaction, "COPY_BYTES", 150), patch.object(recovery, "COPY_BYTES", 150):
        yield


@attrs.define
class Promises:
    """What the store said so far: written to the system, synced, and what was asked to go."""

    handed_over: set[int] = attrs.field(factory=set)
    issued: set[int] = attrs.field(factory=set)
    synced: set[int] = attrs.field(factory=set)
    removed: set[int] = attrs.field(factory=set)
    lost: set[int] = attrs.field(factory=set)
    """Gone with a process or with the power, before they were safe."""

    def copy(self) -> Promises:
        """One that stays as this is now."""
        return Promises(*(set(numbers) for numbers in attrs.astuple(self, recurse=False)))


@attrs.define
class Life:
    """A store at work, and the promises that it made."""

    store: MessageStore
    promises: Promises

    def write(self, *numbers: int) -> None:
        self.promises.handed_over |= set(numbers)
        self.store.write_many([key(n) for n in numbers], [in_pieces(body(n)) if n % 2 else body(n) for n in numbers])

    def flush(self) -> None:
        self.store.flush()
        self.promises.issued |= self.promises.handed_over - self.promises.lost

    def sync(self) -> None:
        self.store.sync()
        self.promises.issued |= self.promises.handed_over - self.promises.lost
        self.promises.synced |= self.promises.handed_over - self.promises.lost

    def stop(self) -> None:
        """A clean stop, with whatever is in the buffer."""
        self.store.close(TOKEN)
        self.promises.issued |= self.promises.handed_over - self.promises.lost
        self.promises.synced |= self.promises.handed_over - self.promises.lost

    def remove(self, *numbers: int) -> None:
        self.promises.removed |= set(numbers)
        self.store.remove_many([key(n) for n in numbers])


def open_store(files: MemoryFileSystem, promises: Promises) -> MessageStore:
    """Open what a crash or a stop left; the queues refer to all that was not removed."""
    store = MessageStore.open(files, DIRECTORY, SETTINGS, token=TOKEN)
    if not store.clean:
        store.set_references((key(n), 1) for n in sorted(promises.handed_over - promises.removed))
    return store


def recover(files: MemoryFileSystem, promises: Promises, kept: set[int]) -> MessageStore:
    """Open what a crash left; the queues refer to ``kept`` for sure, and to the rest as it happens."""
    reader = StoreReader.open(files, DIRECTORY)
    for n in promises.handed_over:
        if n in kept or reader.contains(key(n)):
            assert reader.read(key(n)) == body(n)
    store = open_store(files, promises)
    store.check_invariants()
    for n in promises.handed_over:
        if n in kept or store.contains(key(n)):
            assert store.read(key(n)) == body(n)
    return store


def begin(files: MemoryFileSystem) -> Life:
    """A store that has been there for a while: two closed files with holes and a current one."""
    store = MessageStore.open(files, DIRECTORY, SETTINGS)
    store.set_references([])
    life = Life(store, Promises())
    life.write(*range(30))
    life.sync()
    life.remove(3, 4, 11, 12, 13, 14)
    life.sync()
    files.sync_all()
    return life


def roll_over(life: Life) -> None:
    """Files fill up, with a sync in the middle of one."""
    life.write(*range(100, 108))
    life.sync()
    life.write(*range(108, 125))
    life.flush()
    life.write(*range(125, 130))
    life.sync()


def empty_a_file(life: Life) -> None:
    """Closed files lose all they have."""
    life.write(*range(100, 135))
    life.sync()
    life.remove(*range(100, 122))
    life.write(*range(135, 140))
    life.flush()
    life.remove(*range(122, 130))
    life.sync()


def compact_all(life: Life) -> None:
    """Pair after pair is combined, with and without holes in the left file, while the store is written to."""
    life.write(*range(100, 200))
    life.sync()
    life.remove(*(n for n in range(100, 200) if n % 6 > 0 and n not in (101, 102)))
    more = 210
    while life.store.compact(max_steps=3):
        life.write(more)
        life.flush()
        more += 1
    life.sync()


def stop(life: Life) -> None:
    """A clean stop, with everything still in the buffer."""
    life.write(*range(100, 115))
    life.remove(100, 101)
    life.stop()


WORKS = (roll_over, empty_a_file, compact_all, stop)


def run_of(work: Callable[[Life], None]) -> Callable[[int], Record]:
    """A store that has been there for a while, is recovered, and does one kind of work."""

    def run(seed: int) -> Record:
        base = MemoryFileSystem(seed)
        said = begin(base).promises
        files: MemoryFileSystem = recording(base.after_process_crash(), said.copy)
        record = files.record  # type: ignore[attr-defined]
        with small_pieces():
            work(_taken_up(files, said))
            record.end()
        return record

    return run


def run(seed: int) -> Record:
    base = MemoryFileSystem(0)
    base.make_directories(DIRECTORY.rpartition("/")[0])  # the opener of a store must do that
    base.sync_all()
    return go_on(base, Promises(), seed)


def go_on(base: MemoryFileSystem, promises: Promises, seed: int, *, power: bool = False) -> Record:
    """A store from its first moment, or on what a crash left, with steps that are drawn."""
    rng = random.Random(seed)
    said = promises.copy()
    if power:  # what was written and not synced is promised to no process any more
        said.issued &= said.synced
    files: MemoryFileSystem = recording(base, said.copy)
    record = files.record  # type: ignore[attr-defined]
    with small_pieces():
        life = _taken_up(files, said)
        for _ in range(rng.randrange(8, 20)):
            first = max(said.handed_over, default=-1) + 1
            there = sorted(said.handed_over - said.removed - said.lost)
            match rng.choice(
                ["write", "write", "write", "flush", "sync", "remove", "remove", "compact", "die", "stop"]
            ):
                case "write":
                    life.write(*range(first, first + rng.randrange(1, 16)))
                case "flush":
                    life.flush()
                case "sync":
                    life.sync()
                case "remove" if there:
                    life.remove(*rng.sample(there, max(1, len(there) * rng.randrange(1, 4) // 4)))
                case "compact":
                    life.store.compact(max_steps=rng.randrange(1, 5))
                case "die":
                    files = files.after_process_crash()
                    life = _taken_up(files, said)
                case "stop":
                    life.stop()
                    files = files.after_process_crash()
                    life = _taken_up(files, said)
        record.end()
    return record


def _taken_up(files: MemoryFileSystem, said: Promises) -> Life:
    """The next process: what is not there any more was never safe."""
    store = open_store(files, said)
    for n in said.handed_over - said.removed:
        if not store.contains(key(n)):
            said.lost.add(n)
    said.issued -= said.lost
    said.synced -= said.lost
    return Life(store, said)


def check(files: MemoryFileSystem, promises: Promises, *, power: bool, deep: bool) -> None:
    with small_pieces():
        kept = (promises.synced if power else promises.issued) - promises.removed - promises.lost
        store = recover(files, promises, kept)
        there = {n for n in promises.handed_over if store.contains(key(n))}
        if store.clean:  # a power loss brought the stop's counts back, with what was removed since
            there -= promises.removed
        store.abandon()
        again = recover(files.after_process_crash(), promises, kept)
        assert {n for n in promises.handed_over if again.contains(key(n))} == there, "a second recovery finds others"
        if deep:
            numbers = range(1000, 1030)
            again.write_many([key(n) for n in numbers], [body(n) for n in numbers])
            again.compact()
            again.sync()
            again.check_invariants()
            assert again.read_many([key(n) for n in numbers]) == [body(n) for n in numbers]
