"""One simulated queue: it hosts the turns of the runtime's queues in virtual time.

It does what :class:`warren.actors.queue.queue_actor.QueueActor` does in the runtime: it has an inbox, runs the turns
(:class:`~warren.actors.engines.queue.queue_turn.QueueTurn`), and passes on their output. A turn handles what waits,
control before data, and makes it safe; then the queue waits as long as the disk takes for what was done, and only then
sends the answers.

A message's id holds the nanosecond at which it was to be published, and so its latency travels with it through RAM,
disk and requeues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from warren.actors.engines.credit import PublisherCredit
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.memory_monitor import MemoryMonitor
from warren.actors.engines.node_settings import NodeSettings
from warren.actors.engines.queue.backing import Backing
from warren.actors.engines.queue.consumers import Consumer
from warren.actors.engines.queue.dead_letters import copies
from warren.actors.engines.queue.effects import DeadLetter, DeadLetterBatch, Delivered, Effects
from warren.actors.engines.queue.queue_context import QueueContext
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.actors.engines.queue.queue_turn import QueueTurn
from warren.actors.engines.queue.queue_turn_host import Receiver, TurnContext
from warren.actors.runtime.pooled_actor import TURN_ENTRIES
from warren.queue_index.index.recovery_terms import RecoveryTerms
from warren.queue_index.message.msg_ids import MsgIds
from warren.queue_index.queue.variable_queue import QueueFiles
from warren.simulation.node.publication import NO_TIME, Behind, Counters, Publication, Token
from warren.simulation.node.simulated_store import DiskTime, DiskUser, NeverFull, StoreLink
from warren.simulation.node.virtual_time import Event, QueueTimers, VirtualTime
from warren.storage.counted import CountedFileSystem
from warren.storage.record_log import RecordLog


class QueueNode(Protocol):
    """The node, as its queues use it."""

    time: VirtualTime
    files: CountedFileSystem
    disk: DiskTime
    settings: NodeSettings
    monitor: MemoryMonitor
    queues: dict[str, SimulatedQueue]
    changed: dict[SimulatedQueue, None]
    wakes_idle_queues: bool
    calls_by_message: bool
    promises_to_all: bool
    check_invariants: bool

    def account(self, queue: SimulatedQueue) -> None: ...

    def tell_monitor(self, work: Callable[[], None]) -> None: ...


_ENCODED_BELOW_BYTES: Final = 65_536
"""Simulated bodies of one size are one object. Larger ones stay so; encoded, each would take its own memory."""

Work = tuple[Callable[..., object], tuple[Any, ...]]
"""What is to be called in a turn, and its arguments."""


class SimulatedQueue:
    """One queue of a simulated node."""

    def __init__(
        self,
        node: QueueNode,
        declaration: QueueDeclaration,
        *,
        parts_of: Callable[[int | None], QueueFiles],
        links: list[StoreLink],
        terms: Mapping[int, RecoveryTerms] | None = None,
        messages: int = 0,
    ) -> None:
        """``terms`` (of levels) and ``messages``: what is there at the start, as a clean stop left it."""
        self.name = declaration.name
        self.declaration = declaration
        self.disk = DiskUser(node.disk)
        self.counters = Counters()
        self.blocked_publishers = 0
        self.behind: dict[Behind, None] = {}
        """Its publishers that have messages which should be published by now."""
        self._node = node
        node.changed[self] = None
        self._links = links
        limited = declaration.max_length is not None or declaration.max_length_bytes is not None
        self._refuses = limited and declaration.overflow != "drop-head"
        self._messages_at_start = messages
        self.process = _process(node, declaration, parts_of, terms)
        self.occupancy = Occupancy(self.process)
        self._turns = QueueTurn(
            TurnContext(
                host=self,
                output=_Output(node, self),
                process=self.process,
                stores=links,
                clock=node.time,
                settings=node.settings,
                rests_as_rabbitmq=node.wakes_idle_queues,
            )
        )
        self._turns.memory.resting = node.wakes_idle_queues
        self._control: deque[Work] = deque()
        self._inbox: deque[Work] = deque()
        self.weight = 0
        """Messages in the inbox."""
        self._credit = PublisherCredit.of(node.settings.credit_flow_default_credit)
        self.room = Event(node.time.env)
        """Rung when publishers may look again whether there is room."""
        self._wake = Event(node.time.env)
        self._hurry = False
        self._timers = QueueTimers(node.time)
        self._turns.deadline.arm()
        node.time.env.process(self._live())

    # ── work, and turns ─────────────────────────────────────────────────────────────────────────────────────────

    def tell(self, work: Callable[..., object], *arguments: Any, control: bool = False) -> None:
        """Call ``work`` in the next turn. ``control`` overtakes what else waits."""
        (self._control if control else self._inbox).append((work, arguments))
        self._wake.set()

    def hurry_up(self) -> None:
        """Make pending messages safe at once, because a publisher waits for a confirm."""
        if self._turns.syncs.waiting or self._inbox:
            self._hurry = True
            self._wake.set()

    @property
    def asleep(self) -> bool:
        """Whether it rests with nothing in RAM. If idle queues are woken, its process is awake until it rests."""
        if self._node.wakes_idle_queues:
            return self._turns.memory.resting and not self.process.backing.depth
        return self.process.backing.asleep

    @property
    def full(self) -> bool:
        """Whether publishers have to wait, because too much waits already or a store lags."""
        return self.weight >= self._credit.limit or self._held_up

    @property
    def _held_up(self) -> bool:
        return any(link.credit.blocked for link in self._links)

    def _live(self) -> Generator[Any, Any, None]:
        files, account = self._node.files, self.disk.account
        while True:
            if not (self._inbox or self._control or self._hurry):
                yield self._wake.wait()
                continue
            files.account = account
            effects = self._turn()
            yield from self.disk.wait()
            files.account = account
            self._end_turn(effects)

    def _turn(self) -> Effects:
        self.occupancy.measure(self._node.time.now_ns())
        self._node.changed[self] = None
        self.counters.turns += 1
        control, inbox = self._control, self._inbox
        for _ in range(TURN_ENTRIES):
            if not (control or inbox):
                break
            work, arguments = (control or inbox).popleft()
            work(*arguments)
        hurry, self._hurry = self._hurry, False
        effects = self._turns.make_safe(hurry=hurry)
        self.counters.delivered += sum(delivered.count for delivered in effects.deliveries)
        return effects

    def _end_turn(self, effects: Effects) -> None:
        self._node.changed[self] = None
        self._turns.tell(effects)
        if self.weight <= self._credit.reopens_at and not self._held_up:
            self.room.set()
        self._turns.finish()
        if self._node.check_invariants:
            self.process.check_invariants()

    @property
    def waiting_messages(self) -> int:
        """The messages that its publishers hold back."""
        return sum(publisher.waiting_messages for publisher in self.behind)

    @property
    def dropped(self) -> int:
        """The messages that are gone and were not acked: expired, dropped by a limit, purged, or safe dead letters."""
        counters = self.counters
        entered = self._messages_at_start + counters.published - counters.refused
        return entered - counters.acked - self.process.backing.depth

    # ── what it can be told ─────────────────────────────────────────────────────────────────────────────────────

    def publish(self, publication: Publication) -> None:
        """Hand messages over, from outside a turn."""
        self.weight += len(publication.bodies)
        self.tell(self._publish, publication)

    def _publish(self, publication: Publication) -> None:
        count = len(publication.bodies)
        self.weight -= count
        self.counters.published += count
        token, backing = publication.token, self.process.backing
        level = backing.level(backing.level_of(publication.priority)) if self._refuses else None
        first = 0 if level is None else level.state.next_seq_id
        if self._node.calls_by_message:
            backing.level(backing.level_of(publication.priority)).state.calls_since_reduce += count - 1
        if token is None and self._node.promises_to_all:
            token = partial(_nothing)
        self._turns.publish(
            publication.envelope,
            publication.ids,
            publication.bodies,
            publication.expiration_ms,
            publication.priority,
            token,
        )
        if level is not None:
            self.counters.refused += count - (level.state.next_seq_id - first)

    def store_progress(self, link: StoreLink, taken: int, safe: int) -> None:
        """Tell it how far a store is, from outside a turn. Perhaps paging can go on."""
        self.tell(self._turns.syncs.store_progress, link, taken, safe, control=True)

    def get(self, channel: str, count: int, ack_required: bool, take: Callable[[list[Delivered]], object]) -> None:
        """Hand at most ``count`` messages to ``take``, in this turn."""
        fetched = self._turns.get_many(channel, count, ack_required=ack_required)
        message_count = sum(delivered.count for delivered in fetched)
        self.counters.delivered += message_count
        if not ack_required:
            self.counters.acked += message_count
        take(fetched)

    def subscribe(self, consumer: Consumer, receiver: Receiver) -> None:
        """Add a consumer."""
        self._turns.receivers.subscribe(consumer, receiver)

    def close_channel(self, tag: str, channel: str) -> None:
        """Remove a consumer with its channel. Its unacked messages come back."""
        self.counters.requeued += self._turns.close_channel(channel, [tag])

    def settle(self, channel: str, tags: Sequence[range], acked: bool) -> None:
        """Ack the messages with these delivery tags, or give them back."""
        self._turns.settle(channel, "ack" if acked else "requeue", tags)
        if acked:
            self.counters.acked += sum(map(len, tags))
        else:
            self.counters.requeued += sum(map(len, tags))

    def more(self) -> None:
        """Do nothing but have a turn: a consumer without a prefetch has taken half of what it had."""

    def purge(self) -> None:
        """Remove every ready message."""
        self._turns.purge()

    def dead_letters_safe(self, number: int) -> None:
        """Tell it that a batch of dead letters is safe at its target, from outside a turn."""
        self.tell(self._turns.dead_letters_safe, number, control=True)

    def report_answered(self, duration_s: float | None) -> None:
        """Tell it the memory monitor's answer to its report, from outside a turn."""
        self.tell(self._turns.memory.set_duration_target, duration_s, control=True)

    def told_duration(self, duration_s: float | None) -> None:
        """Take in the duration from a round of the memory monitor. If it wakes idle queues, this counts as work."""
        self._turns.context.worked |= self._node.wakes_idle_queues
        self._turns.memory.set_duration_target(duration_s)

    # ── the host of its turns (:class:`~warren.actors.engines.queue.queue_turn_host.QueueTurnHost`) ─────────────

    def has_more(self) -> bool:
        return bool(self._control or self._inbox)

    has_work = has_more

    def call_soon(self, work: Callable[[], object]) -> None:
        self.tell(work)

    def call_later(self, key: str, wait_ns: int, work: Callable[[], object], *, first: bool = False) -> None:
        self._timers.start(key, wait_ns, partial(self.tell, work, control=first))

    def cancel_timers(self) -> None:
        self._timers.cancel()

    def rested(self) -> None:
        """Do nothing: the scenario defines what a queue takes at rest."""


def _nothing(_: bool) -> None:
    """Be the token of a publish without one. Each needs an object of its own."""


def _process(
    node: QueueNode,
    declaration: QueueDeclaration,
    parts_of: Callable[[int | None], QueueFiles],
    terms: Mapping[int, RecoveryTerms] | None,
) -> QueueProcess:
    """Return the engine of a queue."""
    returned_path = f"/node/warren.queues/vhost/{len(node.queues)}/returned.log"
    keeps_counts = declaration.durable and not node.wakes_idle_queues  # RabbitMQ's classic queues do not
    backing = Backing(parts_of, durable=declaration.durable, max_priority=declaration.max_priority, terms=terms)
    context = QueueContext(
        declaration,
        backing,
        node.time.wall_us,
        returned_log=(lambda _: RecordLog(node.files, returned_path, "returned")) if keeps_counts else None,
        sync=node.settings.sync != "os",
        single_below_bytes=_ENCODED_BELOW_BYTES,
    )
    return QueueProcess(context)


class Occupancy:
    """How many messages a queue had over time, as sums of messages times nanoseconds."""

    def __init__(self, process: QueueProcess) -> None:
        self.ready = self.unacked = 0
        self._process = process
        self._measured_ns = 0

    def measure(self, now_ns: int) -> None:
        """Add the time since the last call, in which the queue had as many messages as now."""
        if now_ns > self._measured_ns:
            elapsed_ns = now_ns - self._measured_ns
            self.ready += elapsed_ns * len(self._process.backing)
            self.unacked += elapsed_ns * self._process.consumers.unacked
            self._measured_ns = now_ns


class _Output(NeverFull):
    """Where the results of one queue's turns go
    (:class:`~warren.actors.engines.queue.queue_turn_host.QueueTurnOutput`)."""

    def __init__(self, node: QueueNode, queue: SimulatedQueue) -> None:
        self._node = node
        self._queue = queue
        self._msg_ids = MsgIds(NO_TIME)

    def account_memory(self) -> None:
        self._node.account(self._queue)

    def report(self, duration_s: float | None, *, pageable: bool, resting: bool) -> None:
        """Report to the memory monitor. Its answer comes like any message."""
        monitor, queue = self._node.monitor, self._queue

        def report() -> None:
            if queue not in monitor:
                monitor.register(queue)
            queue.report_answered(monitor.report(queue, duration_s, pageable=pageable, resting=resting))

        self._node.tell_monitor(report)

    def leave_monitor(self) -> None:
        self._node.tell_monitor(lambda: self._node.monitor.deregister(self._queue))

    def confirmed(self, token: Token) -> None:
        token(True)

    def refused(self, token: Token) -> None:
        token(False)

    def send_dead_letters(self, batch: DeadLetterBatch) -> None:
        def targets(letter: DeadLetter) -> list[tuple[str, SimulatedQueue]]:
            queues = self._node.queues
            return [(name, queues[name]) for name in letter.routing_keys if name in queues]

        letters = list(copies(batch, self._msg_ids, targets))
        left = len(letters)

        def arrived(_: bool) -> None:  # one that a full queue refuses is lost, as in the runtime
            nonlocal left
            left -= 1
            if not left:
                self._queue.dead_letters_safe(batch.number)

        self._queue.counters.dead_lettered += len(batch.publications)
        if not letters:
            self._queue.dead_letters_safe(batch.number)
        for _, target, letter, msg_id in letters:
            token = partial(arrived)
            target.publish(Publication(letter.envelope, msg_id, [letter.body], None, letter.priority, token))

    def consumer_cancelled(self, receiver: Receiver) -> None:
        raise RuntimeError("a simulated queue is not deleted")

    def lapsed(self, receiver: Receiver, tags: range) -> None:
        raise RuntimeError("a simulated consumer may hold messages for ever")

    def unused(self) -> None:
        raise RuntimeError("a simulated queue is not deleted")
