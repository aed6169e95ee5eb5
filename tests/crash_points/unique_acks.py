"""Messages with keys that leave and come again: a model of each key's holder, and of what a crash may bring back.

What leaves a queue (an ack, a rejected or expired one, a purge, ``x-max-length``) frees its key at once, and is safe a
moment later. So for each key: what is confirmed and has not left is there; what surely left is not; while one of its
messages is there another one is a duplicate; a duplicate that was confirmed has a first one that is there, or has left;
and of two that are there, all but the last had left before that was taken in, and that was not safe yet. In a queue
without priorities the last one was not confirmed then: its journal has what left before what was published next. A
message that was not confirmed before a power loss may have lost its key by it; another one with this key may follow.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import attrs

from tests.crash_points.recording import Record, recording
from tests.crash_points.unique import SMALL
from tests.support.runtime_tools import BIG, HandNode, hand_node
from warren import Delivery, Queue
from warren.actors.clock import HandClock
from warren.actors.engines import unique_keys
from warren.actors.runtime.future import Confirm
from warren.storage.memory import MemoryFileSystem

PERIOD_S: Final = 2.0
TTL_S: Final = 1.0
KINDS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {"x-queue-mode": "lazy"},
    {"x-max-length": 3},
    {"x-max-priority": 2},
    {"x-max-priority": 2},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
)
HERE, LEAVING, LEFT = "here", "leaving", "left"


@attrs.frozen
class Sent:
    """One message, as it is known. Duplicates are messages, too, which are not there."""

    key: str
    body: bytes
    until_us: int | None
    """``None``: its key is taken while it waits."""
    expires_us: int | None
    stored: bool
    confirmed: bool = False
    """For a duplicate: the first one is safe."""
    state: str = HERE
    left_safe: bool = False
    keyed: bool = True
    """Whether its key's row is surely beside it: not where a power loss came before the confirm."""

    def has_key(self, now_us: int) -> bool | None:
        """Whether its key is taken; ``None`` if unknown."""
        if self.until_us is not None:
            taken = now_us < self.until_us
            return (True if self.confirmed or (self.state == HERE and self.keyed) else None) if taken else False
        if self.state == LEFT or self.expired(now_us):
            return False
        return True if self.state == HERE and self.keyed else None

    def expired(self, now_us: int) -> bool:
        return self.expires_us is not None and self.expires_us <= now_us


@attrs.frozen
class Promises:
    kind: int
    sent: tuple[Sent, ...]
    wall_us: int


@attrs.define
class Life:
    """Processes that follow each other at one queue, and what is known of its messages."""

    rng: random.Random
    kind: int
    clock: HandClock
    sent: list[Sent] = attrs.Factory(list)
    confirms: dict[int, tuple[Confirm, int]] = attrs.Factory(dict)
    """By the number of the message; its place in the batch."""
    held: list[Delivery] = attrs.Factory(list)
    node: HandNode = attrs.field(init=False)

    def promised(self) -> Promises:
        self.look_at_confirms()
        return Promises(self.kind, tuple(self.sent), self.clock.wall_us())

    def begin(self, files: MemoryFileSystem) -> None:
        self.node = hand_node(files, clock=self.clock, seed=self.rng.getrandbits(32), **SMALL)
        self.held = []
        self.node.node.queue("dead")
        self.node.node.queue("q", arguments=KINDS[self.kind])

    @property
    def queue(self) -> Queue:
        return self.node.node.queue("q", passive=True)

    @property
    def sure(self) -> bool:
        """Whether what leaves has left when the call is back."""
        return "x-dead-letter-exchange" not in KINDS[self.kind]

    def note(self, number: int, **changes: Any) -> None:
        self.sent[number] = attrs.evolve(self.sent[number], **changes)

    def look_at_confirms(self) -> None:
        for number, (confirm, place) in list(self.confirms.items()):
            if confirm.done:
                del self.confirms[number]
                if confirm.error is None:
                    assert (place in confirm.duplicates) is not self.sent[number].stored, "the answer is another one"
                    self.note(number, confirmed=True)

    def observe(self) -> None:
        """Settle the open cases by what is there now."""
        there = self.there()
        for number, one in enumerate(self.sent):
            if one.stored and one.state == LEAVING:
                if one.body not in there:
                    self.note(number, state=LEFT)
                elif self.sure and not one.expired(self.clock.wall_us()):
                    self.note(number, state=HERE)

    def there(self) -> set[bytes]:
        return {message.body for message in self.queue.browse()}

    def leave(self, chosen: Callable[[Sent], bool]) -> None:
        for number, one in enumerate(self.sent):
            if one.stored and one.state == HERE and chosen(one):
                self.note(number, state=LEAVING)

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self) -> None:
        self.send(1)

    def publish_many(self) -> None:
        self.send(self.rng.randrange(2, 5))

    def send(self, count: int) -> None:
        rng, now_us = self.rng, self.clock.wall_us()
        period, ttl = rng.random() < 0.15, rng.random() < 0.1
        keys = [f"k{rng.randrange(3)}" for _ in range(count)]
        bodies = [b"%s %d " % (key.encode(), len(self.sent) + at) for at, key in enumerate(keys)]
        bodies = [body + (BIG if rng.random() < 0.2 else b"") for body in bodies]
        taken = [self.taken(key, now_us) for key in keys]
        if "x-max-length" in KINDS[self.kind]:
            self.leave(lambda one: True)  # it may be dropped for the new one
        first = len(self.sent)
        for at, (key, body) in enumerate(zip(keys, bodies, strict=True)):
            stored = key not in keys[:at] and taken[at] is not True
            until_us = now_us + round(PERIOD_S * 1e6) if period else None
            expires_us = now_us + round(TTL_S * 1e6) if ttl else None
            self.sent.append(Sent(key, body, until_us, expires_us, stored))
        more: dict[str, Any] = {"expiration": TTL_S} if ttl else {}
        more |= {"unique_for": PERIOD_S} if period else {}
        more |= {"priority": rng.randrange(3)} if "x-max-priority" in KINDS[self.kind] else {}
        if count == 1:
            confirm = self.queue.publish(bodies[0], unique=keys[0], **more)
        else:
            confirm = self.queue.publish_many(bodies, unique=[*keys], **more)
        dropping = "x-max-length" in KINDS[self.kind]
        if rng.random() < 0.5 or None in taken or (dropping and count > 1):
            confirm.wait()
            for at, known in enumerate(taken):
                duplicate = at in confirm.duplicates
                assert known is None or dropping or keys[at] in keys[:at] or duplicate is known, keys[at]
                self.note(first + at, stored=not duplicate)
        for at in range(count):
            self.confirms[first + at] = confirm, at
        self.look_at_confirms()
        if dropping:
            self.node.run()
            self.leave(lambda one: True)
        self.observe()

    def taken(self, key: str, now_us: int) -> bool | None:
        answers = {one.has_key(now_us) for one in self.sent if one.stored and one.key == key}
        return True if True in answers else None if None in answers else False

    def get(self) -> None:
        self.held += self.queue.get_many(self.rng.randrange(1, 4))

    def settle(self) -> None:
        if not self.held:
            self.get()
        for delivery in self.rng.sample(self.held, self.rng.randrange(len(self.held) + 1)):
            self.held.remove(delivery)
            end = self.rng.choice(["ack", "ack", "ack", "reject", "requeue"])
            if end == "requeue":
                delivery.nack()
                continue
            self.leave(lambda one, body=delivery.body: one.body == body)  # type: ignore[misc]
            if end == "ack":
                delivery.ack()
            else:
                delivery.nack(requeue=False)
        if self.rng.random() < 0.3:
            self.observe()
        elif self.sure:
            for number, one in enumerate(self.sent):
                if one.state == LEAVING and not one.expired(self.clock.wall_us()):
                    self.note(number, state=LEFT)

    def purge(self) -> None:
        self.leave(lambda one: True)
        self.queue.purge()
        self.observe()

    def sync(self) -> None:
        left = [number for number, one in enumerate(self.sent) if one.state == LEFT]
        self.queue.sync()
        for number in left:
            self.note(number, left_safe=True)

    def pass_time(self) -> None:
        seconds = self.rng.choice([0.05, 0.6, 2.5])
        now_us = self.clock.wall_us() + round(seconds * 1e6)
        self.leave(lambda one: one.expired(now_us))
        self.node.advance(seconds)
        self.observe()

    def stop(self) -> None:
        self.node.node.close()
        self.look_at_confirms()
        self.begin(self.node.files)
        self.fell(power=False)

    def die(self) -> None:
        self.begin(self.node.kill())
        self.fell(power=False)

    def fell(self, *, power: bool) -> None:
        """What a crash has left: so it is from now on."""
        self.look_at_confirms()
        self.confirms.clear()
        there = self.there()
        for number, one in enumerate(self.sent):
            if not one.stored:
                continue
            if one.body in there:
                expired = one.expired(self.clock.wall_us())
                keyed = one.keyed and (one.confirmed or not power)
                self.note(number, state=LEAVING if expired else HERE, keyed=keyed)
            else:
                self.note(number, state=LEFT)


STEPS: Final[tuple[Callable[[Life], None], ...]] = (
    *[Life.publish] * 8,
    *[Life.publish_many] * 2,
    *[Life.get] * 2,
    *[Life.settle] * 7,
    Life.purge,
    *[Life.sync] * 2,
    Life.pass_time,
    Life.stop,
    *[Life.die] * 3,
)


def run(seed: int) -> Record:
    """A queue from its first moment, with steps that are drawn."""
    rng = random.Random(seed)
    life = Life(rng, rng.randrange(len(KINDS)), HandClock())
    return _lived(life, MemoryFileSystem(seed), rng.randrange(6, 25))


def go_on(files: MemoryFileSystem, promises: Promises, seed: int, *, power: bool) -> Record:
    """A process takes up what a crash left, and works on."""
    rng = random.Random(seed)
    sent = [attrs.evolve(one, keyed=one.keyed and (one.confirmed or not power)) for one in promises.sent]
    return _lived(Life(rng, promises.kind, HandClock(promises.wall_us), sent), files, rng.randrange(1, 12), after=power)


def _lived(life: Life, base: MemoryFileSystem, steps: int, *, after: bool | None = None) -> Record:
    """``after``: whether the crash before was a power loss."""
    base.now_ms = lambda: life.clock.wall_us() // 1000
    files = recording(base, life.promised)
    with patch.object(unique_keys, "MIN_LOG_BYTES", 300):
        life.begin(files)
        if after is not None:
            life.fell(power=after)
        for _ in range(steps):
            life.rng.choice(STEPS)(life)
        files.record.end()
        life.node.forget()
    return files.record


def check(files: MemoryFileSystem, promises: Promises, *, power: bool, deep: bool) -> None:
    """What the next process finds, and its answer to a publish with each key."""
    clock = HandClock(promises.wall_us)
    files.now_ms = lambda: clock.wall_us() // 1000
    life = Life(random.Random(1), promises.kind, clock, list(promises.sent))
    with patch.object(unique_keys, "MIN_LOG_BYTES", 300):
        life.begin(files)
        try:
            bodies = [message.body for message in life.queue.browse()]
            assert len(set(bodies)) == len(bodies), "a message occurs twice"
            there = set(bodies)
            assert there <= {one.body for one in promises.sent if one.stored}, "a message that nobody stored"
            for key in dict.fromkeys(one.key for one in promises.sent):
                _check_key([one for one in promises.sent if one.key == key], there, promises)
            life.fell(power=power)
            if deep:
                life.begin(life.node.kill())
                assert life.there() == there, "a second opening finds something else"
            _check_answers(life)
        finally:
            life.node.forget()


def _check_key(sent: list[Sent], there: set[bytes], promises: Promises) -> None:
    found: list[Sent] = []
    first: Sent | None = None
    for one in sent:
        gone = one.state != HERE or one.expired(promises.wall_us)
        if not one.stored:
            kept = one.until_us is not None or (
                first is not None and (first.body in there or first.until_us is not None)
            )
            left = first is not None and (first.state != HERE or first.expired(promises.wall_us))
            assert kept or left or not one.confirmed, f"{one.key}: the first one of a confirmed duplicate is lost"
            continue
        first = one
        assert one.body in there or gone or not one.confirmed, f"{one.body[:9]!r}: lost after its confirm"
        assert not (one.body in there and one.left_safe), f"{one.body[:9]!r}: gone for sure, and there again"
        if one.body in there:
            found.append(one)
    levels = "x-max-priority" in KINDS[promises.kind]
    for before in found[:-1]:
        if before.until_us is not None or before.expired(promises.wall_us) or not before.keyed:
            continue
        assert before.state != HERE, f"{before.key}: there twice, and the first one was never gone"
        behind = found[found.index(before) + 1 :]
        assert levels or not any(one.confirmed for one in behind), f"{before.key}: there twice after a confirm"


def _check_answers(life: Life) -> None:
    """Whether each key is free; what waits is worked off, and then it is."""
    for _ in range(2):
        for key in dict.fromkeys(one.key for one in life.sent):
            taken = life.taken(key, life.clock.wall_us())
            body = b"again %d" % len(life.sent)
            if "x-max-length" in KINDS[life.kind]:
                life.leave(lambda one: True)
            confirm = life.queue.publish(body, unique=key)
            confirm.wait()
            assert taken is None or confirm.duplicate is taken, f"{key}: {'free' if taken else 'taken'}"
            life.sent.append(Sent(key, body, None, None, not confirm.duplicate, confirmed=True))
            life.observe()
        while job := life.queue.get():
            life.leave(lambda one, body=job.body: one.body == body)  # type: ignore[misc]
            job.ack()
            life.observe()
            key = job.body.split()[0].decode()
            if key != "again" and life.taken(key, life.clock.wall_us()):
                confirm = life.queue.publish(b"beside", unique=key)
                confirm.wait()
                assert confirm.duplicate, f"{key}: free while another one waits"
