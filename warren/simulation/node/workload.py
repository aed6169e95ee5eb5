"""Publishers and consumers: SimPy processes that work with the simulated queues.

Messages of one publisher that come within the scenario's granularity are published together, at the time of the last
one; each keeps its own time for its latency. A consumer settles together what it handles within the granularity. With a
granularity of 0, every message is an event of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.actors.engines.queue.consumers import Consumer
from warren.actors.engines.queue.effects import Delivered
from warren.actors.engines.queue.queue_receivers import BUFFER
from warren.simulation.node.publication import Publication, envelope
from warren.simulation.node.simulated_node import SimulatedNode
from warren.simulation.node.simulated_queue import SimulatedQueue
from warren.simulation.node.virtual_time import Event
from warren.simulation.scenarios.curves import Curve
from warren.simulation.scenarios.scenario import ConsumerSpec, PublisherSpec
from warren.simulation.scenarios.sizes import ConstantSize, Sizes, bodies, body
from warren.simulation.scenarios.units import NS, ns

CATCH_UP_RATE: Final = 50_000
"""Messages a second at which a publisher sends what was held back, unless its own rate is half of that or more."""
Times = npt.NDArray[np.int64]
_DRAWN_AT_ONCE: Final = 1024


def _ids(times: Times, first: int) -> bytes:
    """Return message ids: the moment and a number."""
    columns = np.empty((len(times), 2), ">u8")
    columns[:, 0] = times
    columns[:, 1] = np.arange(first, first + len(times))
    return columns.tobytes()


@attrs.frozen
class _Group:
    """Messages that are handed over together: windows on what was drawn at once."""

    last_ns: int
    low: int
    high: int
    ids: bytes
    """The ids of all messages that were drawn, like the sizes."""
    sizes: Sizes


class SimulatedPublisher:
    """One publisher of one queue."""

    def __init__(
        self,
        node: SimulatedNode,
        queue: SimulatedQueue,
        spec: PublisherSpec,
        curve: Curve,
        rng: np.random.Generator,
        *,
        granularity_s: float,
    ) -> None:
        self._node = node
        self._queue = queue
        self._spec = spec
        self._curve = curve
        self._rng = rng
        self._granularity_ns = ns(granularity_s)
        self._number = int(rng.integers(1 << 62))
        self._expiration_ms = None if spec.expiration is None else ns(spec.expiration) // 1_000_000
        self._unconfirmed = 0
        self._held_until_ns = -1
        self._times: Times = np.empty(0, np.int64)
        self._next = self._high = 0
        """Indexes in ``_times``: of the first message that is not published, and the one after its group's last."""
        highest = float(np.max(np.diff(curve.messages) / np.diff(curve.at_s), initial=0.0))
        self._catch_up_ns = round(NS / max(CATCH_UP_RATE, 2 * highest))
        self._wake = Event(node.time.env)
        self._limit = node.settings.credit_flow_default_credit[0]
        node.time.env.process(self._live())

    @property
    def waiting_messages(self) -> int:
        """The messages whose moment is past, including the expected number that are not drawn yet."""
        if self._spec.when_blocked == "skip":
            return self._high - self._next  # only those in its hands; it skips the others
        now_ns = self._node.time.now_ns()
        due = int(np.searchsorted(self._times, now_ns, "right")) - self._next
        if self._next + due == len(self._times):
            reached = np.interp([self._times[-1] / NS, now_ns / NS], self._curve.at_s, self._curve.messages)
            due += round(float(reached[1] - reached[0]))
        return due

    def _live(self) -> Generator[Any, Any, None]:
        env, skips, behind = self._node.time.env, self._spec.when_blocked == "skip", self._queue.behind
        for group in self._groups():
            self._next, self._high = group.low, group.high
            wait_ns = group.last_ns - int(env.now)
            if wait_ns > 0:
                behind.pop(self, None)
                yield env.timeout(wait_ns)
            elif skips and group.last_ns <= self._held_until_ns:
                continue  # it was held, with other messages in its hands
            for low in range(group.low, group.high, self._limit):
                if not self._free:
                    yield from self._wait_until_free()
                high = min(low + self._limit, group.high)
                self._publish(group, low, high)
                self._next = high
                if group.last_ns < env.now:  # late: it catches up as fast as a publisher can, which takes time
                    yield env.timeout((high - low) * self._catch_up_ns)
        behind.pop(self, None)

    def _groups(self) -> Iterator[_Group]:
        spec, rng = self._spec, self._rng
        for moments in self._curve.moments(spec.arrivals, rng):
            times = np.rint(moments * NS).astype(np.int64)
            ids, sizes = _ids(times, self._number), spec.body.draw(len(times), rng)
            self._number += len(times)
            self._times = times
            ends = np.arange(1, len(times))
            if self._granularity_ns:
                ends = np.flatnonzero(np.diff(times // self._granularity_ns)) + 1
            highs = [*ends.tolist(), len(times)]
            lasts_ns = times[np.asarray(highs) - 1].tolist()
            low = 0
            for high, last_ns in zip(highs, lasts_ns, strict=True):
                yield _Group(last_ns, low, high, ids, sizes)
                low = high

    @property
    def _free(self) -> bool:
        if self._node.gate.is_closed or self._queue.full:
            return False
        return not self._spec.confirms or self._unconfirmed < self._spec.confirms

    def _wait_until_free(self) -> Generator[Any, Any, None]:
        queue, env = self._queue, self._node.time.env
        began_ns = int(env.now)
        queue.blocked_publishers += 1
        queue.behind[self] = None
        self._node.changed[queue] = None
        while not self._free:
            if self._node.gate.is_closed:
                yield self._node.gate.opens.wait()
            elif queue.full:
                yield queue.room.wait()
            else:
                queue.hurry_up()
                yield self._wake.wait()
        queue.blocked_publishers -= 1
        queue.counters.held_ns += int(env.now) - began_ns
        self._held_until_ns = int(env.now)
        self._node.changed[queue] = None

    def _publish(self, group: _Group, low: int, high: int) -> None:
        spec, count = self._spec, high - low
        persistent = count
        if spec.persistent < 1.0:
            persistent = int(self._rng.binomial(count, spec.persistent)) if spec.persistent else 0
        middle = low + persistent
        for start, end, kind in ((low, middle, True), (middle, high, False)):
            if start == end:
                continue
            token = None
            if spec.confirms:
                self._unconfirmed += end - start
                token = partial(self._answered, end - start)
            if isinstance(spec.body, ConstantSize):
                message_bodies = [body(spec.body.size)] * (end - start)
            else:
                message_bodies = bodies(group.sizes[start:end])
            self._queue.publish(
                Publication(
                    envelope(self._queue.name, persistent=kind),
                    group.ids[16 * start : 16 * end],
                    message_bodies,
                    self._expiration_ms,
                    spec.priority,
                    token,
                )
            )

    def _answered(self, count: int, _: bool) -> None:
        """Note that ``count`` messages are safe or were refused."""
        self._unconfirmed -= count
        self._wake.set()


class SimulatedConsumer:
    """One consumer of one queue."""

    def __init__(
        self,
        node: SimulatedNode,
        queue: SimulatedQueue,
        spec: ConsumerSpec,
        tag: str,
        rng: np.random.Generator,
        *,
        granularity_s: float,
        latencies: Callable[[bytes, Times], None],
    ) -> None:
        """``latencies`` is called with the ids of messages and the times (ns) at which it took them up."""
        self._node = node
        self._queue = queue
        self._spec = spec
        self._tag = tag
        self._rng = rng
        self._granularity_ns = ns(granularity_s)
        self._latencies = latencies
        self._buffer: deque[tuple[bytes, int, int]] = deque()
        """Messages, as they were delivered: their ids, the first one's tag (0: none has one), and how many."""
        self._taken_of_first = 0
        self.buffered = 0
        self.factor = 1.0
        """What its rate is multiplied by."""
        self._downs = 0
        self._epoch = 0
        self._drawn: npt.NDArray[np.float64] = np.empty(0)
        self._even: tuple[tuple[int, float], Times] = (0, 0.0), np.empty(0, np.int64)
        """The last times for a constant rate, with their key: the number of messages and ns per message."""
        self._wake = Event(node.time.env)
        self._subscribe()
        node.time.env.process(self._live())

    # ── up and down ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _channel(self) -> str:
        return f"{self._tag}#{self._epoch}"

    def _subscribe(self) -> None:
        spec = self._spec
        prefetch = 0 if spec.no_ack else spec.prefetch
        consumer = Consumer(self._channel, self._tag, prefetch=prefetch, acks_unseen=spec.no_ack)
        self._queue.tell(self._queue.subscribe, consumer, self)

    def go_down(self) -> None:
        """Lose the connection. Unacked messages come back to the queue."""
        self._downs += 1
        if self._downs == 1:
            self._queue.tell(self._queue.close_channel, self._tag, self._channel)
            self._epoch += 1
            self._buffer.clear()
            self._taken_of_first = self.buffered = 0

    def come_back(self) -> None:
        """Come back, unless something else keeps it down."""
        self._downs -= 1
        if not self._downs:
            self._subscribe()

    def put(self, delivered: Delivered) -> None:
        """Take in messages from the queue."""
        if self._downs or delivered.channel != self._channel:
            return  # on their way when it went down; the queue has them back
        self._buffer.append((delivered.fetched.ids, delivered.first_tag, delivered.count))
        self.buffered += delivered.count
        self._wake.set()

    # ── work ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _live(self) -> Generator[Any, Any, None]:
        env = self._node.time.env
        while True:
            if not self._buffer:
                yield self._wake.wait()
                continue
            epoch = self._epoch
            ends_ns = self._service_ends()
            count = len(ends_ns)
            ids, tags = self._take_up(count)
            taken_ns = np.empty(count, np.int64)
            taken_ns[0] = env.now
            np.add(ends_ns[:-1], taken_ns[0], out=taken_ns[1:])
            self._latencies(ids, taken_ns)
            if self._spec.no_ack and tags:  # as in the runtime: acked when it is delivered
                self._queue.tell(self._queue.settle, self._channel, tags, True)
            if ends_ns[-1]:
                yield env.timeout(int(ends_ns[-1]))
            if epoch == self._epoch:
                self._done(tags)

    def _service_ends(self) -> Times:
        """Return when it will have handled each message of one granule, at least one: ns from now."""
        limit = self.buffered
        if self._spec.rate is None:
            return np.zeros(limit, np.int64)
        mean_ns = NS / (self._spec.rate * self.factor)
        in_granule = self._granularity_ns / mean_ns
        if self._spec.service == "constant":
            limit = max(1, min(limit, int(in_granule)))
            if self._even[0] != (limit, mean_ns):
                self._even = (limit, mean_ns), np.rint(np.arange(1, limit + 1) * mean_ns).astype(np.int64)
            return self._even[1]
        limit = min(limit, int(1.5 * in_granule) + 16, _DRAWN_AT_ONCE)  # seldom more, and then in two parts
        if len(self._drawn) < limit:
            self._drawn = np.concatenate([self._drawn, self._rng.exponential(size=_DRAWN_AT_ONCE)])
        if not self._granularity_ns:
            ends = self._drawn[:1] * mean_ns
        else:
            ends = np.cumsum(self._drawn[:limit]) * mean_ns
            ends = ends[: max(1, int(np.searchsorted(ends, self._granularity_ns)))]
        self._drawn = self._drawn[len(ends) :]
        rounded: Times = np.rint(ends).astype(np.int64)
        return rounded

    def _take_up(self, count: int) -> tuple[bytes, list[range]]:
        """Take messages out of the buffer. Returns their ids and their tags."""
        self.buffered -= count
        buffer, at = self._buffer, self._taken_of_first
        ids: list[bytes] = []
        tags: list[range] = []
        while count:
            chunk_ids, first_tag, chunk_count = buffer[0]
            end = min(at + count, chunk_count)
            ids.append(chunk_ids[16 * at : 16 * end])
            if first_tag and tags and tags[-1].stop == first_tag + at:
                tags[-1] = range(tags[-1].start, first_tag + end)
            elif first_tag:
                tags.append(range(first_tag + at, first_tag + end))
            count -= end - at
            at = end
            if end == chunk_count:
                buffer.popleft()
                at = 0
        self._taken_of_first = at
        return b"".join(ids), tags

    def _done(self, tags: list[range]) -> None:
        spec = self._spec
        if (spec.no_ack or not spec.prefetch) and self.buffered <= BUFFER // 2:
            self._queue.tell(self._queue.more)
        if spec.no_ack or not tags:
            return
        if not spec.ack_delay:
            self._settle(tags)
            return
        epoch = self._epoch

        def later() -> None:
            if epoch == self._epoch:
                self._settle(tags)

        self._node.time.after(ns(spec.ack_delay), later)

    def _settle(self, tags: list[range]) -> None:
        if not self._spec.requeue:
            self._queue.tell(self._queue.settle, self._channel, tags, True)
            return
        for acked, part in self._by_fate(tags):
            self._queue.tell(self._queue.settle, self._channel, part, acked)

    def _by_fate(self, tags: list[range]) -> Iterator[tuple[bool, list[range]]]:
        numbers = np.concatenate([np.arange(part.start, part.stop) for part in tags])
        is_requeued = self._rng.random(len(numbers)) < self._spec.requeue
        for acked, tag_numbers in ((True, numbers[~is_requeued]), (False, numbers[is_requeued])):
            if len(tag_numbers):
                pieces = np.split(tag_numbers, np.flatnonzero(np.diff(tag_numbers) != 1) + 1)
                yield acked, [range(int(piece[0]), int(piece[-1]) + 1) for piece in pieces]
