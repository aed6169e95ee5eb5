"""The actor of the transactions: it knows the undecided half messages, and has decisions appended.

It follows the two topics that hold transactions (:mod:`warren.actors.engines.topics.transactions`) as they are
dispatched, so its knowledge is the same for new messages and for those from before a restart. A commit appends the
message to its topic and then the decision, at once; a rollback appends only the decision. While that is on its way, the
transaction cannot be decided again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from warren.actors.engines.topics.errors import TransactionError
from warren.actors.engines.topics.names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from warren.actors.engines.topics.reading import read_sound_records
from warren.actors.engines.topics.topic_store import TopicStore
from warren.actors.engines.topics.transactions import (
    HALF_QUEUE_ID,
    Half,
    PendingTransactions,
    committed,
    decision,
    named_by,
)
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.runtime.future import Confirm, Future
from warren.actors.topics.groups_actor import GroupsActor
from warren.actors.topics.log_intake import LogIntake
from warren.actors.topics.topic_part import Autosave, TopicPart
from warren.msg_store.commit_log.commit_log_format import Record, RecordError
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.storage.errors import NoRoomError

_LOG = logger("topics")
_AT_A_TIME: Final = 1024


class TransactionsActor(TopicPart):
    """Owns the pending half messages."""

    def __init__(self, context: NodeContext, store: TopicStore, *, log: LogIntake, groups: GroupsActor) -> None:
        super().__init__(context, f"the transactions of {store.directory}")
        self._store = store
        self._log = log
        self._groups = groups
        self._pending = PendingTransactions(
            *(
                groups.consumer_groups.offset(topic, TRANSACTION_GROUP, HALF_QUEUE_ID)
                for topic in (HALF_TOPIC, OP_TOPIC)
            )
        )
        self._next_half, self._next_op = self._pending.half_offset, self._pending.op_offset
        self._deciding: set[int] = set()
        self._autosave = Autosave(self, self._save)

    def on_start(self) -> None:
        self.follow()

    def pending(self) -> tuple[Half, ...]:
        """Return the undecided half messages."""
        self.follow()
        return self._pending.pending()

    # ── following ───────────────────────────────────────────────────────────────────────────────────────────────

    def follow(self) -> None:
        """Take in newly dispatched half messages, then decisions."""
        halves = self._store.queues.get((HALF_TOPIC, HALF_QUEUE_ID))
        decisions = self._store.queues.get((OP_TOPIC, HALF_QUEUE_ID))
        # The dispatcher goes on meanwhile. A half message is dispatched before its decision.
        last_op = 0 if decisions is None else decisions.max_offset
        last_half = 0 if halves is None else halves.max_offset
        if halves is not None:
            for record in self._records(halves, max(self._next_half, halves.min_offset), last_half):
                self._take_half(record)
            self._next_half = last_half
        if decisions is not None:
            for record in self._records(decisions, max(self._next_op, decisions.min_offset), last_op):
                half_offset = named_by(record)
                self._pending.decided(record.queue_offset, half_offset)
                if half_offset is not None:
                    self._deciding.discard(half_offset)
            self._next_op = last_op
        for half in self._pending.expired(_minimum(halves), _minimum(decisions)):
            _LOG.warning(
                "%s: half message %d for %s expired undecided",
                self.describe(),
                half.queue_offset,
                half.topic,
                extra=log_event("topics_expired", part=self.describe(), topic=half.topic, count=1),
            )
        self._autosave.arm(self._store.settings.flush_consumer_offset_interval)

    def _records(self, queue: ConsumeQueue, start: int, stop: int) -> Iterator[Record]:
        for at in range(start, stop, _AT_A_TIME):
            entries = queue.entries(at, min(_AT_A_TIME, stop - at))
            records, damage = read_sound_records(self._store.commit_log, entries)
            for error in damage:
                _LOG.error(
                    "%s: skipped: %s",
                    self.describe(),
                    error,
                    extra=log_event("topics_unreadable", error, part=self.describe()),
                )
            yield from records

    def _take_half(self, record: Record) -> None:
        try:
            self._pending.prepared(Half.of(record))
        except RecordError as error:
            _LOG.warning(
                "%s: %s", self.describe(), error, extra=log_event("topics_unreadable", error, part=self.describe())
            )
            self._pending.passed_over(record.queue_offset)

    # ── deciding ────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(self, half_offset: int, *, commit: bool) -> Future:
        """Append a decision; return a future that is answered when it is safe."""
        self.follow()
        is_behind = self._store.dispatched < self._store.commit_log.end
        if half_offset >= self._next_half and is_behind:  # the disk had no room for its entry
            raise NoRoomError(f"half message {half_offset} cannot be decided before there is room on the disk")
        half = self._pending.get(half_offset)
        if half.queue_offset in self._deciding:
            raise TransactionError(f"half message {half.queue_offset} is being decided already")
        record = self._store.commit_log.record(half.physical_offset, half.size)
        op = decision(record, self._context.clock.wall_us() // 1000, record.store_host)
        batches = [committed(record), op] if commit else [op]
        self._deciding.add(half.queue_offset)
        confirm = Confirm(self._log)
        confirm.on_done(lambda future: self._answered(future, half.queue_offset))
        self._log.hand_over(batches, confirm)
        self._log.hurry_up()  # the caller waits for it, and cannot know when it is handed over
        return confirm

    def _answered(self, confirm: Future, half_offset: int) -> None:
        """Called in the CommitLog's turn."""
        if confirm.error is not None:
            self.call_soon(lambda: self._deciding.discard(half_offset))  # the decision may be made again

    def _save(self) -> None:
        """Note up to where the next start need not read both topics; saved with the groups' offsets."""
        for topic, offset in ((HALF_TOPIC, self._pending.half_offset), (OP_TOPIC, self._pending.op_offset)):
            note = functools.partial(self._groups.consumer_groups.note, topic, TRANSACTION_GROUP, HALF_QUEUE_ID, offset)
            self._groups.call_soon(note)

    def on_turn_end(self) -> None:
        if self._context.check_invariants:
            self._pending.check_invariants()


def _minimum(queue: ConsumeQueue | None) -> int:
    return 0 if queue is None else queue.min_offset
