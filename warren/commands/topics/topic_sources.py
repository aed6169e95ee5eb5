"""Sources of topics for the commands: a node that runs on a directory, or the files.

If a node of warren has a directory open, it is asked (as a guest of its owner); otherwise the files are read, as a
restarted broker would find them. The questions are the same, and so are the answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from warren.commands.options import RawBodiesOption, SetOption, UsageError, parse_settings
from warren.commands.output import report_error
from warren.msg_store.commit_log.commit_log_format import Record
from warren.salvage.queue_directory import Finding
from warren.storage.call_arguments import MAX_MOMENT
from warren.storage.errors import DataError, WarrenError, did_you_mean
from warren.storage.lock_file import LOCK_FILE, lock_holder

if TYPE_CHECKING:
    from warren.handles.node import Node
    from warren.handles.topic import Topic
    from warren.salvage.rocketmq.rocketmq_store import RocketmqStore

Bounds = dict[int, tuple[int, int]]
"""By queue: the number of its first message, and the next one's."""
Row = dict[str, Any]
"""Of a group: ``topic``, ``group``, ``queue_id``, ``offset``, ``lag``, ``member`` (``None``: no member)."""


@attrs.frozen(kw_only=True)
class StoreOptions:
    """How topic stores are read."""

    raw_bodies: RawBodiesOption = False
    setting: SetOption = None

    def settings(self) -> dict[str, str]:
        """What ``--set`` says. Raises :class:`SettingsError`."""
        return parse_settings(self.setting)


class NoTopicError(WarrenError):
    """The topic does not exist, or does not have this queue."""


@contextmanager
def opened_source(path: str, settings: list[str] | None = None, *, start: bool = False) -> Iterator[TopicSource]:
    """Open the source of the topics of ``path``; ``settings`` and ``start`` apply to files only."""
    if (live := is_live(path)) or _has_no_files(path):
        if settings or start:
            reason = f"{path} has a running node, which is asked" if live else f"{path} has no topic files yet"
            raise UsageError(f"--set and --start are for files; {reason}")
        from warren.commands.opening import opened_node

        with opened_node(path) as node:
            yield NodeTopics(node)
        return
    with opened_store(path, settings, start=start) as store:
        yield StoredTopics(store)


@contextmanager
def opened_store(path: str, settings: list[str] | None = None, *, start: bool = False) -> Iterator[RocketmqStore]:
    """Open the files of a store, and report on stderr what recovery cut off."""
    from warren.salvage.rocketmq.rocketmq_store import open_rocketmq

    with open_rocketmq(path, parse_settings(settings), start=start) as store:
        for note in store.notes:
            report_error(note)
        yield store


def is_live(path: str) -> bool:
    """Whether a node of warren has this data directory open."""
    return lock_holder(os.path.join(path, LOCK_FILE)) is not None


def _has_no_files(path: str) -> bool:
    """Whether it is a node's data directory to which no message of a topic was ever appended. Its topics are then read
    from a node that is opened for the command."""
    from warren.hosting.data_directory import Kind, kind_of

    return kind_of(path) is Kind.NODES and not os.path.isdir(os.path.join(path, "topics", "commitlog"))


# ── a node ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def topic_of(node: Node, name: str) -> Topic:
    """A topic that is there; to ask for it makes none. Raises :class:`NoTopicError`."""
    if name not in (topics := node.topics()):
        raise NoTopicError(f"no topic {name!r} in {node.path}{did_you_mean(name, topics)}")
    return node.topic(name)


class NodeTopics:
    """The topics of a node. A :class:`Finding` says why a message is not available."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def topics(self) -> Mapping[str, int]:
        """How many queues each has."""
        return dict(sorted(self._node.topics().items()))

    def bounds(self, topic: str) -> Bounds:
        """Return the bounds of a topic's queues. Raises :class:`NoTopicError`."""
        return topic_of(self._node, topic).offsets()

    def groups(self, topic: str) -> list[Row]:
        """Return the offsets of the groups, by group and queue."""
        rows = []
        for group, state in sorted(topic_of(self._node, topic).groups().items()):
            owners = {queue_id: member for member, queue_ids in state["members"].items() for queue_id in queue_ids}
            rows += [
                {
                    "topic": topic,
                    "group": group,
                    "queue_id": queue_id,
                    "offset": offset,
                    "lag": state["lag"].get(queue_id, 0),
                    "member": owners.get(queue_id),
                }
                for queue_id, offset in sorted(state["committed"].items())
            ]
        return rows

    def messages(
        self, topic: str, queue_id: int, queue_offset: int | None, limit: int | None
    ) -> Iterator[Record | Finding]:
        """A queue's, from a number on, or the first. Raises :class:`NoTopicError`."""
        handle = topic_of(self._node, topic)
        bounds = handle.offsets()
        if queue_id not in bounds:
            raise NoTopicError(f"no queue {queue_id} of the topic {topic!r}; its queues are 0 to {len(bounds) - 1}")
        first, end = bounds[queue_id]
        next_offset = first if queue_offset is None else max(queue_offset, first)
        stop = end if limit is None else min(end, next_offset + limit)
        while next_offset < stop:
            try:
                records = handle.pull(queue_id, next_offset, min(stop - next_offset, 256))
            except DataError:
                finding = None
                try:
                    records = handle.pull(queue_id, next_offset, 1)
                except DataError as error:
                    records, finding = [], Finding("no message", "damage", error.path, error.offset, error.reason)
                if finding is not None:
                    yield finding
                    next_offset += 1
                    continue
            if not records:
                return
            for record in records:
                if record.queue_offset >= stop:
                    return
                yield record.record
            next_offset = records[-1].queue_offset + 1

    def query(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> Iterator[Record | Finding]:
        """Messages with a key, the newest first, each once."""
        records = topic_of(self._node, topic).find(key, **_times(begin_ms, end_ms), limit=limit)
        return iter([record.record for record in records])

    def index_answers(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> Iterator[int | Finding]:
        """Return the places that the index gives for a key: others of the same hash among them, some twice."""
        records = topic_of(self._node, topic).find(key, **_times(begin_ms, end_ms), limit=limit, exact=False)
        return iter([record.physical_offset for record in records])

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The number of a queue's message that was stored at a time. Raises :class:`NoTopicError`."""
        offsets = topic_of(self._node, topic).offset_at(timestamp_ms / 1000)
        if queue_id not in offsets:
            raise NoTopicError(f"no queue {queue_id} of the topic {topic!r}; its queues are 0 to {len(offsets) - 1}")
        return offsets[queue_id]

    def message(self, message_id: str) -> Record:
        """The message with this id; raises :class:`LookupError`, and ``RecordError`` for an invalid id."""
        missing: LookupError | None = None
        for topic in self._node.topics():
            try:
                return topic_of(self._node, topic).view_message(message_id).record
            except LookupError as error:
                missing = error
        raise LookupError(f"no message {message_id}") from missing


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class StoredTopics:
    """The topics of a store's files, which answer as :class:`NodeTopics` do."""

    def __init__(self, opened: RocketmqStore) -> None:
        self.opened = opened

    def topics(self) -> Mapping[str, int]:
        from warren.actors.engines.topics.topic_store import table_of

        table = table_of(self.opened.store)
        table.declare_all(self.opened.batch_queues)
        return dict(sorted(table.topics.items()))

    def bounds(self, topic: str) -> Bounds:
        topics, queues = self.topics(), self.opened.queues
        if topic not in topics:
            raise NoTopicError(f"no topic {topic!r} in {self.opened.path}{did_you_mean(topic, topics)}")
        by_id = {queue_id: queues.get((topic, queue_id)) for queue_id in range(topics[topic])}
        return {
            number: (0, 0) if queue is None else (queue.min_offset, queue.max_offset) for number, queue in by_id.items()
        }

    def groups(self, topic: str) -> list[Row]:
        from warren.salvage.rocketmq.store_inspection import group_rows

        rows = group_rows(self.opened, self.opened.consumer_offsets())
        return [{**row, "member": None} for row in rows if row["topic"] == topic]

    def messages(
        self, topic: str, queue_id: int, queue_offset: int | None, limit: int | None
    ) -> Iterator[Record | Finding]:
        from warren.salvage.rocketmq.store_reading import queue_messages

        return queue_messages(self.opened, self.opened.queue(topic, queue_id), queue_offset, limit)

    def query(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> Iterator[Record | Finding]:
        from warren.salvage.rocketmq.store_reading import exact

        offsets: list[int] = []
        for answer in self.index_answers(topic, key, limit, begin_ms, end_ms):
            if isinstance(answer, Finding):
                yield answer
            else:
                offsets.append(answer)
        yield from exact(self.opened, topic, key, offsets)

    def index_answers(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> Iterator[int | Finding]:
        damage: list[DataError] = []
        offsets = self.opened.store.query(topic, key, limit, begin_ms, end_ms, damage=damage)
        for error in damage:
            yield Finding("damaged index", "damage", error.path, error.offset, error.reason)
        yield from offsets

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        from warren.salvage.rocketmq.batch_queues import BatchQueue

        queue = self.opened.queue(topic, queue_id)
        if isinstance(queue, BatchQueue):
            return queue.offset_at(timestamp_ms)
        return self.opened.store.offset_by_time(topic, queue_id, timestamp_ms)

    def message(self, message_id: str) -> Record:
        from warren.msg_store.commit_log.commit_log_format import parse_message_id

        _, physical_offset = parse_message_id(message_id)
        try:
            record = self.opened.store.commit_log.record(physical_offset)
        except DataError as error:
            raise LookupError(f"no message {message_id}: {error.reason}") from error
        if record.message_id() != message_id.upper():
            raise LookupError(f"no message {message_id}: the one at {physical_offset} is {record.message_id()}")
        return record


TopicSource: TypeAlias = NodeTopics | StoredTopics


def _times(begin_ms: int, end_ms: int) -> dict[str, Any]:
    return {"begin": begin_ms / 1000, "end": min(end_ms / 1000, MAX_MOMENT)}
