"""The node of a scenario: its memory, the memory that a message takes in each state, its disk, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import attrs

from warren.actors.engines.memory_readings import memory_limit_bytes
from warren.actors.engines.node_settings import NodeSettings
from warren.actors.engines.settings_file import engine_settings
from warren.simulation.scenarios.forms import by, formed, named, nearest, one_of, part, table, truth
from warren.simulation.scenarios.units import ScenarioError, amount, period
from warren.storage.call_arguments import checked_class
from warren.storage.errors import SettingsError, shown
from warren.storage.settings import Settings

Profile = Literal["default", "rabbitmq-3.10"]
MOST_MEMORY: Final = 1 << 50
_NODE_SETTINGS: Final = {field.name for field in attrs.fields(NodeSettings)}
_ENGINE_SETTINGS: Final = {field.name for field in attrs.fields(Settings)}
_OWN_KEYS: Final = {
    "vm_memory_high_watermark": "watermark",
    "vm_memory_high_watermark_paging_ratio": "paging_ratio",
    "memory_monitor_interval": "monitor_interval",
    "queue_ram_report_interval_ms": "report_interval",
    "hibernate_after_ms": "hibernate_after",
    "total_memory_available_override_value": "memory",
    "profile": "profile",
}
"""Settings that a node of a scenario has a key of its own for."""


def _setting(value: Any, name: str) -> Any:
    """Return the value of a setting of the node, checked. The error does not have the setting's name."""
    try:
        return getattr(NodeSettings(**{name: value}), name)
    except SettingsError as error:
        raise ScenarioError(str(error).removeprefix(name)) from None
    except (TypeError, ValueError):
        raise ScenarioError(f" cannot be {shown(value)}") from None


def watermark(value: Any) -> float:
    """Return a watermark. A float is a share of the memory, a text or an int bytes."""
    return cast("float", _setting(value, "vm_memory_high_watermark"))


@checked_class
@attrs.frozen(kw_only=True, field_transformer=named)
class MessageMemory:
    """Memory that a message takes beside its body, by its state, and what queues and the node take. Bytes.

    The defaults are what the runtime's own strategy ``allocated`` counts; :data:`RABBITMQ_MEMORY` is what a real
    RabbitMQ 3.10.8 was seen to take.
    """

    alpha: int = attrs.field(default=200, converter=amount)
    """A ready message whose body is in RAM; the body comes on top."""
    beta: int = attrs.field(default=0, converter=amount)
    """A ready message whose position is in RAM and whose body is not."""
    delta: int = attrs.field(default=0, converter=amount)
    """A ready message that is on disk alone."""
    unacked: int = attrs.field(default=200, converter=amount)
    """A delivered message whose body is in RAM; the body comes on top."""
    unacked_on_disk: int = attrs.field(default=0, converter=amount)
    store_entry: int = attrs.field(default=0, converter=amount)
    """A body in the message store, wherever its message is."""
    open_file: int = attrs.field(default=0, converter=amount)
    """The most that stays in RAM of the file that a message store is writing."""
    queue_awake: int = attrs.field(default=8192, converter=amount)
    queue_asleep: int = attrs.field(default=4096, converter=amount)
    """A queue that hibernates with nothing in RAM."""
    node: int = attrs.field(default=0, converter=amount)
    """What the node takes, regardless of its queues."""


RABBITMQ_MEMORY: Final = MessageMemory(
    alpha=700, beta=180, unacked=1100, unacked_on_disk=400, store_entry=170, open_file=16_777_216,
    queue_awake=37_000, queue_asleep=30_500, node=75_000_000,
)  # fmt: skip
"""Live memory, as the strategy ``erlang`` counts it: measured by ``benchmarks/rabbitmq_memory.py``. The node has two
clients at work; without any it takes 63 MB. By the strategy ``rss`` it takes twice as much."""


@checked_class
@attrs.frozen(kw_only=True, field_transformer=named)
class Disk:
    """How fast a disk is, and how large. One operation at a time; the page cache is not simulated."""

    bandwidth: int = attrs.field(default=500_000_000, converter=amount)
    """Bytes a second, read or written."""
    latency: float = attrs.field(default=0.0, converter=period)
    """Seconds that each read takes beside its bytes; writes go to the system's cache and have no latency."""
    fsync: float = attrs.field(default=0.002, converter=period)
    """Seconds that a sync takes."""
    size: int | None = attrs.field(default=None, converter=amount)
    """Bytes it holds in all; ``None``: any number."""
    used: int = attrs.field(default=0, converter=amount)
    """Bytes of ``size`` that others take."""

    def __attrs_post_init__(self) -> None:
        if not self.bandwidth:
            raise ScenarioError("bandwidth must be more than 0 bytes a second")
        if self.size is not None and self.used >= self.size:
            raise ScenarioError(f"used: others use {self.used} of the disk's {self.size} bytes: no space is left")


INSTANT_DISK: Final = Disk(bandwidth=1 << 62, fsync=0.0)
"""A disk that takes no time."""


def _settings(value: Any) -> dict[str, Any]:
    settings = table(value)
    for name in settings:
        if name in _OWN_KEYS:
            raise ScenarioError(f"{name}: set node.{_OWN_KEYS[name]}")
        if name not in _NODE_SETTINGS | _ENGINE_SETTINGS:
            near = nearest(name, _NODE_SETTINGS | _ENGINE_SETTINGS)
            raise ScenarioError(f"{name:.100}: there is no such setting; the nearest is {near}")
    return settings


@checked_class
@attrs.frozen(kw_only=True, field_transformer=named)
class NodeSpec:
    """A node: its memory, its disk, and how it is set up. What is not given is the profile's, or the default."""

    profile: Profile = attrs.field(default="default", converter=formed, metadata=by(one_of, Profile))
    """The engine's numbers and habits (:mod:`warren.storage.settings`)."""
    memory: int = attrs.field(default=2 << 30, converter=amount)
    """Total memory."""
    watermark: float = attrs.field(default=0.4, converter=watermark)
    """vm_memory_high_watermark: more used than this blocks publishers. A float is a share, a text or an int bytes."""
    paging_ratio: float = attrs.field(
        default=0.5, converter=formed, metadata=by(_setting, "vm_memory_high_watermark_paging_ratio")
    )
    """vm_memory_high_watermark_paging_ratio: the share of the watermark from which on queues page."""
    monitor_interval: float = attrs.field(default=2.5, converter=period)
    """memory_monitor_interval: between two rounds of the memory monitor."""
    report_interval: float = attrs.field(default=5.0, converter=period)
    """queue_ram_report_interval_ms: between two reports of a queue."""
    hibernate_after: float = attrs.field(default=1.0, converter=period)
    """hibernate_after_ms: a queue that has nothing to do for this time hibernates."""
    wake_idle_queues: bool | None = attrs.field(default=None, converter=truth)
    """RabbitMQ's way: the monitor notifies every queue, idle ones too. ``None``: as the profile does."""
    message_memory: MessageMemory | None = attrs.field(default=None, converter=formed, metadata=by(part, MessageMemory))
    """``None``: the profile's."""
    disk: Disk = attrs.field(factory=Disk, converter=formed, metadata=by(part, Disk))
    settings: Mapping[str, Any] = attrs.field(factory=dict, converter=_settings, hash=False)
    """Further settings, under RabbitMQ's names: of the node or of the engine."""

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.memory <= MOST_MEMORY:
            raise ScenarioError(f"memory must be at least 1 byte and at most a pebibyte, not {self.memory}")
        _ = self.node_settings, self.engine
        if self.limit_bytes <= self.memory_of_messages.node:
            raise ScenarioError(
                f"watermark: {self.limit_bytes} bytes may be used, but the node itself takes "
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
        """The settings of the node, in the form of the runtime."""
        values: dict[str, Any] = {name: value for name, value in self.settings.items() if name in _NODE_SETTINGS}
        interval_ms = {
            "memory_monitor_interval": self.monitor_interval,
            "queue_ram_report_interval_ms": self.report_interval,
            "hibernate_after_ms": self.hibernate_after,
        }
        values |= {name: max(1, round(period_s * 1000)) for name, period_s in interval_ms.items()}
        try:
            return NodeSettings(
                vm_memory_calculation_strategy="allocated",
                total_memory_available_override_value=self.memory,
                vm_memory_high_watermark=self.watermark,
                vm_memory_high_watermark_paging_ratio=self.paging_ratio,
                **values,
            )
        except (SettingsError, TypeError, ValueError) as error:
            raise ScenarioError(f"settings.{error}") from None

    @property
    def engine(self) -> Settings:
        """The settings of the engine."""
        values: dict[str, Any] = {"profile": self.profile}
        for name, value in self.settings.items():
            if name in _ENGINE_SETTINGS:
                values[name] = list(value) if isinstance(value, tuple) else value
        try:
            settings = engine_settings(values)
        except (SettingsError, TypeError, ValueError) as error:
            raise ScenarioError(f"settings.{error}") from None
        for name in values:
            value = getattr(settings, name, None)
            if isinstance(value, int | float) and value < 0:
                raise ScenarioError(f"settings.{name} must not be negative, as {value} is")
        if not settings.rate_average_half_life_s:
            raise ScenarioError("settings.rate_average_half_life_s must be more than 0 s")
        return settings

    @property
    def limit_bytes(self) -> int:
        """The memory above which publishers are blocked."""
        return memory_limit_bytes(self.node_settings.vm_memory_high_watermark, self.memory)
