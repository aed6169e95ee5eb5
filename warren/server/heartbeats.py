"""Heartbeats: sent to one client, and expected from it."""

from __future__ import annotations

import asyncio
import functools
from typing import Final

from warren.actors.log_events import log_event, logger
from warren.amqp.states import State
from warren.server.client_link import ClientLink

_LOG = logger("server")

GUEST_BEAT_S: Final = 1.0
"""A guest of the directory is sent something at least this often: it gives up a silent host."""


class Heartbeats:
    """The heartbeats of one connection."""

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
