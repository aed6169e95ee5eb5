"""A whole node: what is declared, messages in queues, delayed ones, a topic and how far its group has read; stops, and
processes that die and are followed by others, who take over."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import attrs

from tests.crash_points.recording import Record, recording
from tests.support.promises import Fates
from tests.support.runtime_tools import HandNode, hand_node
from warren.actors.clock import HandClock
from warren.actors.runtime.future import Confirm
from warren.storage.memory import MemoryFileSystem

SETTINGS: Final[dict[str, Any]] = {
    "segment_entry_count": 8,
    "queue_index_max_journal_entries": 20,
    "queue_index_embed_msgs_below": 100,
    "msg_store_file_size_limit": 2000,
    "mapped_file_size_commit_log": 1 << 12,
    "mapped_file_size_consume_queue": 20 * 5,
    "max_hash_slot_num": 8,
    "max_index_num": 10,
    "max_message_size": 1 << 11,
}
QUEUES: Final = ("a", "b")
TOPIC, GROUP = "topic", "group"


def is_safe(confirm: Confirm | None) -> bool:
    return confirm is not None and confirm.done and confirm.error is None


@attrs.define
class Message:
    """One that was handed over. ``going``: acked or called back; ``gone``: and that is safe."""

    body: bytes
    queue: str
    number: int
    due_ms: int | None = None
    confirm: Confirm | None = None
    going: bool = False
    gone: bool = False

    @property
    def confirmed(self) -> bool:
        return is_safe(self.confirm)

    def known(self) -> tuple[Any, ...]:
        return self.body, self.queue, self.number, self.due_ms, self.confirmed, self.going, self.gone


@attrs.frozen
class Known:
    """A message as it stood at a moment."""

    body: bytes
    queue: str
    number: int
    due_ms: int | None
    confirmed: bool
    going: bool
    gone: bool


@attrs.frozen
class Promises:
    wall_us: int
    messages: tuple[Known, ...]
    there: frozenset[tuple[str, str]]
    """Kind and name of what is declared for sure."""
    perhaps: frozenset[tuple[str, str]]
    """Likewise, of what is being declared or deleted."""
    appended: tuple[tuple[bytes, bool], ...]
    """Bodies of the topic; whether they were confirmed."""
    committed: int
    """How far the group has come for sure."""
    read: int
    """How far it has come."""


@attrs.define
class Life:
    """A node at work, and what it has promised."""

    hand: HandNode
    rng: random.Random
    messages: list[Message] = attrs.Factory(list)
    there: set[tuple[str, str]] = attrs.Factory(set)
    perhaps: set[tuple[str, str]] = attrs.Factory(set)
    appended: list[tuple[bytes, Confirm | None]] = attrs.Factory(list)
    committed: int = 0
    read: int = 0

    def promised(self) -> Promises:
        return Promises(
            self.hand.clock.wall_us(),
            tuple(Known(*one.known()) for one in self.messages),
            frozenset(self.there),
            frozenset(self.perhaps),
            tuple((body, is_safe(confirm)) for body, confirm in self.appended),
            self.committed,
            self.read,
        )

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def declare(self) -> None:
        kind = self.rng.choice(("queue", "exchange", "policy", "vhost"))
        name, node = f"{kind}-{self.rng.randrange(3)}", self.hand.node
        thing = (kind, name)
        self.perhaps.add(thing)
        if thing in self.there and self.rng.random() < 0.5:
            self.there.discard(thing)
            delete: dict[str, Callable[[str], object]] = {
                "queue": node.delete_queue,
                "exchange": node.delete_exchange,
                "policy": node.clear_policy,
                "vhost": node.delete_vhost,
            }
            delete[kind](name)
        else:
            match kind:
                case "queue":
                    node.queue(name)
                case "exchange":
                    node.exchange(name, "fanout")
                case "policy":
                    node.set_policy(name, "^none$", {"max-length": 5})
                case _:
                    node.vhost(name)
            self.there.add(thing)
        self.perhaps.discard(thing)

    def publish(self) -> None:
        name = self.rng.choice(QUEUES)
        queue = self.hand.node.queue(name)
        for _ in range(self.rng.choice((1, 1, 3, 9))):
            one = self._message(name)
            confirm = one.confirm = queue.publish(one.body)
        if self.rng.random() < 0.6:
            confirm.wait()

    def publish_later(self) -> None:
        name = self.rng.choice(QUEUES)
        delay = self.rng.choice((1, 5, 3600))
        one = self._message(name, self.hand.clock.wall_us() // 1000 + delay * 1000)
        one.confirm = self.hand.node.queue(name).publish(one.body, delay=delay, message_id=f"id-{one.number}")
        if self.rng.random() < 0.6:
            one.confirm.wait()

    def _message(self, queue: str, due_ms: int | None = None) -> Message:
        number = len(self.messages)
        body = b"%d;" % number + b"." * self.rng.choice((0, 10, 150, 700))
        self.messages.append(one := Message(body, queue, number, due_ms))
        return one

    def call_back(self) -> None:
        waiting = [one for one in self.messages if one.due_ms and one.confirmed and not one.going
                   and one.due_ms > self.hand.clock.wall_us() // 1000]  # fmt: skip
        if waiting:
            one = self.rng.choice(waiting)
            one.going = True
            assert self.hand.node.cancel_delayed(f"id-{one.number}") == 1
            one.gone = True

    def work(self) -> None:
        queue = self.hand.node.queue(self.rng.choice(QUEUES))
        for delivery in queue.get_many(self.rng.randrange(1, 12)):
            if self.rng.random() < 0.7:
                self._of(delivery.body).going = True
                delivery.ack()
            else:
                delivery.nack()

    def sync(self) -> None:
        for name in QUEUES:
            self.hand.node.queue(name).sync()
            for one in self.messages:
                one.gone |= one.queue == name and one.going

    def _of(self, body: bytes) -> Message:
        return self.messages[int(body.partition(b";")[0])]

    def append(self) -> None:
        topic = self.hand.node.topic(TOPIC, queues=1)
        for _ in range(self.rng.choice((1, 4))):
            body = b"%d;" % len(self.appended) + b"." * self.rng.choice((0, 300))
            self.appended.append((body, None))
            confirm = topic.append(body, key=f"key-{len(self.appended) - 1}")
            self.appended[-1] = body, confirm.confirm
        if self.rng.random() < 0.7:
            confirm.wait()

    def read_on(self) -> None:
        if self.appended:
            wanted = self.rng.randrange(1, 5)
            self.read += wanted  # before it is known: a crash may fall within
            found = list(self.hand.node.topic(TOPIC, queues=1).read(GROUP, max_records=wanted))
            self.read += len(found) - wanted

    def pass_time(self) -> None:
        read, seconds = self.read, self.rng.choice((0.1, 6.0))
        self.hand.advance(seconds)
        if seconds > 5.0:  # flush_consumer_offset_interval
            self.committed = read

    def stop(self) -> None:
        self.hand.node.close()
        for one in self.messages:
            one.gone |= one.going and one.due_ms is None
        self.committed = self.read
        self._next(self.hand.files.after_process_crash())

    def die(self) -> None:
        self._next(self.hand.kill())

    def _next(self, files: MemoryFileSystem) -> None:
        """Another process takes over; what it finds was not acked after all."""
        self.hand = hand_node(files, clock=self.hand.clock, seed=self.rng.getrandbits(32), **SETTINGS)
        self.hand.run()
        for name in QUEUES:
            for found in self.hand.node.queue(name).browse():
                self._of(found.body).going = False
        self.read = place_of_group(self.hand)


STEPS: Final = (
    *[Life.publish] * 4,
    *[Life.publish_later] * 2,
    *[Life.work] * 3,
    *[Life.sync] * 2,
    *[Life.append] * 3,
    *[Life.read_on] * 2,
    *[Life.declare] * 2,
    *[Life.pass_time] * 2,
    Life.call_back,
    Life.stop,
    Life.die,
)


def run(seed: int) -> Record:
    """A node from its first moment, with steps that are drawn."""
    rng = random.Random(seed)
    lives: list[Life] = []
    clock = HandClock()
    nothing = Promises(clock.wall_us(), (), frozenset(), frozenset(), (), 0, 0)
    base = MemoryFileSystem(seed, now_ms=lambda: clock.wall_us() // 1000)
    files = recording(base, lambda: lives[0].promised() if lives else nothing)
    life = Life(hand_node(files, clock=clock, seed=seed, **SETTINGS), rng)
    lives.append(life)
    for name in QUEUES:
        life.perhaps.add(("queue", name))
        life.hand.node.queue(name)
        life.perhaps.discard(("queue", name))
        life.there.add(("queue", name))
    for _ in range(rng.randrange(5, 14)):
        rng.choice(STEPS)(life)
    files.record.end()
    life.hand.forget()
    return files.record


def check(files: MemoryFileSystem, promises: Promises, *, power: bool, deep: bool) -> None:
    """The next node opens and keeps every promise; a second opening finds the same.

    But for delayed messages whose time has come: the first node may die as it hands them to their queues, each at least
    once, and so may the second.
    """
    clock = HandClock(promises.wall_us)
    files.now_ms = lambda: clock.wall_us() // 1000
    first = found_in(files, promises, clock)
    assert_kept(first, promises)
    second = found_in(files.after_process_crash(), promises, clock)
    assert_kept(second, promises)
    due = {one.body for one in promises.messages if one.due_ms is not None and one.due_ms <= clock.wall_us() // 1000}
    assert second.without(due) == first.without(due), "a second opening finds something else"


@attrs.frozen
class Found:
    """What a node has."""

    declared: frozenset[tuple[str, str]]
    queues: dict[str, list[bytes]]
    delayed: list[tuple[bytes, int]]
    topic: list[bytes]
    read: int

    def without(self, bodies: set[bytes]) -> Found:
        """The same without these messages of queues."""
        queues = {name: [body for body in found if body not in bodies] for name, found in self.queues.items()}
        return attrs.evolve(
            self, queues=queues, delayed=[(body, due_ms) for body, due_ms in self.delayed if body not in bodies]
        )


def found_in(files: MemoryFileSystem, promises: Promises, clock: HandClock) -> Found:
    """Open a node, look at all of it, and have it die."""
    hand = hand_node(files, clock=clock, **SETTINGS)
    try:
        node = hand.node
        exported = node.definitions()
        declared = {(kind, one["name"]) for kind, part in KINDS.items() for one in exported[part]}
        there = {name for kind, name in declared if kind == "queue"}
        queues = {name: [one.body for one in node.queue(name).browse()] for name in QUEUES if name in there}
        delayed = [(one.body, one.due_ms) for one in node.delayed(1 << 20)]
        topic: list[bytes] = []
        read = 0
        if TOPIC in node.topics():
            stream = node.topic(TOPIC)
            topic = [record.body for record in stream.reader("look", broadcast=True).records()]
            read = place_of_group(hand)
        return Found(frozenset(declared), queues, delayed, topic, read)
    finally:
        hand.forget()


def place_of_group(hand: HandNode) -> int:
    """The offset that the group committed; 0 where it never did."""
    topics: dict[str, Any] = (hand.node.stats().get("topics") or {}).get("topics") or {}
    place: int = topics.get(TOPIC, {}).get("groups", {}).get(GROUP, {}).get("committed", {}).get(0, 0)
    return place


KINDS: Final = {"queue": "queues", "exchange": "exchanges", "policy": "policies", "vhost": "vhosts"}


def fates_in(promises: Promises, queue: str) -> Fates[bytes]:
    its = [one for one in promises.messages if one.queue == queue]
    return Fates(
        {one.body for one in its},
        {one.body for one in its if one.confirmed},
        {one.body for one in its if one.going},
        {one.body for one in its if one.gone},
    )


def assert_kept(found: Found, promises: Promises) -> None:
    declared, perhaps = set(promises.there), set(promises.perhaps)
    there = {thing for thing in found.declared if thing[1].startswith((thing[0], *QUEUES))}
    Fates(declared | perhaps, declared, perhaps).check("declarations", there)
    waiting, known = dict(found.delayed), {one.body: one for one in promises.messages}
    assert len(waiting) == len(found.delayed), "a delayed message waits twice"
    assert waiting.keys() <= known.keys(), "a message waits that nobody published"
    for body, due_ms in waiting.items():
        assert due_ms == known[body].due_ms, "it comes at another time"
    for name in QUEUES:
        bodies = found.queues.get(name, [])
        later = {body for body in waiting if known[body].queue == name}
        fates_in(promises, name).check(f"messages of {name}", later.union(bodies))
        numbers = [known[body].number for body in bodies if known[body].due_ms is None]
        assert numbers == sorted(set(numbers)), "out of order, or twice"
    bodies = [body for body, _ in promises.appended]
    safe = {body for body, safe in promises.appended if safe}  # one ahead of them may have died with its process
    Fates(set(bodies), safe).check("records", found.topic)
    assert found.topic == sorted(found.topic, key=bodies.index), "records out of order"
    assert promises.committed <= found.read <= promises.read, (
        f"the group is at {found.read}, neither behind {promises.read} nor before {promises.committed}"
    )
