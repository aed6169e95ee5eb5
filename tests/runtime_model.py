"""A whole node as lists and dicts: what the machine of :mod:`test_runtime_machine` holds a real one against.

It takes messages one by one and knows nothing of runs, journals or actors, but for the order in which queues come to
their turns: those that were told something, in the order in which they were told (:meth:`NodeModel.run`).

A *copy* is one message in one queue. Each copy is *ready*, *unacked* (a channel has it), *dying* (a dead letter that
may not have arrived yet) or *gone*, which a crash may undo until somebody has called it safe. A dead letter is a new
copy that knows its *origin*. What is promised: a confirmed, persistent copy in a durable queue is there until it is
taken away; a dead letter is there, or what it came from.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

Deaths = tuple[tuple[str, str, int], ...]
"""Queue, reason and count; the newest first: what the header x-death says."""

Key = tuple[int, Deaths]
"""By which copies are told apart, where they can be."""

Found = tuple[Key, bool]
"""A copy that was found after a stop, and whether it is unacked."""

TRUE, FALSE, EITHER = frozenset({True}), frozenset({False}), frozenset({True, False})


def body_of(number: int, size: int) -> bytes:
    text = b"<%d>" % number
    return text + b"." * max(size - len(text), 0)


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
        """Whether it is not a dead letter that goes round for ever."""
        for at, (where, _, _) in enumerate(self.deaths):
            if where == queue:
                return any(reason == "rejected" for _, reason, _ in self.deaths[: at + 1])
        return True


@attrs.define(eq=False)
class Copy:
    """One message in one queue."""

    message: Message
    queue: QueueModel
    order: int
    level: int
    expiry_us: int
    origin: Copy | None = None
    redelivered: frozenset[bool] = FALSE
    """What the flag may say when it is next delivered."""
    confirmed: bool = False
    loose: bool = False
    """Whether it came in a step in which nobody can tell the order of dead letters."""

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
class Taker:
    """A consumer. ``inbox``: what it was given and has not looked at: tag, copy, what its flag may say."""

    tag: str
    channel: str
    prefetch: int
    priority: int
    unacked: int = 0
    inbox: list[tuple[int, Copy, frozenset[bool]]] = attrs.Factory(list)

    @property
    def has_room(self) -> bool:
        return not self.prefetch or self.unacked < self.prefetch


@attrs.define(eq=False)
class QueueModel:
    """One queue."""

    node: NodeModel
    name: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    ready: list[Copy] = attrs.Factory(list)
    unacked: dict[str, dict[int, tuple[Copy, Taker | None]]] = attrs.Factory(dict)
    dying: list[Copy] = attrs.Factory(list)
    gone: list[Copy] = attrs.Factory(list)
    next_tag: dict[str, int] = attrs.Factory(dict)
    line: list[Taker] = attrs.Factory(list)
    """Consumers, who waits longest first; those that had no room when it was their turn are not in it."""
    takers: list[Taker] = attrs.Factory(list)
    active: Taker | None = None
    predecessor: Taker | None = None
    """For whose messages the active one waits."""
    had_one: bool = False
    deleted: bool = False
    letters: list[tuple[Message, Copy | None]] = attrs.Factory(list)

    @property
    def single(self) -> bool:
        return bool(self.arguments.get("x-single-active-consumer"))

    @property
    def held(self) -> list[Copy]:
        return [copy for tags in self.unacked.values() for copy, _ in tags.values()]

    @property
    def in_order(self) -> list[Copy]:
        """Ready and unacked copies."""
        return sorted(self.ready + self.held, key=_place)

    def _remove(self, copy: Copy) -> None:
        if copy.survives:
            self.gone.append(copy)

    def die(self, copy: Copy, reason: str) -> None:
        if "x-dead-letter-exchange" in self.arguments:
            copy.redelivered = EITHER
            self.dying.append(copy)
            self.letters.append((copy.message.died(self.name, reason), copy))
        else:
            self._remove(copy)

    def expire(self) -> None:
        while self.ready and 0 < self.ready[0].expiry_us <= self.node.now_us:
            self.die(self.ready.pop(0), "expired")

    # ── messages in ─────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, messages: Sequence[Message], expiration_ms: int | None, origin: Copy | None = None) -> list[Copy]:
        """Take messages; the copies of those that are taken."""
        ttls = [ttl for ttl in (expiration_ms, self.arguments.get("x-message-ttl")) if ttl is not None]
        expiry_us = self.node.now_us + min(ttls) * 1000 if ttls else 0
        level = min(messages[0].priority, self.arguments.get("x-max-priority", 0))
        careful = self.limited or expiry_us > 0
        if careful or "x-max-priority" in self.arguments:
            self.expire()
        if careful and self.ready and self.next() is not None:
            self.deliver()
        copies = []
        for message in messages:
            copy = Copy(message, self, next(self.node.orders), level, expiry_us, origin, loose=self.node.loose)
            if self.refuses and self.over(1, message.size):
                if self.arguments["x-overflow"] == "reject-publish-dlx" and "x-dead-letter-exchange" in self.arguments:
                    self.letters.append((message.died(self.name, "maxlen"), None))
                if self.node.loose:
                    self._remove(copy)
                continue
            copies.append(copy)
            taker = self.next() if careful else None
            if taker is not None:
                self.hand(taker, copy)
                continue
            self.ready.append(copy)
            self.ready.sort(key=_place)
            self.shed()
            self.expire()
        return copies

    @property
    def limited(self) -> bool:
        return "x-max-length" in self.arguments

    @property
    def refuses(self) -> bool:
        return self.limited and self.arguments.get("x-overflow", "drop-head") != "drop-head"

    def over(self, more: int = 0, size: int = 0) -> bool:
        length = self.arguments.get("x-max-length")
        return length is not None and len(self.ready) + more > length

    def shed(self) -> None:
        if not self.refuses:
            while self.over():
                self.die(self.ready.pop(0), "maxlen")
                self.expire()

    # ── messages out ────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, channel: str, count: int, *, ack_required: bool) -> list[tuple[int, Copy, frozenset[bool]]]:
        self.expire()
        got = []
        while self.ready and len(got) < count:
            copy = self.ready.pop(0)
            flag = copy.redelivered
            got.append((self.note(channel, copy, None) if ack_required else 0, copy, flag))
            if not ack_required:
                self._remove(copy)
            self.expire()
        return got

    def note(self, channel: str, copy: Copy, taker: Taker | None) -> int:
        tag = self.next_tag[channel] = self.next_tag.get(channel, 0) + 1
        self.unacked.setdefault(channel, {})[tag] = (copy, taker)
        copy.redelivered = TRUE
        return tag

    def next(self) -> Taker | None:
        """Who gets the message that there is."""
        if self.single:
            waits = self.predecessor is not None and self.predecessor.unacked
            return self.active if self.active is not None and self.active.has_room and not waits else None
        while self.line:
            taker = max(self.line, key=lambda taker: taker.priority)
            if taker.has_room:
                return taker
            self.line.remove(taker)
        return None

    def hand(self, taker: Taker, copy: Copy) -> None:
        flag = copy.redelivered
        taker.inbox.append((self.note(taker.channel, copy, taker), copy, flag))
        taker.unacked += 1
        if not self.single:
            self.line.remove(taker)
            self.line.append(taker)

    def deliver(self) -> None:
        if self.ready and self.next() is not None:
            self.expire()
        while self.ready and (taker := self.next()) is not None:
            self.hand(taker, self.ready.pop(0))
            self.expire()

    def settle(self, channel: str, tags: Iterable[int], outcome: str) -> None:
        settled = []
        for tag in sorted(tags):
            copy, taker = self.unacked[channel].pop(tag)
            settled.append(copy)
            if taker is not None:
                taker.unacked -= 1
                if taker.has_room and taker not in self.line and taker in self.takers:
                    self.line.append(taker)
        if outcome == "requeue":
            self.requeue(settled)
        for copy in settled if outcome != "requeue" else ():
            if outcome == "ack":
                self._remove(copy)
            else:
                self.die(copy, "rejected")

    def requeue(self, copies: list[Copy]) -> None:
        self.ready = sorted(self.ready + copies, key=_place)
        if copies:
            self.predecessor = None
            self.shed()
            self.expire()

    def purge(self) -> int:
        purged, self.ready = self.ready, []
        for copy in purged:
            self._remove(copy)
        return len(purged)

    # ── consumers ───────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, taker: Taker) -> None:
        self.takers.append(taker)
        self.line.append(taker)
        self.had_one = True
        self.predecessor = None
        if self.single and self.active is None:
            self.active = taker

    def remove(self, taker: Taker) -> None:
        self.takers.remove(taker)
        self.line = [one for one in self.line if one is not taker]
        if self.active is taker:
            self.active = max(self.line, key=lambda one: one.priority) if self.line else None
            if taker.unacked and self.single:
                self.predecessor = taker

    def close_channel(self, channel: str) -> int:
        known = channel in self.unacked or any(one.channel == channel for one in self.takers)
        copies = [copy for copy, _ in self.unacked.pop(channel, {}).values()]
        self.next_tag.pop(channel, None)
        for taker in [one for one in self.takers if one.channel == channel]:
            self.remove(taker)
        if known:
            self.predecessor = None
        self.requeue(copies)
        return len(copies)

    # ── promises ────────────────────────────────────────────────────────────────────────────────────────────────

    def safe(self) -> None:
        """Somebody has called everything until now safe."""
        self.gone = []
        for copy in self.in_order:
            copy.confirmed = True

    @property
    def known(self) -> list[Copy]:
        """What a crash may leave."""
        return [copy for copy in (*self.in_order, *self.dying, *self.gone) if copy.survives]

    def dooms(self, copy: Copy) -> list[str]:
        """Of what a copy may die while its queue is brought up."""
        reasons = ["expired"] if 0 < copy.expiry_us <= self.node.now_us else []
        if self.limited and not self.refuses and len(self.known) > self.arguments["x-max-length"]:
            reasons.append("maxlen")
        return reasons

    def forget_users(self) -> None:
        self.unacked, self.next_tag, self.line, self.takers, self.active = {}, {}, [], [], None
        self.had_one, self.letters, self.predecessor = False, [], None

    def stop_cleanly(self, found: list[Found]) -> None:
        """``found`` is what is there after a clean stop: all of it, and dead letters that had not arrived, perhaps."""
        stay = [copy for copy in self.in_order if copy.survives]
        doomed = {copy for copy in stay if self.dooms(copy)}
        copies = self.adopt(found, stay + [one for one in self.dying if one.survives])
        assert doomed >= set(stay) - copies, "a clean stop lost messages"
        self.forget_users()
        self.safe()

    def crash(self, found: list[Found]) -> None:
        """``found`` is what is there after a crash."""
        known = self.known
        owed = [copy for copy in self.in_order if copy.is_promised and not self.dooms(copy)]
        copies = self.adopt(found, known)
        self.gone = [copy for copy in known if copy not in copies]
        alike = Counter(copy.key for copy in copies)  # of copies that are alike nobody can tell which was found
        for copy in owed:
            alike[copy.key] -= 1
            if alike[copy.key] < 0:
                self.node.owed.append(copy)
        for copy in copies:
            copy.redelivered = EITHER if copy.loose and copy.origin is not None else TRUE
        self.forget_users()

    def adopt(self, found: list[Found], known: list[Copy]) -> set[Copy]:
        """Go on from what was found; those that say unacked have died once more as their queue was brought up."""
        copies = self.match([key for key, _ in found], sorted(known, key=_place))
        self.ready = [copy for copy, (_, unacked) in zip(copies, found, strict=True) if not unacked]
        self.dying = [copy for copy, (_, unacked) in zip(copies, found, strict=True) if unacked]
        return set(copies)

    def match(self, found: list[Key], known: list[Copy]) -> list[Copy]:
        """Which copies were found: those that are known, in their order."""
        left, copies, at = list(known), [], 0
        for key in found:
            here = [n for n, copy in enumerate(left) if copy.key == key and (n >= at or copy.loose)]
            if not here:  # of what, and on which way, it died in a step that was cut off, nobody can tell
                dead = [n for n, copy in enumerate(left) if copy.loose and copy.key[1] and copy.key[0] == key[0]]
                here = dead if key[1] else []
            assert here, (
                f"{self.name}: {key} was not published, is gone for sure, is there twice, or out of order: "
                f"found {found}, known {[copy.key for copy in known]}"
            )
            n = min(here, key=lambda n: (left[n].loose, n < at, n))
            copies.append(left.pop(n))
            if n < at:
                at -= 1
            elif not copies[-1].loose:
                at = n
            copies[-1].message = attrs.evolve(copies[-1].message, deaths=key[1])
        return copies


def _place(copy: Copy) -> tuple[int, int]:
    return -copy.level, copy.order


@attrs.define(eq=False)
class NodeModel:
    """All queues; who gets what."""

    now_us: int
    queues: dict[str, QueueModel] = attrs.Factory(dict)
    bindings: set[tuple[str, str, str]] = attrs.Factory(set)
    """Exchange, queue, key."""
    types: dict[str, str] = attrs.Factory(dict)
    """Of the exchanges."""
    orders: Any = attrs.Factory(itertools.count)
    loose: bool = False
    """Whether this step ends in a crash, so that nobody can tell how far it came."""
    owed: list[Copy] = attrs.Factory(list)
    _inbox: dict[str, list[Callable[[QueueModel], object]]] = attrs.Factory(dict)
    _line: deque[str] = attrs.Factory(deque)

    def route(self, exchange: str, key: str) -> list[str]:
        if not exchange:
            return [key] if key in self.queues else []
        kind = self.types[exchange]
        return [
            queue
            for source, queue, bound in self.bindings
            if source == exchange and queue in self.queues and (kind == "fanout" or _matches(kind, bound, key))
        ]

    def tell(self, queue: str, work: Callable[[QueueModel], object]) -> None:
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

    def route_dead(self, source: QueueModel, message: Message) -> list[str]:
        """Where a dead letter goes."""
        key = source.arguments.get("x-dead-letter-routing-key", "")
        targets = self.route(source.arguments["x-dead-letter-exchange"], key)
        return [target for target in targets if message.may_enter(target)]

    def _post(self, source: QueueModel, message: Message, origin: Copy | None) -> None:
        for target in self.route_dead(source, message):

            def arrive(queue: QueueModel) -> None:
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
            self.tell(name, QueueModel.expire)
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
                        ttl_ms = target.arguments.get("x-message-ttl")
                        expiry_us = 0 if ttl_ms is None else self.now_us + ttl_ms * 1000
                        level = min(message.priority, target.arguments.get("x-max-priority", 0))
                        again = Copy(message, target, next(self.orders), level, expiry_us, copy, loose=True)
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
