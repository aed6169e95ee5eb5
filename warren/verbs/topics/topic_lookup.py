"""Looking messages up in a topic's files: by key, by number, by time, and those that a group's member has taken.

Nothing here waits: the caller has let the index catch up before
(:meth:`~warren.hosting.running_node.RunningNode.caught_up`). All of it but :func:`offsets_of` reads files, and is
not for an event loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Self

import attrs
import numpy as np

from warren.actors.engines.topics.consumer_group import Taken
from warren.actors.engines.topics.errors import QueueRangeError
from warren.actors.engines.topics.names import TAGS
from warren.actors.engines.topics.reading import body_damage, read_packed
from warren.actors.engines.topics.topic_store import FOR_EVER_MS
from warren.actors.topics.running_topics import RunningTopics
from warren.msg_store.commit_log.commit_log import CommitLog
from warren.msg_store.commit_log.commit_log_format import decode_properties, parse_message_id
from warren.msg_store.commit_log.packed_records import PackedRecords
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.queue_index.topics.consume_queue_format import ENTRY_BYTES, are_extension_addresses
from warren.salvage.rocketmq.record_lines import has_key
from warren.storage.call_arguments import as_texts
from warren.storage.errors import DataError, StorageError
from warren.storage.java_hash import index_hash, java_hash
from warren.values.topic_record import Moment, to_ms

PULLED_BYTES: Final = 1 << 20
"""About this many bytes are read at a time."""
_SECOND_MS: Final = 1000


# ── by key, by number, by time ──────────────────────────────────────────────────────────────────────────────────────


def find(
    running: RunningTopics,
    topic: str,
    key: str,
    *,
    begin: Moment | None,
    end: Moment | None,
    limit: int,
    exact: bool,
) -> list[PackedRecords]:
    """:meth:`warren.Topic.find`."""
    first = 0 if begin is None else to_ms(begin)
    last = FOR_EVER_MS if end is None else to_ms(end)
    at_any_time = begin is None and end is None
    index, log = running.store.index, running.store.commit_log
    key_hash, most = index_hash(f"{topic}#{key}"), max(limit, 1)
    while True:
        # The index stores times to the second, and the first of a file is wrong: ask for more.
        offsets = index.query(key_hash, most, first - _SECOND_MS if first > _SECOND_MS else 0, FOR_EVER_MS)
        matches: list[PackedRecords] = []
        for offset in dict.fromkeys(offsets) if exact and len(offsets) > 1 else offsets:
            packed = _named(log, offset)
            if packed is None or not (at_any_time or first <= packed.store_timestamp() <= last):
                continue
            if exact:
                named, properties = packed.topic_and_properties()
                if named != topic or not has_key(properties, key):
                    continue
            matches.append(packed)
        if len(matches) >= limit or len(offsets) < most:
            return matches if len(matches) <= limit else matches[: max(limit, 0)]
        most *= 2


def _named(log: CommitLog, offset: int) -> PackedRecords | None:
    """Return the message at an offset from the index; ``None`` if it has expired, or is no message."""
    try:
        packed, is_sound = log.packed(offset)
    except DataError:
        return None
    if not is_sound:
        raise body_damage(log, offset)
    return packed


def record_at(running: RunningTopics, topic: str, queue_id: int, queue_offset: int) -> PackedRecords:
    """Return the message with this number in its queue; raises ``LookupError``."""
    queue = running.store.queues.get((topic, queue_id))
    if queue is not None and queue.min_offset <= queue_offset < queue.max_offset:
        for record in read_packed(running.store.commit_log, queue.entries(queue_offset, 1)):
            return record
    raise LookupError(f"{topic}, queue {queue_id}: no message {queue_offset}")


def records_from(
    running: RunningTopics, topic: str, queue_id: int, queue_offset: int, max_records: int
) -> list[PackedRecords]:
    """Return messages of a queue from a number on, or from its first: at least one if there is one, and about
    :data:`PULLED_BYTES` at most. Raises :class:`QueueRangeError` if the queue ends before that number."""
    queue = running.store.queues.get((topic, queue_id))
    end = 0 if queue is None else queue.max_offset
    if queue_offset > end:
        raise QueueRangeError(f"topic {topic!r}, queue {queue_id} ends at {end}, before {queue_offset}")
    if queue is None or max_records < 1:
        return []
    entries = queue.entries(max(queue_offset, queue.min_offset), max_records)
    ends = entries["size"].astype(np.int64).cumsum()
    few = entries[: max(int(np.searchsorted(ends, PULLED_BYTES, "right")), 1)]
    return [packed.take([row]) for packed in read_packed(running.store.commit_log, few) for row in range(len(packed))]


def message_at(running: RunningTopics, topic: str, physical_offset: int) -> PackedRecords:
    """Return the topic's message at this offset of the CommitLog; raises ``LookupError``."""
    log = running.store.commit_log
    try:
        packed, is_sound = log.packed(physical_offset)
    except DataError as error:
        raise LookupError(f"{topic}: no message begins at {physical_offset}: {error.reason}") from None
    record = packed.unpack()
    if record.topic != topic or record.physical_offset != physical_offset:
        raise LookupError(f"{topic}: at {physical_offset} is a message of {record.topic}")
    if not is_sound:
        raise body_damage(log, physical_offset)
    return packed


def message_of_id(running: RunningTopics, topic: str, message_id: str) -> PackedRecords:
    """Return the topic's message with this id; raises ``LookupError``, and :class:`RecordError` for an invalid id."""
    _, physical_offset = parse_message_id(message_id)
    packed = message_at(running, topic, physical_offset)
    actual_id = packed.unpack().message_id()
    if actual_id != message_id.upper():
        raise LookupError(f"{topic}: the message at {physical_offset} has the id {actual_id}")
    return packed


def offsets_at(running: RunningTopics, topic: str, queues: int, moment: Moment) -> dict[int, int]:
    """Return, by queue, the number of the first message stored at this time or later, or of the next if none."""
    log, offsets = running.store.commit_log, {}
    for queue_id in range(queues):
        queue = running.store.queues.get((topic, queue_id))
        offsets[queue_id] = 0 if queue is None else _first_at(log, queue, to_ms(moment))
    return offsets


def _first_at(log: CommitLog, queue: ConsumeQueue, moment_ms: int) -> int:
    while True:
        first = log.min_offset
        try:
            return queue.first_offset_at(moment_ms, log.store_timestamp_of, first)
        except (DataError, StorageError):
            if log.min_offset == first:  # else a file expired meanwhile
                raise


# ── where queues begin and end ──────────────────────────────────────────────────────────────────────────────────────


def offsets_of(running: RunningTopics, topic: str, queues: int) -> dict[int, tuple[int, int]]:
    """Return, by queue, the number of the first message, and that of the next one to be stored."""
    bounds = running.store.bounds(topic)
    return {queue_id: bounds(queue_id) for queue_id in range(queues)}


# ── what a member has taken ─────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class TagFilter:
    """Selects messages with any of the tags; without tags, all messages."""

    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()
    """Their hashes, as entries have them."""

    @classmethod
    def of(cls, tags: str | Iterable[str] | None) -> Self:
        """Parse tags. RocketMQ's ``"a || b"`` means two tags, ``"*"`` all messages."""
        names = [part.strip() for part in tags.split("||")] if isinstance(tags, str) else as_texts(tags or (), "tags")
        chosen = frozenset() if "*" in names else frozenset(filter(None, names))
        return cls(chosen, frozenset(map(java_hash, chosen)))

    def wants(self, properties: bytes) -> bool:
        """Whether a message with these properties, in their stored form, has one of the tags."""
        return decode_properties(properties).get(TAGS) in self.tags


def read_taken(
    running: RunningTopics, topic: str, taken: Taken, tags: TagFilter, *, is_retry: bool = False
) -> Iterator[PackedRecords]:
    """Yield the messages that were taken from a queue of this topic and have the tags.

    ``is_retry``: it is a group's topic of retries; the entries there do not always have the tags' hashes.
    """
    queue = running.store.queues.get((topic, taken.queue_id))
    if queue is None or not taken.count:
        return
    entries = queue.entries(taken.queue_offset, taken.count)
    if len(entries) < taken.count:  # a file of the queue has expired since they were taken
        first = max(queue.mapped.min_offset // ENTRY_BYTES, taken.queue_offset)
        entries = queue.entries(first, max(taken.end - first, 0))
    if tags.codes and not is_retry:
        codes = entries["tags_code"].astype(np.int64)
        entries = entries[np.isin(codes, list(tags.codes)) | are_extension_addresses(codes)]
    for records in read_packed(running.store.commit_log, entries):
        if not tags.tags:
            yield records
        elif rows := [row for row in range(len(records)) if tags.wants(records.properties(row))]:
            yield records if len(rows) == len(records) else records.take(rows)
