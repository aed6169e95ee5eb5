"""A queue as its users see it: a model that takes messages one by one and knows nothing of runs, files or actors.

It knows which user gets which message in which order, what is unacked, what expires, what is too much, and what changes
when a consumer comes or goes. Two models build on it: that of a single queue's engine, which notes every effect
(``tests/test_queue_process_machine.py``), and that of a whole node, which knows what a stop or a crash may leave
(:mod:`tests.support.runtime_model`). What is in files is modelled by :mod:`tests.support.queue_model`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

TRUE, FALSE, EITHER = frozenset({True}), frozenset({False}), frozenset({True, False})
"""What the redelivered flag of a message may say."""


def body_of(number: int, size: int) -> bytes:
    text = b"<%d>" % number
    return text + b"." * max(size - len(text), 0)


@attrs.define(eq=False)
class Entry:
    """One message in one queue. ``order``: by which messages of one level are sorted."""

    order: int
    level: int
    size: int
    expiry_us: int
    redelivered: frozenset[bool] = attrs.field(default=FALSE, kw_only=True)
    """What its flag may say when it is next delivered."""


def place(entry: Entry) -> tuple[int, int]:
    return -entry.level, entry.order


@attrs.define(eq=False)
class Taker:
    """A consumer. ``inbox``: what it was given and has not looked at: tag, message, what its flag may say."""

    tag: str
    channel: str
    prefetch: int
    priority: int
    ack_required: bool = True
    exclusive: bool = False
    unacked: int = 0
    inbox: list[tuple[int, Any, frozenset[bool]]] = attrs.Factory(list)

    @property
    def has_room(self) -> bool:
        return not (self.prefetch and self.ack_required) or self.unacked < self.prefetch


@attrs.define(eq=False)
class UsersQueue:
    """The queue as lists. Subclasses say what a dead letter is (``bury``), and may record more."""

    arguments: dict[str, Any]
    clock: Callable[[], int]
    """The time in microseconds."""
    ready: list[Any] = attrs.field(factory=list, kw_only=True)
    unacked: dict[str, dict[int, tuple[Any, Taker | None]]] = attrs.field(factory=dict, kw_only=True)
    dying: list[Any] = attrs.field(factory=list, kw_only=True)
    """Entries whose dead letter may not have arrived yet."""
    next_tag: Counter[str] = attrs.field(factory=Counter, kw_only=True)
    line: list[Taker] = attrs.field(factory=list, kw_only=True)
    """Waiting consumers, longest first; without those that had no room when it was their turn."""
    takers: list[Taker] = attrs.field(factory=list, kw_only=True)
    active: Taker | None = attrs.field(default=None, kw_only=True)
    predecessor: Taker | None = attrs.field(default=None, kw_only=True)
    """For whose messages the active one waits."""
    had_one: bool = attrs.field(default=False, kw_only=True)
    """Whether there ever was a consumer."""
    starting: bool = attrs.field(default=False, kw_only=True)
    """Whether limits hold for what a stop brought back, too, as in a broker, and it was not looked at."""

    # ── what subclasses may record ──────────────────────────────────────────────────────────────────────────────

    def bury(self, entry: Any, reason: str, *, refused: bool = False) -> None:
        """A dead letter goes out; ``refused``: of a message that never was in the queue."""
        raise NotImplementedError

    def remove(self, entry: Any) -> None:
        """A message has left the queue."""

    def refuse(self, entry: Any) -> None:
        """A message was not taken."""

    def handed(self, taker: Taker, tag: int, entry: Any, flag: frozenset[bool]) -> None:
        """A consumer was given a message."""
        taker.inbox.append((tag, entry, flag))

    # ── what it is ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def single(self) -> bool:
        return bool(self.arguments.get("x-single-active-consumer"))

    @property
    def buries(self) -> bool:
        return "x-dead-letter-exchange" in self.arguments

    @property
    def limited(self) -> bool:
        return "x-max-length" in self.arguments or "x-max-length-bytes" in self.arguments

    @property
    def refuses(self) -> bool:
        return self.limited and self.arguments.get("x-overflow", "drop-head") != "drop-head"

    @property
    def discards(self) -> bool:
        """Whether what comes is gone at once, unless a consumer takes it."""
        return self.arguments.get("x-message-ttl") == 0 and not self.buries

    @property
    def held(self) -> list[Any]:
        return [entry for tags in self.unacked.values() for entry, _ in tags.values()]

    # ── what leaves it ──────────────────────────────────────────────────────────────────────────────────────────

    def die(self, entry: Any, reason: str) -> None:
        if self.buries:
            self.dying.append(entry)
            self.bury(entry, reason)
        else:
            self.remove(entry)

    def expire(self) -> None:
        while self.ready and 0 < self.ready[0].expiry_us <= self.clock():
            self.die(self.ready.pop(0), "expired")

    def over(self, more: int = 0, size: int = 0) -> bool:
        """Whether it holds too much, or would with ``more`` messages and ``size`` bytes."""
        length, limit = len(self.ready) + more, self.arguments.get("x-max-length")
        total, limit_bytes = sum(entry.size for entry in self.ready) + size, self.arguments.get("x-max-length-bytes")
        return (limit is not None and length > limit) or (limit_bytes is not None and total > limit_bytes)

    def shed(self) -> None:
        starting, self.starting = self.starting, False
        if not self.refuses or starting:
            while self.over():
                self.die(self.ready.pop(0), "maxlen")
                self.expire()

    def purge(self) -> int:
        purged, self.ready = self.ready, []
        for entry in purged:
            self.remove(entry)
        return len(purged)

    # ── messages in ─────────────────────────────────────────────────────────────────────────────────────────────

    def expiry_of(self, expiration_ms: int | None) -> int:
        """When a message expires that comes now, in microseconds; 0: never."""
        ttls = [ttl for ttl in (expiration_ms, self.arguments.get("x-message-ttl")) if ttl is not None]
        return self.clock() + min(ttls) * 1000 if ttls else 0

    def level_of(self, priority: int) -> int:
        return min(priority, self.arguments.get("x-max-priority", 0))

    def take(self, batch: Sequence[Any]) -> list[Any]:
        """Messages are published; returns those that were not refused."""
        careful = self.limited or any(entry.expiry_us for entry in batch)
        may_expire = careful or "x-max-priority" in self.arguments
        if "x-max-priority" in self.arguments and self.takers:
            self.deliver()  # those that wait get what is first so far
        if may_expire:
            self.shed()
            self.expire()
        if careful and self.ready and self.next() is not None:
            self.deliver()
        taken = []
        for entry in batch:
            if self.refuses and self.over(1, entry.size):
                if self.arguments["x-overflow"] == "reject-publish-dlx" and self.buries:
                    self.bury(entry, "maxlen", refused=True)
                self.refuse(entry)
                continue
            taken.append(entry)
            taker = self.next() if careful else None
            if taker is not None:
                self.hand(taker, entry)
                continue
            self.ready.append(entry)
            self.ready.sort(key=place)
            self.shed()
            if may_expire:
                self.expire()
        return taken

    # ── messages out ────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, channel: str, count: int, *, ack_required: bool) -> list[tuple[int, Any, frozenset[bool]]]:
        self.expire()
        got: list[tuple[int, Any, frozenset[bool]]] = []
        while self.ready and len(got) < count:
            entry = self.ready.pop(0)
            flag = entry.redelivered
            got.append((self.note(channel, entry, None) if ack_required else 0, entry, flag))
            if not ack_required:
                self.remove(entry)
            self.expire()
        return got

    def pick(self, channel: str, chosen: list[Any]) -> list[tuple[int, Any, frozenset[bool]]]:
        """Messages that are asked for by what they are, wherever they stand; those of them that are not due by then."""
        self.shed()
        self.expire()
        taken = [entry for entry in self.ready if entry in chosen]
        self.ready = [entry for entry in self.ready if entry not in chosen]
        flags = [entry.redelivered for entry in taken]
        return [(self.note(channel, entry, None), entry, flag) for entry, flag in zip(taken, flags, strict=True)]

    def drop(self, chosen: list[Any]) -> int:
        """Messages that are deleted by what they are, wherever they stand."""
        self.shed()
        self.expire()
        gone = [entry for entry in self.ready if entry in chosen]
        self.ready = [entry for entry in self.ready if entry not in chosen]
        for entry in gone:
            self.remove(entry)
        return len(gone)

    def note(self, channel: str, entry: Any, taker: Taker | None) -> int:
        """A message waits for its ack; returns the delivery tag."""
        self.next_tag[channel] += 1
        tag = self.next_tag[channel]
        self.unacked.setdefault(channel, {})[tag] = (entry, taker)
        entry.redelivered = TRUE
        return tag

    def next(self) -> Taker | None:
        """The consumer that gets the next message."""
        if self.single:
            waits = self.predecessor is not None and self.predecessor.unacked
            return self.active if self.active is not None and self.active.has_room and not waits else None
        while self.line:
            taker = max(self.line, key=lambda taker: taker.priority)
            if taker.has_room:
                return taker
            self.line.remove(taker)
        return None

    def hand(self, taker: Taker, entry: Any) -> None:
        flag, tag = entry.redelivered, 0
        if taker.ack_required:
            tag = self.note(taker.channel, entry, taker)
            taker.unacked += 1
        else:
            self.remove(entry)
        self.handed(taker, tag, entry, flag)
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
        """``outcome``: ack, requeue or reject; in the order in which the tags are given."""
        settled = []
        for tag in tags:
            entry, taker = self.unacked[channel].pop(tag)
            settled.append(entry)
            if taker is not None:
                taker.unacked -= 1
                if taker.has_room and taker not in self.line and taker in self.takers:
                    self.line.append(taker)
        if outcome == "requeue":
            self.requeue(settled)
            return
        for entry in settled:
            if outcome == "ack":
                self.remove(entry)
            else:
                self.die(entry, "rejected")

    def requeue(self, entries: list[Any]) -> None:
        self.ready = sorted(self.ready + entries, key=place)
        if entries:
            self.predecessor = None
            self.shed()
            self.expire()

    # ── consumers ───────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, taker: Taker) -> None:
        self.takers.append(taker)
        self.line.append(taker)
        self.had_one = True
        self.predecessor = None
        if taker.exclusive or (self.single and self.active is None):
            self.active = taker

    def cancel(self, takers: list[Taker]) -> None:
        self.takers = [taker for taker in self.takers if taker not in takers]
        self.line = [taker for taker in self.line if taker not in takers]
        if self.active is not None and self.active in takers:
            if self.single and self.active.unacked:
                self.predecessor = self.active
            self.active = None
            if self.single and self.line:
                self.active = max(self.line, key=lambda taker: taker.priority)

    def close_channel(self, channel: str) -> int:
        """Returns how many messages came back."""
        known = channel in self.unacked or any(taker.channel == channel for taker in self.takers)
        held = [entry for entry, _ in self.unacked.pop(channel, {}).values()]
        self.next_tag.pop(channel, None)
        self.cancel([taker for taker in self.takers if taker.channel == channel])
        if known:
            self.predecessor = None
        self.requeue(held)
        return len(held)

    def forget_users(self) -> None:
        """Remove all users; nothing is unacked."""
        self.unacked, self.next_tag, self.line, self.takers = {}, Counter(), [], []
        self.active, self.predecessor, self.had_one = None, None, False
