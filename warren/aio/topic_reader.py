"""Readers of topics and what they read, for coroutines; on top of :mod:`warren.verbs.topics.reader_verbs`.

Messages are taken from the groups' actor, and read from the files in the loop's default executor, one batch per call;
between batches no thread is used. A reader that waits for messages is an entry in a list.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from warren.aio.bridge import awaited, run
from warren.aio.consumer import FAIR_SHARE
from warren.storage.call_arguments import checked
from warren.values.read_message import Iteration, ReadMessage, RecordBatch, RecordVerbs
from warren.verbs.topics.reader_verbs import Read, ReaderHandle, ReaderVerbs


class TopicRecord(ReadMessage):
    """A message that was read."""

    __slots__ = ()

    commit = awaited(RecordVerbs.commit)
    retry = awaited(RecordVerbs.retry)


def _records(read: Read) -> RecordBatch[TopicRecord]:
    return RecordBatch(TopicRecord, read)


class Records:
    """An async iterator over a reader's messages. Made by :meth:`Reader.records`; ends when the reader is closed.

    A coroutine that is cancelled while it waits for the next message can go on with it; one that leaves the loop in the
    middle of a message gets that one again.
    """

    def __init__(self, iteration: Iteration[TopicRecord]) -> None:
        self._iteration = iteration
        self._handed_out = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TopicRecord:
        iteration = self._iteration
        if self._handed_out >= FAIR_SHARE:
            self._handed_out = 0
            iteration.finish()
            await asyncio.sleep(0)
        while (record := iteration.take_now()) is None:
            if not await run(iteration.next_batch()):
                raise StopAsyncIteration
        self._handed_out += 1
        return record

    async def aclose(self) -> None:
        """End the iteration: messages that are not done come again."""
        self._iteration.leave()

    def __del__(self) -> None:
        self._iteration.leave(tells=False)


class Reader(ReaderHandle):
    """Reads a topic for a group, one task at a time. Made by :meth:`warren.aio.Topic.reader`, for an ``async with``.

    An unreferenced reader that was not closed leaves its group by itself, once its records are unreferenced, too.
    """

    begin = awaited(ReaderVerbs.begin)
    queues = awaited(ReaderVerbs.queues)
    read = awaited(ReaderVerbs.read, _records)

    @checked
    def records(self, max_records: int | None = None, timeout: float | None = 0.0) -> Records:
        """Iterate over at most ``max_records`` messages, until none comes for ``timeout`` seconds (``None``: wait)."""
        return Records(Iteration(self._verbs, TopicRecord, max_records, timeout))

    def __aiter__(self) -> Records:
        """Iterate over messages for ever."""
        return self.records(timeout=None)

    commit = awaited(ReaderVerbs.commit)
    close = awaited(ReaderVerbs.close)

    async def aclose(self) -> None:
        """:meth:`close`, as :func:`contextlib.aclosing` calls it."""
        await self.close()

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await run(self._verbs.leave(is_done=error is None))  # the message in progress is not done
