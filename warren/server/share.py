"""Share: what one connection may take of its server's time and memory.

*Time.* What has come is worked off for :data:`TURN_S` at a time, and so many bytes are read; then other connections
have their turn. What is left of a read is *put off*, and nothing more is read until it is done.

*Answers.* A client that asks and does not read the answers is read no further, and no more is done for it, while more
than :data:`MAX_UNSENT_BYTES` wait to be sent to it.

*What is not published yet*: bodies of which a part has to come, and transactions that are not committed. While an alarm
is set, a connection that holds more than :data:`MAX_HELD_BYTES` of it is read no further. Nobody would notice that its
client is gone, whose memory may be what the alarm is about: so that is looked for.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from warren.amqp.received import Event

if TYPE_CHECKING:
    from warren.server.connection import ClientConnection

TURN_S: Final = 0.02
EVENTS_AT_A_TIME: Final = 256
"""Of a transaction, before others have their turn."""
READ_AT_A_TIME_BYTES: Final = 1 << 16
"""Behind a read of so much others come first; libuv would read on for megabytes."""
MAX_UNSENT_BYTES: Final = 16 << 20
MAX_HELD_BYTES: Final = 1 << 20
LOOK_EVERY_BYTES: Final = 8 << 20
"""The memory is read anew when so much has come that is not published yet."""
HANG_UP_INTERVAL_S: Final = 0.5
"""So often it is looked whether a client that is not read is still there."""

_HUNG_UP: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Share:
    """One connection's."""

    def __init__(self, connection: ClientConnection) -> None:
        self.is_stuck = False
        """Whether the client has to read first."""
        self.kept_bytes = 0
        """What has come in transactions."""
        self._connection = connection
        self._loop = connection.server.loop
        self._put_off: deque[Event] = deque()
        self._turn_comes = False
        self._waits_for_memory = False
        self._looked_at_bytes = 0
        self._room: asyncio.Event | None = None

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────

    def of(self, events: list[Event], read_bytes: int) -> list[Event]:
        """What is to be done now of what a read has brought."""
        if read_bytes >= READ_AT_A_TIME_BYTES:
            self._wait_for_turn()
        if self._put_off:  # the connection was closed meanwhile, and is read for the answer to that
            self._put_off += events
            return []
        return events

    def put_off(self, events: Sequence[Event]) -> None:
        """These are done when others have had their turn, and the client has read what waits for it."""
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
            self._connection.work_off(self._next())
        if self._put_off:
            if not self.is_stuck:
                self._come_soon()
        elif not self.is_stuck:
            self._connection.release(self)

    async def all_done(self) -> None:
        """Come back when everything is done that has come, for a client that is gone."""
        while self._put_off:
            self._connection.work_off(self._next())
            await asyncio.sleep(0)

    # ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def note_unsent(self, size_bytes: int) -> None:
        """So much waits to be sent."""
        if size_bytes > MAX_UNSENT_BYTES and not self.is_stuck:
            self.is_stuck = True
            self._connection.hold(self)

    def note_read(self) -> None:
        """The client has read."""
        if self.is_stuck:
            self.is_stuck = False
            self._come_soon()
            if self._room is not None:
                self._room.set()

    async def has_room(self) -> None:
        """Come back when the client has read so much of its answers that it may have more, or is gone."""
        while self.is_stuck:
            self._room = asyncio.Event()
            await self._room.wait()

    def end(self) -> None:
        """The client is gone: nobody waits for it."""
        self.note_read()

    # ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────

    def note_received(self) -> None:
        """Something has come that may be held for long."""
        connection = self._connection
        gate = connection.node.gate
        came_bytes = self.kept_bytes + connection.engine.assembled_bytes
        if came_bytes - self._looked_at_bytes >= LOOK_EVERY_BYTES:
            self._looked_at_bytes = came_bytes
            gate.look_soon()
        if gate.reasons and not self._waits_for_memory and self._held_bytes > MAX_HELD_BYTES:
            self._waits_for_memory = True
            connection.start(self._wait_for_memory())

    @property
    def _held_bytes(self) -> int:
        connection = self._connection
        uncommitted = sum(channel.publisher.uncommitted_bytes for channel in connection.channels.values())
        return connection.engine.unfinished_bytes + uncommitted

    async def _wait_for_memory(self) -> None:
        connection = self._connection
        connection.hold(_MEMORY)
        connection.tell_blocked()
        poll = select.poll()
        if (number := connection.fileno()) >= 0:
            poll.register(number, select.POLLRDHUP)
        while connection.node.gate.reasons and not connection.is_over:
            if number < 0 or any(found & _HUNG_UP for _, found in poll.poll(0)):
                connection.abort()
                break
            await asyncio.sleep(HANG_UP_INTERVAL_S)
        self._waits_for_memory = False
        connection.release(_MEMORY)
        connection.tell_unblocked()


_MEMORY: Final = object()
