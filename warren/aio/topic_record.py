"""What a reader for coroutines hands out: messages, and the claims that they were taken with.

A :class:`Claim` is what was taken from one queue in one go. Two places in it, both queue offsets: up to *handed out*
the messages are with whoever reads, up to *done* he is through with them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import attrs

from warren.actors.engines.topics.consumer_group import Taken
from warren.actors.engines.topics.errors import TopicError
from warren.actors.running_topics import RunningTopics
from warren.msg_store.commit_log_format import Record
from warren.msg_store.packed_record import PackedRecord
from warren.topic_record import StoredMessage

if TYPE_CHECKING:
    from warren.aio.topic_reader import Reader


class TopicRecord(StoredMessage):
    """A message that was read."""

    __slots__ = ("_after", "_claim")

    def __init__(self, stored: Record | PackedRecord, claim: Claim | None = None, after: int = 0) -> None:
        super().__init__(stored)
        self._claim = claim
        self._after = after  # the next place in its queue that is anything to this reader

    async def commit(self) -> None:
        """It, and all before it in its queue, are done. Raises :class:`QueueLostError` where the queue went to another
        member meanwhile: that one gets them again."""
        claim = self._of()
        claim.done = max(claim.done, self._after)
        await claim.reader._commit([(claim, self._after)])

    async def retry(self, delay_level: int = 0) -> None:
        """Have it again later, or as a dead letter after the last attempt; for this attempt it is done.

        ``delay_level`` 0: each time later; negative: to the dead letters at once. Comes back when that is safe.
        """
        await self._of().reader._send_back(self.record, delay_level)

    def _of(self) -> Claim:
        if self._claim is None:
            raise TopicError("the record was not read for a group")
        return self._claim


@attrs.define(eq=False)
class Claim:
    """What was taken from one queue in one go."""

    reader: Reader
    running: RunningTopics
    topic: str
    taken: Taken
    done: int = attrs.field(init=False)
    handed_out: int = attrs.field(init=False)
    passed_over: int = attrs.field(default=0, init=False)
    """To there nothing behind its end is for the reader; 0 where nothing was found out yet."""
    is_iterated: bool = attrs.field(default=False, init=False)
    """Whether its messages are handed out one by one; else they were in one go."""

    def __attrs_post_init__(self) -> None:
        self.done = self.handed_out = self.taken.queue_offset

    @property
    def place(self) -> tuple[str, int]:
        """Topic and queue."""
        return self.topic, self.taken.queue_id

    def end_at(self, queue_offset: int) -> None:
        """What lies from there on was handed back."""
        self.taken = attrs.evolve(self.taken, count=queue_offset - self.taken.queue_offset)
        self.handed_out = min(self.handed_out, queue_offset)
        self.passed_over = 0

    def passed_by(self, queue_offset: int) -> int:
        """What is done where this place is."""
        return queue_offset if queue_offset < self.taken.end else max(queue_offset, self.passed_over)

    def records(self, found: list[PackedRecord]) -> list[TopicRecord]:
        """What was read of it. Messages that its tags leave out go with the one before."""
        after = [record.queue_offset for record in found[1:]]
        return [TopicRecord(*one) for one in zip(found, itertools.repeat(self), [*after, self.taken.end], strict=False)]
