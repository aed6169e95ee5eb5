"""The end of a topic: the last messages of all its queues together, out of the last ones of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from warren.values.topic_record import StoredMessage

R = TypeVar("R", bound=StoredMessage)
Bounds = Mapping[int, tuple[int, int]]
"""By queue, where it began and where it ended when that was asked."""


def places_before_end(bounds: Bounds, last: int) -> dict[int, int]:
    """By queue, where so many messages of it are left."""
    return {queue_id: max(first, end - last) for queue_id, (first, end) in bounds.items()}


def is_behind(positions: Mapping[int, int], bounds: Bounds) -> bool:
    """Whether somebody at these places has all that was there."""
    return all(positions.get(queue_id, end) >= end for queue_id, (_, end) in bounds.items())


def last_of(found: Iterable[R], bounds: Bounds, last: int) -> list[R]:
    """The last of what was there, and what has come since, as the CommitLog has them."""
    ordered = sorted(found, key=lambda record: record.physical_offset)
    old = sum(record.queue_offset < bounds[record.queue_id][1] for record in ordered if record.queue_id in bounds)
    return ordered[max(old - last, 0) :]
