"""The verbs of a queue that look at its messages, or take them from wherever they stand: to delete them, or to move
them elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from warren.actors.queue.inspecting import BrowsedMessage, browsed_page, chosen_ids, ends_of, is_whole
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.queue_entry import QueueEntry
from warren.queue_index.index.directory import MAX_SEQ_ID
from warren.storage.call_arguments import as_texts
from warren.storage.errors import InvalidValueError
from warren.verbs.operation import Operation, Performer, local, operation
from warren.verbs.queue_host import LocalQueue, QueueHost
from warren.verbs.selecting import (
    PAGE,
    Act,
    BrowsedDelivery,
    Done,
    Ids,
    Place,
    Selected,
    Walk,
    Where,
    browsed_of,
    browsed_to_plain,
    dead_letters_only,
    matching,
    selected_of,
    target_of,
)
from warren.verbs.steps import Reading, Steps, call

T = TypeVar("T")


def _all_of(ids: list[str]) -> Steps[Done]:
    return len(ids), ""
    yield


def _walked(begin: Callable[[], Walk]) -> Steps[int]:
    """Run a walk to its end. Beginning it parses its condition, which may take long."""
    walk: Walk = yield Reading(begin)
    return (yield from walk.steps())


class MendingVerbs(Performer):
    """The verbs of one queue that start from where its messages stand."""

    def __init__(self, host: QueueHost) -> None:
        self.host = host

    def __str__(self) -> str:
        return repr(self.host.entry.declaration.name)

    def perform(self, operation: Operation[T]) -> Steps[T]:
        return self.host.perform(self, operation)

    @property
    def entry(self) -> QueueEntry:
        return self.host.entry

    @property
    def local(self) -> LocalQueue:
        """The queue in this process, which performs the operations."""
        return local(self.host, LocalQueue)

    @property
    def actor(self) -> QueueActor:
        """The queue's current actor; raises the reason if the queue has no actor."""
        return self.local.actor

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    @operation("queue", encode=browsed_to_plain, decode=browsed_of)
    def page(self, count: int, after: Place | None) -> Steps[list[BrowsedMessage]]:
        """Look at messages after a place."""
        actor = self.actor
        page: list[BrowsedMessage] = yield call(actor, lambda: browsed_page(actor.queue_turn, count, after))
        return page

    def browse_page(
        self, where: Where | None, count: int, after: Place | None
    ) -> Steps[tuple[list[BrowsedDelivery], Place | None]]:
        """Return the selected messages of a page, and the place after which the next page begins; ``None`` for the last
        page."""
        page = yield from self.page(count, after)
        selected = yield from matching(where, [*map(BrowsedDelivery, page)])
        return selected, (page[-1].level, page[-1].browsed.seq_id) if is_whole(page, count) else None

    @operation("queue")
    def ends(self) -> Steps[dict[int, int]]:
        """Return, by level, the end of the queue: the place after its last message."""
        actor = self.actor
        ends: dict[int, int] = yield call(actor, lambda: ends_of(actor.process))
        return ends

    @operation("queue", decode=selected_of)
    def select(self, where: Where | None, after: Place | None, ends: dict[int, int]) -> Steps[Selected]:
        """Return the selected messages of a page that are ready and before the ends."""
        return self.selecting(where, after, ends)

    def selecting(self, where: Where | None, after: Place | None, ends: dict[int, int]) -> Steps[Selected]:
        """Do it here: a function as ``where`` is called in this process, whichever hosts the node."""
        page = yield from self.page(PAGE, after)
        inside = [message for message in page if message.browsed.seq_id < ends.get(message.level, 0)]
        ready = [BrowsedDelivery(message) for message in inside if not message.browsed.unacked]
        ids = [message.id for message in (yield from matching(where, ready))]
        if not is_whole(page, PAGE):
            return Selected(ids, len(inside), None)
        level, seq_id = page[-1].level, page[-1].browsed.seq_id
        return Selected(ids, len(inside), (level, seq_id if seq_id < ends.get(level, 0) else MAX_SEQ_ID))

    # ── mending ─────────────────────────────────────────────────────────────────────────────────────────────────

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
        return self._walk(self.remove_ids, where, ids, limit)

    def moving(self, to: Any, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """What :meth:`move` does, page by page."""
        target = target_of(to)
        return self._walk(lambda chosen: self.host.move(chosen, target), where, ids, limit)

    def requeueing(self, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """What :meth:`requeue_dead_letters` does, page by page."""
        where = where if ids is not None else dead_letters_only(where)  # messages that never died are not touched
        return self._walk(lambda chosen: self.host.move(chosen, None), where, ids, limit)

    def counting_dead(self, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """A walk that only counts what :meth:`requeueing` would try to move."""
        return self.counting(where if ids is not None else dead_letters_only(where), ids, limit)

    def counting(self, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """A walk that only counts the selected messages."""
        return self._walk(self.count_ids if ids is not None else _all_of, where, ids, limit)

    def _walk(self, act: Act, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        return Walk(
            self, act, where, None if ids is None else [ids] if isinstance(ids, str) else as_texts(ids, "ids"), limit
        )

    def count_ids(self, ids: list[str]) -> Steps[Done]:
        """Only count those that are ready."""
        count = 0
        for id in ids:
            level, seq_id, _ = id.split(":")
            page = yield from self.page(1, (int(level), int(seq_id) - 1))
            count += len(page) == 1 and page[0].id == id and not page[0].browsed.unacked
        return count, ""

    @operation("queue", decode=tuple)
    def remove_ids(self, ids: list[str]) -> Steps[Done]:
        """Delete those that are ready."""
        actor, chosen = self.actor, chosen_ids(ids)
        removed: int = yield call(actor, lambda: actor.queue_turn.remove(chosen))
        return removed, ""

    @operation("queue", flushes=True)
    def sync(self) -> Steps[None]:
        """Wait until all earlier publishes and acks are safe."""
        actor = self.actor
        yield call(actor, actor.sync)
