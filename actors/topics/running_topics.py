"""A running topic store: its actors, started and stopped together.

The store is in ``<node's directory>/topics``, with RocketMQ's layout. It is opened with the node if it exists, and
created when the first topic is declared. Its actors:

    user ─► CommitLogActor ──tell──► DispatchActor ──tell──► ScheduleActor (appends delayed messages that are due)
              (appends)               (entries, keys)  └─tell──► TransactionsActor (appends what is decided)
    user ─► GroupsActor (who reads what, how far)       user: reads queues and messages by itself, in its own thread

If one of them fails, all are given up as a crash would, and the store is reopened from its files.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import posixpath
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
from pykka import ActorRef

from warren.actors.engines.topics.names import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC
from warren.actors.engines.topics.store_files import CONFIG, refuse_queues
from warren.actors.engines.topics.store_opening import load_store
from warren.actors.engines.topics.stream_retention import StreamRetention
from warren.actors.engines.topics.topic_store import TopicStore, table_of
from warren.actors.engines.topics.topic_table import TopicTable
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.runtime.pooled_actor import actor_of_ref
from warren.actors.topics.commit_log_actor import CommitLogActor
from warren.actors.topics.dispatch_actor import DispatchActor
from warren.actors.topics.groups_actor import GroupsActor
from warren.actors.topics.schedule_actor import ScheduleActor
from warren.actors.topics.topic_part import TopicPart
from warren.actors.topics.transactions_actor import TransactionsActor
from warren.queue_index.index.config_file import ConfigFile
from warren.queue_index.topics.consumer_offsets import ConsumerOffsets
from warren.queue_index.topics.consumer_offsets_format import decode_delay_offsets
from warren.queue_index.topics.local_offsets import LocalOffsets
from warren.storage.errors import DiskFullError, StorageError, WarrenError
from warren.storage.filesystem import Lock, lock_part
from warren.storage.lock_file import LOCK_FILE
from warren.storage.topic_settings import TopicSettings

_LOG = logger("topics")

DELAY_OFFSETS: Final = "delayOffset.json"
OFFSETS: Final = "offsets"
"""The folder for offsets of broadcast readers."""

Streams = Callable[[], Mapping[str, StreamRetention]]
"""Returns the retention of the streams, by topic."""

_SYNC_OF = {"SYNC_FLUSH": "group", "ASYNC_FLUSH": "os"}


def index_name(wall_us: int) -> str:
    """Return the name of an index file created at this time: year to millisecond, 17 digits, local time."""
    moment = datetime.datetime.fromtimestamp(wall_us // 1_000_000).astimezone()
    return f"{moment:%Y%m%d%H%M%S}{wall_us // 1000 % 1000:03d}"


@attrs.define(eq=False, repr=False)
class RunningTopics:
    """The store and its actors. Created by :meth:`open`."""

    context: NodeContext
    store: TopicStore
    table: TopicTable
    log: CommitLogActor
    dispatcher: DispatchActor
    groups: GroupsActor
    schedule: ScheduleActor
    transactions: TransactionsActor
    locks: list[Lock]
    """The locks of its directories outside the node's."""

    @classmethod
    def open(
        cls,
        context: NodeContext,
        path: str,
        settings: TopicSettings,
        used_disk_percent: Callable[[], float],
        *,
        owner: str,
        has_failed: bool = False,
        streams: Streams = dict,
    ) -> RunningTopics:
        """Recover the store in ``path``, or create one, and start its actors.

        ``owner``: named in lock files. ``has_failed``: whether it has failed in this process. ``streams`` returns their
        retention.
        """
        files = context.files
        elsewhere = []
        if settings.store_path_root_dir:
            elsewhere.append((path, f"{path}/{LOCK_FILE}"))
        if log_path := settings.store_path_commit_log:
            elsewhere.append((log_path, f"{log_path}.{LOCK_FILE}"))  # a RocketMQ refuses any other file within
        with contextlib.ExitStack() as until_open:
            locks = []
            for place, lock in elsewhere:
                files.make_directories(place)
                locks.append(lock_part(files, lock, owner))
                until_open.callback(locks[-1].release)
            topics = cls._open(
                context, path, settings, used_disk_percent, locks, has_failed=has_failed, streams=streams
            )
            until_open.pop_all()
        return topics

    @classmethod
    def _open(
        cls,
        context: NodeContext,
        path: str,
        settings: TopicSettings,
        used_disk_percent: Callable[[], float],
        locks: list[Lock],
        *,
        has_failed: bool,
        streams: Streams,
    ) -> RunningTopics:
        files, store = context.files, _loaded(context, path, settings, has_failed=has_failed)
        try:
            table = table_of(store)
            offsets = ConsumerOffsets.load(files, f"{path}/{CONFIG}")
            delay_file = ConfigFile(files, f"{path}/{CONFIG}/{DELAY_OFFSETS}")
            delay_offsets = delay_file.load(decode_delay_offsets) or {}
            store.start()
            table.declare_all(store.queues)  # of records that another program appended
        except BaseException:
            store.abandon()
            raise
        sync = context.settings.sync if settings.flush_disk_type is None else _SYNC_OF[settings.flush_disk_type]
        dispatcher = _started(DispatchActor, context, store)
        log = _started(
            CommitLogActor,
            context,
            store,
            dispatcher=dispatcher,
            sync=sync,
            used_disk_percent=used_disk_percent,
            streams=streams,
        )
        groups = _started(
            GroupsActor,
            context,
            store,
            offsets,
            LocalOffsets.load(files, f"{path}/{OFFSETS}"),
            queues_of=lambda topic: table.queues(topic) or 1,
            arrivals=dispatcher.arrivals,
        )
        schedule = _started(ScheduleActor, context, store, delay_file, delay_offsets, log=log.intake)
        transactions = _started(TransactionsActor, context, store, log=log.intake, groups=groups)
        dispatcher.listeners[SCHEDULE_TOPIC] = functools.partial(schedule.call_soon, schedule.follow)
        follow = functools.partial(transactions.call_soon, transactions.follow)
        dispatcher.listeners[HALF_TOPIC] = dispatcher.listeners[OP_TOPIC] = follow
        dispatcher.call_soon(dispatcher.dispatch)  # an index that lags catches up
        return cls(context, store, table, log, dispatcher, groups, schedule, transactions, locks)

    @property
    def actors(self) -> list[TopicPart]:
        """The actors, senders before receivers."""
        return [self.schedule, self.transactions, self.log, self.groups, self.dispatcher]

    def forget(self, error: WarrenError) -> None:
        """Stop the actors in a forked child: the store is the parent's."""
        for actor in self.actors:
            actor.forget(error)

    def is_of(self, actor: ActorRef[Any]) -> bool:
        """Whether ``actor`` is one of this store's actors."""
        return any(
            own_actor.actor_ref is actor or own_actor.actor_ref.actor_urn == actor.actor_urn
            for own_actor in self.actors
        )

    def declare(self, topic: str, queues: int) -> None:
        """Create a topic with at least ``queues`` queues, or add queues; undo that if it cannot be saved."""
        before = self.table.queues(topic)
        if self.table.declare(topic, queues):
            now_ms = self.context.clock.wall_us() // 1000
            try:
                self.table.save(now_ms, sync=True)
            except StorageError:
                self.table.take_back(topic, before)
                with contextlib.suppress(StorageError):  # the failure may have come after the file was replaced
                    self.table.save(now_ms, sync=True)
                raise
            self.groups.call_soon(lambda: self.groups.consumer_groups.more_queues(topic, queues))

    def delete(self, topic: str) -> None:
        """Delete a topic that is no longer appended to; its messages go with their CommitLog files."""
        self.log.turns.ask(lambda: None)  # wait until everything handed over is written
        self.dispatcher.turns.ask(functools.partial(self.dispatcher.delete_topic, topic))
        self.table.take_back(topic, None)
        self.table.save(self.context.clock.wall_us() // 1000, sync=True)

    def close(self) -> None:
        """Stop cleanly; raise the error that prevents it."""
        self.schedule.turns.ask(self.schedule.stop_delivering)
        self.log.turns.ask(self.log.sync)  # delivered messages are safe, and the schedule knows
        for actor in self.actors:
            actor.turns.ask(actor.close)
        self._release()

    def _release(self) -> None:
        while self.locks:
            self.locks.pop().release()

    def give_up(self, error: BaseException) -> None:
        """Stop all actors and leave the files as they are."""
        for actor in self.actors:
            if not actor.actor_stopped.is_set():
                with contextlib.suppress(Exception):  # an actor that fails at this moment has stopped, too
                    actor.turns.ask(functools.partial(actor.give_up, error), first=True)
        if isinstance(error, StorageError) and not isinstance(error, DiskFullError):
            self.store.fail()
        else:
            self.store.abandon()
        self._release()


def _loaded(context: NodeContext, path: str, settings: TopicSettings, *, has_failed: bool) -> TopicStore:
    """Recover the store in ``path``, or create one."""
    files = context.files
    files.make_directories(f"{path}/{CONFIG}")
    files.sync_directory(posixpath.dirname(path))  # otherwise all of it could be lost with its name
    refuse_queues(files, path)
    store = load_store(
        files, path, settings, new_index_name=lambda: index_name(context.clock.wall_us()), sync_failed=has_failed
    )
    for cut in store.cuts:
        _LOG.warning("%s", cut, extra=log_event("topics_cut", **cut.log_fields()))
    return store


def _started(kind: Any, *arguments: Any, **named: Any) -> Any:
    """Start an actor and return it."""
    return actor_of_ref(kind.start(*arguments, **named), kind)
