"""SettingKeywords: the settings as keywords of :func:`warren.open`, for editors and type checkers.

Their meanings and valid values: see :class:`warren.actors.engines.node_settings.NodeSettings`,
:class:`warren.storage.settings.Settings` and :class:`warren.storage.topic_settings.TopicSettings`, which are the ones
that check it; a test compares the names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeAlias, TypedDict

from warren.actors.engines.alarms import MemRelative
from warren.actors.engines.node_settings import MemoryStrategy, RestartLimit, SyncMode

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
