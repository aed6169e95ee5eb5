"""Messages out of a topic store: one queue's in their order, all of them as they lie, and those with a key.

Whatever cannot be read is a finding in its place, and the rest is there.
"""

from __future__ import annotations

from collections.abc import Iterator

from msg_store.commit_log_format import Blank, Record
from queue_index.consume_queue import ConsumeQueue
from storage.errors import DataError
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.message_lines import carries
from warren.salvage.rocketmq.store import RocketmqStore
from warren.salvage.rocketmq.walking import walk_records

_MANY = 1024
"""Entries that are read at once."""


def queue_entries(queue: ConsumeQueue, queue_offset: int | None, limit: int | None) -> Iterator[tuple[int, int, int]]:
    """Physical offset, size and tags code of the entries from ``queue_offset`` on, or from the queue's first."""
    at = queue.min_offset if queue_offset is None else max(queue_offset, queue.min_offset)
    stop = queue.max_offset if limit is None else min(at + limit, queue.max_offset)
    while at < stop:
        entries = queue.entries(at, min(stop - at, _MANY))
        if not len(entries):
            return
        rows: list[tuple[int, int, int]] = entries.tolist()
        yield from rows
        at += len(entries)


def queue_messages(
    opened: RocketmqStore, queue: ConsumeQueue, queue_offset: int | None, limit: int | None
) -> Iterator[Record | Finding]:
    """One queue's messages; neighbouring entries whose records cannot be had make one finding."""
    log = opened.store.commit_log
    at = queue.min_offset if queue_offset is None else max(queue_offset, queue.min_offset)
    lost: _Lost | None = None
    for number, (physical_offset, size, _) in enumerate(queue_entries(queue, queue_offset, limit), at):
        try:
            record = log.record(physical_offset, size)
        except DataError as error:
            if lost is not None and lost.reason == error.reason:
                lost.last = number
                continue
            if lost is not None:
                yield lost.finding(queue)
            lost = _Lost(number, number, error.reason)
            continue
        if lost is not None:
            yield lost.finding(queue)
            lost = None
        yield record
    if lost is not None:
        yield lost.finding(queue)


class _Lost:
    """A run of messages that cannot be read, for one reason."""

    def __init__(self, first: int, last: int, reason: str) -> None:
        self.first = first
        self.last = last
        self.reason = reason

    def finding(self, queue: ConsumeQueue) -> Finding:
        which = f"message {self.first}" if self.first == self.last else f"messages {self.first} to {self.last}"
        return Finding("unreadable message", "damage", queue.mapped.directory, None, f"{which}: {self.reason}")


def scan_records(opened: RocketmqStore) -> Iterator[Record | Blank | Finding]:
    """All of the CommitLog in physical order."""
    return walk_records(opened.store.commit_log)


def exact(opened: RocketmqStore, topic: str, key: str, physical_offsets: list[int]) -> Iterator[int | Finding]:
    """Of what the index answered the messages that do have the key, each once."""
    log = opened.store.commit_log
    for physical_offset in dict.fromkeys(physical_offsets):
        try:
            record = log.record(physical_offset)
        except DataError as error:
            yield Finding("unreadable message", "damage", error.path, error.offset, error.reason)
            continue
        if carries(record, topic, key):
            yield physical_offset
