"""DirectorySocket: the server's end of the socket in a data directory, for processes of the directory's user.

A client's user is checked (``SO_PEERCRED``): other users' processes, except root's, are dropped. No password is needed,
and every client may do everything. The protocol is AMQP 0-9-1, with methods of our own
(:mod:`warren.amqp.own_methods`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from typing import Final, cast

import attrs

from warren.actors.node.node_socket import NodeSocket, may_come_in, peer_of
from warren.amqp.own_methods import MAX_BODY_BYTES
from warren.server.connection import Admission, ClientConnection
from warren.server.peer import Peer
from warren.server.server_context import ServerContext
from warren.storage.errors import StorageError

BACKLOG: Final = 1024
CHANNEL_MAX: Final = 65_535
OWNER: Final = "owner"
"""The name of the directory's user here."""

_numbers = itertools.count(1)


class DirectorySocket:
    """The socket of one node."""

    def __init__(self, server: ServerContext, admission: Admission, directory: str) -> None:
        self.server = server
        self.admission = admission
        self._is_listening = self._is_stopping = False
        self._strangers: set[asyncio.Transport] = set()
        """Clients that have not sent anything yet."""
        self._socket = NodeSocket(directory)
        self.settings = attrs.evolve(
            server.settings,
            frame_max=0,
            channel_max=CHANNEL_MAX,
            heartbeat=0,
            connection_max=None,
            max_message_size=MAX_BODY_BYTES,
        )

    async def listen(self) -> asyncio.Server:
        """Listen. Raises :class:`StorageError`."""
        try:
            listener = self._socket.listen(BACKLOG)
        except (OSError, ValueError) as error:
            raise StorageError(f"{self._socket.path}: no socket can be made: {error}") from error
        self._is_listening = True
        return await self.server.loop.create_unix_server(self.guest, sock=listener)

    def remove(self) -> None:
        """Remove the file, so that no other process connects, and let no one in that is about to."""
        self._is_stopping = True
        if self._is_listening:
            self._socket.remove()

    def let_in(self, stranger: asyncio.Transport) -> bool:
        """Return whether a new client is accepted. While the server is stopping, it is disconnected at once, because it
        would wait for an answer in vain."""
        if self._is_stopping:
            stranger.abort()
            return False
        self._strangers.add(stranger)
        return True

    def no_stranger(self, transport: asyncio.Transport) -> None:
        """Forget a client that has sent its first bytes or has gone."""
        self._strangers.discard(transport)

    def disconnect_strangers(self) -> None:
        """Disconnect the clients that have not sent anything yet."""
        for stranger in list(self._strangers):
            stranger.abort()

    def guest(self) -> asyncio.Protocol:
        """Return the protocol for a new client."""
        return _Guest(self)

    def describe(self, process: int) -> Peer:
        """Describe a process that has connected."""
        return Peer(
            host=self._socket.path,
            port=0,
            peer_host=f"process {process}",
            peer_port=next(_numbers),
            certificate_name=OWNER,
            is_owner=True,
        )


class _Guest(asyncio.Protocol):
    """A client that has not sent anything yet."""

    def __init__(self, place: DirectorySocket) -> None:
        self._place = place
        self._transport: asyncio.Transport | None = None
        self._process = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._place.let_in(self._transport):
            return
        self._process, user = _credentials(self._transport)
        if not may_come_in(user):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        place = self._place
        place.no_stranger(self._transport)
        connection = ClientConnection(
            place.server, place.admission, lambda _: place.describe(self._process), place.settings
        )
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        if not self._transport.is_closing():
            connection.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._place.no_stranger(self._transport)
        self._transport = None


def _credentials(transport: asyncio.Transport) -> tuple[int, int]:
    """Return process and user at the other end."""
    number = transport.get_extra_info("socket").fileno()
    with socket.socket(fileno=os.dup(number)) as copied:
        return peer_of(copied)
