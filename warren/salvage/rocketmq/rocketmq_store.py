"""A topic store opened without changing it, as the original would find it after its recovery.

Recovery cuts, deletes and writes; here it does so in memory, over the directory (:mod:`warren.storage.overlay`). So
reads return what a restarted broker would return. ``start`` goes one step further, and builds what the broker builds
after it has loaded. Settings that no file tells are RocketMQ's, unless the user sets them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, timedelta

import attrs

from warren.actors.engines.topics.store_files import CHECKPOINT, CONFIG, Cut, rocksdb_reason
from warren.actors.engines.topics.store_opening import load_store
from warren.actors.engines.topics.topic_store import TopicStore
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.queue_index.topics.consumer_offsets import ConsumerOffsets
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.salvage.rocketmq.batch_queues import BatchQueue, batch_queues
from warren.salvage.rocketmq.config_files import ConfigFiles
from warren.salvage.rocketmq.inference import Inferred, infer
from warren.salvage.rocketmq.verify_commit_log import VerifiedCommitLog
from warren.salvage.rocketmq.verify_files import StoreFiles
from warren.salvage.rocketmq.verify_queues import ConsumeQueues
from warren.salvage.source import open_place
from warren.storage.errors import WarrenError, did_you_mean
from warren.storage.overlay import OverlayFileSystem
from warren.storage.topic_settings import TopicSettings


@attrs.frozen(eq=False, repr=False)
class RocketmqStore:
    """One store. ``files`` has the directory as recovery left it, ``below`` as it is."""

    path: str
    """As the user gave it."""
    directory: str
    below: ReadOnlyFileSystem
    files: OverlayFileSystem
    settings: TopicSettings
    inferred: list[Inferred]
    notes: list[str]
    """For people: what recovery cut off, and what was guessed."""
    store: TopicStore
    has_checkpoint: bool
    batch_queues: Mapping[tuple[str, int], BatchQueue]
    config: ConfigFiles

    @property
    def queues(self) -> dict[tuple[str, int], ConsumeQueue | BatchQueue]:
        """All queues, by topic and queue id."""
        return {**self.store.queues, **self.batch_queues}

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | BatchQueue:
        """Return an existing queue. Raises :class:`WarrenError` if it is missing."""
        queues = self.queues
        queue = queues.get((topic, queue_id))
        if queue is None:
            if (reason := rocksdb_reason(self.below, self.directory)) is not None:
                raise WarrenError(f"{self.path}: no queue {queue_id} of the topic {topic!r}: {reason}")
            ids = [str(other_id) for name, other_id in queues if name == topic]
            hint = f"; its queues are {', '.join(ids)}" if ids else did_you_mean(topic, {name for name, _ in queues})
            hint = hint or "; warren inspect names the topics"
            raise WarrenError(f"{self.path}: no queue {queue_id} of the topic {topic!r}{hint}")
        return queue

    def consumer_offsets(self) -> ConsumerOffsets:
        """Raises :class:`DataError` if file and backup are both damaged; without a file there are no offsets."""
        return ConsumerOffsets.load(self.files, f"{self.directory}/{CONFIG}")

    @property
    def log_cut(self) -> Cut | None:
        """Where recovery ended the CommitLog, if messages follow; the walk of verify finds them.

        Leftovers of the last write before a crash are not a cut, nor are old bytes after the end.
        """
        log = self.store.commit_log
        cut = next((cut for cut in self.store.cuts if cut.path.startswith(f"{log.mapped.directory}/")), None)
        if cut is None:
            return None
        with closing(StoreFiles.of(self.below, self.directory, self.settings)) as store_files:
            walked = VerifiedCommitLog.of(store_files)
            ConsumeQueues.of(store_files, walked)
            for _ in walked.walk():
                pass
        return cut if walked.good_end > log.end else None


@contextmanager
def open_rocketmq(path: str, changes: Mapping[str, str], *, start: bool = False) -> Iterator[RocketmqStore]:
    """The store at ``path``; ``changes``: the user's settings, under RocketMQ's names or warren's.

    Raises :class:`DataError` if there is no store, or RocketMQ would refuse it.
    """
    with open_place(path) as place, opened_store(path, place.files, place.store(), changes, start=start) as store:
        yield store


@contextmanager
def opened_store(
    path: str,
    below: ReadOnlyFileSystem,
    directory: str,
    changes: Mapping[str, str],
    *,
    start: bool = False,
    good_until: int = 0,
) -> Iterator[RocketmqStore]:
    """The store in ``directory`` of ``below``; ``good_until``: see :func:`load_store`."""
    directory = directory or "."
    settings, inferred, guesses = infer(below, directory, changes)
    files = OverlayFileSystem(below, now_ms=int(time.time() * 1000))
    try:
        store = load_store(files, directory, settings, new_index_name=index_names(), good_until=good_until)
        if start:
            store.start()
        in_others = [reason] if (reason := rocksdb_reason(below, directory)) is not None else []
        config = ConfigFiles.of(files, directory)
        notes = [*in_others, *config.notes, *guesses, *(str(cut) for cut in store.cuts if cut.missing is None)]
        has_checkpoint = below.exists(f"{directory}/{CHECKPOINT}")
        batches = batch_queues(below, directory, store.commit_log)
        yield RocketmqStore(
            path, directory, below, files, settings, inferred, notes, store, has_checkpoint, batches, config
        )
        store.abandon()
    finally:
        files.close()


def index_names() -> Callable[[], str]:
    """Names for new index files: local time to the millisecond, each later than the last."""
    last = datetime.min

    def name() -> str:
        nonlocal last
        last = max(datetime.now(), last + timedelta(milliseconds=1))
        return f"{last:%Y%m%d%H%M%S}{last.microsecond // 1000:03d}"

    return name
