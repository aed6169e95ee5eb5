"""What the processes of a workload have reported, and what that means for a disk that lost its power."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any, Final, Protocol

import attrs

import warren
from tests.real_disk.workload import DONE, QUEUE, TOPIC, UNIQUE
from tests.support import kill_ledgers
from tests.support.promises import Fates, repeated


class Ledger(Protocol):
    """What was reported until now."""

    started: dict[str, int]
    """The first number of each kind that was not announced."""

    def read(self, line: str) -> None: ...

    def check(self, node: warren.Node, rng: random.Random) -> None:
        """Compare what is left with it; raises ``AssertionError`` for a promise that was broken."""


@attrs.define
class QueuesLedger(kill_ledgers.QueuesLedger):
    """The ledger of :mod:`tests.support.kill_ledgers`, without deliveries: which were from before a kill is unknown."""

    def read(self, line: str) -> None:
        if line == "open":
            self._forget_acks()
        if not line.startswith(("d ", "x ", "open", "ready")):
            super().read(line)

    def _forget_acks(self) -> None:
        """Some acks of a killed process are lost, and no later one makes them safe."""
        for queue in self.places.values():
            queue.made -= queue.ending
            queue.ending = set()


@attrs.define
class TopicsLedger(kill_ledgers.TopicsLedger):
    """The ledger of :mod:`tests.support.kill_ledgers`."""

    def read(self, line: str) -> None:
        if line not in {"open", "ready"}:
            super().read(line)


@attrs.define
class ChangesLedger:
    """What :class:`tests.real_disk.workload.Changes` tells."""

    is_shared: bool = False
    """Whether what a guest prepares is sent again where its host dies: it may be there twice, and one of them stays."""
    started: dict[str, int] = attrs.Factory(lambda: dict.fromkeys(["names", "delayed", "keys", "halves"], 0))
    fates: dict[str, Fates[str]] = attrs.Factory(lambda: defaultdict(Fates))
    asked: set[str] = attrs.Factory(set)
    """Keys of unconfirmed messages: the message may be there without its key."""

    def read(self, line: str) -> None:
        word, *things = line.split(" ")
        if word == "ready":
            return
        assert word in TOLD, f"the process says: {line}"
        if word in {"delay", "delayed"}:
            things = [str(number) for number in range(int(things[0]), int(things[1]) + 1)]
        for kind, state in TOLD[word]:
            getattr(self.fates[kind], state).update(things)
            if state == "begun" and kind in self.started:
                self.started[kind] = max(self.started[kind], *(int(thing.lstrip("n")) + 1 for thing in things))
        if word == "key":
            self.asked.update(things)
        elif word == "keyed":
            self.asked.difference_update(things)

    def check(self, node: warren.Node, rng: random.Random) -> None:
        self._check_names(node)
        self._check_delayed(node)
        self._check_keys(node)
        self._check_halves(node)

    def _check_names(self, node: warren.Node) -> None:
        document: dict[str, Any] = node.definitions()
        names = self.fates["names"]
        for kind in ("queues", "exchanges", "policies", "users"):
            names.check(kind, [row["name"] for row in document[kind] if row["name"] in names.begun])
        names.check("bindings", [row["source"] for row in document["bindings"] if row["source"]])

    def _check_delayed(self, node: warren.Node) -> None:
        waiting = [one.body for one in node.delayed(1 << 20)]  # first: what comes meanwhile is found in the queue
        come = [one.body for one in node.queue(QUEUE).get_many(1 << 20)]
        found = [body.decode().removeprefix("delayed ") for body in waiting + come]
        self.fates["delayed"].check("delayed messages", found, may_repeat=True)

    def _check_keys(self, node: warren.Node) -> None:
        queue, keys = node.queue(UNIQUE), self.fates["keys"]
        waiting = [key_of(one.body) for one in queue.get_many(1 << 20)]
        assert not (twice := repeated(waiting)), f"two messages have one key: {twice}"
        done = [key_of(one.body) for one in node.queue(DONE).get_many(1 << 20)]
        keys.check("keys", waiting + done, may_repeat=True)
        if taken := [key for key in waiting if key in keys.made - self.asked]:
            answer = queue.publish_many([b"again"] * len(taken), unique=taken)
            answer.wait()
            assert answer.duplicates == tuple(range(len(taken))), "keys of messages that wait are free"

    def _check_halves(self, node: warren.Node) -> None:
        halves = self.fates["halves"]
        half = {one.message.body.decode() for one in node.pending_transactions()}
        with node.topic(TOPIC, queues=2).reader("check", broadcast=True) as reader:
            seen = [record.body.decode() for record in reader.read(1 << 20)]
        if self.is_shared:
            half -= halves.ended
        halves.check("half messages", half | (set(seen) & halves.ending - halves.ended))
        self.fates["orders"].check("messages of transactions", seen, may_repeat=self.is_shared)


TOLD: Final = {
    "make": [("names", "begun")],
    "made": [("names", "made")],
    "drop": [("names", "ending")],
    "dropped": [("names", "ended")],
    "delay": [("delayed", "begun")],
    "delayed": [("delayed", "made")],
    "key": [("keys", "begun")],
    "keyed": [("keys", "made")],
    "prepare": [("halves", "begun")],
    "prepared": [("halves", "made")],
    "commit": [("halves", "ending"), ("orders", "begun")],
    "committed": [("halves", "ended"), ("orders", "made")],
    "roll": [("halves", "ending")],
    "rolled": [("halves", "ended")],
}
"""By the first word of a line: the things it tells about, and what becomes of them."""


def key_of(body: bytes) -> str:
    """The key of a unique message; raises ``ValueError`` where its body is not whole."""
    key = body.partition(b";")[0]
    if body != b"%s;" % key * (len(body) // (len(key) + 1)):
        raise ValueError(f"a body of {len(body)} bytes that begins with {body[:40]!r} was never published")
    return key.decode()


def new_ledger(workload: str) -> Ledger:
    match workload:
        case "queues":
            return QueuesLedger(kill_ledgers.QUEUE_TARGETS)
        case "topics":
            return TopicsLedger(kill_ledgers.TOPIC_TARGETS)
        case "changes" | "shared":
            return ChangesLedger(is_shared=workload == "shared")
        case _:
            raise ValueError(f"no workload {workload!r}")
