"""Config: everything that a node can be told, in one value.

Three parts: the node's settings (:class:`warren.actors.engines.node_settings.NodeSettings`) and the queue engine's
(:class:`warren.storage.settings.Settings`), under RabbitMQ's names, and the topics'
(:class:`warren.storage.topic_settings.TopicSettings`), under RocketMQ's. No name is in two, so keywords find their
place.

These three define the meanings and valid values. :class:`SettingKeywords` has the names again, as keywords of
:func:`warren.open`, for editors and type checkers; a test compares the names.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeAlias, TypedDict, Unpack

import attrs

from warren.actors.engines.alarms import MemRelative
from warren.actors.engines.node_settings import MemoryStrategy, NodeSettings, RestartLimit, SyncMode
from warren.actors.engines.settings_file import load_settings, topic_settings
from warren.storage.call_arguments import checked, checked_class
from warren.storage.errors import SettingsError, did_you_mean
from warren.storage.filesystem import RealFileSystem
from warren.storage.settings import Settings
from warren.storage.topic_settings import TopicSettings

Amount: TypeAlias = int | str
"""Bytes, or a text with a unit: ``"2GB"``."""

Pair: TypeAlias = tuple[int, int] | Mapping[str, int]


class SettingKeywords(TypedDict, total=False):
    """Every setting of a node, its engine and its topics."""

    # the node's
    vm_memory_calculation_strategy: MemoryStrategy
    total_memory_available_override_value: Amount | None
    vm_memory_high_watermark: float | str | Mapping[str, float | str]
    vm_memory_high_watermark_paging_ratio: float
    memory_monitor_interval: int
    disk_free_limit: Amount | MemRelative | Mapping[str, float | str]
    credit_flow_default_credit: Pair
    queue_ram_report_interval_ms: int
    hibernate_after_ms: int
    quorum_delivery_limit: int | None
    sync_interval_ms: int
    host_timeout_ms: int
    threads: int
    restart_limit: RestartLimit | tuple[int, float] | Mapping[str, float]
    attach: bool
    record: str | os.PathLike[str] | None
    record_interval_ms: int
    sync: SyncMode

    # the queue engine's
    segment_entry_count: int
    queue_index_max_journal_entries: int
    queue_index_embed_msgs_below: int
    msg_store_io_batch_size: int
    msg_store_credit_disc_bound: tuple[int, int]
    msg_store_file_size_limit: int
    msg_store_garbage_fraction: float
    queue_explicit_gc_run_operation_threshold: int
    reduce_after_every_operation: bool
    deliver_with_publish: bool
    previous_ram_counts: bool
    target_ram_count_max: int | None
    delta_read_max: int | None
    delta_read_ahead: int
    delta_read_min: int
    page_inside_segments: bool
    page_embedded_acks: bool
    rate_average_half_life_s: float
    rate_calculation_threshold: int

    # the topics'
    mapped_file_size_commit_log: int
    mapped_file_size_consume_queue: int
    max_hash_slot_num: int
    max_index_num: int
    max_message_size: int
    max_msgs_num_batch: int
    default_query_max_num: int
    message_index_enable: bool
    message_index_safe: bool
    check_crc_on_recover: bool
    message_delay_level: str
    flush_disk_type: str | None
    flush_interval_commit_log: int
    flush_commit_log_least_pages: int
    flush_commit_log_thorough_interval: int
    flush_interval_consume_queue: int
    flush_consume_queue_least_pages: int
    flush_consume_queue_thorough_interval: int
    flush_consumer_offset_interval: int
    flush_delay_offset_interval: int
    file_reserved_time: int
    delete_when: str
    disk_max_used_space_ratio: int
    clean_file_forcibly_enable: bool
    clean_resource_interval: int
    max_reconsume_times: int
    default_topic_queue_nums: int
    store_path_root_dir: str | None
    store_path_commit_log: str | None
    broker_ip1: str
    listen_port: int
    rebuild_after_crash: bool


ENGINE: Final = Settings(target_ram_count_max=24_576, delta_read_max=4096)
"""The engine of a node that names no profile: its queues keep a backlog on the disk, whatever memory there is, and read
it back in parts that stay in a processor's cache while bodies are taken out of them."""

_NODE = {field.name for field in attrs.fields(NodeSettings)}
_ENGINE = {field.name for field in attrs.fields(Settings)}
_TOPICS = {field.name for field in attrs.fields(TopicSettings)}


def _among(names: set[str], settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in names}


def check_names(settings: Mapping[str, Any], others: Collection[str] = ()) -> None:
    """Raise :class:`SettingsError` unless all are names of settings. ``others``: what may have been meant instead."""
    names = _NODE | _ENGINE | _TOPICS
    for name in settings:
        if name not in names:
            raise SettingsError(f"no setting {name!r}{did_you_mean(name, (*others, *names))}")


@checked_class
@attrs.frozen(kw_only=True)
class Config:
    """A node's settings."""

    node: NodeSettings = attrs.Factory(NodeSettings)
    engine: Settings = ENGINE
    topics: TopicSettings = attrs.Factory(TopicSettings)

    @property
    def record(self) -> str | None:
        """The file that the node is recorded in (:mod:`warren.recording`)."""
        return self.node.record

    @classmethod
    @checked
    def of(cls, config: Config | str | os.PathLike[str] | None = None, **settings: Unpack[SettingKeywords]) -> Config:
        """A config, or a TOML file's, or the defaults, with ``settings`` put in their places.

        Raises :class:`SettingsError` for a name that is no setting, and for values that cannot work.
        """
        base = config if isinstance(config, Config) else cls() if config is None else cls.from_toml(config)
        changes = dict[str, Any](settings)
        check_names(changes)
        return cls(
            node=attrs.evolve(base.node, **_among(_NODE, changes)),
            engine=attrs.evolve(base.engine, **_among(_ENGINE, changes)),
            topics=topic_settings(_among(_TOPICS, changes), base.topics),
        )

    @classmethod
    @checked
    def from_toml(cls, path: str | os.PathLike[str]) -> Config:
        """What a file says in its tables ``[node]``, ``[engine]`` and ``[topics]``."""
        node, engine, topics = load_settings(RealFileSystem().read(os.fspath(path)), os.fspath(path), ENGINE)
        return cls(node=node, engine=engine, topics=topics)
