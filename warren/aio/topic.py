"""Topic: the handle of :mod:`warren.handles.topic`, for coroutines. Any number of event loops may share it.

``append`` waits until the message is safe, ``append_nowait`` returns a confirm to be awaited later. Entries, keys and
groups are requested from the actors, and messages are read in the loop's default executor, many at a time.

A cancelled await stops waiting. If there was no room yet, nothing is appended; otherwise the message is appended, a
half message is prepared, or a group moved.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Unpack

from warren.actors.engines.topics.consumer_group import StartOffset
from warren.actors.topics.log_intake import AppendResult
from warren.aio.bridge import awaited, run, run_now, safe
from warren.aio.confirm import AppendConfirm
from warren.aio.topic_reader import Reader, TopicRecord
from warren.aio.transaction import Transaction
from warren.handles import topic
from warren.msg_store.commit_log.packed_records import PackedRecords
from warren.storage.call_arguments import checked
from warren.values.read_message import RecordBatch
from warren.values.topic_record import Moment
from warren.verbs.instrumentation import called
from warren.verbs.topics.reader_verbs import ReaderArguments
from warren.verbs.topics.topic_append import AppendResults
from warren.verbs.topics.topic_tail import last_of, read_last
from warren.verbs.topics.topic_verbs import AppendArguments, AppendManyArguments, TopicHandle, TopicVerbs


def _records(packed: list[PackedRecords]) -> list[TopicRecord]:
    return [TopicRecord(record) for record in packed]


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
