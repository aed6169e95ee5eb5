"""A whole node as lists and dicts: what the machine of :mod:`test_runtime_machine` holds a real one against.

It takes messages one by one and knows nothing of runs, journals or actors, except the order in which queues get their
turns: the order in which they received calls (:meth:`NodeModel.run`).

A *copy* is one message in one queue. Each copy is *ready*, *unacked* (a channel has it), *dying* (a dead letter that
may not have arrived yet) or *gone*, which a crash may undo until the removal is known to be safe. A dead letter is a
new copy that knows its *origin*. What is promised: a confirmed, persistent copy in a durable queue is there until it is
taken away; either a dead letter or its origin is there.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import attrs

from tests.support.users_queue import EITHER, TRUE, Entry, UsersQueue, body_of, place

Deaths = tuple[tuple[str, str, int], ...]
"""Queue, reason and count; the newest first: what the header x-death says."""

Key = tuple[int, Deaths]
"""What distinguishes copies, as far as they can be distinguished."""


class Found(NamedTuple):
    """A copy that was found after a stop."""

    key: Key
    unacked: bool
    expiry_us: int


def number_of(body: bytes) -> int:
    return int(body[1 : body.index(b">")])


@attrs.frozen(eq=False)
class Message:
    """What was published."""

    number: int
    size: int
    persistent: bool
    priority: int = 0
    deaths: Deaths = ()

    @property
    def body(self) -> bytes:
        return body_of(self.number, self.size)

    def died(self, queue: str, reason: str) -> Message:
        known = (
            self.deaths[::-1] if len(self.deaths) > 1 else self.deaths
        )  # as the original does it, for its own reasons
        same = [death for death in known if death[:2] == (queue, reason)]
        others = tuple(death for death in known if death[:2] != (queue, reason))
        return attrs.evolve(self, deaths=((queue, reason, same[0][2] + 1 if same else 1), *others))

    def may_enter(self, queue: str) -> bool:
        """False for a dead letter in an endless cycle."""
        for at, (where, _, _) in enumerate(self.deaths):
            if where == queue:
                return any(reason == "rejected" for _, reason, _ in self.deaths[: at + 1])
        return True


@attrs.define(eq=False)
class Copy(Entry):
    """One message in one queue."""

    message: Message
    queue: NodeQueue
    origin: Copy | None = None
    confirmed: bool = False
    loose: bool = False
    """Whether it came in a step whose order of dead letters is unknown."""

    @property
    def key(self) -> Key:
        return self.message.number, self.message.deaths

    @property
    def survives(self) -> bool:
        return self.queue.durable and self.message.persistent

    @property
    def is_promised(self) -> bool:
        return (
            self.survives
            and not self.queue.deleted
            and (self.confirmed or (self.origin is not None and self.origin.is_promised))
        )


@attrs.define(eq=False)
class NodeQueue(UsersQueue):
    """One queue of a node, and what it owes after a stop or a crash."""

    node: NodeModel
    name: str
    durable: bool
    auto_delete: bool
    gone: list[Copy] = attrs.Factory(list)
    deleted: bool = False
    letters: list[tuple[Message, Copy | None]] = attrs.Factory(list)

    @property
    def in_order(self) -> list[Copy]:
        """Ready and unacked copies."""
        return sorted(self.ready + self.held, key=place)

    def remove(self, entry: Copy) -> None:
        if entry.survives:
            self.gone.append(entry)

    def bury(self, entry: Copy, reason: str, *, refused: bool = False) -> None:
        entry.redelivered = EITHER
        self.letters.append((entry.message.died(self.name, reason), None if refused else entry))

    def refuse(self, entry: Copy) -> None:
        if self.node.loose:
            self.remove(entry)

    def publish(self, messages: Sequence[Message], expiration_ms: int | None, origin: Copy | None = None) -> list[Copy]:
        """Take messages. Return the copies of the accepted ones."""
        expiry_us = self.expiry_of(expiration_ms)
        return self.take([self.new_copy(message, expiry_us, origin) for message in messages])

    def new_copy(self, message: Message, expiry_us: int, origin: Copy | None) -> Copy:
        level, order = self.level_of(message.priority), next(self.node.orders)
        return Copy(order, level, message.size, expiry_us, message, self, origin, loose=self.node.loose)

    # ── promises ────────────────────────────────────────────────────────────────────────────────────────────────

    def safe(self) -> None:
        """Everything until now is known to be safe."""
        self.gone = []
        for copy in self.in_order:
            copy.confirmed = True

    @property
    def known(self) -> list[Copy]:
        """What a crash may leave."""
        return [copy for copy in (*self.in_order, *self.dying, *self.gone) if copy.survives]

    def dooms(self, copy: Copy) -> list[str]:
        """Reasons for which a copy may die while its queue starts."""
        reasons = ["expired"] if 0 < copy.expiry_us <= self.node.now_us else []
        if self.limited and len(self.known) > self.arguments["x-max-length"]:
            reasons.append("maxlen")
        return reasons

    def forget_users(self) -> None:
        super().forget_users()
        self.letters = []

    def stop_cleanly(self, found: list[Found]) -> None:
        """``found`` is what is there after a clean stop: all of it, and dead letters that had not arrived, perhaps.

        What has died since the start may come again after a crash.
        """
        stay = [copy for copy in self.in_order if copy.survives]
        doomed = {copy for copy in stay if self.dooms(copy)}
        known = stay + [one for one in self.dying if one.survives]
        copies = self.adopt(found, known)
        assert doomed >= set(stay) - copies, "a clean stop lost messages"
        self.forget_users()
        self.safe()
        self.gone = [copy for copy in known if copy not in copies]

    def crash(self, found: list[Found]) -> None:
        """``found`` is what is there after a crash."""
        known = self.known
        owed = [copy for copy in self.in_order if copy.is_promised and not self.dooms(copy)]
        copies = self.adopt(found, known)
        self.gone = [copy for copy in known if copy not in copies]
        alike = Counter(copy.key for copy in copies)  # equal copies cannot be told apart
        for copy in owed:
            alike[copy.key] -= 1
            if alike[copy.key] < 0:
                self.node.owed.append(copy)
        for copy in copies:
            copy.redelivered = EITHER if copy.loose and copy.origin is not None else TRUE
        self.forget_users()

    def adopt(self, found: list[Found], known: list[Copy]) -> set[Copy]:
        """Go on from what was found; those that say unacked have died once more as their queue was brought up."""
        copies = self.match(found, sorted(known, key=place))
        self.ready = [copy for copy, one in zip(copies, found, strict=True) if not one.unacked]
        self.dying = [copy for copy, one in zip(copies, found, strict=True) if one.unacked]
        return set(copies)

    def match(self, found: list[Found], known: list[Copy]) -> list[Copy]:
        """Which copies were found: those that are known, in their order."""
        left, copies, at = list(known), [], 0
        for key, _, expiry_us in found:
            here = [n for n, copy in enumerate(left) if copy.key == key and (n >= at or copy.loose)]
            if not here:  # how it died in an interrupted step is unknown
                dead = [n for n, copy in enumerate(left) if copy.loose and copy.key[1] and copy.key[0] == key[0]]
                here = dead if key[1] else []
            assert here, (
                f"{self.name}: {key} was not published, is gone for sure, occurs twice, or out of order: "
                f"found {[one.key for one in found]}, known {[copy.key for copy in known]}"
            )
            here = [n for n in here if left[n].expiry_us == expiry_us] or here  # among equal copies
            n = min(here, key=lambda n: (left[n].loose, n < at, n))
            copies.append(left.pop(n))
            if n < at:
                at -= 1
            elif not copies[-1].loose:
                at = n
            copies[-1].message = attrs.evolve(copies[-1].message, deaths=key[1])
            assert copies[-1].loose or copies[-1].expiry_us == expiry_us, f"{self.name}: {key} lives otherwise"
            copies[-1].expiry_us = expiry_us
        for level in {copy.level for copy in copies}:
            equals = [copy for copy in copies if copy.level == level]
            for copy, order in zip(equals, sorted(copy.order for copy in equals), strict=True):
                copy.order = order
        return copies


@attrs.define(eq=False)
class NodeModel:
    """All queues, and the routing between them."""

    now_us: int
    queues: dict[str, NodeQueue] = attrs.Factory(dict)
    bindings: set[tuple[str, str, str]] = attrs.Factory(set)
    """Exchange, queue, key."""
    types: dict[str, str] = attrs.Factory(dict)
    """The types of the exchanges, by name."""
    orders: Any = attrs.Factory(itertools.count)
    loose: bool = False
    """Whether this step ends in a crash, so that it is unknown how far it came."""
    owed: list[Copy] = attrs.Factory(list)
    _inbox: dict[str, list[Callable[[NodeQueue], object]]] = attrs.Factory(dict)
    _line: deque[str] = attrs.Factory(deque)

    def declare(self, name: str, *, durable: bool, auto_delete: bool, arguments: dict[str, Any]) -> None:
        self.queues[name] = NodeQueue(arguments, lambda: self.now_us, self, name, durable, auto_delete)

    def route(self, exchange: str, key: str) -> list[str]:
        if not exchange:
            return [key] if key in self.queues else []
        kind = self.types[exchange]
        return [
            queue
            for source, queue, bound in self.bindings
            if source == exchange and queue in self.queues and (kind == "fanout" or _matches(kind, bound, key))
        ]

    def tell(self, queue: str, work: Callable[[NodeQueue], object]) -> None:
        """Let a queue do something in its next turn."""
        self._inbox.setdefault(queue, []).append(work)
        if queue not in self._line:
            self._line.append(queue)

    def run(self) -> None:
        """Let queues have their turns until nothing waits."""
        while self._line:
            name = self._line.popleft()
            queue = self.queues[name]
            for work in self._inbox.pop(name, ()):
                work(queue)
            queue.deliver()
            letters, queue.letters = queue.letters, []
            for message, origin in letters:
                self._post(queue, message, origin)
        for queue in list(self.queues.values()):
            if queue.auto_delete and queue.had_one and not queue.takers:
                self.delete(queue.name)

    def route_dead(self, source: NodeQueue, message: Message) -> list[str]:
        """Where a dead letter goes."""
        key = source.arguments.get("x-dead-letter-routing-key", "")
        targets = self.route(source.arguments["x-dead-letter-exchange"], key)
        return [target for target in targets if message.may_enter(target)]

    def _post(self, source: NodeQueue, message: Message, origin: Copy | None) -> None:
        for target in self.route_dead(source, message):

            def arrive(queue: NodeQueue) -> None:
                queue.publish([message], None, origin)

            self.tell(target, arrive)

    def advance(self, microseconds: int) -> None:
        """Let time pass; every queue has a turn at the moment at which the message at its head expires."""
        end_us = self.now_us + microseconds
        while True:
            due = [(queue.ready[0].expiry_us, name) for name, queue in self.queues.items()
                   if queue.ready and queue.ready[0].expiry_us]  # fmt: skip
            if not due or min(due)[0] > end_us:
                break
            expiry_us, name = min(due)
            self.now_us = max(self.now_us, expiry_us)
            self.tell(name, NodeQueue.expire)
            self.run()
        self.now_us = end_us

    def arrived(self) -> None:
        """All dead letters are safe where they went."""
        for queue in self.queues.values():
            queue.gone += [copy for copy in queue.dying if copy.survives]
            queue.dying = []

    def delete(self, name: str) -> None:
        self.queues.pop(name).deleted = True
        self.bindings = {binding for binding in self.bindings if binding[1] != name}

    def die_again(self) -> None:
        """A crash may bring back what is due, or is too much: it may die once more while its queue is brought up."""
        for queue in self.queues.values():
            for copy in queue.known if "x-dead-letter-exchange" in queue.arguments else ():
                for reason in queue.dooms(copy):
                    message = copy.message.died(queue.name, reason)
                    for name in self.route_dead(queue, message):
                        target = self.queues[name]
                        again = target.new_copy(message, target.expiry_of(None), copy)
                        again.loose = True
                        target.dying.append(again)

    def check_promises(self) -> None:
        """After a crash: what is owed in one queue has to be in the one that it came from."""
        owed, self.owed = self.owed, []
        for copy in owed:
            origin = None if copy.confirmed else copy.origin
            while origin is not None and origin not in origin.queue.ready + origin.queue.dying:
                origin = origin.origin
            assert origin is not None, f"{copy.queue.name}: {copy.key} was confirmed, and is lost"


def _matches(kind: str, bound: str, key: str) -> bool:
    if kind == "direct":
        return bound == key
    pattern, words = bound.split("."), key.split(".")
    return _topic(pattern, words)


def _topic(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_topic(pattern[1:], words[n:]) for n in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _topic(pattern[1:], words[1:])
