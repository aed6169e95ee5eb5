"""Programs: what the users of a node do in a schedule, drawn from a seed, and what the node owes them for it.

Every message has a body of its own, ``thread-number``. What a schedule owes at its end, whatever the order:

* every confirm is settled, once; what was confirmed and not acked, purged or deleted is in its queue;
* nothing occurs twice; nothing is there that was acked, unless the queue failed, which may forget acks;
* a message is seen at most once without the flag ``redelivered``;
* a queue has the messages of each publisher in the order in which they were published;
* no actor ends but those that were made to.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final, Literal

import attrs

from tests.support.promises import Fates, Name, check_order
from warren import Queue
from warren.errors import WarrenError
from warren.handles.node import Node

QUEUES: Final = ("a", "b")
Step = tuple[Any, ...]
"""What a user does, and with what."""

SMALL: Final[dict[str, Any]] = {
    "segment_entry_count": 8,
    "queue_index_max_journal_entries": 30,
    "queue_index_embed_msgs_below": 100,
    "msg_store_io_batch_size": 3,
    "msg_store_credit_disc_bound": (6, 2),
    "msg_store_file_size_limit": 2500,
    "credit_flow_default_credit": (6, 3),
    "restart_limit": (1000, 1.0),
    "mapped_file_size_commit_log": 20_000,
    "mapped_file_size_consume_queue": 20 * 50,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
}


@attrs.frozen
class Program:
    """What a schedule does."""

    threads: int
    sync: Literal["os", "group", "always"]
    arguments: dict[str, dict[str, Any]]
    users: list[list[Step]]
    ending: str
    """``close``: the node is closed when all are through, ``kill``: its process is killed then, ``close early``: one
    user closes it."""
    patience_s: float = 0.9
    """On the clock: a thread that waits for longer was not woken."""
    shares_handles: bool = False
    """Whether all users have the same handle of a queue, so that what they publish can join; else each his own."""


def draw_step(rng: random.Random, *, with_topics: bool) -> Step:
    queue = rng.choice(QUEUES)
    kinds = ["publish"] * 6 + ["publish many"] * 3 + ["publish to", "loop publish", "loop publish"]
    kinds += ["get"] * 4 + ["consume"] * 4 + ["loop consume"] * 2 + ["get later"] * 2
    kinds += ["sync", "len", "loop len", "browse", "purge", "fail", "delete", "look", "alarm", "delayed", "stats"]
    if with_topics:
        kinds += ["append"] * 6 + ["read"] * 3 + ["transaction"]
    match kind := rng.choice(kinds):
        case "publish" | "loop publish":
            return kind, queue, rng.choice([0, 0, 0, 300]), rng.random() < 0.6
        case "publish many":
            return kind, queue, rng.choice([2, 3, 9]), rng.choice([0, 0, 300]), rng.random() < 0.6
        case "get" | "get later":
            return kind, queue, rng.choice([1, 1, 2, 5]), rng.choice(["ack", "ack", "requeue", "leave"])
        case "consume" | "loop consume":
            return kind, queue, rng.randint(1, 4), rng.choice([0, 1, 2, 10]), rng.random() < 0.3
        case "append" | "read":
            return kind, rng.randint(1, 3)
    return kind, queue


def draw(rng: random.Random) -> Program:
    """A short program: anything, or messages that are handed from some threads to others."""
    kind = rng.random()
    if kind < 0.6:
        return draw_anything(rng)
    return draw_handing_over(rng) if kind < 0.9 else draw_to_one_consumer(rng)


def draw_to_one_consumer(rng: random.Random) -> Program:
    """Publishers with one handle that do not wait, and one consumer with room for few."""
    name, counts = QUEUES[0], [rng.randint(1, 3) for _ in range(rng.randint(2, 4))]
    users: list[list[Step]] = [[("publish", name, 0, False)] * count for count in counts]
    users.append([(rng.choice(["take", "loop take"]), name, sum(counts), rng.choice([1, 2, 2, 3]), False)])
    arguments: dict[str, dict[str, Any]] = {one: {} for one in QUEUES}
    return Program(
        rng.choice([1, 2]), rng.choice(["os", "group"]), arguments, users, "close", 0.02, shares_handles=True
    )


def draw_handing_over(rng: random.Random) -> Program:
    """Publishers, and consumers that wait until they have a number of messages. No timer may be needed."""
    name, left = QUEUES[0], 0
    givers: list[list[Step]] = [[] for _ in range(rng.randint(1, 2))]
    most = rng.choice([1, 2, 4])
    for steps in givers:
        for _ in range(rng.randint(1, most)):
            kind = rng.choice(
                ["publish", "publish", "loop publish", "publish many", "sync", "len", "loop len", "alarm"]
            )
            if kind in ("publish", "loop publish"):
                steps.append((kind, name, rng.choice([0, 0, 0, 300]), rng.random() < 0.5))
                left += 1
            elif kind == "publish many":
                count = rng.choice([2, 3, 9])
                steps.append((kind, name, count, rng.choice([0, 0, 300]), rng.random() < 0.5))
                left += count
            else:
                steps.append((kind, name))
    takers: list[list[Step]] = [[] for _ in range(rng.randint(1, 2))]
    while left:
        count = rng.randint(1, min(left, 5))
        left -= count
        kind = rng.choice(["take", "take", "loop take"])
        rng.choice(takers).append((kind, name, count, rng.choice([0, 1, 2, 10]), rng.random() < 0.4))
    syncs: list[Literal["os", "group", "always"]] = ["os", "group", "group", "always"]
    sync, ending = rng.choice(syncs), rng.choice(["close", "kill"])
    return Program(rng.choice([1, 2, 2, 3]), sync, {one: {} for one in QUEUES}, givers + takers, ending, 0.02)


def draw_anything(rng: random.Random) -> Program:
    """Whatever users do."""
    with_topics = rng.random() < 0.15
    users = [
        [draw_step(rng, with_topics=with_topics) for _ in range(rng.randint(1, 5))] for _ in range(rng.randint(2, 3))
    ]
    ending = rng.choice(["close", "close", "kill", "close early"])
    if ending == "close early":
        own = rng.choice(users)
        own.insert(rng.randint(0, len(own)), ("close",))
    kinds: list[dict[str, Any]] = [{}, {}, {}, {"x-queue-mode": "lazy"}, {"x-max-length": 3, "x-overflow": "drop-head"}]
    kinds += [{"x-max-length": 2, "x-overflow": "reject-publish"}]
    arguments = {name: rng.choice(kinds) for name in QUEUES}
    return Program(rng.choice([1, 2, 2, 3]), rng.choice(["os", "group", "group", "always"]), arguments, users, ending)


@attrs.define(eq=False)
class Copies(Fates[bytes]):
    """What is known of the copies of messages in one queue."""

    seen: Counter[bytes] = attrs.Factory(Counter)
    """How often a message came without the flag."""
    limited: bool = False
    """Whether the queue may drop what was confirmed."""
    delayed: set[bytes] = attrs.Factory(set)
    _failed: bool = False

    def fail(self) -> None:
        """From now on acks may be forgotten."""
        self._failed = True
        self.ended.clear()

    def ack(self, body: bytes) -> None:
        """The ack has returned."""
        if not self._failed:
            self.ended.add(body)


def name_of(body: bytes) -> Name:
    sender, number = body.split(b" ")[0].decode().split("-")
    return sender, int(number)


@attrs.define(eq=False)
class Owed:
    """What the users of a node know, and what it owes them."""

    queues: dict[str, Copies] = attrs.Factory(lambda: defaultdict(Copies))
    is_closing: bool = False
    """Whether a thread closes the node: an ack given meanwhile has no effect and raises nothing."""
    confirms: list[tuple[Any, list[tuple[str, bytes]]]] = attrs.Factory(list)
    appended: dict[bytes, bool] = attrs.Factory(dict)
    """Whether it was confirmed."""
    read: Counter[bytes] = attrs.Factory(Counter)

    def publish(self, names: list[str], bodies: list[bytes]) -> list[tuple[str, bytes]]:
        """Before they are handed over."""
        copies = [(name, body) for name in names for body in bodies]
        for name, body in copies:
            self.queues[name].begun.add(body)
        return copies

    def handed_over(self, confirm: Any, copies: list[tuple[str, bytes]]) -> None:
        self.confirms.append((confirm, copies))

        def settled(future: Any) -> None:
            for name, body in copies:
                if future.error is None and not self.queues[name].limited:
                    self.queues[name].made.add(body)

        confirm.on_done(settled)

    def deliver(self, name: str, deliveries: list[Any]) -> None:
        copies = self.queues[name]
        for one in deliveries:
            assert one.body in copies.begun, f"{name} delivers {one.body!r}, which nobody has published"
            if not one.redelivered:
                copies.seen[one.body] += 1
                assert copies.seen[one.body] == 1, f"{name}: {one.body!r} came twice without the flag"

    def purge(self, name: str) -> None:
        """What was published until now may be gone."""
        copies = self.queues[name]
        copies.ending |= copies.begun

    def check(self, name: str, found: list[bytes]) -> None:
        """``found``: the messages in a queue when all is at rest and none is unacked."""
        copies = self.queues[name]
        copies.check(name, found)
        check_order(name, [name_of(body) for body in found if body not in copies.delayed])


@attrs.define(eq=False)
class User:
    """One user's thread."""

    number: int
    node: Node
    owed: Owed
    wait: Callable[[Callable[[], object]], object]
    """Waits until something is so, as an event loop does: without any help to the actors."""
    progress: Callable[[], None]
    machine: Any
    sent: int = 0
    queues: dict[str, Queue] = attrs.Factory(dict)
    arguments: dict[str, dict[str, Any]] = attrs.Factory(dict)
    dropped: list[Queue] = attrs.Factory(list)
    """Handles that are not used any more, and may still have messages: no garbage is collected meanwhile."""
    held: list[tuple[str, Any, str]] = attrs.Factory(list)

    def queue(self, name: str) -> Queue:
        if name not in self.queues:
            self.queues[name] = self.node.queue(name, arguments=self.arguments[name])
        return self.queues[name]

    def drop_queues(self) -> None:
        self.dropped += self.queues.values()
        self.queues.clear()

    def run(self, steps: list[Step]) -> None:
        for kind, *arguments in steps:
            try:
                getattr(self, kind.replace(" ", "_"))(*arguments)
            except WarrenError:
                self.drop_queues()
            self.progress()
        self.settle_held()
        for queue in [*self.dropped, *self.queues.values()]:
            try:
                queue.release()
            except WarrenError:
                continue
            self.progress()

    # ── in ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def bodies(self, count: int, size: int) -> list[bytes]:
        self.sent += count
        numbers = range(self.sent - count, self.sent)
        return [b"%d-%d %s" % (self.number, number, b"B" * size) for number in numbers]

    def publish(self, name: str, size: int, waits: bool) -> None:
        queue = self.queue(name)
        bodies = self.bodies(1, size)
        copies = self.owed.publish([name], bodies)
        confirm = queue.publish(bodies[0])
        self.owed.handed_over(confirm, copies)
        if waits:
            confirm.wait()

    def publish_many(self, name: str, count: int, size: int, waits: bool) -> None:
        queue = self.queue(name)
        bodies = self.bodies(count, size)
        copies = self.owed.publish([name], bodies)
        confirm = queue.publish_many(bodies)
        self.owed.handed_over(confirm, copies)
        if waits:
            confirm.wait()

    def publish_to(self, name: str) -> None:
        for one in QUEUES:
            self.queue(one)
        bodies = self.bodies(1, 0)
        copies = self.owed.publish([*QUEUES], bodies)
        self.owed.handed_over(self.node.publish_to([*QUEUES], bodies[0]), copies)

    def loop_publish(self, name: str, size: int, waits: bool) -> None:
        """As an event loop does, which runs no turns and waits without help."""
        from warren.actors.node.admission import BackpressureWait

        queue = self.queue(name)._verbs.local
        bodies = self.bodies(1, size)
        copies = self.owed.publish([name], bodies)
        admission = queue.publishing(queue.keys.plain, bodies[0], True, None)
        actors = admission.find()
        while isinstance(found := admission.attempt(actors, False), BackpressureWait):
            future = found.future
            try:
                self.wait(lambda future=future: future.done)  # type: ignore[misc]
                if hasattr(future, "waiting"):
                    found = admission.take(actors, future, False)  # type: ignore[arg-type]
                    break
            finally:
                actors[0].gate.withdraw(future)
        self.owed.handed_over(found, copies)
        if waits:
            found.hurry()
            self.wait(lambda: found.done)

    def delayed(self, name: str) -> None:
        queue = self.queue(name)
        bodies = self.bodies(1, 0)
        copies = self.owed.publish([name], bodies)
        self.owed.queues[name].delayed |= set(bodies)
        self.owed.queues[name].ending |= set(bodies)  # it may still be on its way at the end
        self.owed.handed_over(queue.publish(bodies[0], delay=0.05), copies)

    # ── out ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, name: str, count: int, end: str) -> None:
        queue = self.queue(name)
        if count == 1:
            one = queue.get()
            found = [] if one is None else [one]
        else:
            found = list(queue.get_many(count))
        self.owed.deliver(name, found)
        self.settle(name, found, end)

    def get_later(self, name: str, count: int, end: str) -> None:
        found = list(self.queue(name).get_many(count))
        self.owed.deliver(name, found)
        self.held += [(name, one, end) for one in found]

    def settle_held(self) -> None:
        held, self.held = self.held, []
        for name, one, end in held:
            try:
                self.settle(name, [one], end)
            except WarrenError:
                continue

    def settle(self, name: str, found: list[Any], end: str) -> None:
        for one in found:
            if end == "ack":
                self.owed.queues[name].ending.add(one.body)
                one.ack()
                if not self.owed.is_closing:
                    self.owed.queues[name].ack(one.body)
            elif end == "requeue":
                one.nack()

    def consume(self, name: str, count: int, prefetch: int, auto_ack: bool) -> None:
        try:
            with self.queue(name).consume(prefetch=prefetch, auto_ack=auto_ack) as consumer:
                for _ in range(count):
                    one = consumer.receive(0.03)
                    self.progress()
                    if one is None:
                        return
                    self.taken(name, one, auto_ack)
        finally:
            if auto_ack and self.owed.is_closing:  # what was handed over to it past the queue cannot go back there
                self.owed.purge(name)

    def loop_consume(self, name: str, count: int, prefetch: int, auto_ack: bool) -> None:
        """As an event loop does: it is called when there is something."""
        with self.queue(name).consume(prefetch=prefetch) as consumer:
            told: list[object] = []
            consumer.on_ready(told.append)
            for _ in range(count):
                one = consumer.take_now()
                if one is None:
                    return
                self.owed.deliver(name, [one])
                self.settle(name, [one], "ack")

    def take(self, name: str, count: int, prefetch: int, auto_ack: bool) -> None:
        """Wait for ``count`` messages, however long it takes."""
        with self.queue(name).consume(prefetch=prefetch, auto_ack=auto_ack) as consumer:
            for _ in range(count):
                one = consumer.receive()
                assert one is not None, "a consumer ended by itself"
                self.taken(name, one, auto_ack)

    def loop_take(self, name: str, count: int, prefetch: int, auto_ack: bool) -> None:
        """The same, as an event loop waits."""
        with self.queue(name).consume(prefetch=prefetch, auto_ack=auto_ack) as consumer:
            for _ in range(count):
                while (one := consumer.take_now()) is None:
                    told: list[object] = []
                    consumer.on_ready(told.append)
                    self.wait(lambda told=told: told)  # type: ignore[misc]
                self.taken(name, one, auto_ack)

    def taken(self, name: str, one: Any, auto_ack: bool) -> None:
        self.progress()
        self.owed.deliver(name, [one])
        self.settle(name, [one], "leave" if auto_ack else "ack")
        if auto_ack:
            self.owed.queues[name].ending.add(one.body)

    # ── the rest ────────────────────────────────────────────────────────────────────────────────────────────────

    def sync(self, name: str) -> None:
        self.queue(name).sync()

    def len(self, name: str) -> None:
        len(self.queue(name))

    def stats(self, name: str) -> None:
        self.queue(name).stats()

    def loop_len(self, name: str) -> None:
        """As an event loop asks."""
        from warren.actors.runtime.pooled_actor import Asked

        actor = self.queue(name)._verbs.actor
        asked = Asked(actor, actor.length)
        asked.send()
        self.wait(lambda: asked.done)
        asked.get()

    def browse(self, name: str) -> None:
        list(self.queue(name).browse())

    def purge(self, name: str) -> None:
        queue = self.queue(name)
        try:
            queue.purge()
        finally:
            self.owed.purge(name)

    def delete(self, name: str) -> None:
        queue = self.queue(name)
        try:
            queue.delete()
        finally:
            self.owed.purge(name)
        self.drop_queues()

    def fail(self, name: str) -> None:
        """The queue's actor ends by a bug; the node starts it again."""
        actor = self.queue(name)._verbs.actor
        self.owed.queues[name].fail()
        actor.actor_ref.tell(object())
        self.drop_queues()

    def look(self, name: str) -> None:
        self.node.memory()

    def alarm(self, name: str) -> None:
        """Memory is scarce for a moment."""
        running = self.node._running
        self.machine.used_bytes = self.machine.total_memory_bytes
        running.look_at_machine()
        self.machine.used_bytes = 0
        running.look_at_machine()

    def close(self) -> None:
        self.owed.is_closing = True
        self.node.close()

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, count: int) -> None:
        topic = self.node.topic("t", queues=2)
        bodies = self.bodies(count, 0)
        for body in bodies:
            self.owed.appended[body] = False
        confirm = topic.append_many(bodies, queue=0)
        confirm.wait()
        for body in bodies:
            self.owed.appended[body] = True

    def read(self, count: int) -> None:
        for record in self.node.topic("t", queues=2).read("g", max_records=count, timeout=0.05):
            assert record.body in self.owed.appended, "a record that nobody has appended"
            self.owed.read[record.body] += 1
            self.progress()

    def transaction(self, name: str) -> None:
        transaction = self.node.topic("t", queues=2).prepare(self.bodies(1, 0)[0])
        transaction.rollback().wait()
