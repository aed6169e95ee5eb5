"""Share: the limits on one connection's use of its server's time and memory.

*Time.* What has come is processed for :data:`TURN_S` at a time, and a read is limited in size; then other connections
have their turn. What is left of a read is *put off*, and nothing more is read until it is done.

*Answers.* If a client does not read its answers, its requests are neither read nor handled while more
than :data:`MAX_UNSENT_BYTES` wait to be sent to it.

*Not published yet*: incomplete message bodies, and transactions that are not committed. While an alarm is set, a
connection that holds more than :data:`MAX_HELD_BYTES` of it is read no further. Without reads, nothing shows that its
client is gone, although its memory may be the reason for the alarm; so this is checked separately.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from warren.amqp.received import Event
from warren.server.client_link import ClientLink

TURN_S: Final = 0.02
MESSAGES_AT_A_TIME: Final = 256
"""Messages of a transaction, before other connections have their turn."""
READ_AT_A_TIME_BYTES: Final = 1 << 16
"""After a read of this size other connections come first; libuv would read on for megabytes."""
MAX_UNSENT_BYTES: Final = 16 << 20
MAX_HELD_BYTES: Final = 1 << 20
LOOK_EVERY_BYTES: Final = 8 << 20
"""The memory is measured again when this much has come that is not published yet."""
HANG_UP_INTERVAL_S: Final = 0.5
"""How often a client that is not read is checked for a hang-up."""

_HUNG_UP: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Share:
    """The share of one connection."""

    def __init__(
        self, connection: ClientLink, work_off: Callable[[list[Event]], None], uncommitted_bytes: Callable[[], int]
    ) -> None:
        """``work_off``: handles events. ``uncommitted_bytes``: returns the size of open transactions."""
        self.is_stuck = False
        """Whether the client has to read first."""
        self._connection = connection
        self._work_off = work_off
        self._uncommitted_bytes = uncommitted_bytes
        self._loop = connection.server.loop
        self._put_off: deque[Event] = deque()
        self._turn_comes = False
        self._waits_for_memory = False
        self._looked_at_bytes = 0
        self._room: asyncio.Event | None = None

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────

    def of(self, events: list[Event], read_bytes: int) -> list[Event]:
        """Return those events of a read that are to be handled now."""
        if read_bytes >= READ_AT_A_TIME_BYTES:
            self._wait_for_turn()
        if self._put_off:  # the connection was closed meanwhile, and is read for the answer to that
            self._put_off += events
            return []
        return events

    def put_off(self, events: Sequence[Event]) -> None:
        """Handle these after other connections had their turn, and after the client has read its answers."""
        self._put_off.extendleft(reversed(events))
        self._wait_for_turn()

    def _next(self) -> list[Event]:
        events = list(self._put_off)
        self._put_off.clear()
        return events

    def _wait_for_turn(self) -> None:
        self._connection.hold(self)
        self._come_soon()

    def _come_soon(self) -> None:
        if not self._turn_comes:
            self._turn_comes = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_comes = False
        if self.is_stuck:
            return  # until the client has read
        if self._put_off:
            self._work_off(self._next())
        if self._put_off:
            if not self.is_stuck:
                self._come_soon()
        elif not self.is_stuck:
            self._connection.release(self)

    async def all_done(self) -> None:
        """Wait until all events are handled, for a client that is gone."""
        while self._put_off:
            self._work_off(self._next())
            await asyncio.sleep(0)

    # ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def note_unsent(self, size_bytes: int) -> None:
        """Note how many bytes wait to be sent."""
        if size_bytes > MAX_UNSENT_BYTES and not self.is_stuck:
            self.is_stuck = True
            self._connection.hold(self)

    def note_read(self) -> None:
        """Note that the client has read."""
        if self.is_stuck:
            self.is_stuck = False
            self._come_soon()
            if self._room is not None:
                self._room.set()

    async def has_room(self) -> None:
        """Wait until the client has read enough of its answers, or is gone."""
        while self.is_stuck:
            self._room = asyncio.Event()
            await self._room.wait()

    def end(self) -> None:
        """Release what waits for the client: it is gone."""
        self.note_read()

    # ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────

    def note_received(self) -> None:
        """Note received data that may be held for long."""
        connection = self._connection
        gate = connection.node.gate
        came_bytes = connection.kept_bytes + connection.engine.assembled_bytes
        if came_bytes - self._looked_at_bytes >= LOOK_EVERY_BYTES:
            self._looked_at_bytes = came_bytes
            gate.look_soon()
        if gate.reasons and not self._waits_for_memory and self._held_bytes > MAX_HELD_BYTES:
            self._waits_for_memory = True
            connection.start(self._wait_for_memory())

    @property
    def _held_bytes(self) -> int:
        return self._connection.engine.unfinished_bytes + self._uncommitted_bytes()

    async def _wait_for_memory(self) -> None:
        connection = self._connection
        connection.hold(_MEMORY)
        connection.tell_blocked()
        poll = select.poll()
        if (number := connection.fileno()) >= 0:
            poll.register(number, select.POLLRDHUP)
        while connection.node.gate.reasons and not connection.is_over:
            if number < 0 or any(events & _HUNG_UP for _, events in poll.poll(0)):
                connection.abort()
                break
            await asyncio.sleep(HANG_UP_INTERVAL_S)
        self._waits_for_memory = False
        connection.release(_MEMORY)
        connection.tell_unblocked()


_MEMORY: Final = object()
