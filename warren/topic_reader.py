"""Reader: a member of a consumer group that reads a topic, or a reader that reads all of it for itself.

*Shared*: the topic's queues are divided over the group's members in this process, and again whenever one comes or goes.
What a member has read and not committed when it goes is read again by another one: at least once, in order for each
queue. A group's messages that are to be tried again (``%RETRY%group``) come to its readers too.

*Broadcast*: the reader reads every queue for itself, as a group of one: how far it is, is kept for its group and its
instance, the number among the group's readers.

Committing. With ``auto_commit`` what :meth:`Reader.read` returned counts as done when it is called again, or the reader
is closed; of an iteration, each record when the next one is asked for. Otherwise the records are committed by whoever
reads them, one by one or (:meth:`Reader.commit`) all that were read.

Topics that failed are opened anew: a read that waits then fails with the reason, and so does the commit of what was
read before, which is read again; with the next call the reader is a member again.

A message that is damaged is an error where its turn comes, once what stands before it was handed out. It comes again
until the group is sought behind it (:meth:`warren.Topic.seek`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, Self

import attrs

from warren.actors import topic_messages as tm
from warren.actors.dispatch_actor import has_arrived
from warren.actors.engines.topics.consumer_group import StartOffset, Taken
from warren.actors.engines.topics.errors import MemberError, QueueLostError, TopicError
from warren.actors.engines.topics.names import dead_letter_topic, retry_topic
from warren.actors.engines.topics.retry import sent_back
from warren.actors.future import Confirm
from warren.actors.running_topics import RunningTopics
from warren.broadcast import Broadcast, check_reader_names
from warren.msg_store.commit_log_format import Record
from warren.process_bound import ProcessBound
from warren.running_node import RunningNode
from warren.steps import run
from warren.storage.errors import DataError, WarrenError
from warren.topic_lookup import TagFilter, read_taken
from warren.topic_record import TopicRecord

_LOG = logging.getLogger("warren.topics")
_BATCH: Final = 256
_numbers = itertools.count(1)


@attrs.define(eq=False)
class Claim:
    """What was taken from one queue in one go, and how far that is done."""

    reader: Reader
    running: RunningTopics
    topic: str
    taken: Taken
    done: int
    """Queue offset of the first that is not done."""
    offered: list[int] = attrs.Factory(list)
    """Queue offsets of those that are for us."""

    @property
    def place(self) -> tuple[str, int]:
        """Topic and queue."""
        return self.topic, self.taken.queue_id

    def do(self, queue_offset: int) -> int:
        """Everything before this queue offset is done, and what is not for us behind it; up to where that is."""
        at = bisect_left(self.offered, queue_offset)
        stop = self.offered[at] if at < len(self.offered) else self.taken.end
        self.done = max(self.done, stop)
        return stop

    def end_at(self, queue_offset: int) -> None:
        """What lies from there on is handed back."""
        self.taken = attrs.evolve(self.taken, count=queue_offset - self.taken.queue_offset)
        self.done = min(self.done, queue_offset)

    def commit(self, queue_offset: int) -> None:
        """Everything before this queue offset is done; raises :class:`QueueLostError`."""
        self.reader._commit_one(self, self.do(queue_offset))

    def send_back(self, record: Record, delay_level: int) -> None:
        """Try it again later."""
        self.reader._send_back(record, delay_level)


class Reader(ProcessBound):
    """Reads a topic for a group, for one thread at a time. Made by :meth:`warren.Topic.reader`; to be closed."""

    def __init__(
        self,
        node: RunningNode,
        topic: str,
        group: str,
        *,
        broadcast: bool,
        tags: str | Iterable[str] | None,
        auto_commit: bool,
        consume_from: StartOffset | Mapping[int, int],
        positions: Mapping[int, int] | None,
        instance_name: str | None,
    ) -> None:
        check_reader_names(group, instance_name, broadcast=broadcast)
        self._node = node
        self.topic = topic
        self.group = group
        self.name = f"{group}-{next(_numbers)}"
        self.skipped = 0
        """Messages that had expired before they could be read."""
        self._auto_commit = auto_commit
        self._consume_from = consume_from
        self._topics = [topic] if broadcast else list(dict.fromkeys((topic, retry_topic(group))))
        self._tags = TagFilter.of(tags)
        self._read_last: dict[tuple[str, int], Claim] = {}
        """Of each queue what was read last and is not committed: to commit that is to commit all before it."""
        self._closed = False
        self._running: RunningTopics | None = None
        self._broadcast = Broadcast(instance_name, positions) if broadcast else None
        self._group = group
        """What it is called among groups: a broadcast reader has one of its own."""
        self._topics_now()

    @property
    def positions(self) -> dict[int, int]:
        """Of a broadcast reader: the queue offset that it reads next, by queue."""
        return {} if self._broadcast is None else dict(self._broadcast.places)

    def queues(self) -> list[int]:
        """The queues of the topic that are this reader's at the moment."""
        if self._broadcast is not None:
            return list(range(self._topics_now().table.queues(self.topic) or 1))
        groups = self._topics_now().ask_groups(tm.GetGroups())
        assigned: list[int] = groups[self.topic][self.group]["members"].get(self.name, [])
        return assigned

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, max_records: int = _BATCH, timeout: float | None = 0.0) -> list[TopicRecord]:
        """The next messages; waits up to ``timeout`` seconds (``None``: for ever) where there are none."""
        if self._auto_commit:
            self._finish()
        records, claims = self._read(max_records, timeout)
        self._keep(claims)
        return records

    def _read(self, max_records: int, timeout: float | None) -> tuple[list[TopicRecord], list[Claim]]:
        deadline = None if timeout is None else time.monotonic() + timeout
        topics = set(self._topics)
        while True:
            running = self._topics_now()
            arrival = running.dispatcher.arrivals.wait_for(topics, self._node.pool)
            try:
                while taken := self._take(running, max_records):
                    records = self._records(taken)
                    self._pass_over([claim for claim in taken if claim.taken.count and not claim.offered])
                    if records:
                        return records, [claim for claim in taken if claim.offered]
                remaining = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                if remaining == 0.0 or not has_arrived(arrival, remaining):
                    return [], []
            finally:
                running.dispatcher.arrivals.forget(topics, arrival)

    def __iter__(self) -> Iterator[TopicRecord]:
        """Messages one by one, for ever."""
        return self.records(timeout=None)

    def records(self, max_records: int | None = None, timeout: float | None = 0.0) -> Iterator[TopicRecord]:
        """Messages one by one, up to ``max_records``, until none came for ``timeout`` seconds (``None``: for ever)."""
        left = max_records
        if self._auto_commit:
            self._finish()
        while left is None or left > 0:
            records, claims = self._read(_BATCH if left is None else min(left, _BATCH), timeout)
            if not records:
                return
            try:
                for record in records:
                    yield record
                    if record._claim is not None:
                        record._claim.do(record.queue_offset + 1)
            finally:
                self._settle(claims)
            left = None if left is None else left - len(records)

    def _take(self, running: RunningTopics, max_records: int) -> list[Claim]:
        running.catch_up()
        found = running.ask_groups(tm.Take(self._topics, self._group, self.name, max_records))
        if self._broadcast is not None:
            self._broadcast.places.update((taken.queue_id, taken.end) for _, taken in found)
        skipped = sum(taken.skipped for _, taken in found)
        if skipped:
            self.skipped += skipped
            _LOG.warning("group %s, topic %s: %d messages expired unread", self.group, self.topic, skipped)
        return [Claim(self, running, topic, taken, taken.queue_offset) for topic, taken in found]

    def _records(self, claims: list[Claim]) -> list[TopicRecord]:
        """The messages of what was taken that are for us; up to one that cannot be read, if that is not the first."""
        records: list[TopicRecord] = []
        for number, claim in enumerate(claims):
            is_retry = claim.topic != self.topic
            try:
                for record in read_taken(claim.running, claim.topic, claim.taken, self._tags, is_retry=is_retry):
                    claim.offered.append(record.queue_offset)
                    records.append(TopicRecord(record, claim))
            except BaseException as error:
                reached = claim.offered[-1] + 1 if claim.offered else claim.taken.queue_offset
                self._give_back([(claim, reached), *((one, one.taken.queue_offset) for one in claims[number + 1 :])])
                if records and isinstance(error, WarrenError):
                    return records
                if isinstance(error, DataError):
                    where = f"queue {claim.taken.queue_id} of {claim.topic}, from message {reached} on"
                    raise DataError(error.path, error.offset, f"{error.reason} ({where})") from error
                raise
            if not claim.offered:
                claim.done = claim.taken.end
        return records

    # ── being done ──────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self) -> None:
        """Everything that was read is done. Raises :class:`QueueLostError` where queues went to others meanwhile."""
        claims, self._read_last = list(self._read_last.values()), {}
        for claim in claims:
            claim.done = claim.taken.end
        self._commit(claims)

    def _finish(self) -> None:
        """As :meth:`commit`; what is somebody else's now is only noted."""
        try:
            self.commit()
        except QueueLostError as error:
            _LOG.info("%s", error)

    def _commit_one(self, claim: Claim, stop: int) -> None:
        """Up to there, wherever an iteration over the claim is meanwhile."""
        last = self._read_last.get(claim.place)
        try:
            self._commit_up_to([(claim, stop)])
        finally:
            if last is not None and last.taken.claim == claim.taken.claim and last.taken.end <= stop:
                self._read_last.pop(claim.place, None)

    def _commit(self, claims: list[Claim]) -> None:
        self._commit_up_to([(claim, claim.done) for claim in claims])

    def _commit_up_to(self, stops: list[tuple[Claim, int]]) -> None:
        if not stops:
            return
        running = self._topics_now()
        lost = [f"{one.topic}: the topics were opened anew since" for one, _ in stops if one.running is not running]
        done = [(*one.place, stop, one.taken.claim) for one, stop in stops if one.running is running]
        if done:
            lost += running.ask_groups(tm.CommitOffsets(self._group, self.name, done))
        if lost:
            raise QueueLostError("; ".join(lost))

    def _keep(self, claims: list[Claim]) -> None:
        self._read_last.update((claim.place, claim) for claim in claims if claim.taken.count)

    def _pass_over(self, claims: list[Claim]) -> None:
        """Nothing of these is for us: they are done, unless something that was read before them is not."""
        for claim in claims:
            if claim.place in self._read_last:
                self._keep([claim])
                continue
            try:
                self._commit([claim])
            except QueueLostError as error:
                _LOG.info("%s", error)

    def _settle(self, claims: list[Claim]) -> None:
        """The end of an iteration: what was not done comes again; what was is committed, or kept to be."""
        self._give_back([(claim, claim.done) for claim in claims if claim.done < claim.taken.end])
        self._keep(claims)
        if self._auto_commit:
            try:
                self._finish()
            except WarrenError as error:  # the reader or the node was closed meanwhile, or the topics are down
                _LOG.warning("%s: what was done is read again: %s", self.name, error)

    def _give_back(self, claims: list[tuple[Claim, int]]) -> None:
        """Messages of these, each from that queue offset on, are read again. What cannot be told any more (the queue is
        somebody else's, the topics were opened anew) is so by itself."""
        for claim, queue_offset in claims:
            message = tm.HandBack(self._group, self.name, claim.topic, claim.taken, queue_offset)
            claim.end_at(queue_offset)
            if self._broadcast is not None:
                self._broadcast.go_back(claim.taken.queue_id, queue_offset)
            if not claim.running.groups.actor_stopped.is_set():
                try:
                    claim.running.ask_groups(message)
                except WarrenError as error:
                    _LOG.info("%s", error)

    def _send_back(self, record: Record, delay_level: int) -> None:
        if self._broadcast is not None:
            raise TopicError("a broadcast reader has no group that could have a message again")
        running = self._topics_now()
        batch = sent_back(record, self.group, running.store.settings, delay_level=delay_level)
        running.store.check(batch)
        if batch.topic == dead_letter_topic(self.group):
            run(self._node.change(lambda actor: actor.declare_topic(batch.topic, 1)))
        confirm = Confirm(running.log)
        running.log.hand_over([batch], confirm)
        confirm.wait()

    # ── the group ───────────────────────────────────────────────────────────────────────────────────────────────

    def _topics_now(self) -> RunningTopics:
        """The topics that run; of those that were opened anew this reader becomes a member again."""
        if self._closed:
            raise MemberError(f"the reader {self.name!r} is closed")
        running = run(self._node.topics())
        if running is not self._running:
            running.catch_up()  # or queues would seem to end too early
            self._read_last = {}
            if self._broadcast is None:
                for topic in self._topics[1:]:
                    run(self._node.change(lambda actor, topic=topic: actor.declare_topic(topic, 1)))  # type: ignore[misc]
                running.ask_groups(tm.JoinGroup(self._topics, self._group, self.name, self._consume_from))
            else:
                joining = self._broadcast.joining(self.topic, self.group, self.name, self._consume_from)
                self._group, self._broadcast.places = running.ask_groups(joining)
            self._running = running
        return running

    def close(self) -> None:
        """Leave the group; with ``auto_commit`` what was read is done."""
        if self._closed:
            return
        try:
            if self._auto_commit and self._read_last:
                self._finish()
        except WarrenError as error:
            _LOG.warning("%s: what was read last is read again: %s", self.name, error)
        finally:
            running, self._closed = self._running, True
            if running is not None and not running.groups.actor_stopped.is_set():
                with contextlib.suppress(WarrenError):  # it stops in this moment
                    running.ask_groups(tm.LeaveGroup(self._topics, self._group, self.name))

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._running is not None:
            self._running.groups.let_go(tm.LeaveGroup(self._topics, self._group, self.name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._auto_commit = False  # what was being worked on is not done
        self.close()
