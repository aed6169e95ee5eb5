"""Inbox: what waits for an actor, control before data.

Two lanes. *Control* messages (:class:`Control`: stop, duration targets, credit, what a store has made safe) overtake
*data*; within a lane the order of arrival is kept. ``weight`` counts the published messages that wait: a publisher that
finds too many has to wait (:mod:`warren.actors.queue.queue_front_end`).

Single publishes and acks join the entry at the tail of the data lane while it is of their kind and nothing else has
come behind it (:class:`PendingBatch`): an actor that is busy finds batches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeVar

import attrs
from pykka._envelope import Envelope

from warren.actors.runtime.future import Future, Helper


class Control:
    """Marks messages that overtake data."""

    __slots__ = ()


@attrs.frozen
class Call:
    """User, timer or another actor → any actor, or an actor → itself: call one of its methods in a turn.

    It is done behind what has come before. Asked, the reply is what ``work`` returns.
    """

    work: Callable[[], object]


@attrs.frozen
class ControlCall(Call, Control):
    """The same, before data."""


class PendingBatch:
    """An entry of the data lane that others of its kind may still join. ``key``: what makes them of one kind."""

    __slots__ = ("items", "key", "reserved_bytes", "room_bytes", "taken")

    def __init__(self, key: object) -> None:
        self.key = key
        self.items: list[Any] = []
        self.reserved_bytes = 0
        """What is on the way for it (:mod:`warren.actors.node.gate`)."""
        self.room_bytes = 0
        """So much of that has not come yet."""
        self.taken = False
        """Whether it has left the inbox."""

    def take(self) -> None:
        """It leaves the inbox. Nothing joins what its items are from now on (:meth:`Inbox.note`)."""
        self.taken = True
        self.items = self.items.copy()


class Owner(Helper, Protocol):
    """Whose inbox it is."""

    def schedule(self) -> None:
        """Something waits, and nobody has been told."""


Entry = Envelope[Any] | PendingBatch
G = TypeVar("G", bound=PendingBatch)


class Inbox:
    """The two lanes. Any thread may put; one at a time takes."""

    __slots__ = ("_control", "_data", "lock", "open_entry", "owner", "scheduled", "weight")

    def __init__(self) -> None:
        self.owner: Owner | None = None
        """Set before anybody can put."""
        self.scheduled = False
        """Whether somebody has been told to run the owner's turn."""
        self.weight = 0
        """Published messages that wait."""
        self._control: deque[Envelope[Any]] | None = None
        self._data: deque[Entry] | None = None
        self.lock = threading.Lock()
        """To be held by who looks and acts on what it has seen (:mod:`warren.actors.queue.early_deliveries`)."""
        self.open_entry: PendingBatch | None = None
        """The entry that single ones join. To be asked with the lock."""

    def put(self, envelope: Envelope[Any], weight: int = 0, *, wake: Callable[[], bool] | None = None) -> None:
        """Take one message; Pykka's way in. ``wake``: whether to tell the owner that it waits, asked behind that."""
        if isinstance(envelope.reply_to, Future) and self.owner is not None:
            envelope.reply_to.helped_by(self.owner)
        try:
            with self.lock:
                if isinstance(envelope.message, Control):
                    if self._control is None:
                        self._control = deque()
                    self._control.append(envelope)
                else:
                    data = self._data_lane()
                    self.open_entry = None
                    self.weight += weight  # no interrupt comes between this and the next call
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
        new: Callable[[object], G],
        weight: int,
        *,
        size_bytes: int = 0,
        reserved_bytes: int = 0,
        wake: Callable[[], bool] | None = None,
        several: bool = False,
    ) -> G:
        """Let ``item`` join the entry at the tail, or begin a ``new`` one; returns the entry.

        All entries of one key are of one class. ``reserved_bytes``: for this item of ``size_bytes``, and others.
        ``wake``: whether to tell the owner that it waits, asked behind that. ``several``: it is a list of items.
        """
        try:
            with self.lock:
                tail = self.open_entry
                if tail is None or tail.key is not key:
                    tail = new(key)
                    self._data_lane().append(tail)
                    # only now: nobody would take what joins an entry that does not stand in line
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
        """The fast path: let one join the entry at the tail, and tell nobody.

        If that is of its kind, and bytes enough are reserved for it.
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
        """:meth:`join` for what has no weight and no size, mostly without the lock; whether it has joined.

        Whoever takes an entry says so first, and goes on with a copy of its items. What has joined before that is in
        the copy; whether what came meanwhile is there too, tells a look with the lock. No two items of an entry are
        equal.
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
        """Whether a control message waits. To be asked with the lock."""
        return bool(self._control)

    @property
    def line(self) -> Collection[Entry]:
        """The data lane, in order. To be asked with the lock."""
        return self._data or ()

    def holds_only(self, kind: Callable[[Entry], bool]) -> bool:
        """Whether all that waits is of this kind."""
        with self.lock:
            return not self._control and all(map(kind, self.line))

    def seal(self) -> None:
        """Let nothing join the entry at the tail any more."""
        self.open_entry = None

    def lighten(self, weight: int) -> None:
        """So much of the weight has been taken out and handled."""
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
        """A signal's handler has raised within a call: it may have put something, or said that it wakes the owner."""
        if self.owner is not None:  # a turn too many does no harm; without one what waits would wait for ever
            self.owner.schedule()

    def take(self) -> Entry | None:
        """The next entry; ``None`` where nothing waits. An entry that was taken gathers no more."""
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
                if entry.items:  # else an interrupt struck who began it
                    return entry
            return None

    def take_this(self, entry: PendingBatch) -> None:
        """Take an entry out of its place in the data lane."""
        with self.lock:
            self._data_lane().remove(entry)
            if entry is self.open_entry:
                self.open_entry = None
            entry.take()

    def get(self) -> Envelope[Any]:
        """Pykka's way out; here an actor is run only when something waits."""
        entry = self.take()
        if not isinstance(entry, Envelope):
            raise RuntimeError("nothing that Pykka could handle waits")  # noqa: TRY004
        return entry

    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._control and not self._data

    def rest(self) -> None:
        """Give up memory that an idle actor does not need."""
        with self.lock:
            self._data = self._data or None
            self._control = self._control or None
