"""NodeSettings: what a node can be told, beyond what its engines are (``warren.storage.settings``). RabbitMQ's names.

A value is brought into one form when the settings are made: amounts become bytes (``"2GB"`` is 2000000000), lists
become tuples, RabbitMQ's ``{"absolute": …}`` and ``{"relative": …}`` become what they mean. A value that cannot work
raises SettingsError with the setting's name and the reason; RabbitMQ would take its default instead, and say so in its
log only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import attrs

from warren.actors.engines.alarms import MemRelative
from warren.actors.engines.information_units import parse_information_unit
from warren.actors.engines.memory_monitor import DEFAULT_PAGING_RATIO
from warren.actors.engines.memory_readings import HIGHEST_WATERMARK
from warren.storage.errors import SettingsError, shown
from warren.storage.settings import at_least, between, one_of, whole, yes_or_no

MemoryStrategy = Literal["rss", "allocated"]
SyncMode = Literal["os", "group", "always"]
DEFAULT_DISK_FREE_LIMIT_BYTES: Final = 50_000_000
MOST_THREADS: Final = 1024
"""More would keep the system's threads from other programs."""
MOST_DEFAULT_THREADS: Final = 4  # the interpreter runs one at a time; more of them only wait for the same disk
_BEYOND_NUMBERS: Final = 1e300  # infinities, what is no number, and whole numbers too large for a float


@attrs.frozen
class RestartLimit:
    """``max_restarts`` of one actor within ``within_s`` seconds; the next failure within them is its last."""

    max_restarts: int
    within_s: float


def default_threads(cpu_count: int | None) -> int:
    return min(MOST_DEFAULT_THREADS, (cpu_count or 1) + 1)


# ── forms of values ─────────────────────────────────────────────────────────────────────────────────────────────────


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _BEYOND_NUMBERS:
        raise SettingsError(f"{key} must be a number, not {shown(value)}")
    return float(value)


def _pair(key: str, value: object, names: tuple[str, str]) -> tuple[object, object]:
    """Two values, in order or by name."""
    if isinstance(value, Mapping) and set(value) == set(names):
        return value[names[0]], value[names[1]]
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        return value[0], value[1]
    raise SettingsError(f"{key} must be ({names[0]}, {names[1]}), not {shown(value)}")


def _only_item(key: str, value: Mapping[str, object], names: tuple[str, ...]) -> tuple[str, object]:
    """The one entry of a table with one entry, whose name is one of ``names``."""
    if len(value) != 1 or not set(value) <= set(names):
        raise SettingsError(f"{key} must hold one of {', '.join(names)}, not {shown(dict(value))}")
    [(name, inner)] = value.items()
    return name, inner


def _watermark(value: object) -> float:
    """A float is a share of the total memory; an int, or a string with a unit, an amount."""
    key = "vm_memory_high_watermark"
    relative = isinstance(value, float)
    if isinstance(value, Mapping):
        name, value = _only_item(key, value, ("relative", "absolute"))
        relative = name == "relative"
    if not relative:
        size_bytes = parse_information_unit(key, value)
        if size_bytes == 1:
            raise SettingsError(f"{key} must not be 1, which is one byte; for all of the memory it is 1.0")
        return size_bytes
    share = _number(key, value)
    if not 0.0 <= share <= HIGHEST_WATERMARK:
        raise SettingsError(f"{key} must be 0.0 … 1.0 of the total memory, or a whole number of bytes, not {value}")
    return share


def _paging_ratio(value: object) -> float:
    ratio = _number("vm_memory_high_watermark_paging_ratio", value)
    if not 0.0 <= ratio < 1.0:
        raise SettingsError(f"vm_memory_high_watermark_paging_ratio must be at least 0.0 and below 1.0, not {value}")
    return ratio


def _total_memory(value: object) -> int | None:
    key = "total_memory_available_override_value"
    return None if value is None else whole(key, parse_information_unit(key, value), 1)


def _disk_free_limit(value: object) -> int | MemRelative:
    key = "disk_free_limit"
    if isinstance(value, MemRelative):
        return value
    if isinstance(value, Mapping):
        name, value = _only_item(key, value, ("mem_relative", "relative", "absolute"))
        if name != "absolute":
            return MemRelative(_number(key, value))
    return parse_information_unit(key, value)


def _credit(value: object) -> tuple[int, int]:
    key = "credit_flow_default_credit"
    initial, more_after = (whole(key, part, 1) for part in _pair(key, value, ("initial", "more_after")))
    if more_after > initial:
        raise SettingsError(f"{key} must not give back more than it starts with, as {(initial, more_after)} would")
    return initial, more_after


def _restart_limit(value: object) -> RestartLimit:
    key = "restart_limit"
    if isinstance(value, RestartLimit):
        value = attrs.astuple(value)
    max_restarts, within = _pair(key, value, ("max_restarts", "within_s"))
    within_s = _number(key, within)
    if within_s <= 0:
        raise SettingsError(f"{key} must be within more than 0 seconds, not {within_s}")
    return RestartLimit(whole(key, max_restarts, 0), within_s)


def _record(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or not isinstance(os.fspath(value), str):
        raise SettingsError(f"record must be the path of a file, such as 'run.parquet', not {shown(value)}")
    path = str(os.fspath(value))
    if not path.endswith(".parquet") or "\0" in path:
        raise SettingsError(f"record must be the path of a .parquet file, not {shown(value)}")
    return path


# ── the settings ────────────────────────────────────────────────────────────────────────────────────────────────────


def _default_threads_here() -> int:
    return default_threads(os.cpu_count())


@attrs.frozen(kw_only=True)
class NodeSettings:
    """What a node can be told. Sizes in bytes, times in milliseconds unless the name says otherwise."""

    vm_memory_calculation_strategy: MemoryStrategy = attrs.field(default="rss", validator=one_of("rss", "allocated"))
    """What counts as used: the whole process, or what the engine accounts for itself."""

    total_memory_available_override_value: int | None = attrs.field(default=None, converter=_total_memory)
    """Total memory in bytes; ``None``: the machine's, or the container's if that is less."""

    vm_memory_high_watermark: float = attrs.field(default=0.4, converter=_watermark)
    """More used than this blocks publishers: a float is a share of the total memory, an int bytes."""

    vm_memory_high_watermark_paging_ratio: float = attrs.field(default=DEFAULT_PAGING_RATIO, converter=_paging_ratio)
    """The share of the high watermark from which on queues page."""

    memory_monitor_interval: int = attrs.field(default=2500, validator=at_least(1))
    """Time between two rounds of the memory monitor."""

    disk_free_limit: int | MemRelative = attrs.field(default=DEFAULT_DISK_FREE_LIMIT_BYTES, converter=_disk_free_limit)
    """Less free than this blocks publishers."""

    credit_flow_default_credit: tuple[int, int] = attrs.field(default=(400, 200), converter=_credit)
    """Credit of a publisher towards a queue: what it starts with, and how much is given back at a time."""

    queue_ram_report_interval_ms: int = attrs.field(default=5000, validator=at_least(1))
    """Time between two reports of a queue to the memory monitor."""

    hibernate_after_ms: int = attrs.field(default=1000, validator=at_least(1))
    """A queue that had nothing to do for this time hibernates."""

    quorum_delivery_limit: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(0)))
    """The delivery limit of quorum queues that neither an argument nor a policy limits; ``None``: no limit, as before
    RabbitMQ 4.0, whose default is 20."""

    sync_interval_ms: int = attrs.field(default=200, validator=at_least(0))
    """Commits without a waiter are synced together, at most this time after the first of them."""

    host_timeout_ms: int = attrs.field(default=10_000, validator=at_least(2000))
    """How long the host of a shared directory may be silent before its guests' calls fail."""

    threads: int = attrs.field(factory=_default_threads_here, validator=between(1, MOST_THREADS))
    """Threads on which the actors run."""

    restart_limit: RestartLimit = attrs.field(default=RestartLimit(5, 10.0), converter=_restart_limit)
    """How often an actor may fail and be restarted before it stays down."""

    attach: bool = attrs.field(default=True, validator=yes_or_no)
    """Whether other processes of the same user may look at the node, and operate it: ``warren top``, ``warren ctl``."""

    record: str | None = attrs.field(default=None, converter=_record)
    """The Parquet file that the node is recorded in; ``None``: it is not."""

    record_interval_ms: int = attrs.field(default=1000, validator=at_least(1))
    """Time between two rows of a queue in the record."""

    sync: SyncMode = attrs.field(default="group", validator=one_of("os", "group", "always"))
    """What a confirm promises: written; fsynced with others; fsynced at once."""
