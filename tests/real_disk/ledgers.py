"""What the processes of a workload have reported, and what that means for a disk that lost its power."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import attrs

import warren
from tests.real_disk.workload import DONE, QUEUE, SETTINGS, TOPIC, UNIQUE
from tests.support import kill_ledgers


class Ledger(Protocol):
    """What was reported until now."""

    started: dict[str, int]
    """The first number of each kind that was not announced."""

    def begin(self) -> None: ...

    def read(self, line: str) -> None: ...

    def check_directory(self, directory: Path) -> None:
        """Open what is left; raises ``AssertionError``, or an error of warren's, where a promise was broken.

        The ledger itself stays as it is.
        """


@contextmanager
def opened(directory: Path) -> Iterator[warren.Node]:
    with warren.open(directory, sync="os", **SETTINGS) as node:
        assert node.failed_queues == {}, node.failed_queues
        yield node


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
        for queue in self.queues.values():
            queue.confirmed -= queue.acked
            queue.acked = set()

    def check_directory(self, directory: Path) -> None:
        kept = {name: attrs.evolve(queue) for name, queue in self.queues.items()}
        try:
            with opened(directory) as node:
                self.check(node, random.Random(0))
        finally:
            self.queues = kept


@attrs.define
class TopicsLedger(kill_ledgers.TopicsLedger):
    """The ledger of :mod:`tests.support.kill_ledgers`."""

    def read(self, line: str) -> None:
        if line not in {"open", "ready"}:
            super().read(line)

    def check_directory(self, directory: Path) -> None:
        kept = self.left, self.confirmed
        try:
            with opened(directory) as node:
                self.check(node, random.Random(len(self.confirmed)))
        finally:
            self.left, self.confirmed = kept


@attrs.define
class Fates:
    """The states of things that are made, and then gone for good: what must be there, and what may be."""

    begun: set[str] = attrs.Factory(set)
    made: set[str] = attrs.Factory(set)
    ending: set[str] = attrs.Factory(set)
    ended: set[str] = attrs.Factory(set)

    def check(self, what: str, found: set[str]) -> None:
        assert not (strange := found - self.begun), f"{what} that nobody made: {sorted(strange)}"
        assert not (lost := self.made - self.ending - found), f"{what}, confirmed and lost: {sorted(lost)}"
        assert not (back := self.ended & found), f"{what}, gone and back: {sorted(back)}"


@attrs.define
class ChangesLedger:
    """What :class:`tests.real_disk.workload.Changes` tells."""

    is_shared: bool = False
    """Whether what a guest prepares is sent again where its host dies: it may be there twice, and one of them stays."""
    started: dict[str, int] = attrs.Factory(lambda: dict.fromkeys(["names", "delayed", "keys", "halves"], 0))
    names: Fates = attrs.Factory(Fates)
    delayed: Fates = attrs.Factory(Fates)
    keys: Fates = attrs.Factory(Fates)
    asked: set[str] = attrs.Factory(set)
    """Keys of unconfirmed messages: the message may be there without its key."""
    halves: Fates = attrs.Factory(Fates)
    """Half messages; they end when they are committed or rolled back."""
    orders: Fates = attrs.Factory(Fates)
    """Messages that can be seen."""

    def begin(self) -> None:
        pass

    def read(self, line: str) -> None:
        kind, *words = line.split(" ")
        match kind:
            case "make":
                self._announce("names", int(words[0].removeprefix("n")))
                self.names.begun.update(words)
            case "made":
                self.names.made.update(words)
            case "drop":
                self.names.ending.update(words)
            case "dropped":
                self.names.ended.update(words)
            case "delay":
                self._announce("delayed", int(words[1]))
                self.delayed.begun.update(_numbers(words))
            case "delayed":
                self.delayed.made.update(_numbers(words))
            case "key":
                self._announce("keys", max(map(int, words)))
                self.keys.begun.update(words)
                self.asked.update(words)
            case "keyed":
                self.keys.made.update(words)
                self.asked.difference_update(words)
            case "prepare":
                self._announce("halves", int(words[0]))
                self.halves.begun.update(words)
            case "prepared":
                self.halves.made.update(words)
            case "commit":
                self.halves.ending.update(words)
                self.orders.begun.update(words)
            case "committed":
                self.halves.ended.update(words)
                self.orders.made.update(words)
            case "roll":
                self.halves.ending.update(words)
            case "rolled":
                self.halves.ended.update(words)
            case "ready":
                pass
            case _:
                raise AssertionError(f"the process says: {line}")

    def _announce(self, what: str, number: int) -> None:
        self.started[what] = max(self.started[what], number + 1)

    def check_directory(self, directory: Path) -> None:
        with opened(directory) as node:
            self._check_names(node)
            self._check_delayed(node)
            self._check_keys(node)
            self._check_halves(node)

    def _check_names(self, node: warren.Node) -> None:
        document: dict[str, Any] = node.definitions()
        for kind in ("queues", "exchanges", "policies", "users"):
            found = {one["name"] for one in document[kind]} & (self.names.begun | self.names.ended)
            self.names.check(kind, found)
        self.names.check("bindings", {one["source"] for one in document["bindings"] if one["source"]})

    def _check_delayed(self, node: warren.Node) -> None:
        waiting = [one.body for one in node.delayed(1 << 20)]  # first: what comes meanwhile is found in the queue
        come = [one.body for one in node.queue(QUEUE).get_many(1 << 20)]
        self.delayed.check("delayed messages", {body.decode().removeprefix("delayed ") for body in waiting + come})

    def _check_keys(self, node: warren.Node) -> None:
        queue = node.queue(UNIQUE)
        waiting = [key_of(one.body) for one in queue.get_many(1 << 20)]
        assert len(set(waiting)) == len(waiting), "two messages have one key"
        done = [key_of(one.body) for one in node.queue(DONE).get_many(1 << 20)]
        self.keys.check("keys", {*waiting, *done})
        if known := [key for key in waiting if key in self.keys.made - self.asked]:
            answer = queue.publish_many([b"again"] * len(known), unique=known)
            answer.wait()
            assert answer.duplicates == tuple(range(len(known))), "keys of messages that wait are free"

    def _check_halves(self, node: warren.Node) -> None:
        half = {one.message.body.decode() for one in node.pending_transactions()}
        with node.topic(TOPIC, queues=2).reader("check", broadcast=True) as reader:
            seen = {record.body.decode() for record in reader.read(1 << 20)}
        if self.is_shared:
            half -= self.halves.ended
        self.halves.check("half messages", half | (seen & self.halves.ending - self.halves.ended))
        self.orders.check("messages of transactions", seen)


def key_of(body: bytes) -> str:
    """The key of a unique message; raises ``ValueError`` where its body is not whole."""
    key = body.partition(b";")[0]
    if body != b"%s;" % key * (len(body) // (len(key) + 1)):
        raise ValueError(f"a body of {len(body)} bytes that begins with {body[:40]!r} was never published")
    return key.decode()


def _numbers(words: list[str]) -> set[str]:
    return set(map(str, range(int(words[0]), int(words[1]) + 1)))


def new_ledger(workload: str) -> Ledger:
    match workload:
        case "queues":
            return QueuesLedger()
        case "topics":
            return TopicsLedger()
        case "changes" | "shared":
            return ChangesLedger(is_shared=workload == "shared")
        case _:
            raise ValueError(f"no workload {workload!r}")
