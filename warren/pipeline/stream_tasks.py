"""The tasks of a micro-batch: each reads a part of the CommitLog, with the messages that the batch has there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.actors.engines.topics.queue_rows import QueueKey
from warren.pipeline.live_store import View, place_of
from warren.queue_index.topics.consume_queue_format import ENTRY_BYTES
from warren.tables.places import Node

LEAST_TASK_BYTES: Final = 4 << 20
_TASKS: Final = 16
"""The most parts into which a small batch is cut."""


@attrs.frozen
class OffsetRange:
    """Messages of a queue that follow one another: those from ``begin`` on, before ``stop``."""

    topic: str
    queue_id: int
    begin: int
    stop: int

    @property
    def key(self) -> QueueKey:
        return self.topic, self.queue_id

    def __str__(self) -> str:
        return f"topic {self.topic}, queue {self.queue_id}, messages {self.begin} to {self.stop - 1}"


@attrs.frozen
class StreamTask:
    """What one task reads."""

    node: Node
    ranges: tuple[OffsetRange, ...]


def cut(
    node: Node, view: View, ranges: list[OffsetRange], partition_bytes: int, least: int | None = None
) -> Iterator[StreamTask]:
    """Yield tasks, each with a part of the CommitLog; ``least``: about this many, if there are as many bytes."""
    if not ranges:
        return
    starts = [place_of(view.queues[span.key], span.begin)[0] for span in ranges]
    stops = [place_of(view.queues[span.key], span.stop - 1)[0] + 1 for span in ranges]
    low, high = min(starts), max(stops)
    step = min(partition_bytes, max(LEAST_TASK_BYTES, -(-(high - low) // _TASKS)))
    step = step if least is None else min(step, -(-(high - low) // least))
    cursors = [span.begin for span in ranges]
    for bound in range(low + step, high + step, step):
        parts = []
        for at, span in enumerate(ranges):
            queue = view.queues[span.key]
            stop = bisect_left(range(cursors[at], span.stop), bound, key=lambda number: place_of(queue, number)[0])
            if stop:
                parts.append(attrs.evolve(span, begin=cursors[at], stop=cursors[at] + stop))
                cursors[at] += stop
        if parts:
            yield StreamTask(node, tuple(parts))


def places(view: View, ranges: Sequence[OffsetRange]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return physical offsets and sizes of the messages, ascending."""
    entries = []
    for span in ranges:
        queue = view.queues[span.key]
        begin = min(max(span.begin, queue.mapped.min_offset // ENTRY_BYTES), span.stop)  # files of entries expire, too
        entries.append(queue.entries(begin, span.stop - begin))
    positions = np.concatenate([part["physical_offset"].astype(np.int64) for part in entries])
    sizes = np.concatenate([part["size"].astype(np.int64) for part in entries])
    order = np.argsort(positions, kind="stable")
    return positions[order], sizes[order]
