"""Hosts of readers: what makes a reader a member of its group, and what it asks as a member.

:class:`LocalReader` and :class:`LocalMembership` are those of this process. In a guest of a shared directory they are a
:class:`warren.client.link_reader.LinkReader` and its membership, a channel.

A membership begins when the reader joins, and ends when it leaves, when the topics are reopened, or with the channel.
The reader then joins again. What was taken in one membership cannot be committed in another.

A message that a consumer could not process comes again later, and after the last attempt is a dead letter. A message
that is *sent back* goes, by way of the delayed messages, to the topic ``%RETRY%group``, which the group reads besides
its own. Each time it waits longer: the delay level is 3 plus the number of earlier attempts, unless the consumer names
one. After ``max_reconsume_times`` attempts, or if the consumer names a negative level, it goes to ``%DLQ%group`` and
stays there. Both topics have one queue.

The properties are those that RocketMQ's broker adds: the message's first topic, its id there, its level, and that no
producer waits for it to be stored.

A message is sent back before its offset is committed; after a crash between the two it comes twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import attrs

from warren.actors.engines.topics.consumer_group import StartOffset, Taken
from warren.actors.engines.topics.names import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    WAIT,
    check_group_name,
    dead_letter_topic,
    retry_topic,
)
from warren.actors.engines.topics.record_copies import copy_of, with_properties
from warren.actors.engines.topics.schedule import to_scheduled
from warren.actors.runtime.future import Confirm, Future
from warren.actors.topics.running_topics import RunningTopics
from warren.hosting.running_node import RunningNode
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import Record, decode_properties
from warren.msg_store.commit_log.packed_records import PackedRecords
from warren.storage.errors import DirectoryLostError, StorageError, WarrenError
from warren.storage.topic_settings import TopicSettings
from warren.verbs.steps import Reading, Steps, call
from warren.verbs.topics.member import Member
from warren.verbs.topics.topic_lookup import TagFilter, offsets_at, read_taken

FIRST_DELAY_LEVEL: Final = 3
"""The level of the first retry: 10 s with RocketMQ's levels."""
RETRY_QUEUE_ID: Final = 0


def sent_back(
    record: Record,
    group: str,
    settings: TopicSettings,
    *,
    delay_level: int = 0,
    max_reconsume_times: int | None = None,
) -> Batch:
    """Return what to append for a message that is to be retried, or becomes a dead letter.

    ``delay_level`` 0: the usual one; negative: to the dead letters. ``max_reconsume_times``: by default that of the
    settings. The properties may become too large for a record; then ``CommitLog.append`` raises. Raises
    :class:`~warren.actors.engines.topics.errors.TopicNameError`, and
    :class:`~warren.msg_store.commit_log.commit_log_format.RecordError` for a record without a topic.
    """
    check_group_name(group)
    limit = settings.max_reconsume_times if max_reconsume_times is None else max_reconsume_times
    is_dead = record.reconsume_times >= limit or delay_level < 0
    level = 0 if is_dead else delay_level or FIRST_DELAY_LEVEL + record.reconsume_times
    properties = decode_properties(record.properties)
    added = {
        RETRY_TOPIC: properties.get(RETRY_TOPIC, record.topic),
        WAIT: "false",
        DELAY: str(level),
        ORIGIN_MESSAGE_ID: properties.get(ORIGIN_MESSAGE_ID, "").strip() or record.message_id(),
    }
    batch = copy_of(
        record,
        topic=dead_letter_topic(group) if is_dead else retry_topic(group),
        queue_id=RETRY_QUEUE_ID,
        properties=with_properties(record.properties, added),
    )
    batch = attrs.evolve(batch, reconsume_times=record.reconsume_times + 1)
    return to_scheduled(batch, level, settings) if level and settings.delay_levels_ms() else batch


T = TypeVar("T")
Place = tuple[str, Taken]
"""A topic, and what was taken from one of its queues."""
Done = Sequence[tuple[str, int, int, int]]
"""What was read to its end: topic, queue, the queue offset after it, and the claim's number."""
Fetched = tuple[list[list[PackedRecords]], WarrenError | None]
"""The messages of each place, up to one that cannot be read, and the reason."""


class Membership(Protocol):
    """A reader's time in its group."""

    def is_current(self) -> Steps[bool]:
        """Whether it goes on. Raises why the topics are not running."""

    def queues(self) -> Steps[list[int]]:
        """Return the queues of the topic that the member has."""

    def listen(self) -> Future:
        """Return a future that is answered when new messages arrive, or the membership is over."""

    def stop_listening(self, arrival: Future) -> None:
        """Cancel :meth:`listen`."""

    def take(self, max_records: int) -> Steps[Future]:
        """Take messages. What the future's answer says is for :meth:`places` and :meth:`fetch`."""

    def places(self, answer: Any) -> list[Place]:
        """Return what was taken."""

    def fetch(self, answer: Any) -> Steps[Fetched]:
        """Return the messages that were taken and are for the member."""

    def commit(self, done: Done) -> Future:
        """Commit; the answer lists what could not be committed."""

    def wake(self) -> None:
        """Schedule the groups' pending commits."""

    def take_back(self, topic: str, taken: Taken, queue_offset: int) -> Future:
        """Let the group hand out messages from this offset on again."""

    def send_back(self, record: Record, delay_level: int) -> Steps[None]:
        """Schedule a message to be read again later; return when that is safe."""

    def leave(self) -> Future:
        """Leave the group."""

    def let_go(self) -> None:
        """Leave the group, without any lock: a garbage collector may call it anywhere."""


class ReaderHost(Protocol):
    """What a reader joins its group with."""

    member: Member

    def join(self) -> Steps[Membership]:
        """Join the group. For a broadcast reader this sets the member's key and places."""

    def lost(self, error: WarrenError) -> bool:
        """Whether the error is only the membership's end, so that the reader may join again and go on."""

    def within(self, timeout: float | None, steps: Steps[T]) -> Steps[T]:
        """Run steps; raise after ``timeout`` seconds (``None``: never), as soon as the host does not answer."""

    def check_heard(self, waited_s: float | None) -> None:
        """Raise the error for a read that got nothing for ``waited_s`` if the reason may be that the host is silent."""


@attrs.frozen(eq=False)
class LocalMembership:
    """A member of a group of a node in this process."""

    _node: RunningNode
    running: RunningTopics
    _member: Member
    _tags: TagFilter

    def is_current(self) -> Steps[bool]:
        return (yield from self._node.topics()) is self.running

    def queues(self) -> Steps[list[int]]:
        member, running = self._member, self.running
        if member.broadcast:
            return list(range(running.table.queues(member.topic) or 1))
        groups = yield call(running.groups, running.groups.consumer_groups.described)
        assigned: list[int] = groups[member.topic][member.group]["members"].get(member.name, [])
        return assigned

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def listen(self) -> Future:
        return self.running.dispatcher.arrivals.wait_for(set(self._member.topics), self._node.pool)

    def stop_listening(self, arrival: Future) -> None:
        self.running.dispatcher.arrivals.forget(set(self._member.topics), arrival)

    def take(self, max_records: int) -> Steps[Future]:
        yield from self._node.caught_up()
        member, groups = self._member, self.running.groups
        take = groups.consumer_groups.take
        return groups.ask_later(functools.partial(take, member.topics, member.key, member.name, max_records))

    def places(self, answer: list[Place]) -> list[Place]:
        return answer

    def fetch(self, answer: list[Place]) -> Steps[Fetched]:
        fetched: Fetched = yield Reading(lambda: self._read_files(answer))
        return fetched

    def _read_files(self, places: list[Place]) -> Fetched:
        fetched: list[list[PackedRecords]] = []
        for topic, taken in places:
            fetched.append([])
            try:
                for records in self.records_of(topic, taken):
                    fetched[-1].append(records)
            except WarrenError as error:
                return fetched, error
        return fetched, None

    def records_of(self, topic: str, taken: Taken) -> Iterator[PackedRecords]:
        """Read the taken messages that are for the member, from the files."""
        return read_taken(self.running, topic, taken, self._tags, is_retry=topic != self._member.topic)

    # ── being done ──────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self, done: Done) -> Future:
        groups = self.running.groups
        commit = groups.consumer_groups.commit
        return groups.ask_later(functools.partial(commit, self._member.key, self._member.name, done))

    def wake(self) -> None:
        self.running.groups.turns.submit()

    def take_back(self, topic: str, taken: Taken, queue_offset: int) -> Future:
        member, groups = self._member, self.running.groups
        hand_back = groups.consumer_groups.hand_back
        return call(groups, functools.partial(hand_back, topic, member.key, member.name, taken, queue_offset))

    def send_back(self, record: Record, delay_level: int) -> Steps[None]:
        running, group = self.running, self._member.group
        batch = sent_back(record, group, running.store.settings, delay_level=delay_level)
        running.store.check(batch)
        is_dead = batch.topic == dead_letter_topic(group)
        if running.table.queues(topic := batch.topic if is_dead else retry_topic(group)) is None:
            yield from self._node.change(lambda registry: registry.declare_topic(topic, 1))
        confirm = Confirm(running.log.intake)
        running.log.intake.hand_over([batch], confirm)
        yield confirm

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def leave(self) -> Future:
        return call(self.running.groups, self._leaving(self._member.key))

    def let_go(self) -> None:
        self.running.groups.let_go(self._leaving(self._member.key))

    def leave_again(self, joined: Future) -> None:
        """Leave the group if the request to join it succeeded although its answer was not waited for."""
        if joined.error is None:
            key = joined.get()[0] if self._member.broadcast else self._member.key
            call(self.running.groups, self._leaving(key))

    def _leaving(self, key: str) -> Callable[[], object]:
        leave = self.running.groups.consumer_groups.leave
        return functools.partial(leave, self._member.topics, key, self._member.name)


class LocalReader:
    """A reader of a topic of a node in this process."""

    def __init__(self, node: RunningNode, member: Member) -> None:
        self._node = node
        self._tags = TagFilter.of(member.tags)
        self.member = member

    def join(self) -> Steps[LocalMembership]:
        running = yield from self._node.caught_up()  # or queues would seem to end too early
        membership, member = LocalMembership(self._node, running, self.member, self._tags), self.member
        joined = yield from self._ask_to_join(running)
        try:
            answer = yield joined
        except BaseException:  # the wait is cancelled, but the join may still succeed
            joined.on_done(membership.leave_again)
            raise
        if member.broadcast:
            member.key, member.places = answer
        return membership

    def _ask_to_join(self, running: RunningTopics) -> Steps[Future]:
        """Join the group; for a broadcast reader the answer is the group's key and its positions."""
        place = yield from self._first_place(running)
        groups, member = running.groups.consumer_groups, self.member
        if member.broadcast:
            return call(
                running.groups,
                lambda: groups.join_broadcast(
                    member.topic,
                    member.group,
                    member.name,
                    instance=member.instance_name,
                    consume_from=place,
                    positions=member.positions,
                ),
            )
        try:
            yield from self._node.change(lambda registry: registry.declare_topic(member.topics[-1], 1))
        except DirectoryLostError:
            raise
        except StorageError:  # the disk may be full, and reading writes nothing; sending a message back declares it
            pass
        return call(running.groups, functools.partial(groups.join, member.topics, member.group, member.name, place))

    def _first_place(self, running: RunningTopics) -> Steps[StartOffset | Mapping[int, int]]:
        """Return where a group begins that has not read the topic before."""
        place, topic = self.member.consume_from, self.member.topic
        if isinstance(place, str | Mapping | int):
            return place
        queues = running.table.queues(topic) or 1
        positions: Mapping[int, int] = yield Reading(lambda: offsets_at(running, topic, queues, place))
        self.member.consume_from = positions
        return positions

    def lost(self, _: WarrenError) -> bool:
        return False

    def within(self, _: float | None, steps: Steps[T]) -> Steps[T]:
        return steps

    def check_heard(self, waited_s: float | None) -> None:
        """Do nothing: it is this process."""
