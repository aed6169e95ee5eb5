"""StoreTurn: what a shared message store does in one turn, independent of its host.

Queues hand bodies over in batches, under *tickets*: a client counts what it has handed over. A turn takes the bodies
that have arrived, makes them safe if necessary, and notifies each client up to which ticket bodies are taken (credit)
and up to which they are safe (confirms). Syncs are grouped: a body waits for others at most :data:`SYNC_DELAY_NS`,
unless a client waits for it, or the setting ``sync`` allows no wait.

Compaction goes step by step, one file operation per turn, after the bodies that arrived meanwhile: writers do not wait
for it.

A current file that holds only garbage is replaced once nothing was written for :data:`IDLE_NS`, if it is large; under a
disk alarm at once, whatever its size, because consumers cannot write their acks before there is room.

On a full disk bodies stay in the store's buffer, and can be read there. No more credit is given, and the clients are
notified that what they handed over is not safe.

The hosts are :class:`warren.actors.node.store_actor.MessageStoreActor` and
:class:`warren.simulation.node.simulated_store.SimulatedStore`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import attrs

from warren.actors.engines.back_off import MAX_WAIT_NS, FullDisk
from warren.msg_store.rdq.message_store import REPLACED_BYTES, MessageStore
from warren.storage.errors import DiskFullError, NoRoomError
from warren.storage.pieces import Whole

SYNC_DELAY_NS: Final = 25_000_000
"""How long a body waits for others to be synced with: RabbitMQ's 25 ms."""

IDLE_NS: Final = 1_000_000_000
"""How long nothing is written before a file of garbage is replaced. A busy store fills its file soon, and rolls."""

C = TypeVar("C", bound=Hashable)
Client_contra = TypeVar("Client_contra", bound=Hashable, contravariant=True)


class StoreTurnHost(Protocol[Client_contra]):
    """What a turn needs of its host. ``Client_contra``: the type that identifies a client."""

    def call_soon(self, work: Callable[[], object]) -> None:
        """Do ``work`` in a later turn, after what has come meanwhile."""

    def call_later(self, key: str, wait_ns: int, work: Callable[[], object]) -> None:
        """Do ``work`` in a turn after ``wait_ns``; replaces a timer of that key."""

    @property
    def is_short_of_disk(self) -> bool:
        """Whether the node's disk alarm is set."""

    def disk_is_full(self, error: NoRoomError, *, since_now: bool) -> None:
        """Note that the disk had no room for what was written."""

    def disk_has_room(self) -> None:
        """Note that the disk has room again."""

    def store_full(self, client: Client_contra, error: NoRoomError) -> None:
        """Tell a client that what it handed over is not safe."""


@attrs.frozen
class Progress(Generic[C]):
    """Up to which tickets a client's bodies are in the store, and safe."""

    client: C
    taken_ticket: int
    safe_ticket: int


@attrs.define
class _Tickets:
    taken: int = 0
    safe: int = 0
    told_taken: int = 0
    told_safe: int = 0


class StoreTurn(Generic[C]):
    """One store's turns. See the module's prose."""

    def __init__(self, host: StoreTurnHost[C], store: MessageStore, *, sync: str) -> None:
        self.store = store
        self._host = host
        self._sync = sync
        self._clients: dict[C, _Tickets] = {}
        self._touched: dict[C, None] = {}
        """Clients with bodies taken or made safe since their last notification."""
        self._hurry = self._sync_armed = self._room_armed = self._compacting = False
        self._idle_ticket: int | None = None
        """How much had been written when the idle timer was armed."""
        self._full_disk: FullDisk | None = None

    # ── clients ─────────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, client: C) -> None:
        """A queue begins to use the store."""
        self._clients[client] = _Tickets()

    def leave(self, client: C) -> None:
        """Remove the client of a queue that has ended; it gets no more notifications."""
        self._clients.pop(client, None)

    def write(self, client: C, msg_ids: Sequence[bytes], messages: Sequence[Whole], ticket: int) -> None:
        """Take bodies. ``ticket``: how many this client has handed over with these."""
        try:
            self.store.write_many(msg_ids, messages)
        except NoRoomError as error:  # they wait in the store's buffer
            self._wait_for_room(error)
        tickets = self._clients.get(client)
        if tickets is not None:
            tickets.taken = ticket
            self._touched[client] = None

    def hurry(self) -> None:
        """Sync what was written at the end of this turn, because a client waits for it."""
        self._hurry = True

    def forget_the_past(self) -> None:
        """Make what was handed over until now safe, without notifying clients."""
        if self.store.synced_ticket < self.store.written_ticket:
            self.store.sync()
        for tickets in self._clients.values():
            tickets.safe = tickets.told_taken = tickets.told_safe = tickets.taken
        self._touched.clear()

    # ── the end of a turn ───────────────────────────────────────────────────────────────────────────────────────

    def make_safe(self) -> list[Progress[C]]:
        """The first step: make safe what has to be. Returns what the clients are to be told next."""
        store = self.store
        if store.synced_ticket < store.written_ticket:
            if self._hurry or (self._sync != "group" and self._full_disk is None):
                self._sync_now()
            elif not self._sync_armed and self._full_disk is None:
                self._sync_armed = True
                self._host.call_later("sync", SYNC_DELAY_NS, self._sync_due)
        self._hurry = False
        return self._progress() if self._touched else []

    def finish(self) -> None:
        """The second step, after the clients are notified: schedule garbage collection."""
        if not self._compacting and self.store.needs_compaction():
            self._compacting = True
            self._host.call_soon(self._compact_step)
        if garbage_bytes := self.store.current_garbage_bytes:
            if self._host.is_short_of_disk:
                self.store.replace_current()
            elif garbage_bytes >= REPLACED_BYTES and self._idle_ticket is None:
                self._idle_ticket = self.store.written_ticket
                self._host.call_later("idle", IDLE_NS, self._idle_due)

    def _progress(self) -> list[Progress[C]]:
        """Return what the clients are to be told. On a full disk they get no credit for bodies that are not safe."""
        progress = []
        for client in self._touched:
            tickets = self._clients.get(client)
            if tickets is None:
                continue
            taken = tickets.taken if self._full_disk is None else max(tickets.told_taken, tickets.safe)
            if tickets.told_taken < taken or tickets.told_safe < tickets.safe:
                tickets.told_taken, tickets.told_safe = taken, tickets.safe
                progress.append(Progress(client, taken, tickets.safe))
        self._touched.clear()
        return progress

    def _sync_now(self) -> None:
        if self.store.synced_ticket < self.store.written_ticket:
            try:
                self.store.sync()
            except NoRoomError as error:
                self._wait_for_room(error)
                return
        if self._full_disk is not None:
            self._full_disk = None
            self._host.disk_has_room()
        for client, tickets in self._clients.items():
            if tickets.safe < tickets.taken:
                tickets.safe = tickets.taken
                self._touched[client] = None

    def _wait_for_room(self, error: NoRoomError) -> None:
        since_now = self._full_disk is None
        if self._full_disk is None:
            self._full_disk = FullDisk()
        self._host.disk_is_full(error, since_now=since_now)
        if not self._room_armed:
            self._room_armed = True
            self._host.call_later("room", self._full_disk.next_wait_ns(), self._room_due)
        for client, tickets in self._clients.items():
            if tickets.safe < tickets.taken:
                self._host.store_full(client, error)

    # ── timers, and what comes later ────────────────────────────────────────────────────────────────────────────

    def _sync_due(self) -> None:
        """Sync, because bodies have waited long enough for others."""
        self._sync_armed = False
        self._sync_now()

    def _room_due(self) -> None:
        """Check whether there is room again for what could not be written."""
        self._room_armed = False
        self._sync_now()

    def _idle_due(self) -> None:
        """Replace the current file, if nothing was written since the timer was armed."""
        if self._idle_ticket == self.store.written_ticket:
            self.store.replace_current()
        self._idle_ticket = None

    def _compact_step(self) -> None:
        """Do one step of a compaction; retry later if there is no room for it."""
        self._compacting = False
        if not self.store.needs_compaction():
            return
        try:
            self.store.compact(max_steps=1)
        except DiskFullError:
            if not self.store.is_usable:
                raise
            self._compacting = True
            self._host.call_later("compact", MAX_WAIT_NS, self._compact_step)
