"""Which messages of the CommitLog get entries, and in which queues."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from warren.msg_store.commit_log.record_columns import RecordColumns

QueueKey = tuple[str, int]
"""A topic, and the number of one of its queues."""


def rows_of_queues(columns: RecordColumns) -> Iterator[tuple[QueueKey, npt.NDArray[np.intp] | slice]]:
    """The rows that get entries, by queue, in their order."""
    queued = columns.are_queued
    queue_ids, topic_of = columns.queue_ids, columns.topic_of
    if len(columns.topics) == 1 and queued.all() and (queue_ids == queue_ids[0]).all():
        yield (columns.topics[0], int(queue_ids[0])), slice(None)
        return
    rows = np.flatnonzero(queued)
    if not len(rows):
        return
    numbers = (topic_of[rows].astype(np.int64) << 32) + (queue_ids[rows].astype(np.int64) & 0xFFFFFFFF)
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    for group in np.split(rows[order], cuts):
        yield (columns.topics[topic_of[group[0]]], int(queue_ids[group[0]])), group
