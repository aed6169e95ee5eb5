"""One client of the management API's socket: a client too many, or one that keeps the server waiting, is disconnected.

A client has ``management_tcp_request_timeout`` to send a request's head (the first one from the moment it connects) and
:data:`BODY_TIMEOUT_S` to send the rest of the request. It may not stop reading an answer for longer than
:data:`READ_TIMEOUT_S`. Between two requests, uvicorn's own timeout applies.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from warren.storage.descriptors import among_last

MAX_CONNECTIONS: Final = 1024
"""At a time, as with RabbitMQ."""
BODY_TIMEOUT_S: Final = 60.0
READ_TIMEOUT_S: Final = 60.0
_HEAD: Final = "IDLE"
_BODY: Final = "SEND_BODY"


class HttpProtocol(H11Protocol):
    """One client."""

    timeout_s: ClassVar[float]
    """For a request's head."""
    body_timeout_s: ClassVar[float] = BODY_TIMEOUT_S
    read_timeout_s: ClassVar[float] = READ_TIMEOUT_S

    _owed: str | None = None
    """What of a request the client has to send, by the name of the state that h11 has for it."""
    _until: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if len(self.connections) > MAX_CONNECTIONS or (sock is not None and among_last(sock.fileno())):
            transport.close()
        else:
            self._note_owed()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note_owed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_for(None)
        self._forget_unread()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._forget_unread()
        self._unread = self.loop.call_later(self.read_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._forget_unread()
        super().resume_writing()

    def _forget_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _note_owed(self) -> None:
        state = repr(self.conn.their_state)
        self._wait_for(state if state in (_HEAD, _BODY) else None)

    def _wait_for(self, owed: str | None) -> None:
        if owed == self._owed:
            return
        self._owed = owed
        if self._until is not None:
            self._until.cancel()
            self._until = None
        if owed is not None:
            timeout_s = self.timeout_s if owed == _HEAD else self.body_timeout_s
            self._until = self.loop.call_later(timeout_s, self.transport.abort)
