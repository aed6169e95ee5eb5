"""Messages with keys against a model, through stops, kills and power losses, with a clock that is turned by hand.

The model knows the holder of each key. A key of a message that waits is taken as long as browsing finds the message; a
key with a period until its end. A crash leaves open what was not reported: then either answer is right, and the model
learns it.

A deeper run: ``WARREN_EFFORT=nightly pytest tests/test_unique_machine.py``.
"""

from __future__ import annotations

import random
from typing import Any

import attrs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.effort import times
from tests.support.runtime_tools import HandNode, hand_node
from warren import Delivery, Queue
from warren.actors.clock import HandClock
from warren.actors.runtime.future import Confirm
from warren.storage.memory import MemoryFileSystem

SMALL: dict[str, Any] = {
    "segment_entry_count": 8,
    "queue_index_max_journal_entries": 20,
    "queue_index_embed_msgs_below": 100,
    "msg_store_io_batch_size": 3,
    "target_ram_count_max": 6,
}
KEYS = [f"key {number}" for number in range(7)]
keys = st.sampled_from(KEYS)
periods = st.sampled_from([None, None, 3.0, 30.0])
seeds = st.integers(min_value=0, max_value=1 << 32)
kinds = st.sampled_from(
    [
        {},
        {},
        {"x-max-priority": 2},
        {"x-max-length": 4},
        {"x-message-ttl": 9000},
        {"x-message-deduplication": True},
        {"x-queue-mode": "lazy"},
    ]
)


@attrs.define
class Holder:
    """The holder of a key."""

    body: bytes
    until_us: int | None
    """``None``: while it waits."""
    confirm: Confirm | None
    """``None``: its process died before the confirm."""
    certain: bool = True
    """False if a crash has left that open."""
    acked: bool = False
    expires_us: int | None = None


class UniqueMachine(RuleBasedStateMachine):
    """One queue."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.number = 0
        self.holders: dict[str, Holder] = {}
        self.held: list[Delivery] = []
        self.arguments: dict[str, Any] = {}
        self.scene: HandNode

    @initialize(arguments=kinds, seed=seeds, sync=st.sampled_from(["os", "group", "always"]))
    def open(self, arguments: dict[str, Any], seed: int, sync: str) -> None:
        self.arguments, self.sync_mode = arguments, sync
        self.begin(MemoryFileSystem(random.Random(seed)), seed)

    def begin(self, files: MemoryFileSystem, seed: int) -> None:
        self.scene = hand_node(files, seed=seed, clock=self.clock, sync=self.sync_mode, **SMALL)
        self.scene.node.queue("q", arguments=self.arguments)
        self.held = []
        self.seed = seed

    @property
    def queue(self) -> Queue:
        return self.scene.node.queue("q", passive=True)

    def there(self) -> list[bytes]:
        return [message.body for message in self.queue.browse()]

    # ── the model ───────────────────────────────────────────────────────────────────────────────────────────────

    def is_taken(self, key: str, there: list[bytes]) -> bool | None:
        """``None`` if unknown."""
        holder = self.holders.get(key)
        if holder is None:
            return False
        if holder.until_us is not None:
            if self.clock.wall_us() >= holder.until_us:
                return False
            return True if holder.certain else None
        if holder.expires_us is not None and self.clock.wall_us() >= holder.expires_us:
            return False
        return holder.body in there and (True if holder.certain else None)

    def note(self, key: str, body: bytes, period_s: float | None, confirm: Confirm, expiration_s: float | None) -> None:
        now_us = self.clock.wall_us()
        ttl_us = [round(expiration_s * 1e6)] if expiration_s is not None else []
        ttl_us += [self.arguments["x-message-ttl"] * 1000] if "x-message-ttl" in self.arguments else []
        self.holders[key] = Holder(
            body,
            None if period_s is None else now_us + round(period_s * 1e6),
            confirm,
            expires_us=now_us + min(ttl_us) if ttl_us else None,
        )

    def new_body(self, size: int) -> bytes:
        self.number += 1
        return b"%d " % self.number + b"x" * size

    # ── rules ───────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(
        key=keys,
        period_s=periods,
        size=st.sampled_from([0, 300]),
        wait=st.booleans(),
        expiration_s=st.sampled_from([None, None, 2.0]),
        priority=st.sampled_from([0, 1, 2]),
    )
    def publish(  # noqa: PLR0917
        self, key: str, period_s: float | None, size: int, wait: bool, expiration_s: float | None, priority: int
    ) -> None:
        expected, body = self.is_taken(key, self.there()), self.new_body(size)
        if self.arguments.get("x-message-deduplication") and wait:  # by the plugin's headers: then no answer says it
            headers: dict[str, Any] = {"x-deduplication-header": key}
            if period_s is not None:
                headers["x-cache-ttl"] = round(period_s * 1000)
            confirm = self.queue.publish(body, headers=headers, expiration=expiration_s)
            confirm.wait()
            duplicate = body not in self.there()
        else:
            confirm = self.queue.publish(
                body, unique=key, unique_for=period_s, expiration=expiration_s, priority=priority
            )
            self.scene.run()
            if wait or expected is None:
                confirm.wait()
            duplicate = confirm.duplicate if confirm.done else bool(expected)
        if expected is not None:
            assert duplicate is expected, key
        elif duplicate:
            self.holders[key].certain = True
        if not duplicate:
            self.note(key, body, period_s, confirm, expiration_s)

    @rule(some=st.lists(keys, min_size=2, max_size=6), period_s=periods)
    def publish_many(self, some: list[str], period_s: float | None) -> None:
        there = self.there()
        expected = [self.is_taken(key, there) for key in some]
        all_bodies = [self.new_body(5) for _ in some]
        confirm = self.queue.publish_many(all_bodies, unique=some, unique_for=period_s)
        confirm.wait()
        for index, (key, taken) in enumerate(zip(some, expected, strict=True)):
            duplicate = index in confirm.duplicates
            first = some.index(key) == index
            if not first and "x-max-length" not in self.arguments:
                assert duplicate, "it is in the batch"
            elif first and taken is not None and "x-max-length" not in self.arguments:
                assert duplicate is taken
            if duplicate and first and taken is None:
                self.holders[key].certain = True
            if not duplicate:
                self.note(key, all_bodies[index], period_s, confirm, None)

    @rule(count=st.integers(1, 4), end=st.sampled_from(["ack", "ack", "requeue", "reject", "hold"]))
    def get(self, count: int, end: str) -> None:
        for delivery in self.queue.get_many(count):
            if end == "ack":
                delivery.ack()
            elif end == "hold":
                self.held.append(delivery)
            else:
                delivery.nack(requeue=end == "requeue")
        self.scene.run()

    @precondition(lambda self: self.held)
    @rule(requeue=st.booleans())
    def settle(self, requeue: bool) -> None:
        delivery = self.held.pop(0)
        if requeue:
            delivery.nack()
        else:
            delivery.ack()
        self.scene.run()

    @rule()
    def purge(self) -> None:
        self.queue.purge()

    @rule(seconds=st.sampled_from([0.05, 1.0, 2.5, 25.0, 300.0]))
    def advance(self, seconds: float) -> None:
        self.scene.advance(seconds)

    @rule()
    def sync(self) -> None:
        self.queue.sync()

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule()
    def stop(self) -> None:
        self.scene.node.close()
        assert all(holder.confirm.done for holder in self.holders.values() if holder.confirm is not None)
        self.begin(self.scene.files, self.seed + 1)

    @rule()
    def kill(self) -> None:
        self.fell(self.scene.kill(), all_written=True)

    @precondition(lambda self: self.sync_mode != "os")  # which promises nothing for that
    @rule(seed=seeds)
    def lose_power(self, seed: int) -> None:
        self.fell(self.scene.lose_power(random.Random(seed)), all_written=False)

    def fell(self, files: MemoryFileSystem, *, all_written: bool) -> None:
        """What a crash leaves of each key."""
        told = {key for key, one in self.holders.items() if one.confirm is not None and one.confirm.done}
        self.begin(files, self.seed + 1)
        there = self.there()
        for key, holder in self.holders.items():
            if key in told:
                continue
            holder.confirm = None
            if holder.body in there:
                holder.certain = all_written and holder.certain
            elif holder.until_us is not None:
                holder.certain = False

    @invariant()
    def nothing_is_there_twice(self) -> None:
        there = self.there()
        assert len(set(there)) == len(there)

    def teardown(self) -> None:
        if hasattr(self, "scene"):
            self.scene.node.close()


UniqueMachine.TestCase.settings = settings(
    max_examples=times(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestUniqueMachine = UniqueMachine.TestCase
