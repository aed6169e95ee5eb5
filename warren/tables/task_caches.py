"""Caches that live from one task to the next, because the next one may need the same store or count.

A Python worker of Spark does one task at a time, and keeps this for all that it does. A process that reads several
tables at once gives each reading its own (:func:`alone`), because one may close what another still uses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from typing import Any, Final, TypeVar

import attrs

_Item = TypeVar("_Item")


@attrs.frozen(eq=False)
class TaskCaches:
    """Caches; the entry that was used last is the last one."""

    stores: OrderedDict[tuple[str, str], Any] = attrs.Factory(OrderedDict)
    """Of :mod:`warren.tables.bodies`: scanned stores, by node and directory."""
    counts: OrderedDict[tuple[str, str, str], Any] = attrs.Factory(OrderedDict)
    """Of :mod:`warren.tables.counting`: by node, directory and fingerprint."""

    def forget(self) -> None:
        """Close all stores, and forget everything."""
        self.counts.clear()
        while self.stores:
            self.stores.popitem()[1].store.close()


_OF_THE_WORKER: Final = TaskCaches()
_CURRENT: Final[ContextVar[TaskCaches]] = ContextVar("task_caches", default=_OF_THE_WORKER)


def current_caches() -> TaskCaches:
    """Return the caches of the current reader."""
    return _CURRENT.get()


def alone(read: Callable[[], Iterator[_Item]]) -> Iterator[_Item]:
    """Yield what ``read`` yields, with a :class:`TaskCaches` of its own until it ends or is closed."""
    context, caches = copy_context(), TaskCaches()
    context.run(_CURRENT.set, caches)
    items = context.run(read)
    try:
        while (item := context.run(next, items, None)) is not None:
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            context.run(close)
        caches.forget()
