"""Rounds: a server's event loop, in a thread of its own, and what is done at the end of each of its rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from warren.actors.log_events import log_event, logger
from warren.actors.runtime.loop_thread import LoopThread
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
    """The loop, from :meth:`start` to :meth:`stop`."""

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
