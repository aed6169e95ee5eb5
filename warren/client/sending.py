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
from warren.actors.runtime.leader_follower import LINGER_S, Later
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


class Socket(Protocol):
    """The link, as far as its outbox needs it."""

    connection: socket.socket | None
    is_lazy: bool
    is_ticking: bool

    def wake(self) -> None: ...

    def all_sent(self) -> None: ...


class Outbox:
    """What a link sends, and when. Everything here is called with the link's lock held."""

    def __init__(self, link: Socket) -> None:
        self._link = link
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
        """Whether the socket has not taken everything."""
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
        link = self._link
        waits = patient and link.is_ticking
        if self._gathered_bytes >= GATHERED_BYTES or (not waits and time.monotonic() - self._sent_at >= LINGER_S):
            self.flush()
        elif not link.is_lazy:
            link.is_lazy = True
            if not link.is_ticking:
                link.wake()

    def flush(self) -> None:
        """Write what the socket takes. An interrupt is delayed: otherwise some data could be sent twice."""
        uninterrupted(self._flush)

    def _flush(self) -> None:
        connection = self._link.connection
        if connection is None:
            return
        if self.engine is not None:
            self._link.is_lazy = False
            data = self.encoded().data_to_send()
            if data:
                self._unsent.append(data)
        try:
            while self._unsent:
                first = self._unsent[0]
                sent = connection.send(first, _DONT_WAIT)
                if sent < len(first):
                    self._unsent[0] = memoryview(first)[sent:]
                else:
                    self._unsent.popleft()
            self._sent_at = time.monotonic()
            self._link.all_sent()
        except BlockingIOError:
            self._link.wake()  # the leading thread waits for room, too
        except OSError:
            self._unsent.clear()  # the reader finds out

    def flush_lazy(self) -> None:
        """Write what was deferred."""
        if self._link.is_lazy or self._gathered:
            self.flush()

    def clear(self) -> None:
        """Drop what the socket did not take."""
        self._unsent.clear()
