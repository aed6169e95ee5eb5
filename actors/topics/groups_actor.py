"""The actor of the consumer groups: which member reads which queues, and how far each group is.

There is one per store, because the offsets of all groups are in one file (``config/consumerOffset.json``). It assigns
positions and passes no messages: members read those themselves. Committed offsets are saved every
``flush_consumer_offset_interval``; a crash goes back to the last save, and later messages are assigned again.

A *broadcast* reader reads all queues for itself: it is a group of one member, named ``group@instance``, whose offsets
are in a separate file (:mod:`warren.queue_index.topics.local_offsets`). Without a group name, it is named ``@`` and the
member's name, and its offsets are not stored.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pykka._envelope import Envelope as Letter

from warren.actors.engines.topics.consumer_group import ConsumerGroup, StartOffset, Taken
from warren.actors.engines.topics.errors import MemberError, QueueLostError, TopicError
from warren.actors.engines.topics.topic_store import TopicStore
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.runtime.future import Future
from warren.actors.topics import topic_messages as tm
from warren.actors.topics.dispatch_actor import Arrivals
from warren.actors.topics.topic_part import TopicPart
from warren.queue_index.topics.consumer_offsets import ConsumerOffsets, Position
from warren.queue_index.topics.local_offsets import SEPARATOR, LocalOffsets
from warren.storage.errors import DirectoryLostError

_LOG = logger("topics")


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


def _nobody() -> bool:
    return False


DEFAULT_INSTANCE: Final = "DEFAULT"
"""RocketMQ's name of an instance without a given name."""


class GroupsActor(TopicPart):
    """Owns the members and offsets of all groups."""

    def __init__(
        self,
        context: NodeContext,
        store: TopicStore,
        offsets: ConsumerOffsets,
        local_offsets: LocalOffsets,
        *,
        queues_of: Callable[[str], int],
        arrivals: Arrivals,
    ) -> None:
        super().__init__(context, f"the consumer groups of {store.directory}")
        self._store = store
        self._offsets = offsets
        self._local_offsets = local_offsets
        self._queues_of = queues_of
        self._arrivals = arrivals
        self._groups: dict[tuple[str, str], ConsumerGroup] = {}
        self._abandoned: deque[tm.LeaveGroup] = deque()
        self._take_back_offsets()

    # ── any thread ──────────────────────────────────────────────────────────────────────────────────────────────

    def ask_later(self, message: object) -> Future:
        """Ask without scheduling a turn: a waiting thread runs it, an event loop requests it with ``hurry``."""
        future = Future()
        if self.actor_stopped.is_set():
            future.fail(self.stopped_error())
        else:
            self.actor_inbox.put(Letter(message, reply_to=future), wake=_nobody)
        return future

    # ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────

    def on_receive(self, message: object) -> object:
        match message:
            case tm.Take():
                return self._take(message)
            case tm.CommitOffsets():
                return self._commit(message)
            case tm.JoinGroup():
                self._join(message)
            case tm.JoinBroadcast():
                return self._join_broadcast(message)
            case tm.LeaveGroup():
                self._leave(message)
            case tm.HandBack():
                group = self._group(message.topic, message.group)
                group.hand_back(message.taken, message.member, message.queue_offset)
                self._arrivals.ring({message.topic})
            case tm.GetGroups():
                return self.described(broadcast=message.broadcast)
            case _:
                return super().on_receive(message)
        return None

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

    def _offsets_of(self, name: str) -> ConsumerOffsets | LocalOffsets | None:
        """Return the store of a group's offsets."""
        group, separator, _ = name.partition(SEPARATOR)
        if not separator:
            return self._offsets
        return self._local_offsets if group else None

    def _take_back_offsets(self) -> None:
        """Reset offsets after the end of their queues: a power loss took the messages, and new ones will get their
        numbers.

        Must run before anything is appended; afterwards such offsets cannot be told apart.
        """
        for position in [*self._offsets.positions(), *self._local_offsets.positions()]:
            queue = self._store.queues.get((position.topic, position.queue_id))
            last = 0 if queue is None else queue.max_offset
            if position.offset > last:
                _log_moved_back(position, last)
                self._commit_offset(position.topic, position.group, position.queue_id, last)

    def _commit_offset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        offsets = self._offsets_of(group)
        if offsets is not None:
            offsets.commit(topic, group, queue_id, queue_offset)

    # ── members ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _join(self, message: tm.JoinGroup) -> None:
        for topic in message.topics:
            group = self._whole_group(topic, message.group)
            # The group has read the messages to be retried before: they are never skipped.
            consume_from: Any = message.consume_from if topic == message.topics[0] else "first"
            group.join(message.member, self._store.bounds(topic), consume_from)
            self._note_all(group)

    def _join_broadcast(self, message: tm.JoinBroadcast) -> tuple[str, dict[int, int]]:
        name = self._broadcast_name(message)
        group = self._whole_group(message.topic, name)
        positions = message.positions or {}
        group.join(message.member, self._store.bounds(message.topic), message.consume_from, positions)
        for queue_id, position in positions.items():
            if position > group.committed[queue_id]:
                _log_moved_back(Position(message.topic, name, queue_id, position), group.committed[queue_id])
        self._note_all(group)
        return name, dict(group.committed)

    def _broadcast_name(self, message: tm.JoinBroadcast) -> str:
        """Return the named instance, or the first one without a reader. Raises :class:`MemberError`."""
        if not message.group:
            return f"{SEPARATOR}{message.member}"
        if message.instance is None:
            later = (f"{DEFAULT_INSTANCE}-{number}" for number in itertools.count(2))
            instances: Iterable[str] = itertools.chain((DEFAULT_INSTANCE,), later)
        else:
            instances = (message.instance,)
        for instance in instances:
            name = f"{message.group}{SEPARATOR}{instance}"
            if not self._group(message.topic, name).members:
                return name
        raise MemberError(f"group {message.group!r}: the instance {message.instance!r} reads {message.topic!r} already")

    def _leave(self, message: tm.LeaveGroup) -> None:
        for topic in message.topics:
            group = self._group(topic, message.group)
            if message.member in group.members:
                group.leave(message.member)
            if self._offsets_of(message.group) is None:
                self._groups.pop((topic, message.group), None)
        self._arrivals.ring(set(message.topics))  # other members take over what it has left unfinished

    def let_go(self, message: tm.LeaveGroup) -> None:
        """Remove an abandoned member. Takes no lock, because a garbage collector may call it anywhere."""
        self._abandoned.append(message)
        self._context.pool.submit(self.turns)

    def wants_turn(self) -> bool:
        return bool(self._abandoned) and not self.actor_stopped.is_set()

    def more_queues(self, topic: str, queues: int) -> None:
        """Note that a topic has ``queues`` queues now."""
        for (read, _), group in self._groups.items():
            if read == topic:
                group.set_queues(max(queues, group.queues), self._store.bounds(topic))
                self._note_all(group)
        self._arrivals.ring({topic})

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, message: tm.Take) -> list[tuple[str, Taken]]:
        all_taken: list[tuple[str, Taken]] = []
        remaining = message.max_records
        for topic in message.topics:
            if remaining <= 0:
                break
            taken = self._group(topic, message.group).take(message.member, remaining, self._store.bounds(topic))
            all_taken.extend((topic, part) for part in taken)
            remaining -= sum(part.count for part in taken)
        return all_taken

    def _commit(self, message: tm.CommitOffsets) -> list[str]:
        """Commit offsets; return the errors for queues that another member has taken over."""
        lost = []
        for topic, queue_id, queue_offset, claim in message.done:
            try:
                news = self._group(topic, message.group).commit(message.member, queue_id, queue_offset, claim)
            except QueueLostError as error:
                lost.append(str(error))
                continue
            if news:
                self.note(topic, message.group, queue_id, queue_offset)
        return lost

    def seek(self, topic: str, name: str, places: StartOffset | Mapping[int, StartOffset]) -> dict[int, int]:
        """Move a group to other positions; return the queue offsets by queue."""
        queue_offsets = self._whole_group(topic, name).seek(places, self._store.bounds(topic))
        for queue_id, queue_offset in queue_offsets.items():
            self.note(topic, name, queue_id, queue_offset)
        self._arrivals.ring({topic})
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
            self._arm_persist(self._store.settings.flush_consumer_offset_interval)

    def _persist(self) -> None:
        try:
            self._context.check_directory()
        except DirectoryLostError:  # appending or closing raises it; saving would create the directory again
            return
        self._offsets.persist()
        self._local_offsets.persist()

    def on_turn_end(self) -> None:
        while self._abandoned:
            self._leave(self._abandoned.popleft())
        if self._context.check_invariants:
            for group in self._groups.values():
                group.check_invariants()
