"""QueueIntake: the part of a queue's actor that any thread may call. The actor's turns are in
:mod:`warren.actors.queue.queue_actor`.

*Publishers* hand over single messages, which gather in the inbox, or whole batches;
:mod:`warren.actors.node.backpressure` describes how they are held back. An event loop hands over with ``here=False``.

A message goes straight to a waiting consumer that needs no acks, if the queue is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pykka._envelope import Envelope as Letter

from warren.actors import messages as m
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.queue.effects import Delivered
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.actors.engines.queue.queue_turn import QueueTurn
from warren.actors.node.backpressure import Intake, PublishBatch
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart
from warren.actors.node.store_actor import RemoteStore
from warren.actors.queue.deliveries import Arrival, Deliveries
from warren.actors.queue.early_deliveries import AckBatch, EarlyBatch
from warren.actors.queue.fast_paths import FastPaths
from warren.actors.queue.intake import PublishKey, SettleKey
from warren.actors.runtime.future import Confirm, Future, UniqueConfirm
from warren.actors.runtime.inbox import Call, InboxClosedError, PendingBatch
from warren.actors.runtime.interrupts import uninterrupted

if TYPE_CHECKING:
    from warren.actors.queue.unique_publisher import Key

LARGE_BYTES: Final = 256 << 10
"""Publishes from this size on are taken in at once; smaller ones wait for a turn that comes soon anyway."""

_SAFE: Final = Confirm()
_SAFE.set()


def _not_yet() -> bool:
    """The caller runs the turn."""
    return False


class QueueIntake(Intake):
    """The intake of one queue."""

    __slots__ = (
        "_deduplicates",
        "_process",
        "_stores",
        "_sync",
        "_turn",
        "abandoned",
        "alive",
        "coalesces",
        "deliveries",
        "fast",
    )

    def __init__(self, actor: NodePart, context: NodeContext, declaration: QueueDeclaration) -> None:
        super().__init__(actor, context)
        self._sync = context.settings.sync
        self.coalesces = declaration.overflow == "drop-head"
        """Whether single publishes may share a confirm: not if the queue may refuse one and accept the next."""
        self._deduplicates = declaration.deduplicates
        """Whether a header of each message may have its key."""
        self.deliveries: dict[str, Deliveries] = {}
        """The deliveries of each consumer, by consumer tag. Any thread may check whether there are any."""
        self.alive = True
        """Whether messages may be handed over; faster to check than ``actor_stopped``."""
        self._process: QueueProcess | None = None
        self._turn: QueueTurn | None = None
        self._stores: list[RemoteStore] = []
        self.abandoned: list[str] = []
        """Channels that are to be closed after all messages sent through them."""
        self.fast = FastPaths(self._turns, self.deliveries)

    def open(self, process: QueueProcess, turn: QueueTurn, stores: list[RemoteStore]) -> None:
        """Take messages for these; called when the queue is open."""
        self._process, self._turn, self._stores = process, turn, stores
        self.fast.open(process, turn)

    def close(self) -> None:
        self.alive = False
        self.fast.close()
        super().close()

    def publish(self, key: PublishKey, body: bytes, reserved_bytes: int = 0, *, here: bool = True) -> Confirm:
        """Hand over one message; return its confirm, which messages that came together share.

        ``here``: whether the calling thread may do the queue's work; an event loop's may not. ``reserved_bytes``: the
        bytes that :class:`~warren.actors.node.admission.Admission` reserved for this message and others that join it.
        """
        if self.deliveries and self._hand_off(key, body):
            self.gate.leave(reserved_bytes, unused_bytes=reserved_bytes)
            return _SAFE
        inbox = self.inbox
        size_bytes = len(body) + key.overhead_bytes
        try:
            batch = inbox.gather(
                key, body, self.new_batch, 1, size_bytes=size_bytes, reserved_bytes=reserved_bytes, wake=_not_yet
            )
        except InboxClosedError:
            raise self.refusal(reserved_bytes) from None
        if not self.coalesces:
            inbox.seal()
        if self.consumer_waits():
            self._wake_waiting(here=here)
        elif key.expiration_ms is not None or self.needs_a_turn():
            self._turns.submit()
        return batch.confirm

    def join(self, key: PublishKey, body: bytes) -> Confirm | None:
        """The fast path for one message: hand it to a waiting consumer, or add it to messages that wait already.

        Returns ``None`` if bytes have to be reserved for it first.
        """
        if self.deliveries and self._hand_off(key, body):
            return _SAFE
        batch = self.inbox.join(key, body, len(body) + key.overhead_bytes)
        if not isinstance(batch, PublishBatch):
            return None
        if self.deliveries:
            if self.consumer_waits():
                self._wake_waiting()
            else:  # the thread that began the entry may not have scheduled a turn
                self._turns.submit()
        return batch.confirm

    def new_batch(self, key: PublishKey) -> EarlyBatch:
        return EarlyBatch(key, Confirm(self))

    def wake_consumer(self, *, here: bool = True) -> None:
        """Give handed-over messages to a waiting consumer; in this thread, if it may do the queue's work."""
        if self.consumer_waits():
            self._wake_waiting(here=here)

    def _wake_waiting(self, *, here: bool = True) -> None:
        if uninterrupted(self.fast.give):
            return
        if here:
            self._turns.run()
        else:
            self._turns.submit()

    def _hand_off(self, key: PublishKey, body: bytes) -> bool:
        """Give a message directly to a waiting consumer that needs no acks, if nothing comes before it."""
        if key.expiration_ms is not None or key.priority or self._deduplicates:
            return False  # with what the message says itself, the queue has to take it in
        waits = any(deliveries.waiting and deliveries.acks_unseen for deliveries in list(self.deliveries.values()))
        return waits and uninterrupted(self._hand_off_in_turn, key, body)

    def _hand_off_in_turn(self, key: PublishKey, body: bytes) -> bool:
        if not self._turns.lock.acquire(blocking=False):
            return False
        try:
            if self._process is None or not self.inbox.empty() or not self.alive:
                return False
            return self._process.deliveries.hand_off(key.envelope, body, self._give)
        finally:
            self._turns.end()

    def _give(self, delivered: Delivered) -> bool:
        deliveries = self.deliveries.get(delivered.consumer or "")
        return deliveries is not None and not deliveries.in_order and deliveries.give(delivered)

    def publish_many(
        self,
        key: PublishKey,
        bodies: Sequence[bytes],
        reserved_bytes: int = 0,
        *,
        msg_ids: bytes = b"",
        here: bool = True,
    ) -> Confirm:
        """Hand over messages in one batch; ``msg_ids``: 16 bytes each, if other queues get the same messages."""
        confirm = Confirm(self)
        message = m.Publish(key.envelope, msg_ids, bodies, key.expiration_ms, key.priority, confirm, reserved_bytes)
        self.refuse_if_stopped(reserved_bytes)
        large = reserved_bytes >= LARGE_BYTES or self.inbox.weight + len(bodies) >= self._credit.limit
        if large and here and self._sync == "os":
            self._work_off(message)
            return confirm
        at_once = large or not here or key.expiration_ms is not None
        if not at_once and not msg_ids and self.coalesces and not self.deliveries:
            return self._join_others(key, bodies, reserved_bytes)
        self._put(message, at_once=at_once)
        if here and self.deliveries:
            self.wake_consumer()
        return confirm

    def publish_unique(
        self,
        key: PublishKey,
        bodies: Sequence[bytes],
        keys: Sequence[Key | None],
        reserved_bytes: int,
        *,
        here: bool,
    ) -> UniqueConfirm:
        """Hand over messages, each with its key or ``None``, as :meth:`publish_many` does."""
        from warren.actors.queue.unique_publisher import PublishUnique

        confirm = UniqueConfirm(self)
        message = PublishUnique(
            key.envelope, b"", bodies, key.expiration_ms, key.priority, confirm, reserved_bytes, keys
        )
        self.refuse_if_stopped(reserved_bytes)
        self._put(message, at_once=not here or key.expiration_ms is not None)
        if here and self.deliveries:
            self.wake_consumer()
        return confirm

    def _join_others(self, key: PublishKey, bodies: Sequence[bytes], reserved_bytes: int) -> Confirm:
        """Hand over a small batch like single publishes, so that they can go out early together."""
        try:
            batch = self.inbox.gather(
                key,
                bodies,
                self.new_batch,
                len(bodies),
                size_bytes=reserved_bytes,
                reserved_bytes=reserved_bytes,
                wake=self.needs_a_turn,
                several=True,
            )
        except InboxClosedError:
            raise self.refusal(reserved_bytes) from None
        return batch.confirm

    def _put(self, message: m.Publish, *, at_once: bool) -> None:
        wake = None if at_once else self.needs_a_turn
        try:
            self.inbox.put(Letter(message), len(message.bodies), wake=wake, is_publish=True)
        except InboxClosedError:
            raise self.refusal(message.reserved_bytes) from None

    def _work_off(self, message: m.Publish) -> None:
        """Take messages in and write their bodies in the calling thread, which waits for no disk.

        A thread of the pool would hold this one up all the same, because both need the interpreter.
        """
        with self.pool.holding() as held:
            self._put(message, at_once=True)
            held.run(self._turns)
            held.run(*[store.writer.turns for store in self._stores])
            held.run(self._turns)  # handle the progress of the stores

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Help as usual, but leave a turn that has nothing for a waiting consumer to the next sync."""
        if isinstance(future, Arrival) and self._has_nothing_for_consumers():
            self.pool.help(future, deadline)
        else:
            super().help(future, deadline)

    def _has_nothing_for_consumers(self) -> bool:
        """Whether a turn comes soon that will find only messages that went out early, and acks."""
        if self._has_ready() or not self._turn_comes_soon() or self.fast.may_still_give():
            return False
        return self.fast.only_early()

    def consumer_waits(self) -> bool:
        """Whether a consumer's thread is waiting for a message."""
        return any(deliveries.waiting for deliveries in list(self.deliveries.values()))

    def settle(self, key: SettleKey, tag: int) -> None:
        """Ack, requeue or reject one delivery."""
        inbox, fast = self.inbox, self.fast
        acks = key.outcome == "ack"
        if acks and (fast.batch is not None or fast.ahead is not None) and fast.ack(key.channel, tag):
            return
        if not inbox.scheduled or not inbox.note(key, tag):
            if acks:
                inbox.gather(key, tag, AckBatch, 0, wake=self.ack_needs_a_turn)
            else:
                inbox.gather(key, tag, PendingBatch, 0)

    def settle_ranges(self, key: SettleKey, tags: Sequence[range]) -> None:
        """Ack, requeue or reject ranges of deliveries. Raises the reason if the queue has stopped."""
        if self._actor.actor_stopped.is_set():
            raise self._actor.stopped_error()
        if key.outcome != "ack":
            self.inbox.put(Letter(Call(lambda: self._settle(key, tags))))
        elif len(tags) > 1 or self.fast.batch is None or not self.fast.ack_range(key.channel, tags[0]):
            self.inbox.gather(key, tags, AckBatch, 0, wake=self.ack_needs_a_turn, several=True)

    def _settle(self, key: SettleKey, tags: Sequence[range]) -> None:
        if self._turn is not None:
            self._turn.settle(key.channel, key.outcome, tags)

    def ack_needs_a_turn(self) -> bool:
        """Whether acks would wait longer than the sync interval, or a message waits for the room that they make."""
        return not self._turn_comes_soon() or (bool(self.deliveries) and self._has_ready())

    def _turn_comes_soon(self) -> bool:
        """Whether a turn is due soon; false once the queue has ended: late messages are answered by their sender."""
        return self.alive and self._turn is not None and self._turn.comes_soon

    def _has_ready(self) -> bool:
        single = None if self._process is None else self._process.backing.single
        return single is None or single.state.length > 0

    def makes_wait(self) -> bool:
        """Whether publishers wait for room, here or anywhere in the node."""
        return bool(self.inbox.weight >= self._credit.limit or self.waiting_publishers or self.gate.held)

    def needs_a_turn(self) -> bool:
        """Whether new messages need a turn of their own; not if they only wait for the next sync."""
        return bool(self.deliveries) or not self._turn_comes_soon()

    def is_held_up(self) -> bool:
        return any(store.credit.blocked for store in self._stores)

    def look_for_room(self) -> None:
        if self._turn is not None and self._turn.syncs.waits_for_room:
            self.hurry = True
            self.turn()

    def let_go(self, channel: str) -> None:
        """Close an abandoned channel. Takes no lock, because a garbage collector may call it anywhere."""
        self.abandoned.append(channel)
        self.pool.submit(self._turns)
