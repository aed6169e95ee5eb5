"""ManagementServer: the API and the page on a socket, in the event loop of a server, or in one of its own.

A client too many, or one that keeps the server waiting, is disconnected. A client has
``management_tcp_request_timeout`` to send a request's head (the first one from the moment it connects) and
:data:`BODY_TIMEOUT_S` to send the rest of the request. It may not stop reading an answer for longer than
:data:`READ_TIMEOUT_S`. Between two requests, uvicorn's own timeout applies.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import socket
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from warren.actors.log_events import log_event, logger
from warren.actors.node.node_errors import UnsavedError
from warren.actors.node.node_registry import NodeRegistry
from warren.actors.runtime.loop_thread import LoopThread
from warren.hosting.running_node import RunningNode
from warren.management.app import Application
from warren.management.call import CLUSTER_ID, Managed
from warren.management.clients import Clients, NoClients
from warren.management.handlers import overview
from warren.management.rates import APART_S
from warren.management.settings import ManagementSettings
from warren.server.peer import is_loopback
from warren.server.settings import ListenError
from warren.server.tls import Handshakes, server_context
from warren.storage.descriptors import among_last
from warren.storage.errors import StorageError, WarrenError
from warren.verbs.steps import run

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


_LOG = logger("management")

_BACKLOG = 128
SAMPLING_SHARE: Final = 100
"""Samples by the clock take at most about one part in this number of the time."""
_STOP_TIMEOUT_S = 2


class _Uvicorn(uvicorn.Server):
    """A server that leaves signals to the program that it is in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ManagementServer:
    """The management API of one node. It ends before the node does."""

    protocol = "http"
    purpose = "HTTP API"
    connections: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self, node: RunningNode, settings: ManagementSettings | None = None, server: Clients | None = None
    ) -> None:
        """``server``: its clients are shown, and its event loop is used; without a server, the API has its own loop."""
        self.node = node
        self.settings = ManagementSettings() if settings is None else settings
        self._server = server
        clients: Clients = NoClients() if server is None else server
        self._managed = Managed(node=node, settings=self.settings, clients=clients)
        self._thread: LoopThread | None = None
        self._uvicorn: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses on which it listens: host and port."""
        return list(self._managed.addresses)

    @property
    def url(self) -> str:
        """The URL of the page."""
        host, port = self._managed.addresses[0]
        scheme = "http" if self.settings.management_ssl_certfile is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"

    def start(self) -> None:
        """Listen. Raises :class:`~warren.server.settings.ListenError` if the address is not available."""
        self.node.check_process()
        with contextlib.suppress(StorageError, UnsavedError):  # a disk that is full: the next start tries again
            run(self.node.change(_name_cluster))
        self._socket = _listening(self.settings.management_tcp_ip, self.settings.management_tcp_port)
        self._managed.addresses[:] = [self._socket.getsockname()[:2]]
        self._managed.samples.begin()
        self._managed.clients.traffic.is_counted = True
        self._thread = None if self._server is None else self._server.thread
        if self._thread is None:
            self._thread = LoopThread("warren-management")
            self._thread.start()
        self._thread.run(self._start(self._socket))
        self.node.hosted.insert(0, self)  # before the server whose loop it is in
        if not is_loopback(self.settings.management_tcp_ip):
            _LOG.warning(
                "listening on %s, which other machines reach",
                self.url,
                extra=log_event("listening_open", address=self.url),
            )

    async def _start(self, listening: socket.socket) -> None:
        settings, timeout_s = self.settings, self.settings.management_tcp_request_timeout / 1000
        protocol = type("Protocol", (HttpProtocol,), {"timeout_s": timeout_s})
        if settings.management_ssl_certfile is not None:
            context = server_context(settings.management_ssl_certfile, settings.management_ssl_keyfile)
            protocol = cast("type[HttpProtocol]", functools.partial(_before, Handshakes(context, timeout_s), protocol))
        config = uvicorn.Config(
            Application(self._managed),
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_STOP_TIMEOUT_S,
        )
        self._uvicorn = _Uvicorn(config)
        self._serving = asyncio.create_task(self._uvicorn.serve(sockets=[listening]))
        self._sampling = asyncio.create_task(self._sample_by_the_clock())

    async def _sample_by_the_clock(self) -> None:
        """Sample every five seconds; less often if that took more than a hundredth of the time."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                overview.take_samples(self._managed, await self._managed.sample())
            except WarrenError as error:
                _LOG.info("no samples: %s", error, extra=log_event("management_unsampled", error))
            await asyncio.sleep(max(APART_S, SAMPLING_SHARE * (loop.time() - began_s)))

    def stop(self) -> None:
        """Answer the requests that were received, and stop listening. May be called again."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self.node.hosted.remove(self)
        if self._server is None or self._server.thread is thread:
            thread.run(self._stop())
        if self._server is None:
            thread.stop()
        if self._socket is not None:
            self._socket.close()

    async def _stop(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
        self._managed.stopping.set()
        if self._uvicorn is not None and self._serving is not None:
            self._uvicorn.should_exit = True
            await self._serving

    def forget(self) -> None:
        """Close the socket in a forked child: it is the parent's, and stays open as long as any process has it."""
        self._thread = None
        if self._socket is not None:
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _before(handshakes: Handshakes, protocol: type[HttpProtocol], **arguments: Any) -> asyncio.Protocol:
    """Return the protocol that uvicorn uses for a client before the handshake is done."""
    return handshakes.before(functools.partial(protocol, **arguments))


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ListenError(f"{host}:{port}: {error.strerror or error}") from error


def _name_cluster(registry: NodeRegistry) -> None:
    """Give a node that has never been managed the permanent name that RabbitMQ gives a cluster."""
    if registry.parameters.global_value(CLUSTER_ID) is None:
        name = f"rabbitmq-cluster-id-{secrets.token_urlsafe(16)}"
        registry.define(lambda definitions: definitions.parameters.set_global(CLUSTER_ID, name))
