"""ClientLink: the socket of one client, and what its channels may do with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pamqp import commands as c

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
        """Tell the client that the alarm is over, if it was told of it."""
        if self.blocked_reason and not self.node.gate.reasons:
            self.blocked_reason = ""
            if self.engine.state is State.RUNNING:
                self.engine.send(0, c.Connection.Unblocked())
                self.flush_soon()

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
