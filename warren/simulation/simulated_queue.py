"""One simulated queue: the runtime's :class:`~actors.engines.queue_process.QueueProcess` in virtual time.

What the queue's actor is in the runtime, this is here, and just as thin: it turns work into calls, and what the calls
brought about into work for others. A turn: work off what waits, control before data; hand out what consumers have room
for; make safe what somebody waits for; then wait as long as the disk takes for what was done, and only then tell
everybody, set the timers and account for memory. Timers, reports to the memory monitor, grouped syncs, credit and rest
follow :mod:`actors.queue_actor` and :mod:`actors.door`, number for number; ``tests/test_simulation_runtime.py`` holds
both to the same states.

A message's id holds the nanosecond at which it was to be published, and so its latency travels with it through RAM,
disk and requeues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

from actors.deliveries import BUFFER
from actors.engines.arguments import QueueDeclaration
from actors.engines.backing import Backing
from actors.engines.consumers import Consumer
from actors.engines.dead_letters import is_cycle
from actors.engines.effects import DeadLetterBatch, Delivered, Effects
from actors.engines.queue_process import QueueProcess
from actors.looking import is_pageable
from actors.pool import TURN_ENTRIES
from queue_index.msg_ids import MsgIds
from queue_index.recovery_terms import RecoveryTerms
from queue_index.variable_queue import QueueFiles
from storage.counted import DiskAccount
from warren.simulation.publication import (
    NO_TIME,
    Behind,
    Counters,
    DeadLettersLeft,
    DeadLetterToken,
    Nobody,
    Progress,
    Publication,
    Receiver,
    Token,
)
from warren.simulation.queue_timers import QueueTimers
from warren.simulation.units import NS
from warren.simulation.virtual_time import Bell

if TYPE_CHECKING:
    from warren.simulation.node import SimulatedNode
    from warren.simulation.store import StoreLink

_MS: Final = NS // 1000


class _Process(QueueProcess):
    """Simulated bodies of one size are one object: large ones stay so. (Encoded, each would take its own memory.)"""

    __slots__ = ()
    single_below_bytes = 65_536


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
        messages: int = 0,
    ) -> None:
        """``terms`` and ``messages``: what is there at the start, as a clean stop left it."""
        self.name = declaration.name
        self.declaration = declaration
        self.account = DiskAccount()
        self.counters = Counters()
        self.blocked_publishers = 0
        self.behind: dict[Behind, None] = {}
        """Its publishers that have messages which should be published by now."""
        self.ready_area = self.unacked_area = 0
        """Messages times nanoseconds."""
        self._node = node
        self._time = node.time
        node.changed[self] = None
        self._settings = node.settings
        self._links = links
        backing = Backing(
            parts_of,
            durable=durable,
            max_priority=declaration.max_priority,
            terms=None if terms is None else {0: terms},
        )
        limited = declaration.max_length is not None or declaration.max_length_bytes is not None
        self._refuses = limited and declaration.overflow != "drop-head"
        self._messages_at_start = messages
        self.msg_ids = MsgIds(NO_TIME)
        self.process = _Process(declaration, backing, wall_clock=node.time.wall_us, msg_ids=self.msg_ids)
        self._control: deque[Work] = deque()
        self._inbox: deque[Work] = deque()
        self.weight = 0
        """Messages in the inbox."""
        self._limit, more_after = node.settings.credit_flow_default_credit
        self._room_at = self._limit - more_after
        self.room = Bell(node.time.env)
        """Rung when publishers may look again whether there is room."""
        self._bell = Bell(node.time.env)
        self._receivers: dict[str, Receiver] = {}
        self._prefetches: dict[str, int] = {}
        self._tokens: dict[Token, None] = {}
        self._paid = DiskAccount()
        self._settled = self._hurry = self._worked = False
        self._sync_armed = self._report_armed = self._idle_armed = self._reporting = self._bump_told = False
        self._resting = True
        self._hibernates = False
        """Whether it rests as the runtime's queues do."""
        self._timers = QueueTimers(node.time)
        self._deadline_us: int | None = None
        self._last_work_ns = 0
        self._area_at_ns = 0
        self._arm_deadline(self._next_deadline_us())
        node.time.env.process(self._live())

    # ── work, and turns ─────────────────────────────────────────────────────────────────────────────────────────

    def tell(self, work: Callable[[SimulatedQueue, Any], None], what: Any = None, *, control: bool = False) -> None:
        """Give it something to do in its next turn; ``control`` overtakes what else waits."""
        (self._control if control else self._inbox).append((work, what))
        self._bell.ring()

    def hurry_up(self) -> None:
        """Somebody waits for a confirm: make safe at once what waits to be."""
        if self._tokens or self._inbox:
            self._hurry = True
            self._bell.ring()

    @property
    def asleep(self) -> bool:
        """Whether it rests with nothing in RAM. Where idle queues are woken, its process is awake until it rests."""
        rests = self._resting and not self.process.depth
        return rests or (self.process.is_asleep and not self._node.wakes_idle_queues)

    @property
    def full(self) -> bool:
        """Whether publishers have to wait: too much waits already, or a store is behind."""
        return self.weight >= self._limit or self._held_up

    @property
    def _held_up(self) -> bool:
        return any(link.credit.blocked for link in self._links)

    def _live(self) -> Generator[Any, Any, None]:
        files, disk, account = self._node.files, self._node.disk, self.account
        while True:
            if not (self._inbox or self._control or self._hurry):
                yield self._bell.wait()
                continue
            files.account = account
            effects = self._turn()
            cost_ns = disk.cost_ns(account.since(self._paid))
            if cost_ns:
                self._paid = account.copy()
                yield from disk.use(cost_ns)
                files.account = account
            self._end_turn(effects)

    def _turn(self) -> Effects:
        self._measure()
        self._node.changed[self] = None
        self.counters.turns += 1
        control, inbox = self._control, self._inbox
        for _ in range(TURN_ENTRIES):
            if not (control or inbox):
                break
            work, what = (control or inbox).popleft()
            work(self, what)
        process = self.process
        if self._receivers:
            for tag, receiver in self._receivers.items():
                if not self._prefetches[tag]:
                    process.set_room(tag, max(BUFFER - receiver.buffered, 0))
            process.deliver()
        hurry, self._hurry = self._hurry, False
        if hurry and (control or inbox):
            self._hurry = True  # what somebody waits for may not have been taken yet
        if self._tokens or self._settled:
            self._make_safe(hurry=hurry)
        effects = process.drain_effects()
        for delivered in effects.deliveries:
            self.counters.delivered += delivered.count
            if not delivered.first_tag:
                self.counters.acked += delivered.count
                self._worked = True
        return effects

    def _end_turn(self, effects: Effects) -> None:
        process = self.process
        self._node.changed[self] = None
        self._carry_out(effects)
        if process.wants_bump and not self._bump_told:
            self._bump_told = True
            self.tell(SimulatedQueue._resume)
        if self.weight <= self._room_at and not self._held_up:
            self.room.ring()
        if self._worked:
            self._worked = self._resting = self._hibernates = False
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
            self._start_timer("sync", self._node.sync_delay_ns(), SimulatedQueue._sync_due)
            self._node.syncing.add(self.name)
        process.drain_confirms()

    @property
    def waiting_messages(self) -> int:
        """Messages that its publishers hold back."""
        return sum(publisher.waiting_messages for publisher in self.behind)

    @property
    def dropped(self) -> int:
        """Messages that are gone and were not acked: expired, one too many, purged; dead letters that are safe."""
        counters = self.counters
        return self._messages_at_start + counters.published - counters.refused - counters.acked - self.process.depth

    def _carry_out(self, effects: Effects) -> None:
        for delivered in effects.deliveries:
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
        token = publication.token
        if token is None and self._node.promises_to_all:
            token = Nobody()
        if token is not None:
            self._tokens[token] = None
        backing = self.process.backing
        level = backing.level(backing.level_of(publication.priority)) if self._refuses else None
        first = 0 if level is None else level.state.next_seq_id
        if self._node.calls_by_message:
            backing.level(backing.level_of(publication.priority)).state.calls_since_reduce += count - 1
        self.process.publish_many(
            publication.envelope,
            publication.ids,
            publication.bodies,
            expiration_ms=publication.expiration_ms,
            priority=publication.priority,
            token=token,
        )
        if level is not None:
            self.counters.refused += count - (level.state.next_seq_id - first)

    def get(self, what: tuple[str, int, bool, Callable[[list[Delivered]], object]]) -> None:
        """Asked for messages: channel, how many at most, whether they will be acked; who takes them, in this turn."""
        channel, count, ack_required, take = what
        found = self.process.get_many(channel, count, ack_required=ack_required)
        got = sum(delivered.count for delivered in found)
        self.counters.delivered += got
        if found:
            self._worked = True
        if found and not ack_required:
            self._settled = True
            self.counters.acked += got
        take(found)

    def subscribe(self, what: tuple[Consumer, Receiver]) -> None:
        """Let a consumer in."""
        self._worked = True
        consumer, receiver = what
        self.process.add_consumer(consumer)
        self._receivers[consumer.tag] = receiver
        self._prefetches[consumer.tag] = consumer.prefetch if consumer.ack_required else 0

    def close_channel(self, what: tuple[str, str]) -> None:
        """A consumer is gone with its channel (tag, channel): what it has unacked comes back."""
        self._worked = True
        tag, channel = what
        self._receivers.pop(tag, None)
        self._prefetches.pop(tag, None)
        self.counters.requeued += self.process.close_channel(channel)

    def settle(self, what: tuple[str, Sequence[range], bool]) -> None:
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
        """A consumer without a prefetch has taken half of what it had: a turn is all that it wants."""

    def purge(self, _: None) -> None:
        """Do away with every ready message."""
        self._worked = self._settled = True
        self.process.purge()

    def store_progress(self, progress: Progress) -> None:
        """A store has gone on; perhaps paging can."""
        self._worked = True
        link = progress.link
        was_blocked = link.credit.blocked
        link.progress(progress.taken, progress.safe)
        if was_blocked and not link.credit.blocked:
            self.process.resume()

    def _resume(self, _: None) -> None:
        self._worked = self._worked or self._node.wakes_idle_queues
        self._bump_told = False
        self.process.resume()
        self._node.account(self)

    def told_duration(self, duration_s: float | None) -> None:
        """What the memory monitor says in a round. Where it wakes idle queues this is work, after which they rest."""
        self._worked = self._worked or self._node.wakes_idle_queues
        self.duration_target(duration_s)

    def duration_target(self, duration_s: float | None) -> None:
        """What the memory monitor answers a report with; pages at once if it fell."""
        self.process.set_ram_duration_target(duration_s)
        if self._hibernates and duration_s is not None:
            self.process.hibernate()
            if not is_pageable(self.process):
                self._node.tell_monitor(lambda: self._node.monitor.deregister(self))
        self._node.account(self)

    # ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────

    def _send_dead_letters(self, batch: DeadLetterBatch) -> None:
        targets: list[tuple[SimulatedQueue, Publication]] = []
        left = DeadLettersLeft(0, lambda: self.tell(SimulatedQueue.dead_letters_safe, batch.number, control=True))
        for letter in batch.publications:
            msg_id = self.msg_ids.one()
            for name in letter.routing_keys:
                target = self._node.queues.get(name)
                if target is not None and not is_cycle(letter.headers, name):
                    publication = Publication(
                        letter.envelope, msg_id, [letter.body], None, letter.priority, DeadLetterToken(left)
                    )
                    targets.append((target, publication))
        self.counters.dead_lettered += len(batch.publications)
        left.left = len(targets)
        if not targets:
            self.tell(SimulatedQueue.dead_letters_safe, batch.number, control=True)
        for target, publication in targets:
            target.publish(publication)

    def dead_letters_safe(self, number: int) -> None:
        self._worked = self._settled = True
        self.process.dead_letters_safe(number)

    # ── timers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _arm_timers(self) -> None:
        settings = self._settings
        self._arm_deadline(self._next_deadline_us())
        if not self._report_armed:
            self._report_armed = True
            self._start_timer("report", settings.queue_ram_report_interval_ms * _MS, SimulatedQueue._report_due, True)
            if not self._reporting:
                self._report()
        if not self._idle_armed:
            self._idle_armed = True
            self._start_timer("idle", settings.hibernate_after_ms * _MS, SimulatedQueue._idle_due)

    def _start_timer(
        self, key: str, delay_ns: int, work: Callable[[SimulatedQueue, Any], None], control: bool = False
    ) -> None:
        self._timers.start(key, delay_ns, lambda: self.tell(work, control=control))

    def _next_deadline_us(self) -> int | None:
        deadline_us, declaration = self.process.next_deadline_us(), self.declaration
        if deadline_us == 0 and declaration.message_ttl_ms is None and declaration.dead_letter_exchange is None:
            return None  # as in the runtime: nobody has looked, and what is only dropped can wait
        return deadline_us

    def _arm_deadline(self, deadline_us: int | None) -> None:
        if deadline_us is not None and deadline_us != self._deadline_us:
            self._deadline_us = deadline_us
            wait_us = max(0, deadline_us - self._time.wall_us())
            self._start_timer("deadline", wait_us * 1000, SimulatedQueue._deadline_due, True)

    def _deadline_due(self, _: None) -> None:
        self._worked = True
        self._deadline_us = None
        self.process.tick()

    def _sync_due(self, _: None) -> None:
        self._worked = True
        self._sync_armed = False
        self._hurry = True

    def _report_due(self, _: None) -> None:
        self._report_armed = True
        interval_ns = self._settings.queue_ram_report_interval_ms * _MS
        self._start_timer("report", interval_ns, SimulatedQueue._report_due, True)
        self._report()

    def _report(self) -> None:
        self._reporting = True
        self._tell_monitor(self.process.ram_duration())

    def _tell_monitor(self, duration_s: float | None, *, resting: bool = False) -> None:
        """Report; the answer comes as any message does."""
        monitor = self._node.monitor
        pageable = self._node.wakes_idle_queues or is_pageable(self.process)

        def report() -> None:
            if self not in monitor:
                monitor.register(self)
            answer_s = monitor.report(self, duration_s, pageable=pageable, resting=resting)
            self.tell(SimulatedQueue.duration_target, answer_s, control=True)

        self._node.tell_monitor(report)

    def _idle_due(self, _: None) -> None:
        self._idle_armed = False
        self._worked = True  # unless it rests now, the turn's end sets the timer again
        now = self._time.now_ns()
        if now - self._last_work_ns < self._settings.hibernate_after_ms * _MS or self._inbox:
            return
        if self._tokens or self._settled:
            self._last_work_ns = now
            return
        self._worked = False
        if self._node.wakes_idle_queues:
            self._rest_as_rabbitmq()
        else:
            self._rest()

    def _rest(self) -> None:
        """As the runtime's queues do: with nothing in RAM it leaves memory, and the memory monitor's list."""
        deadline_us = self._next_deadline_us()
        self._hibernates = True
        self.process.hibernate()
        self._node.account(self)
        self._forget_timers()
        self._arm_deadline(deadline_us)  # what expires does so while its queue rests, too
        if is_pageable(self.process):
            self._tell_monitor(None, resting=True)
        else:
            self._node.tell_monitor(lambda: self._node.monitor.deregister(self))

    def _rest_as_rabbitmq(self) -> None:
        """As RabbitMQ's do: it reports a last time, keeps what it has, and can be told again at any time."""
        deadline_us = self._next_deadline_us()
        self._report()
        self.process.flush()
        self._resting = True
        self._node.account(self)
        self._forget_timers()
        self._arm_deadline(deadline_us)

    def _forget_timers(self) -> None:
        self._timers.cancel()
        self._sync_armed = self._report_armed = self._reporting = False
        self._deadline_us = None
