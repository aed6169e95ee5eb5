"""ChannelTail: the host's side of a tail in another process, for as long as its channel is open."""

from __future__ import annotations

from typing import Any

from warren.actors.runtime.future import Future
from warren.amqp.own_methods import Arrived
from warren.server.channels.channel_link import ChannelLink
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.selecting import browsed_to_plain
from warren.verbs.steps import Steps
from warren.verbs.tail_verbs import LocalTail


class ChannelTail:
    """The tail of one channel."""

    def __init__(self, channel: ChannelLink, queue: QueueVerbs) -> None:
        self._channel = channel
        self._verbs = LocalTail(queue.actor)
        self._is_left = False

    def join(self, last: int) -> Steps[None]:
        """Start ``last`` messages before the end."""
        return self._verbs.begin(last)

    def take(self, max_records: int) -> Steps[list[dict[str, Any]]]:
        """Return the next messages. If there is no message, :class:`Arrived` says when to ask again."""
        page = yield from self._verbs.page(max_records)
        if not page:
            arrival = self._verbs.arrival()
            arrival.on_done(self._arrived)
            arrival.hurry()
        return browsed_to_plain(page)

    def _arrived(self, _: Future) -> None:
        if not self._is_left:
            self._channel.server.rounds.post(self._tell)

    def _tell(self) -> None:
        if not self._is_left:
            self._channel.send(Arrived())

    def leave(self) -> Steps[None]:
        """End the tail."""
        self._is_left = True
        return self._verbs.close()
