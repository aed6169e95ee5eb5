"""A node's message stores, simulated: the engine and its turns, and a process that pays for what they do to the disk.

As in the runtime a queue hands bodies over and goes on; the store says in its own time that it has taken them and that
they are safe (:class:`~warren.actors.engines.store_turn.StoreTurn`). The bodies stand in the engine's buffer at once,
so that a queue can read what is on its way.

A disk does one operation at a time, in the order in which they were asked for (:class:`DiskTime`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy

from warren.actors.engines.credit import GrantedCredit, StoreTickets
from warren.actors.engines.node_settings import NodeSettings
from warren.actors.engines.store_turn import StoreTurn
from warren.msg_store.rdq.message_store import MessageStore
from warren.simulation.node.virtual_time import Event, VirtualTime
from warren.simulation.scenarios.node_spec import Disk
from warren.simulation.scenarios.units import NS, ns
from warren.storage.counted import CountedFileSystem, DiskAccount
from warren.storage.errors import NoRoomError
from warren.storage.pieces import Whole


class DiskTime:
    """The disk of one node."""

    def __init__(self, env: simpy.Environment, disk: Disk) -> None:
        self._env = env
        self._disk = disk
        self._latency_ns, self._fsync_ns = ns(disk.latency), ns(disk.fsync)
        self._free_at_ns = 0
        self._given_ns = 0
        """All work that it was given, including what is still to be done."""

    @property
    def busy_ns(self) -> int:
        """The time for which the disk has worked until now."""
        return self._given_ns - max(self._free_at_ns - int(self._env.now), 0)

    def cost_ns(self, work: DiskAccount) -> int:
        """Return the time that the disk needs for ``work``."""
        size = work.read_bytes + work.written_bytes
        transfer_ns = size * NS // self._disk.bandwidth
        return transfer_ns + work.reads * self._latency_ns + work.syncs * self._fsync_ns

    def use(self, cost_ns: int) -> Generator[Any, Any, None]:
        """Wait until the disk is free and has then worked for ``cost_ns``."""
        now = int(self._env.now)
        self._free_at_ns = max(now, self._free_at_ns) + cost_ns
        self._given_ns += cost_ns
        yield self._env.timeout(self._free_at_ns - now)


class DiskUser:
    """Something that makes the disk work, and waits for it."""

    def __init__(self, disk: DiskTime) -> None:
        self.account = DiskAccount()
        self._disk = disk
        self._waited_for = DiskAccount()

    def wait(self) -> Generator[Any, Any, None]:
        """Wait as long as the disk needs for what has been done since the last wait."""
        cost_ns = self._disk.cost_ns(self.account.since(self._waited_for))
        if cost_ns:
            self._waited_for = self.account.copy()
            yield from self._disk.use(cost_ns)


class NeverFull:
    """The part of a turn's host that hears of a full disk. A simulated disk is never full."""

    is_short_of_disk = False

    def disk_is_full(self, error: NoRoomError, *, since_now: bool) -> None:
        raise RuntimeError("a simulated disk is never full") from error

    def disk_has_room(self) -> None:
        raise RuntimeError("a simulated disk is never full")

    def not_safe(self, waiting: Any, error: NoRoomError) -> None:
        raise RuntimeError("a simulated disk is never full") from error

    store_full = not_safe


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
