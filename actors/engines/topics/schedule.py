"""Delayed messages: they wait in the store's own topic, one queue for each delay, until they are due.

A delay is one of a few *levels* (``message_delay_level``; 1 is the first). A message with level n is stored in queue
n - 1 of ``SCHEDULE_TOPIC_XXXX``, and its properties name its real topic and queue. All messages of a queue wait equally
long, so they are due in their order, and only the first one needs to be checked. The tags code of its ConsumeQueue
entry is the time when it is due.

When a message is due it is appended to its real topic, properties and all (RocketMQ 4.9.3 leaves even the delay in
them). How far each level is *delivered* is a queue offset, stored in ``delayOffset.json``. It is written from time to
time; messages delivered between the last write and a crash are delivered again.

A time that is further away than the level's delay cannot come from this clock: the message is due at once, as with
RocketMQ. Messages of levels that the settings do not have (any more) wait until the settings have them.

Invariant: no offset is negative; what is known of a level is known from its offset on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import numpy as np
import numpy.typing as npt

from warren.actors.engines.topics.errors import DelayError
from warren.actors.engines.topics.names import DELAY, HALF_TOPIC, REAL_QUEUE_ID, REAL_TOPIC, SCHEDULE_TOPIC
from warren.actors.engines.topics.reading import read_sound_records
from warren.actors.engines.topics.record_copies import all_with_properties, copy_of, merged, real_place
from warren.actors.engines.topics.topic_store import TopicStore
from warren.msg_store.commit_log.commit_log import Batch, MessageIllegalError
from warren.msg_store.commit_log.commit_log_format import Record, RecordError
from warren.queue_index.topics.consume_queue_format import Entries
from warren.storage.errors import WarrenError
from warren.storage.topic_settings import TopicSettings


def queue_of_level(level: int) -> int:
    return level - 1


def level_of_delay(delay_ms: int, settings: TopicSettings) -> int:
    """The level with the shortest delay that is at least ``delay_ms``; 0 for no delay. Raises :class:`DelayError` if
    all are shorter."""
    if delay_ms <= 0:
        return 0
    long_enough = [(ms, level) for level, ms in enumerate(settings.delay_levels_ms(), 1) if ms >= delay_ms]
    if not long_enough:
        raise DelayError(f"no delay level is as long as {delay_ms} ms; there are: {settings.message_delay_level}")
    return min(long_enough)[1]


def to_scheduled(batch: Batch, level: int, settings: TopicSettings) -> Batch:
    """Return a batch in the form in which it waits; a level beyond the last one means the last one. Messages are put
    singly, because RocketMQ refuses batches with a delay. Raises :class:`DelayError` for an invalid level."""
    levels = len(settings.delay_levels_ms())
    if level < 1 or not levels:
        raise DelayError(f"there is no delay level {level}; there are: {settings.message_delay_level}")
    level = min(level, levels)
    changes = {DELAY: str(level), REAL_TOPIC: batch.topic, REAL_QUEUE_ID: str(batch.queue_id)}
    return attrs.evolve(
        batch,
        topic=SCHEDULE_TOPIC,
        queue_id=queue_of_level(level),
        properties=all_with_properties(batch.properties, changes),
        as_one=False,
    )


def from_scheduled(record: Record) -> Batch:
    """Return what to append to the real topic of a due message. Raises :class:`RecordError` if it names no topic, or
    that of half messages, which must not be filled this way."""
    topic, queue_id = real_place(record)
    if topic == HALF_TOPIC:
        raise RecordError(f"the delayed record at physical offset {record.physical_offset} is a half message")
    return copy_of(record, topic=topic, queue_id=queue_id, properties=record.properties)


def deliveries(records: Iterable[Record]) -> tuple[list[Batch], list[RecordError]]:
    """Return due messages, in order and in the fewest batches, and an error for each that cannot be delivered."""
    batches, refused = [], []
    for record in records:
        try:
            batches.append(from_scheduled(record))
        except RecordError as error:
            refused.append(error)
    return merged(batches), refused


def deliverable(store: TopicStore, entries: Entries) -> tuple[list[Batch], list[WarrenError], int]:
    """Return the :func:`deliveries` of the entries' messages that the store accepts, the errors of the others, and how
    many have expired."""
    records, damage = read_sound_records(store.commit_log, entries)
    batches, refused = deliveries(records)
    errors: list[WarrenError] = [*damage, *refused]

    def is_allowed(batch: Batch, reasons: list[WarrenError]) -> bool:
        try:
            store.check(batch)
        except MessageIllegalError as error:
            reasons.append(error)
            return False
        return True

    allowed: list[Batch] = []
    for batch in batches:
        if is_allowed(batch, []):
            allowed.append(batch)
        else:
            allowed += [single for single in _singles(batch) if is_allowed(single, errors)]
    return allowed, errors, len(entries) - len(records) - len(damage)


def _singles(batch: Batch) -> list[Batch]:
    """Return the messages as batches of one."""
    column = [batch.properties] * len(batch.bodies) if isinstance(batch.properties, bytes) else batch.properties
    return [
        attrs.evolve(batch, bodies=[body], properties=properties)
        for body, properties in zip(batch.bodies, column, strict=True)
    ]


def _copy(offsets: Mapping[int, int]) -> dict[int, int]:
    return dict(offsets)


@attrs.frozen
class _Seen:
    """What is known of a level's first undelivered message."""

    queue_offset: int
    due_ms: int | None
    """``None`` if there is no message."""


@attrs.define
class DelaySchedule:
    """How far each level is delivered, and when the next message is due."""

    delays_ms: tuple[int, ...]
    """The delay of each level; the first is level 1."""
    offsets: dict[int, int] = attrs.field(factory=dict, converter=_copy)
    """By level: the queue offset of the first message that is not delivered; what ``delayOffset.json`` holds."""
    is_dirty: bool = attrs.field(default=False, init=False)
    """Whether the offsets changed; the code that saves them resets this."""
    _seen: dict[int, _Seen] = attrs.field(factory=dict, init=False)

    @property
    def levels(self) -> range:
        return range(1, len(self.delays_ms) + 1)

    def offset(self, level: int) -> int:
        return self.offsets.get(level, 0)

    def correct(self, level: int, minimum: int, maximum: int) -> int:
        """Set the range of queue offsets in the level's queue. Return how many messages expired undelivered.

        Call this before :meth:`look`, once the CommitLog is dispatched. A level without deliveries begins at the
        minimum. An offset after the maximum is reset to the maximum, because the store lost its tail.
        """
        before = self.offset(level)
        place = min(max(before, minimum), maximum)
        if place != before:
            self.offsets[level], self.is_dirty = place, True
        return max(place - before, 0)

    def wanting(self, now_ms: int) -> list[int]:
        """Return the levels that have due messages or were not looked at yet."""
        return [level for level in self.levels if self._is_wanting(level, now_ms)]

    def _is_wanting(self, level: int, now_ms: int) -> bool:
        due_ms = self._due_ms(level)
        return due_ms is not None and not now_ms < due_ms <= now_ms + self.delays_ms[level - 1]

    def next_due_ms(self) -> int | None:
        """When there is something to do; 0: now; ``None``: nothing waits."""
        return min((due for level in self.levels if (due := self._due_ms(level)) is not None), default=None)

    def look(self, level: int, tags_codes: npt.NDArray[np.int64], now_ms: int) -> int:
        """Return how many messages are due, beginning with the one at the level's offset.

        ``tags_codes``: those of consecutive ConsumeQueue entries from that offset on; empty if there is no entry.
        """
        horizon = now_ms + self.delays_ms[level - 1]
        waiting = (tags_codes > now_ms) & (tags_codes <= horizon)
        count = int(waiting.argmax()) if waiting.any() else len(tags_codes)
        if count < len(tags_codes):
            self._seen[level] = _Seen(self.offset(level) + count, int(tags_codes[count]))
        elif not count:
            self._seen[level] = _Seen(self.offset(level), None)
        else:  # it is unknown what follows
            self._seen.pop(level, None)
        return count

    def arrived(self, level: int, due_ms: int) -> None:
        """Note that a level got a new message, due at ``due_ms``. Has no effect if others wait before it."""
        seen = self._seen.get(level)
        if seen is not None and seen.due_ms is None:
            self._seen[level] = attrs.evolve(seen, due_ms=due_ms)

    def delivered(self, level: int, count: int) -> None:
        """Skip ``count`` messages at the level's offset, which were appended to their topics or never can be."""
        if count:
            self.offsets[level] = self.offset(level) + count
            self.is_dirty = True

    def _due_ms(self, level: int) -> int | None:
        seen = self._seen.get(level)
        return seen.due_ms if seen is not None and seen.queue_offset == self.offset(level) else 0

    def check_invariants(self, maxima: Mapping[int, int] | None = None) -> None:
        """Raise ``RuntimeError`` if offsets are negative, or (``maxima`` by level) after the queue's end."""
        for level, queue_offset in self.offsets.items():
            if queue_offset < 0 or (maxima is not None and queue_offset > maxima.get(level, queue_offset)):
                raise RuntimeError(f"delay level {level} is delivered up to {queue_offset}")
        for level, seen in self._seen.items():
            if seen.queue_offset < 0 or level not in self.levels:
                raise RuntimeError(f"delay level {level}: {seen}")
