"""How many messages of a queue come before a part of it: see :mod:`warren.tables.queue_parts`.

The first part of a queue has nothing before it. For another one, index records are counted; those of messages in the
store count if the store has them. One Python worker does a queue's tasks in order, so it keeps what it counted and what
it read itself, and goes on from there.
"""

from __future__ import annotations

from typing import Final

import attrs

from warren.msg_store.rdq.store_reader import StoreReader
from warren.tables.queue_parts import QueueOpener, QueuePart
from warren.tables.task_caches import current_caches

MOST_COUNTS: Final = 256

Key = tuple[str, str, str]


@attrs.frozen(eq=False)
class _CachedCount:
    """A count of messages in a directory's segments, from the first segment on."""

    stop: int
    """The number of the segment where counting goes on."""
    count: int
    store: StoreReader | None
    """The store that was consulted; ``None`` if the count did not need it."""


def count_before(opener: QueueOpener, before: tuple[QueuePart, ...]) -> int:
    """The number of messages in these parts, each from its directory's first segment on."""
    return sum(_count(opener, part) for part in before)


def remember(opener: QueueOpener, part: QueuePart, count: int) -> None:
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


def _key(opener: QueueOpener, part: QueuePart) -> Key:
    return opener.node.path, part.path, part.fingerprint


def _keep(key: Key, entry: _CachedCount) -> None:
    counts = current_caches().counts
    counts.pop(key, None)
    counts[key] = entry
    if len(counts) > MOST_COUNTS:
        counts.popitem(last=False)
