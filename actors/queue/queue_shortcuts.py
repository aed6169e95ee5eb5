"""QueueShortcuts: what a queue does at the beginning of a turn, or instead of one.

A turn begins with taking in what was delivered or written since the last one (:mod:`warren.actors.queue.fast_paths`).
If a caller only waits for a few messages to be safe, they are *written ahead*, and the turn is over. A turn in the
thread of an event loop is *quick*. Acks, and messages that are written and not to be delivered, need no turn before the
next sync.
"""

from __future__ import annotations

from typing import Final

from warren.actors.engines.queue.queue_turn import QueueTurn
from warren.actors.node.node_context import NodeContext
from warren.actors.queue.early_deliveries import EarlyBatch
from warren.actors.queue.queue_arrivals import QueueArrivals
from warren.actors.queue.queue_intake import QueueIntake
from warren.actors.runtime.future import Confirm
from warren.actors.runtime.interrupts import uninterrupted
from warren.actors.runtime.pooled_actor import TURN_ENTRIES, Asked, Turns
from warren.storage.errors import WarrenError

QUICK_MESSAGES: Final = 64
"""Batches up to this size are handled by a quick turn."""


class QueueShortcuts:
    """The shortcuts of one queue (:class:`~warren.actors.runtime.pooled_actor.Shortcuts`)."""

    __slots__ = ("_arrivals", "_context", "_intake", "_turn", "_turns", "_written")

    def __init__(
        self, turns: Turns, turn: QueueTurn, intake: QueueIntake, arrivals: QueueArrivals, context: NodeContext
    ) -> None:
        self._turns = turns
        self._turn = turn
        self._intake = intake
        self._arrivals = arrivals
        self._context = context
        self._written: EarlyBatch | None = None
        """The batch that was written ahead, and waits in the inbox."""

    def has_work(self) -> bool:
        inbox, intake = self._turns.inbox, self._intake
        if inbox.empty():
            return False
        return not inbox.holds_only(intake.fast.may_wait) or intake.ack_needs_a_turn()  # acks and written messages wait

    def quick_turn(self, asked: Asked | None = None) -> bool:
        """Handle messages in RAM; leave a requested sync, and messages that went out early, to the next turn."""
        if not self._arrivals.has_files or self._turns.inbox.weight > QUICK_MESSAGES or not self._turn.is_quick:
            return False
        if asked is None and self._intake.fast.all_went_out():
            return False
        return uninterrupted(self._turns.attempt, TURN_ENTRIES, asked, True)

    def begin_turn(self, asked: Asked | None) -> bool:
        """Take in what happened between the turns. If a caller waits for a few messages to be safe, and nothing else is
        to be done, only write these; then the turn is over."""
        stopped = self._turns.actor.actor_stopped
        hurried = asked is None and self._intake.hurry and not stopped.is_set()
        if hurried and self._turns.guard(None, self._write_ahead, refusable=False):
            return True
        written = self._written
        if written is not None and not stopped.is_set():  # before anything else happens in the queue
            self._written = None
            if not written.taken:
                self._turns.inbox.take_this(written)
                self._turns.guard(None, self._turns.actor.on_batch, written)
        if self._intake.fast.ahead is not None and not stopped.is_set():
            self._turns.guard(None, self._take_off, refusable=False)
        return False

    def _take_off(self) -> None:
        """Remove messages that were read ahead and handed out."""
        ahead = self._intake.fast.take_ahead()
        if ahead is not None and ahead.delivered:
            self._turn.head.take_off(ahead)

    def _write_ahead(self) -> bool:
        """Make safe what waits in the inbox, and do nothing else; return whether that was done."""
        if not self._arrivals.has_files or (self._turns.is_quick and self._context.settings.sync != "os"):
            return False
        self._intake.hurry = False  # before looking at the inbox: a publisher that joins later sets it again
        with self._turns.inbox.lock:
            batch = None if self._intake.makes_wait() else self._intake.fast.batch_to_write()
            begun = None if batch is None else batch.begin_writing(Confirm(self._intake))
        if batch is None or begun is None:
            self._intake.hurry = True
            return False
        bodies, confirm = begun
        key = batch.key
        try:
            ids = self._arrivals.msg_ids.many(len(bodies)) if len(bodies) > 1 else self._arrivals.msg_ids.one()
            is_written = not bodies or self._turn.write_ahead(key.envelope, ids, bodies)
        except WarrenError:  # taking them in raises it again
            is_written = False
        if not is_written:
            self._intake.hurry = True
            batch.were_not_written(bodies, confirm)
            return False
        self._written = batch
        try:
            self._context.check_directory()
        except BaseException:
            batch.confirm.on_done(confirm.follow)
            raise
        confirm.set()
        return True
