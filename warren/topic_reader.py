"""Reader: a member of a consumer group that reads a topic, or a reader that reads all of it for itself.

*Shared*: the topic's queues are divided over the group's members in this process, and again whenever one comes or goes.
What a member has read and not committed when it goes is read again by another one: at least once, in order for each
queue. A group's messages that are to be tried again (``%RETRY%group``) come to its readers too.

*Broadcast*: the reader reads every queue and keeps by itself how far it is (:attr:`Reader.positions`).

Committing. With ``auto_commit`` what :meth:`Reader.read` returned counts as done when it is called again, or the reader
is closed; of an iteration, each record when the next one is asked for. Otherwise the records are committed by whoever
reads them.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import attrs

from actors import topic_messages as tm
from actors.dispatch_actor import has_arrived
from actors.engines.topics.consumer_group import BroadcastPosition, Place, Taken
from actors.engines.topics.errors import MemberError, QueueLostError
from actors.engines.topics.names import dead_letter_topic, retry_topic
from actors.engines.topics.retry import sent_back
from actors.future import Confirm
from actors.running_topics import RunningTopics
from msg_store.commit_log_format import Record
from warren.process_bound import ProcessBound
from warren.topic_lookup import TagFilter, bounds_of, read_taken
from warren.topic_record import TopicRecord

if TYPE_CHECKING:
    from warren.node import Node

_LOG = logging.getLogger("warren.topics")
_BATCH: Final = 256
_numbers = itertools.count(1)


@attrs.define(eq=False)
class Claim:
    """What was taken from one queue in one go, and how far that is done."""

    reader: Reader
    topic: str
    taken: Taken
    done: int
    """Queue offset of the first that is not done."""

    def commit(self, queue_offset: int) -> None:
        """Everything before this queue offset is done; raises :class:`QueueLostError`."""
        self.done = max(self.done, queue_offset)
        self.reader._commit([self])

    def send_back(self, record: Record, delay_level: int) -> None:
        """Try it again later."""
        self.reader._send_back(record, delay_level)


class Reader(ProcessBound):
    """Reads a topic for a group, for one thread at a time. Made by :meth:`warren.Topic.reader`; to be closed."""

    def __init__(
        self,
        node: Node,
        topic: str,
        group: str,
        *,
        broadcast: bool,
        tags: str | Iterable[str] | None,
        auto_commit: bool,
        consume_from: Place | Mapping[int, int],
        positions: Mapping[int, int] | None,
    ) -> None:
        self._node = node
        self.topic = topic
        self.group = group
        self.name = f"{group}-{next(_numbers)}"
        self.skipped = 0
        """Messages that had expired before they could be read."""
        self._auto_commit = auto_commit
        self._consume_from = consume_from
        self._topics = [topic] if broadcast else [topic, retry_topic(group)]
        self._tags = TagFilter.of(tags)
        self._claims: list[Claim] = []
        self._closed = False
        self._running: RunningTopics | None = None
        self._broadcast: BroadcastPosition | None = None
        if broadcast:
            self._broadcast = BroadcastPosition(node.topics()[topic], dict(positions or {}))
            self._broadcast.start(bounds_of(self._topics_now(), topic), consume_from)
        else:
            self._topics_now()

    @property
    def positions(self) -> dict[int, int]:
        """Of a broadcast reader: the queue offset that it reads next, by queue. To be kept, and handed in again."""
        return {} if self._broadcast is None else dict(self._broadcast.positions)

    @property
    def queues(self) -> list[int]:
        """The queues of the topic that are this reader's at the moment."""
        if self._broadcast is not None:
            return list(self._broadcast.positions)
        groups = self._topics_now().ask_groups(tm.GetGroups())
        assigned: list[int] = groups[self.topic][self.group]["members"].get(self.name, [])
        return assigned

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, max_records: int = _BATCH, timeout: float | None = 0.0) -> list[TopicRecord]:
        """The next messages; waits up to ``timeout`` seconds (``None``: for ever) where there are none."""
        if self._auto_commit:
            self._finish()
        return self._read(max_records, timeout)

    def _read(self, max_records: int, timeout: float | None) -> list[TopicRecord]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            running = self._topics_now()
            arrival = running.dispatcher.arrivals.wait_for(set(self._topics), self._node.pool)
            try:
                while taken := self._take(running, max_records):
                    records = [record for claim in taken for record in self._records(running, claim)]
                    if records:
                        return records
                    self._commit(taken)  # nothing of these is for us
                remaining = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                if remaining == 0.0:
                    return []
                if not has_arrived(arrival, remaining):
                    return []
            finally:
                running.dispatcher.arrivals.forget(set(self._topics), arrival)

    def __iter__(self) -> Iterator[TopicRecord]:
        """Messages one by one, for ever."""
        return self.records(timeout=None)

    def records(self, max_records: int | None = None, timeout: float | None = 0.0) -> Iterator[TopicRecord]:
        """Messages one by one, up to ``max_records``, until none came for ``timeout`` seconds (``None``: for ever)."""
        left = max_records
        if self._auto_commit:
            self._finish()
        while left is None or left > 0:
            records = self._read(_BATCH if left is None else min(left, _BATCH), timeout)
            if not records:
                return
            try:
                for record in records:
                    yield record
                    self._one_done(record)
                if self._auto_commit:
                    self._finish()
            finally:
                self._hand_back()
            left = None if left is None else left - len(records)

    def _take(self, running: RunningTopics, max_records: int) -> list[Claim]:
        running.catch_up()
        if self._broadcast is not None:
            found = [(self.topic, one) for one in self._broadcast.take(max_records, bounds_of(running, self.topic))]
        else:
            found = running.ask_groups(tm.Take(self._topics, self.group, self.name, max_records))
        claims = [Claim(self, topic, taken, taken.queue_offset) for topic, taken in found]
        skipped = sum(claim.taken.skipped for claim in claims)
        if skipped:
            self.skipped += skipped
            _LOG.warning("group %s, topic %s: %d messages expired unread", self.group, self.topic, skipped)
        self._claims += claims
        return claims

    def _records(self, running: RunningTopics, claim: Claim) -> Iterator[TopicRecord]:
        is_retry = claim.topic != self.topic
        for record in read_taken(running, claim.topic, claim.taken, self._tags, is_retry=is_retry):
            yield TopicRecord(record, claim)

    # ── being done ──────────────────────────────────────────────────────────────────────────────────────────────

    def _one_done(self, record: TopicRecord) -> None:
        claim = record._claim
        if claim is not None:
            claim.done = max(claim.done, record.queue_offset + 1)

    def commit(self) -> None:
        """Everything that was read is done. Raises :class:`QueueLostError` where queues went to others meanwhile."""
        for claim in self._claims:
            claim.done = claim.taken.end
        claims, self._claims = self._claims, []
        self._commit(claims)

    def _finish(self) -> None:
        """As :meth:`commit`; what is somebody else's now is only noted."""
        try:
            self.commit()
        except QueueLostError as error:
            _LOG.info("%s", error)

    def _commit(self, claims: list[Claim]) -> None:
        if self._broadcast is not None:
            return
        done = [(one.topic, one.taken.queue_id, one.done, one.taken.claim) for one in claims]
        if done:
            lost = self._topics_now().ask_groups(tm.CommitOffsets(self.group, self.name, done))
            if lost:
                raise QueueLostError("; ".join(lost))

    def _hand_back(self) -> None:
        """What was taken and not done comes again; what is done is committed."""
        claims, self._claims = self._claims, []
        if self._broadcast is not None:
            for claim in claims:
                self._broadcast.positions[claim.taken.queue_id] = min(
                    self._broadcast.positions[claim.taken.queue_id], claim.done
                )
            return
        try:
            if self._auto_commit:
                self._commit(claims)
            for claim in claims:
                if claim.done < claim.taken.end:
                    message = tm.HandBack(self.group, self.name, claim.topic, claim.taken, claim.done)
                    self._topics_now().ask_groups(message)
        except (QueueLostError, MemberError) as error:
            _LOG.info("%s", error)

    def _send_back(self, record: Record, delay_level: int) -> None:
        running = self._topics_now()
        batch = sent_back(record, self.group, running.store.settings, delay_level=delay_level)
        if batch.topic == dead_letter_topic(self.group):
            self._node.change(lambda actor: actor.declare_topic(batch.topic, 1))
        confirm = Confirm(running.log)
        running.log.hand_over(tm.AppendBatches([batch], confirm), 1)
        confirm.wait()

    # ── the group ───────────────────────────────────────────────────────────────────────────────────────────────

    def _topics_now(self) -> RunningTopics:
        """The topics that run; of those that were opened anew this reader becomes a member again."""
        if self._closed:
            raise MemberError(f"the reader {self.name!r} is closed")
        self._node.check_process()
        running = self._node.running_topics()
        if running is not self._running:
            if self._broadcast is None and self.group:
                for topic in self._topics[1:]:
                    self._node.change(lambda actor, topic=topic: actor.declare_topic(topic, 1))  # type: ignore[misc]
                self._claims = []
                running.ask_groups(tm.JoinGroup(self._topics, self.group, self.name, self._consume_from))
            self._running = running
        return running

    def close(self) -> None:
        """Leave the group; with ``auto_commit`` what was read is done."""
        if self._closed:
            return
        try:
            if self._auto_commit:
                self._finish()
        finally:
            running, self._closed = self._running, True
            if self._broadcast is None and running is not None and not running.groups.actor_stopped.is_set():
                running.ask_groups(tm.LeaveGroup(self._topics, self.group, self.name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._auto_commit = False  # what was being worked on is not done
        self.close()
