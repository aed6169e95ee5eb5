"""Rebuilds ConsumeQueues and index files from the CommitLog alone.

They are built as by a broker that has lost both: every message from the CommitLog's first file on is dispatched. So
they are byte for byte the files of a broker that has lost nothing, except for the names of index files; leftovers of a
crash (old bytes after a queue's end, keys that were put twice) are not rebuilt.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import attrs

from warren.actors.engines.topics.checkpoint_format import Checkpoint
from warren.actors.engines.topics.store_files import CONSUME_QUEUES, INDEX
from warren.actors.engines.topics.topic_store import TopicStore
from warren.msg_store.commit_log.commit_log import CommitLog
from warren.msg_store.commit_log.commit_log_format import Blank
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.queue_index.topics.key_index import KeyIndex
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore, index_names
from warren.salvage.rocketmq.walking import walk_columns
from warren.storage.descriptors import descriptor_bound
from warren.storage.errors import StorageError
from warren.storage.filesystem import FileSystem, RealFileSystem
from warren.storage.topic_settings import TopicSettings


@attrs.define
class Rebuilt:
    """The result of a rebuild."""

    store: TopicStore
    """Its queues and its index are in the new directory; its CommitLog is the old one."""
    records: int = 0
    damage: list[Finding] = attrs.Factory(list)
    """What of the CommitLog could not be read."""

    @property
    def files(self) -> list[str]:
        """Names of the files that were made, below the new directory."""
        queues = [
            f"{CONSUME_QUEUES}/{topic}/{queue_id}/{os.path.basename(queue.mapped.path(base))}"
            for (topic, queue_id), queue in sorted(self.store.queues.items())
            for base in queue.mapped.bases
        ]
        return [*queues, *(f"{INDEX}/{file.name}" for file in self.store.index.index_files)]

    def close(self) -> None:
        """Close the new files."""
        self.store.index.close()
        for queue in self.store.queues.values():
            queue.close()


def rebuild(opened: RocketmqStore, out: str, advance: Callable[[int], object]) -> Rebuilt:
    """Build into the directory ``out``, which is empty or missing. ``advance`` is called with the progress.

    Raises :class:`StorageError` if that is not possible.
    """
    _check_out(opened.path, out)
    files = RealFileSystem(descriptor_bound())
    rebuilt = Rebuilt(empty_store(files, out, opened.settings, opened.store.commit_log))
    store, delays = rebuilt.store, opened.settings.delay_levels_ms()
    count = 0
    try:
        for item in walk_columns(opened.store.commit_log, delay_levels_ms=delays):
            if isinstance(item, RecordColumns):
                store.dispatch_columns(item)
                rebuilt.records += len(item)
                advance(item.stop)
                if count != len(store.index.index_files):  # a full file needs no table in memory any more
                    count = len(store.index.index_files)
                    store.index.flush_full()
            elif not isinstance(item, Blank):
                rebuilt.damage.append(item)
        for queue in store.queues.values():
            queue.flush()
        store.index.flush()
    except BaseException:
        rebuilt.close()
        raise
    rebuilt.damage += not_built(store)
    return rebuilt


def not_built(store: TopicStore) -> list[Finding]:
    """The queues that could not be built, each once."""
    return [Finding("queue not built", "damage", cut.path, None, cut.what) for cut in dict.fromkeys(store.cuts)]


def _check_out(path: str, out: str) -> None:
    source, target = os.path.realpath(path), os.path.realpath(out)
    if os.path.commonpath([source, target]) == source:
        raise StorageError(f"{out}: lies in {path}, which is not to be changed")
    if os.path.exists(out) and (not os.path.isdir(out) or os.listdir(out)):
        raise StorageError(f"{out}: is there and not an empty directory")


def empty_store(files: FileSystem, out: str, settings: TopicSettings, commit_log: CommitLog) -> TopicStore:
    """A store in ``out`` without queues and index, to build those of a CommitLog that is elsewhere."""
    files.make_directories(f"{out}/{CONSUME_QUEUES}")
    index = KeyIndex.load(
        files,
        f"{out}/{INDEX}",
        max_hash_slot_num=settings.max_hash_slot_num,
        max_index_num=settings.max_index_num,
        new_name=index_names(),
        is_clean=True,
        index_msg_timestamp=0,
    )
    return TopicStore(files, out, settings, commit_log, {}, index, Checkpoint(), was_clean=True)
