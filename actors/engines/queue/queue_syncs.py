"""QueueSyncs: when what a queue took is made safe, and what happens if the disk is full.

Syncs are grouped. What was published is synced after the node's ``sync_interval_ms``, or at once if a publisher waits;
after every turn with ``sync="always"``. With ``"os"`` it is written and not synced. Settlements, which have no waiters,
are synced along with publishes, or within the same time.

*A full disk.* What cannot be written stays in memory, and is retried after growing waits. Publishers that wait for a
confirm are notified at once that their messages are not safe; consumers continue.
"""

from __future__ import annotations

from typing import Any

import attrs

from warren.actors.engines.back_off import FullDisk
from warren.actors.engines.queue.queue_turn_host import QueueStore, TurnContext
from warren.storage.errors import NoRoomError


@attrs.define(eq=False, repr=False)
class QueueSyncs:
    """The syncs of one queue. See the module's prose."""

    _context: TurnContext
    waiting: dict[Any, None] = attrs.Factory(dict)
    """Tokens of publishes that have not been answered."""
    settled: bool = False
    """Whether settlements are not safe yet: a crash would bring the messages back."""
    is_armed: bool = False
    """Whether a turn comes within the sync interval."""
    wants_turn: bool = False
    """Whether the next turn syncs."""
    is_store_full: bool = False
    full_disk: FullDisk | None = None
    _synced_ns: int = 0

    def end_turn(self, *, hurry: bool, may_wait: bool) -> None:
        """Sync what publishers wait for, and what was settled: now, or when the timer expires.

        ``hurry``: a publisher waits for a confirm. ``may_wait``: whether to wait for the disk; else the next turn does.
        """
        context = self._context
        if self.wants_turn:
            hurry, self.wants_turn = True, False
        if hurry and context.host.has_work():
            self.wants_turn = True  # the publish to be confirmed may still be in the inbox
        if not (self.waiting or self.settled or (hurry and self.is_store_full)):
            return
        mode = context.settings.sync
        if not may_wait and mode != "os" and (hurry or mode == "always"):
            self.wants_turn = True
        elif hurry or (self.waiting and mode == "always" and self.full_disk is None):
            self._sync()
        else:
            self.arm()
        context.process.confirms.drain()

    def _sync(self) -> None:
        context = self._context
        try:
            if context.settings.sync == "os":
                context.process.backing.write_out()
            else:
                context.process.backing.sync_index()
            if context.process.settlements.retries is not None:
                context.process.settlements.retries.sync()
        except NoRoomError as error:
            context.process.confirms.drain()
            self._wait_for_room(error)
            return
        self._note_room()
        for store in context.stores:
            store.sync()
        self.settled = False
        self._synced_ns = context.clock.now_ns()
        if self.waiting and context.settings.sync != "always":
            self.arm()  # the publisher's next message may wait for the next turn

    def sync_index(self) -> None:
        """Make settlements safe now. Publishes are safe when their tokens have been answered.

        Raises :class:`~warren.storage.errors.NoRoomError`.
        """
        process = self._context.process
        self._context.worked = self.wants_turn = True
        try:
            process.backing.sync_index()
            if process.settlements.retries is not None:
                process.settlements.retries.sync()
        except NoRoomError as error:
            self._wait_for_room(error)
            raise
        self._note_room()
        self.settled = False

    # ── the timer ───────────────────────────────────────────────────────────────────────────────────────────────

    def arm(self, wait_ns: int | None = None) -> None:
        """Let a turn come after ``wait_ns``, unless one comes already; ``None``: after the sync interval."""
        if self.is_armed:
            return
        self.is_armed = True
        self._context.host.call_later("sync", self._context.sync_interval_ns if wait_ns is None else wait_ns, self.due)

    def due(self) -> None:
        """Sync pending writes at this turn's end, or later if another sync has happened meanwhile."""
        context = self._context
        self.is_armed = False
        wait_ns = self._synced_ns + context.sync_interval_ns - context.clock.now_ns()
        if wait_ns > 0 and self.full_disk is None:
            self.arm(wait_ns)
        else:
            context.worked = self.wants_turn = True

    @property
    def are_current(self) -> bool:
        """Whether nothing waits to be made safe, and the last sync is not longer ago than the sync interval."""
        if self.waiting or self.wants_turn or self.full_disk is not None or self.is_store_full:
            return False
        return self._context.clock.now_ns() < self._synced_ns + self._context.sync_interval_ns

    # ── room on the disk ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def waits_for_room(self) -> bool:
        """Whether a full disk keeps something from being safe."""
        return self.full_disk is not None or self.is_store_full

    def store_progress(self, store: QueueStore, taken: int, safe: int) -> None:
        """Note a store's progress. If that unblocks paging, it continues."""
        self._context.worked = True
        self.is_store_full = False
        was_blocked = store.credit.blocked
        store.progress(taken, safe)
        if was_blocked and not store.credit.blocked:
            self._context.process.backing.resume()

    def store_full(self, error: NoRoomError) -> None:
        """Note that a store had no room on the disk for what was handed over."""
        self._context.worked = True
        self.is_store_full = True
        self._context.process.confirms.drain()
        self._fail_waiting(error)

    def _wait_for_room(self, error: NoRoomError) -> None:
        """Handle a full disk: retry later. A crash before then loses unconfirmed messages and brings back settled ones.

        Publishers that wait for a confirm are notified.
        """
        since_now = self.full_disk is None
        if self.full_disk is None:
            self.full_disk = FullDisk()
        self.settled = True  # so that it is tried again
        self.arm(self.full_disk.next_wait_ns())
        self._context.output.disk_is_full(error, since_now=since_now)
        self._fail_waiting(error)

    def _note_room(self) -> None:
        if self.full_disk is not None:
            self.full_disk = None
            self._context.output.disk_has_room()
            self._context.process.confirms.drain()  # of publishers that did not wait for it

    def _fail_waiting(self, error: NoRoomError) -> None:
        effects = self._context.process.context.effects
        answered = {*effects.confirmed, *effects.refused}
        for token in [token for token in self.waiting if token not in answered]:
            del self.waiting[token]
            self._context.output.not_safe(token, error)
