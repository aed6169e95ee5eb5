"""Scenarios: a node, its queues, publishers, consumers and events.

A scenario is checked when it is made: :class:`~warren.simulation.scenarios.units.ScenarioError` names the key and the
reason. Times are in seconds and sizes in bytes. A text with a unit (``"10min"``, ``"2GB"``) is accepted too, and a
table for each part of a scenario. :mod:`warren.simulation.toml_file` reads scenarios from files, with the same names.
The node is in :mod:`warren.simulation.scenarios.node_spec`.
"""

from __future__ import annotations

import fnmatch
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import attrs

from warren.actors.engines.declared.arguments import MAX_PRIORITY, QueueDeclaration
from warren.actors.engines.errors import ArgumentsError
from warren.simulation.scenarios import forms
from warren.simulation.scenarios.curves import Arrivals, Bursts, Constant, per_second
from warren.simulation.scenarios.forms import (
    by,
    formed,
    inside,
    named,
    number,
    one_of,
    part,
    parts,
    share,
    truth,
    whole,
)
from warren.simulation.scenarios.node_spec import NodeSpec, watermark
from warren.simulation.scenarios.rates import Rate, rate_of
from warren.simulation.scenarios.recorded import Consumption, RecordedQueue
from warren.simulation.scenarios.sizes import ConstantSize, Size, size_of
from warren.simulation.scenarios.units import DAY_S, ScenarioError, clock, moment, period
from warren.storage.call_arguments import checked_class
from warren.storage.errors import shown

MOST_QUEUES: Final = 1_000_000
MOST_ROWS: Final = 10_000_000
"""The most rows of the timeline, which is held in memory, some 300 bytes a row."""
MOST_WORKERS: Final = 1_000_000
MOST_MESSAGES: Final = 10_000_000_000
"""The most messages, at the start and later: a day's work for the machine."""
SLOWEST_CONSUMER: Final = 1e-5
MOST_REQUEUED: Final = 0.99
MOST_BURSTS: Final = 1_000_000
WhenBlocked = Literal["wait", "skip"]
Service = Literal["constant", "exponential"]
EventKind = Literal["consumers-down", "publishers-down", "publishers-factor", "consumers-factor", "purge", "watermark"]
Rows = Literal["each", "sum"]


# ── forms of values ─────────────────────────────────────────────────────────────────────────────────────────────────


def _time_of_day(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < DAY_S:
        return float(value)
    return clock(value) % DAY_S


def _moment(value: Any) -> float | str:
    if isinstance(value, str) and ":" in value:
        clock(value)
        return value
    return period(value)


# ── queues, publishers, consumers ───────────────────────────────────────────────────────────────────────────────────


@checked_class
@attrs.frozen(kw_only=True, field_transformer=named)
class QueueSpec:
    """A queue, or a group of ``count`` of them: ``name-1`` … ``name-count``."""

    name: str = attrs.field(converter=forms.line)
    count: int = attrs.field(default=1, converter=formed, metadata=by(whole, 1, MOST_QUEUES))
    durable: bool = attrs.field(default=True, converter=truth)
    lazy: bool = attrs.field(default=False, converter=truth)
    arguments: Mapping[str, Any] = attrs.field(factory=dict, converter=forms.table, hash=False)
    messages: int = attrs.field(default=0, converter=formed, metadata=by(whole, 0))
    """The number of messages at the start, on disk as after a restart."""
    body: Size = attrs.field(default=ConstantSize(1000), converter=size_of)
    """The size of their bodies."""
    timeline: Rows | None = attrs.field(default=None, converter=formed, metadata=by(one_of, Rows))
    """A row of the timeline for each queue of a group, or one for all; ``None``: each, of up to 100."""

    def __attrs_post_init__(self) -> None:
        if self.messages and not self.durable:
            raise ScenarioError("messages: those at the start survived a restart, so durable must be true")
        mode = self.arguments.get("x-queue-mode")
        if self.lazy and mode not in (None, "lazy"):
            raise ScenarioError(f"lazy: is true, and x-queue-mode among the arguments is {shown(mode)}")
        longest = self._declaration(self.name if self.count == 1 else f"{self.name}-{self.count}")
        if longest.dead_letter_exchange:
            raise ScenarioError(
                f"arguments.x-dead-letter-exchange: a scenario has only the default exchange, '' (with "
                f"x-dead-letter-routing-key, a queue's name), not {shown(longest.dead_letter_exchange)}"
            )

    def _declaration(self, name: str) -> QueueDeclaration:
        arguments = dict(self.arguments)
        if self.lazy:
            arguments["x-queue-mode"] = "lazy"
        try:
            return QueueDeclaration("/", name, durable=self.durable, arguments=arguments)
        except ArgumentsError as error:
            raise ScenarioError(f"arguments: {error}") from None

    @property
    def names(self) -> list[str]:
        return [self.name] if self.count == 1 else [f"{self.name}-{number}" for number in range(1, self.count + 1)]

    @property
    def summed(self) -> bool:
        """Whether the queues of the group share rows of the timeline."""
        return self.count > 1 and (self.timeline == "sum" or (self.timeline is None and self.count > 100))

    @property
    def declarations(self) -> list[QueueDeclaration]:
        """The queues as they are declared, without ``x-expires``: a simulated queue stays to the end, used or not."""
        declarations = [self._declaration(name) for name in self.names]
        if "x-expires" not in self.arguments:
            return declarations
        arguments = {key: value for key, value in declarations[0].arguments.items() if key != "x-expires"}
        return [attrs.evolve(declaration, arguments=arguments) for declaration in declarations]


@checked_class
@attrs.frozen(kw_only=True, field_transformer=named)
class PublisherSpec:
    """``count`` publishers for each queue of that name or group."""

    queue: str = attrs.field(converter=forms.line)
    """A queue, a group, or a pattern of queues' names (``orders-*``)."""
    rate: Rate = attrs.field(default=Constant(100.0), converter=rate_of)
    """Messages a second, each publisher."""
    count: int = attrs.field(default=1, converter=formed, metadata=by(whole, 1, MOST_QUEUES))
    arrivals: Arrivals = attrs.field(default="poisson", converter=formed, metadata=by(one_of, Arrivals))
    body: Size = attrs.field(default=ConstantSize(1000), converter=size_of)
    persistent: float = attrs.field(default=1.0, converter=share)
    """The share of messages that are persistent."""
    confirms: int = attrs.field(default=0, converter=formed, metadata=by(whole, 0))
    """The most unconfirmed messages before it waits; 0: it does not use confirms."""
    expiration: float | None = attrs.field(default=None, converter=period)
    """Seconds after which its messages expire."""
    priority: int = attrs.field(default=0, converter=formed, metadata=by(whole, 0, MAX_PRIORITY))
    when_blocked: WhenBlocked = attrs.field(default="wait", converter=formed, metadata=by(one_of, WhenBlocked))
    """While it may not publish: its messages ``wait``, and their latency counts; or it makes none (``skip``)."""
    start: float | str = attrs.field(default=0.0, converter=_moment)
    end: float | str | None = attrs.field(default=None, converter=_moment)


@checked_class
@attrs.frozen(kw_only=True, field_transformer=named)
class Outage:
    """Down from a moment on, for a while."""

    at: float | str = attrs.field(converter=_moment)
    lasting: float = attrs.field(converter=period)


def _consumption_of(value: Any) -> Consumption:
    """Return the consumption for a value: a consumption, or ``{record = "file.parquet", queue = "orders"}``."""
    if isinstance(value, Consumption):
        return value
    path, queue = forms.record_file(value)
    with inside(": "):
        return RecordedQueue.of(path, queue).consumption()


@checked_class
@attrs.frozen(kw_only=True, field_transformer=named)
class ConsumerSpec:
    """``count`` consumers for each queue of that name or group."""

    queue: str = attrs.field(converter=forms.line)
    rate: float | None = attrs.field(default=None, converter=per_second)
    """Messages a second that each can handle; ``None``: any number."""
    count: int = attrs.field(default=1, converter=formed, metadata=by(whole, 1, MOST_QUEUES))
    service: Service = attrs.field(default="constant", converter=formed, metadata=by(one_of, Service))
    """Whether each message takes the same time, or an exponential one with that mean."""
    prefetch: int = attrs.field(default=100, converter=formed, metadata=by(whole, 0, 65535))
    """The most unacked messages that it may have; 0: any number."""
    ack_delay: float = attrs.field(default=0.0, converter=period)
    """Seconds from a message's end to its ack."""
    requeue: float = attrs.field(default=0.0, converter=share)
    """The share of messages that it gives back instead of acking them."""
    no_ack: bool = attrs.field(default=False, converter=truth)
    """It acks nothing: what is delivered is gone."""
    outages: tuple[Outage, ...] = attrs.field(default=(), converter=formed, metadata=by(parts, Outage))
    record: Consumption | None = attrs.field(default=None, converter=_consumption_of)
    """It does what the queue's consumers did when a node was recorded; the rest does not count then."""

    def __attrs_post_init__(self) -> None:
        if self.record is not None and self.count > 1:
            raise ScenarioError("count: a record is of all consumers together, so it must be 1")
        if self.rate is not None and self.rate < SLOWEST_CONSUMER:
            raise ScenarioError(
                f"rate must be at least {SLOWEST_CONSUMER:g} messages a second, not {self.rate:g}: leave out "
                "a consumer that handles none"
            )
        if self.requeue and self.no_ack:
            raise ScenarioError("requeue: a consumer with no_ack cannot requeue")
        if self.requeue > MOST_REQUEUED:
            raise ScenarioError(f"requeue: a consumer that requeues everything never ends; at most {MOST_REQUEUED}")


@checked_class
@attrs.frozen(kw_only=True, field_transformer=named)
class Event:
    """Something that happens at a moment, and (but for a purge) is over at another."""

    what: EventKind = attrs.field(converter=formed, metadata=by(one_of, EventKind))
    at: float | str = attrs.field(converter=_moment)
    until: float | str | None = attrs.field(default=None, converter=_moment)
    """``None``: to the end."""
    queue: str = attrs.field(default="*", converter=forms.line)
    """Whose publishers or consumers: a queue, a group or a pattern."""
    value: float | int | str | None = None
    """What a rate is multiplied by; or the new watermark, as :attr:`NodeSpec.watermark`."""

    def __attrs_post_init__(self) -> None:
        form = _EVENT_VALUES.get(self.what)
        if (form is not None) != (self.value is not None):
            raise ScenarioError(f"value: {self.what} {'needs a value' if form else 'takes no value'}")
        if form is not None:
            with inside("value"):
                object.__setattr__(self, "value", form(self.value))
        if self.what == "purge" and self.until is not None:
            raise ScenarioError("until: a purge has no duration")


_EVENT_VALUES: Final[Mapping[str, Callable[[Any], float]]] = {
    "publishers-factor": lambda value: number(value, 0.0, 1000.0),
    "consumers-factor": lambda value: number(value, 0.001, 1000.0),
    "watermark": watermark,
}


# ── the whole ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _time_text(at: float | str) -> str:
    return at if isinstance(at, str) else f"{at:g} s"


@checked_class
@attrs.frozen(kw_only=True, field_transformer=named)
class Scenario:
    """What is to be simulated."""

    name: str = attrs.field(default="scenario", converter=forms.line)
    description: str = attrs.field(default="", converter=forms.text)
    length: float = attrs.field(default=600.0, converter=period)
    """Seconds to be simulated."""
    start: float = attrs.field(default=0.0, converter=_time_of_day)
    """The time of day at which it begins, in seconds since midnight."""
    step: float = attrs.field(default=1.0, converter=period)
    """Seconds between two rows of the timeline."""
    granularity: float = attrs.field(default=0.01, converter=period)
    """Messages of one publisher within this number of seconds go together; 0: each is an event of its own."""
    seed: int = attrs.field(default=1, converter=formed, metadata=by(whole, 0))
    node: NodeSpec = attrs.field(factory=NodeSpec, converter=formed, metadata=by(part, NodeSpec))
    queues: tuple[QueueSpec, ...] = attrs.field(default=(), converter=formed, metadata=by(parts, QueueSpec))
    publishers: tuple[PublisherSpec, ...] = attrs.field(default=(), converter=formed, metadata=by(parts, PublisherSpec))
    consumers: tuple[ConsumerSpec, ...] = attrs.field(default=(), converter=formed, metadata=by(parts, ConsumerSpec))
    events: tuple[Event, ...] = attrs.field(default=(), converter=formed, metadata=by(parts, Event))

    def __attrs_post_init__(self) -> None:
        if not 0.0 < self.step <= self.length:
            raise ScenarioError(f"step must be more than 0 s and at most the length ({self.length} s), not {self.step}")
        self._check_queues()
        for key in ("publishers", "consumers", "events"):
            for index, spec in enumerate(getattr(self, key)):
                if not self.queues_of(spec.queue):
                    raise ScenarioError(f"{key}[{index}].queue: there is no queue {shown(spec.queue)}")
        self._check_spans()
        self._check_work()

    def _check_queues(self) -> None:
        if not self.queues:
            raise ScenarioError("queues: at least one is needed")
        count = sum(spec.count for spec in self.queues)
        if count > MOST_QUEUES:
            raise ScenarioError(f"queues: {count} are more than {MOST_QUEUES}")
        names = Counter(name for spec in self.queues for name in spec.names)
        names.update(spec.name for spec in self.queues if spec.count > 1)
        [(name, times)] = names.most_common(1)
        if times > 1:
            raise ScenarioError(f"queues: {shown(name)} occurs twice")
        memory = self.node.memory_of_messages
        idle = count * min(memory.queue_asleep, memory.queue_awake)
        if idle + memory.node > self.node.limit_bytes:
            raise ScenarioError(
                f"node.memory: queues that are asleep and empty take {idle} bytes, and with the node itself that is "
                f"more than the {self.node.limit_bytes} that may be used: publishers would be blocked for ever"
            )
        rows = sum(1 if spec.summed else spec.count for spec in self.queues) * self.steps
        if rows > MOST_ROWS:
            raise ScenarioError(
                f"step: a timeline of {rows} rows (each queue's, every {self.step} s) is too long; at most "
                f"{MOST_ROWS} are kept. Use a longer step, or timeline = 'sum' for groups of queues"
            )

    def _check_spans(self) -> None:
        """Raise ScenarioError if something does not end after it began."""
        for key, first, last in (("publishers", "start", "end"), ("events", "at", "until")):
            for index, spec in enumerate(getattr(self, key)):
                begins, ends = getattr(spec, first), getattr(spec, last)
                begins_s = moment(begins, self.start)
                if ends is not None and moment(ends, self.start) <= begins_s:
                    raise ScenarioError(
                        f"{key}[{index}].{last}: {_time_text(ends)} is not after {first}, {_time_text(begins)}"
                    )
                if ends is None and begins_s >= self.length:
                    raise ScenarioError(
                        f"{key}[{index}].{first}: {_time_text(begins)} is not before the end of the scenario"
                    )

    def _check_work(self) -> None:
        """Raise ScenarioError if there is more to do than any machine gets done."""
        messages = float(sum(spec.count * spec.messages for spec in self.queues))
        workers = 0
        for index, spec in enumerate(self.publishers):
            if isinstance(spec.rate, Bursts) and self.length / spec.rate.every_s > MOST_BURSTS:
                raise ScenarioError(
                    f"publishers[{index}].rate.bursts.every: more than {MOST_BURSTS} bursts are too many"
                )
            publisher_count = spec.count * len(self.queues_of(spec.queue))
            messages += publisher_count * float(spec.rate.curve(self.start, self.length).messages[-1])
            workers += publisher_count
        workers += sum(spec.count * len(self.queues_of(spec.queue)) for spec in self.consumers)
        if workers > MOST_WORKERS:
            raise ScenarioError(f"publishers: {workers} publishers and consumers are more than {MOST_WORKERS}")
        if messages > MOST_MESSAGES:
            raise ScenarioError(f"publishers: {messages:.3g} messages are more than {MOST_MESSAGES:.3g}")

    def queues_of(self, pattern: str) -> list[str]:
        """Return the names of the queues that match a name, a group or a pattern."""
        matching = self._meant.get(pattern)
        if matching is None:
            names = (name for spec in self.queues for name in spec.names)
            matching = self._meant[pattern] = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        return matching

    @functools.cached_property
    def _meant(self) -> dict[str, list[str]]:
        """The queues for each pattern that was looked up. Names and groups are there from the beginning."""
        names = {name: [name] for spec in self.queues for name in spec.names}
        return names | {spec.name: spec.names for spec in self.queues}

    @property
    def steps(self) -> int:
        """The number of rows that each queue has in the timeline."""
        return math.ceil(self.length / self.step - 1e-9)
