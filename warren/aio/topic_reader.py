"""Reader: the member of a consumer group of :mod:`warren.topic_reader`, for coroutines; one task at a time reads.

What is taken is asked of the groups' actor, and read from the files in the loop's default executor, a batch a hop;
between batches no thread is used. A reader that waits for messages is an entry in a list.

What was taken is a :class:`~warren.aio.topic_record.Claim`. With ``auto_commit`` what is done of it is committed as the
next batch is asked for, or when the reader is closed. What is not done when an iteration is left is handed back, and
comes again; so is what lies behind a damaged message.

A cancelled read has taken nothing. What the groups' actor had handed out for it goes back before the next one takes;
the queues are this member's alone, so nobody misses it meanwhile.

A reader that is forgotten, with all its records, without having been closed leaves its group by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from warren.actors import topic_messages as tm
from warren.actors.engines.topics.consumer_group import StartOffset, Taken
from warren.actors.engines.topics.errors import MemberError, QueueLostError, TopicError
from warren.actors.engines.topics.names import dead_letter_topic, retry_topic
from warren.actors.engines.topics.retry import sent_back
from warren.actors.future import Confirm, Future
from warren.actors.running_topics import RunningTopics
from warren.aio.bridge import answer, in_thread, run, safe, settled
from warren.aio.topic_record import Claim, TopicRecord
from warren.aio.topic_records import BATCH, Records
from warren.broadcast import Broadcast, check_reader_names
from warren.msg_store.commit_log_format import Record
from warren.msg_store.packed_record import PackedRecord
from warren.running_node import RunningNode
from warren.steps import ask
from warren.storage.errors import DataError
from warren.topic_lookup import TagFilter, offsets_at, read_taken
from warren.topic_record import Moment

_LOG = logging.getLogger("warren.topics")
_numbers = itertools.count(1)


class Reader:
    """Reads a topic for a group. Made by :meth:`warren.aio.Topic.reader`, for an ``async with``."""

    def __init__(
        self,
        node: RunningNode,
        topic: str,
        group: str,
        *,
        broadcast: bool,
        tags: str | Iterable[str] | None,
        auto_commit: bool,
        consume_from: StartOffset | Moment | Mapping[int, int],
        positions: Mapping[int, int] | None,
        instance_name: str | None,
    ) -> None:
        self._closed = False
        self._joined: RunningTopics | None = None
        check_reader_names(group, instance_name, broadcast=broadcast)
        self._node = node
        self.topic = topic
        self.group = group
        self.name = f"{group}-aio-{next(_numbers)}"
        self.skipped = 0
        """Messages that had expired before they could be read."""
        self._auto_commit = auto_commit
        self._consume_from = consume_from
        self._broadcast = Broadcast(instance_name, positions) if broadcast else None
        self._group = group
        """What it is called among groups: a broadcast reader has one of its own."""
        self._topics = [topic] if broadcast else list(dict.fromkeys((topic, retry_topic(group))))
        self._tags = TagFilter.of(tags)
        self._claims: dict[tuple[str, int], Claim] = {}  # of each queue the last one that is not all committed
        self._iteration: Records | None = None
        self._taking: Future | None = None
        self._arrival: Future | None = None

    # ── the group ───────────────────────────────────────────────────────────────────────────────────────────────

    async def begin(self) -> None:
        """Join the group, if it has not yet."""
        await self._now()

    async def _now(self) -> RunningTopics:
        """The topics that run; of those that were opened anew this reader becomes a member again."""
        self._check_open()
        running = await run(self._node.topics())
        if running is not self._joined:
            place = await self._first_place()
            self._claims.clear()
            self._iteration = self._taking = None
            await self._join(running, place)
            self._joined = running
        return running

    def _check_open(self) -> None:
        if self._closed:
            raise MemberError(f"the reader {self.name!r} is closed")

    async def _first_place(self) -> StartOffset | Mapping[int, int]:
        """Where a group begins that has never read the topic."""
        running = await run(self._node.caught_up())
        place = self._consume_from
        if isinstance(place, str | Mapping | int):
            return place
        queues = running.table.queues(self.topic) or 1
        self._consume_from = found = await in_thread(lambda: offsets_at(running, self.topic, queues, place))
        return found

    async def _join(self, running: RunningTopics, place: StartOffset | Mapping[int, int]) -> None:
        if self._broadcast is not None:
            joined = ask(running.groups, self._broadcast.joining(self.topic, self.group, self.name, place))
            try:
                self._group, self._broadcast.places = await answer(joined)
            except asyncio.CancelledError:
                joined.on_done(lambda done: self._leave_at_once(running, done))
                raise
            return
        await run(self._node.change(lambda actor: actor.declare_topic(self._topics[-1], 1)))
        joined = ask(running.groups, tm.JoinGroup(self._topics, self._group, self.name, place))
        try:
            await answer(joined)
        except asyncio.CancelledError:
            ask(running.groups, self._leaving())
            raise

    def _leave_at_once(self, running: RunningTopics, joined: Future) -> None:
        """Whoever wanted to read was cancelled; only now it is known as which instance."""
        if joined.error is None:
            ask(running.groups, tm.LeaveGroup(self._topics, joined.get()[0], self.name))

    def _leaving(self) -> tm.LeaveGroup:
        return tm.LeaveGroup(self._topics, self._group, self.name)

    @property
    def positions(self) -> dict[int, int]:
        """Of a broadcast reader: the queue offset that it reads next, by queue."""
        positions = {} if self._broadcast is None else dict(self._broadcast.places)
        for claim in self._claims.values() if positions else ():
            if claim.is_iterated:
                positions[claim.taken.queue_id] = min(positions[claim.taken.queue_id], claim.done)
        return positions

    async def queues(self) -> list[int]:
        """The queues of the topic that are this reader's at the moment."""
        running = await self._now()
        if self._broadcast is not None:
            return list(range(running.table.queues(self.topic) or 1))
        groups = await answer(ask(running.groups, tm.GetGroups()))
        assigned: list[int] = groups[self.topic][self.group]["members"].get(self.name, [])
        return assigned

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, max_records: int = BATCH, timeout: float | None = 0.0) -> list[TopicRecord]:
        """The next messages; waits up to ``timeout`` seconds (``None``: for ever) where there are none.

        With ``auto_commit`` those that the last call brought are done.
        """
        await self._now()
        self._settle()
        records = await self._read(max_records, timeout)
        for record in records:
            claim = record._of()
            claim.handed_out = claim.taken.end
        return records

    def records(self, max_records: int | None = None, timeout: float | None = 0.0) -> Records:
        """Messages one by one, up to ``max_records``, until none came for ``timeout`` seconds (``None``: for ever)."""
        return Records(self, max_records, timeout)

    def __aiter__(self) -> Records:
        """Messages one by one, for ever."""
        return self.records(timeout=None)

    async def _read(self, max_records: int, timeout: float | None) -> list[TopicRecord]:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            running = await self._now()
            arrivals, topics = running.dispatcher.arrivals, set(self._topics)
            self._arrival = arrival = arrivals.wait_for(topics)
            try:
                await run(self._node.caught_up())
                while claims := await self._take(running, max_records):
                    records = await self._read_claims(running, claims)
                    if records:
                        return records
                left = None if deadline is None else max(deadline - loop.time(), 0.0)
                if left == 0.0:
                    return []
                await settled(arrival, left)
            finally:
                self._arrival = None
                arrivals.forget(topics, arrival)

    async def _take(self, running: RunningTopics, max_records: int) -> list[Claim]:
        if self._taking is not None:  # a read that was cancelled has asked for it
            self._hand_back(self._claimed(running, await self._taken()))
        self._taking = ask(running.groups, tm.Take(self._topics, self._group, self.name, max_records))
        return self._claimed(running, await self._taken())

    async def _taken(self) -> list[tuple[str, Taken]]:
        taking = self._taking
        if taking is None:
            raise RuntimeError("nothing was asked for")
        await settled(taking)
        self._taking = None
        found: list[tuple[str, Taken]] = taking.get()
        return found

    def _claimed(self, running: RunningTopics, found: list[tuple[str, Taken]]) -> list[Claim]:
        skipped = sum(taken.skipped for _, taken in found)
        if skipped:
            self.skipped += skipped
            _LOG.warning("group %s, topic %s: %d messages expired unread", self.group, self.topic, skipped)
        if self._broadcast is not None:
            self._broadcast.places.update((taken.queue_id, taken.end) for _, taken in found)
        return [Claim(self, running, topic, taken) for topic, taken in found]

    async def _read_claims(self, running: RunningTopics, claims: list[Claim]) -> list[TopicRecord]:
        """The messages of these claims. What cannot be read, or is not wanted any more, is handed back."""
        try:
            found, error = await in_thread(lambda: self._read_files(running, claims))
            self._check_open()
        except BaseException:
            self._hand_back(claims)
            raise
        if error is not None:
            claim, records = claims[len(found) - 1], found[-1]
            claim.done = records[-1].queue_offset + 1 if records else claim.taken.queue_offset
            self._hand_back([claim, *claims[len(found) :]])
            claim.done = claim.handed_out = claim.taken.queue_offset
            if not any(found):
                where = f"queue {claim.taken.queue_id} of {claim.topic}, from message {claim.taken.end} on"
                raise DataError(error.path, error.offset, f"{error.reason} ({where})") from error
        read = list(zip(claims, found, strict=False))
        self._pass_over(running, [claim for claim, records in read if not records])
        self._claims.update((claim.place, claim) for claim, records in read if records)
        return [one for claim, records in read for one in claim.records(records)]

    def _read_files(
        self, running: RunningTopics, claims: list[Claim]
    ) -> tuple[list[list[PackedRecord]], DataError | None]:
        """In the executor: the messages of each claim, up to one that is damaged."""
        found: list[list[PackedRecord]] = []
        for claim in claims:
            found.append([])
            try:
                for record in read_taken(
                    running, claim.topic, claim.taken, self._tags, is_retry=claim.topic != self.topic
                ):
                    found[-1].append(record)
            except DataError as error:
                return found, error
        return found, None

    def _pass_over(self, running: RunningTopics, claims: list[Claim]) -> None:
        """Nothing of these is for this reader: they are done, with what it has of the same queue."""
        for claim in claims:
            claim.done = claim.taken.end
            if claim.place in self._claims:
                self._claims[claim.place].passed_over = claim.done
        self._tell_done(running, [claim for claim in claims if claim.place not in self._claims])

    # ── being done ──────────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self) -> None:
        """Everything that was read is done. Raises :class:`QueueLostError` where queues went to others meanwhile."""
        await self._now()
        claims = list(self._claims.values())
        for claim in claims:
            claim.done = claim.handed_out
        await self._commit([(claim, claim.done) for claim in claims])

    async def _commit(self, places: list[tuple[Claim, int]]) -> None:
        running = await self._now()
        if not places:
            return
        if any(claim.running is not running for claim, _ in places):
            raise QueueLostError(f"group {self.group!r}, topic {self.topic!r}: the topics were opened anew since")
        lost = await answer(self._ask_done(running, places))
        for claim, place in places:
            if place == claim.taken.end and self._claims.get(claim.place) is claim:
                del self._claims[claim.place]
        if lost:
            raise QueueLostError("; ".join(lost))

    def _ask_done(self, running: RunningTopics, places: list[tuple[Claim, int]]) -> Future:
        done = [(*one.place, one.passed_by(place), one.taken.claim) for one, place in places]
        return ask(running.groups, tm.CommitOffsets(self._group, self.name, done))

    def _tell_done(self, running: RunningTopics, claims: list[Claim]) -> None:
        """Without waiting: what is somebody else's now is only noted."""
        if claims:
            self._ask_done(running, [(claim, claim.done) for claim in claims]).on_done(_note_lost)

    def _settle(self, *, is_done: bool = True) -> None:
        """What was read in one go until now is done (with ``auto_commit`` and ``is_done``); an iteration is left."""
        claims = list(self._claims.values())
        self._iteration = None
        if self._auto_commit:
            for claim in claims if is_done else ():
                if not claim.is_iterated:
                    claim.done = claim.handed_out
            if self._joined is not None:
                self._tell_done(self._joined, claims)
        self._hand_back([claim for claim in claims if claim.is_iterated])
        if self._auto_commit:
            self._claims.clear()

    def _hand_back(self, claims: list[Claim]) -> None:
        """What was taken and is not done comes again."""
        for claim in claims:
            if self._broadcast is not None:
                self._broadcast.go_back(claim.taken.queue_id, claim.done)
            if claim.done < claim.taken.end and claim.running is self._joined:
                message = tm.HandBack(self._group, self.name, claim.topic, claim.taken, claim.done)
                ask(claim.running.groups, message)  # refused where the queue is somebody else's: he has it
            claim.end_at(claim.done)

    async def _send_back(self, record: Record, delay_level: int) -> None:
        if self._broadcast is not None:
            raise TopicError("a broadcast reader has no group that could have a message again")
        running = await self._now()
        batch = sent_back(record, self.group, running.store.settings, delay_level=delay_level)
        running.store.check(batch)
        if batch.topic == dead_letter_topic(self.group):
            await run(self._node.change(lambda actor: actor.declare_topic(batch.topic, 1)))
        confirm = Confirm(running.log)
        running.log.hand_over([batch], confirm)
        await safe(confirm)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Leave the group; with ``auto_commit`` what :meth:`read` brought is done."""
        await self._close(is_done=True)

    async def aclose(self) -> None:
        """:meth:`close`, as :func:`contextlib.aclosing` calls it."""
        await self.close()

    async def _close(self, *, is_done: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._settle(is_done=is_done)
        if self._arrival is not None:
            self._arrival.offer(None)
        running, self._joined = self._joined, None
        if running is not None:
            await settled(ask(running.groups, self._leaving()))

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(is_done=error is None)  # what was being worked on is not done

    def __del__(self) -> None:
        running = self._joined
        if running is not None and not self._closed:
            running.groups.let_go(self._leaving())


def _note_lost(done: Future) -> None:
    if done.error is not None:
        _LOG.info("%s", done.error)
    for lost in () if done.error is not None else done.get():
        _LOG.info("%s", lost)
