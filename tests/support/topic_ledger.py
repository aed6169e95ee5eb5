"""What killed processes have reported of their topic, and what must hold then.

- Every confirmed message is there, once, whole, and found by its key;
- nothing is there that was not appended, and in each queue a stream's messages are in order;
- what was there once stays;
- no group's offset is beyond what a reader of it was handed out.
"""

from __future__ import annotations

import random
from typing import ClassVar

import attrs

import warren
from tests.support.topic_load import GROUPS, QUEUES, STREAMS, TOPIC, key_of, name_of

LOOKED_UP = 30
"""How many keys are looked up after each kill."""

Name = tuple[str, int]


@attrs.define
class TopicsLedger:
    """What all processes have reported of the load :mod:`tests.support.topic_load`."""

    kind: ClassVar = "topics"

    started: dict[str, int] = attrs.Factory(lambda: dict.fromkeys(STREAMS, 0))
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
        topic = node.topic(TOPIC, queues=QUEUES)
        with topic.reader("check", broadcast=True) as reader:
            records = reader.read(1 << 30)
        queues: dict[int, list[Name]] = {queue_id: [] for queue_id in range(QUEUES)}
        for record in records:
            assert record.key == key_of(*name_of(record.body))
            assert record.queue_offset == len(queues[record.queue_id])
            queues[record.queue_id].append(name_of(record.body))
        self.check_queues(queues)
        for name in rng.sample(sorted(self.left), min(LOOKED_UP, len(self.left))):
            assert [name_of(one.body) for one in topic.find(key_of(*name))] == [name]
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
        begun = {(s, n) for s in STREAMS for n in range(self.round_began[s], self.started[s])}
        assert not here - self.left - begun, "messages that nobody appended"
        assert not (lost := (self.confirmed | self.left) - here), f"confirmed and lost: {sorted(lost)[:20]}"
        self.left, self.confirmed = here, set()
