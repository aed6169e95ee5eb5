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

import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import attrs

from warren.actors.engines.topics.consumer_group import Taken
from warren.actors.engines.topics.errors import MemberError, QueueLostError, TopicError
from warren.actors.log_events import log_event, logger
from warren.actors.runtime.future import Future
from warren.msg_store.commit_log.commit_log_format import Record
from warren.msg_store.commit_log.packed_records import PackedRecords
from warren.storage.errors import DataError, WarrenError
from warren.verbs.steps import Handle, Steps, Within
from warren.verbs.topics.member import MemberArguments
from warren.verbs.topics.reader_host import Membership, ReaderHost

T = TypeVar("T")
_LOG = logger("topics")
BATCH: Final = 256
"""The most messages that are taken at a time: other readers do not get them."""


class ReaderArguments(MemberArguments, total=False):
    """The options of a reader."""

    auto_commit: bool


@attrs.define(eq=False, repr=False)
class Claim:
    """What was taken from one queue in one go.

    It has two positions, both queue offsets: messages before *handed out* were given to the caller, messages before
    *done* are processed.
    """

    reader: ReaderVerbs
    membership: Membership
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


Read = list[tuple[Claim, list[PackedRecords]]]
"""The messages that are for the reader, of each claim that has any."""


class ReaderVerbs:
    """The verbs of one reader, and what it has taken."""

    _membership: Membership | None = None

    def __init__(self, host: ReaderHost, *, auto_commit: bool = True) -> None:
        self.host = host
        self.member = host.member
        self.closed = False
        self.skipped = 0
        self.auto_commit = auto_commit
        self.claims: dict[tuple[str, int], Claim] = {}
        """By queue, the last claim that is not completely committed; committing it commits all before it."""
        self.iteration: object = None
        """The iteration that currently hands out messages."""
        self._taking: Future | None = None
        """A pending request for messages, whose answer was not received yet."""
        self._arrival: Future | None = None

    def __str__(self) -> str:
        return f"{self.member.name!r} of {self.member.topic!r}{' (closed)' if self.closed else ''}"

    # ── the group ───────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Steps[None]:
        """Join the group, if it has not yet."""
        yield from self._now()

    def _now(self) -> Steps[Membership]:
        """Return the membership; if it is over, join the group again."""
        self._check_open()
        membership, member = self._membership, self.member
        if membership is not None:
            if (yield from membership.is_current()):
                return membership
            if member.broadcast:
                member.positions = None if member.group else self.positions  # without a group, only it has its position
        membership = yield from self.host.join()
        self.claims.clear()
        self.iteration = self._taking = None
        self._membership = membership
        return membership

    def _check_open(self) -> None:
        if self.closed:
            raise MemberError(f"the reader {self.member.name!r} is closed")

    def _asked(self, ask: Callable[[Membership], Steps[T]]) -> Steps[T]:
        """Ask as a member; if the membership is lost meanwhile, ask again as one who has joined again."""
        while True:
            membership = yield from self._now()
            try:
                return (yield from ask(membership))
            except WarrenError as error:
                if not self.host.lost(error):
                    raise

    @property
    def positions(self) -> dict[int, int]:
        """Of a broadcast reader: the queue offset that it reads next, by queue."""
        positions = dict(self.member.places)
        for claim in self.claims.values() if positions else ():
            if claim.is_iterated:
                positions[claim.taken.queue_id] = min(positions[claim.taken.queue_id], claim.done)
        return positions

    def queues(self) -> Steps[list[int]]:
        """Return the queues of the topic that this reader currently has."""
        return self._asked(lambda membership: membership.queues())

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
        read = yield from self.host.within(timeout or None, self._go_on(max_records, timeout))
        if not read:
            self.host.check_heard(timeout)
        return read

    def _go_on(self, max_records: int, timeout: float | None) -> Steps[Read]:
        membership = yield from self._now()
        self.settle(wakes=False)
        try:
            return (yield from self._take(max_records, timeout))
        except BaseException:
            membership.wake()  # taking would have committed it
            raise

    def _take(self, max_records: int, timeout: float | None) -> Steps[Read]:
        """Take messages that are for this reader, and read them."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            membership = yield from self._now()
            try:
                read = yield from self._take_and_read(membership, max_records)
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                if read or left == 0.0:
                    return read
                self._arrival = arrival = membership.listen()
                try:
                    read = yield from self._take_and_read(membership, max_records)  # what came before we listened
                    if read or not (yield Within(arrival, left)):
                        return read
                finally:
                    self._arrival = None
                    membership.stop_listening(arrival)
            except WarrenError as error:
                if not self.host.lost(error):
                    raise

    def _take_and_read(self, membership: Membership, max_records: int) -> Steps[Read]:
        while True:
            if self._taking is not None:  # a read that was cancelled has asked for it
                for claim in (yield from self._taken(membership, self._taking)):
                    self._hand_back(claim, claim.taken.queue_offset)
            self._taking = taking = yield from membership.take(max_records)
            claims = yield from self._taken(membership, taking)
            if not claims:
                return []
            read = yield from self._read(membership, claims, taking.get())
            if read:
                return read

    def _taken(self, membership: Membership, taking: Future) -> Steps[list[Claim]]:
        yield Within(taking, None)
        self._taking = None  # not before: after a cancellation the next read needs it
        claims = [Claim(self, membership, topic, taken) for topic, taken in membership.places(taking.get())]
        skipped = sum(claim.taken.skipped for claim in claims)
        if skipped:
            self.skipped += skipped
            _LOG.warning(
                "group %s, topic %s: %d messages expired unread",
                self.member.group,
                self.member.topic,
                skipped,
                extra=log_event("topics_expired", group=self.member.group, topic=self.member.topic, count=skipped),
            )
        if self.member.broadcast:
            self.member.places.update((claim.taken.queue_id, claim.taken.end) for claim in claims)
        return claims

    def _read(self, membership: Membership, claims: list[Claim], answer: Any) -> Steps[Read]:
        """Return the messages of some claims. Hand back what cannot be read or is no longer wanted."""
        try:
            fetched, error = yield from membership.fetch(answer)
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
        membership = yield from self._now()
        where = f"group {self.member.group!r}, topic {self.member.topic!r}"
        if any(claim.membership is not membership for claim, _ in places):
            raise QueueLostError(f"{where}: the topics were reopened since")
        if places:
            done = self._ask_done(membership, places)
            try:
                yield Within(done, None)
                lost: list[str] = done.get()
            except WarrenError as error:
                if self.host.lost(error):
                    raise QueueLostError(f"{where}: {error}") from error
                raise
            for claim, place in places:
                if place == claim.taken.end and self.claims.get(claim.place) is claim:
                    del self.claims[claim.place]
            if lost:
                raise QueueLostError("; ".join(lost))

    def _ask_done(self, membership: Membership, places: list[tuple[Claim, int]]) -> Future:
        return membership.commit([(*claim.place, claim.passed_by(place), claim.taken.claim) for claim, place in places])

    def tell_done(self, claims: Iterable[Claim], *, wakes: bool = True) -> None:
        """Commit what is done, without waiting; if a queue has moved to another member, that is only logged.

        ``wakes``: commit now; otherwise with the next request to the groups, or at :meth:`Membership.wake`.
        """
        places = [(claim, claim.done) for claim in claims if claim.done > claim.taken.queue_offset]
        if places and self._membership is not None:
            self._ask_done(self._membership, places).on_done(self._note_lost)
            if wakes:
                self._membership.wake()

    def _note_lost(self, done: Future) -> None:
        member = self.member
        if done.error is not None:
            _LOG.warning(
                "%s: processed messages are read again: %s",
                member.name,
                done.error,
                extra=log_event("group_lost", done.error, group=member.group, topic=member.topic, member=member.name),
            )
            return
        for lost in done.get():
            _LOG.info(
                "%s",
                lost,
                extra=log_event("group_lost", group=member.group, topic=member.topic, member=member.name, reason=lost),
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
        if self.member.broadcast:
            self.member.go_back(claim.taken.queue_id, queue_offset)
        if claim.membership is self._membership:  # refused if another member has the queue now
            claim.membership.take_back(claim.topic, claim.taken, queue_offset)
        claim.end_at(queue_offset)

    def send_back(self, record: Record, delay_level: int) -> Steps[None]:
        """Schedule a message to be read again later; return when that is safe."""
        if self.member.broadcast:
            raise TopicError("a broadcast reader has no group that could have a message again")
        yield from self._asked(lambda membership: membership.send_back(record, delay_level))

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> Steps[None]:
        """Leave the group; with ``auto_commit`` the messages of :meth:`read` are done."""
        yield from self.leave(is_done=True)

    def leave(self, *, is_done: bool) -> Steps[None]:
        """Leave the group. ``is_done``: with ``auto_commit``, what was read in one go."""
        return self.host.within(0.0, self._leave(is_done=is_done))

    def _leave(self, *, is_done: bool) -> Steps[None]:
        if self.closed:
            return
        self.closed = True
        self.settle(is_done=is_done)
        if self._arrival is not None:
            self._arrival.offer(None)
        membership, self._membership = self._membership, None
        if membership is not None:
            yield Within(membership.leave(), None)

    def __del__(self) -> None:
        if self._membership is not None:  # neither the reader nor one of its messages is left
            try:
                self._membership.let_go()
            except BaseException:  # an interrupt, which Python passes over here: the member would stay for ever
                self._membership.let_go()
                raise


class ReaderHandle(Handle[ReaderVerbs]):
    """The properties of a reader that need no request."""

    made_by = "topic.reader(group)"

    @property
    def topic(self) -> str:
        return self._verbs.member.topic

    @property
    def group(self) -> str:
        return self._verbs.member.group

    @property
    def name(self) -> str:
        """Its name among the group's members."""
        return self._verbs.member.name

    @property
    def skipped(self) -> int:
        """Messages that had expired before they could be read."""
        return self._verbs.skipped

    @property
    def positions(self) -> dict[int, int]:
        """Of a broadcast reader: the queue offset that it reads next, by queue."""
        return self._verbs.positions
