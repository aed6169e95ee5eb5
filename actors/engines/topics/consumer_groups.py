"""The consumer groups of a topic store: their members, and their committed offsets, which are in files.

The offsets of all groups are in one file (``config/consumerOffset.json``). A *broadcast* reader reads all queues for
itself: it is a group of one member, named ``group@instance``, whose offsets are in a separate file
(:mod:`warren.queue_index.topics.local_offsets`). Without a group name, it is named ``@`` and the member's name, and its
offsets are not stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from warren.actors.engines.topics.consumer_group import ConsumerGroup, StartOffset, Taken
from warren.actors.engines.topics.errors import MemberError, QueueLostError, TopicError
from warren.actors.engines.topics.topic_store import TopicStore
from warren.actors.log_events import log_event, logger
from warren.queue_index.topics.consumer_offsets import ConsumerOffsets, Position
from warren.queue_index.topics.local_offsets import SEPARATOR, LocalOffsets

_LOG = logger("topics")

DEFAULT_INSTANCE: Final = "DEFAULT"
"""RocketMQ's name of an instance without a given name."""


def _log_moved_back(position: Position, end: int) -> None:
    _LOG.warning(
        "group %s: reset from %d to %d in queue %d of %s, which ends there",
        position.group,
        position.offset,
        end,
        position.queue_id,
        position.topic,
        extra=log_event("group_moved_back", group=position.group, topic=position.topic, count=position.offset - end),
    )


@attrs.define(eq=False, repr=False)
class ConsumerGroups:
    """See the module's prose. Create it before anything is appended to the store."""

    _store: TopicStore
    _offsets: ConsumerOffsets
    _local_offsets: LocalOffsets
    _queues_of: Callable[[str], int]
    """Returns how many queues a topic has."""
    _wake: Callable[[set[str]], None]
    """Wakes the readers of topics."""
    _changed: Callable[[], None]
    """Called when there are offsets to be saved."""
    _groups: dict[tuple[str, str], ConsumerGroup] = attrs.Factory(dict)

    def __attrs_post_init__(self) -> None:
        """Reset offsets after the end of their queues: a power loss took the messages, and new ones will get their
        numbers. After the first append such offsets cannot be told apart."""
        for position in [*self._offsets.positions(), *self._local_offsets.positions()]:
            queue = self._store.queues.get((position.topic, position.queue_id))
            last = 0 if queue is None else queue.max_offset
            if position.offset > last:
                _log_moved_back(position, last)
                self._commit_offset(position.topic, position.group, position.queue_id, last)

    def _group(self, topic: str, name: str) -> ConsumerGroup:
        group = self._groups.get((topic, name))
        if group is None:
            queues = self._queues_of(topic)
            offsets = self._offsets_of(name)
            if isinstance(offsets, LocalOffsets) and (damage := offsets.damage(name)) is not None:
                raise TopicError(str(damage)) from damage
            committed = {
                queue_id: offset
                for queue_id in range(queues)
                if offsets is not None and (offset := offsets.offset(topic, name, queue_id)) is not None
            }
            group = self._groups[topic, name] = ConsumerGroup(topic, name, queues, committed)
        return group

    def _whole_group(self, topic: str, name: str) -> ConsumerGroup:
        """Return a group with all queues that the topic has now, even if :meth:`more_queues` is still to come."""
        group = self._group(topic, name)
        if (queues := self._queues_of(topic)) > group.queues:
            self.more_queues(topic, queues)
        return group

    def more_queues(self, topic: str, queues: int) -> None:
        """Note that a topic has ``queues`` queues now."""
        for (read, _), group in self._groups.items():
            if read == topic:
                group.set_queues(max(queues, group.queues), self._store.bounds(topic))
                self._note_all(group)
        self._wake({topic})

    # ── members ─────────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, topics: Sequence[str], name: str, member: str, consume_from: Any) -> None:
        """Add a member that reads these topics: the first as ``consume_from`` says, the others completely."""
        for topic in topics:
            group = self._whole_group(topic, name)
            # The group has read the messages to be retried before: they are never skipped.
            group.join(member, self._store.bounds(topic), consume_from if topic == topics[0] else "first")
            self._note_all(group)

    def join_broadcast(
        self,
        topic: str,
        group_name: str,
        member: str,
        *,
        instance: str | None,
        consume_from: Any,
        positions: Mapping[int, int] | None,
    ) -> tuple[str, dict[int, int]]:
        """Add a broadcast reader; return its name as a group, and its positions by queue.

        ``group_name`` "": its positions are not stored. ``instance``: of the group; ``None``: the first without a
        reader. ``positions``: where it continues, instead of its last positions. Raises :class:`MemberError`.
        """
        name = self._broadcast_name(topic, group_name, instance, member)
        group, positions = self._whole_group(topic, name), positions or {}
        group.join(member, self._store.bounds(topic), consume_from, positions)
        for queue_id, position in positions.items():
            if position > group.committed[queue_id]:
                _log_moved_back(Position(topic, name, queue_id, position), group.committed[queue_id])
        self._note_all(group)
        return name, dict(group.committed)

    def _broadcast_name(self, topic: str, name: str, instance: str | None, member: str) -> str:
        if not name:
            return f"{SEPARATOR}{member}"
        if instance is None:
            later = (f"{DEFAULT_INSTANCE}-{number}" for number in itertools.count(2))
            instances: Iterable[str] = itertools.chain((DEFAULT_INSTANCE,), later)
        else:
            instances = (instance,)
        for candidate in instances:
            full_name = f"{name}{SEPARATOR}{candidate}"
            if not self._group(topic, full_name).members:
                return full_name
        raise MemberError(f"group {name!r}: the instance {instance!r} reads {topic!r} already")

    def leave(self, topics: Sequence[str], name: str, member: str) -> None:
        """Remove a member; its queues go to others."""
        for topic in topics:
            group = self._group(topic, name)
            if member in group.members:
                group.leave(member)
            if self._offsets_of(name) is None:
                self._groups.pop((topic, name), None)
        self._wake(set(topics))  # other members take over what it has left unfinished

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, topics: Sequence[str], name: str, member: str, max_records: int) -> list[tuple[str, Taken]]:
        """Return what a member may read now, by topic."""
        all_taken: list[tuple[str, Taken]] = []
        for topic in topics:
            if max_records <= 0:
                break
            taken = self._group(topic, name).take(member, max_records, self._store.bounds(topic))
            all_taken.extend((topic, part) for part in taken)
            max_records -= sum(part.count for part in taken)
        return all_taken

    def commit(self, name: str, member: str, done: Sequence[tuple[str, int, int, int]]) -> list[str]:
        """Commit offsets; return the errors for queues that another member has taken over.

        ``done``: topic, queue, queue offset and claim of each.
        """
        lost = []
        for topic, queue_id, queue_offset, claim in done:
            try:
                news = self._group(topic, name).commit(member, queue_id, queue_offset, claim)
            except QueueLostError as error:
                lost.append(str(error))
                continue
            if news:
                self.note(topic, name, queue_id, queue_offset)
        return lost

    def hand_back(self, topic: str, name: str, member: str, taken: Taken, queue_offset: int) -> None:
        """Give up what a member took, from this queue offset on."""
        self._group(topic, name).hand_back(taken, member, queue_offset)
        self._wake({topic})

    def seek(self, topic: str, name: str, places: StartOffset | Mapping[int, StartOffset]) -> dict[int, int]:
        """Move a group to other positions; return the queue offsets by queue."""
        queue_offsets = self._whole_group(topic, name).seek(places, self._store.bounds(topic))
        for queue_id, queue_offset in queue_offsets.items():
            self.note(topic, name, queue_id, queue_offset)
        self._wake({topic})
        return queue_offsets

    def lag(self, topic: str, name: str) -> dict[int, int]:
        """Return the number of unfinished messages by queue."""
        return self._group(topic, name).lag(self._store.bounds(topic))

    def described(self, *, broadcast: bool = False) -> dict[str, dict[str, Any]]:
        """Return members, assignment, committed offsets and lag by topic and group."""
        described: dict[str, dict[str, Any]] = {}
        offsets = self._local_offsets if broadcast else self._offsets
        for position in offsets.positions():
            self._group(position.topic, position.group)
        for (topic, name), group in sorted(self._groups.items()):
            if self._offsets_of(name) is not offsets:
                continue
            described.setdefault(topic, {})[name] = {
                "members": {member: list(group.assignment(member)) for member in group.members},
                "committed": dict(group.committed),
                "lag": group.lag(self._store.bounds(topic)),
            }
        return described

    # ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _offsets_of(self, name: str) -> ConsumerOffsets | LocalOffsets | None:
        """Return the store of a group's offsets."""
        group, separator, _ = name.partition(SEPARATOR)
        if not separator:
            return self._offsets
        return self._local_offsets if group else None

    def _commit_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        offsets = self._offsets_of(group)
        if offsets is not None:
            offsets.commit(topic, group, queue_id, queue_offset)

    def _note_all(self, group: ConsumerGroup) -> None:
        offsets = self._offsets_of(group.group)
        for queue_id, queue_offset in group.committed.items() if offsets is not None else ():
            if offsets is not None and offsets.offset(group.topic, group.group, queue_id) != queue_offset:
                self.note(group.topic, group.group, queue_id, queue_offset)

    def offset(self, topic: str, group: str, queue_id: int) -> int:
        """Return a committed offset, or 0; for actors that start with the store, before it has other users."""
        return self._offsets.offset(topic, group, queue_id) or 0

    def note(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Note a group's new offset, to be saved with the others."""
        self._commit_offset(topic, group, queue_id, queue_offset)
        if self._offsets.is_dirty or self._local_offsets.is_dirty:
            self._changed()

    def persist(self) -> None:
        """Save the offsets."""
        self._offsets.persist()
        self._local_offsets.persist()

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if a group contradicts itself."""
        for group in self._groups.values():
            group.check_invariants()
