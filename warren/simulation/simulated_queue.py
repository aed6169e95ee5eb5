"""One simulated queue: the runtime's :class:`~actors.engines.queue_process.QueueProcess` in virtual time.

What the queue's actor is in the runtime, this is here, and just as thin: it turns work into calls, and what the calls
brought about into work for others. A turn: work off what waits; hand out what consumers have room for; make safe what
somebody waits for; then wait as long as the disk takes for what was done, and only then tell everybody. Timers,
reports to the memory monitor, grouped syncs and rest follow :mod:`actors.queue_actor`, number for number.

A message's id holds the nanosecond at which it was to be published, and so its latency travels with it through RAM,
disk and requeues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from actors.deliveries import BUFFER
from actors.engines.arguments import QueueDeclaration
from actors.engines.backing import Backing
from actors.engines.consumers import Consumer
from actors.engines.dead_letters import is_cycle
from actors.engines.effects import DeadLetterBatch, Delivered
from actors.engines.queue_process import QueueProcess
from actors.looking import is_pageable
from queue_index.message_format import Envelope
from queue_index.msg_ids import MsgIds
from queue_index.recovery_terms import RecoveryTerms
from queue_index.variable_queue import QueueFiles
from storage.counted import DiskAccount
from warren.simulation.units import NS, ns
from warren.simulation.virtual_time import Bell

if TYPE_CHECKING:
    from warren.simulation.node import SimulatedNode
    from warren.simulation.store import StoreLink

NO_TIME: Final = b"\xff" * 8
"""In the place of a message's time: it was there before the simulation began."""


class Receiver(Protocol):
    """A consumer, as its queue knows it."""

    @property
    def buffered(self) -> int:
        """Messages that it was handed and has not taken up."""

    def take(self, delivered: Delivered) -> None: ...


class Token(Protocol):
    """A publisher's, for one publish; answered once."""

    def confirmed(self) -> None: ...

    def refused(self) -> None: ...


@attrs.define(eq=False)
class Counters:
    """What has happened to a queue, in messages; ``turns``: how often it had work to do."""

    published: int = 0
    delivered: int = 0
    acked: int = 0
    requeued: int = 0
    refused: int = 0
    dead_lettered: int = 0
    turns: int = 0
    held_ns: int = 0
    """How long its publishers, all together, could not publish."""


@attrs.frozen
class Publication:
    """Messages on their way into a queue. ``ids``: 16 bytes each."""

    envelope: Envelope
    ids: bytes
    bodies: list[bytes]
    expiration_ms: int | None = None
    priority: int = 0
    token: Token | None = None


@attrs.frozen
class _DeadLettersLeft:
    """Dead letters that are on their way; their queue forgets them when the last is safe."""

    queue: SimulatedQueue
    number: int
    left: list[int]

    def confirmed(self) -> None:
        self.left[0] -= 1
        if not self.left[0]:
            self.queue.tell(SimulatedQueue.dead_letters_safe, self.number)

    refused = confirmed
    """By a full queue: lost, as in the runtime."""


Work = tuple[Callable[["SimulatedQueue", Any], None], Any]


class SimulatedQueue:
    """One queue of a simulated node."""

    def __init__(
        self,
        node: SimulatedNode,
        declaration: QueueDeclaration,
        *,
        parts_of: Callable[[int | None], QueueFiles],
        links: list[StoreLink],
        durable: bool,
        terms: RecoveryTerms | None = None,
    ) -> None:
        self.name = declaration.name
        self.declaration = declaration
        self.account = DiskAccount()
        self.counters = Counters()
        self.blocked_publishers = 0
        self.waiting_messages = 0
        """Messages that its publishers hold back."""
        self.ready_area = self.unacked_area = 0
        """Messages times nanoseconds."""
        self._node = node
        self._time = node.time
        self._settings = node.settings
        self._links = links
        backing = Backing(
            parts_of,
            durable=durable,
            max_priority=declaration.max_priority,
            terms=None if terms is None else {0: terms},
        )
        self.msg_ids = MsgIds(NO_TIME)
        self.process = QueueProcess(declaration, backing, wall_clock=node.time.wall_us, msg_ids=self.msg_ids)
        self._inbox: deque[Work] = deque()
        self.weight = 0
        """Messages in the inbox."""
        self.room = Bell(node.time.env)
        """Rung when publishers may look again whether there is room."""
        self._bell = Bell(node.time.env)
        self._receivers: dict[str, Receiver] = {}
        self._prefetches: dict[str, int] = {}
        self._tokens: dict[Token, None] = {}
        self._paid = DiskAccount()
        self._settled = self._hurry = self._worked = False
        self._sync_armed = self._report_armed = self._idle_armed = self._reporting = self._bump_told = False
        self._timers = 0
        """Timers of before the last rest mean nothing."""
        self._deadline_us: int | None = None
        self._last_work_ns = 0
        self._area_at_ns = 0
        node.time.env.process(self._live())

    # ── work, and turns ─────────────────────────────────────────────────────────────────────────────────────────

    def tell(self, work: Callable[[SimulatedQueue, Any], None], what: Any = None) -> None:
        """Give it something to do in its next turn."""
        self._inbox.append((work, what))
        self._bell.ring()

    def _live(self) -> Generator[Any, Any, None]:
        files, disk = self._node.files, self._node.disk
        while True:
            if not self._inbox:
                yield self._bell.wait()
                continue
            with files.charging(self.account):
                self._turn()
            cost_ns = disk.cost_ns(self.account.since(self._paid))
            if cost_ns:
                self._paid = self.account.copy()
                yield from disk.use(cost_ns)
            self._carry_out()
            self.room.ring()

    def _turn(self) -> None:
        self._measure()
        self.counters.turns += 1
        inbox = self._inbox
        while inbox:
            work, what = inbox.popleft()
            work(self, what)
        process = self.process
        if self._receivers:
            for tag, receiver in self._receivers.items():
                if not self._prefetches[tag]:
                    process.set_room(tag, max(BUFFER - receiver.buffered, 0))
            process.deliver()
        hurry, self._hurry = self._hurry, False
        if self._tokens or self._settled:
            self._make_safe(hurry=hurry)
        if process.wants_bump and not self._bump_told:
            self._bump_told = True
            self.tell(SimulatedQueue._resume)
        if self._worked:
            self._worked = False
            self._last_work_ns = self._time.now_ns()
            self._arm_timers()
            self._node.account(self)
        if self._node.check_invariants:
            process.check_invariants()

    def _measure(self) -> None:
        """Account for how many messages there were since the last turn."""
        now = self._time.now_ns()
        if now > self._area_at_ns:
            elapsed = now - self._area_at_ns
            self.ready_area += elapsed * len(self.process)
            self.unacked_area += elapsed * self.process.unacked
            self._area_at_ns = now

    def finish(self) -> None:
        """The simulation is over: account for the time since the last turn."""
        self._measure()

    def _make_safe(self, *, hurry: bool) -> None:
        process, mode = self.process, self._settings.sync
        if hurry or (self._tokens and mode != "group"):
            if mode == "os":
                process.write_out()
            else:
                process.sync_index()
            for link in self._links:
                link.sync()
            self._settled = False
            self._node.syncing.discard(self.name)
        elif not self._sync_armed:
            self._sync_armed = True
            self._start_timer(self._node.sync_delay_ns(), SimulatedQueue._sync_due)
            self._node.syncing.add(self.name)
        process.drain_confirms()

    def _carry_out(self) -> None:
        effects = self.process.drain_effects()
        for delivered in effects.deliveries:
            self.counters.delivered += delivered.count
            receiver = self._receivers.get(delivered.consumer or "")
            if receiver is not None:
                receiver.take(delivered)
        for token in effects.confirmed:
            self._answer(token, taken=True)
        for token in effects.refused:
            self._answer(token, taken=False)
        for batch in effects.dead_letters:
            self._send_dead_letters(batch)

    def _answer(self, token: Any, *, taken: bool) -> None:
        self._tokens.pop(token, None)
        if taken:
            token.confirmed()
        else:
            token.refused()

    # ── what it can be told ─────────────────────────────────────────────────────────────────────────────────────

    def publish(self, publication: Publication) -> None:
        """Hand messages over, from outside a turn."""
        self.weight += len(publication.bodies)
        self.tell(SimulatedQueue._publish, publication)

    def _publish(self, publication: Publication) -> None:
        self._worked = True
        count = len(publication.bodies)
        self.weight -= count
        self.counters.published += count
        if publication.token is not None:
            self._tokens[publication.token] = None
        self.process.publish_many(
            publication.envelope,
            publication.ids,
            publication.bodies,
            expiration_ms=publication.expiration_ms,
            priority=publication.priority,
            token=publication.token,
        )

    def subscribe(self, what: tuple[Consumer, Receiver]) -> None:
        """Let a consumer in."""
        self._worked = True
        consumer, receiver = what
        self.process.add_consumer(consumer)
        self._receivers[consumer.tag] = receiver
        self._prefetches[consumer.tag] = consumer.prefetch

    def close_channel(self, what: tuple[str, str]) -> None:
        """A consumer is gone with its channel (tag, channel): what it has unacked comes back."""
        self._worked = True
        tag, channel = what
        self._receivers.pop(tag, None)
        self._prefetches.pop(tag, None)
        self.counters.requeued += self.process.close_channel(channel)

    def settle(self, what: tuple[str, list[range], bool]) -> None:
        """Acked, or given back: channel, delivery tags, whether acked."""
        self._worked = self._settled = True
        channel, tags, acked = what
        if acked:
            self.process.ack(channel, tags)
            self.counters.acked += sum(map(len, tags))
        else:
            self.process.nack(channel, tags, requeue=True)
            self.counters.requeued += sum(map(len, tags))

    def more(self, _: None) -> None:
        """A consumer without a prefetch has taken half of what it had."""
        self._worked = True

    def purge(self, _: None) -> None:
        """Do away with every ready message."""
        self._worked = self._settled = True
        self.process.purge()

    def store_progress(self, unblocked: bool) -> None:
        """A store has gone on; perhaps paging can."""
        self._worked = True
        if unblocked:
            self.process.resume()

    def _resume(self, _: None) -> None:
        self._worked = True
        self._bump_told = False
        self.process.resume()

    def duration_target(self, duration_s: float | None) -> None:
        """What the memory monitor says; pages at once if it fell."""
        self.process.set_ram_duration_target(duration_s)
        self._node.account(self)

    # ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────

    def _send_dead_letters(self, batch: DeadLetterBatch) -> None:
        targets: list[tuple[SimulatedQueue, Publication]] = []
        left = _DeadLettersLeft(self, batch.number, [0])
        for letter in batch.publications:
            for name in letter.routing_keys:
                target = self._node.queues.get(name)
                if target is not None and not is_cycle(letter.headers, name):
                    publication = Publication(
                        letter.envelope, self.msg_ids.one(), [letter.body], None, letter.priority, _Part(left)
                    )
                    targets.append((target, publication))
        self.counters.dead_lettered += len(batch.publications)
        left.left[0] = len(targets)
        if not targets:
            self.tell(SimulatedQueue.dead_letters_safe, batch.number)
        for target, publication in targets:
            target.publish(publication)

    def dead_letters_safe(self, number: int) -> None:
        self._worked = self._settled = True
        self.process.dead_letters_safe(number)

    # ── timers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _arm_timers(self) -> None:
        self._arm_deadline(self.process.next_deadline_us())
        if not self._report_armed:
            self._report_armed = True
            self._start_timer(self._settings.queue_ram_report_interval_ms * NS // 1000, SimulatedQueue._report_due)
            if not self._reporting:
                self._report()
        if not self._idle_armed:
            self._idle_armed = True
            self._start_timer(self._settings.hibernate_after_ms * NS // 1000, SimulatedQueue._idle_due)

    def _start_timer(self, delay_ns: int, work: Callable[[SimulatedQueue, Any], None]) -> None:
        generation = self._timers

        def due() -> None:
            if generation == self._timers:
                self.tell(work)

        self._time.after(delay_ns, due)

    def _arm_deadline(self, deadline_us: int | None) -> None:
        if deadline_us is not None and deadline_us != self._deadline_us:
            self._deadline_us = deadline_us
            wait_us = max(0, deadline_us - self._time.wall_us())

            def due() -> None:
                if self._deadline_us == deadline_us:
                    self.tell(SimulatedQueue._deadline_due)

            self._time.after(wait_us * 1000, due)

    def _deadline_due(self, _: None) -> None:
        self._worked = True
        self._deadline_us = None
        self.process.tick()

    def _sync_due(self, _: None) -> None:
        self._sync_armed = False
        self._hurry = True

    def _report_due(self, _: None) -> None:
        self._report_armed = True
        self._start_timer(self._settings.queue_ram_report_interval_ms * NS // 1000, SimulatedQueue._report_due)
        self._report()

    def _report(self) -> None:
        self._reporting = True
        monitor = self._node.monitor
        if self not in monitor:
            monitor.register(self)
        pageable = self._node.wakes_idle_queues or is_pageable(self.process)
        self.duration_target(monitor.report(self, self.process.ram_duration(), pageable=pageable))

    def _idle_due(self, _: None) -> None:
        self._idle_armed = False
        now = self._time.now_ns()
        if now - self._last_work_ns < self._settings.hibernate_after_ms * NS // 1000 or self._inbox:
            self._idle_armed = True
            self._start_timer(self._settings.hibernate_after_ms * NS // 1000, SimulatedQueue._idle_due)
            return
        if self._tokens or self._settled:
            self._last_work_ns = now
            self._worked = True
            return
        self._worked = False
        if self._node.wakes_idle_queues:
            self._rest_as_rabbitmq()
        else:
            self._rest()

    def _rest(self) -> None:
        """As the runtime's queues do: what is all on disk leaves memory, and the memory monitor's list."""
        deadline_us = self.process.next_deadline_us()
        asleep = self.process.hibernate()
        self._node.account(self, asleep=asleep)
        self._timers += 1
        self._sync_armed = self._report_armed = self._reporting = False
        self._deadline_us = None
        self._arm_deadline(deadline_us)
        monitor = self._node.monitor
        if is_pageable(self.process):
            if self not in monitor:
                monitor.register(self)
            self.duration_target(monitor.report(self, None, pageable=True))
        elif self in monitor:
            monitor.deregister(self)

    def _rest_as_rabbitmq(self) -> None:
        """As RabbitMQ's do: it reports a last time, keeps what it has, and can be told again at any time."""
        self._report()
        self.process.flush()
        self._timers += 1
        self._sync_armed = self._report_armed = self._reporting = False
        self._node.account(self, asleep=not self.process.depth)


@attrs.frozen(eq=False)
class _Part:
    """The token of one dead letter."""

    whole: _DeadLettersLeft

    def confirmed(self) -> None:
        self.whole.confirmed()

    refused = confirmed


def expiration_ms(expiration_s: float | None) -> int | None:
    """As a publish has it."""
    return None if expiration_s is None else ns(expiration_s) // 1_000_000
