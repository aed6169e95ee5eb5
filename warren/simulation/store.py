"""A node's message stores, simulated: the very engine, and a process that pays for what it does to the disk.

As in the runtime a queue hands bodies over and goes on; the store takes them in its own time, grants credit when it
has, and says when they are safe. The bodies stand in the engine's buffer at once, so that a queue can read what is on
its way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from actors.engines.node_settings import NodeSettings
from actors.store_actor import SYNC_DELAY_NS, GrantedCredit
from msg_store.message_store import MessageStore
from storage.counted import CountedFileSystem, DiskAccount
from warren.simulation.disk_time import DiskTime
from warren.simulation.virtual_time import Bell, VirtualTime


class SimulatedStore:
    """One store and its process."""

    def __init__(
        self,
        store: MessageStore,
        files: CountedFileSystem,
        time: VirtualTime,
        disk: DiskTime,
        settings: NodeSettings,
    ) -> None:
        self.store = store
        self.account = DiskAccount()
        self._files = files
        self._time = time
        self._disk = disk
        self._sync = settings.sync
        self._bell = Bell(time.env)
        self._touched: dict[StoreLink, None] = {}
        self._unsafe: dict[StoreLink, None] = {}
        self._hurry = self._sync_armed = self._compacting = self._shrunk = False
        self._paid = DiskAccount()
        time.env.process(self._live())

    def touched(self, link: StoreLink) -> None:
        """A queue has handed bodies over."""
        self._touched[link] = None
        self._unsafe[link] = None
        self._bell.ring()

    def shrunk(self) -> None:
        """Bodies were removed: there may be something to combine."""
        if not self._shrunk and self.store.needs_compaction():
            self._shrunk = True
            self._bell.ring()

    def hurry(self) -> None:
        """Somebody waits for what was written to be safe."""
        self._hurry = True
        self._bell.ring()

    def charging(self) -> Any:
        """For what a queue makes it do: the store's own work."""
        return self._files.charging(self.account)

    def begin(self) -> None:
        """What was handed over until now was there before the simulation: it is safe, and cost nothing."""
        if self.store.synced_ticket < self.store.written_ticket:
            self.store.sync()
        self._touched, self._unsafe = {}, {}
        self.account = DiskAccount()

    def _live(self) -> Generator[Any, Any, None]:
        store = self.store
        while True:
            if not (self._touched or self._hurry or self._compacting or self._shrunk):
                yield self._bell.wait()
                continue
            with self.charging():
                if self._compacting and store.needs_compaction():
                    store.compact(max_steps=1)
                synced = self._sync_if_due()
                self._compacting = store.needs_compaction()
            self._hurry = self._shrunk = False
            told, self._touched = self._touched, {}
            if synced:
                told |= self._unsafe
                self._unsafe = {}
            tickets = [(link, link.written_ticket) for link in told]
            cost_ns = self._disk.cost_ns(self.account.since(self._paid))
            if cost_ns:
                self._paid = self.account.copy()
                yield from self._disk.use(cost_ns)
            for link, ticket in tickets:
                link.tell(ticket, ticket if synced else 0)

    def _sync_if_due(self) -> bool:
        store = self.store
        if store.synced_ticket == store.written_ticket:
            return False
        if self._hurry or self._sync != "group":
            store.sync()
            return True
        if not self._sync_armed:
            self._sync_armed = True
            self._time.after(SYNC_DELAY_NS, self._sync_due)
        return False

    def _sync_due(self) -> None:
        self._sync_armed = False
        self.hurry()


class StoreLink:
    """One queue's way into one store; what :class:`queue_index.body_store.BodyStore` asks for."""

    __slots__ = ("_store", "_taken", "credit", "synced_ticket", "tell", "written_ticket")

    def __init__(self, store: SimulatedStore, credit: tuple[int, int]) -> None:
        self._store = store
        self.tell: Callable[[int, int], None] = self.progress
        """How the queue hears, as the store goes on, up to which tickets it has taken bodies and has them safe."""
        self._taken = 0
        self.credit = GrantedCredit(*credit)
        self.written_ticket = 0
        self.synced_ticket = 0

    def write_many(self, msg_ids: Sequence[bytes], messages: Sequence[bytes]) -> None:
        with self._store.charging():
            self._store.store.write_many(msg_ids, messages)
        self.written_ticket += len(msg_ids)
        self._store.touched(self)

    def remove_many(self, msg_ids: Sequence[bytes]) -> None:
        with self._store.charging():
            self._store.store.remove_many(msg_ids)
        self._store.shrunk()

    def read_many(self, msg_ids: Sequence[bytes]) -> list[bytes]:
        return self._store.store.read_many(msg_ids)

    def contains(self, msg_id: bytes) -> bool:
        return self._store.store.contains(msg_id)

    def sync(self) -> None:
        """Ask for what was written to be made safe soon."""
        if self.synced_ticket < self.written_ticket:
            self._store.hurry()

    def wait_until_taken(self) -> None:
        """Let all that was written be taken: a change of mode does not end before."""
        self.progress(self.written_ticket, 0)

    def progress(self, taken: int, safe: int) -> None:
        """The store is so far, perhaps later than :meth:`wait_until_taken` found out; in the queue's turn."""
        self.synced_ticket = max(self.synced_ticket, safe)
        if taken > self._taken:
            self.credit.take_back(taken - self._taken)
            self._taken = taken
