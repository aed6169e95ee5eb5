"""A simulated node: its queues, its stores, its memory monitor and alarms, and the gate where publishers wait.

The rules are the runtime's own objects (:mod:`warren.actors.engines.memory_monitor`, ``alarms``); what the memory
monitor's actor does with them is done here in virtual time. Memory is what the scenario says a message takes in each
state (:class:`~warren.simulation.scenarios.scenario.MessageMemory`), accounted queue by queue at the end of each turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

import attrs
import numpy as np

from warren.actors.engines.alarms import AlarmEvent, Alarms, DiskMonitor, disk_limit_bytes
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.memory_monitor import MemoryMonitor
from warren.actors.engines.memory_readings import AllocatedReading, memory_limit_bytes
from warren.actors.engines.node_settings import NodeSettings
from warren.actors.node.memory_monitor_actor import ALARM_INTERVAL_MS
from warren.actors.node.queue_opening import stored_name
from warren.actors.vhost_files import VhostFiles
from warren.queue_index.index.recovery_terms import RecoveryTerms
from warren.queue_index.message.msg_ids import MsgIds
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.variable_queue import QueueFiles, VariableQueue
from warren.simulation.node.publication import NO_TIME, envelope
from warren.simulation.node.simulated_queue import SimulatedQueue
from warren.simulation.node.simulated_store import DiskTime, SimulatedStore, StoreLink
from warren.simulation.node.virtual_time import Event, VirtualTime
from warren.simulation.scenarios.node_spec import NodeSpec
from warren.simulation.scenarios.scenario import QueueSpec, Scenario
from warren.simulation.scenarios.sizes import bodies
from warren.simulation.scenarios.units import NS
from warren.storage.counted import CountedFileSystem, DiskAccount

_VHOST: Final = "/"
_DIRECTORY: Final = "/node/vhost"
_FILL_AT_ONCE: Final = 16384
MarkKind = Literal[
    "paging-starts", "paging-ends", "memory-alarm", "memory-alarm-ends", "disk-alarm", "disk-alarm-ends",
    "event", "event-ends",
]  # fmt: skip


@attrs.frozen
class Mark:
    """A moment worth a line in a picture."""

    at_s: float
    kind: MarkKind
    text: str
    queue: str | None = None


class Gate:
    """Where publishers wait as long as an alarm blocks them."""

    def __init__(self, time: VirtualTime) -> None:
        self.opens = Event(time.env)
        self._time = time
        self._closed_ns = 0
        self._closed_at_ns: int | None = None

    @property
    def is_closed(self) -> bool:
        return self._closed_at_ns is not None

    @property
    def closed_ns(self) -> int:
        """How long it has been closed until now, in all."""
        since_ns = 0 if self._closed_at_ns is None else self._time.now_ns() - self._closed_at_ns
        return self._closed_ns + since_ns

    def update(self, *, closed: bool) -> None:
        """Close it, or open it and let go the publishers that wait."""
        if closed and not self.is_closed:
            self._closed_at_ns = self._time.now_ns()
        elif self.is_closed and not closed:
            self._closed_ns, self._closed_at_ns = self.closed_ns, None
            self.opens.set()


class SimulatedNode:
    """One node. Its processes start with it; :attr:`time` drives them."""

    def __init__(self, scenario: Scenario, *, check_invariants: bool = False) -> None:
        spec = scenario.node
        self.spec: NodeSpec = spec
        self._memory = spec.memory_of_messages
        self._engine = spec.engine
        self.time = VirtualTime(scenario.start)
        self.files = CountedFileSystem()
        self.settings: NodeSettings = spec.node_settings
        self.disk = DiskTime(self.time.env, spec.disk)
        self.wakes_idle_queues = spec.wakes_idle_queues
        self.calls_by_message = spec.profile == "rabbitmq-3.10"
        """A RabbitMQ's queue takes each message in a call of its own, and reduces memory use in every 1001st."""
        self.promises_to_all = not self.calls_by_message
        """The runtime makes all messages safe, awaited or not; RabbitMQ only those whose publisher asks for it."""
        self.check_invariants = check_invariants
        self.monitor = MemoryMonitor(
            memory_limit_bytes(self.settings.vm_memory_high_watermark, spec.memory),
            self.settings.vm_memory_high_watermark_paging_ratio,
        )
        self.alarms = Alarms()
        self.disk_monitor = DiskMonitor(disk_limit_bytes(self.settings.disk_free_limit, spec.memory))
        self.allocated = AllocatedReading()
        self.bodies = AllocatedReading()
        """The bodies' part of ``allocated``."""
        self.used_bytes = 0
        self.changed: dict[SimulatedQueue, None] = {}
        """Queues that something has happened to since the timeline's last row."""
        self.gate = Gate(self.time)
        self.marks: list[Mark] = []
        self._paged: set[str] = set()
        self._for_monitor: list[Callable[[], None]] = []
        self._ids_at_start = MsgIds(NO_TIME)
        vhost = VhostFiles.open(
            self.files, _DIRECTORY, _VHOST.encode(), settings=self._engine, sync=self.settings.sync != "os"
        )
        vhost.persistent_store.set_references(())  # there is nothing yet; without a count nothing is ever deleted
        self._vhost = vhost
        self.persistent = SimulatedStore(vhost.persistent_store, self.files, self.time, self.disk, self.settings)
        self.transient = SimulatedStore(vhost.transient_store, self.files, self.time, self.disk, self.settings)
        self.queues: dict[str, SimulatedQueue] = {}
        for queue_spec in scenario.queues:
            for declaration in queue_spec.declarations:
                self.queues[declaration.name] = self._new_queue(declaration, queue_spec, scenario.seed)
        self.persistent.begin()
        self.transient.begin()
        self.files.account = DiskAccount()
        self._disk_round()
        self._monitor_round()
        self._in_ms(ALARM_INTERVAL_MS, self._alarm_check)

    # ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _new_queue(self, declaration: QueueDeclaration, spec: QueueSpec, seed: int) -> SimulatedQueue:
        credit = self._engine.msg_store_credit_disc_bound
        links = [StoreLink(store, credit) for store in (self.persistent, self.transient)]
        persistent, transient = (StoreClient(link, link.credit) for link in links)

        def wait_for_grant() -> None:
            for link in links:
                if link.credit.blocked:
                    link.wait_until_taken()

        def parts_of(level: int | None) -> QueueFiles:
            parts = self._vhost.parts(
                stored_name(declaration, level),
                clock=self.time.now_ns,
                persistent_store=persistent if declaration.durable else None,
                transient_store=transient,
            )
            return attrs.evolve(parts, wait_for_grant=wait_for_grant)

        terms = None
        if spec.messages:
            parts = parts_of(None if declaration.max_priority is None else 0)
            rng = np.random.default_rng([seed, len(self.queues)])
            terms = {0: self._filled(parts, declaration, spec, links, rng)}
        queue = SimulatedQueue(
            self,
            declaration,
            parts_of=parts_of,
            links=links,
            terms=terms,
            messages=spec.messages,
        )
        for link in links:
            link.tell = partial(queue.store_progress, link)
        self.account(queue)
        return queue

    def _filled(
        self,
        parts: QueueFiles,
        declaration: QueueDeclaration,
        spec: QueueSpec,
        links: list[StoreLink],
        rng: np.random.Generator,
    ) -> RecoveryTerms:
        """Put messages where a restart finds them, in no time. Their TTL begins with the simulation."""
        queue, ids = VariableQueue.create(parts), self._ids_at_start
        kind = envelope(declaration.name, persistent=True)
        ttl_ms = declaration.message_ttl_ms
        expiry_us = 0 if ttl_ms is None else max(self.time.wall_us() + ttl_ms * 1000, 1)
        for low in range(0, spec.messages, _FILL_AT_ONCE):
            count = min(_FILL_AT_ONCE, spec.messages - low)
            queue.publish_many(kind, ids.many(count), bodies(spec.body.draw(count, rng)), expiries_us=expiry_us)
            queue.set_ram_duration_target(0.0)
            for link in links:
                link.wait_until_taken()
            queue.resume()
        return queue.close(bytes(16))

    def account(self, queue: SimulatedQueue) -> None:
        """Account for the memory that a queue needs now."""
        memory = self._memory
        total = memory.queue_asleep if queue.asleep else memory.queue_awake
        paged, in_ram, has_target = 0, 0, False
        for _, level in queue.process.backing.awake():
            state = level.state
            on_disk = state.length - state.ram_msg_count
            paged += state.length - len(state.q1) - len(state.q4)
            has_target |= state.told_ram_count is not None
            total += state.ram_bytes
            in_ram += state.ram_bytes
            total += memory.alpha * state.ram_msg_count + memory.unacked * state.ram_ack_count
            total += memory.beta * (on_disk - state.delta.count) + memory.delta * state.delta.count
            total += memory.unacked_on_disk * len(state.disk_pending)
        self.allocated.account(queue.name, total)
        self.bodies.account(queue.name, in_ram)
        if queue.name in self._paged:
            if not paged and not (queue.asleep and len(queue.process.backing)):  # asleep, it has the rest on disk still
                self._note_paging(queue, begins=False)
        elif paged and has_target:  # without a target nothing is paged, though a restart's messages lie there too
            self._note_paging(queue, begins=True)

    def _note_paging(self, queue: SimulatedQueue, *, begins: bool) -> None:
        if begins:
            self._paged.add(queue.name)
        else:
            self._paged.discard(queue.name)
        if queue.declaration.queue_mode != "lazy":  # which has everything on disk anyway
            self.mark("paging-starts" if begins else "paging-ends", queue.name, queue.name)

    def mark(self, kind: MarkKind, text: str, queue: str | None = None) -> None:
        """Keep a moment for the pictures."""
        self.marks.append(Mark(self.time.now_ns() / NS, kind, text, queue))

    # ── memory and disk ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def free_bytes(self) -> int:
        """The bytes that are free on the disk."""
        disk = self.spec.disk
        return 1 << 62 if disk.size is None else disk.size - disk.used - self.files.used_bytes

    def read_memory(self) -> int:
        """Return the bytes in use now."""
        memory = self._memory
        stored_count = self._stored_bodies() if memory.store_entry else 0
        files = self._open_files(memory.open_file) if memory.open_file else 0
        return memory.node + memory.store_entry * stored_count + files + self.allocated.read()

    def _open_files(self, most_bytes: int) -> int:
        """Return the bytes in RAM of the files that the stores write, without bodies of ready messages.

        Persistent bodies are written when they come, so the last ones are those that queues still have in RAM.
        Transient bodies are written when they leave it.
        """
        stores = (self.persistent, self.transient)
        persistent, transient = (min(simulated.store.growing_bytes, most_bytes) for simulated in stores)
        return transient + max(persistent - self.bodies.read(), 0)

    def _stored_bodies(self) -> int:
        return sum(simulated_store.store.status().messages for simulated_store in (self.persistent, self.transient))

    def _monitor_round(self) -> None:
        self._round()
        self._in_ms(self.settings.memory_monitor_interval, self._monitor_round)

    def _in_ms(self, wait_ms: int, work: Callable[[], None]) -> None:
        self.time.after(wait_ms * NS // 1000, lambda: self.tell_monitor(work))

    def tell_monitor(self, work: Callable[[], None]) -> None:
        """Give the memory monitor something to do in its next turn. It stands in line like any queue."""
        if not self._for_monitor:
            self.time.after(0, self._monitor_turn)
        self._for_monitor.append(work)

    def _monitor_turn(self) -> None:
        waiting, self._for_monitor = self._for_monitor, []
        for work in waiting:
            work()

    def _round(self) -> None:
        self._check_memory()
        for queue, duration_s in self.monitor.round(self.used_bytes, disk_alarm="disk" in self.alarms.active):
            if isinstance(queue, SimulatedQueue):
                queue.tell(queue.told_duration, duration_s, control=True)
        if self.check_invariants:
            self.monitor.check_invariants()

    def _alarm_check(self) -> None:
        self._check_memory()
        self._in_ms(ALARM_INTERVAL_MS, self._alarm_check)

    def _check_memory(self) -> None:
        self.used_bytes = self.read_memory()
        self._note(self.alarms.update("memory", alarmed=self.used_bytes > self.monitor.limit_bytes))

    def _disk_round(self) -> None:
        event = self.alarms.update("disk", alarmed=self.disk_monitor.check(self.free_bytes))
        self._note(event)
        self._in_ms(self.disk_monitor.next_check_ms, self._disk_round)
        if event is not None:
            self._round()

    def set_watermark(self, watermark: float) -> None:
        """Set the high watermark. It counts from the next round on."""
        self.monitor.limit_bytes = memory_limit_bytes(watermark, self.spec.memory)

    def _note(self, event: AlarmEvent | None) -> None:
        if event is None:
            return
        begins = event.change == "set"
        if event.resource == "memory":
            self.mark("memory-alarm" if begins else "memory-alarm-ends", "memory alarm")
        else:
            self.mark("disk-alarm" if begins else "disk-alarm-ends", "disk alarm")
        self.gate.update(closed=event.publishers_blocked)

    def finish(self) -> None:
        """End the simulation."""
        for queue in self.queues.values():
            queue.occupancy.measure(self.time.now_ns())
