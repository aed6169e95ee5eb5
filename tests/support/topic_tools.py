"""Topics without a node: a CommitLog whose batches become records, and a topic store against a list.

The log is in memory, its queues are lists: what an engine hands out as a batch becomes records, and is read back from
its bytes. The machine holds a store against what it does and asks for, in any order.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warren.actors.engines.topics.store_opening import load_store
from warren.actors.engines.topics.topic_store import TopicStore
from warren.msg_store.commit_log.commit_log import Batch, CommitLog
from warren.msg_store.commit_log.commit_log_format import COMMIT, PREPARED, ROLLBACK, TRANSACTION_MASK, Host, Record
from warren.storage.errors import StorageError
from warren.storage.faults import SimulatedCrash
from warren.storage.filesystem import write_file
from warren.storage.memory import MemoryFileSystem
from warren.storage.topic_settings import TopicSettings

HERE = Host.parse("10.1.2.3:10911")
THERE = Host.parse("[2001:db8::1]:50555")

RECORD = Record(
    topic="orders",
    queue_id=0,
    queue_offset=0,
    physical_offset=0,
    size=0,
    store_timestamp=1,
    born_timestamp=1,
    born_host=HERE,
    store_host=HERE,
    sys_flag=0,
    flag=0,
    reconsume_times=0,
    prepared_transaction_offset=0,
    body_crc=0,
    body=b"body",
    properties=b"",
)
"""One like any other, for ``attrs.evolve``."""


def batch(topic: str = "orders", *bodies: bytes, queue_id: int = 2, properties: bytes = b"", **more: Any) -> Batch:
    return Batch(
        topic=topic,
        queue_id=queue_id,
        bodies=bodies or (b"body",),
        properties=properties,
        born_timestamp=1_000,
        born_host=THERE,
        store_host=HERE,
        **more,
    )


class Log:
    """Records in physical order, and by topic and queue."""

    def __init__(self) -> None:
        settings = TopicSettings(mapped_file_size_commit_log=1 << 16)
        self.commit_log = CommitLog.load(MemoryFileSystem(), "/commitlog", settings)
        self.queues: dict[tuple[str, int], list[Record]] = {}

    def append(self, added: Batch, store_timestamp: int = 2_000) -> list[Record]:
        queue = self.queues.setdefault((added.topic, added.queue_id), [])
        appended = self.commit_log.append(added, len(queue), store_timestamp)
        places = zip(appended.physical_offsets.tolist(), appended.sizes.tolist(), strict=True)
        records = [self.commit_log.record(physical_offset, size) for physical_offset, size in places]
        if added.sys_flag & TRANSACTION_MASK not in (PREPARED, TRANSACTION_MASK):
            queue += records
        return records


PLACE = "/store"
SETTINGS = TopicSettings(
    mapped_file_size_commit_log=1024,
    mapped_file_size_consume_queue=20 * 5,
    max_hash_slot_num=7,
    max_index_num=9,
    max_message_size=1000,
)
HOSTS = (Host.parse("10.0.0.1:1"), Host.parse("[2001:db8:0:0:0:0:0:1]:2"))
TOPICS = ("a", "bb", "a-topic-with-a-longer-name")
DAY_MS = 86_400_000


@attrs.frozen
class Sent:
    """A message as it was appended."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    sys_flag: int

    @classmethod
    def of(cls, record: Record) -> Sent:
        return cls(record.topic, record.queue_id, record.body, record.properties, record.sys_flag & 0xC)


@attrs.frozen
class Ghost:
    """A write that failed, or was cut off: some of its messages may be there."""

    after: int
    """How many messages were there before it."""
    sent: list[Sent]


class TopicStoreMachine(RuleBasedStateMachine):
    """``sent``: what must be there; the first ``safe`` survive even a power loss."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.files = MemoryFileSystem(now_ms=lambda: self.now_ms)
        self.files.make_directories(PLACE)
        self.files.sync_directory("/")  # the opener of a store must do that
        self.names = (f"2099{number:013d}" for number in itertools.count())
        self.number = self.safe = self.gone = 0
        self.sent: list[Sent] = []
        self.ghosts: list[Ghost] = []
        self.store = self.load()
        self.store.start()

    def load(self, files: MemoryFileSystem | None = None, *, sync_failed: bool = False) -> TopicStore:
        new_name = lambda: next(self.names)  # noqa: E731
        return load_store(files or self.files, PLACE, SETTINGS, new_index_name=new_name, sync_failed=sync_failed)

    # ── appending ───────────────────────────────────────────────────────────────────────────────────────────────

    def batch(self, topic: int, sizes: list[int], keys: int, how: int) -> Batch:
        first = self.number
        self.number += len(sizes)
        flag = (0, 0, 0, 0, COMMIT, PREPARED, ROLLBACK)[how % 7]
        keyed = [b"KEYS\x01" + b" ".join(b"k%d" % (number % 5) for number in range(first, first + keys))] * (keys > 0)
        tagged = [b"TAGS\x01t%d" % (first % 3)] * (first % 2)
        properties = [b"\x02".join(keyed + tagged) for _ in sizes]
        return Batch(
            topic=TOPICS[topic],
            queue_id=first % 2,
            bodies=[random.Random(first + number).randbytes(size) for number, size in enumerate(sizes)],
            properties=properties,
            born_timestamp=self.now_ms,
            born_host=HOSTS[how % 2],
            store_host=HOSTS[0],
            sys_flag=flag,
            as_one=how % 3 == 0,
        )

    def of(self, batch: Batch) -> list[Sent]:
        assert not isinstance(batch.properties, bytes)
        return [
            Sent(batch.topic, batch.queue_id, body, properties, batch.sys_flag)
            for body, properties in zip(batch.bodies, batch.properties, strict=True)
        ]

    messages = st.tuples(
        st.integers(0, 2),
        st.one_of(st.lists(st.integers(0, 120), min_size=1, max_size=4), st.just([20] * 9), st.just([600])),
        st.integers(0, 3),
        st.integers(0, 20),
    )

    @rule(message=messages)
    def append(self, message: Any) -> None:
        batch = self.batch(*message)
        if batch.as_one and sum(map(len, batch.bodies)) + 200 * len(batch.bodies) > 1000:
            batch = attrs.evolve(batch, as_one=False)
        done = self.store.append(batch, self.now_ms)
        assert done.status == "PUT_OK"
        self.sent += self.of(batch)

    @rule(message=messages, kind=st.sampled_from(["pwrite", "truncate", "create", "sync"]), skip=st.integers(0, 3))
    def append_on_a_disk_that_refuses(self, message: Any, kind: str, skip: int) -> None:
        """The store has to be reopened then, and says so."""
        batch = attrs.evolve(self.batch(*message), as_one=False)
        self.ghosts.append(Ghost(len(self.sent), self.of(batch)))
        self.files.fail(kind, skip=skip)
        try:
            self.store.append(batch, self.now_ms)
            self.sent += self.of(batch)
            self.store.dispatch()
            self.store.flush_queues()
        except StorageError:
            self.files.plan.failures.clear()
            self.store.abandon()
            self.reopen(self.files, sync_failed=True)
        self.files.plan.failures.clear()

    # ── everything else that moves ──────────────────────────────────────────────────────────────────────────────

    @rule(times=st.integers(1, 4))
    def dispatch(self, times: int) -> None:
        for _ in range(times):
            self.store.dispatch()

    @rule(what=st.integers(0, 7))
    def flush(self, what: int) -> None:
        if what & 1:
            self.store.flush_commit_log()
            self.ghosts = [ghost for ghost in self.ghosts if ghost.after == len(self.sent)]  # others are written over
            self.safe = len(self.sent)
        if what & 2:
            self.store.flush_queues()
        if what & 4:
            self.store.flush_index()

    @rule(ms=st.sampled_from([1, 500, 5_000, DAY_MS]))
    def time_goes_by(self, ms: int) -> None:
        self.now_ms += ms

    @rule(percent=st.sampled_from([0.0, 90.0]))
    def expire(self, percent: float) -> None:
        if self.store.expire_commit_log(self.now_ms, 4, percent):
            self.store.expire_queues()
            self.forget_expired()

    def forget_expired(self) -> None:
        kept = sum(isinstance(item, Record) for item in self.store.commit_log.items(self.store.commit_log.min_offset))
        gone = len(self.sent) - kept
        self.gone += gone
        self.sent = self.sent[gone:]
        self.safe = max(self.safe - gone, 0)
        self.ghosts = [Ghost(max(ghost.after - gone, 0), ghost.sent) for ghost in self.ghosts]

    # ── stops ───────────────────────────────────────────────────────────────────────────────────────────────────

    @rule()
    def stop_and_start(self) -> None:
        self.store.close()
        self.safe = len(self.sent)
        self.reopen(self.files.after_process_crash())
        assert self.store.was_clean

    @rule(seed=st.one_of(st.none(), st.integers(0, 1 << 20)))
    def die(self, seed: int | None) -> None:
        self.reopen(self.crashed(seed))

    @rule(
        message=messages,
        operation=st.integers(1, 40),
        torn=st.booleans(),
        seed=st.one_of(st.none(), st.integers(0, 99)),
    )
    def die_at_work(self, message: Any, operation: int, torn: bool, seed: int | None) -> None:
        batch = attrs.evolve(self.batch(*message), as_one=False)
        self.ghosts.append(Ghost(len(self.sent), self.of(batch)))
        self.files.crash_at(operation, torn=torn)
        try:
            self.store.append(batch, self.now_ms)
            self.store.dispatch()
            self.store.flush_queues()
            self.store.flush_index()
            self.store.flush_commit_log()
            self.store.close()
        except SimulatedCrash:
            pass
        self.reopen(self.crashed(seed))

    @rule(operation=st.integers(1, 40), torn=st.booleans(), first=st.integers(0, 99), second=st.integers(0, 99))
    def die_in_recovery(self, operation: int, torn: bool, first: int, second: int) -> None:
        self.files = self.crashed(first if first % 2 else None)
        if first % 2:
            self.safe_only()
        self.files.crash_at(operation, torn=torn)
        try:
            self.store = self.load()
            self.store.start()
            self.store.close()
        except SimulatedCrash:
            pass
        self.reopen(self.crashed(second if second % 2 else None))

    def crashed(self, seed: int | None) -> MemoryFileSystem:
        if seed is None:
            return self.files.after_process_crash()
        files = self.files.after_power_loss(random.Random(seed))
        self.safe_only()
        return files

    def safe_only(self) -> None:
        """A power loss may take what is not safe, from any message on."""
        if self.safe < len(self.sent):
            self.ghosts.append(Ghost(self.safe, self.sent[self.safe :] + self.rest()))
            self.sent = self.sent[: self.safe]

    def rest(self) -> list[Sent]:
        """What a failed write may have left after everything else."""
        return next((ghost.sent for ghost in reversed(self.ghosts) if ghost.after == len(self.sent)), [])

    def reopen(self, files: MemoryFileSystem, *, sync_failed: bool = False) -> None:
        """What is there now: what had to be, and then nothing, or a beginning of what may be."""
        self.files = files
        self.store = self.load(sync_failed=sync_failed)
        found = self.held()
        if self.store.commit_log.min_offset and len(found) < len(self.sent):
            raise AssertionError("what was there is missing")
        assert found[: len(self.sent)] == self.sent
        rest = found[len(self.sent) :]
        assert not rest or any(
            ghost.after <= len(self.sent) and ghost.sent[: len(found) - ghost.after] == found[ghost.after :]
            for ghost in self.ghosts
        )
        self.store.start()
        self.sent, self.safe, self.ghosts = found, self.safe, []
        if self.number % 2:  # else it goes on with an index that lags
            while self.store.dispatch():
                pass

    def held(self) -> list[Sent]:
        log = self.store.commit_log
        items = list(log.items(log.min_offset))
        assert all(item.crc_ok for item in items if isinstance(item, Record))
        return [Sent.of(item) for item in items if isinstance(item, Record)]

    # ── what holds at any time ──────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def it_holds_what_the_list_holds(self) -> None:
        self.store.check_invariants()
        assert self.held() == self.sent

    @invariant()
    def next_numbers_are_right(self) -> None:
        log, following = self.store.commit_log, dict[tuple[str, int], int]()
        for item in log.items(log.min_offset):
            if isinstance(item, Record) and item.sys_flag & 0xC in (0, COMMIT):
                key = item.topic, item.queue_id
                assert item.queue_offset == following.get(key, item.queue_offset)
                following[key] = item.queue_offset + 1
        for (topic, queue_id), number in following.items():
            assert self.store.next_offset(topic, queue_id) == number

    @precondition(lambda self: self.store.dispatched == self.store.indexed == self.store.commit_log.end)
    @invariant()
    def what_was_built_is_what_a_rebuild_builds(self) -> None:
        self.checked()

    def checked(self) -> None:
        other = self.rebuilt()
        first = self.store.commit_log.min_offset
        for key, queue in other.queues.items():
            mine = self.store.queues[key]
            start = max(mine.first_offset(first), queue.min_offset)
            assert mine.max_offset == queue.max_offset
            assert mine.entries(start, 1 << 20).tolist() == queue.entries(start, 1 << 20).tolist()
        assert items_of(self.store, first) == items_of(other, first)

    def rebuilt(self) -> TopicStore:
        """A store that has nothing but this one's CommitLog, up to its end."""
        log, files = self.store.commit_log, MemoryFileSystem()
        files.make_directories(f"{PLACE}/commitlog")
        for base in log.mapped.bases:
            path = log.mapped.path(base)
            data = self.files.read(path)[: max(log.end - base, 0)]
            write_file(files, path, data.ljust(SETTINGS.mapped_file_size_commit_log, b"\0"), sync=False)
        write_file(files, f"{PLACE}/abort", b"", sync=False)
        other = self.load(files)
        other.start()
        while other.dispatch():
            pass
        return other


def items_of(store: TopicStore, first: int) -> list[tuple[int, int]]:
    """Hash and physical offset of every item, in the order of the index; those of messages that there are."""
    return [
        (int(item["key_hash"]), int(item["physical_offset"]))
        for file in store.index.index_files
        for item in file.items(1, max(file.header.index_count, 1))
        if item["physical_offset"] >= first
    ]
