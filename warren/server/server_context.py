"""ServerContext: what the connections of a server share: its event loop, and the addresses of direct reply-to."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import attrs

from warren.actors.log_events import log_event, logger
from warren.actors.runtime.loop_thread import LoopThread
from warren.hosting.running_node import RunningNode
from warren.server.settings import ServerSettings
from warren.server.traffic import Traffic
from warren.storage.errors import WarrenError

_LOG = logger("server")


class Sender(Protocol):
    """Something that has data to send."""

    name: str

    def flush(self) -> None:
        """Send pending data."""

    def abort(self) -> None:
        """Give up, after an error."""


class Rounds:
    """The event loop, in a thread of its own from :meth:`start` to :meth:`stop`, and what ends each of its rounds."""

    def __init__(self) -> None:
        self.thread: LoopThread | None = None
        self._before_flush: list[Callable[[], None]] = []
        self._to_flush: set[Sender] = set()

    def start(self) -> None:
        """Start the thread."""
        self.thread = LoopThread("warren-server", _new_loop, self._flush)
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        if self.thread is not None:
            self.thread.stop()
            self.thread = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        return self.running.loop

    @property
    def running(self) -> LoopThread:
        """The thread; raises if it does not run."""
        if self.thread is None:
            raise RuntimeError("the server does not run")
        return self.thread

    def post(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the loop, soon. Thread-safe. A stopped server ignores it: an actor that has an answer for a
        client that is gone must not fail."""
        thread = self.thread
        if thread is not None:
            thread.post(work)

    def flush_later(self, sender: Sender) -> None:
        """Let a connection send pending data once this round of the loop is done."""
        self._to_flush.add(sender)
        self.running.see_to_round()

    def before_flush(self, work: Callable[[], None]) -> None:
        """Call ``work`` once this round of the loop is done."""
        self._before_flush.append(work)
        self.running.see_to_round()

    def begin(self) -> None:
        """Begin to handle a connection's bytes; :meth:`end` comes next."""
        self.running.begin_round()

    def end(self) -> None:
        """Run posted work and what follows from it, and let connections send."""
        self.running.end_round()

    def _flush(self) -> bool:
        """Send; return whether there is more to send."""
        works, self._before_flush = self._before_flush, []
        for work in works:
            work()
        senders, self._to_flush = self._to_flush, set()
        for sender in senders:
            try:
                sender.flush()
            except WarrenError as error:
                _LOG.exception("%s", sender.name, extra=log_event("connection_failed", error, connection=sender.name))
                sender.abort()
        return bool(self._before_flush or self._to_flush)


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop event loop if uvloop is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""The pseudo-queue."""
_ADDRESS: Final = f"{REPLY_TO}."

Deliver = Callable[[str, bytes, Sequence[bytes]], None]
"""Sends replies to a channel, given their routing key, properties and bodies."""


@attrs.define(eq=False)
class ReplyAddresses:
    """Which channel waits for the answers that are published to an address."""

    _waiting: dict[str, Deliver] = attrs.Factory(dict)

    def find(self, routing_key: str) -> Deliver | None:
        return self._waiting.get(routing_key)

    def add(self, deliver: Deliver) -> str:
        """Return a new address."""
        address = f"{_ADDRESS}{secrets.token_urlsafe(24)}"
        self._waiting[address] = deliver
        return address

    def remove(self, address: str) -> None:
        self._waiting.pop(address, None)


def is_reply_queue(name: str) -> bool:
    """Whether it is the pseudo-queue, or an address."""
    return name == REPLY_TO or is_address(name)


def is_address(routing_key: str) -> bool:
    return routing_key.startswith(_ADDRESS)


@attrs.frozen(eq=False)
class ServerContext:
    """The node that is served, and the parts of its server."""

    node: RunningNode
    settings: ServerSettings
    rounds: Rounds = attrs.Factory(Rounds)
    traffic: Traffic = attrs.Factory(Traffic)
    replies: ReplyAddresses = attrs.Factory(ReplyAddresses)
    """The channels that wait for direct replies."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs everything here."""
        return self.rounds.loop
