"""A member of a consumer group that reads a topic, or a reader that reads all of it for itself.

*Shared*: the topic's queues are divided among the group's members, and again whenever one joins or leaves.
What a member has read and not committed when it leaves is read again by another one: at least once, in order for each
queue. A group's messages to be retried (``%RETRY%group``) come to its readers too.

*Broadcast*: the reader reads every queue for itself, as a group of one. Its positions are kept for its group and its
instance, the number among the group's readers.

Committing. With ``auto_commit`` what a read returned counts as done when the next read begins or the reader is closed;
in an iteration, each message counts as done when the next one is requested. It is committed with the next batch, or
when the iteration or the reader ends. Otherwise the caller commits messages, one by one or all that were read. Messages
that are not done when an iteration is left come again.

A read that is cancelled or interrupted has taken nothing. What the groups' actor had handed out for it goes back before
the next read takes messages; the queues belong to this member only, so no other member misses it meanwhile.

Topics that failed are reopened: a waiting read continues there or fails with the reason. The commit of what was read
before fails, so that is read again; with the next call the reader is a member again.

A damaged message raises an error at its turn, once the messages before it were handed out. It comes again until the
group seeks past it (:meth:`warren.Topic.seek`).
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypedDict

import attrs

from warren.actors.engines.topics.consumer_group import StartOffset, Taken
from warren.actors.engines.topics.errors import MemberError, QueueLostError, TopicError
from warren.actors.engines.topics.names import dead_letter_topic, retry_topic
from warren.actors.engines.topics.retry import sent_back
from warren.actors.log_events import log_event, logger
from warren.actors.runtime.future import Confirm, Future
from warren.actors.topics.running_topics import RunningTopics
from warren.hosting.running_node import RunningNode
from warren.msg_store.commit_log.commit_log_format import Record
from warren.msg_store.commit_log.packed_records import PackedRecords
from warren.storage.errors import DataError, DirectoryLostError, StorageError, WarrenError
from warren.values.topic_record import Moment
from warren.verbs.steps import Handle, Reading, Steps, Within, call
from warren.verbs.topics.broadcast import Broadcast, check_reader_names
from warren.verbs.topics.topic_lookup import TagFilter, offsets_at, read_taken

_LOG = logger("topics")
BATCH: Final = 256
"""The most messages that are taken at a time: other readers do not get them."""
_numbers = itertools.count(1)


class ReaderArguments(TypedDict, total=False):
    """The options of a reader."""

    broadcast: bool
    """Read all queues, and share nothing."""
    tags: str | Iterable[str] | None
    """Read only messages with any of the tags."""
    auto_commit: bool
    consume_from: StartOffset | Moment | Mapping[int, int]
    """Where a group begins that has not read this topic before."""
    positions: Mapping[int, int] | None
    """Where a broadcast reader continues, instead of at its stored position."""
    instance_name: str | None
    """Which reader of its broadcast group it is."""


@attrs.define(eq=False, repr=False)
class Claim:
    """What was taken from one queue in one go.

    It has two positions, both queue offsets: messages before *handed out* were given to the caller, messages before
    *done* are processed.
    """

    reader: ReaderVerbs
    running: RunningTopics
    topic: str
    taken: Taken
    done: int = attrs.field(init=False)
    handed_out: int = attrs.field(init=False)
    passed_over: int = attrs.field(default=0, init=False)
    """From the claim's end up to here no message is for the reader; 0 if unknown."""
    is_iterated: bool = attrs.field(default=False, init=False)
    """Whether its messages are handed out one by one, instead of all at once."""

    def __attrs_post_init__(self) -> None:
        self.done = self.handed_out = self.taken.queue_offset

    @property
    def place(self) -> tuple[str, int]:
        """Topic and queue."""
        return self.topic, self.taken.queue_id

    def end_at(self, queue_offset: int) -> None:
        """End the claim here: the messages from there on were handed back."""
        self.taken = attrs.evolve(self.taken, count=queue_offset - self.taken.queue_offset)
        self.handed_out = min(self.handed_out, queue_offset)
        self.passed_over = 0

    def passed_by(self, queue_offset: int) -> int:
        """Return the offset that is done when messages before ``queue_offset`` are."""
        return queue_offset if queue_offset < self.taken.end else max(queue_offset, self.passed_over)


Done = Sequence[tuple[str, int, int, int]]
"""What was read to its end: topic, queue, the queue offset after it, and the claim's number."""
Fetched = tuple[list[list[PackedRecords]], WarrenError | None]
"""The messages of each claim, up to one that cannot be read, and the reason."""
Read = list[tuple[Claim, list[PackedRecords]]]
"""The messages that are for the reader, of each claim that has any."""


class ReaderVerbs:
    """The verbs of one reader, and what it has taken."""

    _joined: RunningTopics | None = None
    """The topics that it is a member of."""

    def __init__(
        self,
        node: RunningNode,
        topic: str,
        group: str,
        *,
        broadcast: bool = False,
        tags: str | Iterable[str] | None = None,
        auto_commit: bool = True,
        consume_from: StartOffset | Moment | Mapping[int, int] = "first",
        positions: Mapping[int, int] | None = None,
        instance_name: str | None = None,
        name: str | None = None,
    ) -> None:
        """``name``: the member's name in the group; ``None``: generated."""
        check_reader_names(group, instance_name, broadcast=broadcast)
        if positions is not None and not broadcast:
            raise TopicError("only broadcast readers have positions")
        self._node = node
        self.topic = topic
        self.group = group
        self.name = f"{group}-{next(_numbers)}" if name is None else name
        self.closed = False
        self.skipped = 0
        self.auto_commit = auto_commit
        self._consume_from = consume_from
        self._broadcast = Broadcast(instance_name, positions) if broadcast else None
        self._group = group
        """The group's key; a broadcast reader has one of its own."""
        self._topics = [topic] if broadcast else list(dict.fromkeys((topic, retry_topic(group))))
        self._tags = TagFilter.of(tags)
        self.claims: dict[tuple[str, int], Claim] = {}
        """By queue, the last claim that is not completely committed; committing it commits all before it."""
        self.iteration: object = None
        """The iteration that currently hands out messages."""
        self._taking: Future | None = None
        """A pending request for messages, whose answer was not received yet."""
        self._arrival: Future | None = None

    def __str__(self) -> str:
        return f"{self.name!r} of {self.topic!r}{' (closed)' if self.closed else ''}"

    # ── the group ───────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Steps[None]:
        """Join the group, if it has not yet."""
        yield from self._now()

    def _now(self) -> Steps[RunningTopics]:
        """Return the running topics; if they were reopened, join the group again."""
        self._check_open()
        running = yield from self._node.topics()
        if running is not self._joined:
            running = yield from self._node.caught_up()  # or queues would seem to end too early
            yield from self._join(running)
        return running

    def _check_open(self) -> None:
        if self.closed:
            raise MemberError(f"the reader {self.name!r} is closed")

    def _join(self, running: RunningTopics) -> Steps[None]:
        if self._broadcast is not None and self._joined is not None:  # without a group, only it has its position
            self._broadcast.positions = None if self.group else self.positions
        joined = yield from self._ask_to_join(running)
        try:
            answer = yield joined
        except BaseException:  # the wait is cancelled, but the join may still succeed
            joined.on_done(lambda done: self._leave_again(running, done))
            raise
        if self._broadcast is not None:
            self._group, self._broadcast.places = answer
        self.claims.clear()
        self.iteration = self._taking = None
        self._joined = running

    def _ask_to_join(self, running: RunningTopics) -> Steps[Future]:
        """Join the group; for a broadcast reader the answer is the group's name and its positions."""
        place = yield from self._first_place(running)
        groups = running.groups.consumer_groups
        if (broadcast := self._broadcast) is not None:
            return call(
                running.groups,
                lambda: groups.join_broadcast(
                    self.topic,
                    self.group,
                    self.name,
                    instance=broadcast.instance_name,
                    consume_from=place,
                    positions=broadcast.positions,
                ),
            )
        try:
            yield from self._node.change(lambda registry: registry.declare_topic(self._topics[-1], 1))
        except DirectoryLostError:
            raise
        except StorageError:  # the disk may be full, and reading writes nothing; sending a message back declares it
            pass
        return call(running.groups, functools.partial(groups.join, self._topics, self._group, self.name, place))

    def _leave_again(self, running: RunningTopics, joined: Future) -> None:
        if joined.error is None:
            group = self._group if self._broadcast is None else joined.get()[0]
            leave = functools.partial(running.groups.consumer_groups.leave, self._topics, group, self.name)
            call(running.groups, leave)

    def _first_place(self, running: RunningTopics) -> Steps[StartOffset | Mapping[int, int]]:
        """Return where a group begins that has not read the topic before."""
        place = self._consume_from
        if isinstance(place, str | Mapping | int):
            return place
        queues = running.table.queues(self.topic) or 1
        positions: Mapping[int, int] = yield Reading(lambda: offsets_at(running, self.topic, queues, place))
        self._consume_from = positions
        return positions

    @property
    def joined(self) -> RunningTopics | None:
        """The topics that it is a member of."""
        return self._joined

    @property
    def group_key(self) -> str:
        """The group's key."""
        return self._group

    @property
    def positions(self) -> dict[int, int]:
        """Of a broadcast reader: the queue offset that it reads next, by queue."""
        positions = {} if self._broadcast is None else dict(self._broadcast.places)
        for claim in self.claims.values() if positions else ():
            if claim.is_iterated:
                positions[claim.taken.queue_id] = min(positions[claim.taken.queue_id], claim.done)
        return positions

    def queues(self) -> Steps[list[int]]:
        """Return the queues of the topic that this reader currently has."""
        running = yield from self._now()
        if self._broadcast is not None:
            return list(range(running.table.queues(self.topic) or 1))
        groups = yield call(running.groups, running.groups.consumer_groups.described)
        assigned: list[int] = groups[self.topic][self.group]["members"].get(self.name, [])
        return assigned

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, max_records: int = BATCH, timeout: float | None = 0.0) -> Steps[Read]:
        """Return the next messages; wait up to ``timeout`` seconds (``None``: for ever) for one.

        With ``auto_commit`` the messages of the last call are done.
        """
        read = yield from self.go_on(max_records, timeout)
        for claim, _ in read:
            claim.handed_out = claim.taken.end
        return read

    def go_on(self, max_records: int, timeout: float | None) -> Steps[Read]:
        """Settle what was read, and take the next messages."""
        running = yield from self._now()
        self.settle(wakes=False)
        try:
            return (yield from self.take(max_records, timeout))
        except BaseException:
            self.wake(running)  # taking would have committed it
            raise

    def take(self, max_records: int, timeout: float | None) -> Steps[Read]:
        """Take messages that are for this reader, and read them."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            running = yield from self._now()
            read = yield from self._take_and_read(running, max_records)
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if read or left == 0.0:
                return read
            self._arrival = arrival = self.listen(running)
            try:
                read = yield from self._take_and_read(running, max_records)  # what came before we listened
                if read or not (yield Within(arrival, left)):
                    return read
            finally:
                self._arrival = None
                self.stop_listening(running, arrival)

    def _take_and_read(self, running: RunningTopics, max_records: int) -> Steps[Read]:
        while claims := (yield from self._take_now(running, max_records)):
            read = yield from self._read(running, claims)
            if read:
                return read
        return []

    def listen(self, running: RunningTopics) -> Future:
        """Return a future that is answered when new messages arrive."""
        return running.dispatcher.arrivals.wait_for(set(self._topics), self._node.pool)

    def stop_listening(self, running: RunningTopics, arrival: Future) -> None:
        """Cancel :meth:`listen`."""
        running.dispatcher.arrivals.forget(set(self._topics), arrival)

    def _take_now(self, running: RunningTopics, max_records: int) -> Steps[list[Claim]]:
        if self._taking is not None:  # a read that was cancelled has asked for it
            for claim in (yield from self._taken(running, self._taking)):
                self._hand_back(claim, claim.taken.queue_offset)
        self._taking = yield from self.ask_to_take(running, max_records)
        return (yield from self._taken(running, self._taking))

    def _taken(self, running: RunningTopics, taking: Future) -> Steps[list[Claim]]:
        yield Within(taking, None)
        self._taking = None  # not before: after a cancellation the next read needs it
        claims = self._claims(running, taking.get())
        skipped = sum(claim.taken.skipped for claim in claims)
        if skipped:
            self.skipped += skipped
            _LOG.warning(
                "group %s, topic %s: %d messages expired unread",
                self.group,
                self.topic,
                skipped,
                extra=log_event("topics_expired", group=self.group, topic=self.topic, count=skipped),
            )
        if self._broadcast is not None:
            self._broadcast.places.update((claim.taken.queue_id, claim.taken.end) for claim in claims)
        return claims

    def ask_to_take(self, running: RunningTopics, max_records: int) -> Steps[Future]:
        """Take messages; the answer lists topics, and what was taken from each."""
        yield from self._node.caught_up()
        take = running.groups.consumer_groups.take
        return running.groups.ask_later(functools.partial(take, self._topics, self._group, self.name, max_records))

    def _claims(self, running: RunningTopics, answer: list[tuple[str, Taken]]) -> list[Claim]:
        return [Claim(self, running, topic, taken) for topic, taken in answer]

    def _read(self, running: RunningTopics, claims: list[Claim]) -> Steps[Read]:
        """Return the messages of some claims. Hand back what cannot be read or is no longer wanted."""
        try:
            fetched, error = yield from self._fetch(running, claims)
            self._check_open()
        except BaseException:
            for claim in claims:
                self._hand_back(claim, claim.taken.queue_offset)
            raise
        read: Read = list(zip(claims, fetched, strict=False))
        if error is not None:
            claim, records = read[-1]
            reached = records[-1].queue_offsets[-1] + 1 if records else claim.taken.queue_offset
            self._hand_back(claim, reached)
            for unread in claims[len(read) :]:
                self._hand_back(unread, unread.taken.queue_offset)
        self._pass_over([claim for claim, records in read if claim.taken.count and not records])
        if error is not None and not any(fetched):
            if isinstance(error, DataError):
                where = f"queue {claim.taken.queue_id} of {claim.topic}, from message {reached} on"
                raise DataError(error.path, error.offset, f"{error.reason} ({where})") from error
            raise error
        read = [(claim, records) for claim, records in read if records]
        self.claims.update((claim.place, claim) for claim, _ in read)
        return read

    def _fetch(self, running: RunningTopics, claims: list[Claim]) -> Steps[Fetched]:
        """Return the messages of each claim, up to one that cannot be read."""
        fetched: Fetched = yield Reading(lambda: self._read_files(running, claims))
        return fetched

    def _read_files(self, running: RunningTopics, claims: list[Claim]) -> Fetched:
        fetched: list[list[PackedRecords]] = []
        for claim in claims:
            fetched.append([])
            try:
                for records in self.records_of(running, claim.topic, claim.taken):
                    fetched[-1].append(records)
            except WarrenError as error:
                return fetched, error
        return fetched, None

    def records_of(self, running: RunningTopics, topic: str, taken: Taken) -> Iterator[PackedRecords]:
        """Read the taken messages that are for this reader, from the files."""
        return read_taken(running, topic, taken, self._tags, is_retry=topic != self.topic)

    def _pass_over(self, claims: list[Claim]) -> None:
        """Mark these claims as done: none of their messages is for this reader."""
        alone = []
        for claim in claims:
            claim.done = claim.taken.end
            last = self.claims.get(claim.place)
            if last is not None and last.taken.claim == claim.taken.claim:
                last.passed_over = claim.done
            else:
                alone.append(claim)
        self.tell_done(alone)

    # ── being done ──────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self) -> Steps[None]:
        """Commit everything that was read. Raises :class:`QueueLostError` if queues have moved to other members."""
        claims = list(self.claims.values())
        for claim in claims:
            claim.done = claim.handed_out
        yield from self.commit_up_to([(claim, claim.done) for claim in claims])

    def commit_up_to(self, places: list[tuple[Claim, int]]) -> Steps[None]:
        """Commit each claim up to a queue offset. Raises :class:`QueueLostError`."""
        running = yield from self._now()
        if any(claim.running is not running for claim, _ in places):
            raise QueueLostError(f"group {self.group!r}, topic {self.topic!r}: the topics were reopened since")
        if places:
            done = self._ask_done(running, places)
            yield Within(done, None)
            lost: list[str] = done.get()
            for claim, place in places:
                if place == claim.taken.end and self.claims.get(claim.place) is claim:
                    del self.claims[claim.place]
            if lost:
                raise QueueLostError("; ".join(lost))

    def _ask_done(self, running: RunningTopics, places: list[tuple[Claim, int]]) -> Future:
        return self.ask_to_commit(
            running, [(*claim.place, claim.passed_by(place), claim.taken.claim) for claim, place in places]
        )

    def ask_to_commit(self, running: RunningTopics, done: Done) -> Future:
        """Commit; the answer lists what could not be committed."""
        commit = running.groups.consumer_groups.commit
        return running.groups.ask_later(functools.partial(commit, self._group, self.name, done))

    def tell_done(self, claims: Iterable[Claim], *, wakes: bool = True) -> None:
        """Commit what is done, without waiting; if a queue has moved to another member, that is only logged.

        ``wakes``: commit now; otherwise with the next request to the groups, or at :meth:`wake`.
        """
        places = [(claim, claim.done) for claim in claims if claim.done > claim.taken.queue_offset]
        if places and self._joined is not None:
            self._ask_done(self._joined, places).on_done(self._note_lost)
            if wakes:
                self.wake(self._joined)

    def wake(self, running: RunningTopics) -> None:
        """Schedule the groups' pending commits."""
        running.groups.turns.submit()

    def _note_lost(self, done: Future) -> None:
        if done.error is not None:
            _LOG.warning(
                "%s: processed messages are read again: %s",
                self.name,
                done.error,
                extra=log_event("group_lost", done.error, group=self.group, topic=self.topic, member=self.name),
            )
            return
        for lost in done.get():
            _LOG.info(
                "%s",
                lost,
                extra=log_event("group_lost", group=self.group, topic=self.topic, member=self.name, reason=lost),
            )

    def settle(self, *, is_done: bool = True, wakes: bool = True) -> None:
        """Mark what was read in one go as done (with ``auto_commit`` and ``is_done``), and leave an iteration.

        ``wakes``: see :meth:`tell_done`.
        """
        claims = list(self.claims.values())
        self.iteration = None
        if self.auto_commit:
            for claim in claims if is_done else ():
                if not claim.is_iterated:
                    claim.done = claim.handed_out
            self.tell_done(claims, wakes=wakes)
            self.claims.clear()
        for claim in claims:  # an interrupt may have kept these messages from the caller
            self._hand_back(claim, claim.done if claim.is_iterated else claim.handed_out)

    def _hand_back(self, claim: Claim, queue_offset: int) -> None:
        """Return the messages of a claim from this offset on; they come again."""
        if queue_offset >= claim.taken.end:
            return
        if self._broadcast is not None:
            self._broadcast.go_back(claim.taken.queue_id, queue_offset)
        if claim.running is self._joined:  # refused if another member has the queue now
            self.ask_to_take_back(claim.running, claim.topic, claim.taken, queue_offset)
        claim.end_at(queue_offset)

    def ask_to_take_back(self, running: RunningTopics, topic: str, taken: Taken, queue_offset: int) -> Future:
        """Let the groups hand out messages from this offset on again."""
        hand_back = running.groups.consumer_groups.hand_back
        return call(running.groups, functools.partial(hand_back, topic, self._group, self.name, taken, queue_offset))

    def send_back(self, record: Record, delay_level: int) -> Steps[None]:
        """Schedule a message to be read again later; return when that is safe."""
        if self._broadcast is not None:
            raise TopicError("a broadcast reader has no group that could have a message again")
        running = yield from self._now()
        yield from self._send_back(running, record, delay_level)

    def _send_back(self, running: RunningTopics, record: Record, delay_level: int) -> Steps[None]:
        batch = sent_back(record, self.group, running.store.settings, delay_level=delay_level)
        running.store.check(batch)
        is_dead = batch.topic == dead_letter_topic(self.group)
        if running.table.queues(topic := batch.topic if is_dead else retry_topic(self.group)) is None:
            yield from self._node.change(lambda registry: registry.declare_topic(topic, 1))
        confirm = Confirm(running.log.intake)
        running.log.intake.hand_over([batch], confirm)
        yield confirm

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> Steps[None]:
        """Leave the group; with ``auto_commit`` the messages of :meth:`read` are done."""
        yield from self.leave(is_done=True)

    def leave(self, *, is_done: bool) -> Steps[None]:
        """Leave the group. ``is_done``: with ``auto_commit``, what was read in one go."""
        if self.closed:
            return
        self.closed = True
        self.settle(is_done=is_done)
        if self._arrival is not None:
            self._arrival.offer(None)
        running, self._joined = self._joined, None
        if running is not None:
            yield Within(self._ask_to_leave(running), None)

    def _ask_to_leave(self, running: RunningTopics) -> Future:
        return call(running.groups, self._leaving(running))

    def _let_go(self, running: RunningTopics) -> None:
        """Leave, without any lock."""
        running.groups.let_go(self._leaving(running))

    def _leaving(self, running: RunningTopics) -> Callable[[], object]:
        return functools.partial(running.groups.consumer_groups.leave, self._topics, self._group, self.name)

    def __del__(self) -> None:
        if self._joined is not None:  # neither the reader nor one of its messages is left
            try:
                self._let_go(self._joined)
            except BaseException:  # an interrupt, which Python passes over here: the member would stay for ever
                self._let_go(self._joined)
                raise


class ReaderHandle(Handle[ReaderVerbs]):
    """The properties of a reader that need no request."""

    made_by = "topic.reader(group)"

    @property
    def topic(self) -> str:
        return self._verbs.topic

    @property
    def group(self) -> str:
        return self._verbs.group

    @property
    def name(self) -> str:
        """Its name among the group's members."""
        return self._verbs.name

    @property
    def skipped(self) -> int:
        """Messages that had expired before they could be read."""
        return self._verbs.skipped

    @property
    def positions(self) -> dict[int, int]:
        """Of a broadcast reader: the queue offset that it reads next, by queue."""
        return self._verbs.positions
