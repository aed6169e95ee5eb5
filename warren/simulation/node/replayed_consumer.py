"""A consumer that repeats what was recorded: it takes, acks and gives back as many messages as in the record.

It fetches messages; they are not pushed to it, because what was pushed within a prefetch is what was recorded. The
operations of each span of the record are spread evenly over :data:`PIECES` pieces. If the queue has no message, the
operation is done in a later piece. Acks are of the messages that were taken first, and the messages that were taken
last are given back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from warren.actors.engines.queue.effects import Delivered
from warren.simulation.node.simulated_queue import SimulatedQueue
from warren.simulation.scenarios.recorded import Consumption
from warren.simulation.scenarios.units import NS, ns

if TYPE_CHECKING:
    from warren.simulation.node.simulated_node import SimulatedNode

PIECES: Final = 20
_BEFORE_END_NS: Final = 1000
"""At this time before a span's end all messages that came in it are there, and no consumer has looked yet."""
_LATER_NS: Final = NS


class ReplayedConsumer:
    """All consumers of one queue, as they were recorded."""

    def __init__(
        self,
        node: SimulatedNode,
        queue: SimulatedQueue,
        consumption: Consumption,
        tag: str,
        *,
        latencies: Callable[[bytes, npt.NDArray[np.int64]], None],
    ) -> None:
        """``latencies`` is called with the ids of messages and the times (ns) at which they were taken."""
        self._node = node
        self._queue = queue
        self._done = consumption
        self._channel = tag
        self._latencies = latencies
        self._unacked: deque[range] = deque()
        self._owed = dict.fromkeys(("taken", "taken_no_ack", "acked", "requeued"), 0)
        """What was recorded until now and has not been done yet."""
        self.factor = 1.0
        """As of a simulated consumer; what was recorded is done whatever the factor is."""
        self._downs = 0
        node.time.env.process(self._live())

    def go_down(self) -> None:
        """Do nothing for a while. What was recorded for that time is done later."""
        self._downs += 1

    def come_back(self) -> None:
        """Go on, unless something else keeps it down."""
        self._downs -= 1

    def _live(self) -> Generator[Any, Any, None]:
        env, consumption = self._node.time.env, self._done
        for span in consumption.busy:
            begin_ns, end_ns = ns(consumption.at_s[span]), ns(consumption.at_s[span + 1])
            pieces = max(1, min(PIECES, (end_ns - begin_ns) // 1_000_000))
            previous_counts = dict.fromkeys(self._owed, 0)
            for piece in range(pieces):
                middle_ns = begin_ns + (2 * piece + 1) * (end_ns - begin_ns) // (2 * pieces)
                if middle_ns > env.now:
                    yield env.timeout(middle_ns - int(env.now))
                for name in self._owed:
                    until_now = getattr(consumption, name)[span] * (piece + 1) // pieces
                    self._owed[name] += until_now - previous_counts[name]
                    previous_counts[name] = until_now
                self._go_on()
            yield from self._catch_up(end_ns - _BEFORE_END_NS)
            if consumption.purged[span]:
                self._queue.tell(self._queue.purge)
        while True:  # nothing more was recorded; but something may be left of it
            yield from self._catch_up(int(env.now) + _LATER_NS)

    def _catch_up(self, at_ns: int) -> Generator[Any, Any, None]:
        """Wait until a moment, and do what is still owed."""
        env = self._node.time.env
        if at_ns > env.now:
            yield env.timeout(at_ns - int(env.now))
        if any(self._owed.values()):
            self._go_on()

    def _go_on(self) -> None:
        """Do as much as possible of what is owed."""
        if self._downs:
            return
        for name, ack_required in (("taken_no_ack", False), ("taken", True)):
            if count := self._owed[name]:
                self._owed[name] = 0  # it is asked for now; what the queue has not comes back as owed
                self._queue.tell(self._queue.get, self._channel, count, ack_required, self._taker(name, count))
        self._settle()

    def _taker(self, name: str, asked: int) -> Callable[[list[Delivered]], None]:
        def take(deliveries: list[Delivered]) -> None:
            self._owed[name] += asked - sum(delivered.count for delivered in deliveries)
            for delivered in deliveries:
                if name == "taken":
                    self._unacked.append(delivered.tags)
                taken_ns = np.full(delivered.count, self._node.time.now_ns(), np.int64)
                self._latencies(delivered.fetched.ids, taken_ns)
            self._settle()

        return take

    def _settle(self) -> None:
        for name, acked in (("acked", True), ("requeued", False)):
            if tags := self._tags(self._owed[name], last=not acked):
                self._owed[name] -= sum(map(len, tags))
                self._queue.tell(self._queue.settle, self._channel, tags, acked)

    def _tags(self, count: int, *, last: bool) -> list[range]:
        """Remove at most ``count`` messages from those that it has: those taken first, or last. Returns their tags."""
        unacked, tags = self._unacked, deque[range]()
        while count > 0 and unacked:
            part = unacked.pop() if last else unacked.popleft()
            left = max(len(part) - count, 0)
            if left and last:
                unacked.append(part[:left])
            elif left:
                unacked.appendleft(part[count:])
            part = part[left:] if last else part[:count]
            (tags.appendleft if last else tags.append)(part)
            count -= len(part)
        return list(tags)
