"""A node in memory: what replaces the directory and the measurements of its disk.

Its files are in a :class:`~warren.storage.memory.MemoryFileSystem`, which ends with the node. Everything above
them works as on a disk, except for durability.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import attrs

from warren.actors.clock import SystemClock
from warren.actors.node.node_context import NodeContext, memory_files
from warren.actors.runtime.pool import ThreadPool
from warren.config import Config
from warren.hosting.running_node import RunningNode, machine_probes
from warren.storage.errors import SettingsError

SMALL_FILES: Final[Mapping[str, int]] = {
    "mapped_file_size_commit_log": 4 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 10_000,
    "max_index_num": 40_000,
}
"""Defaults of the topics' settings: their files are created in full length, which takes memory here."""


def config_in_memory(config: Config | str | os.PathLike[str] | None, settings: Mapping[str, Any]) -> Config:
    """Return the settings of a node in memory. Raises :class:`SettingsError`."""
    chosen = Config.of(config, **({**SMALL_FILES, **settings} if config is None else settings))
    if chosen.record is not None:
        raise SettingsError("record: a node in memory has no place for a recording")
    return chosen


def start_in_memory(
    path: str, config: Config | str | os.PathLike[str] | None, *, share: bool, settings: Mapping[str, Any]
) -> RunningNode:
    """Start a node in this process's memory; ``path``: its name. Raises :class:`SettingsError`."""
    if share:
        raise SettingsError(f"share: {path} is in this process's memory; what is shared is a directory")
    chosen, clock = config_in_memory(config, settings), SystemClock()
    no_disk = attrs.evolve(
        machine_probes(chosen, path), free_disk_bytes=lambda: sys.maxsize, used_disk_percent=lambda: 0.0
    )
    context = NodeContext(
        files=memory_files(clock, volatile=True),
        pool=ThreadPool(chosen.node.threads),
        clock=clock,
        random=os.urandom,
        settings=chosen.node,
        engine=chosen.engine,
    )
    return RunningNode(context, path, chosen, probes=no_disk)
