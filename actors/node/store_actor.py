"""The actor of a shared message store, and a queue's access to it.

One writer: the :class:`MessageStoreActor` owns the :class:`~warren.msg_store.rdq.message_store.MessageStore` and runs
its turns (:class:`~warren.actors.engines.store_turn.StoreTurn`). A queue's :class:`RemoteStore` sends it what to write
and to remove, in batches, and reads directly: reading a store is safe from any thread, and bodies still on their way to
the store are kept by the queue.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from pykka import ActorDeadError, ActorRef

from warren.actors.engines.credit import GrantedCredit, StoreTickets
from warren.actors.engines.store_turn import StoreTurn
from warren.actors.log_events import log_event, logger
from warren.actors.messages import (
    CloseStore,
    CountReferences,
    DiskRoom,
    ExpectReferences,
    JoinStore,
    LeaveStore,
    RemoveBodies,
    StoreFailed,
    StoreFull,
    StoreProgress,
    SyncStore,
    WriteBodies,
)
from warren.actors.node.gate import Gate
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart
from warren.actors.runtime.inbox import Call
from warren.actors.runtime.pooled_actor import ActorStoppedError, PooledActor, actor_of_ref
from warren.actors.runtime.timer import tell
from warren.msg_store.rdq.message_store import MessageStore
from warren.storage.errors import NoRoomError
from warren.storage.pieces import Whole, sizes_of

_LOG = logger("store")


class MessageStoreActor(NodePart):
    """Owns one store."""

    def __init__(self, context: NodeContext, store: MessageStore, name: str, vhost: str = "/") -> None:
        super().__init__(context, name, ("vhost", vhost))
        self.store = store
        self._turns = StoreTurn[int](self, store, sync=context.settings.sync)
        self._queues: dict[int, ActorRef[Any]] = {}
        self._expected: frozenset[str] | None = None
        self._counted: set[str] = set()
        self._references: Counter[bytes] = Counter()

    def on_receive(self, message: object) -> object:
        match message:
            case WriteBodies():
                self._turns.write(message.client, message.msg_ids, message.messages, message.ticket)
            case RemoveBodies():
                self.store.remove_many(message.msg_ids)
            case SyncStore():
                self._turns.hurry()
            case JoinStore():
                self._queues[message.client] = message.queue
                self._turns.join(message.client)
            case LeaveStore():
                self._queues.pop(message.client, None)
                self._turns.leave(message.client)
            case ExpectReferences():
                self._expected = message.entries
                self._finish_counting()
            case CountReferences():
                self._references.update(message.references)
                self._counted.add(message.entry)
                self._finish_counting()
            case CloseStore():
                self.store.close(message.token)
                self._tell_of_room(has_room=True)
                self._stop()
            case _:
                return super().on_receive(message)
        return None

    def _finish_counting(self) -> None:
        if self._expected is not None and self._expected <= self._counted and not self.store.status().counted:
            self.store.set_references(self._references.items())
            self._references = Counter()

    def on_turn_end(self) -> None:
        for progress in self._turns.make_safe():
            message = StoreProgress(progress.client, progress.taken_ticket, progress.safe_ticket)
            tell(self._queues[progress.client], message)
        self._turns.finish()

    # ── what the turn has for others (:class:`~warren.actors.engines.store_turn.StoreTurnHost`) ─────────────────

    @property
    def is_short_of_disk(self) -> bool:
        return "disk" in self._context.gate.reasons

    def disk_is_full(self, error: NoRoomError, *, since_now: bool) -> None:
        if since_now:
            _LOG.warning(
                "%s waits for room on the disk: %s",
                self.describe(),
                error,
                extra=log_event("disk_full", error, part=self.describe()),
            )
        self._tell_of_room(has_room=False)

    def disk_has_room(self) -> None:
        _LOG.warning(
            "%s: there is room on the disk again", self.describe(), extra=log_event("disk_room", part=self.describe())
        )
        self._tell_of_room(has_room=True)

    def store_full(self, client: int, error: NoRoomError) -> None:
        tell(self._queues[client], StoreFull(client, error))

    def on_error(self, error: BaseException) -> None:
        self.store.abandon()
        self._tell_of_room(has_room=True)
        tell(self._context.node, StoreFailed(self.actor_ref, error))

    def _tell_of_room(self, *, has_room: bool) -> None:
        tell(self._context.monitor, DiskRoom(self.actor_ref, has_room))


class RemoteStore(StoreTickets):
    """One queue's access to one store; implements :class:`warren.queue_index.queue.body_store.BodyStore`.

    It joins the store with its first body; many queues, whose messages are small, never do.
    """

    __slots__ = (
        "_actor",
        "_gate",
        "_in_flight",
        "_joined",
        "_on_the_way",
        "_queue",
        "_reading",
        "client",
    )

    def __init__(
        self,
        actor: ActorRef[Any],
        queue: ActorRef[Any],
        reading: MessageStore,
        client: int,
        *,
        credit: GrantedCredit,
        gate: Gate,
    ) -> None:
        super().__init__(credit)
        self._actor = actor
        self._queue = queue
        self._joined = False
        self._reading = reading
        self._gate = gate
        self._on_the_way: deque[tuple[int, int]] | None = None
        """Ticket and bytes of what was handed over and not taken yet."""
        self._in_flight: dict[bytes, tuple[int, Whole]] | None = None
        self.client = client

    @property
    def writer(self) -> PooledActor:
        """The store's actor."""
        return actor_of_ref(self._actor, PooledActor)

    def write_many(self, msg_ids: Sequence[bytes], messages: Sequence[Whole]) -> None:
        if not self._joined:
            self._joined = True
            self._tell(JoinStore(self.client, self._queue))
        ticket = self.written_ticket = self.written_ticket + len(msg_ids)
        if self._in_flight is None:
            self._in_flight = {}
        self._in_flight.update(zip(msg_ids, ((ticket, message) for message in messages), strict=True))
        if self._on_the_way is None:
            self._on_the_way = deque()
        self._on_the_way.append((ticket, self._gate.enter(sum(sizes_of(messages)))))
        self._tell(WriteBodies(self.client, msg_ids, messages, ticket))

    def remove_many(self, msg_ids: Sequence[bytes]) -> None:
        self._tell(RemoveBodies(msg_ids))

    def _tell(self, message: object) -> None:
        try:
            self._actor.tell(message)
        except ActorDeadError as error:
            raise ActorStoppedError("the message store has stopped") from error

    def read_many(self, msg_ids: Sequence[bytes]) -> list[bytes]:
        in_flight = self._in_flight
        if not in_flight:
            return self._reading.read_many(msg_ids)
        bodies = {msg_id: bytes(in_flight[msg_id][1]) for msg_id in msg_ids if msg_id in in_flight}
        missing_ids = [msg_id for msg_id in msg_ids if msg_id not in bodies]
        bodies.update(zip(missing_ids, self._reading.read_many(missing_ids), strict=True))
        return [bodies[msg_id] for msg_id in msg_ids]

    def contains(self, msg_id: bytes) -> bool:
        return (self._in_flight is not None and msg_id in self._in_flight) or self._reading.contains(msg_id)

    def sync(self) -> None:
        """Ask the store to make written bodies safe soon, for a waiting caller. ``safe_ticket`` says when."""
        if self.safe_ticket < self.written_ticket:
            self._tell(SyncStore())

    def wait_until_taken(self) -> None:
        """Wait until the store has taken everything written, by asking it after that."""
        try:
            self._actor.ask(Call(lambda: None))
        except ActorDeadError as error:
            raise ActorStoppedError("the message store has stopped") from error
        self.progress(self.written_ticket, self.safe_ticket)

    def progress(self, taken: int, safe: int) -> bool:
        """Note how far the store is; this may come later than the result of :meth:`wait_until_taken`."""
        if not super().progress(taken, safe):
            return False
        self._let_leave(taken)
        in_flight = self._in_flight
        if in_flight is not None:
            if taken == self.written_ticket:
                self._in_flight = None
            else:  # a body that was written again has its latest ticket
                for msg_id in [msg_id for msg_id, (ticket, _) in in_flight.items() if ticket <= taken]:
                    del in_flight[msg_id]
        return True

    def _let_leave(self, taken_ticket: int) -> None:
        """Release the bytes of everything handed over up to a ticket."""
        on_the_way = self._on_the_way
        if on_the_way is None:
            return
        size_bytes = 0
        while on_the_way and on_the_way[0][0] <= taken_ticket:
            size_bytes += on_the_way.popleft()[1]
        if not on_the_way:
            self._on_the_way = None
        self._gate.leave(size_bytes)

    def give_up(self) -> None:
        """Release all bytes: the queue has ended, and no longer notes progress."""
        self._let_leave(self.written_ticket)

    def leave(self) -> None:
        """Tell the store that this client is gone."""
        if not self._joined:
            return
        with contextlib.suppress(ActorDeadError):
            self._actor.tell(LeaveStore(self.client))
