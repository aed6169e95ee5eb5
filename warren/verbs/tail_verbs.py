"""A tail of a queue (:mod:`warren.actors.queue.tails`), for threads and coroutines: pages of the messages that are
there and of new ones, without taking them.
"""

from __future__ import annotations

import itertools
import time
from typing import Final, Protocol

from warren.actors.queue.inspecting import BrowsedMessage
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.runtime.future import Future
from warren.actors.runtime.inbox import ControlCall
from warren.actors.runtime.timer import tell
from warren.verbs.steps import Steps, Within, call

PAGE: Final = 64
"""Messages that are looked at in one go."""
_numbers = itertools.count(1)


class TailVerbs(Protocol):
    """The verbs of one tail."""

    def begin(self, last: int) -> Steps[None]:
        """Start ``last`` messages before the end."""

    def next_page(self, timeout: float | None) -> Steps[list[BrowsedMessage]]:
        """Return the next messages; an empty list if none comes for ``timeout`` seconds (``None``: wait). Raises the
        error that the queue failed with."""

    def close(self) -> Steps[None]:
        """End the tail, without waiting: this may run at any point, when a tail is garbage collected."""


class LocalTail:
    """A tail of a queue of this process. In a guest of a shared directory it is a
    :class:`warren.client.link_tail.LinkTail`."""

    def __init__(self, actor: QueueActor) -> None:
        self._actor = actor
        self._name = next(_numbers)

    def begin(self, last: int) -> Steps[None]:
        yield call(self._actor, lambda: self._actor.tails.begin(self._name, last))

    def page(self, count: int) -> Steps[list[BrowsedMessage]]:
        """Return the next messages that are there already."""
        page: list[BrowsedMessage] | None = yield call(self._actor, lambda: self._actor.tails.page(self._name, count))
        return page or []

    def arrival(self) -> Future:
        """Return a future that is answered when a page is ready or the tail has ended."""
        return call(self._actor, lambda: self._actor.tails.arrival(self._name))

    def next_page(self, timeout: float | None) -> Steps[list[BrowsedMessage]]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (page := (yield from self.page(PAGE))):
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if left == 0.0 or not (yield Within(self.arrival(), left)):
                break
        return page

    def close(self) -> Steps[None]:
        tell(self._actor.actor_ref, ControlCall(lambda: self._actor.tails.end(self._name)))
        return
        yield
