"""The table ``messages``: what a restarted broker would deliver, each position joined with its body.

Rows, values and order are those of ``warren export``; the code that finds and decodes them is the same.

``position`` counts through a queue, its levels included, from 0. A message whose body the store does not have is not
counted; one that is there and cannot be read leaves its number out, because only decoding all messages before a part
would find it. So the numbers are the same however the queue is cut into tasks. For a part with others before it
(:mod:`warren.tables.queue_parts`) index records are counted; those of messages in the store count if the store has
them. One Python worker does a queue's tasks in order, so it keeps what it counted and what it read itself, and goes on
from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import attrs

from warren.arrow.arrays import Columns, Rows
from warren.arrow.message_arrays import message_arrays
from warren.msg_store.rdq.store_reader import StoreReader
from warren.salvage.message_batches import Batcher
from warren.salvage.queue_directory import Finding
from warren.tables.bodies import current_caches
from warren.tables.damage import Damage
from warren.tables.filters import Pushdown
from warren.tables.index import queue_columns
from warren.tables.places import Kind
from warren.tables.queue_parts import QueueOpener, QueuePart, files_of_queues, plan_queues
from warren.tables.read_options import ReadOptions
from warren.tables.schemas import MESSAGES
from warren.tables.table import Table, Task

_MOST_COUNTS: Final = 256

_Key = tuple[str, str, str]


def read(task: Task, options: ReadOptions, pushdown: Pushdown) -> Iterator[Rows]:
    """The messages of a task's parts, in order."""
    opener, damage = QueueOpener(task.node), Damage(task.node, options)
    bodies = options.bodies and (pushdown.asks("body") or pushdown.asks("body_sha256"))
    batcher = Batcher(options.batch_bytes, with_bodies=bodies)
    for part in task.work:
        if part.before is not None:
            batcher.position = _count_before(opener, part.before) if pushdown.asks("position") else 0
        directory, first = opener.open_part(part), batcher.position
        for batch in batcher.batches(directory.message_runs(only=part.segments)):
            if isinstance(batch, Finding):
                damage.finding(batch)
            else:
                yield Columns(len(batch), {**queue_columns(task.node, part), **message_arrays(batch, bodies=bodies)})
        _remember(opener, part, batcher.position - first)


# ── positions ────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False)
class _CachedCount:
    """A count of messages in a directory's segments, from the first segment on."""

    stop: int
    """The number of the segment where counting goes on."""
    count: int
    store: StoreReader | None
    """The store that was consulted; ``None`` if the count did not need it."""


def _count_before(opener: QueueOpener, before: tuple[QueuePart, ...]) -> int:
    """The number of messages in these parts, each from its directory's first segment on."""
    return sum(_count(opener, part) for part in before)


def _remember(opener: QueueOpener, part: QueuePart, count: int) -> None:
    """Keep the count of a part that was read: it need not be counted for the parts after it."""
    store, key = opener.bodies(part.vhost_path).looked_into, _key(opener, part)
    previous: _CachedCount = current_caches().counts.get(key, _CachedCount(0, 0, None))
    if previous.stop == part.segments.start and (previous.store is None or previous.store is store):
        _keep(key, _CachedCount(part.segments.stop, previous.count + count, store))


def _count(opener: QueueOpener, part: QueuePart) -> int:
    stop, directory, bodies = part.segments.stop, opener.open_part(part), opener.bodies(part.vhost_path)
    key = _key(opener, part)
    previous: _CachedCount | None = current_caches().counts.get(key)
    if previous is None or previous.stop > stop or (previous.store is not None and previous.store is not bodies.store):
        previous = _CachedCount(0, 0, None)
    count, store = previous.count, previous.store
    for embedded, stored in directory.deliverable(range(previous.stop, stop)) if previous.stop < stop else ():
        count += embedded
        if len(stored):
            store = bodies.store
            count += int(store.contains_each(stored).sum())
    _keep(key, _CachedCount(stop, count, store))
    return count


def _key(opener: QueueOpener, part: QueuePart) -> _Key:
    return opener.node.path, part.path, part.fingerprint


def _keep(key: _Key, entry: _CachedCount) -> None:
    counts = current_caches().counts
    counts.pop(key, None)
    counts[key] = entry
    if len(counts) > _MOST_COUNTS:
        counts.popitem(last=False)


TABLE: Final = Table(
    name="messages",
    kinds=Kind.QUEUES,
    schema=MESSAGES,
    plan=partial(plan_queues, messages=True),
    read=read,
    files=partial(files_of_queues, with_store=True),
)
