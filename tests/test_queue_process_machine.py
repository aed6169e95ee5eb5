"""A queue as its users see it, held against a model that takes messages one by one and knows nothing of runs."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.effort import times
from tests.support.process_tools import Bench, envelope
from tests.support.users_queue import EITHER, Entry, Taker, UsersQueue, body_of, place
from warren.actors.engines.errors import AccessRefusedError, UnknownTagError
from warren.actors.engines.queue.consumers import Consumer
from warren.actors.engines.queue.effects import Delivered, Effects
from warren.actors.queue.inspecting import browse, chosen_ids
from warren.storage.settings import Settings

CHANNELS = ["red", "blue"]
ENVELOPES = {persistent: envelope(persistent=persistent) for persistent in (True, False)}


@attrs.define(eq=False)
class Sent(Entry):
    """One message."""

    persistent: bool

    @property
    def body(self) -> bytes:
        return body_of(self.order, self.size)


Went = tuple[str | None, str, int, bytes, frozenset[bool]]
"""To which consumer and channel, its tag and body, and what its redelivered flag may say."""


@attrs.define(eq=False)
class Model(UsersQueue):
    """What the queue answers collects in ``delivered``, ``dead``, ``confirmed`` and ``refused``."""

    delivered: list[Went] = attrs.Factory(list)
    dead: list[tuple[str, bytes]] = attrs.Factory(list)
    confirmed: list[int] = attrs.Factory(list)
    waiting: list[tuple[int, int]] = attrs.Factory(list)
    """Level and token of what waits for a sync."""
    refused: list[int] = attrs.Factory(list)

    def bury(self, entry: Sent, reason: str, *, refused: bool = False) -> None:
        self.dead.append((self.shown(reason, entry.expiry_us), entry.body))

    def shown(self, reason: str, expiry_us: int) -> str:
        """Within a batch, a message that has expired and exceeds a limit may die of either."""
        return "either" if reason != "rejected" and 0 < expiry_us <= self.clock() else reason

    def handed(self, taker: Taker, tag: int, entry: Sent, flag: frozenset[bool]) -> None:
        self.delivered.append((taker.tag, taker.channel, tag, entry.body, flag))

    def publish(self, batch: list[Sent], token: int | None) -> None:
        taken = self.take(batch)
        if token is None:
            return
        if len(taken) < len(batch):
            self.refused.append(token)
        elif batch[0].persistent and not self.discards:
            self.waiting.append((batch[0].level, token))
        else:
            self.confirmed.append(token)

    def stop(self) -> None:
        """Everything pending comes back, what was transient is gone, and all users are gone."""
        back = self.held + self.dying
        self.ready = sorted((sent for sent in self.ready + back if sent.persistent), key=place)
        self.dying = []
        self.starting = True
        self.forget_users()
        for sent in self.ready:
            sent.redelivered = EITHER


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
        self.model = Model(arguments, lambda: self.bench.now_us)
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
        expiry_us, level = self.model.expiry_of(expiration_ms), self.model.level_of(priority)
        batch = []
        for size in sizes:
            self.number += 1
            batch.append(Sent(self.number, level, len(body_of(self.number, size)), expiry_us, persistent))
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
        self.queue.deliveries.deliver()

    @rule(channel=st.sampled_from(CHANNELS), count=st.integers(1, 8), ack_required=st.booleans())
    def get(self, channel: str, count: int, ack_required: bool) -> None:
        got = self.model.get(channel, count, ack_required=ack_required)
        expected: list[Went] = [(None, channel, tag, sent.body, flag) for tag, sent, flag in got]
        self.compare(self.queue.deliveries.get_many(channel, count, ack_required=ack_required), expected)

    @precondition(lambda self: self.model.ready)
    @rule(channel=st.sampled_from(CHANNELS), data=st.data(), keep=st.booleans())
    def take(self, channel: str, data: st.DataObject, keep: bool) -> None:
        """Some from wherever they stand."""
        chosen = data.draw(st.lists(st.sampled_from(self.model.ready), min_size=1, max_size=4, unique_by=place))
        bodies = {sent.body for sent in chosen}
        wanted = chosen_ids(one.id for one in browse(self.queue, 1 << 20, None) if one.browsed.message.body in bodies)
        if not keep:
            assert self.queue.deliveries.remove(wanted) == self.model.drop(chosen)
            return
        got = self.model.pick(channel, chosen)
        expected: list[Went] = [(None, channel, tag, sent.body, flag) for tag, sent, flag in got]
        self.compare(self.queue.deliveries.get_many(channel, 0, ack_required=True, chosen=wanted), expected)

    @rule(
        channel=st.sampled_from(CHANNELS),
        prefetch=st.integers(0, 3),
        ack_required=st.booleans(),
        priority=st.integers(-1, 1),
        exclusive=st.sampled_from([False, False, False, True]),
    )
    def add_consumer(self, channel: str, prefetch: int, ack_required: bool, priority: int, exclusive: bool) -> None:
        self.consumers += 1
        tag = f"t{self.consumers}"
        consumer = Consumer(channel, tag, prefetch, ack_required, exclusive=exclusive, priority=priority)
        if self.model.single:
            refused = exclusive
        else:
            refused = self.model.active is not None or (exclusive and bool(self.model.takers))
        if refused:
            with pytest.raises(AccessRefusedError):
                self.queue.consumers.add(consumer)
        else:
            self.model.add(Taker(tag, channel, prefetch, priority, ack_required, exclusive))
            self.queue.consumers.add(consumer)

    @precondition(lambda self: self.model.takers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        taker = data.draw(st.sampled_from(self.model.takers))
        self.model.cancel([taker])
        assert self.queue.cancel_consumer(taker.tag)

    @rule(channel=st.sampled_from(CHANNELS), rarely=st.integers(0, 1))
    def close_channel(self, channel: str, rarely: int) -> None:
        if rarely:
            return
        came_back = self.model.close_channel(channel)
        assert self.queue.settlements.close_channel(channel) == came_back

    @rule(channel=st.sampled_from(CHANNELS), data=st.data(), kind=st.sampled_from(["ack", "requeue", "reject"]))
    def settle(self, channel: str, data: st.DataObject, kind: str) -> None:
        there = sorted(self.model.unacked.get(channel, {}))
        if not there:
            never_given = self.model.next_tag[channel] + 1
            self.queue.settlements.ack(channel, [range(1, never_given)])  # settled already, which has no effect
            with pytest.raises(UnknownTagError):
                self.queue.settlements.ack(channel, [range(never_given, never_given + 1)])
            return
        up_to = data.draw(st.sampled_from([None, 0, *there]))
        if up_to is None:
            tags = data.draw(st.lists(st.sampled_from(there), unique=True, min_size=1))
        else:
            tags = [tag for tag in there if tag <= up_to or up_to == 0]
        self.model.settle(channel, tags, kind)
        given: Any = [range(tag, tag + 1) for tag in tags]
        if kind == "ack":
            self.queue.settlements.ack(channel, given) if up_to is None else self.queue.settlements.ack_up_to(
                channel, up_to
            )
            return
        requeue = kind == "requeue"
        if up_to is None:
            self.queue.settlements.nack(channel, given, requeue=requeue)
        else:
            self.queue.settlements.nack_up_to(channel, up_to, requeue=requeue)

    @rule(rarely=st.integers(0, 3))
    def purge(self, rarely: int) -> None:
        if rarely:
            return
        assert self.queue.purge() == self.model.purge()

    # ── what happens around it ──────────────────────────────────────────────────────────────────────────────────

    @rule(milliseconds=st.sampled_from([1, 5, 30]), tick=st.booleans())
    def time_goes_by(self, milliseconds: int, tick: bool) -> None:
        self.bench.later(milliseconds)
        if tick:
            self.model.shed()
            self.model.expire()
            self.queue.settlements.tick()

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
        self.queue.expiry.safe(number[0])

    @rule()
    def hibernate(self) -> None:
        tried = not (any(self.model.unacked.values()) or self.model.dying or self.batches or self.model.waiting)
        if tried and not self.queue.backing.asleep:
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
        self.queue.backing.set_ram_duration_target(duration)

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
        model, effects = self.model, self.queue.context.drain_effects()
        self.compare(effects.deliveries, model.delivered)
        letters = [
            (model.shown(one.headers["x-death"][0]["reason"], self.expiries[one.body]), one.body)
            for batch in effects.dead_letters
            for one in batch.publications
        ]
        assert letters == model.dead
        assert sorted(effects.confirmed) == sorted(model.confirmed)
        assert effects.refused == model.refused
        self.held = getattr(self, "held", {})
        for batch in effects.dead_letters:
            self.held[batch.number] = [one.body for one in batch.publications]
            self.batches.append((batch.number, len(batch.publications)))
        model.delivered, model.dead, model.confirmed, model.refused = [], [], [], []

    @invariant()
    def as_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        model, queue = self.model, self.queue
        queue.check_invariants()
        self.take_effects()
        assert queue.context.drain_effects() == Effects()
        assert len(queue.backing) == len(model.ready)
        unacked = {channel: len(tags) for channel, tags in model.unacked.items() if tags}
        assert {k: v for k, v in queue.stats()["unacknowledged_by_channel"].items() if v} == unacked
        assert queue.backing.depth == len(model.ready) + sum(unacked.values()) + len(model.dying)
        assert queue.backing.ready_bytes == sum(sent.size for sent in model.ready)
        assert len(queue.consumers) == len(model.takers)
        active = queue.consumers.active
        assert (active and active.consumer.tag) == (model.active and model.active.tag)
        deadline = queue.next_deadline_us()
        if deadline != 0:
            assert deadline == (model.ready[0].expiry_us or None if model.ready else None)


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis_settings(max_examples=times(90), stateful_step_count=40)
