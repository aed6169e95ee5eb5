"""Scenarios: a node, its queues, who publishes, who consumes, and what happens to them.

A scenario is a value, checked as it is made: :class:`~warren.simulation.units.ScenarioError` names the key and the
reason. Times are seconds and sizes bytes; a text with its unit (``"10min"``, ``"2GB"``) is taken too. A file of them is
read by :mod:`warren.simulation.toml_file`, and has the same names.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, cast, get_args

import attrs

from actors.engines.arguments import MAX_PRIORITY, QueueDeclaration
from actors.engines.errors import ArgumentsError
from actors.engines.memory_readings import memory_limit_bytes
from actors.engines.node_settings import NodeSettings
from storage.errors import SettingsError
from storage.settings import PROFILES, Settings
from warren.simulation.rates import Arrivals, Bursts, Constant, Daily, Rate, Trace, checked_rate
from warren.simulation.sizes import ConstantSize, EmpiricalSize, LognormalSize, Size, checked_size
from warren.simulation.units import DAY_S, ScenarioError, clock, seconds, size_bytes

MOST_QUEUES: Final = 1_000_000
MOST_STEPS: Final = 10_000_000
WhenBlocked = Literal["wait", "skip"]
Service = Literal["constant", "exponential"]
Profile = Literal["default", "rabbitmq-3.10"]
EventKind = Literal["consumers-down", "publishers-down", "publishers-factor", "consumers-factor", "purge", "watermark"]

# ── forms of values: each says what is wrong without a name, which :func:`_with_names` puts before it ────────────────


def _with_names(_: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Let what a converter says of a wrong value begin with its field's name."""

    def naming(convert: Callable[[Any], Any]) -> Any:
        def converted(value: Any, field: attrs.Attribute[Any]) -> Any:
            try:
                return convert(value)
            except ScenarioError as error:
                said = str(error)
                raise ScenarioError(field.name + ("" if said.startswith((" ", "[")) else ".") + said) from None
            except TypeError as error:  # a key that the class does not have
                raise ScenarioError(f"{field.name}: {error}") from None

        return attrs.Converter(converted, takes_field=True)

    return [
        field if field.converter is None else field.evolve(converter=naming(field.converter))  # type: ignore[arg-type]
        for field in fields
    ]


def _seconds(value: Any) -> float:
    return seconds("", value)


def _optional_seconds(value: Any) -> float | None:
    return None if value is None else seconds("", value)


def _bytes(value: Any) -> int:
    return size_bytes("", value)


def _optional_bytes(value: Any) -> int | None:
    return None if value is None else size_bytes("", value)


def _time_of_day(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < DAY_S else clock("", value)


def _moment(value: Any) -> float | str:
    return str(value) if isinstance(value, str) and ":" in value and clock("", value) >= 0 else seconds("", value)


def _optional_moment(value: Any) -> float | str | None:
    return None if value is None else _moment(value)


def _rate(value: Any) -> Rate:
    return value if isinstance(value, Constant | Bursts | Daily | Trace) else Constant(checked_rate("", value))


def _optional_rate(value: Any) -> float | None:
    return None if value is None else checked_rate("", value)


def _size(value: Any) -> Size:
    if isinstance(value, ConstantSize | LognormalSize | EmpiricalSize):
        return value
    return ConstantSize(checked_size("", size_bytes("", value)))


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise ScenarioError(f" must be 0.0 … 1.0, not {value!r}")
    return float(value)


def _whole(value: Any, least: int, most: int = 1 << 53) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ScenarioError(f" must be a whole number, {least} … {most}, not {value!r}")
    return int(value)


def _one_of(value: Any, *choices: str) -> Any:
    if value not in choices:
        raise ScenarioError(f" must be one of {', '.join(map(repr, choices))}, not {value!r}")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ScenarioError(f" must be true or false, not {value!r}")
    return value


def _optional_truth(value: Any) -> bool | None:
    return None if value is None else _truth(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ScenarioError(f" must be a text, not {value!r}")
    return value


def _count(value: Any) -> int:
    return _whole(value, 1, MOST_QUEUES)


def _messages(value: Any) -> int:
    return _whole(value, 0)


def _priority(value: Any) -> int:
    return _whole(value, 0, MAX_PRIORITY)


def _prefetch(value: Any) -> int:
    return _whole(value, 0, 65535)


def _profile(value: Any) -> Profile:
    return cast("Profile", _one_of(value, *PROFILES))


def _arrivals(value: Any) -> Arrivals:
    return cast("Arrivals", _one_of(value, *get_args(Arrivals)))


def _when_blocked(value: Any) -> WhenBlocked:
    return cast("WhenBlocked", _one_of(value, *get_args(WhenBlocked)))


def _service(value: Any) -> Service:
    return cast("Service", _one_of(value, *get_args(Service)))


def _event_kind(value: Any) -> EventKind:
    return cast("EventKind", _one_of(value, *get_args(EventKind)))


T = TypeVar("T")


def _as(kind: type[T], value: Any) -> T:
    """A part of a scenario, as it is or as the table that it stands for."""
    if isinstance(value, Mapping):
        return kind(**value)
    if not isinstance(value, kind):
        raise ScenarioError(f" must be a {kind.__name__}, or a table, not {value!r:.100}")
    return value


def _tuple_of(kind: type[T], values: Any) -> tuple[T, ...]:
    made = []
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ScenarioError(f" must be a list, not {values!r:.100}")
    for number, value in enumerate(values):
        try:
            made.append(_as(kind, value))
        except (ScenarioError, TypeError) as error:
            said = str(error)
            raise ScenarioError(f"[{number}]{'' if said.startswith(' ') else '.'}{said}") from None
    return tuple(made)


# ── the node ────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True, field_transformer=_with_names)
class MessageMemory:
    """Memory that a message takes beside its body, by its state, and what queues and the node take. Bytes.

    The defaults are what the runtime's own strategy ``allocated`` counts; :data:`RABBITMQ_MEMORY` is what a real
    RabbitMQ 3.10.8 was seen to take.
    """

    alpha: int = attrs.field(default=200, converter=_bytes)
    """A ready message whose body is in RAM; the body comes on top."""
    beta: int = attrs.field(default=0, converter=_bytes)
    """A ready message of which the position is in RAM and the body is not."""
    delta: int = attrs.field(default=0, converter=_bytes)
    """A ready message that is on disk alone."""
    unacked: int = attrs.field(default=200, converter=_bytes)
    """A delivered message whose body is in RAM; the body comes on top."""
    unacked_on_disk: int = attrs.field(default=0, converter=_bytes)
    store_entry: int = attrs.field(default=0, converter=_bytes)
    """A body in the message store, wherever its message is."""
    queue_awake: int = attrs.field(default=8192, converter=_bytes)
    queue_asleep: int = attrs.field(default=4096, converter=_bytes)
    """A queue that hibernates with nothing in RAM."""
    node: int = attrs.field(default=0, converter=_bytes)
    """What the node takes whatever is in its queues."""


RABBITMQ_MEMORY: Final = MessageMemory(
    alpha=700, beta=250, unacked=850, unacked_on_disk=350, store_entry=150, queue_awake=30_000, queue_asleep=9_000,
    node=90_000_000,
)  # fmt: skip


@attrs.frozen(kw_only=True, field_transformer=_with_names)
class Disk:
    """How fast a disk is, and how large. One operation at a time; the page cache is not simulated."""

    bandwidth: int = attrs.field(default=500_000_000, converter=_bytes)
    """Bytes a second, read or written."""
    latency: float = attrs.field(default=0.0, converter=_seconds)
    """Seconds that each read takes beside its bytes; writes go to the system's cache and have none."""
    fsync: float = attrs.field(default=0.002, converter=_seconds)
    """Seconds that a sync takes."""
    size: int | None = attrs.field(default=None, converter=_optional_bytes)
    """Bytes it holds in all; ``None``: any number."""
    used: int = attrs.field(default=0, converter=_bytes)
    """Of these, what others take."""

    def __attrs_post_init__(self) -> None:
        if not self.bandwidth:
            raise ScenarioError("bandwidth must be more than 0 bytes a second")
        if self.size is not None and self.used >= self.size:
            raise ScenarioError(f"a disk of {self.size} bytes of which others take {self.used} has no room")


INSTANT_DISK: Final = Disk(bandwidth=1 << 62, fsync=0.0)
"""A disk that takes no time."""


def _disk(value: Any) -> Disk:
    return _as(Disk, value)


def _message_memory(value: Any) -> MessageMemory | None:
    return None if value is None else _as(MessageMemory, value)


@attrs.frozen(kw_only=True, field_transformer=_with_names)
class NodeSpec:
    """A node: its memory, its disk, and how it is set up. What is not said is the profile's, or the default."""

    profile: Profile = attrs.field(default="default", converter=_profile)
    """The engine's numbers and habits (:mod:`storage.settings`)."""
    memory: int = attrs.field(default=2 << 30, converter=_bytes)
    """Total memory."""
    watermark: float = 0.4
    """vm_memory_high_watermark: more used than this blocks publishers. A float is a share, a text or an int bytes."""
    paging_ratio: float = 0.5
    """vm_memory_high_watermark_paging_ratio: the share of the watermark from which on queues page."""
    monitor_interval: float = attrs.field(default=2.5, converter=_seconds)
    """memory_monitor_interval: between two rounds of the memory monitor."""
    report_interval: float = attrs.field(default=5.0, converter=_seconds)
    """queue_ram_report_interval_ms: between two reports of a queue."""
    hibernate_after: float = attrs.field(default=1.0, converter=_seconds)
    """hibernate_after_ms: a queue with nothing to do for so long hibernates."""
    wake_idle_queues: bool | None = attrs.field(default=None, converter=_optional_truth)
    """RabbitMQ's way: the monitor tells every queue, idle ones too. ``None``: as the profile does."""
    message_memory: MessageMemory | None = attrs.field(default=None, converter=_message_memory)
    """``None``: the profile's."""
    disk: Disk = attrs.field(factory=Disk, converter=_disk)
    settings: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    """Further settings, under RabbitMQ's names: of the node or of the engine."""

    def __attrs_post_init__(self) -> None:
        if self.memory < 1:
            raise ScenarioError("memory must be at least 1 byte")
        _ = self.node_settings, self.engine
        if self.limit_bytes <= self.memory_of_messages.node:
            raise ScenarioError(
                f"watermark: {self.limit_bytes} bytes may be used, and the node itself takes "
                f"{self.memory_of_messages.node} (message_memory.node): publishers would be blocked for ever"
            )

    @property
    def memory_of_messages(self) -> MessageMemory:
        if self.message_memory is not None:
            return self.message_memory
        return RABBITMQ_MEMORY if self.profile == "rabbitmq-3.10" else MessageMemory()

    @property
    def wakes_idle_queues(self) -> bool:
        return self.profile == "rabbitmq-3.10" if self.wake_idle_queues is None else self.wake_idle_queues

    @property
    def node_settings(self) -> NodeSettings:
        """As the runtime takes them."""
        known = {field.name for field in attrs.fields(NodeSettings)}
        values: dict[str, Any] = {name: value for name, value in self.settings.items() if name in known}
        interval_ms = {
            "memory_monitor_interval": self.monitor_interval,
            "queue_ram_report_interval_ms": self.report_interval,
            "hibernate_after_ms": self.hibernate_after,
        }
        values |= {name: max(1, round(period * 1000)) for name, period in interval_ms.items()}
        try:
            return NodeSettings(
                vm_memory_calculation_strategy="allocated",
                total_memory_available_override_value=self.memory,
                vm_memory_high_watermark=self.watermark,
                vm_memory_high_watermark_paging_ratio=self.paging_ratio,
                **values,
            )
        except (SettingsError, TypeError) as error:
            raise ScenarioError(f"node: {error}") from None

    @property
    def engine(self) -> Settings:
        """As the engine takes them."""
        known = {field.name for field in attrs.fields(NodeSettings)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.settings.items()
            if name not in known
        }
        try:
            return attrs.evolve(PROFILES[self.profile], **values)
        except (SettingsError, TypeError) as error:
            raise ScenarioError(f"node.settings: {error}") from None

    @property
    def limit_bytes(self) -> int:
        """Memory above which publishers are blocked."""
        return memory_limit_bytes(self.node_settings.vm_memory_high_watermark, self.memory)


# ── queues, publishers, consumers ───────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True, field_transformer=_with_names)
class QueueSpec:
    """A queue, or a group of ``count`` of them: ``name-1`` … ``name-count``."""

    name: str = attrs.field(converter=_text)
    count: int = attrs.field(default=1, converter=_count)
    durable: bool = attrs.field(default=True, converter=_truth)
    lazy: bool = attrs.field(default=False, converter=_truth)
    arguments: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    messages: int = attrs.field(default=0, converter=_messages)
    """So many are there at the start, as after a restart: on disk."""
    body: Size = attrs.field(default=ConstantSize(1000), converter=_size)
    """Of those messages."""
    timeline: Literal["each", "sum"] | None = None
    """A row of the timeline for each queue of a group, or one for all; ``None``: each, of up to 100."""

    def __attrs_post_init__(self) -> None:
        if self.messages and not self.durable:
            raise ScenarioError(f"queue {self.name!r}: messages at the start survived a restart: durable must be true")
        _ = self.declarations

    @property
    def names(self) -> list[str]:
        return [self.name] if self.count == 1 else [f"{self.name}-{number}" for number in range(1, self.count + 1)]

    @property
    def summed(self) -> bool:
        """Whether its queues share rows of the timeline."""
        return self.count > 1 and (self.timeline == "sum" or (self.timeline is None and self.count > 100))

    @property
    def declarations(self) -> list[QueueDeclaration]:
        arguments = dict(self.arguments)
        if self.lazy:
            arguments.setdefault("x-queue-mode", "lazy")
        try:
            first = QueueDeclaration("/", self.names[0], durable=self.durable, arguments=arguments)
        except ArgumentsError as error:
            raise ScenarioError(f"arguments: {error}") from None
        if first.dead_letter_exchange:
            raise ScenarioError(
                f"arguments: x-dead-letter-exchange of {first}: a scenario has the default exchange alone, which is "
                f"'' (with x-dead-letter-routing-key, a queue's name), not {first.dead_letter_exchange!r}"
            )
        return [attrs.evolve(first, name=name) for name in self.names]


@attrs.frozen(kw_only=True, field_transformer=_with_names)
class PublisherSpec:
    """``count`` publishers for each queue of that name or group."""

    queue: str = attrs.field(converter=_text)
    """A queue, a group, or a pattern of queues' names (``orders-*``)."""
    rate: Rate = attrs.field(default=Constant(100.0), converter=_rate)
    """Messages a second, each publisher."""
    count: int = attrs.field(default=1, converter=_count)
    arrivals: Arrivals = attrs.field(default="poisson", converter=_arrivals)
    body: Size = attrs.field(default=ConstantSize(1000), converter=_size)
    persistent: float = attrs.field(default=1.0, converter=_share)
    """The share of messages that are persistent."""
    confirms: int = attrs.field(default=0, converter=_messages)
    """So many may wait to be confirmed before it waits; 0: it asks for none."""
    expiration: float | None = attrs.field(default=None, converter=_optional_seconds)
    """Seconds after which a message of its expires."""
    priority: int = attrs.field(default=0, converter=_priority)
    when_blocked: WhenBlocked = attrs.field(default="wait", converter=_when_blocked)
    """While it may not publish: its messages ``wait``, and their latency counts; or it makes none (``skip``)."""
    start: float | str = attrs.field(default=0.0, converter=_moment)
    end: float | str | None = attrs.field(
        default=None,
        converter=_optional_moment,
    )


@attrs.frozen(kw_only=True, field_transformer=_with_names)
class Outage:
    """Down from a moment on, for a while."""

    at: float | str = attrs.field(converter=_moment)
    lasting: float = attrs.field(converter=_seconds)


def _outages(values: Any) -> tuple[Outage, ...]:
    return _tuple_of(Outage, values)


@attrs.frozen(kw_only=True, field_transformer=_with_names)
class ConsumerSpec:
    """``count`` consumers for each queue of that name or group."""

    queue: str = attrs.field(converter=_text)
    rate: float | None = attrs.field(default=None, converter=_optional_rate)
    """Messages a second that each can handle; ``None``: any number."""
    count: int = attrs.field(default=1, converter=_count)
    service: Service = attrs.field(default="constant", converter=_service)
    """Whether each message takes the same time, or an exponential one with that mean."""
    prefetch: int = attrs.field(default=100, converter=_prefetch)
    """So many may be unacked with it; 0: any number."""
    ack_delay: float = attrs.field(default=0.0, converter=_seconds)
    """Seconds from a message's end to its ack."""
    requeue: float = attrs.field(default=0.0, converter=_share)
    """The share of messages that it gives back instead of acking them."""
    no_ack: bool = attrs.field(default=False, converter=_truth)
    """It acks nothing: what is delivered is gone."""
    outages: tuple[Outage, ...] = attrs.field(default=(), converter=_outages)

    def __attrs_post_init__(self) -> None:
        if self.rate == 0.0:
            raise ScenarioError("rate: a consumer that handles 0 messages a second is none; leave it out")
        if self.requeue and self.no_ack:
            raise ScenarioError("requeue: a consumer with no_ack gives nothing back")
        if self.requeue == 1.0:
            raise ScenarioError("requeue: a consumer that gives everything back never ends; at most 0.99")


@attrs.frozen(kw_only=True, field_transformer=_with_names)
class Event:
    """Something that happens at a moment, and (but for a purge) is over at another."""

    what: EventKind = attrs.field(converter=_event_kind)
    at: float | str = attrs.field(converter=_moment)
    until: float | str | None = attrs.field(
        default=None,
        converter=_optional_moment,
    )
    """``None``: to the end."""
    queue: str = attrs.field(default="*", converter=_text)
    """Whose publishers or consumers: a queue, a group or a pattern."""
    value: float | int | str | None = None
    """What a rate is multiplied by; or the new watermark."""

    def __attrs_post_init__(self) -> None:
        wants = self.what in ("publishers-factor", "consumers-factor", "watermark")
        if wants != (self.value is not None):
            raise ScenarioError(f"value: {self.what} {'wants one' if wants else 'has none'}")
        if self.what in ("publishers-factor", "consumers-factor"):
            checked_rate("value", self.value)
        if self.what == "consumers-factor" and self.value == 0:
            raise ScenarioError("value: consumers that stand still are consumers-down")


# ── the whole ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _node(value: Any) -> NodeSpec:
    return _as(NodeSpec, value)


def _queues(values: Any) -> tuple[QueueSpec, ...]:
    return _tuple_of(QueueSpec, values)


def _publishers(values: Any) -> tuple[PublisherSpec, ...]:
    return _tuple_of(PublisherSpec, values)


def _consumers(values: Any) -> tuple[ConsumerSpec, ...]:
    return _tuple_of(ConsumerSpec, values)


def _events(values: Any) -> tuple[Event, ...]:
    return _tuple_of(Event, values)


@attrs.frozen(kw_only=True, field_transformer=_with_names)
class Scenario:
    """What is to be simulated."""

    name: str = attrs.field(default="scenario", converter=_text)
    description: str = ""
    length: float = attrs.field(default=600.0, converter=_seconds)
    """Seconds to be simulated."""
    start: float = attrs.field(default=0.0, converter=_time_of_day)
    """The time of day at which it begins, in seconds since midnight."""
    step: float = attrs.field(default=1.0, converter=_seconds)
    """Seconds between two rows of the timeline."""
    granularity: float = attrs.field(default=0.01, converter=_seconds)
    """Messages of one publisher within so many seconds go together; 0: each is an event of its own."""
    seed: int = attrs.field(default=1, converter=_messages)
    node: NodeSpec = attrs.field(factory=NodeSpec, converter=_node)
    queues: tuple[QueueSpec, ...] = attrs.field(default=(), converter=_queues)
    publishers: tuple[PublisherSpec, ...] = attrs.field(default=(), converter=_publishers)
    consumers: tuple[ConsumerSpec, ...] = attrs.field(default=(), converter=_consumers)
    events: tuple[Event, ...] = attrs.field(default=(), converter=_events)

    def __attrs_post_init__(self) -> None:
        if not 0.0 < self.step <= self.length:
            raise ScenarioError(f"step must be more than 0 s and at most the length ({self.length} s), not {self.step}")
        if self.length / self.step > MOST_STEPS:
            raise ScenarioError(f"step: {self.length / self.step:.0f} rows a queue are too many")
        if not self.queues:
            raise ScenarioError("queues: there is none")
        names = [name for spec in self.queues for name in spec.names]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ScenarioError(f"queues: {twice!r} is there twice")
        if len(names) > MOST_QUEUES:
            raise ScenarioError(f"queues: {len(names)} are more than {MOST_QUEUES}")
        for key in ("publishers", "consumers", "events"):
            for number, spec in enumerate(getattr(self, key)):
                if not self.queues_of(spec.queue):
                    raise ScenarioError(f"{key}[{number}].queue: there is no queue {spec.queue!r}")

    def queues_of(self, pattern: str) -> list[str]:
        """The names of the queues that a name, a group or a pattern means."""
        found: list[str] = []
        for spec in self.queues:
            if spec.name == pattern:
                return spec.names
            found += [name for name in spec.names if fnmatch.fnmatchcase(name, pattern)]
        return found

    @property
    def steps(self) -> int:
        """Rows of the timeline for each queue."""
        return math.ceil(self.length / self.step - 1e-9)
