"""Node: a running message store in a directory, and what can be done with it, for threads.

``Node`` speaks of the vhost ``/``; :meth:`Node.vhost` gives the same verbs for another one. Handles are safe to share
between threads, not between processes: after a fork the child gets :class:`WrongProcessError`.

What the verbs ask for is told in :mod:`warren.vhost_verbs`; what runs is a :class:`~warren.running_node.RunningNode`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Self, Unpack

from warren import open_nodes
from warren.actors.clock import Clock, SystemClock
from warren.actors.engines.memory_readings import (
    MemoryReading,
    RssReading,
    free_disk_bytes,
    give_memory_back,
    keep_one_heap,
    physical_memory_bytes,
    process_rss_bytes,
    read_small_file,
    total_memory_bytes,
    used_disk_percent,
)
from warren.actors.node_actor import Probes
from warren.actors.node_context import NodeContext, shared_files
from warren.actors.pool import Pool, ThreadPool
from warren.config import Config
from warren.data_directory import refuse_part
from warren.exchange import Exchange
from warren.queue import Queue
from warren.running_broker import refuse_running_broker
from warren.running_node import RunningNode
from warren.setting_keywords import SettingKeywords
from warren.steps import blocking
from warren.storage.filesystem import FileSystem, make_data_directory
from warren.topic import Topic
from warren.transaction import Transaction
from warren.transaction_verbs import TransactionVerbs
from warren.vhost_verbs import NodeVerbs, VhostHandle, VhostVerbs


class Vhost(VhostHandle):
    """What can be done in one vhost, and the owner of the exclusive queues that were declared through it.

    Made by :meth:`Node.vhost`; every call makes another owner. Nothing needs to be closed: :meth:`release` deletes the
    exclusive queues before the node is closed, and a ``with`` does that at its end.
    """

    release = blocking(VhostVerbs.release)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    queue = blocking(VhostVerbs.queue, Queue)
    delete_queue = blocking(VhostVerbs.delete_queue)

    def queues(self) -> list[Queue]:
        """A handle on every queue, those that failed too."""
        return [Queue(verbs) for verbs in self._verbs.all_queues()]

    exchange = blocking(VhostVerbs.exchange, Exchange)
    delete_exchange = blocking(VhostVerbs.delete_exchange)
    bind = blocking(VhostVerbs.bind)
    unbind = blocking(VhostVerbs.unbind)
    publish_to = blocking(VhostVerbs.publish_to)


def _transactions(found: list[TransactionVerbs]) -> list[Transaction]:
    return [Transaction(verbs) for verbs in found]


_delete_queue = blocking(NodeVerbs.delete_queue)


class Node(Vhost):
    """A running node. Made by :func:`warren.open`; close it, or use it in a ``with``."""

    _verbs: NodeVerbs

    def __init__(
        self,
        path: str,
        config: Config,
        *,
        files: FileSystem,
        pool: Pool,
        clock: Clock,
        random: Callable[[int], bytes],
        probes: Probes | None = None,
        adopt: bool = False,
        attach: bool = False,
        check_invariants: bool = False,
    ) -> None:
        """For tests and simulations: everything from outside handed in. :func:`warren.open` is the usual way."""
        self._running = RunningNode(
            path,
            config,
            files=files,
            pool=pool,
            clock=clock,
            random=random,
            probes=probes or _probes(config, path),
            adopt=adopt,
            attach=attach,
            check_invariants=check_invariants,
        )
        super().__init__(NodeVerbs(self._running))

    @property
    def path(self) -> str:
        """The data directory."""
        return self._running.path

    @property
    def config(self) -> Config:
        """Its settings."""
        return self._running.config

    vhost = blocking(NodeVerbs.vhost, Vhost)
    vhosts = blocking(NodeVerbs.vhosts)
    delete_vhost = blocking(NodeVerbs.delete_vhost)
    delete_queue = _delete_queue
    definitions = blocking(NodeVerbs.definitions)
    import_definitions = blocking(NodeVerbs.import_definitions)

    topic = blocking(NodeVerbs.topic, Topic)
    topics = blocking(NodeVerbs.topics)
    pending_transactions = blocking(NodeVerbs.pending_transactions, _transactions)

    memory = blocking(NodeVerbs.memory)
    stats = blocking(NodeVerbs.stats)

    def close(self) -> None:
        """Wait for what was published to be safe, write everything down, and give the directory free.

        Where another thread is at it, wait for that. A program that ends normally does it by itself.
        """
        self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._running.forked:
            self.close()


def _probes(config: Config, path: str) -> Probes:
    """The machine's own numbers."""
    override = config.node.total_memory_available_override_value
    log_path = config.topics.store_path_commit_log or config.topics.store_path_root_dir or path

    def reading(context: NodeContext) -> MemoryReading:
        if config.node.vm_memory_calculation_strategy == "allocated":
            return context.allocated
        return RssReading(process_rss_bytes)

    return Probes(
        reading=reading,
        total_memory_bytes=override or total_memory_bytes(physical_memory_bytes(), read_small_file),
        free_disk_bytes=lambda: free_disk_bytes(path),
        give_back=give_memory_back,
        used_disk_percent=lambda: used_disk_percent(log_path),
    )


def open(
    path: str | os.PathLike[str],
    config: Config | str | os.PathLike[str] | None = None,
    *,
    adopt: bool = False,
    **settings: Unpack[SettingKeywords],
) -> Node:
    """Open a data directory and start a node in it; made where it is missing.

    ``config``: a :class:`Config`, or a TOML file; ``settings`` go before it, by keyword, under RabbitMQ's names.
    ``adopt``: take over the directory of a stopped RabbitMQ, which can have it back. Raises
    :class:`~warren.storage.errors.DirectoryLockedError` where another process has it (:class:`BrokerRunningError`: a
    RabbitMQ), ``ForeignDirectoryError`` for a RabbitMQ's without ``adopt`` and for a part of one,
    :class:`~warren.storage.errors.SettingsError`, :class:`~warren.storage.errors.DataError`.
    """
    chosen = Config.of(config, **settings)
    refuse_part(os.fspath(path))
    refuse_running_broker(os.fspath(path))
    make_data_directory(os.path.abspath(path))
    keep_one_heap()  # before there are threads
    node = Node(
        os.path.abspath(path),
        chosen,
        files=shared_files(sync_evicted=chosen.node.sync != "os"),
        pool=ThreadPool(chosen.node.threads),
        clock=SystemClock(),
        random=os.urandom,
        adopt=adopt,
        attach=chosen.node.attach,
    )
    open_nodes.close_at_exit(node._running)
    return node
