"""The end of a topic: the last messages of all its queues together, out of the last ones of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from warren.values.topic_record import StoredMessage
from warren.verbs.steps import Steps
from warren.verbs.topics.reader_verbs import Read, ReaderVerbs
from warren.verbs.topics.topic_verbs import TopicVerbs

R = TypeVar("R", bound=StoredMessage)
Bounds = Mapping[int, tuple[int, int]]
"""By queue, its first number and its end at the time of the query."""


def read_last(topic: TopicVerbs, last: int) -> Steps[tuple[ReaderVerbs, Read, Bounds]]:
    """Return a reader of all queues, the ``last`` messages of each, which it has read, and the queues' bounds."""
    bounds = yield from topic.offsets()
    reader = topic.reader("", broadcast=True, positions=places_before_end(bounds, last))
    read: Read = []
    yield from reader.begin()
    try:
        while not is_behind(reader.positions, bounds) and (batch := (yield from reader.read())):
            read += batch
    except BaseException:
        yield from reader.close()
        raise
    return reader, read, bounds


def places_before_end(bounds: Bounds, last: int) -> dict[int, int]:
    """Return, by queue, the position before its ``last`` messages."""
    return {queue_id: max(first, end - last) for queue_id, (first, end) in bounds.items()}


def is_behind(positions: Mapping[int, int], bounds: Bounds) -> bool:
    """Whether a reader at these positions has read everything up to the end in ``bounds``."""
    return all(positions.get(queue_id, end) >= end for queue_id, (_, end) in bounds.items())


def last_of(records: Iterable[R], bounds: Bounds, last: int) -> list[R]:
    """Return the last messages up to the ends in ``bounds``, and all later ones, in the order of the CommitLog."""
    ordered = sorted(records, key=lambda record: record.physical_offset)
    old = sum(record.queue_offset < bounds[record.queue_id][1] for record in ordered if record.queue_id in bounds)
    return ordered[max(old - last, 0) :]
