"""Sending: what leaves by a link, and when.

Sending never waits for room in the socket: the leading thread writes what does not fit. Requests go out at once.
Messages and acks go out at once, too, unless something went out a moment ago: then those of half a millisecond leave in
one write, or with the next request. While a thread makes one request after another, acks wait for its next request, or
for the reader's next look, a few milliseconds.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Final, Protocol

from pamqp.base import Frame as Method

from warren.actors.runtime.interrupts import uninterrupted
from warren.actors.runtime.leader_follower import LINGER_S, Later, Leading
from warren.amqp.connection import Connection
from warren.amqp.received import Event
from warren.client.errors import LinkLostError
from warren.storage.errors import WarrenError

_DONT_WAIT: Final = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
GATHERED_BYTES: Final = 1 << 16
"""Messages and acks leave when they reach this size, whatever left a moment ago."""


class Receiver(Protocol):
    """The object for a channel's number. Everything here is called with the link's lock held."""

    number: int
    refusal: Exception | None
    """Why the server closes it, if the server has sent the reason."""

    def receive(self, event: Event, later: Later) -> None:
        """Handle an event."""

    def closed(self, error: WarrenError, later: Later) -> None:
        """Handle a close by the server."""

    def lost(self, error: WarrenError, later: Later) -> bool:
        """Handle the loss of the socket; return whether the channel continues on the next one."""

    def rejoin(self, engine: Connection) -> None:
        """Continue on the next socket, where the channel is open."""

    def failed(self, error: WarrenError, later: Later) -> None:
        """Fail what waits: there will be no next socket; ``error`` says why."""


class Gathering(Protocol):
    """Data to send that is not in the engine yet."""

    @property
    def channel(self) -> Receiver: ...

    def encode(self, engine: Connection) -> None: ...


class Sending(Leading):
    """The sending half of a link. Everything here is called with the lock held."""

    def begin(self) -> None:
        super().begin()
        self.engine: Connection | None = None
        self._unsent: deque[bytes | memoryview] = deque()
        self._gathered: list[Gathering] = []
        self._gathered_bytes = 0
        self._sent_at = 0.0

    @property
    def can_send(self) -> bool:
        """Whether data can be sent: not to a host that hands over, which may still answer."""
        return self.engine is not None

    @property
    def is_stuck(self) -> bool:
        return bool(self._unsent)

    def send(self, number: int, method: Method) -> None:
        """Send a method now."""
        engine = self.encoded()
        engine.send(number, method)
        self.flush()

    def encoded(self) -> Connection:
        """Put the gathered data into the engine, and return that."""
        engine = self.engine
        if engine is None:
            raise LinkLostError("the connection was lost")
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        for item in gathered:
            item.encode(engine)
        return engine

    @property
    def last_gathered(self) -> Gathering | None:
        """The data that the next message may join."""
        return self._gathered[-1] if self._gathered else None

    def has_gathered(self, receiver: Receiver) -> bool:
        """Whether data of this channel waits to be sent."""
        return any(item.channel is receiver for item in self._gathered)

    def take_gathered(self, receiver: Receiver) -> list[Gathering]:
        """Take back the data of this channel that waits to be sent."""
        mine = [item for item in self._gathered if item.channel is receiver]
        self._gathered = [item for item in self._gathered if item.channel is not receiver]
        return mine

    def gather(self, what: Gathering | None, size: int, *, patient: bool = False) -> None:
        """Send this soon (``None``: it has joined the last). ``patient``: while threads keep making requests, with
        the next request."""
        if what is not None:
            self._gathered.append(what)
        self._gathered_bytes += size
        if self.engine is None:
            return
        waits = patient and self._is_ticking
        if self._gathered_bytes >= GATHERED_BYTES or (not waits and time.monotonic() - self._sent_at >= LINGER_S):
            self.flush()
        elif not self.is_lazy:
            self.is_lazy = True
            if not self._is_ticking:
                self.wake()

    def flush(self) -> None:
        """Write what the socket takes. An interrupt is delayed: otherwise some data could be sent twice."""
        uninterrupted(self._flush)

    def _flush(self) -> None:
        if self.connection is None:
            return
        if self.engine is not None:
            self.is_lazy = False
            data = self.encoded().data_to_send()
            if data:
                self._unsent.append(data)
        try:
            while self._unsent:
                first = self._unsent[0]
                sent = self.connection.send(first, _DONT_WAIT)
                if sent < len(first):
                    self._unsent[0] = memoryview(first)[sent:]
                else:
                    self._unsent.popleft()
            self._sent_at = time.monotonic()
            self.all_sent()
        except BlockingIOError:
            self.wake()  # the leading thread waits for room, too
        except OSError:
            self._unsent.clear()  # the reader finds out

    def all_sent(self) -> None:
        """Called when the socket has taken everything."""

    def flush_lazy(self) -> None:
        if self.is_lazy or self._gathered:
            self.flush()
