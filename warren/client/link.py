"""Link: one socket to the process that hosts a node, and what happens when it is lost.

:mod:`warren.actors.runtime.leader_follower` says which thread reads it, :mod:`warren.client.sending` when data is sent.

*Loss.* When the other end is gone the reader connects again (``connect`` finds the next host, or makes this process
host). Channels decide whether they continue (:class:`~warren.client.sending.Receiver`). Unanswered requests
fail with :class:`LinkLostError`, and verbs repeat them.

*Silence.* A host sends something at least every second, from its event loop. If nothing came for ``host_timeout_s``,
it is stopped or hangs: the socket is given up, and unanswered requests and publishes fail with the error
that ``unresponsive`` makes. The next call connects again.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.actors.log_events import log_event, logger
from warren.actors.runtime.future import Future
from warren.actors.runtime.interrupts import uninterrupted
from warren.actors.runtime.leader_follower import TICK_S, Later, Leading, call_later
from warren.amqp.connection import Connection
from warren.amqp.own_methods import HANDING_OVER
from warren.amqp.received import Event, Messages, MethodReceived, Violation
from warren.client.calls import call_of
from warren.client.errors import CONNECTION_FORCED, LinkLostError, refusal
from warren.client.handshake import RECEIVE_BYTES, Hands, Login
from warren.client.sending import Outbox, Receiver
from warren.client.topology import Topology
from warren.storage.errors import MessageError, WarrenError

_LOG = logger("client")

_DONT_WAIT: Final = int(socket.MSG_DONTWAIT)
CLOSE_S: Final = 2.0
"""How long the server may take to answer a close."""
SILENT_S: Final = 3.0
"""A host that has sent nothing for this time may be stopped: a call whose own timeout is over waits no longer."""
_CHANNEL_MAX: Final = 65_535
_NO_FRAME_MAX: Final = 0


class Link(Leading):
    """One socket, its engine, and the callers that wait for it. Safe to share between threads."""

    def __init__(
        self,
        connect: Callable[[Callable[[], bool]], socket.socket],
        login: Login,
        unresponsive: Callable[[float], WarrenError],
        host_timeout_s: float,
    ) -> None:
        """``connect``: returns a socket; raises :class:`LinkLostError` if it is to be called again, or if the function
        that it gets says that the socket is not needed any more, and otherwise why there is no socket.
        ``unresponsive``: makes the error for a host that was silent for some seconds.
        """
        self._connect, self._login = connect, login
        self._unresponsive, self.silence_limit_s = unresponsive, host_timeout_s
        self.begin()

    def begin(self) -> None:
        super().begin()
        self.outbox = Outbox(self)
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        """Kept, because memory of this size would be requested from the system, and returned, each time."""
        self._channels: dict[int, Receiver] = {}
        self._free_numbers: list[int] = []
        self._last_number = 0
        self.topology = Topology()
        """Declarations to repeat on the next socket."""
        self._ready: list[Future] = []
        self._put_off: list[Future] = []
        """Requests made while a host hands over; they fail when it is gone."""
        self._good_bye: Future | None = None
        self._last_engine: Connection | None = None
        """The engine of a host that hands over, or that was sent a close: it only receives."""
        self.refusing: WarrenError | None = None
        """The error of new publishes, once a close has begun: it waits for those before."""
        self.blocked = ""
        """Why publishers have to wait, if the server says so."""
        self.given_up: WarrenError | None = None
        """Why the last socket was given up, if the host was silent; there is no other yet."""
        self._lost_at_s = 0.0
        """When the last socket was lost."""

    @property
    def is_stuck(self) -> bool:
        return self.outbox.is_stuck

    def flush(self) -> None:
        self.outbox.flush()

    def flush_lazy(self) -> None:
        self.outbox.flush_lazy()

    def ready(self) -> Future:
        """Return a future that is answered when there is a socket, and fails with the reason if connecting fails. The
        link connects only on demand."""
        future = Future(self)
        with self._lock:
            if self.outbox.engine is None and self.closed is None:
                self._ready.append(future)
                if self._last_engine is None:
                    self.ask_to_join()
                return future
        if self.closed is not None:
            future.fail(self.closed)
        else:
            future.set()
        return future

    def join(self) -> None:
        """Connect, and continue with the last socket's channels. Called by the reader."""
        try:
            connection = self._connect(lambda: self.closed is not None)
            with self._lock:
                numbers = sorted(self._channels)
                again = [call_of(operation, self._login.vhost) for operation in self.topology.again()]
            hands = Hands(connection, self._login, _CHANNEL_MAX, _NO_FRAME_MAX, self.silence_limit_s)
            hands.declare(self._last_number + 1, again)
            hands.open(numbers)
        except LinkLostError as error:
            _LOG.info("%s", error, extra=log_event("link_lost", error))
            self._park.heard(TICK_S)
            return
        except TimeoutError:
            self.fail(self._unresponsive(self.silence_limit_s))
            return
        except WarrenError as error:
            self.fail(error)
            return
        later: Later = []
        with self._lock:
            if self.closed is not None:
                connection.close()
                return
            self.outbox.engine = engine = hands.done()
            self.given_up = None
            self.watch(connection)
            used_numbers = {*numbers, *self._channels}  # one that is closed below is free after the answer
            self._free_numbers = [number for number in range(1, self._last_number + 1) if number not in used_numbers]
            for number in numbers:
                if number in self._channels:
                    self._channels[number].rejoin(engine)
                else:  # its last user has gone meanwhile
                    engine.send(number, c.Channel.Close(200, "Goodbye", 0, 0))
            ready, self._ready = self._ready, []
            later += [(future.offer, (None,)) for future in ready]
            for event in hands.rest:
                self._receive_event(event, later)
            self.flush()
        call_later(later)
        self.wake()  # another thread may lead by now, and wait at the socket for what this thread has just handled

    def fail(self, error: WarrenError) -> None:
        """Fail all waiting callers: no host can be reached. The next caller tries again."""
        later: Later = []
        with self._lock:
            self.is_joining = False
            ready, self._ready = self._ready, []
            later += [(future.fail, (error,)) for future in ready]
            for receiver in list(self._channels.values()):
                receiver.failed(error, later)
            self._channels.clear()
        call_later(later)

    def break_off(self, error: WarrenError) -> None:
        """Give the socket up: unanswered requests fail with ``error``. The next call makes another one."""
        later: Later = []
        with self._lock:
            for receiver in list(self._channels.values()):
                receiver.failed(error, later)
            self.lose(LinkLostError(str(error)), later)
        call_later(later)
        self.fail(error)

    def silence(self, waited_s: float) -> WarrenError | None:
        """Return the error for a call that has waited ``waited_s``, if no host was found or the host is silent."""
        silent_s = self.silent_s if self.is_up else min(waited_s, time.monotonic() - self._lost_at_s)
        return self._unresponsive(silent_s) if silent_s > SILENT_S else None

    def check_heard(self, waited_s: float | None) -> None:
        """Raise the error for a call that got nothing for ``waited_s`` if the reason may be that the host is silent."""
        if waited_s and self.is_up and (error := self.silence(waited_s)) is not None:
            raise error

    def too_silent(self) -> None:
        self.given_up = self._unresponsive(self.silence_limit_s)
        self.break_off(self.given_up)

    def lose(self, error: WarrenError, later: Later) -> None:
        """Drop the socket, which is unusable."""
        if self.outbox.engine is None and self._last_engine is None:
            return
        _LOG.info("%s", error, extra=log_event("link_lost", error))
        if self.connection is not None:
            later.append((self.connection.close, ()))
        self.outbox.engine, self._last_engine, self.connection = None, None, None
        self._lost_at_s = time.monotonic()
        self.outbox.clear()
        self.blocked = ""
        for number, receiver in list(self._channels.items()):
            if not receiver.lost(error, later):
                self._channels.pop(number, None)
        put_off, self._put_off = self._put_off, []
        later += [(future.fail, (error,)) for future in put_off]
        if self._good_bye is not None:
            later.append((self._good_bye.offer, (None,)))
        self.is_joining = self.closed is None
        self.wake()

    def ask(self, receiver: Receiver, method: Method, asked: deque[Future]) -> Future:
        """Send a method; its answer goes to the first future of ``asked``."""
        return uninterrupted(self._ask, receiver, method, asked)

    def _ask(self, receiver: Receiver, method: Method, asked: deque[Future]) -> Future:
        future = Future(self)
        with self._lock:
            if self._channels.get(receiver.number) is receiver:
                if self.outbox.engine is not None:
                    asked.append(future)
                    try:
                        self.outbox.send(receiver.number, method)
                    except MessageError:  # it was not sent: the next answer is another's
                        asked.pop()
                        raise
                    return future
                if self._last_engine is not None:  # not before it is gone: the caller would try again at once
                    self._put_off.append(future)
                    return future
        future.fail(LinkLostError("the connection was lost"))
        return future

    def open(self, receiver: Receiver, asked: deque[Future]) -> Future:
        """Give a receiver a channel number, and open the channel on the server."""
        return uninterrupted(self._open, receiver, asked)

    def _open(self, receiver: Receiver, asked: deque[Future]) -> Future:
        future = Future(self)
        with self._lock:
            if self.outbox.engine is not None:
                receiver.number = self._free_numbers.pop() if self._free_numbers else self._last_number + 1
                self._last_number = max(self._last_number, receiver.number)
                self._channels[receiver.number] = receiver
                asked.append(future)
                self.outbox.send(receiver.number, c.Channel.Open())
                return future
            error = LinkLostError("the connection was lost")
            receiver.failed(error, [])  # it has no pending questions yet
        future.fail(error)
        return future

    def leave(self, receiver: Receiver) -> None:
        """Close a receiver's channel."""
        if self._channels.get(receiver.number) is receiver:
            del self._channels[receiver.number]
            if self.outbox.engine is not None:
                self.outbox.send(receiver.number, c.Channel.Close(200, "Goodbye", 0, 0))

    def receive(self, connection: socket.socket, later: Later) -> None:
        engine = self.outbox.engine or self._last_engine
        try:
            count = connection.recv_into(self._buffer, 0, _DONT_WAIT)
        except BlockingIOError:
            return
        except OSError as error:
            self.lose(LinkLostError(f"the connection was lost: {error}"), later)
            return
        if not count or engine is None:
            self.lose(LinkLostError("the connection was lost"), later)
            return
        for event in engine.receive(bytes(self._buffer[:count])):
            self._receive_event(event, later)

    def _receive_event(self, event: Event, later: Later) -> None:
        if isinstance(event, Violation):
            self._give_up(event.error, later)
        elif isinstance(event, MethodReceived) and not event.channel:
            self._receive_on_connection(event.method, later)
        elif hasattr(event, "channel"):
            method = event.method if isinstance(event, MethodReceived) else None
            if isinstance(method, c.Channel.CloseOk):
                self._free_numbers.append(event.channel)
                return
            receiver = self._channels.get(event.channel)
            if isinstance(method, c.Channel.Close):
                self._channels.pop(event.channel, None)
                if self.outbox.engine is not None:
                    self.outbox.engine.send(event.channel, c.Channel.CloseOk())
                    self._free_numbers.append(event.channel)
                    self.is_lazy = True
                if receiver is not None:
                    reason = receiver.refusal
                    error = reason if isinstance(reason, WarrenError) else refusal(method.reply_code, method.reply_text)
                    receiver.closed(error, later)
            elif receiver is not None and not self._comes_again(event):
                receiver.receive(event, later)

    def _comes_again(self, event: Event) -> bool:
        """Whether it is a message of a host that hands over: it cannot be settled any more, and comes again."""
        return (
            self._last_engine is not None
            and isinstance(event, Messages)
            and isinstance(event.method, c.Basic.Deliver | c.Basic.GetOk)
        )

    def _host_leaves(self) -> None:
        """Send what was handed over so far, and nothing more until the next host is found."""
        self.flush()
        self._last_engine, self.outbox.engine = self.outbox.engine, None
        self.flush()

    def all_sent(self) -> None:
        if self._last_engine is not None and self._good_bye is None and self.connection is not None:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)

    def _give_up(self, error: WarrenError, later: Later) -> None:
        """Fail everything: one side sent something invalid, and sending it again would not help."""
        _LOG.error("the connection failed for good: %s", error, extra=log_event("link_failed", error))
        for receiver in list(self._channels.values()):
            receiver.failed(error, later)
        self.lose(LinkLostError(str(error)), later)

    def _receive_on_connection(self, method: Method, later: Later) -> None:
        match method:
            case c.Connection.Close(reply_code=code, reply_text=text):
                if self.outbox.engine is not None:
                    self.outbox.engine.send(0, c.Connection.CloseOk())
                    self.flush()
                error = refusal(code, text)
                if code == CONNECTION_FORCED:
                    self.lose(LinkLostError(str(error)), later)
                else:
                    self._give_up(error, later)
            case c.Connection.CloseOk():
                self.lose(LinkLostError("the connection is closed"), later)
            case c.Connection.Blocked(reason=reason) if reason == HANDING_OVER:
                self._host_leaves()
            case c.Connection.Blocked(reason=reason):
                self.blocked = reason or "blocked"
            case c.Connection.Unblocked():
                self.blocked = ""
                for receiver in list(self._channels.values()):
                    unblocked = getattr(receiver, "unblocked", None)
                    if unblocked is not None:
                        unblocked(later)

    def refuse(self, error: WarrenError) -> None:
        """Make new publishes and calls fail with ``error``."""
        with self._lock:
            self.refusing = error

    def close(self, error: WarrenError) -> None:
        """Close the connection; from now on all requests fail with ``error``. What was sent before is done.

        An interrupt does not wait for the server's answer, and leaves nothing open.
        """
        if self.closed is not None:
            return
        try:
            good_bye = uninterrupted(self._say_good_bye, error)
            if good_bye is not None and not self.is_reader:
                good_bye.settled(CLOSE_S)
        finally:
            later: Later = []
            was_up = uninterrupted(self._shut, error, later)
            try:
                if was_up:
                    self.wait_for_leader(CLOSE_S)
            finally:
                uninterrupted(call_later, later)
                self.stop_reader()

    def _say_good_bye(self, error: WarrenError) -> Future | None:
        """Send the close and return a future for its answer; ``None`` if there is no connection."""
        with self._lock:
            if self.closed is not None:
                return None
            self.closed = self.refusing = error
            if self.outbox.engine is None:
                return None
            good_bye = self._good_bye = Future(self)
            with contextlib.suppress(WarrenError):
                self.outbox.send(0, c.Connection.Close(200, "Goodbye", 0, 0))
            self._last_engine, self.outbox.engine = self.outbox.engine, None
            return good_bye

    def _shut(self, error: WarrenError, later: Later) -> bool:
        """Shut the socket down, whatever is on its way; return whether there was one."""
        with self._lock:
            connection = self.connection
            self.lose(error, later)
            ready, self._ready = self._ready, []
            later += [(future.fail, (error,)) for future in ready]
            for receiver in list(self._channels.values()):
                receiver.failed(error, later)
            self._channels.clear()
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits at it
        return connection is not None

    def forget(self, error: WarrenError) -> None:
        """In a forked child: the socket is the parent's. Waiting callers get ``error``; the next one connects."""
        connection, channels, waiting = self.connection, list(self._channels.values()), self._ready + self._put_off
        for end in (connection, self._woken, self._waker):
            if end is not None:
                end.close()
        self.begin()
        later: Later = [(future.fail, (error,)) for future in waiting]
        for receiver in channels:
            receiver.failed(error, later)
        call_later(later)
