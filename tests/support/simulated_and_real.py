"""The real runtime and a simulated node side by side: the same is done to both at the same moments.

The runtime has a clock that stands still and a pool without threads (:func:`tests.support.runtime_tools.hand_node`);
the simulation has a disk that takes no time; both write to counted files. :meth:`Pair.compare` holds their states to
each other: everything that an engine knows about its messages, what the memory monitor has heard and says, the alarms,
the stores, the credit, and what was done to the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

import attrs

from tests.support.runtime_tools import actor_behind, hand_node
from warren import Config
from warren.actors import messages as m
from warren.actors.engines.alarms import Alarms
from warren.actors.engines.memory_monitor import MemoryMonitor
from warren.actors.engines.queue.consumers import Consumer
from warren.actors.engines.queue.effects import Delivered
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.actors.node.memory_monitor_actor import MemoryMonitorActor
from warren.actors.node.node_actor import Probes
from warren.actors.node.store_actor import MessageStoreActor
from warren.actors.queue.deliveries import Deliveries
from warren.actors.queue.intake import PublishKey
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.runtime.future import Future
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.simulation import NodeSpec, QueueSpec, Scenario
from warren.simulation.node.publication import Publication, envelope
from warren.simulation.node.simulated_node import SimulatedNode
from warren.simulation.scenarios.node_spec import INSTANT_DISK, Profile
from warren.simulation.scenarios.sizes import body
from warren.storage.counted import CountedFileSystem, DiskAccount
from warren.storage.settings import PROFILES
from warren.testing import Machine
from warren.verbs.steps import call

Outcome = Literal["ack", "requeue"]
MB: Final = 1_000_000
SMALL: Final[Mapping[str, Any]] = {
    "segment_entry_count": 32,
    "msg_store_io_batch_size": 16,
    "msg_store_credit_disc_bound": (20, 8),
    "queue_index_max_journal_entries": 200,
    "msg_store_file_size_limit": 100_000,
    "queue_explicit_gc_run_operation_threshold": 3,
    "delta_read_max": 32,
}
"""Engine settings under which a few hundred messages show what else millions do."""


class _Allocated(Machine):
    """A machine whose memory is what the node accounts for."""

    def probes(self) -> Probes:
        return attrs.evolve(super().probes(), reading=lambda context: context.allocated)


@attrs.define(eq=False)
class Token:
    """A simulated publisher's confirm."""

    outcome: str | None = None

    def __call__(self, safe: bool) -> None:
        self.outcome = "confirmed" if safe else "refused"


@attrs.define(eq=False)
class Taker:
    """A simulated consumer that keeps what it gets."""

    channel: str
    buffered: int = 0
    batches: deque[Delivered] = attrs.Factory(deque)

    def put(self, delivered: Delivered) -> None:
        self.batches.append(delivered)
        self.buffered += delivered.count


@attrs.frozen
class _Subscription:
    queue: str
    bounded: bool
    real: Deliveries
    simulated: Taker


def shape(delivered: Sequence[Delivered]) -> list[tuple[int, int, int, bool]]:
    """What a channel gets, but for ids and bodies."""
    return [(one.first_tag, one.fetched.seq_ids.start, one.count, one.fetched.redelivered) for one in delivered]


class Pair:
    """One node of each kind, with the same queues (name → arguments; ``transient``: those that are not durable)."""

    def __init__(
        self,
        queues: Mapping[str, Mapping[str, Any]],
        *,
        memory: int = 10 * MB,
        watermark: float = 0.4,
        profile: Profile = "default",
        transient: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        settings = dict(SMALL) | settings
        scenario = Scenario(
            queues=[
                QueueSpec(name=name, arguments=arguments, durable=name not in transient)
                for name, arguments in queues.items()
            ],
            node=NodeSpec(
                profile=profile, memory=memory, watermark=watermark, disk=INSTANT_DISK, settings=settings,
                wake_idle_queues=False, message_memory={},
            ),
        )  # fmt: skip
        self.simulated = SimulatedNode(scenario, check_invariants=True)
        self.simulated.calls_by_message = False  # the runtime takes a batch in one call, under any profile
        self.files = CountedFileSystem()
        machine = _Allocated(total_memory_bytes=memory)
        config = Config(engine=PROFILES[profile])
        self.real = hand_node(
            cast("Any", self.files), machine=machine, config=config, vm_memory_high_watermark=watermark, **settings
        )
        for name, arguments in queues.items():
            self.real.node.queue(name, arguments=arguments, durable=name not in transient)
        self.settle()
        self.advance(2.5)  # the runtime's first look at its memory came before there were queues
        self.files.account = DiskAccount()
        self.names = list(queues)
        self.first_id = 1
        self.confirms: list[tuple[Future, Token]] = []
        self.channels: dict[str, str] = {}
        """Channels with something unacked, and their queues."""
        self.unacked: dict[str, list[int]] = {}
        """Tags that a channel has, by channel."""
        self.subscriptions: dict[str, _Subscription] = {}
        self.deliveries = 0
        self.seen: dict[str, bool] = {}
        """What has shown itself so far in any state compared."""

    def close(self) -> None:
        self.real.node.close()

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> None:
        """Let both do what there is to do now."""
        self.real.run()
        self._simulate_until(self.real.clock.now_ns())

    def advance(self, seconds: float) -> None:
        """Let time pass for both."""
        self.real.advance(seconds)
        self._simulate_until(self.real.clock.now_ns())

    def _simulate_until(self, until_ns: int) -> None:
        env = self.simulated.time.env
        while env.peek() <= until_ns:
            env.step()
        if env.now < until_ns:
            env.run(until=until_ns)

    # ── what is done to both ────────────────────────────────────────────────────────────────────────────────────

    def actor(self, queue: str) -> QueueActor:
        return self.real.node._running.registry.vhosts["/"].queues[queue].actor

    def publish(
        self,
        queue: str,
        count: int,
        size: int,
        *,
        persistent: bool = True,
        expiration_ms: int | None = None,
        priority: int = 0,
    ) -> None:
        ids = b"".join(number.to_bytes(16, "big") for number in range(self.first_id, self.first_id + count))
        self.first_id += count
        kind, bodies, token = envelope(queue, persistent=persistent), [body(size)] * count, Token()
        confirm = self.actor(queue).intake.publish_many(
            PublishKey(kind, expiration_ms, priority), bodies, msg_ids=ids, here=False
        )
        self.confirms.append((confirm, token))
        self.simulated.queues[queue].publish(Publication(kind, ids, bodies, expiration_ms, priority, token))
        self.settle()

    def get(self, queue: str, count: int, *, ack_required: bool = True) -> int:
        """Ask for messages; returns how many came. Each such get has a channel of its own."""
        self.deliveries += 1
        channel = f"get-{self.deliveries}"
        actor = self.actor(queue)
        answer = call(actor, lambda: actor.queue_turn.get_many(channel, count, ack_required=ack_required))
        found: list[Delivered] = []
        simulated = self.simulated.queues[queue]
        simulated.tell(simulated.get, channel, count, ack_required, found.extend)
        self.settle()
        real: list[Delivered] = answer.get()
        assert shape(real) == shape(found)
        got = sum(one.count for one in found)
        if ack_required and got:
            self.channels[channel] = queue
            self.unacked[channel] = [tag for one in found for tag in one.tags]
        return got

    def subscribe(self, queue: str, prefetch: int) -> None:
        """Let a consumer in, with a channel of its own; :meth:`take` takes what it has got."""
        self.deliveries += 1
        channel = f"channel-{self.deliveries}"
        consumer = Consumer(channel, channel, prefetch=prefetch)
        actor = self.actor(queue)
        real, simulated = Deliveries(channel, actor.intake), Taker(channel)
        actor.actor_ref.tell(m.Subscribe(consumer, real))
        there = self.simulated.queues[queue]
        there.tell(there.subscribe, consumer, simulated)
        self.subscriptions[channel] = _Subscription(queue, bool(prefetch), real, simulated)
        self.channels[channel] = queue
        self.unacked[channel] = []
        self.settle()

    def take(self) -> int:
        """Let every consumer take what it was handed; returns how many messages that were."""
        taken = 0
        for channel, one in self.subscriptions.items():
            real, batches = one.real.drain(), list(one.simulated.batches)
            one.simulated.batches.clear()
            one.simulated.buffered = 0
            assert shape(real) == shape(batches)
            if real and not one.bounded:
                assert one.real.more is not None
                one.real.more()
                simulated = self.simulated.queues[one.queue]
                simulated.tell(simulated.more)
            self.unacked[channel] += [tag for batch in batches for tag in batch.tags]
            taken += sum(batch.count for batch in batches)
        self.settle()
        return taken

    def settle_tags(self, channel: str, tags: Sequence[int], outcome: Outcome) -> None:
        """Ack some of what a channel has, or give it back."""
        if not tags:
            return
        ranges = [range(tag, tag + 1) for tag in tags]
        queue = self.channels[channel]
        actor = self.actor(queue)
        actor.call_soon(lambda: actor.queue_turn.settle(channel, outcome, ranges))
        simulated = self.simulated.queues[queue]
        simulated.tell(simulated.settle, channel, ranges, outcome == "ack")
        gone = set(tags)
        self.unacked[channel] = [tag for tag in self.unacked[channel] if tag not in gone]
        self.settle()

    def settle_all(self, outcome: Outcome = "ack") -> None:
        """Ack, or give back, everything that is unacked."""
        for channel, tags in list(self.unacked.items()):
            self.settle_tags(channel, tags, outcome)

    def close_channel(self, channel: str) -> None:
        """A channel goes, and what it has comes back."""
        queue = self.channels.pop(channel)
        del self.unacked[channel]
        self.subscriptions.pop(channel, None)
        actor = self.actor(queue)
        actor.call_soon(lambda: actor.consumers.close_channel(channel))
        simulated = self.simulated.queues[queue]
        simulated.tell(simulated.close_channel, channel, channel)
        self.settle()

    def purge(self, queue: str) -> None:
        actor = self.actor(queue)
        actor.call_soon(actor.purge)
        simulated = self.simulated.queues[queue]
        simulated.tell(simulated.purge)
        self.settle()

    # ── what both are like ──────────────────────────────────────────────────────────────────────────────────────

    def compare(self) -> dict[str, dict[str, Any]]:
        """Hold both to each other; returns the states of the queues."""
        states = {}
        for name in self.names:
            actor, queue = self.actor(name), self.simulated.queues[name]
            real = state_of(actor.process) | {
                "weight": actor.actor_inbox.weight,
                "bytes accounted": self.real.node._running._context.allocated.by_owner.get(actor.actor_urn),
                "credit": [(store.credit.credit, store.credit.blocked) for store in actor._stores],
                "tickets": [(store.written_ticket, store.synced_ticket) for store in actor._stores],
            }
            simulated = state_of(queue.process) | {
                "weight": queue.weight,
                "bytes accounted": self.simulated.allocated.by_owner.get(name),
                "credit": [(link.credit.credit, link.credit.blocked) for link in queue._links],
                "tickets": [(link.written_ticket, link.synced_ticket) for link in queue._links],
            }
            _equal(name, real, simulated)
            states[name] = simulated
        _equal("node", self._real_node(), self._simulated_node())
        real_confirms = ["waits" if not c.done else "refused" if c.error else "confirmed" for c, _ in self.confirms]
        assert real_confirms == [token.outcome or "waits" for _, token in self.confirms]
        self._note(states)
        return states

    def _note(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        for state in states.values():
            for name in ("q1", "q2", "q3", "q4", "delta count", "disk_pending", "disk_read_count"):
                if any(level[name] for level in state["levels"].values()):
                    self.seen[name] = True
            self.seen["target"] = self.seen.get("target", False) or any(
                level["target_ram_count"] is not None for level in state["levels"].values()
            )
            self.seen["asleep"] = self.seen.get("asleep", False) or (state["asleep"] and state["len"] > 0)
        if self.simulated.alarms.active:
            self.seen["alarm"] = True

    def _real_node(self) -> dict[str, Any]:
        monitor: MemoryMonitorActor = actor_behind(self.real.node._running._context.monitor)
        vhost = self.real.node._running.registry.vhosts["/"]
        stores: list[MessageStoreActor] = [actor_behind(ref) for ref in (vhost.persistent, vhost.transient)]
        numbers = {self.actor(name).actor_ref: name for name in self.names}
        return {
            "monitor": _monitor(monitor._monitor, numbers),
            "used": monitor._used_bytes,
            "alarms": _alarms(monitor._alarms),
            "stores": [actor.store.status() for actor in stores],
            "disk": attrs.asdict(self.files.account),
        }

    def _simulated_node(self) -> dict[str, Any]:
        node, total = self.simulated, DiskAccount()
        for queue in node.queues.values():
            total.add(queue.disk.account)
        for store in (node.persistent, node.transient):
            total.add(store.disk.account)
        return {
            "monitor": _monitor(node.monitor, {queue: name for name, queue in node.queues.items()}),
            "used": node.used_bytes,
            "alarms": _alarms(node.alarms),
            "stores": [store.store.status() for store in (node.persistent, node.transient)],
            "disk": attrs.asdict(total),
        }


def _equal(what: str, real: Mapping[str, Any], simulated: Mapping[str, Any]) -> None:
    if real != simulated:
        lines = [
            f"{key}: {real.get(key)!r} in the runtime, {simulated.get(key)!r} simulated"
            for key in real
            if real.get(key) != simulated.get(key)
        ]
        raise AssertionError(f"{what}\n" + "\n".join(lines))


def _monitor(monitor: MemoryMonitor, names: Mapping[Any, str]) -> dict[str, Any]:
    return {
        "ratio": monitor.ratio,
        "desired": monitor.desired_duration,
        "sum": monitor.queue_duration_sum,
        "count": monitor.queue_duration_count,
        "accounts": {names[queue]: attrs.astuple(account) for queue, account in monitor._accounts.items()},
        "pageable": {names[queue] for queue in monitor._pageable},
    }


def _alarms(alarms: Alarms) -> list[str]:
    return sorted(alarms.active)


def state_of(process: QueueProcess) -> dict[str, Any]:
    """All that a queue's engine knows, but for ids and bodies."""
    return {
        "levels": {number: level_of(level) for number, level in process.backing.awake()},
        "asleep": process.backing.asleep,
        "lengths": {number: process.backing.length_of(number) for number in process.backing.numbers},
        "len": len(process.backing),
        "depth": process.backing.depth,
        "unacked": process.consumers.unacked,
        "ram_duration": process.backing._duration_s,
        "expiring": process.expiry.expiring,
    }


_PLAIN: Final = (
    "length", "bytes", "unacked_bytes", "persistent_count", "persistent_bytes", "ram_msg_count", "ram_ack_count",
    "ram_bytes", "ram_msg_count_prev", "ram_ack_count_prev", "target_ram_count", "next_seq_id", "mode", "waiting_bump",
    "next_deliver_seq_id", "delta_transient_bytes", "disk_read_count", "disk_write_count", "calls_since_reduce",
)  # fmt: skip


def level_of(queue: VariableQueue) -> dict[str, Any]:
    """The state of one engine."""
    s = queue.state
    state = {name: getattr(s, name) for name in _PLAIN}
    state |= {name: len(getattr(s, name)) for name in ("q1", "q2", "q3", "q4")}
    state |= {name: len(getattr(s, name)) for name in ("ram_pending", "disk_pending", "index_pending")}
    state |= {"delta start": s.delta.start, "delta count": s.delta.count, "delta end": s.delta.end}
    state["rates"] = attrs.asdict(s.rates)
    return state
