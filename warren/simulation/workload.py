"""Who publishes and who consumes: SimPy processes that live beside the queues.

Messages of one publisher that come within the scenario's granularity are handed over together, at the last one's
moment; each keeps its own moment for its latency. A consumer likewise settles together what it handles within the
granularity. With a granularity of 0 every message is an event of its own.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from actors.deliveries import BUFFER
from actors.engines.consumers import Consumer
from actors.engines.effects import Delivered
from queue_index.message_format import Envelope
from queue_index.properties import Properties, encode_properties
from warren.simulation.scenario import ConsumerSpec, PublisherSpec
from warren.simulation.simulated_queue import NO_TIME, Publication, SimulatedQueue, expiration_ms
from warren.simulation.sizes import bodies
from warren.simulation.units import NS, ns
from warren.simulation.virtual_time import Bell

if TYPE_CHECKING:
    from warren.simulation.node import SimulatedNode
    from warren.simulation.rates import Curve

Times = npt.NDArray[np.int64]
_DRAWN_AT_ONCE: Final = 1024
_FOREVER: Final = np.uint64(int.from_bytes(NO_TIME, "big"))


@functools.cache
def envelope(queue: str, *, persistent: bool) -> Envelope:
    """Of a message that the default exchange routes to ``queue``."""
    properties = encode_properties(Properties(delivery_mode=2 if persistent else 1))
    return Envelope(b"/", b"", (queue.encode(),), properties, persistent)


def _ids(times: Times, first: int) -> bytes:
    """Message ids: the moment and a number."""
    columns = np.empty((len(times), 2), ">u8")
    columns[:, 0] = times
    columns[:, 1] = np.arange(first, first + len(times))
    return columns.tobytes()


def published_at(ids: bytes) -> Times:
    """The moments (ns) of messages, by their ids; what was there before the start is left out."""
    times = np.frombuffer(ids, ">u8")[::2].astype(np.uint64)
    known: Times = times[times != _FOREVER].astype(np.int64)
    return known


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
        self._unconfirmed = 0
        self._held_until_ns = -1
        self._bell = Bell(node.time.env)
        self._limit = node.settings.credit_flow_default_credit[0]
        node.time.env.process(self._live())

    def _live(self) -> Generator[Any, Any, None]:
        env, skips = self._node.time.env, self._spec.when_blocked == "skip"
        for times in self._groups():
            wait_ns = int(times[-1]) - int(env.now)
            if wait_ns > 0:
                yield env.timeout(wait_ns)
            elif skips and times[-1] <= self._held_until_ns:
                continue  # it stood still, with others in its hands
            for low in range(0, len(times), self._limit):
                if not self._free:
                    yield from self._wait_until_free(len(times) - low)
                self._publish(times[low : low + self._limit])

    def _groups(self) -> Iterator[Times]:
        granularity = self._granularity_ns
        for moments in self._curve.moments(self._spec.arrivals, self._rng):
            times = np.rint(moments * NS).astype(np.int64)
            if not granularity:
                yield from np.split(times, len(times))
                continue
            edges = np.flatnonzero(np.diff(times // granularity)) + 1
            yield from np.split(times, edges)

    @property
    def _free(self) -> bool:
        if self._node.blocked or self._queue.weight >= self._limit:
            return False
        return not self._spec.confirms or self._unconfirmed < self._spec.confirms

    def _wait_until_free(self, waiting: int) -> Generator[Any, Any, None]:
        queue, env = self._queue, self._node.time.env
        began_ns = int(env.now)
        queue.blocked_publishers += 1
        queue.waiting_messages += waiting
        while not self._free:
            if self._node.blocked:
                yield self._node.gate.wait()
            elif queue.weight >= self._limit:
                yield queue.room.wait()
            else:
                yield self._bell.wait()
        queue.blocked_publishers -= 1
        queue.waiting_messages -= waiting
        queue.counters.held_ns += int(env.now) - began_ns
        self._held_until_ns = int(env.now)

    def _publish(self, times: Times) -> None:
        spec, rng, count = self._spec, self._rng, len(times)
        persistent = count
        if spec.persistent < 1.0:
            persistent = int(rng.binomial(count, spec.persistent)) if spec.persistent else 0
        sizes = spec.body.draw(count, rng)
        ids = _ids(times, self._number)
        self._number += count
        for low, high, kind in ((0, persistent, True), (persistent, count, False)):
            if low == high:
                continue
            token = None
            if spec.confirms:
                self._unconfirmed += high - low
                token = _Confirm(self, high - low)
            self._queue.publish(
                Publication(
                    envelope(self._queue.name, persistent=kind),
                    ids[16 * low : 16 * high],
                    bodies(sizes[low:high]),
                    expiration_ms(spec.expiration),
                    spec.priority,
                    token,
                )
            )

    def answered(self, count: int, *, refused: bool) -> None:
        """So many of its messages are safe, or were refused."""
        self._unconfirmed -= count
        if refused:
            self._queue.counters.refused += count
        self._bell.ring()


class _Confirm:
    """The token of one publish."""

    __slots__ = ("_count", "_publisher")

    def __init__(self, publisher: SimulatedPublisher, count: int) -> None:
        self._publisher = publisher
        self._count = count

    def confirmed(self) -> None:
        self._publisher.answered(self._count, refused=False)

    def refused(self) -> None:
        self._publisher.answered(self._count, refused=True)


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
        latencies: Callable[[npt.NDArray[np.int64]], None],
    ) -> None:
        """``latencies`` is told, in nanoseconds, how long messages waited until it took them up."""
        self._node = node
        self._queue = queue
        self._spec = spec
        self._tag = tag
        self._rng = rng
        self._granularity_ns = ns(granularity_s)
        self._latencies = latencies
        self._buffer: deque[Delivered] = deque()
        self.buffered = 0
        self.factor = 1.0
        """What its rate is multiplied by."""
        self._downs = 0
        self._epoch = 0
        self._drawn: npt.NDArray[np.float64] = np.empty(0)
        self._bell = Bell(node.time.env)
        self._subscribe()
        node.time.env.process(self._live())

    # ── up and down ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _channel(self) -> str:
        return f"{self._tag}#{self._epoch}"

    def _subscribe(self) -> None:
        spec = self._spec
        consumer = Consumer(self._channel, self._tag, prefetch=spec.prefetch, ack_required=not spec.no_ack)
        self._queue.tell(SimulatedQueue.subscribe, (consumer, self))

    def go_down(self) -> None:
        """Lose its connection: what it has and has not acked comes back to the queue."""
        self._downs += 1
        if self._downs == 1:
            self._queue.tell(SimulatedQueue.close_channel, (self._tag, self._channel))
            self._epoch += 1
            self._buffer.clear()
            self.buffered = 0

    def come_back(self) -> None:
        """Be there again, unless something else keeps it down."""
        self._downs -= 1
        if not self._downs:
            self._subscribe()

    def take(self, delivered: Delivered) -> None:
        """Messages from the queue."""
        if self._downs or delivered.channel != self._channel:
            return  # on their way when it went down; the queue has them back
        self._buffer.append(delivered)
        self.buffered += delivered.count
        self._bell.ring()

    # ── work ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _live(self) -> Generator[Any, Any, None]:
        env = self._node.time.env
        while True:
            if not self._buffer:
                yield self._bell.wait()
                continue
            epoch = self._epoch
            ends_ns = self._service_ends()
            count = len(ends_ns)
            ids, tags = self._take_up(count)
            published_ns = published_at(ids)
            if len(published_ns):
                starts_ns = np.empty(count, np.int64)
                starts_ns[0], starts_ns[1:] = 0, ends_ns[:-1]
                self._latencies(starts_ns[count - len(published_ns) :] + int(env.now) - published_ns)
            if ends_ns[-1]:
                yield env.timeout(int(ends_ns[-1]))
            if epoch == self._epoch:
                self._done(tags)

    def _service_ends(self) -> Times:
        """When it will have handled each of the messages of one granule, at least one: ns from now."""
        most = self.buffered
        if self._spec.rate is None:
            return np.zeros(most, np.int64)
        mean_ns = NS / (self._spec.rate * self.factor)
        if self._spec.service == "constant":
            most = max(1, min(most, int(self._granularity_ns / mean_ns)))
            return np.asarray(np.rint(np.arange(1, most + 1) * mean_ns), np.int64)
        if len(self._drawn) < min(most, _DRAWN_AT_ONCE):
            self._drawn = np.concatenate([self._drawn, self._rng.exponential(size=_DRAWN_AT_ONCE)])
        if not self._granularity_ns:
            ends = self._drawn[:1] * mean_ns
        else:
            ends = np.cumsum(self._drawn[: min(most, _DRAWN_AT_ONCE)]) * mean_ns
            ends = ends[: max(1, int(np.searchsorted(ends, self._granularity_ns)))]
        self._drawn = self._drawn[len(ends) :]
        rounded: Times = np.rint(ends).astype(np.int64)
        return rounded

    def _take_up(self, count: int) -> tuple[bytes, list[range]]:
        """Take messages out of the buffer: their ids and their tags."""
        self.buffered -= count
        ids: list[bytes] = []
        tags: list[range] = []
        while count:
            delivered = self._buffer[0]
            part = min(count, delivered.count)
            first, rest = delivered, None
            if part < delivered.count:
                first = Delivered(
                    delivered.consumer, delivered.channel, delivered.first_tag, delivered.fetched.part(0, part)
                )
                rest = Delivered(
                    delivered.consumer,
                    delivered.channel,
                    delivered.first_tag + part if delivered.first_tag else 0,
                    delivered.fetched.part(part, delivered.count - part),
                )
            ids.append(first.fetched.ids)
            tags.append(first.tags)
            self._buffer.popleft()
            if rest is not None:
                self._buffer.appendleft(rest)
            count -= part
        return b"".join(ids), [part for part in tags if part]

    def _done(self, tags: list[range]) -> None:
        spec = self._spec
        if not spec.prefetch and self.buffered <= BUFFER // 2:
            self._queue.tell(SimulatedQueue.more)
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
            self._queue.tell(SimulatedQueue.settle, (self._channel, tags, True))
            return
        for acked, part in self._by_fate(tags):
            self._queue.tell(SimulatedQueue.settle, (self._channel, part, acked))

    def _by_fate(self, tags: list[range]) -> Iterator[tuple[bool, list[range]]]:
        numbers = np.concatenate([np.arange(part.start, part.stop) for part in tags])
        back = self._rng.random(len(numbers)) < self._spec.requeue
        for acked, some in ((True, numbers[~back]), (False, numbers[back])):
            if len(some):
                pieces = np.split(some, np.flatnonzero(np.diff(some) != 1) + 1)
                yield acked, [range(int(piece[0]), int(piece[-1]) + 1) for piece in pieces]
