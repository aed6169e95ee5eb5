"""ClientConnection: one client's connection, from the first byte to the last.

Bytes go through the protocol engine (:mod:`warren.amqp`); this module does the rest: who may log in, to which
vhost, heartbeats, and when the socket is read. What happens on channels is :mod:`warren.server.channel`.

All of it runs in the server's event loop. Nothing here waits for a disk: a method that has to wait for an actor is a
coroutine of its channel, and later methods of that channel queue up after it. What one read brings is handed to the
queues; then their quick turns run right here, and the results leave in one write. A publish that the node does not
admit stops the reading of the socket, as with RabbitMQ.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.actors.engines.errors import AccessRefusedError, NotFoundError
from warren.actors.log_events import log_event, logger
from warren.aio import bridge
from warren.amqp.connection import Connection
from warren.amqp.errors import INTERNAL_ERROR, NAMES, ProtocolError, cut_text
from warren.amqp.framing import LARGE_BYTES, MethodRun
from warren.amqp.methods import method_of
from warren.amqp.own_methods import DISK_FULL, HANDING_OVER, PROTOCOL, PROTOCOL_PROPERTY, VERSION_PROPERTY
from warren.amqp.received import Event, HeaderReceived, Heartbeat, Messages, MethodReceived, Violation
from warren.amqp.states import Side, State
from warren.client.calls import refused
from warren.server.channel import ServerChannel
from warren.server.limits import channel_refused, connection_refused
from warren.server.replies import ACCESS_REFUSED, CONNECTION_FORCED, NOT_ALLOWED, Refusal, closes_channel, reply_of
from warren.server.sasl import Credentials, SaslError, credentials, mechanisms
from warren.server.server_properties import server_properties
from warren.server.share import TURN_S, Share
from warren.server.socket_options import set_option
from warren.storage.data_version import WARREN_VERSION
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from warren.server.peer import Peer
    from warren.server.server import Server
    from warren.server.settings import ServerSettings

_LOG = logger("server")

LINGER_S: Final = 30.0
"""How long a client that has closed its connection has to close its socket; less if its heartbeats are faster. Data
still on its way is read and dropped, so that the answer reaches it."""
CLOSE_TIMEOUT_S: Final = 3.0
"""How long a client that broke the protocol, or was refused, is waited for."""


_TERMINATED: Final = State.TERMINATED
_ANSWERED_IN: Final[dict[type[Method], State]] = {
    c.Connection.StartOk: State.SECURING,
    c.Connection.TuneOk: State.OPENING,
    c.Connection.Open: State.OPENING,
    c.Connection.UpdateSecret: State.RUNNING,
}

GUEST_BEAT_S: Final = 1.0


class ClientConnection(asyncio.Protocol):
    """One client's connection. Its ``info`` is what RabbitMQ's management shows of it."""

    def __init__(
        self,
        server: Server,
        describe: Callable[[asyncio.Transport], Peer],
        settings: ServerSettings | None = None,
    ) -> None:
        """``settings``: replace the server's."""
        self.server = server
        self.node = server.node
        self._describe = describe
        self._settings = settings = server.settings if settings is None else settings
        self.engine = Connection(
            Side.SERVER,
            channel_max=settings.channel_max,
            frame_max=settings.frame_max,
            max_message_size=settings.max_message_size,
        )
        self.name = ""
        self.user = ""
        self.vhost = ""
        self.auth_mechanism = ""
        self.is_owner = False
        """Whether this client has all permissions."""
        self.client_properties: dict[str, Any] = {}
        self.capabilities: dict[str, Any] = {}
        self.channels: dict[int, ServerChannel] = {}
        self.connected_at = time.time()
        self.received_bytes = self.sent_bytes = 0
        self.writable = True
        """Whether the client takes more data."""
        self._when_writable: list[Callable[[], None]] = []
        self._loop = server.loop
        self._transport: asyncio.Transport | None = None
        self._peer: Peer | None = None
        self._flushing = False
        self._heard = self._spoke = 0.0
        self._heartbeat: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._holding: set[object] = set()
        """The reasons not to read the socket."""
        self._told_blocked = ""
        """The reason in the last connection.blocked, if the client is blocked."""
        self._lingers = False
        """Whether the client was sent the ``close-ok`` and now has to close the socket."""
        self._handing_over: asyncio.Future[None] | None = None
        """Answered when the client has ended its half of the socket."""
        self._share = Share(self)
        self._over = False

    # ── the socket ──────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._peer = self._describe(self._transport)
        if not self._settings.tcp_listen_options_nodelay and not self._peer.is_owner:
            set_option(self.fileno(), socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        self.is_owner = self.engine.has_own_methods = self._peer.is_owner
        self.name = self._peer.name
        loop = self._loop
        self._heard = self._spoke = loop.time()
        if not self.server.admit(self):
            self._transport.abort()
            return
        self._deadline = loop.call_later(self._settings.handshake_timeout, self._too_slow)

    def _too_slow(self) -> None:
        _LOG.warning(
            "%s: the handshake took too long", self.name, extra=log_event("connection_timeout", connection=self.name)
        )
        self.abort()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self.received_bytes += len(data)
        if self._lingers:
            return
        self.work_off(self._share.of(self.engine.receive(data), len(data)))
        if self.node.gate.reasons or self.engine.assembled_bytes or self._share.kept_bytes:
            self._share.note_received()

    def work_off(self, events: list[Event]) -> None:
        """Handle events, as one round."""
        server, share = self.server, self._share
        with self.node.pool.holding() as held:
            server.begin_round()
            end_s = time.perf_counter() + TURN_S
            try:
                for index, event in enumerate(events, 1):
                    self._handle(event)
                    if share.is_stuck or time.perf_counter() > end_s:
                        share.put_off(events[index:])
                        break
                held.run_quick_ones()
            finally:
                server.flush_later(self)
                server.end_round()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._share.note_read()
        deferred, self._when_writable = self._when_writable, []
        for work in deferred:
            work()
        self.flush()

    def when_writable(self, work: Callable[[], None]) -> None:
        """Call ``work`` once the client takes more data."""
        self._when_writable.append(work)

    def eof_received(self) -> bool:
        if self._handing_over is None:
            return False
        if not self._handing_over.done():
            self._handing_over.set_result(None)
        return True

    async def hand_over(self) -> None:
        """Tell a process that shares the directory that its host is closing; handle and answer its pending requests."""
        if self.engine.state is not State.RUNNING:  # it has begun to close meanwhile
            return
        self._handing_over = self.server.loop.create_future()
        self.engine.send(0, c.Connection.Blocked(HANDING_OVER))
        self.flush()
        await self._handing_over
        for channel in list(self.channels.values()):
            await channel.all_answered()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._over:
            return
        self._over = True
        if self._handing_over is not None and not self._handing_over.done():
            self._handing_over.set_result(None)
        for timer in (self._heartbeat, self._deadline):
            if timer is not None:
                timer.cancel()
        self._share.end()
        self.engine.forget_unfinished()
        self._when_writable.clear()
        self.start(self._released())

    async def _released(self) -> None:
        """Give back everything that the client held, once what it sent has been handled."""
        try:
            await self._share.all_done()
            await self._give_back()
        finally:
            self.server.discard(self)

    async def _give_back(self) -> None:
        """Give back everything that the client held. An error is logged: the connection ends all the same."""
        try:
            for channel in list(self.channels.values()):
                await channel.finish()
            self.channels.clear()
            if self.vhost:
                await bridge.run(self.node.change(lambda actor: actor.release(self)))
        except Exception as error:
            _LOG.info("%s: %s", self.name, error, extra=log_event("connection_failed", error, connection=self.name))

    def flush(self) -> None:
        """Send pending data."""
        self._flushing = False
        pieces, transport = self.engine.pieces_to_send(), self._transport
        if pieces and transport is not None and not transport.is_closing():
            self._spoke = self._loop.time()
            self.sent_bytes += sum(map(len, pieces))
            if max(map(len, pieces)) < LARGE_BYTES:
                transport.write(b"".join(pieces))
            else:
                transport.writelines(pieces)
            if not self.writable:
                self._share.note_unsent(transport.get_write_buffer_size())
        if self.engine.state is _TERMINATED and not self._lingers and self._transport is not None:
            self._transport.close()

    def flush_soon(self) -> None:
        """Send pending data at the end of this round of the loop."""
        if not self._flushing:
            self._flushing = True
            self.server.flush_later(self)

    @property
    def is_over(self) -> bool:
        """Whether the client is gone."""
        return self._over

    async def has_room(self) -> None:
        """Wait until the client has read enough of its answers."""
        if self._share.is_stuck:
            await self._share.has_room()

    def note_kept(self, size_bytes: int) -> None:
        """Count ``size_bytes`` more as held back by a transaction."""
        self._share.kept_bytes += size_bytes

    def fileno(self) -> int:
        """Return the socket's number; -1 if it is closed."""
        opened = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if opened is None else int(opened.fileno())

    def abort(self) -> None:
        """Drop the connection without a close."""
        if self._transport is not None:
            self._transport.abort()

    # ── holding the socket ──────────────────────────────────────────────────────────────────────────────────────

    def hold(self, reason: object) -> None:
        """Stop reading the socket, until :meth:`release` for the same reason."""
        if not self._holding and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._holding.add(reason)

    def release(self, reason: object) -> None:
        if reason not in self._holding:
            return
        self._holding.discard(reason)
        if not self._holding and self._transport is not None and not self._transport.is_closing():
            self._heard = self.server.loop.time()
            self._transport.resume_reading()

    def tell_blocked(self) -> None:
        """Tell the client about an alarm, once a publish waits for it; a guest of the directory at once."""
        gate = self.node.gate
        if not gate.reasons or self.capabilities.get("connection.blocked") is not True:
            return
        reason = f"low on {' & '.join(sorted(gate.reasons, reverse=True))}"
        if self.is_owner and gate.disk_is_full:
            reason = DISK_FULL
        if reason != self._told_blocked and (self.is_owner or not self._told_blocked):
            self._told_blocked = reason
            self.engine.send(0, c.Connection.Blocked(reason))
            self.flush_soon()

    def tell_unblocked(self) -> None:
        if self._told_blocked and not self.node.gate.reasons:
            self._told_blocked = ""
            if self.engine.state is State.RUNNING:
                self.engine.send(0, c.Connection.Unblocked())
                self.flush_soon()

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
                self.channels.pop(number, None)
            case MethodReceived(number):
                if (channel := self.channels.get(number)) is not None:
                    channel.handle(event)
            case HeaderReceived():
                if not event.refused and self.engine.state is State.HANDSHAKE:
                    self._start()
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
                    self._beat(method.heartbeat / 2)
            case c.Connection.Open():
                self._open(method.virtual_host)
            case c.Connection.UpdateSecret():
                self.engine.send(0, c.Connection.UpdateSecretOk())
            case c.Connection.Close():
                self.start(self._closed())
            case c.Connection.CloseOk():
                pass

    def _start(self) -> None:
        offered = mechanisms(self._peer.certificate_name if self._peer else None)
        properties = server_properties(self.node.cluster_name)
        if self.is_owner:
            properties |= {PROTOCOL_PROPERTY: PROTOCOL, VERSION_PROPERTY: WARREN_VERSION}
        self.engine.send(
            0,
            method_of(
                c.Connection.Start,
                server_properties=properties,
                mechanisms=" ".join(offered),
                locales="en_US",
            ),
        )

    def _started(self, method: c.Connection.StartOk) -> None:
        peer, mechanism = self._peer, method.mechanism
        self.client_properties = dict(method.client_properties or {})
        capabilities = self.client_properties.get("capabilities")
        self.capabilities = dict(capabilities) if isinstance(capabilities, dict) else {}
        try:
            login = credentials(
                mechanism, method.response.encode(errors="surrogateescape"), peer.certificate_name if peer else None
            )
            self.user = login.user if self.is_owner else self._authenticated(login)
        except (AccessRefusedError, NotFoundError, SaslError) as error:
            _LOG.warning(
                "%s: %s login refused: %s",
                self.name,
                mechanism,
                error,
                extra=log_event("login_refused", error, connection=self.name, mechanism=mechanism),
            )
            self._refuse_login(mechanism, tells=not isinstance(error, SaslError))
            return
        self.auth_mechanism = mechanism
        settings = self._settings
        self.engine.send(0, c.Connection.Tune(settings.channel_max, settings.frame_max, settings.heartbeat))

    def _authenticated(self, login: Credentials) -> str:
        """Return the user's name; raise if the credentials are wrong."""
        users = self.node.actor.users
        user = users[login.user] if login.password is None else users.authenticate(login.user, login.password)
        self._check_loopback(user.name)
        return user.name

    def _check_loopback(self, user: str) -> None:
        if self._peer is not None and not self._peer.is_loopback and user in self.server.settings.loopback_users:
            raise AccessRefusedError(f"user '{user}' can only connect via localhost")

    def _refuse_login(self, mechanism: str, *, tells: bool) -> None:
        """Close after a while, with the reason if ``tells`` and the client can be told. As in RabbitMQ, this is for a
        user that may not log in, not for a malformed response."""
        if tells and self.capabilities.get("authentication_failure_close") is True:
            text = (
                f"{NAMES[ACCESS_REFUSED]} - Login was refused using authentication mechanism {mechanism}. "
                "For details see the broker logfile."
            )
            self.engine.send(0, c.Connection.Close(ACCESS_REFUSED, text, 0, 0))
            self._wait_for_close()
        else:
            self.server.loop.call_later(CLOSE_TIMEOUT_S, self.abort)
            self.hold("refused")

    def _open(self, vhost: str) -> None:
        method_index = c.Connection.Open.index
        is_down = vhost in self.node.actor.down or self.node.actor.actor_stopped.is_set()
        if vhost not in self.node.actor.vhosts and not is_down:
            self._fail(NOT_ALLOWED, f"NOT_ALLOWED - vhost {vhost} not found", method_index)
        elif is_down and not self.is_owner:  # a guest gets the reason from each of its verbs
            text = f"access to vhost '{vhost}' refused for user '{self.user}': vhost '{vhost}' is down"
            self._fail(INTERNAL_ERROR, f"INTERNAL_ERROR - {text}", method_index)
        elif not self.is_owner and (refusal := connection_refused(self.server, self.user, vhost)) is not None:
            self._fail(NOT_ALLOWED, f"NOT_ALLOWED - {refusal}", method_index)
        elif not self.is_owner and not self.node.actor.users.may_use(self.user, vhost):
            text = f"NOT_ALLOWED - access to vhost '{vhost}' refused for user '{self.user}'"
            self._fail(NOT_ALLOWED, text, method_index)
        else:
            self.vhost = vhost
            if self._deadline is not None:
                self._deadline.cancel()
            self.engine.send(0, c.Connection.OpenOk())
            if self.is_owner:
                self._show_life()

    def _open_channel(self, number: int) -> None:
        if not self.is_owner and (refusal := channel_refused(self.server, self.user)) is not None:
            self._fail(NOT_ALLOWED, f"NOT_ALLOWED - {refusal}", 0)
            return
        self.channels[number] = ServerChannel(self, number)
        if self.engine.is_open(number):
            self.engine.send(number, method_of(c.Channel.OpenOk, channel_id=""))

    async def _closed(self) -> None:
        await self._give_back()
        if self.engine.state is State.CLOSING:
            self.engine.send(0, c.Connection.CloseOk())
            self._lingers = True
            self._wait_for_close(min(self.engine.heartbeat or LINGER_S, LINGER_S))
        self.flush()

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _violated(self, error: ProtocolError) -> None:
        _LOG.warning("%s: %s", self.name, error, extra=log_event("connection_failed", error, connection=self.name))
        if self.engine.state is not State.TERMINATED:  # else the socket is closed once the reason is sent
            self._wait_for_close()

    def failed(self, number: int, error: Exception, method_index: int) -> None:
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
                    self.name,
                    error,
                    exc_info=error,
                    extra=log_event("connection_failed", error, connection=self.name),
                )
            self._fail(code, text, method_index)
            return
        _LOG.info(
            "%s, channel %d: %s",
            self.name,
            number,
            text,
            extra=log_event("channel_closed", error, connection=self.name, channel=number, code=code, vhost=self.vhost),
        )
        if self.engine.is_open(number):
            class_id, method_id = divmod(method_index, 1 << 16)
            if refusal is not None:
                self.engine.send(number, refused(refusal))
            self.engine.send(number, method_of(c.Channel.Close, reply_code=code, reply_text=text, class_id=class_id,
                                               method_id=method_id))  # fmt: skip
            self.flush_soon()

    def _told_to_guest(self, error: BaseException | None) -> WarrenError | None:
        """Return the error that a guest of the directory gets, with class and text; ``None``: a reply code."""
        if isinstance(error, Refusal):  # the text for AMQP clients; its cause may be an error of the node
            error = error.__cause__
        is_nodes = self.is_owner and isinstance(error, WarrenError) and not isinstance(error, ProtocolError)
        return cast("WarrenError", error) if is_nodes else None

    def close(self, reason: str) -> None:
        """Close the connection on an operator's request."""
        self._fail(CONNECTION_FORCED, f"CONNECTION_FORCED - {reason}", 0)
        self._lingers = False
        self.flush()
        if self._handing_over is not None and self._handing_over.done() and self._transport is not None:
            self._transport.close()  # the client's half has ended: no answer can come

    def _fail(self, code: int, text: str, method_index: int) -> None:
        if self.engine.state in (State.CLOSED, State.CLOSING, State.TERMINATED):
            return
        _LOG.warning(
            "%s: closed with %d %s",
            self.name,
            code,
            text,
            extra=log_event("connection_closed", connection=self.name, code=code, reason=text, vhost=self.vhost),
        )
        class_id, method_id = divmod(method_index, 1 << 16)
        self.engine.send(0, method_of(c.Connection.Close, reply_code=code, reply_text=cut_text(text), class_id=class_id,
                                      method_id=method_id))  # fmt: skip
        for channel in self.channels.values():
            channel.abandon()
        self._wait_for_close()
        self.flush_soon()

    def _wait_for_close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        for reason in list(self._holding):
            self.release(reason)
        self._deadline = self.server.loop.call_later(timeout_s, self.abort)

    # ── heartbeats ──────────────────────────────────────────────────────────────────────────────────────────────

    def _beat(self, half_s: float, beats: int = 0, heard: float = 0.0, missed: int = 0) -> None:
        """Send a heartbeat if nothing was sent for half of the interval; end the connection if nothing came in two.

        As in RabbitMQ, the intervals begin when the connection is tuned, and a client that is silent from then on has
        three: nothing is missed in the first. ``missed``: whole intervals in which nothing came.
        """
        now = self.server.loop.time()
        if beats and beats % 2 == 0:
            missed = missed + 1 if heard == self._heard and not self._holding else 0
            heard = self._heard
        if missed == 2:
            _LOG.warning(
                "%s: missed heartbeats from client, timeout: %ds",
                self.name,
                round(2 * half_s),
                extra=log_event("connection_timeout", connection=self.name),
            )
            self.abort()
            return
        if now - self._spoke >= half_s and self.engine.state is State.RUNNING:
            self.engine.send_heartbeat()
            self.flush()
        self._heartbeat = self.server.loop.call_later(
            half_s, functools.partial(self._beat, half_s, beats + 1, heard, missed)
        )

    def _show_life(self) -> None:
        """Send a guest of the directory something at least every :data:`GUEST_BEAT_S`: it gives up a silent host.

        This also tells it of alarms before it publishes.
        """
        self.tell_blocked()
        self.tell_unblocked()
        if self._loop.time() - self._spoke >= GUEST_BEAT_S and self.engine.state is State.RUNNING:
            self.engine.send_heartbeat()
            self.flush()
        self._heartbeat = self._loop.call_later(GUEST_BEAT_S, self._show_life)

    # ── tasks and status ────────────────────────────────────────────────────────────────────────────────────────

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task, and keep a reference to it."""
        task = self.server.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def info(self) -> dict[str, Any]:
        """Return what RabbitMQ's management shows of a connection."""
        peer = self._peer
        return {
            "name": self.name,
            "node": self.node.name,
            "user": self.user,
            "vhost": self.vhost,
            "state": "blocked" if self._told_blocked else self.engine.state.value,
            "protocol": "AMQP 0-9-1",
            "type": "network",
            "auth_mechanism": self.auth_mechanism,
            "channels": len(self.channels),
            "channel_max": self.engine.channel_max,
            "frame_max": self.engine.frame_max,
            "timeout": self.engine.heartbeat,
            "client_properties": self.client_properties,
            "connected_at": round(self.connected_at * 1000),
            "recv_oct": self.received_bytes,
            "send_oct": self.sent_bytes,
            "host": peer.host if peer else "",
            "port": peer.port if peer else 0,
            "peer_host": peer.peer_host if peer else "",
            "peer_port": peer.peer_port if peer else 0,
            "ssl": bool(peer and peer.ssl),
        }
