"""Loading a topic store: open its parts, and recover what they hold."""

from __future__ import annotations

from collections.abc import Callable

from warren.actors.engines.topics.checkpoint_format import read_checkpoint
from warren.actors.engines.topics.store_files import ABORT, CHECKPOINT, CONSUME_QUEUES, INDEX
from warren.actors.engines.topics.store_loading import load_index, load_queue, strangers
from warren.actors.engines.topics.store_recovery import Recovery
from warren.actors.engines.topics.topic_store import TopicStore, commit_log_directory, queue_directories
from warren.msg_store.commit_log.commit_log import CommitLog
from warren.storage.filesystem import FAILED, FileSystem, take_failed_sync_back
from warren.storage.topic_settings import TopicSettings


def load_store(
    files: FileSystem,
    directory: str,
    settings: TopicSettings,
    *,
    new_index_name: Callable[[], str],
    writable: bool = True,
    sync_failed: bool = False,
    good_until: int = 0,
) -> TopicStore:
    """Load and recover the store in ``directory``; an empty directory is an empty store.

    ``new_index_name``: returns the current local time as 17 digits. ``sync_failed``: whether a sync failed in this
    process (a file beside the CommitLog records failures of others). What is read may then not be on the disk, and
    a sync would not write it, so it is rewritten.
    ``good_until``: the start of a record before which the CommitLog was already read and found good as in recovery;
    after a dirty stop only for callers that do not use what is built from it.
    Raises :class:`DataError` if RocketMQ would refuse the whole store: a mapped file whose length differs from the
    settings.
    """
    lengthen = settings.rebuild_after_crash and writable
    was_clean = not files.exists(f"{directory}/{ABORT}")
    log_directory = commit_log_directory(directory, settings)
    commit_log = CommitLog.load(files, log_directory, settings, writable=writable, lengthen=lengthen)
    queues = {
        key: load_queue(files, directory, key, settings, writable=writable, lengthen=lengthen)
        for key in queue_directories(files, f"{directory}/{CONSUME_QUEUES}")
    }
    checkpoint = read_checkpoint(files, f"{directory}/{CHECKPOINT}")
    index, deleted = load_index(
        files, f"{directory}/{INDEX}", settings, checkpoint, new_index_name, was_clean=was_clean, writable=writable
    )
    store = TopicStore(files, directory, settings, commit_log, queues, index, checkpoint, was_clean, writable=writable)
    for mapped in (commit_log.mapped, *(queue.mapped for queue in queues.values())):
        store.cuts += strangers(files, mapped.directory)
    store.cuts += deleted
    try:
        sync_failed = sync_failed or files.exists(log_directory + FAILED)
        Recovery(store, sync_failed=sync_failed, good_until=good_until).run()
        if writable:
            take_failed_sync_back(files, log_directory)
    except BaseException:
        store.abandon()
        raise
    return store
