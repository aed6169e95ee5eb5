"""Server: listens, and hosts its clients' connections in one event loop, in one thread beside the actors' pool.

A node that is not shared has guests, too: its user's commands, which come by the node's own socket and speak AMQP
there. A program that has a directory for itself starts no server until a client comes. The server then listens nowhere,
and runs until the node is closed. A client that can open the socket could also open the files, so it may do everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from warren.actors.log_events import log_event, logger
from warren.actors.runtime.loop_thread import LoopThread
from warren.amqp.states import State
from warren.hosting.running_node import RunningNode
from warren.server.connection import ClientConnection
from warren.server.directory_socket import DirectorySocket
from warren.server.peer import Peer, is_loopback, set_option
from warren.server.server_context import ServerContext
from warren.server.settings import ListenError, ServerSettings, TlsSettings
from warren.server.tls import Handshakes, server_context
from warren.storage.descriptors import among_last

if TYPE_CHECKING:
    from warren.management.server import ManagementServer
    from warren.management.settings import ManagementSettings


_LOG = logger("server")

_OF_PARENTS: Final[list[Server]] = []
"""In a forked child: its parent's servers. They must not be collected: their sockets would close file descriptors that
are reused by then."""

HAND_OVER_S: Final = 2.0
"""How long the processes that share a directory have to send their pending data to a host that leaves."""
STOP_TIMEOUT_S: Final = 1.0
"""How long clients have to acknowledge the end."""

CHANNEL_TICK_INTERVAL_S: Final = 60.0
"""How often deliveries are checked for their ack timeout, unless the timeout is shorter."""


class Server:
    """An AMQP 0-9-1 server over a running node. It ends before its node does."""

    protocol = "amqp"
    purpose = "AMQP 0-9-1"

    def __init__(self, node: RunningNode, settings: ServerSettings | None = None) -> None:
        self.context = ServerContext(node, ServerSettings() if settings is None else settings)
        self.node = node
        self.settings = self.context.settings
        self._connections: dict[str, ClientConnection] = {}
        """By name, those of commands included; changed in the loop's thread alone."""
        self.traffic = self.context.traffic
        self.addresses: list[tuple[str, int]] = []
        """Hosts and ports to which the listeners are bound, those of TLS last."""
        self.management: ManagementServer | None = None
        """The management API beside it."""
        self._listening: list[asyncio.Server] = []
        self._socket: DirectorySocket | None = None
        self._idle: asyncio.Event | None = None
        self._taking: set[asyncio.Task[Any]] = set()
        self._is_stopping = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs everything here."""
        return self.context.loop

    @property
    def connections(self) -> dict[str, ClientConnection]:
        """The connections by name, without those of commands that only ask about the node."""
        return {name: each for name, each in list(self._connections.items()) if not each.link.is_commands}

    def post(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the loop, soon. Thread-safe. A stopped server ignores it."""
        self.context.rounds.post(work)

    @property
    def thread(self) -> LoopThread | None:
        """The loop's thread, if the server runs."""
        return self.context.rounds.thread

    # ── beginning and end ───────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Listen. Raises :class:`ListenError`."""
        self.node.check_process()
        rounds = self.context.rounds
        rounds.start()
        try:
            rounds.running.run(self._listen())
        except BaseException:
            rounds.running.run(self._stop(""))
            rounds.stop()
            raise
        self.node.hosted.append(self)
        self.node.on_deleted.append(self._deleted)
        self.node.on_failed.append(self._failed)
        if self.settings.management is not None:
            try:
                self._manage(self.settings.management)
            except BaseException:
                self.stop()
                raise
        for host, port in self.addresses:
            if not is_loopback(host):
                _LOG.warning(
                    "listening on %s:%d, which other machines reach",
                    host,
                    port,
                    extra=log_event("listening_open", address=f"{host}:{port}"),
                )

    def _deleted(self, kind: Literal["vhost", "user"], name: str) -> None:
        """Close the connections of a vhost or a user that was deleted."""

        def close() -> None:
            for connection in list(self.connections.values()):
                link = connection.link
                if not link.is_owner and name == (link.vhost if kind == "vhost" else link.user):
                    connection.close(f"{kind} '{name}' is deleted")

        self.post(close)

    def _failed(self) -> None:
        """Close the connections of a node that has failed. Guests of the directory get the reason from each verb."""

        def close() -> None:
            for connection in list(self.connections.values()):
                if not connection.link.is_owner:
                    connection.close(f"vhost '{connection.vhost}' is down")

        self.post(close)

    def _manage(self, settings: ManagementSettings) -> None:
        from warren.management.server import ManagementServer

        management = attrs.evolve(settings, loopback_users=self.settings.loopback_users)
        self.management = ManagementServer(self.node, management, self)
        self.management.start()

    async def _listen(self) -> None:
        settings = self.settings
        self._is_stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        for host, port in settings.plain_addresses:
            await self._listen_on(host, port, None)
        for host, port in settings.tls_addresses:
            await self._listen_on(host, port, settings.tls)
        if settings.directory is not None:
            self._socket = DirectorySocket(self.context, self, settings.directory)
            self._listening.append(await self._socket.listen())
        if settings.consumer_timeout is not None:
            self._look_for_timeouts(settings.consumer_timeout)

    def _look_for_timeouts(self, timeout_ms: int) -> None:
        """Check for timeouts now, and repeatedly. The directory's own user has no timeout."""
        now_s = self.loop.time()
        for connection in list(self.connections.values()):
            if not connection.link.is_owner:
                for channel in list(connection.channels.values()):
                    channel.look_for_timeout(now_s, timeout_ms)
        wait_s = min(CHANNEL_TICK_INTERVAL_S, timeout_ms / 1000)
        self.loop.call_later(wait_s, self._look_for_timeouts, timeout_ms)

    async def _listen_on(self, host: str, port: int, tls: TlsSettings | None) -> None:
        settings = self.settings
        login_from = "distinguished_name" if tls is None else tls.login_from
        make = functools.partial(
            ClientConnection, self.context, self, functools.partial(Peer.of, login_from=login_from)
        )
        try:
            arrive: Callable[[], asyncio.Protocol] = make
            if tls is not None:
                context = server_context(tls.certfile, tls.keyfile, tls.cacertfile, tls.verify)
                arrive = functools.partial(Handshakes(context, settings.handshake_timeout).before, make)
            backlog = settings.tcp_listen_options_backlog
            listening = await self.loop.create_server(arrive, host, port, backlog=backlog, start_serving=False)
            self._listening.append(listening)
            for listener in listening.sockets:
                for option, size in (
                    (socket.SO_SNDBUF, settings.tcp_listen_options_sndbuf),
                    (socket.SO_RCVBUF, settings.tcp_listen_options_recbuf),
                ):
                    if size is not None:
                        set_option(listener.fileno(), socket.SOL_SOCKET, option, size)
            await listening.start_serving()
        except (OSError, ssl.SSLError) as error:
            raise ListenError(f"{host}:{port}: {error.strerror or error}") from error
        self.addresses += [listener.getsockname()[:2] for listener in listening.sockets]

    def stop(self, reason: str = "broker forced connection closure with reason 'shutdown'") -> None:
        """Close every connection, as RabbitMQ does when it is stopped, and stop listening."""
        rounds = self.context.rounds
        if rounds.thread is None:
            return
        if self.management is not None:
            self.management.stop()
        with contextlib.suppress(ValueError):
            self.node.on_deleted.remove(self._deleted)
            self.node.on_failed.remove(self._failed)
        rounds.running.run(self._stop(reason))
        rounds.stop()
        self.node.hosted.remove(self)

    async def _stop(self, reason: str) -> None:
        self._is_stopping = True
        if self._socket is not None:
            self._socket.remove()
        for listener in [listener for listening in self._listening for listener in listening.sockets]:
            self.loop.remove_reader(listener.fileno())
        await asyncio.sleep(0)  # asyncio loses connections just accepted if their listener is closed now
        for listening in self._listening:
            listening.close()
        if self._socket is not None:
            self._socket.disconnect_strangers()
        if guests := [
            guest for guest in self._connections.values() if guest.link.is_owner and guest.engine.state is State.RUNNING
        ]:
            await asyncio.wait([guest.link.start(guest.hand_over()) for guest in guests], timeout=HAND_OVER_S)
        for connection in list(self._connections.values()):
            connection.close(reason)
        if self._idle is not None and self._connections:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), STOP_TIMEOUT_S)
            for connection in list(self._connections.values()):
                connection.link.abort()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), STOP_TIMEOUT_S)

    def forget(self) -> None:
        """In a forked child: close the sockets. They are the parent's, and the child would keep them open."""
        sockets = [listener.fileno() for listening in self._listening for listener in listening.sockets]
        for number in sockets + [connection.link.fileno() for connection in self._connections.values()]:
            with contextlib.suppress(OSError):
                os.close(number)
        self.context.rounds.thread = None
        _OF_PARENTS.append(self)

    def take(self, connection: socket.socket, directory: str) -> None:
        """Serve a guest whose connection was accepted elsewhere. Thread-safe."""

        def begin() -> None:
            if self._socket is None:
                self._socket = DirectorySocket(self.context, self, directory)
            task = self.loop.create_task(self.loop.connect_accepted_socket(self._socket.guest, connection))
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

        self.post(begin)

    # ── connections ─────────────────────────────────────────────────────────────────────────────────────────────

    def connection_refused(self, user: str, vhost: str) -> str | None:
        """Return why a user may not open another connection to a vhost; ``None``: it may."""
        limit = self.node.registry.parameters.vhost_limits(vhost).get("max-connections", -1)
        if 0 <= limit <= sum(connection.vhost == vhost for connection in self.connections.values()):
            return f"access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
        limit = self._limit_of(user, "max-connections")
        if 0 <= limit <= sum(bool(connection.vhost) for connection in self._connections_of(user)):
            return f"connection refused for user '{user}': user connection limit ({limit}) is reached"
        return None

    def channel_refused(self, user: str) -> str | None:
        """Return why a user may not open another channel; ``None``: it may."""
        limit = self._limit_of(user, "max-channels")
        if 0 <= limit <= sum(len(connection.channels) for connection in self._connections_of(user)):
            return (
                f"number of channels opened for user '{user}' has reached the maximum allowed user limit of ({limit})"
            )
        return None

    def _connections_of(self, user: str) -> list[ClientConnection]:
        return [connection for connection in self.connections.values() if connection.link.user == user]

    def _limit_of(self, user: str, name: str) -> int:
        users = self.node.registry.users
        return users[user].limits.get(name, -1) if user in users else -1

    def admit(self, connection: ClientConnection) -> bool:
        """Whether another connection is admitted."""
        if self._is_stopping:
            return False
        limit, count = self.settings.connection_max, len(self._connections)
        if (limit is not None and count >= limit) or among_last(connection.link.fileno()):
            _LOG.warning(
                "%s: refused, because there are already %d connections",
                connection.link.name,
                count,
                extra=log_event("connection_refused", connection=connection.link.name, count=count),
            )
            return False
        self._connections[connection.link.name] = connection
        self.traffic.churn["connection_created"] += 1
        return True

    def discard(self, connection: ClientConnection) -> None:
        """Forget a connection that is over."""
        if self._connections.get(connection.link.name) is connection:
            del self._connections[connection.link.name]
            self.traffic.churn["connection_closed"] += 1
        if not self._connections and self._idle is not None:
            self._idle.set()


FOR_GUESTS: Final = ServerSettings(port=None, consumer_timeout=None)


def let_in(node: RunningNode, connection: socket.socket) -> None:
    """Serve a guest; called by one thread, the listener's."""
    server = next(
        (service for service in node.hosted if isinstance(service, Server) and service.settings is FOR_GUESTS), None
    )
    if server is None:
        server = Server(node, FOR_GUESTS)
        server.start()
    server.take(connection, node.path)
