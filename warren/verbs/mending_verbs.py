"""The verbs of a queue that walk through its messages: to delete them, to move them elsewhere, or to count them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warren.storage.call_arguments import as_texts
from warren.storage.errors import InvalidValueError
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.selecting import Act, Done, Ids, Walk, Where, dead_letters_only, target_of
from warren.verbs.steps import Reading, Steps


def _all_of(ids: list[str]) -> Steps[Done]:
    return len(ids), ""
    yield


def _walked(begin: Callable[[], Walk]) -> Steps[int]:
    """Run a walk to its end. Beginning it parses its condition, which may take long."""
    walk: Walk = yield Reading(begin)
    return (yield from walk.steps())


class MendingVerbs:
    """What is done with messages wherever they stand in a queue."""

    def __init__(self, queue: QueueVerbs) -> None:
        self._queue = queue

    def remove(self, *, where: Where | None = None, ids: Ids | None = None, limit: int | None = None) -> Steps[int]:
        """Delete messages, wherever they stand, but not those that consumers have; return how many.

        ``where``: a condition (``"headers['kind'] = 'test'"``), or a function of a message; ``ids``: ids from
        :meth:`browse`; ``limit``: the maximum number. :meth:`purge` deletes all.
        """
        if where is None and ids is None:
            raise InvalidValueError("remove() wants where or ids; purge() deletes all")
        return (yield from _walked(lambda: self.removing(where, ids, limit)))

    def move(
        self, to: Any, *, where: Where | None = None, ids: Ids | None = None, limit: int | None = None
    ) -> Steps[int]:
        """Move messages, in their order, from wherever they stand; return how many.

        ``to``: a queue or its name, or an ``(exchange, routing key)``; they are published there. ``where``, ``ids`` and
        ``limit`` as for :meth:`remove`; without the first two: all. A message stays until it is safe there, so a crash
        may leave it in both. Raises :class:`NotMovedError` if the target does not take a message.
        """
        return (yield from _walked(lambda: self.moving(to, where, ids, limit)))

    def requeue_dead_letters(
        self, *, where: Where | None = None, ids: Ids | None = None, limit: int | None = None
    ) -> Steps[int]:
        """Move dead letters back to the queues that they died in; return how many. Others stay.

        They go back as they were there, with their exchange and routing key, without ``x-death``. If the queue does not
        exist, they are published to that exchange again; if that leads nowhere, they stay. Everything else as for
        :meth:`move`.
        """
        return (yield from _walked(lambda: self.requeueing(where, ids, limit)))

    def removing(self, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """What :meth:`remove` does, page by page."""
        return self._walk(self._queue.remove_ids, where, ids, limit)

    def moving(self, to: Any, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """What :meth:`move` does, page by page."""
        target = target_of(to)
        return self._walk(lambda chosen: self._queue.host.move(chosen, target), where, ids, limit)

    def requeueing(self, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """What :meth:`requeue_dead_letters` does, page by page."""
        where = where if ids is not None else dead_letters_only(where)  # messages that never died are not touched
        return self._walk(lambda chosen: self._queue.host.move(chosen, None), where, ids, limit)

    def counting_dead(self, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """A walk that only counts what :meth:`requeueing` would try to move."""
        return self.counting(where if ids is not None else dead_letters_only(where), ids, limit)

    def counting(self, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """A walk that only counts the selected messages."""
        return self._walk(self.count_ids if ids is not None else _all_of, where, ids, limit)

    def _walk(self, act: Act, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        id_list = None if ids is None else [ids] if isinstance(ids, str) else as_texts(ids, "ids")
        return Walk(self._queue, act, where, id_list, limit)

    def count_ids(self, ids: list[str]) -> Steps[Done]:
        """Only count those that are ready."""
        count = 0
        for id in ids:
            level, seq_id, _ = id.split(":")
            page = yield from self._queue.page(1, (int(level), int(seq_id) - 1))
            count += len(page) == 1 and page[0].id == id and not page[0].browsed.unacked
        return count, ""
