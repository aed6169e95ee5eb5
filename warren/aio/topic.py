"""Topic: the handle of :mod:`warren.handles.topic`, for coroutines. Any number of event loops may share it.

``append`` waits until the message is safe, ``append_nowait`` returns a confirm to be awaited later. Entries, keys and
groups are requested from the actors, and messages are read in the loop's default executor, many at a time.

A cancelled await stops waiting. If there was no room yet, nothing is appended; otherwise the message is appended, a
half message is prepared, or a group moved.

A reader's messages are taken from the groups' actor, and read from the files in the loop's default executor, one batch
per call; between batches no thread is used. A reader that waits for messages is an entry in a list.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Iterable, Mapping
from types import TracebackType
from typing import Self, Unpack

from warren.actors.engines.topics.consumer_group import StartOffset
from warren.actors.topics.log_intake import AppendResult
from warren.aio.bridge import awaited, awaited_safe, run, run_now, safe
from warren.aio.confirm import AppendConfirm
from warren.aio.consumer import FAIR_SHARE
from warren.handles import topic
from warren.handles.topic import last_of, read_last
from warren.msg_store.commit_log.commit_log_format import Record
from warren.msg_store.commit_log.packed_records import PackedRecords, packed_again
from warren.storage.call_arguments import checked
from warren.values.read_message import Iteration, ReadMessage, RecordBatch, RecordVerbs
from warren.values.topic_record import Moment, StoredMessage
from warren.verbs.instrumentation import called
from warren.verbs.topics.reader_verbs import Read, ReaderArguments, ReaderHandle, ReaderVerbs
from warren.verbs.topics.topic_append import AppendResults
from warren.verbs.topics.topic_verbs import AppendArguments, AppendManyArguments, TopicHandle, TopicVerbs
from warren.verbs.topics.transaction_verbs import TransactionHandle, TransactionVerbs


class TopicRecord(ReadMessage):
    """A message that was read."""

    __slots__ = ()

    commit = awaited(RecordVerbs.commit)
    retry = awaited(RecordVerbs.retry)


def _batch(read: Read) -> RecordBatch[TopicRecord]:
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
    read = awaited(ReaderVerbs.read, _batch)

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


def _records(packed: list[PackedRecords]) -> list[TopicRecord]:
    return [TopicRecord(record) for record in packed]


def _message(record: Record) -> StoredMessage:
    return StoredMessage(packed_again(record))


class Transaction(TransactionHandle):
    """One prepared message. ``commit`` and ``rollback`` come back when the decision is safe."""

    @functools.cached_property
    def blocking(self) -> topic.Transaction:
        """The same transaction, for threads."""
        return topic.Transaction(self._verbs)

    message = awaited(TransactionVerbs.record, _message)
    commit = awaited_safe(TransactionVerbs.commit)
    rollback = awaited_safe(TransactionVerbs.rollback)


class Topic(TopicHandle):
    """One topic. Made by :meth:`warren.aio.Node.topic`."""

    @functools.cached_property
    def blocking(self) -> topic.Topic:
        """The same topic, for threads."""
        return topic.Topic(self._verbs)

    # ── appending ───────────────────────────────────────────────────────────────────────────────────────────────

    @checked
    async def append(
        self, body: bytes, *, timeout: float | None = None, **arguments: Unpack[AppendArguments]
    ) -> AppendResult:
        """Append a message, and return its position when it is safe. Arguments: those of :meth:`warren.Topic.append`.

        While the disk lags, or an alarm is set, it waits before that: for ``timeout`` seconds, then it raises
        :class:`BlockedError`, and the message was not taken.
        """
        appended = await run(called(self._verbs.append, body, timeout=timeout, **arguments))
        await safe(appended.confirm, self._verbs.host.host, timeout)
        return appended.position()

    @checked
    def append_nowait(self, body: bytes, **arguments: Unpack[AppendArguments]) -> AppendConfirm[AppendResult]:
        """Hand over a message; await the result to know it safe. Never waits: raises :class:`BlockedError`."""
        self._verbs.host.check_now()
        appended = run_now(called(self._verbs.append, body, block=False, **arguments))
        return AppendConfirm(appended.confirm, appended.position)

    @checked
    async def append_many(
        self, bodies: Iterable[bytes], *, timeout: float | None = None, **arguments: Unpack[AppendManyArguments]
    ) -> AppendResults:
        """Append messages in one go, and return when all are safe. Otherwise as :meth:`append`.

        Arguments: those of :meth:`warren.Topic.append_many`.
        """
        appended = await run(called(self._verbs.append_many, bodies, timeout=timeout, **arguments))
        await safe(appended.confirm, self._verbs.host.host, timeout)
        return appended.positions()

    @checked
    async def room(self, timeout: float | None = None) -> None:
        """Wait until :meth:`append_nowait` has room; raise :class:`BlockedError` after ``timeout`` seconds."""
        await run(self._verbs.room(timeout))

    prepare = awaited(TopicVerbs.prepare, Transaction)
    sync = awaited(TopicVerbs.sync)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    @checked
    def reader(self, group: str, **arguments: Unpack[ReaderArguments]) -> Reader:
        """Return a member of a group, for an ``async with``; it joins when it is entered or first used.

        Arguments: those of :meth:`warren.Topic.reader`.
        """
        return Reader(self._verbs.reader(group, **arguments))

    @checked
    async def read(
        self,
        group: str,
        *,
        max_records: int | None = None,
        timeout: float | None = 0.0,
        tags: str | Iterable[str] | None = None,
        auto_commit: bool = True,
        consume_from: StartOffset | Moment | Mapping[int, int] = "first",
    ) -> AsyncGenerator[TopicRecord, None]:
        """Continue where the group is: read up to ``max_records`` messages, until none comes for ``timeout`` seconds.

        With ``auto_commit`` a message is done when the next one is requested, or the loop ends; a loop that is left in
        the middle of a message gets that one again. The loop is a member of the group: after a ``break`` until the
        event loop's next round, or in an :func:`contextlib.aclosing` until that ends.
        """
        verbs = self._verbs.reader(group, tags=tags, auto_commit=auto_commit, consume_from=consume_from)
        await run(self._verbs.host.host.within(timeout or None, verbs.begin()))
        async with Reader(verbs) as reader:
            async for record in reader.records(max_records, timeout):
                yield record

    @checked
    async def tail(self, last: int = 10, *, timeout: float | None = 0.0) -> AsyncGenerator[TopicRecord, None]:
        """Read the last messages of all queues together, then new ones, until none comes for ``timeout``
        seconds (``None``: for ever). This joins no group, and stores no position."""
        verbs, read, bounds = await run(self._verbs.host.host.within(timeout or None, read_last(self._verbs, last)))
        async with Reader(verbs) as reader:
            for record in last_of(RecordBatch(TopicRecord, read), bounds, last):
                yield record
            async for record in reader.records(timeout=timeout):
                yield record

    find = awaited(TopicVerbs.find, _records)
    get = awaited(TopicVerbs.get, TopicRecord)
    pull = awaited(TopicVerbs.pull, _records)
    message_at = awaited(TopicVerbs.message_at, TopicRecord)
    view_message = awaited(TopicVerbs.view_message, TopicRecord)

    # ── where groups and messages are ───────────────────────────────────────────────────────────────────────────

    offsets = awaited(TopicVerbs.offsets)
    offset_at = awaited(TopicVerbs.offset_at)
    seek = awaited(TopicVerbs.seek)
    lag = awaited(TopicVerbs.lag)
    groups = awaited(TopicVerbs.groups)
