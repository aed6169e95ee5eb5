"""The actor of a shared message store, and a queue's way to it.

One writer: the :class:`MessageStoreActor` owns the :class:`~msg_store.message_store.MessageStore` and everything that
changes it. A queue's :class:`RemoteStore` tells it what to write and to remove, in batches, and reads for itself:
reading a store is safe from any thread, and what is still on its way to the store lies with the queue.

Tickets. A client numbers what it hands over. The store answers with the ticket up to which it has taken bodies
(credit) and up to which they are safe (confirms), once a turn. Syncs are grouped: a body waits for others at most
:data:`SYNC_DELAY_NS`, unless somebody waits for it.

Compaction goes step by step, a file operation a turn, behind what has come meanwhile: writers do not wait for it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final

import attrs
from pykka import ActorDeadError, ActorRef

from actors.clock import Clock
from actors.gate import Gate
from actors.messages import (
    CloseStore,
    CompactStep,
    CountReferences,
    DiskRoom,
    ExpectReferences,
    GetStoreStatus,
    JoinStore,
    LeaveStore,
    RemoveBodies,
    RoomDue,
    StartTimer,
    StoreFailed,
    StoreFull,
    StoreProgress,
    SyncDue,
    SyncStore,
    WriteBodies,
)
from actors.pool import ActorStoppedError, Pool, PooledActor
from actors.timer import tell
from msg_store.message_store import MessageStore
from storage.errors import DiskFullError, NoRoomError

_LOG = logging.getLogger("warren.store")

SYNC_DELAY_NS: Final = 25_000_000
"""How long a body waits for others to be synced with: RabbitMQ's 25 ms."""

ROOM_INTERVAL_NS: Final = 1_000_000_000
"""After so long what found no room on the disk is tried again; then after twice as long, and so on."""
MAX_ROOM_INTERVAL_NS: Final = 16_000_000_000


@attrs.define
class _Client:
    queue: ActorRef[Any]
    taken_ticket: int = 0
    told_taken: int = 0
    safe_ticket: int = 0


class MessageStoreActor(PooledActor):
    """Owner of one store."""

    def __init__(
        self,
        pool: Pool,
        store: MessageStore,
        *,
        name: str,
        clock: Clock,
        timer: ActorRef[Any],
        node: ActorRef[Any],
        sync: str,
        tell_monitor: Callable[[object], object] = lambda _: None,
    ) -> None:
        super().__init__(pool)
        self.store = store
        self._name = name
        self._clock = clock
        self._timer = timer
        self._node = node
        self._sync = sync
        self._clients: dict[int, _Client] = {}
        self._touched: set[int] = set()
        self._sync_armed = self._hurry = self._compacting = False
        self._tell_monitor = tell_monitor
        self._no_room: NoRoomError | None = None
        self._room_armed = False
        self._room_wait_ns = ROOM_INTERVAL_NS
        self._expected: frozenset[str] | None = None
        self._counted: set[str] = set()
        self._references: Counter[bytes] = Counter()

    def describe(self) -> str:
        return self._name

    def on_receive(self, message: object) -> object:  # noqa: PLR0912 - a table of messages
        match message:
            case WriteBodies():
                self._write(message)
            case RemoveBodies():
                self.store.remove_many(message.msg_ids)
            case SyncStore():
                self._hurry = True
            case SyncDue():
                self._sync_armed = False
                self._make_safe()
            case RoomDue():
                self._room_armed = False
                self._make_safe()
            case CompactStep():
                self._compacting = False
                if self.store.needs_compaction():
                    self._compact_step()
            case JoinStore():
                self._clients[message.client] = _Client(message.queue)
            case LeaveStore():
                self._clients.pop(message.client, None)
            case ExpectReferences():
                self._expected = message.entries
                self._finish_counting()
            case CountReferences():
                self._references.update(message.references)
                self._counted.add(message.entry)
                self._finish_counting()
            case GetStoreStatus():
                return self.store.status()
            case CloseStore():
                self.store.close(message.token)
                self._tell_monitor(DiskRoom(self.actor_ref, found=True))
                self._stop()
            case _:
                raise RuntimeError(f"a store cannot handle {message!r}")
        return None

    def _write(self, message: WriteBodies) -> None:
        try:
            self.store.write_many(message.msg_ids, message.messages)
        except NoRoomError as error:  # they wait in the store's buffer
            self._wait_for_room(error)
        client = self._clients.get(message.client)
        if client is not None:
            client.taken_ticket = message.ticket
            self._touched.add(message.client)

    def _finish_counting(self) -> None:
        if self._expected is not None and self._expected <= self._counted and not self.store.status().counted:
            self.store.set_references(self._references.items())
            self._references = Counter()

    # ── the end of a turn ───────────────────────────────────────────────────────────────────────────────────────

    def on_turn_end(self) -> None:
        if self.store.synced_ticket < self.store.written_ticket:
            if self._hurry or (self._sync != "group" and self._no_room is None):
                self._make_safe()
            elif not self._sync_armed and self._no_room is None:
                self._sync_armed = True
                due_ns = self._clock.now_ns() + SYNC_DELAY_NS
                self._timer.tell(StartTimer(self.actor_ref, "sync", due_ns, SyncDue()))
        self._hurry = False
        if self._no_room is None:  # else nobody gets credit for more
            for number in self._touched:
                client = self._clients.get(number)
                if client is not None and client.told_taken < client.taken_ticket:
                    self._tell_progress(number, client)
            self._touched.clear()
        if not self._compacting and self.store.needs_compaction():
            self._compacting = True
            self.actor_ref.tell(CompactStep())

    def _compact_step(self) -> None:
        """One step; where there is no room for it, again in a while."""
        try:
            self.store.compact(max_steps=1)
        except DiskFullError:
            if not self.store.is_usable:
                raise
            self._compacting = True
            self._start_timer("compact", MAX_ROOM_INTERVAL_NS, CompactStep())

    def _wait_for_room(self, error: NoRoomError) -> None:
        """The disk is full: tell everybody, and look again in a while; what was handed over can be read meanwhile."""
        if self._no_room is None:
            _LOG.warning("%s waits for room on the disk: %s", self.describe(), error)
            self._room_wait_ns = ROOM_INTERVAL_NS
        self._no_room = error
        self._tell_monitor(DiskRoom(self.actor_ref, found=False))
        if not self._room_armed:
            self._room_armed = True
            self._start_timer("room", self._room_wait_ns, RoomDue())
            self._room_wait_ns = min(2 * self._room_wait_ns, MAX_ROOM_INTERVAL_NS)
        for number, client in self._clients.items():
            if client.safe_ticket < client.taken_ticket:
                tell(client.queue, StoreFull(number, error))

    def _found_room(self) -> None:
        if self._no_room is not None:
            _LOG.warning("%s: there is room on the disk again", self.describe())
            self._no_room = None
            self._tell_monitor(DiskRoom(self.actor_ref, found=True))

    def _start_timer(self, key: str, wait_ns: int, message: object) -> None:
        tell(self._timer, StartTimer(self.actor_ref, key, self._clock.now_ns() + wait_ns, message))

    def _make_safe(self) -> None:
        if self.store.synced_ticket < self.store.written_ticket:
            try:
                self.store.sync()
            except NoRoomError as error:
                self._wait_for_room(error)
                return
        self._found_room()
        for number, client in self._clients.items():
            if client.safe_ticket < client.taken_ticket:
                client.safe_ticket = client.taken_ticket
                self._tell_progress(number, client)

    def _tell_progress(self, number: int, client: _Client) -> None:
        client.told_taken = client.taken_ticket
        tell(client.queue, StoreProgress(number, client.taken_ticket, client.safe_ticket))

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.store.abandon()
        self._tell_monitor(DiskRoom(self.actor_ref, found=True))
        error = exception_value if exception_value is not None else RuntimeError("no error")
        tell(self._node, StoreFailed(self.actor_ref, error))


class GrantedCredit:
    """A queue's credit towards a store: spent with every body, given back when the store has taken them."""

    __slots__ = ("_initial", "_more_after", "_taken", "blocked", "credit")

    def __init__(self, initial: int, more_after: int) -> None:
        self._initial = initial
        self._more_after = more_after
        self._taken = 0
        self.credit = initial
        self.blocked = False

    def spend(self, count: int) -> None:
        """Hand ``count`` bodies over; blocked once nothing is left."""
        self.credit -= count
        if self.credit <= 0:
            self.blocked = True

    def take_back(self, count: int) -> None:
        """The store has taken ``count`` bodies; it grants them in portions of ``more_after``."""
        self._taken += count
        portions, self._taken = divmod(self._taken, self._more_after)
        if self.credit + portions * self._more_after + self._taken >= self._initial:
            portions, self._taken, self.credit = 0, 0, self._initial  # all is taken: nothing is left to wait for
        self.credit += portions * self._more_after
        if self.credit > 0:
            self.blocked = False

    def receive_grant(self) -> bool:
        """Grants arrive by :meth:`take_back` alone."""
        return False


class RemoteStore:
    """One queue's way into one store; what :class:`queue_index.body_store.BodyStore` asks for."""

    __slots__ = (
        "_actor",
        "_gate",
        "_in_flight",
        "_on_the_way",
        "_reading",
        "client",
        "credit",
        "safe_ticket",
        "taken_ticket",
        "written_ticket",
    )

    def __init__(
        self, actor: ActorRef[Any], reading: MessageStore, client: int, credit: GrantedCredit, gate: Gate
    ) -> None:
        self._actor = actor
        self._reading = reading
        self._gate = gate
        self._on_the_way: deque[tuple[int, int]] | None = None
        """What was handed over and not taken yet: ticket and bytes."""
        self._in_flight: dict[bytes, tuple[int, bytes]] | None = None
        self.client = client
        self.credit = credit
        self.written_ticket = 0
        self.taken_ticket = 0
        self.safe_ticket = 0

    @property
    def synced_ticket(self) -> int:
        return self.safe_ticket

    def write_many(self, msg_ids: Sequence[bytes], messages: Sequence[bytes]) -> None:
        ticket = self.written_ticket = self.written_ticket + len(msg_ids)
        if self._in_flight is None:
            self._in_flight = {}
        self._in_flight.update(zip(msg_ids, ((ticket, message) for message in messages), strict=True))
        if self._on_the_way is None:
            self._on_the_way = deque()
        self._on_the_way.append((ticket, self._gate.enter(sum(map(len, messages)))))
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
        here = {msg_id: in_flight[msg_id][1] for msg_id in msg_ids if msg_id in in_flight}
        rest = [msg_id for msg_id in msg_ids if msg_id not in here]
        here.update(zip(rest, self._reading.read_many(rest), strict=True))
        return [here[msg_id] for msg_id in msg_ids]

    def contains(self, msg_id: bytes) -> bool:
        return (self._in_flight is not None and msg_id in self._in_flight) or self._reading.contains(msg_id)

    def sync(self) -> None:
        """Ask for what was written to be made safe soon: somebody waits. ``synced_ticket`` says when it is."""
        if self.safe_ticket < self.written_ticket:
            self._tell(SyncStore())

    def wait_until_taken(self) -> None:
        """Come back when the store has taken all that was written: it is asked behind that, so that its turn comes."""
        try:
            self._actor.ask(GetStoreStatus())
        except ActorDeadError as error:
            raise ActorStoppedError("the message store has stopped") from error
        self.progress(StoreProgress(self.client, self.written_ticket, self.safe_ticket))

    def progress(self, message: StoreProgress) -> None:
        """The store has told how far it is; perhaps later than :meth:`wait_until_taken` found out."""
        self.safe_ticket = max(self.safe_ticket, message.safe_ticket)
        if message.taken_ticket < self.taken_ticket:
            return
        self.credit.take_back(message.taken_ticket - self.taken_ticket)
        self.taken_ticket = message.taken_ticket
        self._let_leave(message.taken_ticket)
        in_flight = self._in_flight
        if in_flight is not None:
            if message.taken_ticket == self.written_ticket:
                self._in_flight = None
            else:  # in the order in which they were written; one that was written again has its last place
                for msg_id in [one for one, (ticket, _) in in_flight.items() if ticket <= message.taken_ticket]:
                    del in_flight[msg_id]

    def _let_leave(self, taken_ticket: int) -> None:
        """What was handed over up to a ticket is not on the way any more."""
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
        """The queue has ended: nobody hears any more what the store takes."""
        self._let_leave(self.written_ticket)

    def leave(self) -> None:
        """Tell the store that this client is no more."""
        with contextlib.suppress(ActorDeadError):
            self._actor.tell(LeaveStore(self.client))
