"""The settings of a topic store, under RocketMQ's own names (its ``mappedFileSizeCommitLog`` is our
``mapped_file_size_commit_log``; :func:`TopicSettings.with_changes` takes both).

Defaults are RocketMQ 4.9.3's, unless a setting says otherwise; one at the end is warren's own. Sizes in bytes, times in
milliseconds unless a name or its text says otherwise.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Final, get_type_hints

import attrs

from warren.storage.errors import SettingsError, shown
from warren.storage.settings import at_least, one_of

CONSUME_QUEUE_ENTRY_BYTES: Final = 20
"""The size of a ConsumeQueue entry; the configured size of a file is rounded up to a multiple."""

DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _is_address(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        raise SettingsError(f"{attribute.name} must be an IPv4 or IPv6 address, not {shown(value)}") from None


def _is_port(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if not 0 <= value < 1 << 16:
        raise SettingsError(f"{attribute.name} must be a port, not {value}")


def _whole_entries(size: int) -> int:
    return -(-size // CONSUME_QUEUE_ENTRY_BYTES) * CONSUME_QUEUE_ENTRY_BYTES


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Milliseconds of each level, the first is level 1; raises :class:`SettingsError`."""
    delays = []
    for word in text.split():
        match = re.fullmatch(r"(\d+)([smhd])", word)
        if match is None:
            raise SettingsError(f"message_delay_level: {shown(word)} is no time like 10s, 5m, 2h or 1d")
        delays.append(int(match[1]) * _UNIT_MS[match[2]])
    return tuple(delays)


@attrs.frozen(kw_only=True)
class TopicSettings:
    """The settings of a topic store."""

    mapped_file_size_commit_log: int = attrs.field(default=1 << 30, validator=at_least(1024))
    mapped_file_size_consume_queue: int = attrs.field(
        default=300_000 * CONSUME_QUEUE_ENTRY_BYTES, converter=_whole_entries, validator=at_least(1)
    )
    max_hash_slot_num: int = attrs.field(default=5_000_000, validator=at_least(1))
    max_index_num: int = attrs.field(default=20_000_000, validator=at_least(2))
    max_message_size: int = attrs.field(default=4 << 20, validator=at_least(0))
    """The limit for a body, and for an encoded batch."""
    max_msgs_num_batch: int = attrs.field(default=64, validator=at_least(1))
    """The maximum number of messages that a query by key returns."""
    default_query_max_num: int = attrs.field(default=32, validator=at_least(1))
    message_index_enable: bool = True
    message_index_safe: bool = False
    """Recovery starts no later than the last full index file that was flushed."""
    check_crc_on_recover: bool = True
    message_delay_level: str = attrs.field(default=DELAY_LEVELS)

    flush_disk_type: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(one_of("SYNC_FLUSH", "ASYNC_FLUSH"))
    )
    """``SYNC_FLUSH``: a confirm waits for fsync, which many share. ``ASYNC_FLUSH``: written is enough. ``None``: as the
    node's ``sync`` says."""
    flush_interval_commit_log: int = attrs.field(default=500, validator=at_least(1))
    flush_commit_log_least_pages: int = attrs.field(default=4, validator=at_least(0))
    """A timed flush is skipped below this many pages of 4 KiB, unless the thorough interval is over."""
    flush_commit_log_thorough_interval: int = attrs.field(default=10_000, validator=at_least(1))
    flush_interval_consume_queue: int = attrs.field(default=1_000, validator=at_least(1))
    flush_consume_queue_least_pages: int = attrs.field(default=2, validator=at_least(0))
    flush_consume_queue_thorough_interval: int = attrs.field(default=60_000, validator=at_least(1))
    flush_consumer_offset_interval: int = attrs.field(default=5_000, validator=at_least(1))
    flush_delay_offset_interval: int = attrs.field(default=10_000, validator=at_least(1))

    file_reserved_time: int = attrs.field(default=72, validator=at_least(0))
    """Hours that a CommitLog file is kept after its last write."""
    delete_when: str = "04"
    """Hours of the day, two digits each and ``;`` between them, in which old files are deleted."""
    disk_max_used_space_ratio: int = attrs.field(default=75, validator=at_least(1))
    """Per cent of the disk; above it old files are deleted at any hour."""
    clean_file_forcibly_enable: bool = True
    """A disk that is nearly full (85 %) loses files that are not old yet."""
    clean_resource_interval: int = attrs.field(default=10_000, validator=at_least(1))

    max_reconsume_times: int = attrs.field(default=16, validator=at_least(0))
    """Attempts at a message, after the first, before it goes to its group's %DLQ% topic."""
    default_topic_queue_nums: int = attrs.field(default=4, validator=at_least(1))
    """Queues of a topic that is declared without a number (a broker's default is 8). Retry and dead-letter topics have
    one."""

    store_path_root_dir: str | None = None
    """Where the store lies; ``None``: in ``topics`` of the node's directory."""
    store_path_commit_log: str | None = None
    """Where the CommitLog lies, on another disk perhaps; ``None``: in ``commitlog`` of the store."""
    broker_ip1: str = attrs.field(default="127.0.0.1", validator=_is_address)
    """With ``listen_port`` the store host of messages that are appended, which their ids begin with."""
    listen_port: int = attrs.field(default=0, validator=_is_port)

    rebuild_after_crash: bool = True
    """warren's: after a dirty stop the key index is rebuilt from the CommitLog if it may have lost entries, and old
    bytes after the end of the data are cut off. ``False``: as in RocketMQ, entries are lost and old bytes stay."""

    def __attrs_post_init__(self) -> None:
        self.delay_levels_ms()
        for hour in self.delete_when.split(";"):
            if not (hour.isascii() and hour.isdigit() and len(hour) <= 2 and int(hour) < 24):
                raise SettingsError(f"delete_when: {shown(hour)} is no hour of the day")

    def delay_levels_ms(self) -> tuple[int, ...]:
        """Milliseconds of each delay level; the first is level 1."""
        return parse_delay_levels(self.message_delay_level)

    def with_changes(self, changes: Mapping[str, str]) -> TopicSettings:
        """Return settings with ``changes``: texts, under RocketMQ's names or ours; raise :class:`SettingsError`."""
        parsed: dict[str, Any] = {(ours := _our_name(name)): _parsed(ours, text) for name, text in changes.items()}
        return attrs.evolve(self, **parsed)


def _our_name(name: str) -> str:
    ours = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    if ours not in _TYPES:
        raise SettingsError(f"there is no setting {shown(name)}")
    return ours


def _parsed(name: str, text: str) -> int | bool | str:
    kind = _TYPES[name]
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise SettingsError(f"{name} must be true or false, not {shown(text)}")
        return text.lower() == "true"
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise SettingsError(f"{name} must be a whole number, not {shown(text)}") from None
    return text


_TYPES: dict[str, Any] = get_type_hints(TopicSettings)

ROCKETMQ_4_9 = TopicSettings(rebuild_after_crash=False)
"""The original's behaviour after a crash, for comparison and for reading its stores."""
