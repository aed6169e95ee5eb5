"""A whole node against a model of it, whatever happens in whatever order, stops, kills and power losses included.

Four queues with arguments that each example draws, one for dead letters, exchanges of every type; publishers, gets,
consumers that come and go; a clock that is turned by hand. Everything runs in the test's own thread. After a step all
actors have come to rest, and the node holds what the model holds (:mod:`tests.support.runtime_model`), in the same
order, with the same flags; before a kill some steps are only begun: the actors get a limited number of turns, or the
disk strikes at the n-th operation. Then the node is opened again, its promises are checked, and it goes on from what
was found.

A deeper run: ``WARREN_EFFORT=nightly pytest tests/test_runtime_machine.py``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.effort import times
from tests.support.runtime_model import Copy, Found, Key, Message, NodeModel, NodeQueue, number_of
from tests.support.runtime_tools import HandNode, hand_node
from tests.support.users_queue import Taker
from warren import Consumer, Delivery, Queue
from warren.actors.clock import HandClock
from warren.actors.queue.inspecting import BrowsedMessage
from warren.actors.runtime.future import Confirm
from warren.errors import PublishRefusedError
from warren.storage.errors import WarrenError
from warren.storage.faults import SimulatedCrash
from warren.storage.memory import MemoryFileSystem
from warren.testing import GIB, Machine
from warren.values.messages import ReceivedMessage
from warren.verbs.steps import run

NAMES = ("a", "b", "c", "d")
DEAD = "dead"
EXCHANGES = {"fan": "fanout", "direct": "direct", "topic": "topic"}
KEYS = ("x", "x.y", "y")
PATTERNS = ("x", "x.y", "*.y", "x.#", "#")

SMALL: dict[str, Any] = {
    "segment_entry_count": 8,
    "queue_index_max_journal_entries": 30,
    "queue_index_embed_msgs_below": 100,
    "msg_store_io_batch_size": 3,
    "msg_store_credit_disc_bound": (6, 2),
    "msg_store_file_size_limit": 2500,
}

names = st.sampled_from([*NAMES, *NAMES, DEAD])
some_names = st.lists(names, min_size=2, max_size=3, unique=True)
shapes = st.one_of(
    st.lists(st.sampled_from([8, 8, 60, 300]), min_size=1, max_size=4),
    st.tuples(st.sampled_from([8, 90, 300]), st.sampled_from([9, 20])).map(lambda shape: [shape[0]] * shape[1]),
)
End = Literal["ack", "requeue", "reject"] | None
ends: st.SearchStrategy[list[End]] = st.lists(
    st.sampled_from(["ack", "ack", "ack", "requeue", "reject", None]), min_size=2, max_size=6
)
mostly_true = st.sampled_from([True, True, True, False])
seeds = st.integers(min_value=0, max_value=1 << 32)


@st.composite
def declarations(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """How a queue is declared. Times to live differ from queue to queue, so that no two expire at one moment."""
    arguments: dict[str, Any] = {}
    kind = draw(st.sampled_from(["plain", "plain", "limited", "priorities", "single"]))
    if kind == "limited":
        arguments["x-max-length"] = draw(st.integers(0, 6))
        arguments["x-overflow"] = draw(st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]))
    elif kind == "priorities":
        arguments["x-max-priority"] = 2
    elif kind == "single":
        arguments["x-single-active-consumer"] = True
    if draw(st.sampled_from([True, False, False])):
        arguments["x-message-ttl"] = draw(st.sampled_from([0, 400, 3000])) + number
    if draw(st.sampled_from([True, False, False])):
        arguments["x-queue-mode"] = "lazy"
    target = draw(st.sampled_from([None, DEAD, NAMES[(number + 1) % len(NAMES)], "graves"]))
    if target == "graves":
        arguments["x-dead-letter-exchange"] = "graves"
    elif target is not None:
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    return {
        "durable": draw(mostly_true),
        "auto_delete": draw(st.sampled_from([False, False, False, True])),
        "arguments": arguments,
    }


@attrs.define(eq=False)
class Held:
    """A delivery, and what the model has of it."""

    queue: str
    channel: str
    tag: int
    delivery: Delivery


class NodeMachine(RuleBasedStateMachine):
    sync: ClassVar[str]

    # ── beginning ───────────────────────────────────────────────────────────────────────────────────────────────

    @initialize(
        declared=st.tuples(*(declarations(number) for number in range(len(NAMES)))), used=st.sampled_from([0, 0.7])
    )
    def begin(self, declared: tuple[dict[str, Any], ...], used: float) -> None:
        self.declared = dict(zip(NAMES, declared, strict=True)) | {
            DEAD: {"durable": True, "auto_delete": False, "arguments": {}}
        }
        self.sent = self.numbers = self.openings = 0
        self.clock = HandClock()
        self.machine = Machine(used_bytes=int(used * 4 * GIB))
        self.model = NodeModel(self.clock.wall_us(), types=EXCHANGES | {"graves": "fanout"})
        self.start(MemoryFileSystem(random.Random(0)))
        for name, kind in self.model.types.items():
            self.node.exchange(name, kind)
        self.see_to_queues()
        self.bind_graves()
        self.run()

    def start(self, files: MemoryFileSystem) -> None:
        self.clock.close()
        self.hand = self.opened(files, self.clock)
        self.handles: dict[str, Queue] = {}
        self.consumers: list[tuple[str, Taker, Consumer]] = []
        self.held: list[Held] = []
        self.confirms: list[tuple[Confirm, list[Copy], bool]] = []

    def opened(self, files: MemoryFileSystem, clock: HandClock) -> HandNode:
        self.openings += 1  # other ids each time
        return hand_node(
            files, clock=clock, machine=self.machine, seed=self.openings, sync=self.sync, attach=False, **SMALL
        )

    def see_to_queues(self) -> None:
        """Declare what is not there."""
        for name, declared in self.declared.items():
            if name not in self.handles or name not in self.model.queues:
                self.handles[name] = self.node.queue(name, **declared)
            if name not in self.model.queues:
                self.model.declare(name, **declared)

    def bind_graves(self) -> None:
        """Dead letters that are for an exchange go to two queues; never to one that has died in them."""
        self.node.bind(DEAD, "graves")
        self.model.bindings.add(("graves", DEAD, ""))

    @property
    def node(self) -> Any:
        return self.hand.node

    def run(self) -> None:
        """Let everything come to rest; in a step that ends in a crash, that is left to the crash."""
        if not self.model.loose:
            self.hand.run()
        self.model.run()
        gone = set(self.handles) - set(self.model.queues)
        if gone and not self.model.loose:
            self.held = [held for held in self.held if held.queue not in gone]
            self.consumers = [one for one in self.consumers if one[0] not in gone]
            self.see_to_queues()
            self.hand.run()

    def both(self, name: str) -> tuple[Queue, NodeQueue]:
        return self.handles[name], self.model.queues[name]

    def tick(self) -> None:
        """No two publishes at one moment."""
        if not self.model.loose:
            self.hand.advance(1e-6)
        else:
            self.clock.advance(1e-6)
        self.model.advance(1)

    # ── messages in ─────────────────────────────────────────────────────────────────────────────────────────────

    def messages(self, sizes: list[int], persistent: bool, priority: int) -> list[Message]:
        first, self.sent = self.sent, self.sent + len(sizes)
        numbers = range(first, self.sent)
        return [
            Message(number, max(size, len(b"<%d>" % number)), persistent, priority)
            for number, size in zip(numbers, sizes, strict=True)
        ]

    def hand_to(self, targets: list[str], messages: list[Message], expiration_ms: int | None) -> list[list[Copy]]:
        """What the model does of a publish; the copies, queue by queue."""
        taken: list[list[Copy]] = []
        for name in targets:
            self.model.tell(name, lambda queue: taken.append(queue.publish(messages, expiration_ms)))
        self.run()
        return taken

    def note(self, confirm: Confirm, taken: list[list[Copy]], count: int) -> None:
        self.confirms.append(
            (confirm, [copy for part in taken for copy in part], any(len(part) < count for part in taken))
        )

    @rule(
        name=names,
        sizes=shapes,
        persistent=mostly_true,
        expiration=st.sampled_from([None, None, None, 0.0, 0.5, 2.0]),
        priority=st.integers(0, 3),
        singly=st.booleans(),
    )
    def publish(
        self, *, name: str, sizes: list[int], persistent: bool, expiration: float | None, priority: int, singly: bool
    ) -> None:
        for part in [[size] for size in sizes] if singly else [sizes]:
            self.tick()
            messages = self.messages(part, persistent, priority)
            properties: dict[str, Any] = {"persistent": persistent, "expiration": expiration, "priority": priority}
            if singly:
                confirm = self.handles[name].publish(messages[0].body, **properties)
            else:
                confirm = self.handles[name].publish_many([message.body for message in messages], **properties)
            expiration_ms = None if expiration is None else round(expiration * 1000)
            self.note(confirm, self.hand_to([name], messages, expiration_ms), len(messages))

    @rule(where=some_names, size=st.sampled_from([8, 300]), persistent=mostly_true)
    def publish_to(self, where: list[str], size: int, persistent: bool) -> None:
        self.tick()
        messages = self.messages([size], persistent, 0)
        confirm = self.node.publish_to(where, messages[0].body, persistent=persistent)
        self.note(confirm, self.hand_to(where, messages, None), 1)

    @rule(exchange=st.sampled_from([*EXCHANGES]), key=st.sampled_from(KEYS), sizes=shapes, persistent=mostly_true)
    def publish_by_exchange(self, exchange: str, key: str, sizes: list[int], persistent: bool) -> None:
        self.tick()
        messages = self.messages(sizes, persistent, 0)
        routed = set(self.model.route(exchange, key))
        vhost = self.node._running.registry.vhost("/")
        targets = list(vhost.definitions.routing.route(exchange, key, None))
        assert set(targets) == routed, "the order is the node's affair"
        bodies = [message.body for message in messages]
        confirm = self.node.exchange(exchange).publish_many(bodies, key, persistent=persistent)
        self.note(confirm, self.hand_to(targets, messages, None), len(messages))

    @rule(
        name=names,
        exchange=st.sampled_from([*EXCHANGES]),
        keys=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2, unique=True),
        there=mostly_true,
    )
    def bind(self, name: str, exchange: str, keys: list[str], there: bool) -> None:
        for key in keys:
            binding = (exchange, name, "" if exchange == "fan" else key)
            if there:
                self.node.bind(name, exchange, binding[2])
                self.model.bindings.add(binding)
            elif binding in self.model.bindings:
                self.node.unbind(name, exchange, binding[2])
                self.model.bindings.discard(binding)

    # ── messages out ────────────────────────────────────────────────────────────────────────────────────────────

    def compare(self, given: Sequence[Delivery], expected: list[tuple[int, Copy, frozenset[bool]]]) -> None:
        assert [one.body for one in given] == [copy.message.body for _, copy, _ in expected]
        assert [one.delivery_tag for one in given] == [tag for tag, _, _ in expected]
        for one, (_, copy, flag) in zip(given, expected, strict=True):
            assert key_of(one) == copy.key
            assert one.persistent == copy.message.persistent
            assert one.redelivered in flag, f"{copy.key} says redelivered={one.redelivered}"

    @rule(name=names, count=st.sampled_from([1, 2, 7, 30]), auto_ack=st.sampled_from([False, False, True]))
    def get(self, name: str, count: int, auto_ack: bool) -> None:
        self.tick()
        queue, _ = self.both(name)
        expected: list[tuple[int, Copy, frozenset[bool]]] = []

        def fetch(model: NodeQueue) -> None:
            got = model.get("get", count, ack_required=True)
            if auto_ack and got:
                model.settle("get", [tag for tag, _, _ in got], "ack")
                got = [(0, copy, flag) for _, copy, flag in got]
            expected.extend(got)

        self.model.tell(name, fetch)
        if self.model.loose:
            self.model.run()
        given = queue.get_many(count, auto_ack=auto_ack)
        self.run()
        if not self.model.loose:
            self.compare(given, expected)
        self.held += [Held(name, "get", one.delivery_tag, one) for one in given if not auto_ack]

    @rule(name=names, persistent=mostly_true, ends=ends, data=st.data())
    def come_and_go(self, name: str, persistent: bool, ends: list[End], data: st.DataObject) -> None:
        self.tick()
        self.held += self.fetch_each(name, ends, data, persistent=persistent)
        self.run()

    @rule(name=names, ends=ends, data=st.data())
    def get_one_by_one(self, name: str, ends: list[End], data: st.DataObject) -> None:
        self.tick()
        self.held += self.fetch_each(name, ends, data)
        self.run()

    def fetch_each(
        self, name: str, ends: list[End], data: st.DataObject, *, persistent: bool | None = None
    ) -> list[Held]:
        """Fetch messages one by one, and settle some, while the queue has no turn of its own; ``persistent``: publish
        each before."""
        held: list[Held] = []
        for end in ends:
            expected: list[tuple[int, Copy, frozenset[bool]]] = []
            if persistent is not None:
                messages, taken = self.messages([8], persistent, 0), list[list[Copy]]()
                self.model.tell(name, lambda model: taken.append(model.publish(messages, None)))  # noqa: B023
                self.model.run()
            self.model.tell(name, lambda model: expected.extend(model.get("get", 1, ack_required=True)))  # noqa: B023
            self.model.run()
            if persistent is not None:
                self.note(self.handles[name].publish(messages[0].body, persistent=persistent), taken, 1)
            given = self.handles[name].get_many(1)
            if not self.model.loose:
                self.compare(given, expected)
            held += [Held(name, "get", one.delivery_tag, one) for one in given]
            if held and end is not None:
                settled = held.pop(data.draw(st.integers(0, len(held) - 1)))
                self.settle_held([settled], end, settled, 0)
        return held

    @rule(
        name=names, prefetch=st.sampled_from([0, 1, 2, 5]), auto_ack=st.booleans(), priority=st.sampled_from([0, 0, 1])
    )
    def consume(self, name: str, prefetch: int, auto_ack: bool, priority: int) -> None:
        self.tick()
        self.numbers += 1
        queue, _ = self.both(name)
        tag = f"t{self.numbers}"
        consumer = queue.consume(prefetch, auto_ack=auto_ack, priority=priority, tag=tag)
        taker = Taker(tag, tag, prefetch, priority)
        self.model.tell(name, lambda model: model.add(taker))
        self.consumers.append((name, taker, consumer))
        self.run()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        """A consumer looks at what it was given."""
        name, taker, consumer = data.draw(st.sampled_from(self.consumers))
        self.tick()
        expected, taker.inbox = taker.inbox, []
        tags = [tag for tag, _, _ in expected]
        if consumer._verbs.declaration.acks_unseen and tags:
            self.model.tell(name, lambda model: model.settle(taker.channel, tags, "ack"))
            expected = [(0, copy, flag) for _, copy, flag in expected]
        given: list[Delivery] = []
        while (delivery := consumer.take_now()) is not None:
            given.append(delivery)
        self.run()
        self.compare(given, expected)
        if not consumer._verbs.declaration.acks_unseen:
            self.held += [Held(name, taker.channel, one.delivery_tag, one) for one in given]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=st.sampled_from(["ack", "ack", "requeue", "reject"]), how=st.integers(0, 3))
    def settle(self, data: st.DataObject, outcome: str, how: int) -> None:
        """``how``: one; one and all before it; or some in one go."""
        chosen = data.draw(st.sampled_from(self.held))
        if how >= 2:
            like = [held for held in self.held if held.channel == chosen.channel and held.queue == chosen.queue]
            part = data.draw(st.lists(st.sampled_from(like), min_size=1, unique_by=id))
        elif how:
            tags = self.model.queues[chosen.queue].unacked[chosen.channel]
            part = [one for one in self.held if one.channel == chosen.channel and one.queue == chosen.queue]
            part = [one for one in part if one.tag <= chosen.tag]
            if len(part) < sum(tag <= chosen.tag for tag in tags):
                return  # a multiple ack is for what was looked at
        else:
            part = [chosen]
        self.tick()
        self.settle_held(part, outcome, chosen, how)
        self.run()

    def settle_held(self, part: list[Held], outcome: str, chosen: Held, how: int) -> None:
        self.held = [held for held in self.held if held not in part]
        channel, tags = chosen.channel, [held.tag for held in part]
        self.model.tell(chosen.queue, lambda queue: queue.settle(channel, tags, outcome))
        if self.model.loose:
            self.model.run()
        if how >= 2:
            deliveries = [held.delivery for held in part]
            if outcome == "ack":
                self.handles[chosen.queue].ack(deliveries)
            else:
                self.handles[chosen.queue].nack(deliveries, requeue=outcome == "requeue")
        elif outcome == "ack":
            chosen.delivery.ack(multiple=bool(how))
        else:
            chosen.delivery.nack(requeue=outcome == "requeue", multiple=bool(how))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def close_consumer(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.consumers))
        self.tick()
        name, taker, consumer = one
        self.consumers.remove(one)
        self.held = [held for held in self.held if held.channel != taker.channel]
        self.model.tell(name, lambda queue: queue.close_channel(taker.channel))
        consumer.close()
        self.run()

    @rule(name=names)
    def release(self, name: str) -> None:
        """Give back what gets have."""
        self.tick()
        queue, _ = self.both(name)
        self.held = [held for held in self.held if (held.queue, held.channel) != (name, "get")]
        counts: list[int] = []
        self.model.tell(name, lambda model: counts.append(model.close_channel("get")))
        released = queue.release()
        self.run()
        assert [released] == counts

    @rule(name=names)
    def purge(self, name: str) -> None:
        self.tick()
        queue, model = self.both(name)
        assert queue.purge() == model.purge()
        self.run()

    @rule(name=st.sampled_from(NAMES), sure=st.sampled_from([True, False, False]))
    def delete(self, name: str, sure: bool) -> None:
        self.tick()
        queue, model = self.both(name)
        if not sure and model.ready:
            with pytest.raises(WarrenError):
                queue.delete(if_empty=True)
            return
        assert queue.delete() == len(model.ready)
        self.model.delete(name)
        self.run()

    # ── time, memory, disk ──────────────────────────────────────────────────────────────────────────────────────

    @rule(seconds=st.sampled_from([0.01, 0.03, 0.2, 0.5, 1.5, 4.0, 12.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.hand.advance(seconds)
        self.model.advance(round(seconds * 1_000_000))
        self.run()
        if seconds >= 0.2:
            self.everything_is_answered()
            self.model.arrived()

    def everything_is_answered(self) -> None:
        for confirm, _, refused in self.confirms:
            assert confirm.done, "a publish was never answered"
            assert isinstance(confirm.error, PublishRefusedError) == refused
            assert refused or confirm.error is None
        self.take_confirms()

    def take_confirms(self) -> None:
        """Note what has been confirmed."""
        for confirm, copies, _ in self.confirms:
            if confirm.done and confirm.error is None:
                for copy in copies:
                    copy.confirmed = True
        self.confirms = [one for one in self.confirms if not one[0].done]

    @rule(share=st.sampled_from([0.1, 0.55, 0.7, 0.99]))
    def memory_is_used(self, share: float) -> None:
        """Below the limit, so that no publisher is blocked; above half of it queues page."""
        self.machine.used_bytes = int(share * 4 * GIB)

    @rule(name=names)
    def sync_queue(self, name: str) -> None:
        queue, model = self.both(name)
        queue.sync()
        self.run()
        self.take_confirms()
        model.safe()

    @rule(name=names, mode=st.sampled_from(["default", "lazy"]))
    def set_mode(self, name: str, mode: Any) -> None:
        queue, _ = self.both(name)
        queue.set_mode(mode)
        self.run()

    # ── stops ───────────────────────────────────────────────────────────────────────────────────────────────────

    @rule()
    def stop_and_start(self) -> None:
        self.node.close()
        for confirm, _, _ in self.confirms:
            assert confirm.done, "close waits for what was published"
        self.take_confirms()
        self.start(self.hand.files)
        for name in [name for name, queue in self.model.queues.items() if not queue.durable]:
            self.model.delete(name)
        self.model.die_again()
        found = self.found(self.hand)
        for name, queue in self.model.queues.items():
            queue.stop_cleanly(found[name])
        self.go_on()

    @rule(
        data=st.data(),
        steps=st.lists(
            st.sampled_from(["publish", "publish", "publish_to", "come_and_go", "settle", "sync", "time"]), max_size=4
        ),
        turns=st.integers(0, 12),
        strike=st.one_of(st.none(), st.none(), st.integers(0, 25)),
        torn=st.booleans(),
        power=st.booleans(),
        seed=seeds,
        again=st.one_of(st.none(), st.none(), st.integers(0, 30)),
    )
    def kill_and_start(
        self,
        *,
        data: st.DataObject,
        steps: list[str],
        turns: int,
        strike: int | None,
        torn: bool,
        power: bool,
        seed: int,
        again: int | None,
    ) -> None:
        """Begin ``steps`` and end the process within them; ``again``: and once more while it is recovering."""
        self.model.loose = True
        rng = random.Random(seed)
        if strike is not None:
            self.hand.files.crash_at(self.hand.files.operations + 1 + strike, torn=torn)
        try:
            for step in steps:
                self.begin_step(step, data)
            for _ in range(turns):
                self.hand.pool.run_one()
        except SimulatedCrash:
            pass
        self.take_confirms()
        power = power and self.sync != "os"
        files = self.hand.lose_power(rng) if power else self.hand.kill()
        if again is not None:
            files = self.kill_again(files, again, rng, power=power)
        self.model.loose = False
        self.start_after_a_crash(files)

    def begin_step(self, step: str, data: st.DataObject) -> None:
        name = data.draw(names)
        if step == "publish":
            self.begin_publish([name], data.draw(shapes), data.draw(mostly_true))
        elif step == "publish_to":
            self.begin_publish(data.draw(some_names), [data.draw(st.sampled_from([8, 300]))], data.draw(mostly_true))
        elif step == "settle" and self.held:
            chosen = data.draw(st.sampled_from(self.held))
            self.settle_held([chosen], data.draw(st.sampled_from(["ack", "requeue", "reject"])), chosen, 0)
        elif step == "come_and_go":
            self.fetch_each(
                name, data.draw(ends), data, persistent=data.draw(st.sampled_from([True, True, False, None]))
            )
        elif step == "sync":
            self.handles[name].sync()
            self.take_confirms()
        else:
            self.model.advance(30_000)
            self.clock.advance(0.03, self.hand.run)

    def begin_publish(self, targets: list[str], sizes: list[int], persistent: bool) -> None:
        self.tick()
        messages = self.messages(sizes, persistent, 0)
        taken = self.hand_to(targets, messages, None)
        bodies = [message.body for message in messages]
        if len(targets) == 1:
            confirm = self.handles[targets[0]].publish_many(bodies, persistent=persistent)
        else:
            confirm = self.node.publish_to(targets, bodies[0], persistent=persistent)
        self.note(confirm, taken, len(messages))

    def kill_again(
        self, files: MemoryFileSystem, operation: int, rng: random.Random, *, power: bool
    ) -> MemoryFileSystem:
        files.crash_at(files.operations + 1 + operation)
        hand = None
        try:
            hand = self.opened(files, HandClock(self.clock.wall_us()))
            hand.run()
        except SimulatedCrash:
            pass
        if hand is not None:
            return hand.lose_power(rng) if power else hand.kill()
        return files.after_power_loss(rng) if power else files.after_process_crash()

    def start_after_a_crash(self, files: MemoryFileSystem) -> None:
        """Recover once to see what is there, and once to go on with."""
        probe = self.opened(files.after_process_crash(), HandClock(self.clock.wall_us()))
        found = self.found(probe)
        probe.kill()
        self.start(files.after_process_crash())
        assert self.found(self.hand) == found, "a second recovery finds something else"
        for name in [name for name, queue in self.model.queues.items() if not queue.durable]:
            self.model.delete(name)
        self.model.die_again()
        self.model.die_again()
        for name, queue in self.model.queues.items():
            queue.crash(found.get(name, []))
        self.model.check_promises()
        assert self.node.failed_queues == {}
        self.go_on()

    def found(self, hand: HandNode) -> dict[str, list[Found]]:
        hand.run()
        return {
            queue.name: [found_of(one) for one in run(queue._verbs.page(1000, None))] for queue in hand.node.queues()
        }

    def go_on(self) -> None:
        self.model.now_us = self.clock.wall_us()
        self.see_to_queues()
        self.run()
        self.tick()

    # ── what holds at any time ──────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def the_queues_count_what_the_models_hold(self) -> None:
        assert self.node.failed_queues == {}
        for name, model in self.model.queues.items():
            stats = self.handles[name].stats()
            assert stats["messages_ready"] == len(model.ready), name
            assert stats["messages_unacknowledged"] >= len(model.held), name
            assert stats["messages_unacknowledged"] <= len(model.held) + len(model.dying), name
            assert stats["consumers"] == len(model.takers), name

    @rule(name=names)
    def look(self, name: str) -> None:
        queue, model = self.both(name)
        browsed = list(queue.browse())
        held, ready = model.held, [key_of(one) for one in browsed if not one.unacked]
        assert ready == [copy.key for copy in model.ready]
        dying = [copy.key for copy in model.dying]
        taken = [key_of(one) for one in browsed if one.unacked]
        for copy in held:
            taken.remove(copy.key)
        for key in taken:
            dying.remove(key)

    def teardown(self) -> None:
        if hasattr(self, "hand"):
            self.hand.kill()


def key_of(one: ReceivedMessage) -> Key:
    deaths = one.headers.get("x-death", [])
    return number_of(one.body), tuple((death["queue"], death["reason"], death["count"]) for death in deaths)


def found_of(one: BrowsedMessage) -> Found:
    browsed = one.browsed
    return Found(key_of(ReceivedMessage((browsed.term,))), browsed.unacked, browsed.properties.expiry_us)


class GroupMachine(NodeMachine):
    sync = "group"


class WrittenMachine(NodeMachine):
    sync = "os"


for _machine in (GroupMachine, WrittenMachine):
    _machine.TestCase.settings = settings(
        max_examples=times(50),
        stateful_step_count=30,
        suppress_health_check=list(HealthCheck),
    )
TestGroupedSyncs = GroupMachine.TestCase
TestNoSyncs = WrittenMachine.TestCase
