"""Readers of topics and what they read, for threads; on top of :mod:`warren.verbs.topics.reader_verbs`."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from warren.storage.call_arguments import checked
from warren.values.read_message import Iteration, ReadMessage, RecordBatch, RecordVerbs
from warren.verbs.steps import blocking, run
from warren.verbs.topics.reader_verbs import Read, ReaderHandle, ReaderVerbs


class TopicRecord(ReadMessage):
    """A message that was read."""

    __slots__ = ()

    commit = blocking(RecordVerbs.commit)
    retry = blocking(RecordVerbs.retry)


def _records(read: Read) -> RecordBatch[TopicRecord]:
    return RecordBatch(TopicRecord, read)


class Reader(ReaderHandle):
    """Reads a topic for a group, for one thread at a time. Made by :meth:`warren.Topic.reader`; to be closed."""

    def __init__(self, verbs: ReaderVerbs) -> None:
        super().__init__(verbs)
        run(verbs.begin())

    queues = blocking(ReaderVerbs.queues)
    read = blocking(ReaderVerbs.read, _records)

    @checked
    def records(self, max_records: int | None = None, timeout: float | None = 0.0) -> Iterator[TopicRecord]:
        """Messages one by one, up to ``max_records``, until none came for ``timeout`` seconds (``None``: for ever)."""
        iteration = Iteration(self._verbs, TopicRecord, max_records, timeout)
        try:
            while run(iteration.next_batch()):
                while (record := iteration.take_now()) is not None:
                    yield record
        finally:
            iteration.leave()

    def __iter__(self) -> Iterator[TopicRecord]:
        """Messages one by one, for ever."""
        return self.records(timeout=None)

    commit = blocking(ReaderVerbs.commit)
    close = blocking(ReaderVerbs.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._verbs.leave(is_done=error is None))  # what was being worked on is not done
