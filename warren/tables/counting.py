"""How many messages of a queue come before a part of it: see :mod:`warren.tables.queue_parts`.

The first part of a queue has nothing before it. For another one, index records are counted; those of messages in the
store count if the store has them. One Python worker does a queue's tasks in order, so it keeps what it counted and what
it read itself, and goes on from there.
"""

from __future__ import annotations

from typing import Final

import attrs

from warren.msg_store.rdq.store_reader import StoreReader
from warren.tables.kept import kept
from warren.tables.queue_parts import QueueOpener, QueuePart

MOST_KNOWN: Final = 256

Key = tuple[str, str, str]


@attrs.frozen(eq=False)
class _Known:
    """Of the segments from a directory's first on."""

    stop: int
    """The number of the segment where counting goes on."""
    count: int
    store: StoreReader | None
    """The one that was looked into; ``None``: nothing was wanted of it."""


def count_before(opener: QueueOpener, before: tuple[QueuePart, ...]) -> int:
    """The number of messages in these parts, each from its directory's first segment on."""
    return sum(_count(opener, part) for part in before)


def remember(opener: QueueOpener, part: QueuePart, count: int) -> None:
    """Keep the count of a part that was read: it need not be counted for the parts after it."""
    store, key = opener.bodies(part.vhost_path).looked_into, _key(opener, part)
    known: _Known = kept().counts.get(key, _Known(0, 0, None))
    if known.stop == part.segments.start and (known.store is None or known.store is store):
        _keep(key, _Known(part.segments.stop, known.count + count, store))


def _count(opener: QueueOpener, part: QueuePart) -> int:
    stop, directory, bodies = part.segments.stop, opener.open_part(part), opener.bodies(part.vhost_path)
    key = _key(opener, part)
    known: _Known | None = kept().counts.get(key)
    if known is None or known.stop > stop or (known.store is not None and known.store is not bodies.store):
        known = _Known(0, 0, None)
    found, store = known.count, known.store
    for embedded, stored in directory.deliverable(range(known.stop, stop)) if known.stop < stop else ():
        found += embedded
        if len(stored):
            store = bodies.store
            found += int(store.contains_each(stored).sum())
    _keep(key, _Known(stop, found, store))
    return found


def _key(opener: QueueOpener, part: QueuePart) -> Key:
    return opener.node.path, part.path, part.fingerprint


def _keep(key: Key, known: _Known) -> None:
    counts = kept().counts
    counts.pop(key, None)
    counts[key] = known
    if len(counts) > MOST_KNOWN:
        counts.popitem(last=False)
