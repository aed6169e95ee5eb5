"""A tail of a queue (:mod:`warren.actors.queue.tails`), as threads and coroutines have it: pages of what is there and
of what
comes, none of it taken.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Final

from warren.actors.queue.inspecting import BrowsedMessage
from warren.actors.runtime.future import Future
from warren.actors.runtime.inbox import ControlCall
from warren.actors.runtime.timer import tell
from warren.verbs.steps import Steps, Within, call

if TYPE_CHECKING:
    from warren.verbs.queue_verbs import QueueVerbs

PAGE: Final = 64
"""Messages that are looked at in one go."""
_numbers = itertools.count(1)


class TailVerbs:
    """The verbs of one tail."""

    def __init__(self, queue: QueueVerbs) -> None:
        self._queue = queue
        self._actor = queue.actor
        self._name = next(_numbers)

    def begin(self, last: int) -> Steps[None]:
        """Stand ``last`` messages before the end."""
        yield call(self._actor, lambda: self._actor.tails.begin(self._name, last))

    def page(self, count: int) -> Steps[list[BrowsedMessage]]:
        """The next messages, as far as they are there."""
        found: list[BrowsedMessage] | None = yield call(self._actor, lambda: self._actor.tails.page(self._name, count))
        return found or []

    def arrival(self) -> Future:
        """Answered when there is a page to ask for, or will be none."""
        return call(self._actor, lambda: self._actor.tails.arrival(self._name))

    def next_page(self, timeout: float | None) -> Steps[list[BrowsedMessage]]:
        """The next messages; none after ``timeout`` seconds (``None``: never) without any. Raises what the queue failed
        of."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (page := (yield from self.page(PAGE))):
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if left == 0.0 or not (yield Within(self.arrival(), left)):
                break
        return page

    def close(self) -> Steps[None]:
        """It is over. Nobody waits for that: whoever forgets a tail may do so in the middle of anything."""
        tell(self._actor.actor_ref, ControlCall(lambda: self._actor.tails.end(self._name)))
        return
        yield
