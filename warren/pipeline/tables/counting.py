"""How many messages of a queue come before a part of it: see :mod:`warren.pipeline.tables.queue_parts`.

What stands in the index was counted when the table was planned; what lies in the store is counted here. The tasks of a
queue that one Python worker does come in order, so it keeps what it counted last, and goes on from there.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import attrs

from msg_store.store_reader import StoreReader
from warren.pipeline.bare_queues import Opening
from warren.pipeline.places import Node
from warren.pipeline.tables.queue_parts import Before, QueuePart

MOST_KNOWN: Final = 256

Key = tuple[str, str, int, tuple[tuple[int, int], ...], int]


@attrs.frozen(eq=False)
class _Known:
    store: StoreReader
    stop: int
    """Of the segments that were counted."""
    count: int


_known: OrderedDict[Key, _Known] = OrderedDict()
"""By node, directory, first segment and the sizes of the files, the one used last at the end."""


def count(node: Node, opening: Opening, before: Before) -> int:
    """All messages before a part that can be had."""
    return before.embedded + sum(_in_store(node, opening, part) for part in before.stored)


def _in_store(node: Node, opening: Opening, part: QueuePart) -> int:
    store, directory = part.bodies(opening.files, node).store, part.open(opening, node)
    first, stop = part.segments.start, part.segments.stop
    extent = directory.extent()
    key = (node.path, part.path, first, tuple(extent.pieces.items()), extent.shared_bytes)
    known = _known.pop(key, None)
    if known is None or known.store is not store or known.stop > stop:
        known = _Known(store, first, 0)
    rest = range(known.stop, stop)
    found = directory.deliverable(rest) if rest else iter(())
    added = sum(int(store.contains_each(msg_ids).sum()) for _, msg_ids in found)
    _known[key] = _Known(store, stop, known.count + added)
    if len(_known) > MOST_KNOWN:
        _known.popitem(last=False)
    return known.count + added
