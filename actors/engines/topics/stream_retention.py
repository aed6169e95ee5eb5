"""How much of the CommitLog streams retain, in whole files, as RabbitMQ's streams retain whole segments.

A stream (:mod:`warren.actors.engines.declared.stream_arguments`) is a topic with one queue. It *lets a file go* when
its last message there is older than ``max_age_ms``, or when its messages after that file have ``max_length_bytes`` or
more; without limits never, and never the file that is being written. From then on its messages there are not shown any
more, and no longer prevent the file's deletion. A file that contains only messages of streams is deleted when all have
let it go; one with other topics' messages, when it has also expired
(:mod:`warren.msg_store.commit_log.commit_log_expiry`).

What a stream has in a file does not change once the next one is being written, so it is counted once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from warren.actors.engines.declared.stream_arguments import StreamLimits
from warren.actors.engines.topics.topic_store import TopicStore
from warren.msg_store.commit_log.commit_log_expiry import Hold
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.storage.errors import DataError, StorageError

STREAM_QUEUE_ID: Final = 0
"""The one queue of a stream's topic."""

_ENTRIES: Final = 1 << 16
"""How many entries are read at a time."""


@attrs.frozen
class Share:
    """What a stream has in one file of the CommitLog."""

    first: int
    """The queue offset of its first message there."""
    stop: int
    """The queue offset after its last message there."""
    size_bytes: int
    last_stored_ms: int


@attrs.define(eq=False, repr=False)
class StreamRetention:
    """What one stream retains. Any thread may use it; two at the same time repeat a count, with the same result."""

    store: TopicStore
    topic: str
    limits: StreamLimits
    _shares: dict[int, Share | None] = attrs.Factory(dict)
    """By the file's base; ``None`` if it has no messages there."""
    _newest: tuple[int, int, int] = (-1, 0, 0)
    """Where its newest messages begin in the CommitLog, up to which queue offset they are counted, and their bytes."""

    @property
    def _queue(self) -> ConsumeQueue | None:
        return self.store.queues.get((self.topic, STREAM_QUEUE_ID))

    def bounds(self, now_ms: int) -> range:
        """The queue offsets of the messages that it retains."""
        queue = self._queue
        if queue is None:
            return range(0)
        stop, oldest_base = queue.max_offset, self._first_base(queue, now_ms)
        first = queue.first_offset(self.store.commit_log.min_offset if oldest_base is None else oldest_base)
        return range(min(first, stop), stop)

    def keeps(self, base: int, now_ms: int) -> bool:
        """Whether it has messages in the file that begins at ``base`` and has not let it go."""
        queue = self._queue
        if queue is None or self._share(queue, base) is None:
            return False
        oldest_base = self._first_base(queue, now_ms)
        return oldest_base is None or base >= oldest_base

    def _first_base(self, queue: ConsumeQueue, now_ms: int) -> int | None:
        """The base of the first file that it retains; ``None``: all files."""
        limits = self.limits
        if limits.max_age_ms is None and limits.max_length_bytes is None:
            return None
        bases = self.store.commit_log.mapped.bases
        passed = [base for base in bases[:-1] if base + self._file_size <= self.store.dispatched]
        if not passed:
            return None
        behind_bytes = 0 if limits.max_length_bytes is None else self._newest_bytes(queue, passed[-1] + self._file_size)
        for base in reversed(passed):
            if limits.max_length_bytes is not None and behind_bytes >= limits.max_length_bytes:
                return base + self._file_size
            share = self._share(queue, base)
            if share is not None:
                behind_bytes += share.size_bytes
                if limits.max_age_ms is not None and share.last_stored_ms < now_ms - limits.max_age_ms:
                    return base + self._file_size
        return None

    def _newest_bytes(self, queue: ConsumeQueue, start: int) -> int:
        """The bytes of its messages from ``start`` on, in files that are being written; each counted once."""
        counted_start, first, size_bytes = self._newest
        if counted_start != start:
            first, size_bytes = queue.first_offset(start), 0
        stop = queue.max_offset
        size_bytes += _size_bytes(queue, first, stop)
        self._newest = (start, stop, size_bytes)
        return size_bytes

    @property
    def _file_size(self) -> int:
        return self.store.commit_log.mapped.file_size

    def _share(self, queue: ConsumeQueue, base: int) -> Share | None:
        """What it has in a file that is no longer written."""
        if base not in self._shares:
            counted = self._count(queue, base, base + self._file_size)
            share = counted if counted.stop > counted.first else None
            if base + self._file_size > self.store.dispatched:
                return share  # there may be more
            bases = set(self.store.commit_log.mapped.bases)
            self._shares = {
                log_base: log_share for log_base, log_share in self._shares.items() if log_base in bases
            } | {base: share}
        return self._shares[base]

    def _count(self, queue: ConsumeQueue, start: int, stop: int) -> Share:
        first, end = queue.first_offset(start), queue.first_offset(stop)
        size_bytes = 0 if self.limits.max_length_bytes is None else _size_bytes(queue, first, end)
        stored_ms = 0
        if end > first and self.limits.max_age_ms is not None:
            [entry] = queue.entries(end - 1, 1)
            store_timestamp = self.store.commit_log.store_timestamp_of(
                int(entry["physical_offset"]), int(entry["size"])
            )
            stored_ms = store_timestamp or 0
        return Share(first, end, size_bytes, stored_ms)


def _size_bytes(queue: ConsumeQueue, first: int, stop: int) -> int:
    return sum(int(queue.entries(at, min(_ENTRIES, stop - at))["size"].sum()) for at in range(first, stop, _ENTRIES))


def hold(store: TopicStore, streams: Mapping[str, StreamRetention], base: int, now_ms: int) -> Hold:
    """Return whether streams keep a file of the CommitLog, let it go, or do not hold it."""
    stop, has_others = base + store.commit_log.mapped.file_size, False
    has_streams = False
    for (topic, _), queue in list(store.queues.items()):
        stream = streams.get(topic)
        try:
            if stream is not None:
                if stream.keeps(base, now_ms):
                    return "kept"
                has_streams |= queue.first_offset(base) < queue.first_offset(stop)
            elif not has_others:
                has_others = queue.first_offset(base) < queue.first_offset(stop)
        except (DataError, StorageError):
            return "kept" if stream is not None else "not held"
    return "let go" if has_streams and not has_others else "not held"
