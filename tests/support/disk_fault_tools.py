"""A node with something of everything at work, a fault of its disk, and what must hold during it and afterwards.

:class:`EverythingAtWork` publishes to queues (small and large messages, with keys, with retries, with priorities, to be
delayed), to a topic (with keys, in transactions, delayed), reads, acks and declares, and keeps a ledger of what is
reported safe. :class:`FaultAt` strikes one kind of operation on one kind of file.

:class:`RefusingFileSystem` refuses to show one directory. :data:`CHANGES` has every change of what is declared on a
node, and :func:`looked_at` what can be seen of it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs

import warren
import warren.aio
from tests.support.promises import Fates
from tests.support.runtime_tools import BIG, HandNode, bodies
from warren.errors import AccessRefusedError
from warren.storage.errors import StorageError, WarrenError
from warren.storage.faults import OPERATIONS, Failure
from warren.storage.filesystem import RealFileSystem

SMALL: Final[dict[str, Any]] = {
    "segment_entry_count": 8,
    "msg_store_file_size_limit": 12_000,
    "queue_index_max_journal_entries": 20,
    "mapped_file_size_commit_log": 1 << 13,
    "mapped_file_size_consume_queue": 20 * 10,
    "max_hash_slot_num": 64,
    "max_index_num": 32,
    "message_delay_level": "1s 10s",
}
"""Files so small that a short run fills, rolls and rewrites each of them."""

LATER: Final = "later"
"""Delayed records of the topic."""
DELAYED: Final = ("delayed", LATER)
"""Delayed messages may be there twice: a crash may prevent the note that they have come from being written."""
_NUMBERS: Final = re.compile(r"[0-9A-Z]{16,}|\d+")

BACK_WITHIN_S: Final = 150.0
"""The longest wait between two tries, twice over."""


def kind_of_file(path: str) -> str:
    """A path without what tells one file of a kind from another."""
    return _NUMBERS.sub("#", path)


@attrs.define(kw_only=True)
class FaultAt(Failure):
    """As its base: ``path_pattern`` is a kind of file (:func:`kind_of_file`)."""

    struck: int = 0

    def takes(self, kind: str, path: str) -> bool:
        if kind != self.kind or not self.times or kind_of_file(path) != self.path_pattern:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        self.struck += 1
        return True


@attrs.define(kw_only=True)
class ReadOnly(Failure):
    """A file system that is remounted read-only after ``skip`` operations."""

    kind: str = ""
    path_pattern: str = ""
    skip: int = 0
    times: int = 1
    struck: int = 0

    def takes(self, kind: str, path: str) -> bool:
        if kind not in OPERATIONS - {"lock"}:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.struck += 1
        return True


class _Events(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.counts[getattr(record, "event", "")] += 1


@contextmanager
def counted_events() -> Iterator[Counter[str]]:
    """How often each of warren's events is logged in the block."""
    handler = _Events()
    logger = logging.getLogger("warren")
    logger.addHandler(handler)
    try:
        yield handler.counts
    finally:
        logger.removeHandler(handler)


@attrs.define
class Ledger:
    """What was reported."""

    places: dict[str, Fates[bytes]] = attrs.Factory(lambda: defaultdict(Fates))
    """By queue or topic: the bodies."""
    keys: dict[bytes, bytes] = attrs.Factory(dict)
    """By body: keys of confirmed messages that are taken for a long time."""
    declared: list[str] = attrs.Factory(list)
    refusals: list[WarrenError] = attrs.Factory(list)

    def publish(self, place: str, body: bytes, work: Callable[[], Any]) -> bool:
        """``work`` publishes and waits for the confirm; whether it is safe."""
        self.places[place].begun.add(body)
        try:
            work()
        except WarrenError as error:
            self.refusals.append(error)
            return False
        self.places[place].made.add(body)
        return True


@attrs.define
class EverythingAtWork:
    """See the module's prose. One may go on with the ledger of another, on a later life of the node."""

    scene: HandNode
    ledger: Ledger = attrs.Factory(Ledger)
    number: int = 0

    @property
    def node(self) -> warren.Node:
        return self.scene.node

    def body(self, of: str, more: bytes = b"") -> bytes:
        self.number += 1
        return b"%s %d " % (of.encode(), self.number) + more

    def round(self) -> None:
        """A bit of everything. What is refused is noted."""
        for step in (
            self.queues,
            self.consume,
            self.keys,
            self.retries,
            self.delays,
            self.topic,
            self.read,
            self.transaction,
            self.declare,
        ):
            try:
                step()
            except WarrenError as error:
                self.ledger.refusals.append(error)
            self.scene.advance(0.3)

    def publish(self, queue: str, body: bytes, **arguments: Any) -> bool:
        def work() -> None:
            self.queue(queue).publish(body, block=False, **arguments).wait()

        return self.ledger.publish(queue, body, work)

    def queue(self, name: str) -> warren.Queue:
        """One of the queues; declared if need be."""
        match name:
            case "levels":
                return self.node.queue(name, arguments={"x-max-priority": 2})
            case "retried":
                return self.node.queue(name, retry=warren.Retry(delay=1.0))
            case _:
                return self.node.queue(name)

    def queues(self) -> None:
        for _ in range(5):
            self.publish("q", self.body("q"))
        for _ in range(2):
            self.publish("q", self.body("q", BIG))
        self.publish("levels", self.body("levels"), priority=self.number % 3)

    def consume(self) -> None:
        """What was acked may be gone from now on, and need not be before a sync."""
        queue = self.node.queue("q")
        for message in queue.get_many(4):
            self.ledger.places["q"].ending.add(message.body)
            message.ack()

    def keys(self) -> None:
        key = b"%d" % self.number
        body = self.body("keyed")
        if self.publish("keyed", body, unique=key, unique_for=100_000):
            self.ledger.keys[key] = body
        self.publish("keyed", self.body("keyed"), unique=b"b%d" % self.number)

    def retries(self) -> None:
        self.publish("retried", self.body("retried"))
        message = self.queue("retried").get()
        if message is not None:
            message.retry()

    def delays(self) -> None:
        self.publish("delayed", self.body("delayed"), delay=2)
        self.publish("delayed", self.body("delayed"), delay=45)

    def topic(self) -> None:
        for _ in range(4):
            body = self.body("topic", bytes(300))
            self.append(body, key=f"k{self.number}")

    def append(self, body: bytes, place: str = "topic", **arguments: Any) -> bool:
        return self.ledger.publish(
            place, body, lambda: self.node.topic("topic", queues=2).append(body, block=False, **arguments).wait()
        )

    def read(self) -> None:
        list(self.node.topic("topic").read("group", max_records=3))

    def transaction(self) -> None:
        body = self.body("topic")
        self.ledger.publish("topic", body, lambda: self.node.topic("topic").prepare(body).commit().wait())
        self.append(self.body(LATER), LATER, delay=1)

    def declare(self) -> None:
        name = f"declared {self.number}"
        self.number += 1
        self.node.queue(name)
        self.ledger.declared.append(name)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────

    def check_serves(self, where: str) -> None:
        """Everything is accepted again, and no call is refused."""
        before = len(self.ledger.refusals)
        self.round()
        refused = self.ledger.refusals[before:]
        assert not refused, f"{where}: refused afterwards: {refused!r}"
        assert self.node.failed_queues == {}, where
        stats = self.node.stats()
        assert stats["topics"]["down"] is None, where
        assert stats["memory"]["alarms"] == [], where

    def check_holds(self, where: str) -> None:
        """Nothing that was confirmed is missing, and nothing is there twice, or was never published."""
        ledger = self.ledger
        for place, fates in ledger.places.items():
            if fates.made:
                fates.check(f"{where}: {place}", self._there(place), may_repeat=place in DELAYED)
        there = {queue.name for queue in self.node.queues()}
        assert set(ledger.declared) <= there, f"{where}: declared queues are missing"
        for key, body in ledger.keys.items():
            again = self.node.queue("keyed").publish(b"again", unique=key, unique_for=100_000)
            again.wait()
            assert again.duplicate, f"{where}: the key of {body!r} is free"

    def _there(self, place: str) -> list[bytes]:
        if place in {"topic", LATER}:
            records = self.node.topic("topic").read(f"all-{place}-{self.number}")
            return [one.body for one in records if one.body.startswith(LATER.encode()) == (place == LATER)]
        queue = self.node.queue(place, passive=True)
        return [message.body for message in [*queue.browse(), *queue.delayed(10_000)]]

    def settle(self) -> None:
        """Let what is due come."""
        self.scene.advance(60)


class RefusingFileSystem(RealFileSystem):
    """Of one directory the system gives nothing away, as it does to a user who may not look into it."""

    refused = ""

    def _is_inside(self, path: str) -> bool:
        return bool(self.refused) and path.startswith(self.refused + "/")

    def exists(self, path: str) -> bool:
        return not self._is_inside(path) and super().exists(path)

    def is_directory(self, path: str) -> bool:
        return not self._is_inside(path) and super().is_directory(path)

    def list(self, path: str) -> list[str]:
        if self.refused and (path == self.refused or self._is_inside(path)):
            raise StorageError(f"{path}: {PermissionError(errno.EACCES, 'Permission denied').strerror}")
        return super().list(path)

    def open_read(self, path: str) -> Any:
        if self._is_inside(path):
            raise StorageError(f"{path}: {PermissionError(errno.EACCES, 'Permission denied').strerror}")
        return super().open_read(path)


def prepare(scene: HandNode) -> None:
    node = scene.node
    node.queue("old").publish_many([b"o1", BIG]).wait()
    node.exchange("old exchange", "direct")
    node.bind("old", "old exchange", "old key")
    node.queue("doomed").publish_many([b"d", BIG]).wait()
    node.exchange("doomed exchange", "topic")
    node.bind("doomed", "old exchange", "doomed key")
    node.set_policy("doomed policy", "^old$", {"max-length": 90})
    node.vhost("doomed vhost").queue("in it").publish_many([b"v", BIG]).wait()
    node.add_user("old user", "old")
    node.set_permissions("old user", "", "", ".*", vhost="doomed vhost")
    scene.run()


CHANGES: dict[str, Callable[[warren.Node], Any]] = {
    "declare a queue": lambda node: node.queue("new").publish(b"n").wait(),
    "declare a priority queue": lambda node: node.queue("new", arguments={"x-max-priority": 2}).publish(b"n").wait(),
    "delete a queue": lambda node: node.delete_queue("doomed"),
    "declare an exchange": lambda node: node.exchange("new exchange", "fanout"),
    "delete an exchange": lambda node: node.delete_exchange("doomed exchange"),
    "bind": lambda node: node.bind("old", "old exchange", "new key"),
    "unbind": lambda node: node.unbind("doomed", "old exchange", "doomed key"),
    "set a policy": lambda node: node.set_policy("new", "^old", {"max-length": 99}),
    "set an operator policy": lambda node: node.set_operator_policy("new", "^old", {"max-length": 99}),
    "change a policy": lambda node: node.set_policy("doomed policy", "^old$", {"max-length": 99}),
    "clear a policy": lambda node: node.clear_policy("doomed policy"),
    "declare a vhost": lambda node: node.vhost("new vhost").queue("q").publish(b"n").wait(),
    "delete a vhost": lambda node: node.delete_vhost("doomed vhost"),
    "add a user": lambda node: node.add_user("new user", "new"),
    "change a password": lambda node: node.change_password("old user", "new"),
    "let a user use a vhost": lambda node: node.set_permissions("old user", "", "^old", ".*"),
    "delete a user": lambda node: node.delete_user("old user"),
}


def looked_at(scene: HandNode) -> dict[str, Any]:
    """What is declared, and what every queue has."""
    node = scene.node
    document = node.definitions()
    assert node.failed_queues == {}
    for vhost in node.vhosts():
        assert node.vhost(vhost).failed_queues == {}
    return {
        "vhosts": sorted(node.vhosts()),
        "queues": {
            (vhost, queue.name): bodies(queue)
            for vhost in sorted(node.vhosts())
            for queue in node.vhost(vhost).queues()
        },
        "policies": [document["policies"], document["parameters"]],
        "exchanges": sorted((one["vhost"], one["name"], one["type"]) for one in document["exchanges"]),
        "users": {one["name"]: _password(node, one["name"]) for one in document["users"]},
        "permissions": document["permissions"],
        "bindings": sorted((one["source"], one["destination"], one["routing_key"]) for one in document["bindings"]),
    }


def _password(node: warren.Node, user: str) -> str | None:
    for password in ("old", "new", user):
        with contextlib.suppress(AccessRefusedError):
            node.authenticate(user, password)
            return password
    return None
