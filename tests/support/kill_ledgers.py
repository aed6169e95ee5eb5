"""What killed processes have reported, all loads together, and what must hold for what they left.

Of queues:

- Every confirmed message whose ack had not begun is there, whole, in every queue that it was published to;
- what was acked, and the ack made safe by a later ``sync()``, stays away, and so does whatever a recovery did not find;
- nothing is there that was not published, and each publisher's messages are in order, none twice;
- a message that comes for a second time, or from before the kill, says redelivered; one that cannot have been
  delivered before does not.

An ack that was not made safe may be lost with the process: its message comes back, and says redelivered.

Of a topic:

- Every confirmed message is there, once, whole, and found by its key;
- nothing is there that was not appended, and in each queue a stream's messages are in order;
- what was there once stays;
- no group's offset is beyond what a reader of it was handed out.

Of delayed and retried messages: a confirmed message whose ack has not begun is there. It may be there twice, because a
crash may prevent the note that it has come, or died, from being written.

Of messages with keys: no two have the same key, unless one was acked before the other came, and a crash lost that ack:
but never once the other one was confirmed. A confirmed message whose ack has not begun is there. A crash frees no key,
not even that of a message that came back: a publish with it is a duplicate.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

import attrs

import warren
from tests.support.kill_loads import (
    DEAD,
    GROUPS,
    JOBS,
    LATER,
    QUEUE_STREAMS,
    QUEUES,
    RETRIED,
    TOPIC,
    TOPIC_QUEUES,
    TOPIC_STREAMS,
    key_of,
    name_of,
    record_name_of,
)
from tests.support.killing import SETTINGS


@attrs.define
class QueueLedger:
    """What is known about one queue."""

    left: set[str] = attrs.Factory(set)
    """What the last recovery found."""
    confirmed: set[str] = attrs.Factory(set)
    acked: set[str] = attrs.Factory(set)
    """Their acks have begun."""
    gone: set[str] = attrs.Factory(set)
    """Their acks are safe."""
    delivered: set[str] = attrs.Factory(set)
    requeued: bool = False
    """Whether untaken messages of a consumer may have come back in this round."""

    def deliver(self, name: str, redelivered: bool) -> None:
        before = name in self.left or name in self.delivered
        assert redelivered or not before, f"{name} was delivered before, or is from before a kill, and does not say so"
        assert not redelivered or before or self.requeued, f"{name} says redelivered, and nobody can have had it"
        assert name not in self.gone, f"{name} comes though its ack was safe"
        self.delivered.add(name)

    def survive(self, found: list[str], published: set[str]) -> None:
        """``found``: what is there after a kill, in order; ``published``: what this round may have added."""
        here = set(found)
        assert len(here) == len(found), "a message occurs twice"
        last: dict[str, int] = {}
        for name in found:
            stream, _, number = name.partition(":")
            assert int(number) > last.get(stream, -1), f"{name} is out of order"
            last[stream] = int(number)
        assert not here - self.left - published, "messages that never were published, or that were gone"
        assert not (lost := self.confirmed - self.acked - here), f"confirmed and lost: {sorted(lost)[:20]}"
        assert not (back := self.gone & here), f"acked for good and back: {sorted(back)[:20]}"
        self.left = here
        self.confirmed = set(here)  # it survived once: it must again
        self.acked, self.gone, self.delivered, self.requeued = set(), set(), set(), False


@attrs.define
class QueuesLedger:
    """What all processes have reported of the load :mod:`tests.support.kill_loads`."""

    kind: ClassVar = "queues"

    queues: dict[str, QueueLedger] = attrs.Factory(lambda: {name: QueueLedger() for name in QUEUES})
    started: dict[str, int] = attrs.Factory(lambda: dict.fromkeys(QUEUE_STREAMS, 0))
    """The first number of each stream that was not begun to be published."""
    round_began: dict[str, int] = attrs.Factory(dict)
    confirmed_count: int = 0

    def begin(self) -> None:
        self.round_began = dict(self.started)

    def read(self, line: str) -> None:
        kind, *words = line.split(" ")
        match kind:
            case "p":
                self.started[words[0]] = int(words[1]) + 1
            case "c":
                names = {f"{words[0]}:{number}" for number in range(int(words[1]), int(words[2]) + 1)}
                self.confirmed_count += len(names)
                for queue in QUEUE_STREAMS[words[0]][0]:
                    self.queues[queue].confirmed |= names
            case "d":
                for name, _, flag in (word.partition("=") for word in words[1:]):
                    self.queues[words[0]].deliver(name, flag == "1")
            case "a":
                self.queues[words[0]].acked |= set(words[1:])
            case "s":
                self.queues[words[0]].gone |= self.queues[words[0]].acked
            case "x":
                self.queues[words[0]].requeued = True
            case _:
                raise AssertionError(f"the process says: {line}")

    def check(self, node: warren.Node, rng: random.Random) -> None:
        """Look at what a kill has left."""
        there = {queue.name: queue for queue in node.queues()}
        for name, ledger in self.queues.items():
            taken = there[name].get_many(1 << 20) if name in there else []
            assert all(one.redelivered for one in taken), "from before a kill, and does not say redelivered"
            found = [name_of(one.body) for one in taken]
            published = {
                f"{stream}:{number}"
                for stream, (targets, _) in QUEUE_STREAMS.items()
                if name in targets
                for number in range(self.round_began[stream], self.started[stream])
            }
            ledger.survive(found, published)


LOOKED_UP = 30
"""How many keys are looked up after each kill."""

Name = tuple[str, int]


@attrs.define
class TopicsLedger:
    """What all processes have reported of the load :mod:`tests.support.kill_loads`."""

    kind: ClassVar = "topics"

    started: dict[str, int] = attrs.Factory(lambda: dict.fromkeys(TOPIC_STREAMS, 0))
    """The first number of each stream that was not begun to be appended."""
    round_began: dict[str, int] = attrs.Factory(dict)
    confirmed: set[Name] = attrs.Factory(set)
    confirmed_count: int = 0
    left: set[Name] = attrs.Factory(set)
    """What the last recovery found."""
    handed_out: dict[tuple[str, int], int] = attrs.Factory(dict)
    """By group and queue: the offset after the last message that a reader had."""

    def begin(self) -> None:
        self.round_began = dict(self.started)

    def read(self, line: str) -> None:
        kind, *words = line.split(" ")
        match kind:
            case "p":
                self.started[words[0]] = int(words[1]) + 1
            case "c":
                names = {(words[0], number) for number in range(int(words[1]), int(words[2]) + 1)}
                self.confirmed |= names
                self.confirmed_count += len(names)
            case "r":
                place = words[0], int(words[1])
                self.handed_out[place] = max(self.handed_out.get(place, 0), int(words[2]) + 1)
            case _:
                raise AssertionError(f"the process says: {line}")

    def check(self, node: warren.Node, rng: random.Random) -> None:
        """Look at what a kill has left."""
        topic = node.topic(TOPIC, queues=TOPIC_QUEUES)
        with topic.reader("check", broadcast=True) as reader:
            records = reader.read(1 << 30)
        queues: dict[int, list[Name]] = {queue_id: [] for queue_id in range(TOPIC_QUEUES)}
        for record in records:
            assert record.key == key_of(*record_name_of(record.body))
            assert record.queue_offset == len(queues[record.queue_id])
            queues[record.queue_id].append(record_name_of(record.body))
        self.check_queues(queues)
        for name in rng.sample(sorted(self.left), min(LOOKED_UP, len(self.left))):
            assert [record_name_of(one.body) for one in topic.find(key_of(*name))] == [name]
        for group in GROUPS:
            committed = topic.groups().get(group, {}).get("committed", {})
            assert all(place <= self.handed_out.get((group, queue), 0) for queue, place in committed.items())

    def check_queues(self, queues: dict[int, list[Name]]) -> None:
        for names in queues.values():
            last: dict[str, int] = {}
            for stream, number in names:
                assert number > last.get(stream, -1), f"{stream}:{number} is out of order, or there twice"
                last[stream] = number
        found = [name for names in queues.values() for name in names]
        here = set(found)
        assert len(here) == len(found), "a message occurs twice"
        begun = {(s, n) for s in TOPIC_STREAMS for n in range(self.round_began[s], self.started[s])}
        assert not here - self.left - begun, "messages that nobody appended"
        assert not (lost := (self.confirmed | self.left) - here), f"confirmed and lost: {sorted(lost)[:20]}"
        self.left, self.confirmed = here, set()


ASKED = 100
"""How many keys are published with again after each kill."""


class PartLedger(Protocol):
    """The ledger of one load."""

    started: dict[str, int]
    confirmed_count: int

    def begin(self) -> None: ...

    def read(self, line: str) -> None: ...

    def check(self, node: warren.Node, rng: random.Random) -> None: ...


@attrs.define
class OnceOrMoreLedger:
    """The ledger of messages that may be there twice."""

    stream: str
    look: Callable[[warren.Node], list[int]]
    """The numbers that are there."""
    started: dict[str, int] = attrs.Factory(lambda self: {self.stream: 0}, takes_self=True)
    must: set[int] = attrs.Factory(set)
    """Confirmed messages whose ack has not begun."""
    confirmed_count: int = 0

    def begin(self) -> None:
        pass

    def read(self, line: str) -> None:
        kind, *words = line.split(" ")
        match kind:
            case "p":
                self.started[self.stream] = int(words[1]) + 1
            case "c":
                new = range(int(words[1]), int(words[2]) + 1)
                self.must |= set(new)
                self.confirmed_count += len(new)
            case "a":
                self.must -= {int(word.partition(":")[2]) for word in words[1:]}
            case _:
                raise AssertionError(f"the process says: {line}")

    def check(self, node: warren.Node, rng: random.Random) -> None:
        here = set(self.look(node))
        assert not here - set(range(self.started[self.stream])), "messages that nobody published"
        assert not (lost := self.must - here), f"{self.stream}: confirmed and lost: {sorted(lost)[:20]}"


def _delayed(node: warren.Node) -> list[int]:
    queue = node.queue(LATER)
    waiting = [one.body for one in queue.delayed(1 << 20)]  # before what has come: it may come meanwhile
    return [int(body) for body in [*waiting, *(one.body for one in queue.browse())] if body != b"far"]


def _retried(node: warren.Node) -> list[int]:
    there = {queue.name for queue in node.queues()}
    return [
        int(one.body) for name in (RETRIED, DEAD) if name in there for one in node.queue(name, passive=True).browse()
    ]


@attrs.define
class UniqueLedger:
    """The ledger of messages with keys."""

    kind: ClassVar = "unique"
    started: dict[str, int] = attrs.Factory(lambda: {JOBS: 0})
    must: set[str] = attrs.Factory(set)
    """The keys of confirmed messages whose ack has not begun."""
    for_a_time: set[str] = attrs.Factory(set)
    """Keys that are taken, whatever becomes of the messages."""
    freed: set[str] = attrs.Factory(set)
    """Keys of messages that this process has begun to ack, with none confirmed since: a crash may bring such a message
    back beside the next one."""
    twice: set[str] = attrs.Factory(set)
    """Keys that the previous crash has left with two messages."""
    confirmed_count: int = 0

    def begin(self) -> None:
        self.freed.clear()

    def read(self, line: str) -> None:
        kind, *words = line.split(" ")
        match kind:
            case "p":
                self.started[JOBS] = int(words[1]) + 1
            case "k":
                timed = {key for key in words if key.startswith("t")}
                self.must |= set(words) - (timed & self.for_a_time)  # one that comes again is a duplicate
                self.for_a_time |= timed
                self.freed -= set(words)
                self.confirmed_count += len(words)
            case "a":
                self.must -= set(words[1:])
                self.freed |= {key for key in words[1:] if key.startswith("w")}
                self.for_a_time |= {key for key in words[1:] if key.startswith("t")}  # it was there: its key is taken
            case _:
                raise AssertionError(f"the process says: {line}")

    def check(self, node: warren.Node, rng: random.Random) -> None:
        queue = node.queue(JOBS)
        here = Counter(one.body.decode() for one in queue.browse())
        twice = {key for key, count in here.items() if count > 1}
        assert not (wrong := twice - self.freed - self.twice), f"of these keys there are two: {wrong}"
        self.twice = twice
        assert not (lost := self.must - set(here)), f"confirmed and lost: {sorted(lost)[:20]}"
        known = sorted(self.must | self.for_a_time | set(here))
        for letter, period in (("w", None), ("t", 3600)):
            keys = [key for key in known if key.startswith(letter)]
            keys = rng.sample(keys, min(ASKED, len(keys)))
            if keys:
                again = queue.publish_many([b"again"] * len(keys), unique=keys, unique_for=period)
                again.wait()
                assert again.duplicates == tuple(range(len(keys))), "a key that was taken is free"


@attrs.define
class Ledger:
    """The ledgers of all loads."""

    parts: dict[str, PartLedger] = attrs.Factory(
        lambda: {
            "queues": QueuesLedger(),
            "topics": TopicsLedger(),
            "delays": OnceOrMoreLedger(LATER, _delayed),
            "retries": OnceOrMoreLedger(RETRIED, _retried),
            "unique": UniqueLedger(),
        }
    )

    @property
    def started(self) -> dict[str, int]:
        """The first number of each stream that was not begun."""
        return {stream: number for part in self.parts.values() for stream, number in part.started.items()}

    @property
    def confirmed_count(self) -> int:
        return sum(part.confirmed_count for part in self.parts.values())

    def begin(self) -> None:
        for part in self.parts.values():
            part.begin()

    def read(self, line: str) -> None:
        kind, _, rest = line.partition(" ")
        self.parts[kind].read(rest)

    def check(self, directory: Path, rng: random.Random) -> None:
        """Open what a kill has left."""
        settings: dict[str, Any] = SETTINGS | {"vm_memory_high_watermark": 1.0}
        with warren.open(directory, sync="os", **settings) as node:
            assert node.failed_queues == {}
            for part in self.parts.values():
                part.check(node, rng)
