"""The act with a topic: written in a fresh node, read by two groups, found by key; and again after a stop and a start.

The group ``audit`` has one reader, ``billing`` two, which divide the queues between them. All of them read the same
messages, each at its own pace; nothing goes by being read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

import attrs
from rich.filesize import decimal

import warren
from examples.demo.acts import Stage
from examples.demo.bars import Chart, Progress
from examples.demo.checking import Check, Faults, together
from examples.demo.numbered import body_of, payload_bytes
from examples.demo.topic_checking import (
    MESSAGES_OF_AN_ORDER,
    GroupCheck,
    Orders,
    QueuePosition,
    compare_found,
    compare_lags,
)

NODE: Final = "node"
"""The fresh node's directory, below the demo's."""
TOPIC: Final = "orders"
QUEUES: Final = 4
READERS: Final = (("audit", "audit"), ("billing", "billing 1"), ("billing", "billing 2"))
"""Each reader's group, and its name."""
GROUPS: Final = tuple(dict.fromkeys(group for group, _ in READERS))

_SHARE: Final = 4
"""How many are published to the queue for each one here."""
_READ: Final = 500
_ORDERS_LOOKED_UP: Final = 500


@attrs.define
class TopicPlayed:
    """What came of it."""

    orders: Orders
    groups: list[GroupCheck] = attrs.field(factory=list)
    append_s: float = 0.0
    read_s: float = 0.0
    """With everything checked meanwhile."""
    find_s: float = 0.0
    """For all keys together."""
    keys_asked: int = 0
    messages_found: int = 0
    unfound: Faults = attrs.field(factory=Faults)
    """Keys under which not exactly their messages were found."""
    behind: Faults = attrs.field(factory=Faults)
    """What a group has not finished by its own account, or got again after a stop and a start."""

    @property
    def keys_found(self) -> int:
        """Keys under which exactly their messages were found."""
        return self.keys_asked - self.unfound.count

    @property
    def read(self) -> int:
        """Messages that were read, by all groups together."""
        return sum(group.read for group in self.groups)

    def checks(self) -> list[Check]:
        """Everything that had to hold."""
        total, names = self.orders.total, " and ".join(GROUPS)
        lost, misplaced, damaged = (
            together(faults)
            for faults in zip(*((group.lost, group.misplaced, group.damaged) for group in self.groups), strict=True)
        )
        return [
            Check.of(f"{names} have each read all {total:,} messages of the topic", lost),
            Check.of("each once, in its queue's order, by the one reader that has the queue", misplaced),
            Check.of("each is, to the last byte, what was appended, with its key, where its confirm said", damaged),
            Check.of("after a clean stop and a start both groups are where they were, at the end", self.behind),
            Check.of(f"{self.keys_asked:,} keys find their messages, the newest first, and no others", self.unfound),
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "messages": self.orders.total,
            "payload_bytes": payload_bytes(self.orders.total),
            "queues": QUEUES,
            "append_rate": self.orders.total / self.append_s,
            "groups": len(self.groups),
            "readers": len(READERS),
            "read": self.read,
            "read_rate": self.read / self.read_s,
            "keys_found": self.keys_found,
            "messages_found": self.messages_found,
            "find_s": self.find_s,
        }

    def rows(self) -> list[tuple[str, str]]:
        """As the summary shows it."""
        total = self.orders.total
        return [
            (
                "topic",
                f"{total:,} messages, {decimal(payload_bytes(total))}; {total / self.append_s:,.0f} a second, each "
                "confirmed when synced to disk",
            ),
            (
                "read",
                f"by {len(self.groups)} groups with {len(READERS)} readers: {self.read:,} messages, every one checked; "
                f"{self.read / self.read_s:,.0f} a second",
            ),
            ("by key", f"{self.messages_found:,} messages found under {self.keys_found:,} keys in {self.find_s:.2f} s"),
        ]


def play(stage: Stage) -> TopicPlayed:
    """Play the act."""
    orders, directory = Orders(stage.plan.total // _SHARE), os.path.join(stage.directory, NODE)
    played = TopicPlayed(orders)
    stage.screen.heading(9, f'{orders.total:,} messages with keys go to the topic "{TOPIC}" of a fresh node')
    with warren.open(directory) as node:
        topic = node.topic(TOPIC, queues=QUEUES)
        places = _append(stage, topic, played)
        _read_all(stage, topic, places, played)
    with warren.open(directory) as node:
        _look_up(stage, node.topic(TOPIC), places, played)
    return played


def _append(stage: Stage, topic: warren.Topic, played: TopicPlayed) -> list[QueuePosition]:
    """Append them all, and say where each of them is, as the confirms do."""
    orders, plan = played.orders, stage.plan
    stage.screen.say(
        f"{MESSAGES_OF_AN_ORDER} or more of them share a key, and so one of its {QUEUES} queues. They are synced to "
        f"disk and confirmed {stage.plan.commit:,} at a time. Two groups read them all, one of them with two readers."
    )
    places: list[QueuePosition] = []
    counts = [0] * QUEUES
    chart = Chart("appended", orders.total, orders.total // 2, [(f"queue {n}", "", "green") for n in range(QUEUES)])
    with stage.screen.watch(chart) as show:
        began_at = time.monotonic()
        for first in range(0, orders.total, plan.commit):
            numbers = range(first, min(first + plan.commit, orders.total))
            confirms = [
                topic.append_many([body_of(n) for n in batch], keys=[orders.key(n) for n in batch])
                for batch in _batches(numbers, plan.batch)
            ]
            for confirm in confirms:
                for position in confirm.wait():
                    places.append((position.queue_id, position.queue_offset))
                    counts[position.queue_id] += 1
            played.append_s = time.monotonic() - began_at
            show(Progress(tuple(counts), played.append_s))
    return places


def _batches(numbers: range, size: int) -> Iterator[range]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


def _read_all(stage: Stage, topic: warren.Topic, places: Sequence[QueuePosition], played: TopicPlayed) -> None:
    """Let all readers read, in turn, until there is no more."""
    checks = {group: GroupCheck(group, played.orders, places) for group in GROUPS}
    played.groups = list(checks.values())
    with ExitStack() as stack:
        readers = [stack.enter_context(topic.reader(group)) for group, _ in READERS]
        owned = [", ".join(map(str, reader.queues())) for reader in readers]
        bars = [(name, f"queues {queues}", "yellow") for (_, name), queues in zip(READERS, owned, strict=True)]
        counts, going = [0] * len(readers), True
        goal = played.orders.total * len(GROUPS)
        with stage.screen.watch(Chart("read", goal, played.orders.total, bars)) as show:
            began_at = time.monotonic()
            while going:
                going = False
                for at, (group, name) in enumerate(READERS):
                    records = readers[at].read(_READ)
                    checks[group].take(name, records)
                    counts[at] += len(records)
                    going = going or bool(records)
                played.read_s = time.monotonic() - began_at
                show(Progress(tuple(counts), played.read_s))
    for check in played.groups:
        check.finish()


def _look_up(stage: Stage, topic: warren.Topic, places: Sequence[QueuePosition], played: TopicPlayed) -> None:
    """After a stop and a start: does a group get anything again, and is everything found by key?"""
    for group in GROUPS:
        compare_lags(group, topic.lag(group), played.behind)
        again = sum(1 for _ in topic.read(group))
        if again:
            played.behind.add(f"{group} got {again:,} messages again", again)
    for order in range(0, played.orders.count, max(1, played.orders.count // _ORDERS_LOOKED_UP)):
        began_at = time.monotonic()
        found = topic.find(played.orders.key(order))
        played.find_s += time.monotonic() - began_at
        compare_found(order, found, played.orders, places, played.unfound)
        played.messages_found += len(found)
        played.keys_asked += 1
    stage.screen.say(
        f"Stopped and started: {played.keys_found:,} keys find {played.messages_found:,} messages, "
        f"{1000 * played.find_s / played.keys_asked:.2f} ms each."
    )
