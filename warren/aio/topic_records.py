"""Records: one iteration over a reader's messages, one by one.

With ``auto_commit`` a message is done when the next one is asked for. Whoever is cancelled while it waits for the next
one can go on with it; who leaves it in the middle of a message gets that one again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Self

from warren.actors.engines.topics.errors import MemberError
from warren.aio.consumer import FAIR_SHARE
from warren.aio.topic_record import TopicRecord

if TYPE_CHECKING:
    from warren.aio.topic_reader import Reader

BATCH: Final = 256
"""Messages that are taken at a time: what one reader has of them another one does not."""


class Records:
    """An async iterator over a reader's messages. Made by :meth:`Reader.records`; ends when the reader is closed.

    With ``auto_commit`` a message is done when the next one is asked for. What an iteration that was left in the middle
    had not done comes again, with the reader's next one or its next :meth:`Reader.read`.
    """

    def __init__(self, reader: Reader, max_records: int | None, timeout: float | None) -> None:
        self._reader = reader
        self._left = max_records
        self._timeout = timeout
        self._batch: deque[TopicRecord] = deque()
        self._current: TopicRecord | None = None
        self._handed_out = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TopicRecord:
        reader, current = self._reader, self._current
        self._current = None
        if reader._closed:
            raise StopAsyncIteration
        if reader._iteration is not self:  # another one was begun since, or this one is new
            self._batch.clear()
            await reader._now()
            reader._settle()
            reader._iteration = self
        elif current is not None:
            current._of().done = max(current._of().done, current._after)
        if not self._batch and not await self._next_batch():
            raise StopAsyncIteration
        if self._handed_out >= FAIR_SHARE:
            self._handed_out = 0
            await asyncio.sleep(0)
        self._handed_out += 1
        record = self._current = self._batch.popleft()
        record._of().handed_out = record._after
        if self._left is not None:
            self._left -= 1
        return record

    async def _next_batch(self) -> bool:
        """Whether there is one."""
        reader = self._reader
        reader._settle()  # all of the last one is done
        if self._left == 0:
            return False
        try:
            records = await reader._read(BATCH if self._left is None else min(self._left, BATCH), self._timeout)
        except MemberError:
            if reader._closed:
                return False
            raise
        for record in records:
            record._of().is_iterated = True
        self._batch.extend(records)
        reader._iteration = self if records else None
        return bool(records)

    async def aclose(self) -> None:
        """Leave it: what is not done comes again."""
        if self._reader._iteration is self and not self._reader._closed:
            self._reader._settle()
