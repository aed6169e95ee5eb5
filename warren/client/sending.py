"""Sending: what leaves by a link, and when.

Nobody waits for room in the socket: what does not fit is written by whoever leads. What is asked goes out at once.
Messages and acks go out at once, too, unless something went out a moment ago: then those of half a millisecond leave in
one write, or with what is asked next. While a thread asks again and again, acks wait for its next question, or for the
reader's next look, a few milliseconds.
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
"""Messages and acks leave when they are so many, whatever left a moment ago."""


class Receiver(Protocol):
    """What a channel's number leads to. Everything here is called with the link's lock held."""

    number: int
    refusal: Exception | None
    """Why the server closes it, if the server told that before."""

    def receive(self, event: Event, later: Later) -> None:
        """Something has come on it."""

    def closed(self, error: WarrenError, later: Later) -> None:
        """The server has closed it."""

    def lost(self, error: WarrenError, later: Later) -> bool:
        """The socket is lost; whether the next one is to have this channel, too."""

    def rejoin(self, engine: Connection) -> None:
        """The next socket is there, and the channel open on it."""

    def failed(self, error: WarrenError, later: Later) -> None:
        """There will be no next socket for what waits; ``error`` says why."""


class Gathering(Protocol):
    """What is to be sent, and not in the engine yet."""

    @property
    def channel(self) -> Receiver: ...

    def encode(self, engine: Connection) -> None: ...


class Sending(Leading):
    """The way out. Everything here is called with the lock held."""

    def begin(self) -> None:
        super().begin()
        self.engine: Connection | None = None
        self._unsent: deque[bytes | memoryview] = deque()
        self._gathered: list[Gathering] = []
        self._gathered_bytes = 0
        self._sent_at = 0.0

    @property
    def can_send(self) -> bool:
        """Whether something can be sent: not to a host that hands over, which may still answer."""
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
        """The engine, once what was gathered is in it."""
        engine = self.engine
        if engine is None:
            raise LinkLostError("the connection was lost")
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        for one in gathered:
            one.encode(engine)
        return engine

    @property
    def last_gathered(self) -> Gathering | None:
        """What the next message may join."""
        return self._gathered[-1] if self._gathered else None

    def has_gathered(self, receiver: Receiver) -> bool:
        """Whether something of this channel waits to be sent."""
        return any(one.channel is receiver for one in self._gathered)

    def take_gathered(self, receiver: Receiver) -> list[Gathering]:
        """Take back what of this channel waits to be sent."""
        mine = [one for one in self._gathered if one.channel is receiver]
        self._gathered = [one for one in self._gathered if one.channel is not receiver]
        return mine

    def gather(self, what: Gathering | None, size: int, *, patient: bool = False) -> None:
        """Send this soon (``None``: what has joined the last). ``patient``: while threads ask again and again, with
        what is asked next."""
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
        """Write what there is, as far as the socket takes it. An interrupt waits: else some of it left twice."""
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
            self.wake()  # whoever leads waits for room, too
        except OSError:
            self._unsent.clear()  # who reads finds out

    def all_sent(self) -> None:
        """The socket has taken everything."""

    def flush_lazy(self) -> None:
        if self.is_lazy or self._gathered:
            self.flush()
