"""The messages that a reader of a topic reads: they can be committed or retried, in batches or one by one.

:mod:`warren.verbs.topics.reader_verbs` describes which messages those are, and how they are handled.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

from warren.actors.engines.topics.errors import MemberError, TopicError
from warren.handles.lazy_sequence import LazySequence
from warren.msg_store.commit_log.packed_records import PackedRecords
from warren.values.topic_record import StoredMessage
from warren.verbs.instrumentation import HOOK
from warren.verbs.steps import Steps
from warren.verbs.topics.reader_verbs import BATCH, Claim, Read, ReaderVerbs


@attrs.frozen
class RecordVerbs:
    """The verbs of one message that was read."""

    claim: Claim
    message: StoredMessage
    after: int

    def commit(self) -> Steps[None]:
        """Commit it, and all before it in its queue. Raises :class:`QueueLostError` if the queue has moved to another
        member: that one gets them again."""
        self.claim.done = max(self.claim.done, self.after)
        yield from self.claim.reader.commit_up_to([(self.claim, self.after)])

    def retry(self, delay_level: int = 0) -> Steps[None]:
        """Schedule it again, or as a dead letter after the last attempt; for this attempt it is done.

        ``delay_level`` 0: each time later; negative: to the dead letters at once. Returns when that is safe.
        """
        yield from self.claim.reader.send_back(self.message.record, delay_level)


class ReadMessage(StoredMessage):
    """A message, and the claim that it was taken with if it was read for a group."""

    __slots__ = ("_claim",)

    def __init__(
        self,
        records: PackedRecords,
        row: int = 0,
        body: bytes | None = None,
        claim: Claim | None = None,
    ) -> None:
        self._records = records  # what the base class sets, without a call: one instance is made per message
        self._row = row
        self._body = records.bodies[row] if body is None else body
        self._unpacked = self._properties = None
        self._claim = claim

    @property
    def _after(self) -> int:
        """The next offset in its queue that is for this reader."""
        behind = self._row + 1
        offsets = self._records.queue_offsets
        return offsets[behind] if behind < len(offsets) else self._records.end

    @property
    def _verbs(self) -> RecordVerbs:
        if self._claim is None:
            raise TopicError("the record was not read for a group")
        return RecordVerbs(self._claim, self, self._after)

    def _handed_out(self) -> None:
        if self._claim is not None:
            self._claim.handed_out = self._after

    def _done(self) -> None:
        if self._claim is not None and self._claim.done < self._after:
            self._claim.done = self._after


R = TypeVar("R", bound=ReadMessage)
NewRecord = Callable[[PackedRecords, int, bytes, Claim], R]


class RecordBatch(LazySequence[R], Generic[R]):
    """The result of ``Reader.read``: records, in order. Equal to a list of the same records.

    Records that are not for the reader are committed with the one before.
    """

    __slots__ = ("_new", "_read")

    def __init__(self, new: NewRecord[R], read: Read) -> None:
        super().__init__(sum([len(records) for _, batches in read for records in batches]))
        self._new = new
        self._read = read

    def _make(self) -> list[R]:
        messages: list[R] = []
        for claim, batches in self._read:
            end = claim.taken.end
            for records in reversed(batches):
                records.end, end = end, records.queue_offsets[0]
            for records in batches:
                rows = range(len(records))
                messages += map(self._new, itertools.repeat(records), rows, records.bodies, itertools.repeat(claim))
        return messages

    @property
    def bodies(self) -> list[bytes]:
        """The payloads of all, as they were sent."""
        bodies: list[bytes] = []
        for _, parts in self._read:
            for part in parts:
                bodies += part.sent_bodies() if part.has_compressed else part.bodies
        return bodies


class Iteration(Generic[R]):
    """Messages one by one: one is done when the next one is requested. Ends when the reader is closed.

    A read, or another iteration, takes over what this one has not handed out; the next call then starts over.
    """

    def __init__(self, reader: ReaderVerbs, new: NewRecord[R], max_records: int | None, timeout: float | None) -> None:
        self._reader = reader
        self._new = new
        self._left = sys.maxsize if max_records is None else max_records
        self._timeout = timeout
        self._claims: list[Claim] = []
        self._batch: deque[R] = deque()
        self._current: R | None = None

    def take_now(self) -> R | None:
        """Return the next message of the batch, if there is one."""
        self.finish()
        if not self._batch or self._reader.iteration is not self:
            return None
        record = self._current = self._batch.popleft()
        record._handed_out()
        self._left -= 1
        if HOOK.instrumentation is not None:
            HOOK.instrumentation.handed_out(record)
        return record

    def finish(self) -> None:
        """Mark the current message as done."""
        record, self._current = self._current, None
        if record is not None and self._reader.iteration is self:  # else it was handed back
            record._done()

    def next_batch(self) -> Steps[bool]:
        """Fetch the next batch; return whether there is one before the timeout."""
        reader = self._reader
        self._batch.clear()
        try:
            if self._left > 0:
                read = yield from reader.go_on(min(self._left, BATCH), self._timeout)
            else:
                yield from reader.begin()
                reader.settle()
                read = []
        except MemberError:
            if reader.closed:
                return False
            raise
        self._claims = [claim for claim, _ in read]
        for claim in self._claims:
            claim.is_iterated = True
        self._batch.extend(RecordBatch(self._new, read))
        reader.iteration = self if read else None
        return bool(read)

    def leave(self, *, tells: bool = True) -> None:
        """End the iteration: messages not done come again. ``tells``: commit those that are, not for finalisers."""
        reader = self._reader
        if reader.iteration is self:
            reader.iteration = None
            for claim in self._claims:
                claim.handed_out = min(claim.handed_out, claim.done)
            if tells and reader.auto_commit:
                reader.tell_done(self._claims)
