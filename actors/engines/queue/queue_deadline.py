"""QueueDeadline: the timer for the next message that expires or comes back, and for an unused queue itself."""

from __future__ import annotations

import attrs

from warren.actors.engines.queue.queue_turn_host import TurnContext


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
