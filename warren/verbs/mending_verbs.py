"""The verbs that look at the messages of a queue, and mend: all that take messages from any place.

The walk itself is in :mod:`warren.verbs.mending`, which most programs never import.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from warren.actors.queue.inspecting import BrowsedMessage, ends_of, is_whole, wanted_of
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.queue_entry import QueueEntry
from warren.hosting.running_node import RunningNode
from warren.queue_index.index.directory import MAX_SEQ_ID
from warren.storage.errors import InvalidValueError, MessageError
from warren.values.messages import ReceivedMessage
from warren.verbs.steps import Steps, call

if TYPE_CHECKING:
    from warren.verbs.mending import Act, Done, Target, Walk

Place: TypeAlias = tuple[int, int]
"""Where a message stands: its level, its seq_id."""
Ids: TypeAlias = str | Iterable[str]


PAGE: Final = 256
"""The number of messages that are looked at in one turn of a queue."""


class Selected(NamedTuple):
    """The selected messages of a page of a queue."""

    ids: list[str]
    looked: int
    """How many messages the page had."""
    after: Place | None
    """The next page begins after this place; ``None``: this was the last page."""


class BrowsedDelivery(ReceivedMessage):
    """A message that was looked at but not taken."""

    __slots__ = ("_browsed", "expiry_us", "level", "msg_id", "seq_id", "unacked")

    def __init__(self, browsed: BrowsedMessage) -> None:
        super().__init__((browsed.browsed.term,))
        self._browsed = browsed
        self.msg_id = browsed.browsed.msg_id
        """16 bytes."""
        self.expiry_us = browsed.browsed.properties.expiry_us
        """When it expires, in microseconds since the Unix epoch; 0: never."""
        self.level = browsed.level
        """Of a priority queue; 0 in others."""
        self.seq_id = browsed.browsed.seq_id
        """Its number in the queue; in a priority queue, in its level."""
        self.unacked = browsed.browsed.unacked
        """Whether a consumer has it."""

    @property
    def id(self) -> str:
        """Its id for ``take``, ``move`` and ``remove``: text, made of its level in a priority queue,
        its ``seq_id``, and 32 digits that are unique."""
        return self._browsed.id

    @property
    def encoded(self) -> bytes:
        """The message as it is stored."""
        return self._browsed.browsed.term

    def shown_bytes(self, limit: int) -> int:
        """Its size, with at most ``limit`` bytes of the body."""
        return len(self.encoded) - max(self._browsed.browsed.properties.size - limit, 0)


Where: TypeAlias = str | Callable[[BrowsedDelivery], bool]
"""Which messages: a condition (:mod:`warren.where`), or a function of a message."""


@functools.lru_cache(maxsize=16)
def _condition(text: str) -> Callable[[BrowsedDelivery], bool]:
    from warren.where import MESSAGE_FIELDS, Moment, compile_where  # noqa: PLC0415 - few look by conditions

    fields: dict[str, Callable[[BrowsedDelivery], Any]] = {
        **MESSAGE_FIELDS,
        "id": lambda message: message.id,
        "seq_id": lambda message: message.seq_id,
        "unacked": lambda message: message.unacked,
        "expiry": lambda message: Moment(message.expiry_us / 1e6) if message.expiry_us else None,
    }
    return compile_where(text, fields)


def test_of(where: Where | None) -> Callable[[BrowsedDelivery], bool]:
    """Return the test that selects messages. With ``where``, it rejects messages that cannot be read. Raises
    :class:`~warren.where.WhereError`."""
    if where is None:
        return lambda _: True
    if isinstance(where, str):
        where = _condition(where)
    elif not callable(where):
        raise InvalidValueError(f"where is a condition or a function of a message, not {where!r:.100}")
    return functools.partial(_test, where)


def _test(where: Callable[[BrowsedDelivery], bool], message: BrowsedDelivery) -> bool:
    try:
        return bool(where(message))
    except MessageError:
        return False


def _dead(where: Where | None) -> Where:
    """Restrict a selection to dead letters."""
    test = test_of(where)
    if where is None or isinstance(where, str):
        died = "headers['x-death'] IS NOT NULL"
        return died if where is None else f"{died} AND ({where})"
    return lambda message: "x-death" in message.headers and test(message)


def _all_of(ids: list[str]) -> Steps[Done]:
    return len(ids), ""
    yield


class MendingVerbs:
    """The verbs of one queue that start from where its messages stand."""

    def __init__(self, node: RunningNode, entry: QueueEntry) -> None:
        self.node = node
        self.entry = entry

    def __str__(self) -> str:
        return repr(self.entry.declaration.name)

    @property
    def actor(self) -> QueueActor:
        """The queue's current actor; raises the reason if the queue has no actor."""
        self.node.check_process()
        return self.entry.actor

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    def page(self, count: int, after: Place | None) -> Steps[list[BrowsedMessage]]:
        """Look at messages after a place."""
        actor = self.actor
        page: list[BrowsedMessage] = yield call(actor, lambda: actor.browse(count, after))
        return page

    def browse_page(
        self, where: Where | None, count: int, after: Place | None
    ) -> Steps[tuple[list[BrowsedDelivery], Place | None]]:
        """Return the selected messages of a page, and the place after which the next page begins; ``None`` for the last
        page."""
        test = test_of(where)
        page = yield from self.page(count, after)
        found = [message for message in map(BrowsedDelivery, page) if test(message)]
        return found, (page[-1].level, page[-1].browsed.seq_id) if is_whole(page, count) else None

    def ends(self) -> Steps[dict[int, int]]:
        """Return, by level, the end of the queue: the place after its last message."""
        actor = self.actor
        found: dict[int, int] = yield call(actor, lambda: ends_of(actor.process))
        return found

    def select(self, where: Where | None, after: Place | None, ends: dict[int, int]) -> Steps[Selected]:
        """Return the selected messages of a page that are ready and before the ends."""
        test = test_of(where)
        page = yield from self.page(PAGE, after)
        inside = [one for one in page if one.browsed.seq_id < ends.get(one.level, 0)]
        ids = [one.id for one in inside if not one.browsed.unacked and test(BrowsedDelivery(one))]
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
        return (yield from self.removing(where, ids, limit).steps())

    def move(
        self, to: Any, *, where: Where | None = None, ids: Ids | None = None, limit: int | None = None
    ) -> Steps[int]:
        """Move messages, in their order, from wherever they stand; return how many.

        ``to``: a queue or its name, or an ``(exchange, routing key)``; they are published there. ``where``, ``ids`` and
        ``limit`` as for :meth:`remove`; without the first two: all. A message stays until it is safe there, so a crash
        may leave it in both. Raises :class:`NotMovedError` if the target does not take a message.
        """
        return (yield from self.moving(to, where, ids, limit).steps())

    def requeue_dead_letters(
        self, *, where: Where | None = None, ids: Ids | None = None, limit: int | None = None
    ) -> Steps[int]:
        """Move dead letters back to the queues that they died in; return how many. Others stay.

        They go back as they were there, with their exchange and routing key, without ``x-death``. If the queue does not
        exist, they are published to that exchange again; if that leads nowhere, they stay. Everything else as for
        :meth:`move`.
        """
        return (yield from self.requeueing(where, ids, limit).steps())

    def removing(self, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """What :meth:`remove` does, page by page."""
        return self._walk(self.remove_ids, where, ids, limit)

    def moving(self, to: Any, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """What :meth:`move` does, page by page."""
        from warren.verbs.mending import target_of  # noqa: PLC0415 - few programs mend

        target = target_of(to)
        return self._walk(lambda chosen: self.move_ids(chosen, target), where, ids, limit)

    def requeueing(self, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """What :meth:`requeue_dead_letters` does, page by page."""
        where = where if ids is not None else _dead(where)  # messages that never died are not touched
        return self._walk(lambda chosen: self.move_ids(chosen, None), where, ids, limit)

    def counting_dead(self, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """A walk that only counts what :meth:`requeueing` would try to move."""
        return self.counting(where if ids is not None else _dead(where), ids, limit)

    def counting(self, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        """A walk that only counts the selected messages."""
        return self._walk(self.count_ids if ids is not None else _all_of, where, ids, limit)

    def _walk(self, act: Act, where: Where | None, ids: Ids | None, limit: int | None) -> Walk:
        from warren.verbs.mending import Walk  # noqa: PLC0415 - as above

        return Walk(self, act, where, None if ids is None else [ids] if isinstance(ids, str) else list(ids), limit)

    def count_ids(self, ids: list[str]) -> Steps[Done]:
        """Only count those that are ready."""
        count = 0
        for one in ids:
            level, seq_id, _ = one.split(":")
            page = yield from self.page(1, (int(level), int(seq_id) - 1))
            count += len(page) == 1 and page[0].id == one and not page[0].browsed.unacked
        return count, ""

    def remove_ids(self, ids: list[str]) -> Steps[Done]:
        """Delete those that are ready."""
        actor, wanted = self.actor, wanted_of(ids)
        removed: int = yield call(actor, lambda: actor.queue_turn.remove(wanted))
        return removed, ""

    def move_ids(self, ids: list[str], to: Target) -> Steps[Done]:
        """Move those that are ready, or as many of them as go."""
        from warren.verbs.mending import move  # noqa: PLC0415 - as above

        return (yield from move(self, ids, to))

    def sync(self) -> Steps[None]:
        """Wait until all earlier publishes and acks are safe."""
        actor = self.actor
        yield call(actor, actor.sync)
