"""LinkTail: a tail of a queue that another process hosts.

It has a channel of its own. A new host means a new channel, and the tail starts again at the queue's end: it misses
what came in between.
"""

from __future__ import annotations

import time

from warren.actors.queue.inspecting import BrowsedMessage
from warren.amqp.own_methods import Call
from warren.client.errors import LinkLostError
from warren.client.link_reader import ReaderChannel
from warren.client.remote import RemoteVhost
from warren.verbs.selecting import browsed_of
from warren.verbs.steps import Steps, Within
from warren.verbs.tail_verbs import PAGE


class LinkTail:
    """A :class:`~warren.verbs.tail_verbs.TailVerbs` over a link."""

    def __init__(self, remote: RemoteVhost, queue: str) -> None:
        self._remote = remote
        self._queue = queue
        self._last = 0
        self._channel: ReaderChannel | None = None

    def begin(self, last: int) -> Steps[None]:
        self._last = last  # it joins with the first page
        return
        yield

    def _now(self) -> Steps[ReaderChannel]:
        """Return the current channel of the tail, opening it if needed."""
        while self._channel is None or not self._channel.alive:
            channel = ReaderChannel(self._remote.link)
            try:
                yield self._remote.link.ready()
                yield channel.open()
                yield channel.ask(Call("tail.join", {"name": self._queue, "last": self._last}))
            except LinkLostError:
                continue
            except BaseException:
                channel.let_go()
                raise
            self._channel, self._last = channel, 0
        return self._channel

    def next_page(self, timeout: float | None) -> Steps[list[BrowsedMessage]]:
        page = yield from self._remote.within(timeout or None, self._next_page(timeout))
        if not page:
            self._remote.link.check_heard(timeout)
        return page

    def _next_page(self, timeout: float | None) -> Steps[list[BrowsedMessage]]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                channel = yield from self._now()
                arrival = channel.listen()
                page = browsed_of((yield channel.call("take", max_records=PAGE)))
            except LinkLostError:
                continue
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if page or left == 0.0 or not (yield Within(arrival, left)):
                return page

    def close(self) -> Steps[None]:
        if self._channel is not None:
            self._channel.let_go()
        return
        yield
