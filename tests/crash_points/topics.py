"""A topic store: the CommitLog rolls, ConsumeQueues and the index follow it, in parts; stops, kills, power
losses and recoveries. What must hold is what the machine of :mod:`tests.support.topic_tools` asks for."""

from __future__ import annotations

import random
from typing import Any

import attrs

from tests.crash_points import recording as recorded
from tests.support.topic_tools import Ghost, Sent, TopicStoreMachine
from warren.actors.engines.topics.topic_store import FOR_EVER_MS
from warren.msg_store.commit_log.commit_log import Record
from warren.msg_store.commit_log.commit_log_format import ROLLBACK, TRANSACTION_MASK
from warren.storage.errors import DataError
from warren.storage.java_hash import index_hash
from warren.storage.memory import MemoryFileSystem


@attrs.frozen
class Promises:
    """What the store holds (``sent``); the first ``safe`` survive a power loss. ``ghosts``: what is being appended."""

    sent: tuple[Sent, ...]
    safe: int
    ghosts: tuple[tuple[int, tuple[Sent, ...]], ...]
    number: int
    now_ms: int


class Machine(TopicStoreMachine):
    """One whose files are kept, or are what a crash left."""

    def promised(self) -> Promises:
        ghosts = tuple((ghost.after, tuple(ghost.sent)) for ghost in self.ghosts)
        return Promises(tuple(self.sent), self.safe, ghosts, self.number, self.now_ms)

    def append_whole(self, message: Any) -> None:
        """:meth:`append`, which a crash may cut off."""
        batch = attrs.evolve(self.batch(*message), as_one=False)
        ghost = Ghost(len(self.sent), self.of(batch))
        self.ghosts.append(ghost)
        assert self.store.append(batch, self.now_ms).status == "PUT_OK"
        self.ghosts.remove(ghost)
        self.sent += ghost.sent

    def take_up(self, files: MemoryFileSystem, promises: Promises, *, power: bool) -> None:
        """Open what a crash left, and see that every promise is kept."""
        self.sent, self.safe = list(promises.sent), promises.safe
        self.ghosts = [Ghost(after, list(sent)) for after, sent in promises.ghosts]
        self.number, self.now_ms = promises.number, promises.now_ms
        if power:
            self.safe_only()
        self.reopen(files)
        while self.store.dispatch():
            pass


def run(seed: int) -> recorded.Record:
    """A store from its first moment, with steps that are drawn."""
    machine = Machine()
    record = _recorded(machine, machine.files.after_process_crash())
    machine.reopen(machine.files)
    _work(machine, random.Random(seed))
    record.end()
    return record


def go_on(base: MemoryFileSystem, promises: Promises, seed: int, *, power: bool = False) -> recorded.Record:
    """The same on what a crash left."""
    machine = Machine()
    record = _recorded(machine, base)
    machine.take_up(machine.files, promises, power=power)
    _work(machine, random.Random(seed))
    record.end()
    return record


def _recorded(machine: Machine, base: MemoryFileSystem) -> recorded.Record:
    base.now_ms = lambda: machine.now_ms
    files = machine.files = recorded.recording(base, machine.promised)
    return files.record


STEPS = (*["append"] * 4, *["dispatch"] * 2, *["flush"] * 2, "time", "die", "stop")


def _work(machine: Machine, rng: random.Random) -> None:
    for _ in range(rng.randrange(6, 16)):
        match rng.choice(
            ["append", "append", "append", "append", "dispatch", "dispatch", "flush", "flush", "time", "die", "stop"]
        ):
            case "append":
                sizes = rng.choice([[20], [0, 120], [20] * 9, [600], [77, 3, 50]])
                machine.append_whole((rng.randrange(3), sizes, rng.randrange(4), rng.randrange(21)))
            case "dispatch":
                machine.dispatch(rng.randrange(1, 5))
            case "flush":
                machine.flush(rng.randrange(8))
            case "time":
                machine.time_goes_by(rng.choice([1, 500, 5000]))
            case "die":
                machine.die(None)
            case "stop":
                machine.stop_and_start()


def check(files: MemoryFileSystem, promises: Promises, *, power: bool, deep: bool) -> None:
    """What was safe is there, and after it a beginning of what was appended; entries and keys match the CommitLog;
    every message is found by its key; twice the same."""
    machine = Machine()
    files.now_ms = lambda: machine.now_ms
    machine.take_up(files, promises, power=power)
    machine.it_holds_what_the_list_holds()
    machine.next_numbers_are_right()
    found = machine.held()
    if deep:
        machine.checked()
        assert_keys_lead_to_messages(machine)
    machine.reopen(machine.files.after_process_crash())
    assert machine.held() == found, "a second recovery finds something else"


def assert_keys_lead_to_messages(machine: Machine) -> None:
    """By every key of every message, in the index's own files, that message is found."""
    store, damage = machine.store, list[DataError]()
    for item in store.commit_log.items(store.commit_log.min_offset):
        if isinstance(item, Record) and item.sys_flag & TRANSACTION_MASK != ROLLBACK:
            _, _, keys = item.properties.partition(b"KEYS\x01")
            for key in keys.partition(b"\x02")[0].split():
                hashed = index_hash(f"{item.topic}#{key.decode()}")
                found = store.index.query(hashed, 1 << 20, 0, FOR_EVER_MS, damage)
                assert item.physical_offset in found, f"{key!r} does not lead to {item.physical_offset}"
    assert not damage
