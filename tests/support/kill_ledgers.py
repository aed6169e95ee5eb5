"""What killed processes have reported, all loads together, and what must hold for what they left.

Delayed and retried messages: a confirmed message whose ack has not begun is there. It may be there twice, because a
crash may prevent the note that it has come, or died, from being written.

Messages with keys: no two have the same key, unless one was acked before the other came, and a crash lost that ack: but
never once the other one was confirmed. A confirmed message whose ack has not begun is there. A crash frees no key,
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
from tests.support.kill_child import SETTINGS
from tests.support.kill_loads import DEAD, JOBS, LATER, RETRIED
from tests.support.queue_ledger import QueuesLedger
from tests.support.topic_ledger import TopicsLedger

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
