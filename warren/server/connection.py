"""ClientConnection: one client's connection, from the first byte to the last.

Bytes go through the protocol engine (:mod:`warren.amqp`); this module does the rest: who may log in, to which
vhost, heartbeats, and when the socket is read. What happens on channels is :mod:`warren.server.channels.channel`.

All of it runs in the server's event loop. Nothing here waits for a disk: a method that has to wait for an actor is a
coroutine of its channel, and later methods of that channel queue up after it. What one read brings is handed to the
queues; then their quick turns run right here, and the results leave in one write. A publish that the node does not
admit stops the reading of the socket, as with RabbitMQ.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.actors.log_events import log_event, logger
from warren.aio import bridge
from warren.amqp.connection import Connection
from warren.amqp.errors import INTERNAL_ERROR, NAMES, ProtocolError, cut_text
from warren.amqp.framing import MethodRun
from warren.amqp.methods import method_of
from warren.amqp.own_methods import HANDING_OVER
from warren.amqp.received import Event, HeaderReceived, Heartbeat, Messages, MethodReceived, Violation
from warren.amqp.states import Side, State
from warren.client.calls import refused
from warren.server.channels.channel import Ends, ServerChannel
from warren.server.client_link import ClientLink, Heartbeats
from warren.server.login import Login, SaslError
from warren.server.peer import Peer, packet_counts, set_option
from warren.server.replies import ACCESS_REFUSED, CONNECTION_FORCED, NOT_ALLOWED, Refusal, closes_channel, reply_of
from warren.server.server_context import ServerContext
from warren.server.settings import ServerSettings
from warren.server.share import TURN_S, Share
from warren.storage.errors import WarrenError

_LOG = logger("server")

LINGER_S: Final = 30.0
"""How long a client that has closed its connection has to close its socket; less if its heartbeats are faster. Data
still on its way is read and dropped, so that the answer reaches it."""
CLOSE_TIMEOUT_S: Final = 3.0
"""How long a client that broke the protocol, or was refused, is waited for."""

_ANSWERED_IN: Final[dict[type[Method], State]] = {
    c.Connection.StartOk: State.SECURING,
    c.Connection.TuneOk: State.OPENING,
    c.Connection.Open: State.OPENING,
    c.Connection.UpdateSecret: State.RUNNING,
}


class Admission(Protocol):
    """The limits on connections and channels: a server's."""

    def admit(self, connection: ClientConnection) -> bool:
        """Whether another connection is admitted."""

    def discard(self, connection: ClientConnection) -> None:
        """Forget a connection that is over."""

    def connection_refused(self, user: str, vhost: str) -> str | None:
        """Return why a user may not open another connection to a vhost; ``None``: it may."""

    def channel_refused(self, user: str) -> str | None:
        """Return why a user may not open another channel; ``None``: it may."""


class ClientConnection(asyncio.Protocol):
    """One client's connection. Its ``info`` is what RabbitMQ's management shows of it."""

    def __init__(
        self,
        server: ServerContext,
        admission: Admission,
        describe: Callable[[asyncio.Transport], Peer],
        settings: ServerSettings | None = None,
    ) -> None:
        """``settings``: replace the server's."""
        self._settings = settings = server.settings if settings is None else settings
        self.engine = Connection(
            Side.SERVER,
            channel_max=settings.channel_max,
            frame_max=settings.frame_max,
            max_message_size=settings.max_message_size,
        )
        self.link = ClientLink(server, self.engine)
        self.node = server.node
        self.channels: dict[int, ServerChannel] = {}
        self.connected_at = time.time()
        self.received_bytes = 0
        self._admission = admission
        self._describe = describe
        self._login = Login(self.link, settings)
        self._heartbeats = Heartbeats(self.link)
        self._share = Share(self.link, self._work_off, self._uncommitted_bytes)
        self.link.on_unsent = self._share.note_unsent
        self._ends = Ends(self._failed, self._forget_channel)
        self._loop = server.loop
        self._deadline: asyncio.TimerHandle | None = None
        self._handing_over: asyncio.Future[None] | None = None
        """Answered when the client has ended its half of the socket."""

    @property
    def vhost(self) -> str:
        """The vhost that the client has opened."""
        return self.link.vhost

    @property
    def sent_bytes(self) -> int:
        """How much was sent to the client."""
        return self.link.sent_bytes

    def _uncommitted_bytes(self) -> int:
        return sum(channel.publisher.uncommitted_bytes for channel in self.channels.values())

    # ── the socket ──────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        link = self.link
        link.transport = cast("asyncio.Transport", transport)
        link.peer = peer = self._describe(link.transport)
        if not self._settings.tcp_listen_options_nodelay and not peer.is_owner:
            set_option(link.fileno(), socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        link.is_owner = self.engine.has_own_methods = peer.is_owner
        link.name = peer.name
        link.heard = link.spoke = self._loop.time()
        if not self._admission.admit(self):
            link.abort()
            return
        self._deadline = self._loop.call_later(self._settings.handshake_timeout, self._too_slow)

    def _too_slow(self) -> None:
        name = self.link.name
        _LOG.warning("%s: the handshake took too long", name, extra=log_event("connection_timeout", connection=name))
        self.link.abort()

    def data_received(self, data: bytes) -> None:
        link = self.link
        link.heard = self._loop.time()
        self.received_bytes += len(data)
        if link.lingers:
            return
        self._work_off(self._share.of(self.engine.receive(data), len(data)))
        if self.node.gate.reasons or self.engine.assembled_bytes or link.kept_bytes:
            self._share.note_received()

    def _work_off(self, events: list[Event]) -> None:
        """Handle events, as one round."""
        rounds, share = self.link.server.rounds, self._share
        with self.node.pool.holding() as held:
            rounds.begin()
            end_s = time.perf_counter() + TURN_S
            try:
                for index, event in enumerate(events, 1):
                    self._handle(event)
                    if share.is_stuck or time.perf_counter() > end_s:
                        share.put_off(events[index:])
                        break
                held.run_quick_ones()
            finally:
                rounds.flush_later(self.link)
                rounds.end()

    def pause_writing(self) -> None:
        self.link.writable = False

    def resume_writing(self) -> None:
        self._share.note_read()
        self.link.set_writable()

    def eof_received(self) -> bool:
        if self._handing_over is None:
            return False
        if not self._handing_over.done():
            self._handing_over.set_result(None)
        return True

    async def hand_over(self) -> None:
        """Tell a process that shares the directory that its host is closing; handle and answer its pending requests.

        A command is not told: it sends nothing while it waits for an answer.
        """
        if self.engine.state is not State.RUNNING:  # it has begun to close meanwhile
            return
        if not self.link.is_commands:
            self._handing_over = self._loop.create_future()
            self.engine.send(0, c.Connection.Blocked(HANDING_OVER))
            self.link.flush()
            await self._handing_over
        for channel in list(self.channels.values()):
            await channel.all_answered()
        self.link.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.link.is_over:
            return
        self.link.end()
        if self._handing_over is not None and not self._handing_over.done():
            self._handing_over.set_result(None)
        self._heartbeats.end()
        if self._deadline is not None:
            self._deadline.cancel()
        self._share.end()
        self.engine.forget_unfinished()
        self.link.start(self._released())

    async def _released(self) -> None:
        """Give back everything that the client held, once what it sent has been handled."""
        try:
            await self._share.all_done()
            await self._give_back()
        finally:
            self._admission.discard(self)

    async def _give_back(self) -> None:
        """Give back everything that the client held. An error is logged: the connection ends all the same."""
        try:
            for channel in list(self.channels.values()):
                await channel.finish()
            self.channels.clear()
            if self.vhost:
                await bridge.run(self.node.change(lambda registry: registry.release(self.link)))
        except Exception as error:
            name = self.link.name
            _LOG.info("%s: %s", name, error, extra=log_event("connection_failed", error, connection=name))

    # ── events ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _handle(self, event: Event) -> None:
        match event:
            case Messages() | MethodRun():
                if (channel := self.channels.get(event.channel)) is not None:
                    channel.handle(event)
            case MethodReceived(0, method):
                self._handle_connection_method(method)
            case MethodReceived(number, c.Channel.Open()):
                self._open_channel(number)
            case MethodReceived(number, c.Channel.CloseOk()):
                self._forget_channel(number)
            case MethodReceived(number):
                if (channel := self.channels.get(number)) is not None:
                    channel.handle(event)
            case HeaderReceived():
                if not event.refused and self.engine.state is State.HANDSHAKE:
                    self._login.start()
            case Violation():
                self._violated(event.error)
            case Heartbeat():
                pass

    def _handle_connection_method(self, method: Method) -> None:
        if self.engine.state is not _ANSWERED_IN.get(type(method), self.engine.state):
            return  # a later method in the same read has closed the connection
        match method:
            case c.Connection.StartOk():
                self._started(method)
            case c.Connection.TuneOk():
                if method.heartbeat:
                    self._heartbeats.begin(method.heartbeat)
            case c.Connection.Open():
                self._open(method.virtual_host)
            case c.Connection.UpdateSecret():
                self.engine.send(0, c.Connection.UpdateSecretOk())
            case c.Connection.Close():
                self.link.start(self._closed())
            case c.Connection.CloseOk():
                pass

    def _started(self, method: c.Connection.StartOk) -> None:
        """Check who it is. As in RabbitMQ, a user that may not log in can be told the reason; a malformed response gets
        no answer."""
        try:
            if self._login.check(method):
                return
            tells = self.link.capabilities.get("authentication_failure_close") is True
        except SaslError:
            tells = False
        if tells:
            text = (
                f"{NAMES[ACCESS_REFUSED]} - Login was refused using authentication mechanism {method.mechanism}. "
                "For details see the broker logfile."
            )
            self.engine.send(0, c.Connection.Close(ACCESS_REFUSED, text, 0, 0))
            self._wait_for_close()
        else:
            self._loop.call_later(CLOSE_TIMEOUT_S, self.link.abort)
            self.link.hold("refused")

    def _open(self, vhost: str) -> None:
        link = self.link
        limit = None if link.is_owner else self._admission.connection_refused(link.user, vhost)
        if (refusal := self._login.refusal(vhost, limit)) is not None:
            self._fail(*refusal, c.Connection.Open.index)
            return
        link.vhost = vhost
        if self._deadline is not None:
            self._deadline.cancel()
        self.engine.send(0, c.Connection.OpenOk())
        if link.is_owner:
            self._heartbeats.show_life()

    def _open_channel(self, number: int) -> None:
        if not self.link.is_owner and (refusal := self._admission.channel_refused(self.link.user)) is not None:
            self._fail(NOT_ALLOWED, f"NOT_ALLOWED - {refusal}", 0)
            return
        self.channels[number] = ServerChannel(self.link, number, self._share, self._ends)
        if self.engine.is_open(number):
            self.engine.send(number, method_of(c.Channel.OpenOk, channel_id=""))

    def _forget_channel(self, number: int) -> None:
        self.channels.pop(number, None)

    async def _closed(self) -> None:
        await self._give_back()
        if self.engine.state is State.CLOSING:
            self.engine.send(0, c.Connection.CloseOk())
            self.link.lingers = True
            self._wait_for_close(min(self.engine.heartbeat or LINGER_S, LINGER_S))
        self.link.flush()

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _violated(self, error: ProtocolError) -> None:
        name = self.link.name
        _LOG.warning("%s: %s", name, error, extra=log_event("connection_failed", error, connection=name))
        if self.engine.state is not State.TERMINATED:  # else the socket is closed once the reason is sent
            self._wait_for_close()

    def _failed(self, number: int, error: Exception, method_index: int) -> None:
        """Close the channel, or the connection, for an error on a channel."""
        code, text = reply_of(error)
        is_clients = isinstance(error, ProtocolError)
        if isinstance(error, ProtocolError) and (error.method_index or code == INTERNAL_ERROR):
            method_index = error.method_index
        channel = self.channels.get(number)
        refusal = self._told_to_guest(error)
        if channel is None or (refusal is None and not closes_channel(code)):
            if code == INTERNAL_ERROR and not is_clients:
                _LOG.error(
                    "%s: %s",
                    self.link.name,
                    error,
                    exc_info=error,
                    extra=log_event("connection_failed", error, connection=self.link.name),
                )
            self._fail(code, text, method_index)
            return
        _LOG.info(
            "%s, channel %d: %s",
            self.link.name,
            number,
            text,
            extra=log_event(
                "channel_closed", error, connection=self.link.name, channel=number, code=code, vhost=self.vhost
            ),
        )
        if self.engine.is_open(number):
            class_id, method_id = divmod(method_index, 1 << 16)
            if refusal is not None:
                self.engine.send(number, refused(refusal))
            self.engine.send(number, method_of(c.Channel.Close, reply_code=code, reply_text=text, class_id=class_id,
                                               method_id=method_id))  # fmt: skip
            self.link.flush_soon()

    def _told_to_guest(self, error: BaseException | None) -> WarrenError | None:
        """Return the error that a guest of the directory gets, with class and text; ``None``: a reply code."""
        if isinstance(error, Refusal):  # the text for AMQP clients; its cause may be an error of the node
            error = error.__cause__
        is_nodes = self.link.is_owner and isinstance(error, WarrenError) and not isinstance(error, ProtocolError)
        return cast("WarrenError", error) if is_nodes else None

    def close(self, reason: str) -> None:
        """Close the connection on an operator's request. That of a command just ends: it may not be reading."""
        transport = self.link.transport
        if self.link.is_commands and transport is not None:
            transport.close()
            return
        self._fail(CONNECTION_FORCED, f"CONNECTION_FORCED - {reason}", 0)
        self.link.lingers = False
        self.link.flush()
        if self._handing_over is not None and self._handing_over.done() and transport is not None:
            transport.close()  # the client's half has ended: no answer can come

    def _fail(self, code: int, text: str, method_index: int) -> None:
        if self.engine.state in (State.CLOSED, State.CLOSING, State.TERMINATED):
            return
        _LOG.warning(
            "%s: closed with %d %s",
            self.link.name,
            code,
            text,
            extra=log_event("connection_closed", connection=self.link.name, code=code, reason=text, vhost=self.vhost),
        )
        class_id, method_id = divmod(method_index, 1 << 16)
        self.engine.send(0, method_of(c.Connection.Close, reply_code=code, reply_text=cut_text(text), class_id=class_id,
                                      method_id=method_id))  # fmt: skip
        for channel in self.channels.values():
            channel.abandon()
        self._wait_for_close()
        self.link.flush_soon()

    def _wait_for_close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.link.release_all()
        self._deadline = self._loop.call_later(timeout_s, self.link.abort)

    # ── status ──────────────────────────────────────────────────────────────────────────────────────────────────

    def info(self) -> dict[str, Any]:
        """Return what RabbitMQ's management shows of a connection."""
        link, login, peer = self.link, self._login, self.link.peer
        properties, packets = login.client_properties, packet_counts(link.transport)
        name = {"user_provided_name": properties["connection_name"]} if "connection_name" in properties else {}
        return {
            "auth_mechanism": login.mechanism,
            "channel_max": self.engine.channel_max,
            "channels": len(self.channels),
            "client_properties": properties,
            "connected_at": round(self.connected_at * 1000),
            "frame_max": self.engine.frame_max,
            "host": peer.host if peer else "",
            **dict.fromkeys(("peer_cert_issuer", "peer_cert_subject", "peer_cert_validity")),
            "peer_host": peer.peer_host if peer else "",
            "peer_port": peer.peer_port if peer else 0,
            "port": peer.port if peer else 0,
            "protocol": "AMQP 0-9-1",
            "recv_cnt": packets[0],
            "recv_oct": self.received_bytes,
            "send_cnt": packets[1],
            "send_oct": link.sent_bytes,
            "send_pend": 0 if link.transport is None else link.transport.get_write_buffer_size(),
            "ssl": bool(peer and peer.ssl),
            **dict.fromkeys(("ssl_cipher", "ssl_hash", "ssl_key_exchange", "ssl_protocol")),
            "state": "blocked" if link.blocked_reason else self.engine.state.value,
            "timeout": self.engine.heartbeat,
            "type": "network",
            "user": link.user,
            "vhost": link.vhost,
            "name": link.name,
            "node": self.node.name,
            **name,
            "user_who_performed_action": link.user,
        }
