"""QueueMemory: how a queue gives up memory: its reports to the memory monitor, the monitor's answers, and its rest.

*Reports.* A queue at work tells the memory monitor its RAM duration at a fixed interval.

*Rest.* A queue that has had nothing to do for ``hibernate_after_ms`` flushes its journal and closes its files. What it
has in RAM stays there until the memory monitor reports that memory is short: in answer to the last report, or later. A
queue with nothing in RAM leaves the memory monitor. The next message wakes it.
"""

from __future__ import annotations

import attrs

from warren.actors.engines.queue.queue_syncs import QueueSyncs
from warren.actors.engines.queue.queue_turn_host import MS_NS, TurnContext
from warren.storage.errors import NoRoomError


@attrs.define(eq=False, repr=False)
class QueueDeadline:
    """The deadline of one queue."""

    _context: TurnContext
    _armed_us: int | None = None

    def arm(self) -> None:
        """Set the timer, if it must change."""
        deadline_us = self.next_us()
        if deadline_us is not None and deadline_us != self._armed_us:
            self.rearm(deadline_us)

    def rearm(self, deadline_us: int | None) -> None:
        """Set the timer to a time; ``None``: to none."""
        self._armed_us = deadline_us
        if deadline_us is not None:
            wait_ns = max(0, deadline_us - self._context.clock.wall_us()) * 1000
            self._context.host.call_later("deadline", wait_ns, self.due, first=True)

    def next_us(self) -> int | None:
        """When something is due; ``None``: never, for the present messages."""
        process = self._context.process
        of_message, arguments = process.next_deadline_us(), process.context.arguments
        if of_message == 0 and not (
            arguments.message_ttl_ms is not None or arguments.dead_letter_exchange is not None or process.expiry.is_over
        ):
            of_message = None  # not opened yet, and it need not be for a message that is only dropped
        of_queue = process.expires_at_us()
        if of_message is None or of_queue is None:
            return of_queue if of_message is None else of_message
        return min(of_message, of_queue)

    def due(self) -> None:
        """Drop or dead-letter what is due."""
        process = self._context.process
        self._context.worked = True
        self._armed_us = None
        process.settlements.tick()
        expires_at_us = process.expires_at_us()
        if expires_at_us is not None and expires_at_us <= self._context.clock.wall_us():
            self._context.output.unused()


@attrs.define(eq=False, repr=False)
class QueueMemory:
    """The memory of one queue. See the module's prose."""

    _context: TurnContext
    _syncs: QueueSyncs
    _deadline: QueueDeadline
    resting: bool = False
    _last_work_ns: int = 0
    """When a turn last had something to do, if only to look at the time."""
    _idle_turn_ns: int = -1
    """When a turn last did nothing but look at the time."""
    _used_before_ns: int = 0
    """When the queue was last used before that."""
    _report_armed: bool = False
    _idle_armed: bool = False
    _reporting: bool = False
    _resume_told: bool = False
    _has_looked: bool = False
    """Whether this turn does nothing but look at the time, as far as is known."""

    # ── reports, and their answers ──────────────────────────────────────────────────────────────────────────────

    def note_work(self) -> None:
        """Set the timers of a queue that is at work."""
        self._last_work_ns = self._context.clock.now_ns()
        if not self._report_armed:
            self._arm_report()
            if not self._reporting:  # new to the monitor, or back from rest: it needs the present target
                self._report()
        if not self._idle_armed:
            self._idle_armed = True
            if self._has_looked:
                self._idle_turn_ns, self._has_looked = self._last_work_ns, False
            self._context.host.call_later("idle", self._context.settings.hibernate_after_ms * MS_NS, self.idle_due)

    def _arm_report(self) -> None:
        self._report_armed = True
        wait_ns = self._context.settings.queue_ram_report_interval_ms * MS_NS
        self._context.host.call_later("report", wait_ns, self.report_due, first=True)

    def report_due(self) -> None:
        """Tell the memory monitor how long what is in RAM lasts."""
        self._arm_report()
        self._report()

    def _report(self) -> None:
        self._reporting = True
        backing = self._context.process.backing
        pageable = backing.is_pageable or self._context.rests_as_rabbitmq
        self._context.output.report(backing.ram_duration(), pageable=pageable, resting=False)

    def set_duration_target(self, duration_s: float | None) -> None:
        """Set the memory monitor's target; pages at once if it fell. A resting queue releases what it can."""
        context = self._context
        context.process.backing.set_ram_duration_target(duration_s)
        if self.resting and duration_s is not None and not context.rests_as_rabbitmq:
            self._hibernate()
            if not context.process.backing.is_pageable:
                context.output.leave_monitor()
        context.output.account_memory()

    def resume_later(self) -> None:
        """Continue a reduction of memory in a later turn, because it was cut short."""
        if not self._resume_told:
            self._resume_told = True
            self._context.host.call_soon(self._resume)

    def _resume(self) -> None:
        self._resume_told = False
        self._context.worked |= self._context.rests_as_rabbitmq
        self._context.process.backing.resume()
        self._context.output.account_memory()

    @property
    def idle_s(self) -> float | None:
        """How long the queue has not been used; ``None`` while it does not rest."""
        return (self._context.clock.now_ns() - self._used_ns) / 1e9 if self.resting else None

    @property
    def _used_ns(self) -> int:
        return self._used_before_ns if self._last_work_ns == self._idle_turn_ns else self._last_work_ns

    # ── rest ────────────────────────────────────────────────────────────────────────────────────────────────────

    def idle_due(self) -> None:
        """Rest if idle for ``hibernate_after_ms`` and nothing waits to be safe. Else the turn's end sets the timer."""
        context, syncs = self._context, self._syncs
        self._used_before_ns = self._used_ns
        self._has_looked = not context.worked and not context.host.has_more()
        self._idle_armed = False
        context.worked = True
        now_ns = context.clock.now_ns()
        if now_ns - self._last_work_ns < context.settings.hibernate_after_ms * MS_NS or context.host.has_more():
            return
        deadline_us = self._deadline.next_us()
        if context.process.backing.recovering or syncs.waiting or syncs.settled or not self._has_come_to_rest():
            self._last_work_ns = now_ns
            return
        context.worked = self._has_looked = False
        context.output.account_memory()
        context.host.cancel_timers()
        syncs.is_armed = self._report_armed = self._reporting = False
        self._deadline.rearm(deadline_us)  # messages also expire while the queue rests
        self._tell_of_rest()

    def _has_come_to_rest(self) -> bool:
        """Whether the queue rests now; it cannot if the disk has no room for what must be written first."""
        try:
            self._hibernate()
        except NoRoomError:
            return False
        self.resting = True
        return True

    def _tell_of_rest(self) -> None:
        context = self._context
        if context.rests_as_rabbitmq:  # it has reported a last time
            return
        if context.process.backing.is_pageable:  # its duration is infinite, but the monitor can have it page
            context.output.report(None, pageable=True, resting=True)
        else:
            context.output.leave_monitor()

    def _hibernate(self) -> None:
        if self._context.rests_as_rabbitmq:
            self._report()
            self._context.process.backing.flush()
        else:
            self._context.process.hibernate()
            self._context.host.rested()
