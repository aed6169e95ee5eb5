"""QueueDoor: what any thread may call of a queue's actor. What happens in its turns is :mod:`actors.queue_actor`.

*Publishers* hand over single messages that gather in the inbox, or batches of their own. Credit: while
``credit_flow_default_credit`` messages wait, or a store is behind, a publisher is held in :meth:`QueueDoor.admit`,
where it first runs the queue's turn itself. An event loop may neither wait nor run turns: it asks
:meth:`QueueDoor.admission`, hands over with ``here=False``, and lets the queue :meth:`~QueueDoor.hurry_up`.

A message that finds an empty queue and a consumer that waits for it and acks unseen goes straight to it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Final

import pykka
from pykka._envelope import Envelope as Letter

from actors import messages as m
from actors.clock import NS
from actors.deliveries import Deliveries
from actors.engines.arguments import QueueDeclaration
from actors.engines.queue_process import QueueProcess
from actors.future import Confirm, Future
from actors.handing_over import PublishBatch, PublishKey, QueueDownError, QueueGoneError, SettleKey
from actors.inbox import Gathering
from actors.pool import ActorStoppedError, PooledActor
from actors.store_actor import RemoteStore
from actors.surroundings import BlockedError, Surroundings
from storage.errors import WarrenError

_SAFE: Final = Confirm()
_SAFE.set()


class QueueDoor(PooledActor):
    """The outer half of a queue's actor."""

    __slots__ = (
        "_abandoned",
        "_around",
        "_confirms",
        "_error",
        "_hurry",
        "_limit",
        "_process",
        "_room_at",
        "_stores",
        "_waiting_for_room",
        "alive",
        "coalesces",
        "declaration",
        "deliveries",
    )

    def __init__(self, around: Surroundings, declaration: QueueDeclaration) -> None:
        super().__init__(around.pool)
        self.declaration = declaration
        self.coalesces = declaration.overflow == "drop-head"
        """Whether single publishes may share a confirm: not where one may be refused and the next not."""
        self.deliveries: dict[str, Deliveries] = {}
        """Where consumers get their messages, by their tags. Anybody may ask whether there are any."""
        self.alive = True
        """Whether messages may be handed over; the short way to ``actor_stopped``."""
        self._around = around
        self._process: QueueProcess | None = None
        self._stores: list[RemoteStore] = []
        self._confirms: set[Future] = set()
        self._limit, more_after = around.settings.credit_flow_default_credit
        self._room_at = self._limit - more_after
        self._waiting_for_room: deque[Future] = deque()  # one for good: any thread may append
        self._abandoned: deque[str] = deque()
        self._hurry = False
        self._error: BaseException | None = None

    def describe(self) -> str:
        return str(self.declaration)

    def stopped_error(self) -> WarrenError:
        if isinstance(self._error, QueueGoneError):
            return self._error
        if self._error is not None:
            return QueueDownError(f"{self.describe()} is down: {self._error}")
        return ActorStoppedError(f"{self.describe()} is gone")

    def publish(self, key: PublishKey, body: bytes, *, here: bool = True) -> Confirm:
        """Hand over one message; returns its confirm, which messages that came together share.

        ``here``: whether the calling thread may do the queue's work; an event loop's may not.
        """
        if here and self.deliveries and self._hand_off(key, body):
            return _SAFE
        inbox = self.actor_inbox
        batch = inbox.gather(key, body, self._new_batch, 1)
        if not self.coalesces:
            inbox.seal()
        if here and self.deliveries and self.consumer_waits():
            self.turn()
        return batch.confirm

    def _hand_off(self, key: PublishKey, body: bytes) -> bool:
        """Give a message to a consumer that waits for one and acks unseen, past the queue, if nothing is before it."""
        if not self.consumer_waits() or not self._turn_lock.acquire(blocking=False):
            return False
        try:
            if self._process is None or not self.actor_inbox.empty() or not self.alive:
                return False
            delivered = self._process.hand_off(key.envelope, body)
            deliveries = None if delivered is None else self.deliveries.get(delivered.consumer or "")
            if delivered is None or deliveries is None:
                return False
            deliveries.put(delivered)
            return True
        finally:
            self.end_turn()

    def _new_batch(self, key: object) -> PublishBatch:
        return PublishBatch(key, Confirm(self))

    def publish_many(
        self, key: PublishKey, bodies: Sequence[bytes], msg_ids: bytes = b"", *, here: bool = True
    ) -> Confirm:
        """Hand over messages in one batch; ``msg_ids``: 16 bytes each, where other queues get the same messages."""
        confirm = Confirm(self)
        message = m.Publish(key.envelope, msg_ids, bodies, key.expiration_ms, key.priority, confirm)
        if self.actor_stopped.is_set():
            raise self.stopped_error()
        self.actor_inbox.put(Letter(message), len(bodies))
        if here and self.deliveries and self.consumer_waits():
            self.turn()
        return confirm

    def consumer_waits(self) -> bool:
        """Whether a consumer's thread waits for a message right now."""
        return any(deliveries.waiting for deliveries in list(self.deliveries.values()))

    def settle(self, key: SettleKey, tag: int) -> None:
        """Ack, requeue or reject one delivery."""
        self.actor_inbox.gather(key, tag, Gathering, 0)

    def admit(self, *, block: bool = True, timeout: float | None = None, here: bool = True) -> None:
        """Hold a publisher while too much waits; raises :class:`BlockedError` where it may not wait any longer.

        ``here``: as for :meth:`publish`.
        """
        gate = self._around.gate
        clock = self._around.clock
        deadline = None if timeout is None else clock.now_ns() + round(timeout * NS)
        while True:
            if gate.reasons:
                if not block:
                    raise BlockedError(f"publishers are blocked: {', '.join(sorted(gate.reasons))} alarm")
                waiter = gate.opening(self._around.pool)
            elif self._full():
                if here and self.turn() and not self._full():
                    return
                if not block:
                    raise BlockedError(f"{self.describe()} is behind")
                waiter = self._room()
            else:
                return
            remaining = None if deadline is None else (deadline - clock.now_ns()) / NS
            if remaining is not None and remaining <= 0 and not waiter.done:
                why = f" by the {' and '.join(sorted(gate.reasons))} alarm" if gate.reasons else ": the disk is behind"
                raise BlockedError(f"{self.describe()}: blocked for {timeout} seconds{why}")
            try:
                waiter.settled(remaining)
            except pykka.Timeout as error:
                raise BlockedError(f"{self.describe()}: blocked, and nobody is left who could help") from error

    def admission(self) -> Future | None:
        """Without holding anybody: ``None`` where a publisher may go on, or what to wait for and then ask again."""
        gate = self._around.gate
        if gate.reasons:
            return gate.opening(self._around.pool)
        return self._room() if self._full() else None

    def _full(self) -> bool:
        if self.actor_stopped.is_set():
            raise self.stopped_error()
        return self.actor_inbox.weight >= self._limit or any(store.credit.blocked for store in self._stores)

    def _room(self) -> Future:
        room = Future(self)
        self._waiting_for_room.append(room)
        if not self._full():
            self._let_publishers_in()
        return room

    def _let_publishers_in(self) -> None:
        if self._waiting_for_room and (
            self.actor_stopped.is_set()
            or (self.actor_inbox.weight <= self._room_at and not any(store.credit.blocked for store in self._stores))
        ):
            with contextlib.suppress(IndexError):
                for _ in range(len(self._waiting_for_room)):
                    self._waiting_for_room.popleft().set()

    def help(self, future: Future) -> None:
        """Somebody waits: sync without delay, and do it in this thread if nobody else is at it."""
        self._hurry = True
        if self.actor_inbox.owner is self and not self.turn():
            self.schedule()  # whoever is at it may have passed the point where it would have seen the hurry
        super().help(future)

    def hurry_up(self) -> None:
        """Somebody waits who cannot help: sync without delay, in one of the pool's threads."""
        self._hurry = True
        self.get_in_line()

    def let_go(self, channel: str) -> None:
        """Close a channel that nobody can reach any more. Takes no lock: a garbage collector may call it anywhere."""
        self._abandoned.append(channel)
        self._pool.submit(self)

    def wants_turn(self) -> bool:
        return self.alive and bool(self._abandoned or (self._hurry and self._confirms))
