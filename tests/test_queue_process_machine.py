"""A queue as its users see it, held against a model that takes messages one by one and knows nothing of runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.engines.consumers import Consumer
from actors.engines.effects import Delivered, Effects
from actors.engines.errors import AccessRefusedError, UnknownTagError
from storage.settings import Settings
from tests.process_tools import Bench, envelope

CHANNELS = ["red", "blue"]
ENVELOPES = {persistent: envelope(persistent=persistent) for persistent in (True, False)}


@attrs.define(eq=False)
class Sent:
    """One message."""

    number: int
    level: int
    size: int
    persistent: bool
    expiry_us: int
    taken: bool = False
    unsure: bool = False
    """Whether nobody can tell what its redelivered flag will say."""

    @property
    def body(self) -> bytes:
        return body_of(self.number, self.size)

    @property
    def redelivered(self) -> set[bool]:
        """What its flag may say if it is taken now."""
        return {True, False} if self.unsure else {self.taken}


def body_of(number: int, size: int) -> bytes:
    text = b"<%d>" % number
    return text + b"." * max(size - len(text), 0)


@attrs.define(eq=False)
class Taker:
    consumer: Consumer
    unacked: int = 0

    @property
    def has_room(self) -> bool:
        limited = self.consumer.prefetch and self.consumer.ack_required
        return not limited or self.unacked < self.consumer.prefetch


Went = tuple[str | None, str, int, bytes, set[bool]]
"""To which consumer and channel, its tag and body, and what its redelivered flag may say."""


@attrs.define
class Model:
    """The queue as lists. What it answers collects in ``delivered``, ``dead``, ``confirmed`` and ``refused``."""

    arguments: dict[str, Any]
    now_us: int
    ready: list[Sent] = attrs.Factory(list)
    unacked: dict[str, dict[int, tuple[Sent, Taker | None]]] = attrs.Factory(dict)
    next_tag: Counter[str] = attrs.Factory(Counter)
    line: list[Taker] = attrs.Factory(list)
    """Consumers, who waits longest first; those that had no room when it was their turn are not in it."""
    all: list[Taker] = attrs.Factory(list)
    active: Taker | None = None
    predecessor: Taker | None = None
    """For whose messages the active one waits."""
    dying: list[Sent] = attrs.Factory(list)
    delivered: list[Went] = attrs.Factory(list)
    dead: list[tuple[str, bytes]] = attrs.Factory(list)
    confirmed: list[int] = attrs.Factory(list)
    waiting: list[tuple[int, int]] = attrs.Factory(list)
    refused: list[int] = attrs.Factory(list)
    activated: list[str] = attrs.Factory(list)

    @property
    def single(self) -> bool:
        return bool(self.arguments.get("x-single-active-consumer"))

    @property
    def buries(self) -> bool:
        return "x-dead-letter-exchange" in self.arguments

    def sort(self) -> None:
        self.ready.sort(key=lambda sent: (-sent.level, sent.number))

    def die(self, sent: Sent, reason: str) -> None:
        if self.buries:
            self.dead.append((self.shown(reason, sent.expiry_us), sent.body))
            self.dying.append(sent)

    def shown(self, reason: str, expiry_us: int) -> str:
        """Of a message that is due and one too many as well, it does not matter which of it counts, within a batch."""
        return "either" if reason != "rejected" and 0 < expiry_us <= self.now_us else reason

    def expire(self) -> None:
        while self.ready and 0 < self.ready[0].expiry_us <= self.now_us:
            self.die(self.ready.pop(0), "expired")

    # who is next

    def next(self) -> Taker | None:
        """Who gets the message that there is."""
        if self.single:
            waits = self.predecessor is not None and self.predecessor.unacked
            return self.active if self.active is not None and self.active.has_room and not waits else None
        while self.line:
            taker = max(self.line, key=lambda taker: taker.consumer.priority)
            if taker.has_room:
                return taker
            self.line.remove(taker)
        return None

    def hand(self, taker: Taker, sent: Sent) -> None:
        consumer = taker.consumer
        tag = 0
        if consumer.ack_required:
            tag = self.note(consumer.channel, sent, taker)
            taker.unacked += 1
        self.delivered.append((consumer.tag, consumer.channel, tag, sent.body, sent.redelivered))
        sent.taken = True
        if not self.single:
            self.line.remove(taker)
            self.line.append(taker)

    def note(self, channel: str, sent: Sent, taker: Taker | None) -> int:
        self.next_tag[channel] += 1
        self.unacked.setdefault(channel, {})[self.next_tag[channel]] = (sent, taker)
        return self.next_tag[channel]

    def deliver(self) -> None:
        if self.ready and self.next() is not None:
            self.expire()
        while self.ready and (taker := self.next()) is not None:
            self.hand(taker, self.ready.pop(0))
            self.expire()

    # messages in

    def over(self, more: int = 0, size: int = 0) -> bool:
        length, limit = len(self.ready) + more, self.arguments.get("x-max-length")
        total, limit_bytes = sum(sent.size for sent in self.ready) + size, self.arguments.get("x-max-length-bytes")
        return (limit is not None and length > limit) or (limit_bytes is not None and total > limit_bytes)

    @property
    def limited(self) -> bool:
        return "x-max-length" in self.arguments or "x-max-length-bytes" in self.arguments

    def shed(self) -> None:
        if self.arguments.get("x-overflow", "drop-head") == "drop-head":
            while self.over():
                self.die(self.ready.pop(0), "maxlen")

    def publish(self, batch: list[Sent], token: int | None) -> None:
        careful = self.limited or any(sent.expiry_us for sent in batch)
        if careful or "x-max-priority" in self.arguments:
            self.shed()
            self.expire()
        if careful and self.ready and self.next() is not None:
            self.deliver()
        overflow = self.arguments.get("x-overflow", "drop-head")
        refused = False
        for sent in batch:
            if overflow != "drop-head" and self.over(1, sent.size):
                refused = True
                if overflow == "reject-publish-dlx" and self.buries:
                    self.dead.append((self.shown("maxlen", sent.expiry_us), sent.body))
                continue
            taker = self.next() if careful else None
            if taker is not None:
                self.hand(taker, sent)
                continue
            self.ready.append(sent)
            self.sort()
            self.shed()
            if careful or "x-max-priority" in self.arguments:
                self.expire()
        if token is not None:
            if refused:
                self.refused.append(token)
            elif batch[0].persistent:
                self.waiting.append((batch[0].level, token))
            else:
                self.confirmed.append(token)

    # what is unacked

    def settle(self, channel: str, tags: list[int]) -> list[Sent]:
        settled = []
        for tag in tags:
            sent, taker = self.unacked[channel].pop(tag)
            settled.append(sent)
            if taker is not None:
                taker.unacked -= 1
                if taker.has_room and taker not in self.line and taker in self.all:
                    self.line.append(taker)
        return settled

    def requeue(self, sents: list[Sent]) -> None:
        self.ready += sents
        self.sort()
        if sents:
            self.predecessor = None
            self.shed()
            self.expire()

    # consumers

    def add(self, consumer: Consumer) -> None:
        taker = Taker(consumer)
        self.all.append(taker)
        self.line.append(taker)
        self.predecessor = None
        if consumer.exclusive:
            self.active = taker
        elif self.single and self.active is None:
            self.active = taker
            self.activated.append(consumer.tag)

    def remove(self, takers: list[Taker]) -> None:
        self.all = [taker for taker in self.all if taker not in takers]
        self.line = [taker for taker in self.line if taker not in takers]
        if self.active in takers and self.active is not None:
            if self.single and self.active.unacked:
                self.predecessor = self.active
            self.active = None
            if self.single and self.line:
                self.active = max(self.line, key=lambda taker: taker.consumer.priority)
                self.activated.append(self.active.consumer.tag)

    # ends

    def stop(self) -> None:
        """Everything pending comes back, what was transient is gone, nobody is there any more."""
        back = [sent for tags in self.unacked.values() for sent, _ in tags.values()] + self.dying
        self.ready = [sent for sent in self.ready + back if sent.persistent]
        self.sort()
        self.unacked, self.dying, self.line, self.all, self.active = {}, [], [], [], None
        self.predecessor = None
        self.next_tag = Counter()
        for sent in self.ready:
            sent.unsure = True


class Machine(RuleBasedStateMachine):
    @initialize(
        arguments=st.fixed_dictionaries(
            {},
            optional={
                "x-message-ttl": st.sampled_from([0, 5, 50]),
                "x-max-priority": st.sampled_from([0, 2]),
                "x-max-length": st.integers(0, 6),
                "x-max-length-bytes": st.integers(0, 200),
                "x-overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
                "x-dead-letter-exchange": st.just("dlx"),
                "x-single-active-consumer": st.booleans(),
                "x-queue-mode": st.sampled_from(["default", "lazy"]),
            },
        )
    )
    def begin(self, arguments: dict[str, Any]) -> None:
        self.bench = Bench(arguments, settings=Settings(segment_entry_count=4, queue_index_embed_msgs_below=40))
        self.model = Model(arguments, self.bench.now_us)
        self.number = self.consumers = 0
        self.expiries: dict[bytes, int] = {}
        self.batches: list[tuple[int, int]] = []
        """Dead letters that are on their way: number and messages that are held for them."""

    @property
    def queue(self) -> Any:
        return self.bench.queue

    # ── what users do ───────────────────────────────────────────────────────────────────────────────────────────

    @rule(
        sizes=st.lists(st.sampled_from([0, 8, 8, 60]), min_size=1, max_size=6),
        persistent=st.booleans(),
        expiration_ms=st.sampled_from([None, None, None, 0, 5, 20]),
        priority=st.integers(0, 4),
        with_token=st.booleans(),
    )
    def publish(
        self, sizes: list[int], persistent: bool, expiration_ms: int | None, priority: int, with_token: bool
    ) -> None:
        ttls = [ttl for ttl in (expiration_ms, self.model.arguments.get("x-message-ttl")) if ttl is not None]
        expiry_us = self.model.now_us + min(ttls) * 1000 if ttls else 0
        level = min(priority, self.model.arguments.get("x-max-priority", 0))
        batch = []
        for size in sizes:
            self.number += 1
            batch.append(Sent(self.number, level, len(body_of(self.number, size)), persistent, expiry_us))
            self.expiries[batch[-1].body] = expiry_us
        token = self.number if with_token else None
        self.model.publish(batch, token)
        self.bench.publish(
            *[sent.body for sent in batch],
            like=ENVELOPES[persistent],
            expiration_ms=expiration_ms,
            priority=priority,
            token=token,
        )

    @rule()
    def deliver(self) -> None:
        self.model.deliver()
        self.queue.deliver()

    @rule(channel=st.sampled_from(CHANNELS), count=st.integers(1, 8), ack_required=st.booleans())
    def get(self, channel: str, count: int, ack_required: bool) -> None:
        model = self.model
        model.expire()
        expected: list[Went] = []
        while model.ready and len(expected) < count:
            sent = model.ready.pop(0)
            tag = model.note(channel, sent, None) if ack_required else 0
            expected.append((None, channel, tag, sent.body, sent.redelivered))
            sent.taken = True
            model.expire()
        self.compare(self.queue.get_many(channel, count, ack_required=ack_required), expected)

    @rule(
        channel=st.sampled_from(CHANNELS),
        prefetch=st.integers(0, 3),
        ack_required=st.booleans(),
        priority=st.integers(-1, 1),
        exclusive=st.sampled_from([False, False, False, True]),
    )
    def add_consumer(self, channel: str, prefetch: int, ack_required: bool, priority: int, exclusive: bool) -> None:
        self.consumers += 1
        consumer = Consumer(
            channel, f"t{self.consumers}", prefetch, ack_required, exclusive=exclusive, priority=priority
        )
        if self.model.single:
            refused = exclusive
        else:
            refused = self.model.active is not None or (exclusive and bool(self.model.all))
        if refused:
            with pytest.raises(AccessRefusedError):
                self.queue.add_consumer(consumer)
        else:
            self.model.add(consumer)
            self.queue.add_consumer(consumer)

    @precondition(lambda self: self.model.all)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        taker = data.draw(st.sampled_from(self.model.all))
        self.model.remove([taker])
        assert self.queue.cancel_consumer(taker.consumer.tag)

    @rule(channel=st.sampled_from(CHANNELS), rarely=st.integers(0, 1))
    def close_channel(self, channel: str, rarely: int) -> None:
        if rarely:
            return
        model = self.model
        known = channel in model.unacked or any(taker.consumer.channel == channel for taker in model.all)
        held = [sent for sent, _ in model.unacked.pop(channel, {}).values()]
        model.next_tag.pop(channel, None)
        model.remove([taker for taker in model.all if taker.consumer.channel == channel])
        if known:
            model.predecessor = None
        model.requeue(held)
        assert self.queue.close_channel(channel) == len(held)

    @rule(channel=st.sampled_from(CHANNELS), data=st.data(), kind=st.sampled_from(["ack", "requeue", "reject"]))
    def settle(self, channel: str, data: st.DataObject, kind: str) -> None:
        there = sorted(self.model.unacked.get(channel, {}))
        if not there:
            with pytest.raises(UnknownTagError):
                self.queue.ack(channel, [range(1, 2)])
            return
        up_to = data.draw(st.sampled_from([None, 0, *there]))
        if up_to is None:
            tags = data.draw(st.lists(st.sampled_from(there), unique=True, min_size=1))
        else:
            tags = [tag for tag in there if tag <= up_to or up_to == 0]
        ordered = sorted(tags)
        # The consumers of one call come back in the order of the tags.
        sents = self.model.settle(channel, ordered)
        given: Any = [range(tag, tag + 1) for tag in tags]
        if kind == "ack":
            self.queue.ack(channel, given) if up_to is None else self.queue.ack_up_to(channel, up_to)
            return
        if kind == "requeue":
            self.model.requeue(sents)
        else:
            for sent in sents:
                self.model.die(sent, "rejected")
        requeue = kind == "requeue"
        if up_to is None:
            self.queue.nack(channel, given, requeue=requeue)
        else:
            self.queue.nack_up_to(channel, up_to, requeue=requeue)

    @rule(rarely=st.integers(0, 3))
    def purge(self, rarely: int) -> None:
        if rarely:
            return
        assert self.queue.purge() == len(self.model.ready)
        self.model.ready = []

    # ── what happens around it ──────────────────────────────────────────────────────────────────────────────────

    @rule(milliseconds=st.sampled_from([1, 5, 30]), tick=st.booleans())
    def time_goes_by(self, milliseconds: int, tick: bool) -> None:
        self.bench.later(milliseconds)
        self.model.now_us += milliseconds * 1000
        if tick:
            self.model.shed()
            self.model.expire()
            self.queue.tick()

    @rule()
    def sync(self) -> None:
        self.bench.sync()
        by_level: dict[int, list[int]] = {}
        for level, token in self.model.waiting:
            by_level.setdefault(level, []).append(token)
        self.model.confirmed += [token for tokens in by_level.values() for token in tokens]
        self.model.waiting = []

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def dead_letters_are_safe(self, data: st.DataObject) -> None:
        self.take_effects()
        number = data.draw(st.sampled_from(self.batches))
        self.batches.remove(number)
        bodies = self.held.pop(number[0])
        self.model.dying = [sent for sent in self.model.dying if sent.body not in bodies]
        self.queue.dead_letters_safe(number[0])

    @rule()
    def hibernate(self) -> None:
        tried = not (any(self.model.unacked.values()) or self.model.dying or self.batches or self.model.waiting)
        if tried and not self.queue.is_asleep:
            self.model.expire()
        backing = self.queue.backing
        in_ram = any(queue.state.ram_msg_count for _, queue in backing.awake())
        kept = in_ram and backing.mode == "default" and backing._duration_s is None
        slept = self.queue.hibernate()
        if tried and not self.model.dying:
            persistent = all(sent.persistent for sent in self.model.ready)
            assert slept == (persistent and not kept) or not self.model.ready

    @rule(duration=st.sampled_from([None, 0.0, 0.01, 5.0]))
    def memory_target(self, duration: float | None) -> None:
        self.queue.set_ram_duration_target(duration)

    @rule(how=st.sampled_from(["asleep", "opened", "crash"]), rarely=st.integers(0, 3))
    def start_again(self, how: str, rarely: int) -> None:
        if rarely:
            return
        self.sync()
        self.take_effects()
        self.model.stop()
        self.batches = []
        if how == "crash":
            self.bench.crash()
        else:
            self.bench.stop_and_start(asleep=how == "asleep")

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────

    held: dict[int, list[bytes]]

    def compare(self, deliveries: list[Delivered], expected: list[Went]) -> None:
        went = []
        for one in deliveries:
            bodies = one.fetched.bodies()
            assert [message.body for message in one.fetched.messages()] == bodies
            for index, body in enumerate(bodies):
                tag = one.first_tag + index if one.first_tag else 0
                went.append((one.consumer, one.channel, tag, body, one.fetched.redelivered))
        assert [one[:4] for one in went] == [one[:4] for one in expected]
        assert all(one[4] in wanted[4] for one, wanted in zip(went, expected, strict=True))

    def take_effects(self) -> None:
        """Compare what has collected on both sides."""
        model, effects = self.model, self.queue.drain_effects()
        self.compare(effects.deliveries, model.delivered)
        letters = [
            (model.shown(one.headers["x-death"][0]["reason"], self.expiries[one.body]), one.body)
            for batch in effects.dead_letters
            for one in batch.publications
        ]
        assert letters == model.dead
        assert sorted(effects.confirmed) == sorted(model.confirmed)
        assert effects.refused == model.refused
        assert effects.activated == model.activated
        self.held = getattr(self, "held", {})
        for batch in effects.dead_letters:
            self.held[batch.number] = [one.body for one in batch.publications]
            self.batches.append((batch.number, len(batch.publications)))
        model.delivered, model.dead, model.confirmed, model.refused, model.activated = [], [], [], [], []

    @invariant()
    def as_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        model, queue = self.model, self.queue
        queue.check_invariants()
        self.take_effects()
        assert queue.drain_effects() == Effects()
        assert len(queue) == len(model.ready)
        unacked = {channel: len(tags) for channel, tags in model.unacked.items() if tags}
        assert {k: v for k, v in queue.stats()["unacknowledged_by_channel"].items() if v} == unacked
        assert queue.depth == len(model.ready) + sum(unacked.values()) + len(model.dying)
        assert queue.backing.ready_bytes == sum(sent.size for sent in model.ready)
        assert queue.consumer_count == len(model.all)
        deadline = queue.next_deadline_us()
        if deadline != 0:
            assert deadline == (model.ready[0].expiry_us or None if model.ready else None)


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis_settings(max_examples=90, stateful_step_count=40, deadline=None)
