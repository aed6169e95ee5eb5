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
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

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
from tests.support.promises import Fates, Name, check_order

QUEUE_TARGETS: Final = {stream: queues for stream, (queues, _) in QUEUE_STREAMS.items()}
TOPIC_TARGETS: Final = dict.fromkeys(TOPIC_STREAMS, (TOPIC,))
LOOKED_UP = 30
"""How many keys are looked up after each kill."""
ASKED = 100
"""How many keys are published with again after each kill."""


class PartLedger(Protocol):
    """The ledger of one load."""

    started: dict[str, int]
    confirmed_count: int

    def begin(self) -> None: ...

    def read(self, line: str) -> None: ...

    def check(self, node: warren.Node, rng: random.Random) -> None:
        """Look at what a kill has left."""


@attrs.define
class StreamsLedger:
    """What all processes have reported of messages with a stream and a number."""

    targets: Mapping[str, Sequence[str]]
    """By stream: the places that its messages go to."""
    started: dict[str, int] = attrs.Factory(lambda self: dict.fromkeys(self.targets, 0), takes_self=True)
    """The first number of each stream that was not begun to be published."""
    places: dict[str, Fates[Name]] = attrs.Factory(lambda: defaultdict(Fates))
    confirmed_count: int = 0

    def begin(self) -> None:
        pass

    def read(self, line: str) -> None:
        kind, place, *words = line.split(" ")
        match kind:
            case "p":
                first, self.started[place] = self.started[place], int(words[0]) + 1
                for target in self.targets[place]:
                    self.places[target].begun |= {(place, number) for number in range(first, self.started[place])}
            case "c":
                names = {(place, number) for number in range(int(words[0]), int(words[1]) + 1)}
                self.confirmed_count += len(names)
                for target in self.targets[place]:
                    self.places[target].made |= names
            case "a":
                self.places[place].ending |= {_parsed(word) for word in words}
            case "s":
                self.places[place].ended |= self.places[place].ending
            case _:
                raise AssertionError(f"the process says: {line}")


def _parsed(name: str) -> Name:
    stream, _, number = name.partition(":")
    return stream, int(number)


@attrs.define
class QueuesLedger(StreamsLedger):
    """The ledger of queues."""

    delivered: dict[str, set[Name]] = attrs.Factory(lambda: defaultdict(set))
    """By queue: what was delivered, or is from before a kill."""
    requeued: set[str] = attrs.Factory(set)
    """Queues to which untaken messages of a consumer may have come back in this round."""

    def read(self, line: str) -> None:
        kind, queue, *words = line.split(" ")
        match kind:
            case "d":
                for name, _, flag in (word.partition("=") for word in words):
                    self._deliver(queue, _parsed(name), flag == "1")
            case "x":
                self.requeued.add(queue)
            case _:
                super().read(line)

    def _deliver(self, queue: str, name: Name, redelivered: bool) -> None:
        before = name in self.delivered[queue]
        assert redelivered or not before, f"{name} was delivered before, or is from before a kill, and does not say so"
        assert not redelivered or before or queue in self.requeued, f"{name} says redelivered, and cannot have been"
        assert name not in self.places[queue].ended, f"{name} comes though its ack was safe"
        self.delivered[queue].add(name)

    def check(self, node: warren.Node, rng: random.Random) -> None:
        there = {queue.name: queue for queue in node.queues()}
        for name in QUEUES:
            taken = there[name].get_many(1 << 20) if name in there else []
            assert all(one.redelivered for one in taken), "from before a kill, and does not say redelivered"
            found = [_parsed(name_of(one.body)) for one in taken]
            self.places[name].check(name, found)
            check_order(name, found)
            self.places[name].survive(found)
            self.delivered[name] = set(found)
        self.requeued.clear()


@attrs.define
class TopicsLedger(StreamsLedger):
    """The ledger of a topic."""

    handed_out: dict[tuple[str, int], int] = attrs.Factory(dict)
    """By group and queue: the offset after the last message that a reader had."""

    def read(self, line: str) -> None:
        kind, group, *words = line.split(" ")
        if kind == "r":
            place = group, int(words[0])
            self.handed_out[place] = max(self.handed_out.get(place, 0), int(words[1]) + 1)
        else:
            super().read(line)

    def check(self, node: warren.Node, rng: random.Random) -> None:
        topic = node.topic(TOPIC, queues=TOPIC_QUEUES)
        with topic.reader("check", broadcast=True) as reader:
            records = reader.read(1 << 30)
        queues: dict[int, list[Name]] = {queue_id: [] for queue_id in range(TOPIC_QUEUES)}
        for record in records:
            assert record.key == key_of(*record_name_of(record.body))
            assert record.queue_offset == len(queues[record.queue_id])
            queues[record.queue_id].append(record_name_of(record.body))
        for queue_id, names in queues.items():
            check_order(f"queue {queue_id}", names)
        found = [name for names in queues.values() for name in names]
        self.places[TOPIC].check("messages of the topic", found)
        self.places[TOPIC].survive(found)
        for name in rng.sample(sorted(found), min(LOOKED_UP, len(found))):
            assert [record_name_of(one.body) for one in topic.find(key_of(*name))] == [name]
        for group in GROUPS:
            committed = topic.groups().get(group, {}).get("committed", {})
            assert all(place <= self.handed_out.get((group, queue), 0) for queue, place in committed.items())


@attrs.define
class OnceOrMoreLedger(StreamsLedger):
    """The ledger of messages that may be there twice."""

    look: Callable[[warren.Node], list[int]] = attrs.field(kw_only=True)
    """The numbers that are there."""

    def check(self, node: warren.Node, rng: random.Random) -> None:
        for stream, fates in self.places.items():
            fates.check(stream, [(stream, number) for number in self.look(node)], may_repeat=True)


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
            "queues": QueuesLedger(QUEUE_TARGETS),
            "topics": TopicsLedger(TOPIC_TARGETS),
            "delays": OnceOrMoreLedger({LATER: (LATER,)}, look=_delayed),
            "retries": OnceOrMoreLedger({RETRIED: (RETRIED,)}, look=_retried),
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
