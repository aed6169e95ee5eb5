"""ClientLink: the socket of one client, and what its channels may do with it, and its heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from pamqp import commands as c

from warren.actors.log_events import log_event, logger
from warren.amqp.connection import Connection
from warren.amqp.framing import LARGE_BYTES
from warren.amqp.own_methods import DISK_FULL
from warren.amqp.states import State
from warren.server.peer import Peer
from warren.server.server_context import ServerContext


class ClientLink:
    """One client's socket. Everything here runs in the server's event loop."""

    def __init__(self, server: ServerContext, engine: Connection) -> None:
        self.server = server
        self.node = server.node
        self.engine = engine
        self.name = ""
        self.user = ""
        self.vhost = ""
        self.is_owner = False
        """Whether this client has all permissions."""
        self.is_commands = False
        """Whether it is the connection of a command that only asks about the node; it is not listed."""
        self.capabilities: dict[str, Any] = {}
        self.writable = True
        """Whether the client takes more data."""
        self.is_over = False
        """Whether the client is gone."""
        self.lingers = False
        """Whether the client was sent the ``close-ok`` and now has to close the socket."""
        self.kept_bytes = 0
        """The size of the messages that have come in transactions."""
        self.sent_bytes = 0
        self.heard = self.spoke = 0.0
        """When data came last, and was sent last, by the loop's clock."""
        self.blocked_reason = ""
        """The reason in the last connection.blocked, if the client is blocked."""
        self.peer: Peer | None = None
        self.transport: asyncio.Transport | None = None
        self.on_unsent: Callable[[int], None] = lambda size_bytes: None
        """Called with how many bytes wait to be sent."""
        self._loop = server.loop
        self._when_writable: list[Callable[[], None]] = []
        self._is_flushing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._holding: set[object] = set()
        """The reasons not to read the socket."""

    # ── sending ─────────────────────────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        """Send pending data."""
        self._is_flushing = False
        pieces, transport = self.engine.pieces_to_send(), self.transport
        if pieces and transport is not None and not transport.is_closing():
            self.spoke = self._loop.time()
            self.sent_bytes += sum(map(len, pieces))
            if max(map(len, pieces)) < LARGE_BYTES:
                transport.write(b"".join(pieces))
            else:
                transport.writelines(pieces)
            if not self.writable:
                self.on_unsent(transport.get_write_buffer_size())
        if self.engine.state is State.TERMINATED and not self.lingers and transport is not None:
            transport.close()

    def flush_soon(self) -> None:
        """Send pending data at the end of this round of the loop."""
        if not self._is_flushing:
            self._is_flushing = True
            self.server.rounds.flush_later(self)

    def when_writable(self, work: Callable[[], None]) -> None:
        """Call ``work`` once the client takes more data."""
        self._when_writable.append(work)

    def set_writable(self) -> None:
        """Send what had to wait until the client takes more data."""
        self.writable = True
        deferred, self._when_writable = self._when_writable, []
        for work in deferred:
            work()
        self.flush()

    def tell_blocked(self) -> None:
        """Tell the client about an alarm, once a publish waits for it; a guest of the directory at once."""
        gate = self.node.gate
        if not gate.reasons or self.capabilities.get("connection.blocked") is not True:
            return
        reason = f"low on {' & '.join(sorted(gate.reasons, reverse=True))}"
        if self.is_owner and gate.disk_is_full:
            reason = DISK_FULL
        if reason != self.blocked_reason and (self.is_owner or not self.blocked_reason):
            self.blocked_reason = reason
            self.engine.send(0, c.Connection.Blocked(reason))
            self.flush_soon()

    def tell_unblocked(self) -> None:
        """Tell the client that the alarm is over, if it knows of the alarm."""
        if self.blocked_reason and not self.node.gate.reasons:
            self.blocked_reason = ""
            if self.engine.state is State.RUNNING:
                self.engine.send(0, c.Connection.Unblocked())
                self.flush_soon()

    @contextlib.contextmanager
    def telling_of_alarms(self) -> Iterator[None]:
        """Tell the client that what it publishes meanwhile may wait for an alarm, and then that the alarm is over."""
        self.tell_blocked()
        try:
            yield
        finally:
            self.tell_unblocked()

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_held(self) -> bool:
        """Whether the socket is not read at present."""
        return bool(self._holding)

    def hold(self, reason: object) -> None:
        """Stop reading the socket, until :meth:`release` for the same reason."""
        if not self._holding and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._holding.add(reason)

    def release(self, reason: object) -> None:
        """Read the socket again, unless there is another reason not to."""
        if reason not in self._holding:
            return
        self._holding.discard(reason)
        if not self._holding and self.transport is not None and not self.transport.is_closing():
            self.heard = self._loop.time()
            self.transport.resume_reading()

    @contextlib.contextmanager
    def held(self, reason: object) -> Iterator[None]:
        """Do not read the socket meanwhile, and tell the client if an alarm is the cause."""
        with self.telling_of_alarms():
            self.hold(reason)
            try:
                yield
            finally:
                self.release(reason)

    def release_all(self) -> None:
        """Read the socket again."""
        for reason in list(self._holding):
            self.release(reason)

    # ── tasks and the end ───────────────────────────────────────────────────────────────────────────────────────

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task, and keep a reference to it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def fileno(self) -> int:
        """Return the socket's number; -1 if it is closed."""
        opened = None if self.transport is None else self.transport.get_extra_info("socket")
        return -1 if opened is None else int(opened.fileno())

    def abort(self) -> None:
        """Drop the connection without a close."""
        if self.transport is not None:
            self.transport.abort()

    def end(self) -> None:
        """Note that the client is gone."""
        self.is_over = True
        self._when_writable.clear()


_LOG = logger("server")

GUEST_BEAT_S: Final = 1.0
"""A guest of the directory is sent something at least this often: it gives up a silent host."""


class Heartbeats:
    """The heartbeats that one client is sent, and those that are expected from it."""

    def __init__(self, link: ClientLink) -> None:
        self._link = link
        self._loop = link.server.loop
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, interval_s: float) -> None:
        """Begin, as the client has asked.

        As in RabbitMQ, the intervals begin when the connection is tuned, and a client that is silent from then on has
        three: nothing is missed in the first.
        """
        self._beat(interval_s / 2)

    def _beat(self, half_s: float, beats: int = 0, heard: float = 0.0, missed: int = 0) -> None:
        """Send a heartbeat if nothing was sent for half of the interval; end the connection if nothing came in two.

        ``missed``: whole intervals in which nothing came.
        """
        link = self._link
        if beats and beats % 2 == 0:
            missed = missed + 1 if heard == link.heard and not link.is_held else 0
            heard = link.heard
        if missed == 2:
            _LOG.warning(
                "%s: missed heartbeats from client, timeout: %ds",
                link.name,
                round(2 * half_s),
                extra=log_event("connection_timeout", connection=link.name),
            )
            link.abort()
            return
        self._speak_after(half_s)
        again = functools.partial(self._beat, half_s, beats + 1, heard, missed)
        self._timer = self._loop.call_later(half_s, again)

    def show_life(self) -> None:
        """Send a guest of the directory something every :data:`GUEST_BEAT_S`, and tell it of alarms before it
        publishes."""
        self._link.tell_blocked()
        self._link.tell_unblocked()
        self._speak_after(GUEST_BEAT_S)
        self._timer = self._loop.call_later(GUEST_BEAT_S, self.show_life)

    def _speak_after(self, silence_s: float) -> None:
        """Send a heartbeat if nothing was sent for ``silence_s``."""
        link = self._link
        if self._loop.time() - link.spoke >= silence_s and link.engine.state is State.RUNNING:
            link.engine.send_heartbeat()
            link.flush()

    def end(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
