"""Inbox: the messages that wait for an actor, control before data.

Two lanes. *Control* messages (:class:`Control`: stop, duration targets, credit, what a store has made safe) overtake
*data*; within a lane the order of arrival is kept. ``weight`` counts the published messages that wait: a publisher that
finds too many has to wait (:mod:`warren.actors.queue.queue_intake`).

Single publishes and acks join the entry at the tail of the data lane while that entry is of their kind and still the
last (:class:`PendingBatch`), so a busy actor gets batches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NoReturn, Protocol, TypeVar

import attrs
from pykka._envelope import Envelope

from warren.actors.runtime.future import Future, Helper


class Control:
    """Marks messages that overtake data."""

    __slots__ = ()


@attrs.frozen
class Call:
    """User, timer or another actor → any actor, or an actor → itself: call one of its methods in a turn.

    It runs after the messages that came before it. For ``ask``, the reply is the return value of ``work``.
    """

    work: Callable[[], object]


@attrs.frozen
class ControlCall(Call, Control):
    """A :class:`Call` that overtakes data."""


class PendingBatch:
    """An entry of the data lane that items of the same kind may still join. ``key`` identifies the kind."""

    __slots__ = ("items", "key", "reserved_bytes", "room_bytes", "taken")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.items: list[Any] = []
        self.reserved_bytes = 0
        """Bytes that the gate counts for it (:mod:`warren.actors.node.gate`)."""
        self.room_bytes = 0
        """Counted bytes that no item has used yet."""
        self.taken = False
        """Whether it has left the inbox."""

    def take(self) -> None:
        """Mark the entry as taken and copy its items, so that later joins do not change them (:meth:`Inbox.note`)."""
        self.taken = True
        self.items = self.items.copy()


class Owner(Helper, Protocol):
    """The owner of an inbox."""

    def schedule(self) -> None:
        """Called when a message waits and no turn is scheduled."""


Entry = Envelope[Any] | PendingBatch
G = TypeVar("G", bound=PendingBatch)


class InboxClosedError(Exception):
    """The inbox takes no more published messages."""


def _refuse() -> NoReturn:
    raise InboxClosedError


class Inbox:
    """Two lanes. Any thread may put; one thread at a time takes."""

    __slots__ = ("_closed", "_control", "_data", "lock", "open_entry", "owner", "scheduled", "weight")

    def __init__(self) -> None:
        self.owner: Owner | None = None
        """Set before the first put."""
        self.scheduled = False
        """Whether a turn of the owner has been scheduled."""
        self.weight = 0
        """The number of published messages that wait."""
        self._closed = False
        self._control: deque[Envelope[Any]] | None = None
        self._data: deque[Entry] | None = None
        self.lock = threading.Lock()
        """Hold it to look at the inbox and act on what was seen (:mod:`warren.actors.queue.early_deliveries`)."""
        self.open_entry: PendingBatch | None = None
        """The entry that single items join. Read it with the lock held."""

    def put(
        self,
        envelope: Envelope[Any],
        weight: int = 0,
        *,
        wake: Callable[[], bool] | None = None,
        is_publish: bool = False,
    ) -> None:
        """Append one message; Pykka calls it. ``wake`` is asked after that whether to wake the owner.

        Raises :class:`InboxClosedError` if it ``is_publish`` and the inbox is closed.
        """
        if isinstance(envelope.reply_to, Future) and self.owner is not None:
            envelope.reply_to.helped_by(self.owner)
        try:
            with self.lock:
                if is_publish and self._closed:
                    _refuse()
                if isinstance(envelope.message, Control):
                    if self._control is None:
                        self._control = deque()
                    self._control.append(envelope)
                else:
                    data = self._data_lane()
                    self.open_entry = None
                    self.weight += weight  # no interrupt can come between this and the append
                    data.append(envelope)
            if wake is None or wake():
                self._wake()
        except BaseException:
            self._wake_after_interrupt()
            raise

    def gather(
        self,
        key: object,
        item: Any,
        new: Callable[[Any], G],
        weight: int,
        *,
        size_bytes: int = 0,
        reserved_bytes: int = 0,
        wake: Callable[[], bool] | None = None,
        several: bool = False,
    ) -> G:
        """Add ``item`` to the entry at the tail, or to a ``new`` one; return the entry.

        All entries of one key have the same class. ``reserved_bytes``: for this item of ``size_bytes``, and for later
        ones. ``wake`` is asked after that whether to wake the owner. ``several``: ``item`` is a list of items.

        Raises :class:`InboxClosedError` if the item has a weight and the inbox is closed.
        """
        try:
            with self.lock:
                if weight and self._closed:
                    _refuse()
                tail = self.open_entry
                if tail is None or tail.key is not key:
                    tail = new(key)
                    self._data_lane().append(tail)
                    # only after the append: items that join an entry outside the lane would be lost
                    self.open_entry = tail
                tail.reserved_bytes += reserved_bytes
                tail.room_bytes += reserved_bytes - size_bytes
                self.weight += weight
                if several:
                    tail.items += item
                else:
                    tail.items.append(item)
            if not self.scheduled and (wake is None or wake()):
                self._wake()
        except BaseException:
            self._wake_after_interrupt()
            raise
        return tail  # type: ignore[return-value]

    def join(self, key: object, item: Any, size_bytes: int, weight: int = 1) -> PendingBatch | None:
        """The fast path: add ``item`` to the entry at the tail without waking the owner.

        Returns ``None`` if that entry is of another kind or has too few bytes reserved.
        """
        with self.lock:
            tail = self.open_entry
            if tail is None or tail.key is not key or tail.room_bytes < size_bytes:
                return None
            tail.room_bytes -= size_bytes
            self.weight += weight
            tail.items.append(item)
        return tail

    def note(self, key: object, item: Any) -> bool:
        """Like :meth:`join`, for items without weight and size, mostly without the lock; return whether ``item``
        joined.

        :meth:`PendingBatch.take` sets ``taken`` before it copies the items. An item added before the copy is in it;
        whether a concurrent one is there, too, is checked with the lock held. No two items of an entry are equal.
        """
        tail = self.open_entry
        if tail is None or tail.key is not key:
            return False
        items = tail.items
        if tail.taken:
            return False
        items.append(item)
        if not tail.taken:
            return True
        with self.lock:
            return item in tail.items

    @property
    def has_control(self) -> bool:
        """Whether a control message waits. Call it with the lock held."""
        return bool(self._control)

    @property
    def line(self) -> Collection[Entry]:
        """The data lane, in order. Call it with the lock held."""
        return self._data or ()

    def holds_only(self, kind: Callable[[Entry], bool]) -> bool:
        """Whether all waiting entries are of this kind."""
        with self.lock:
            return not self._control and all(map(kind, self.line))

    def close(self) -> None:
        """Take no more published messages: what is put from now on is no publish."""
        with self.lock:
            self._closed = True

    def seal(self) -> None:
        """Close the entry at the tail to further items."""
        self.open_entry = None

    def lighten(self, weight: int) -> None:
        """Subtract the weight of messages that were taken and handled."""
        with self.lock:
            self.weight -= weight

    def _data_lane(self) -> deque[Entry]:
        if self._data is None:
            self._data = deque()
        return self._data

    def _wake(self) -> None:
        if not self.scheduled and self.owner is not None:
            self.scheduled = True
            self.owner.schedule()

    def _wake_after_interrupt(self) -> None:
        """Wake the owner after an interrupt within a call, which may have put a message or set ``scheduled``."""
        if self.owner is not None:  # a superfluous turn is harmless; without one the message could wait for ever
            self.owner.schedule()

    def take(self) -> Entry | None:
        """Take the next entry; ``None`` if nothing waits. No item joins an entry that was taken."""
        with self.lock:
            if self._control:
                return self._control.popleft()
            while self._data:
                entry = self._data.popleft()
                if entry is self.open_entry:
                    self.open_entry = None
                if not isinstance(entry, PendingBatch):
                    return entry
                entry.take()
                if entry.items:  # empty if an interrupt struck the thread that began it
                    return entry
            return None

    def take_this(self, entry: PendingBatch) -> None:
        """Take an entry out of the middle of the data lane."""
        with self.lock:
            self._data_lane().remove(entry)
            if entry is self.open_entry:
                self.open_entry = None
            entry.take()

    def get(self) -> Envelope[Any]:
        """Take the next envelope, for Pykka; only called when something waits."""
        entry = self.take()
        if not isinstance(entry, Envelope):
            raise TypeError("nothing that Pykka could handle waits")
        return entry

    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._control and not self._data

    def rest(self) -> None:
        """Release memory that an idle actor does not need."""
        with self.lock:
            self._data = self._data or None
            self._control = self._control or None
