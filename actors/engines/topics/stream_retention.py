"""What streams keep of the CommitLog: by whole files, as RabbitMQ's go by whole segments.

A stream (:mod:`warren.actors.engines.declared.stream_arguments`) is a topic with one queue. It *lets a file go* when
its last message there is older than ``max_age_ms``, or when its messages after that file have ``max_length_bytes`` or
more; without limits never, and never the file that is written. From then on its messages there are not shown any more,
and nothing of it keeps the file from being deleted. A file in which only streams have messages goes when all have let
it go; one with other topics' messages, when it is its time as well
(:mod:`warren.msg_store.commit_log.commit_log_expiry`).

What a stream has in a file does not change any more once the next one is written: it is counted once.
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
"""Read at a time."""


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
    """What one stream keeps. Any thread may ask; two at a time count something twice, and find the same."""

    store: TopicStore
    topic: str
    limits: StreamLimits
    _shares: dict[int, Share | None] = attrs.Factory(dict)
    """By the file's base; ``None``: nothing there."""
    _newest: tuple[int, int, int] = (-1, 0, 0)
    """Where its newest messages begin in the CommitLog; up to which of them was counted; their bytes."""

    @property
    def _queue(self) -> ConsumeQueue | None:
        return self.store.queues.get((self.topic, STREAM_QUEUE_ID))

    def bounds(self, now_ms: int) -> range:
        """The queue offsets of the messages that it keeps."""
        queue = self._queue
        if queue is None:
            return range(0)
        stop, kept = queue.max_offset, self._kept(queue, now_ms)
        first = queue.first_offset(self.store.commit_log.min_offset if kept is None else kept)
        return range(min(first, stop), stop)

    def keeps(self, base: int, now_ms: int) -> bool:
        """Whether it has messages in the file that begins at ``base`` and has not let them go."""
        queue = self._queue
        if queue is None or self._share(queue, base) is None:
            return False
        kept = self._kept(queue, now_ms)
        return kept is None or base >= kept

    def _kept(self, queue: ConsumeQueue, now_ms: int) -> int | None:
        """Where the first file begins that it keeps; ``None``: all of them."""
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
        known, first, size_bytes = self._newest
        if known != start:
            first, size_bytes = queue.first_offset(start), 0
        stop = queue.max_offset
        size_bytes += _size_bytes(queue, first, stop)
        self._newest = (start, stop, size_bytes)
        return size_bytes

    @property
    def _file_size(self) -> int:
        return self.store.commit_log.mapped.file_size

    def _share(self, queue: ConsumeQueue, base: int) -> Share | None:
        """What it has in a file that is not written any more."""
        if base not in self._shares:
            found = self._count(queue, base, base + self._file_size)
            share = found if found.stop > found.first else None
            if base + self._file_size > self.store.dispatched:
                return share  # there may be more
            there = set(self.store.commit_log.mapped.bases)
            self._shares = {known: one for known, one in self._shares.items() if known in there} | {base: share}
        return self._shares[base]

    def _count(self, queue: ConsumeQueue, start: int, stop: int) -> Share:
        first, end = queue.first_offset(start), queue.first_offset(stop)
        size_bytes = 0 if self.limits.max_length_bytes is None else _size_bytes(queue, first, end)
        stored_ms = 0
        if end > first and self.limits.max_age_ms is not None:
            [entry] = queue.entries(end - 1, 1)
            found = self.store.commit_log.store_timestamp_of(int(entry["physical_offset"]), int(entry["size"]))
            stored_ms = found or 0
        return Share(first, end, size_bytes, stored_ms)


def _size_bytes(queue: ConsumeQueue, first: int, stop: int) -> int:
    return sum(int(queue.entries(at, min(_ENTRIES, stop - at))["size"].sum()) for at in range(first, stop, _ENTRIES))


def hold(store: TopicStore, streams: Mapping[str, StreamRetention], base: int, now_ms: int) -> Hold:
    """What is to become of a file of the CommitLog, as far as streams have to do with it."""
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
