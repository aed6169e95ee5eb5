"""A node's message stores, simulated: the engine and its turns, and a process that pays for what they do to the disk.

As in the runtime a queue hands bodies over and goes on; the store says in its own time that it has taken them and that
they are safe (:class:`~warren.actors.engines.store_turn.StoreTurn`). The bodies stand in the engine's buffer at once,
so that a queue can read what is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from warren.actors.engines.credit import GrantedCredit, StoreTickets
from warren.actors.engines.node_settings import NodeSettings
from warren.actors.engines.store_turn import StoreTurn
from warren.msg_store.rdq.message_store import MessageStore
from warren.simulation.node.disk_time import DiskTime, DiskUser, NeverFull
from warren.simulation.node.virtual_time import Event, VirtualTime
from warren.storage.counted import CountedFileSystem, DiskAccount
from warren.storage.pieces import Whole


class SimulatedStore(NeverFull):
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
        self.disk = DiskUser(disk)
        self.turns = StoreTurn[StoreLink](self, store, sync=settings.sync)
        self._files = files
        self._time = time
        self._turn_requested = Event(time.env)
        self._has_work = False
        self._timers_due: list[Callable[[], object]] = []
        time.env.process(self._live())

    def charging(self) -> Any:
        """Return a block in which a queue makes the store work. The disk's work in it is charged to the store."""
        return self._files.charging(self.disk.account)

    def want_turn(self) -> None:
        """Have a turn as soon as the last one is over."""
        self._has_work = True
        self._turn_requested.set()

    def begin(self) -> None:
        """Begin the simulation. What was handed over before is safe and cost nothing."""
        self.turns.forget_the_past()
        self._has_work = False
        self.disk.account = DiskAccount()

    def _live(self) -> Generator[Any, Any, None]:
        while True:
            if not self._has_work:
                yield self._turn_requested.wait()
                continue
            self._has_work = False
            with self.charging():
                due, self._timers_due = self._timers_due, []
                for call in due:
                    call()
                reports = self.turns.make_safe()
            yield from self.disk.wait()
            for progress in reports:
                progress.client.tell(progress.taken_ticket, progress.safe_ticket)
            self.turns.finish()

    # ── what the turn has for others (:class:`~warren.actors.engines.store_turn.StoreTurnHost`) ─────────────────

    def call_soon(self, work: Callable[[], object]) -> None:
        self._timers_due.append(work)
        self.want_turn()

    def call_later(self, key: str, wait_ns: int, work: Callable[[], object]) -> None:
        self._time.after(wait_ns, lambda: self.call_soon(work))


class StoreLink(StoreTickets):
    """One queue's way into one store; what :class:`warren.queue_index.queue.body_store.BodyStore` asks for."""

    __slots__ = ("_store", "tell")

    def __init__(self, store: SimulatedStore, credit: tuple[int, int]) -> None:
        super().__init__(GrantedCredit(*credit))
        self._store = store
        self.tell: Callable[[int, int], object] = self.progress
        """How the queue hears how far the store is."""
        store.turns.join(self)

    def write_many(self, msg_ids: Sequence[bytes], messages: Sequence[Whole]) -> None:
        self.written_ticket += len(msg_ids)
        with self._store.charging():
            self._store.turns.write(self, msg_ids, messages, self.written_ticket)
        self._store.want_turn()

    def remove_many(self, msg_ids: Sequence[bytes]) -> None:
        with self._store.charging():
            self._store.store.remove_many(msg_ids)
        if self._store.store.needs_compaction():
            self._store.want_turn()

    def read_many(self, msg_ids: Sequence[bytes]) -> list[bytes]:
        return self._store.store.read_many(msg_ids)

    def contains(self, msg_id: bytes) -> bool:
        return self._store.store.contains(msg_id)

    def sync(self) -> None:
        """Ask the store to make safe soon what was written."""
        if self.safe_ticket < self.written_ticket:
            self._store.turns.hurry()
            self._store.want_turn()

    def wait_until_taken(self) -> None:
        """Let the store take all that was written. A change of mode does not end before."""
        self.progress(self.written_ticket, 0)
