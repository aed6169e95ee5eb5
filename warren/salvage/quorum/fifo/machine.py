"""A quorum queue, rebuilt from the commands of its log: which messages are ready, which are out at which consumer.

Commands name messages only by number: a settle says "consumer C, its delivery 7". So a reader must know what the broker
delivered, to which consumer, in which order; everything that decides this is here, and nothing else. The machine has no
clock, no randomness and no files: the same commands make the same queue.

A message lies in one place: it is *ready* (first what was *returned*, in the order in which it came back, then the
others, :mod:`warren.salvage.quorum.fifo.ready_queues`), *out* at a consumer
(:mod:`warren.salvage.quorum.fifo.consumers`), or a *dead letter* on its way to another queue
(:mod:`warren.salvage.quorum.fifo.messages`; only if the queue sends them on at least once).

Nearly every command ends with a *checkout*: expired messages are removed at the head, ready messages are delivered to
consumers in turn (:mod:`warren.salvage.quorum.fifo.service`) as long as there are both, then messages over the queue's
limits are removed at the head. The docstrings of the other commands say "without a checkout". A command that does not
fit (a number that is not out, a consumer that is gone) changes nothing, as in the broker.

Choices, if no file tells what the broker did: several consumers of one process return what they hold in the order of
their keys, and one return of several messages up to 3.13 in the order of their numbers. Above 32 of them Erlang's own
order is that of a hash.

The restart. Every process of the previous run is found gone, one after the other; the messages that it held return, and
may for a moment be out again at processes that are found gone later. A broker loses messages by this: those past the
delivery limit, and those over the queue's limits. :meth:`QuorumMachine.restart` keeps them, reports them
(:attr:`Messages.past_limit`, :attr:`Messages.past_length`), and drops no expired message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from warren.salvage.quorum.fifo import commands, machine_state
from warren.salvage.quorum.fifo.commands import Command, ConsumerKey, Pid
from warren.salvage.quorum.fifo.consumers import SUSPECTED, UP
from warren.salvage.quorum.fifo.deliveries import Deliveries
from warren.salvage.quorum.fifo.machine_state import Parts
from warren.salvage.quorum.fifo.membership import Membership
from warren.salvage.quorum.fifo.messages import DeadLetters
from warren.salvage.quorum.fifo.ready_queues import ManyQueues, QueuedMessage, TwoQueues
from warren.salvage.quorum.fifo.rules import DEFAULT_TIMEOUT_MS, QueueSettings, Rules, rules_of
from warren.salvage.quorum.fifo.settlements import Settlements
from warren.storage.erlang_terms import Atom, Term

_Appliers: TypeAlias = "Mapping[type, Callable[[int, Any], None]]"

_HIGH_PRIORITY: Final = 9
"""In 4.3, of messages that waited in the high one of two queues."""

_NO_CHECKOUT: Final = frozenset({"garbage_collection", "nodedown"})
"""Commands that a reader can ignore, and that do not end with a checkout."""


class QuorumMachine:
    """One queue. Not for use by several threads. Others may read its parts; only :meth:`apply` changes them."""

    def __init__(self, parts: Parts) -> None:
        """For :meth:`new` and :meth:`from_snapshot`."""
        self.machine_version = parts.machine_version
        self.messages: Final = parts.messages
        self.publishers: Final = parts.publishers
        self.service: Final = parts.service
        self._deliveries = Deliveries(self.messages, self.service)
        self._membership = Membership(self._deliveries, self.publishers)
        self.settlements: Final = Settlements(self._deliveries, self._membership)
        self._appliers = self._appliers_by_version()
        self.members: tuple[tuple[str, str], ...] = ()
        """(Server's name, node) of each member, as the log had them last; empty if the log names no members."""

    @property
    def _rules(self) -> Rules:
        return self.messages.rules

    def _appliers_by_version(self) -> _Appliers:
        """What each command does, given the index of its entry."""
        membership, settlements = self._membership, self.settlements
        has_timeouts = self._rules.has_timeouts
        return {
            commands.Enqueue: self._enqueue,
            commands.Settle: settlements.settle,
            commands.RegisterEnqueuer: self._register_enqueuer,
            commands.Checkout: membership.checkout,
            commands.Cancel: membership.cancel,
            commands.Discard: settlements.discard,
            commands.Return: settlements.give_back,
            commands.Modify: settlements.modify,
            commands.Requeue: settlements.requeue,
            commands.Credit: membership.credit,
            commands.Purge: self._purge,
            commands.Down: membership.down,
            commands.NodeDown: self._pass_over,
            commands.NodeUp: membership.node_up,
            commands.PurgeNodes: membership.purge_nodes,
            commands.UpdateConfig: self._update_config,
            commands.MachineVersion: self._machine_version,
            commands.NewCluster: self._new_cluster,
            commands.Nothing: self._nothing,
            commands.DeadLetterCheckout: self._dead_letter_checkout,
            commands.DeadLetterSettle: self._dead_letter_settle,
            commands.ConsumerTimeout: membership.time_out if has_timeouts else self._pass_over,
            commands.RetryDelayed: self._deliveries.retry if has_timeouts else self._pass_over,
            commands.AssignDeferred: self._deliveries.assign if has_timeouts else self._pass_over,
        }

    @classmethod
    def new(cls, settings: Mapping[Term, Term], machine_version: int) -> QuorumMachine:
        """An empty queue with the machine's settings, as ``config`` has them.

        Raises :class:`ValueError` for a version that is not known.
        """
        return cls(Parts.new(QueueSettings.of(settings, rules_of(machine_version)), machine_version))

    @classmethod
    def from_snapshot(cls, state: Term, settings: Mapping[Term, Term], machine_version: int) -> QuorumMachine:
        """The queue of a snapshot. The settings in the snapshot's state take precedence.

        Raises :class:`TermError` for a state of another version, :class:`ValueError` for an unknown version.
        """
        machine = cls(machine_state.parts_of(state, machine_version))
        machine._deliveries.unserved = True  # the last command may have been one without the checkout that it needs
        return machine

    @property
    def ready_count(self) -> int:
        """Includes delayed messages."""
        return len(self.messages) + len(self.messages.delayed)

    @property
    def payload_bytes(self) -> int:
        """Of what is ready or out."""
        return self.messages.ready_bytes + self.messages.out_bytes

    def ready(self) -> Iterator[QueuedMessage]:
        """In the order in which they would be delivered, delayed ones (4.3) last; no command may come in between."""
        yield from self.messages
        yield from self.messages.delayed

    def outstanding(self) -> Iterator[tuple[ConsumerKey, int, QueuedMessage]]:
        """What is out: consumer, its number there, message; by consumer, then by number."""
        for consumer in self.service.consumers:
            for msg_id, message in consumer.held.items():
                yield consumer.key, msg_id, message

    def apply(self, index: int, ts_ms: int, command: Command) -> None:
        """Apply the log's entry ``index``, written at ``ts_ms`` (milliseconds since 1970).

        Raises :class:`ValueError` for an unknown command or an unknown version of the machine.
        """
        applier = self._appliers.get(type(command))
        if applier is None:
            raise ValueError(f"not to be applied: {command!r}")
        self.messages.now_ms = ts_ms
        applier(index, command)

    # What each command does.

    def _enqueue(self, index: int, command: commands.Enqueue) -> None:
        pid, seq, body = command
        if pid is not None and not self.publishers.takes(pid, seq):
            return
        ttl_ms, queue_ttl_ms = body.ttl_ms, self.messages.settings.msg_ttl_ms
        if ttl_ms is None or (queue_ttl_ms is not None and queue_ttl_ms < ttl_ms):
            ttl_ms = queue_ttl_ms
        expiry_ms = None if ttl_ms is None else self.messages.now_ms + (ttl_ms or 1)
        size = body.size + body.metadata_size if self._rules.has_timeouts else body.size
        count = body.delivery_count if self._rules.has_keys else 0
        message = QueuedMessage(index, size, expiry_ms, count)
        if self._rules.has_delivery_times and pid is not None and body.delivery_time_ms > self.messages.now_ms:
            self.messages.add_later(message, body.delivery_time_ms)
        else:
            self.messages.add(message, body.priority)
        self._deliveries.checkout()

    def _register_enqueuer(self, index: int, command: commands.RegisterEnqueuer) -> None:
        """Without a checkout."""
        self.publishers.register(command.pid)

    def _pass_over(self, index: int, command: Command) -> None:
        """Without a checkout. A node that is away takes effect by ``down``; 4.3's commands have no effect before it."""

    def _purge(self, index: int, command: commands.Purge) -> None:
        """What is out stays. Without a checkout."""
        self.messages.purge()

    def _update_config(self, index: int, command: commands.UpdateConfig) -> None:
        handler = command.settings.get(Atom("dead_letter_handler"))
        if handler is None and not self._rules.has_keys:
            return
        messages = self.messages
        previous, settings = messages.settings, QueueSettings.of(command.settings, self._rules)
        changes = handler is not None and previous.dead_lettering != settings.dead_lettering
        if changes and "at_least_once" in (previous.dead_lettering, settings.dead_lettering):
            messages.dead_letters = DeadLetters()
        messages.settings = settings
        self.service.single_active = settings.single_active
        self._deliveries.checkout()

    def _machine_version(self, index: int, command: commands.MachineVersion) -> None:
        """Without a checkout; a lower one changes nothing."""
        rules_of(command.version)
        if command.version <= self.machine_version:
            return
        for version in range(self.machine_version + 1, command.version + 1):
            if version == 3:
                for consumer in self.service.consumers:
                    if not consumer.credited and consumer.prefetch is not None:
                        consumer.cap = consumer.prefetch
            elif version == 4:
                self._to_version_4()
            elif version == 8:
                self._to_version_8()
        self.machine_version = command.version
        self.messages.rules = rules_of(command.version)
        self._appliers = self._appliers_by_version()

    def _to_version_4(self) -> None:
        """Acquisitions are counted from here on; messages that are out or returned keep their counts."""
        ready = rules_of(4).ready_queue()
        for message in self.messages.ready:
            ready.append(message._replace(acquired_count=0), None)
        self.messages.ready = ready
        self.service.ranked = True

    def _to_version_8(self) -> None:
        """From here on held messages have deadlines."""
        ready, queues = self.messages.ready, ManyQueues()
        for message in ready.high if isinstance(ready, TwoQueues) else ():
            queues.append(message, _HIGH_PRIORITY)
        for message in ready.normal if isinstance(ready, TwoQueues) else ready:
            queues.append(message, None)
        self.messages.ready = queues
        self.service.waits_for_suspected = True
        deadline = self.messages.now_ms + DEFAULT_TIMEOUT_MS
        for consumer in [*self.service.consumers, *self.service.waiting]:
            consumer.timeout_ms, consumer.serial = DEFAULT_TIMEOUT_MS, True
            consumer.deadlines = dict.fromkeys(consumer.held, deadline)
            consumer.inner = UP if consumer.status == SUSPECTED else None

    def _new_cluster(self, index: int, command: commands.NewCluster) -> None:
        """Without a checkout."""
        self.members = command.members

    def _nothing(self, index: int, command: commands.Nothing) -> None:
        if command.touches_queue and command.name not in _NO_CHECKOUT:
            self.messages.time_passes()
            self._deliveries.checkout()

    def _dead_letter_checkout(self, index: int, command: commands.DeadLetterCheckout) -> None:
        if self.messages.settings.dead_lettering == "at_least_once":
            self.messages.dead_letters.new_worker(command.pid, command.prefetch)
        self._deliveries.checkout()

    def _dead_letter_settle(self, index: int, command: commands.DeadLetterSettle) -> None:
        if self.messages.settings.dead_lettering == "at_least_once":
            self.messages.dead_letters.settle(command.msg_ids)
        self._deliveries.checkout()

    def pids(self) -> list[Pid]:
        """Of the processes that publish or consume, in order."""
        return sorted({*self.publishers.following, *self.service.pids()})

    def restart(self, missed: Iterable[Pid] = ()) -> None:
        """A new leader finds every process gone, these first, then by their pids; after that nothing is out."""
        self.messages.keep()
        self._miss(missed)
        # In 4.3 a consumer may remain: it waits again when its last message has returned.
        while pids := self.pids():
            self._miss(pids)
        self.messages.put_back()
        self.settlements.put_back()

    def _miss(self, pids: Iterable[Pid]) -> None:
        for pid in pids:
            self._membership.down(0, commands.Down(pid, "noproc"))

    def check_invariants(self) -> None:
        """Raise :class:`RuntimeError` if an invariant does not hold. It walks over everything."""
        service, messages = self.service, self.messages
        service.check_invariants()
        messages.check_invariants()
        self.publishers.check_invariants()
        out = [message for _, _, message in self.outstanding()]
        if len(out) != messages.out_count or sum(message.size for message in out) != messages.out_bytes:
            raise RuntimeError("the count or the bytes of what is out do not add up")
        letters = [letter.message for letter in messages.dead_letters]
        indexes = [message.index for message in [*messages, *messages.delayed, *out, *letters]]
        if len(indexes) != len(set(indexes)):
            raise RuntimeError("a message is in two places")
        key = service.queue.first()
        consumer = None if key is None else service.consumers.by_key.get(key)
        if (
            consumer is not None
            and consumer.credit
            and consumer.status == UP
            and len(messages)
            and not self._deliveries.unserved
        ):
            raise RuntimeError("a message waits, and a consumer whose turn it is")
