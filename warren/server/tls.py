"""TLS on a listening socket: a client is handed to its protocol once its handshake is done.

An event loop that listens for TLS itself waits a minute for a silent client, logs nothing if a handshake fails, and
closes the socket before the alert is sent. So the sockets listen without TLS, and each client goes through here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, cast

import attrs

from warren.actors.log_events import log_event, logger
from warren.storage.descriptors import among_last

_LOG = logger("server")

_UNEXPECTED: Final = bytes.fromhex("15 03 03 00 02 02 0a")
"""The alert "unexpected message", for a client that does not speak TLS: OpenSSL makes none."""
_CANCELED: Final = bytes.fromhex("15 03 03 00 02 02 5a")
"""The alert "user canceled", for a client that is waited for no longer."""

_alert: ContextVar[bytearray] = ContextVar("_alert")
"""The alert of OpenSSL for the client of this task, whose handshake failed."""


class _Connection(ssl.SSLObject):
    """Keeps the alert, which an event loop drops."""

    outgoing: ssl.MemoryBIO
    alert: bytearray

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            self.alert += self.outgoing.read()
            raise


class _Context(ssl.SSLContext):
    sslobject_class = _Connection

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        connection = cast("_Connection", super().wrap_bio(incoming, outgoing, *args, **kwargs))
        connection.outgoing, connection.alert = outgoing, _alert.get()
        return connection


def server_context(
    certfile: str, keyfile: str | None, cacertfile: str | None = None, verify: bool = False
) -> ssl.SSLContext:
    """A server's context. ``verify``: clients need a certificate of ``cacertfile``."""
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certfile, keyfile)
    if cacertfile is not None:
        context.load_verify_locations(cacertfile)
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    return context


@attrs.frozen(eq=False)
class Handshakes:
    """The handshakes of one listening socket. ``timeout_s``: for each of them."""

    context: ssl.SSLContext
    timeout_s: float
    _tasks: set[asyncio.Task[None]] = attrs.field(factory=set, init=False)

    def before(self, make: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """The protocol of a client that has just connected; ``make`` makes the one that it has after its handshake."""
        return _Arrival(self, make)

    def begin(self, arrived: socket.socket, name: str, make: Callable[[], asyncio.Protocol]) -> None:
        """Start the handshake with the client at a socket."""
        task = asyncio.get_running_loop().create_task(self._shake(arrived, name, make))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shake(self, arrived: socket.socket, name: str, make: Callable[[], asyncio.Protocol]) -> None:
        alert = bytearray()
        _alert.set(alert)
        with arrived.dup() as duplicate:  # the transport closes the other one before the alert is sent
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    make, arrived, ssl=self.context, ssl_handshake_timeout=self.timeout_s
                )
            except OSError as error:
                _LOG.warning(
                    "%s: the TLS handshake failed: %s",
                    name,
                    error,
                    extra=log_event("tls_refused", error, connection=name),
                )
                with contextlib.suppress(OSError):
                    duplicate.setblocking(False)
                    duplicate.send(alert or (_UNEXPECTED if isinstance(error, ssl.SSLError) else _CANCELED))


class _Arrival(asyncio.Protocol):
    """A client before its handshake. Its socket goes to a transport of its own, which can tell why that failed."""

    def __init__(self, handshakes: Handshakes, make: Callable[[], asyncio.Protocol]) -> None:
        self._handshakes = handshakes
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = cast("asyncio.Transport", transport)
        number = raw.get_extra_info("socket").fileno()
        if not among_last(number):
            host, port = raw.get_extra_info("peername")[:2]
            self._handshakes.begin(socket.socket(fileno=os.dup(number)), f"{host}:{port}", self._make)
        raw.abort()
