"""ResendingChannel: a channel that outlives its socket, and sends again what was not answered.

What was sent is kept until it is answered, and is sent again, in order, over the next socket if this one is lost. So
something may be done twice when a host has died, but nothing confirmed is lost.

A *window* bounds what waits here; publishers wait for room in it, and while the host reports an alarm.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from warren.actors.runtime.future import Confirm, Future
from warren.actors.runtime.interrupts import uninterrupted
from warren.actors.runtime.leader_follower import Later
from warren.amqp.connection import Connection
from warren.amqp.own_methods import DISK_FULL
from warren.client.channels import ClientChannel
from warren.client.link import Link
from warren.storage.errors import WarrenError

WINDOW_BYTES: Final = 16 << 20
"""The most bytes that may wait here for an answer."""
RUN_MESSAGES: Final = 4096
"""The most messages that share a confirm."""


class Resendable(Protocol):
    """An item that is sent and answered."""

    @property
    def channel(self) -> Any: ...
    @property
    def confirm(self) -> Confirm: ...
    @property
    def size(self) -> int: ...
    def encode(self, engine: Connection) -> None: ...


K = TypeVar("K", bound=Resendable)


class Window:
    """The unanswered bytes of one link, and the callers that wait for room. Guarded by the link's lock."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self._waiting: list[Future] = []

    def wait(self, link: Link) -> Future:
        future = Future(link)
        self._waiting.append(future)
        return future

    def give_back(self, size: int, later: Later) -> None:
        self.used_bytes -= size
        if self.used_bytes <= WINDOW_BYTES // 2:
            self.open(later)

    def open(self, later: Later) -> None:
        later += [(future.offer, (None,)) for future in self._waiting]
        self._waiting.clear()


class ResendingChannel(ClientChannel, Generic[K]):
    """See the module's docstring."""

    tries_full_disk: ClassVar[bool] = False
    """Whether items may fail for lack of space, and so are not held while the disk is full."""

    def __init__(self, link: Link, window: Window) -> None:
        super().__init__(link)
        self.window = window
        self.idle: list[Future] = []
        """The callers that wait until everything is answered."""
        self.sent: list[K] = []
        """Unanswered items, in order."""
        self.is_ready = False
        """Whether items can be handed over."""

    # ── handing over ────────────────────────────────────────────────────────────────────────────────────────────

    def hand_over(self, new: Callable[[], K], *, tries_full_disk: bool = False) -> Confirm | Future:
        """Take an item and return its confirm, or a plain future to wait for before trying again.

        ``tries_full_disk``: do not hold it while the disk is full, unlike the channel's other items.
        """
        return uninterrupted(self._hand_over, new, tries_full_disk or self.tries_full_disk)

    def _hand_over(self, new: Callable[[], K], tries_full_disk: bool) -> Confirm | Future:
        link = self.link
        with link.locked():
            if (error := self.error or link.refusing) is not None:
                raise error
            if self._is_held(tries_full_disk):
                return self.window.wait(link)
            item = new()
            self.window.used_bytes += item.size
            link.outbox.gather(item, item.size)
            return item.confirm

    def _is_held(self, tries_full_disk: bool) -> bool:
        """Whether publishers wait: for the end of an alarm, or for answers."""
        blocked = self.link.blocked
        return self.window.used_bytes >= WINDOW_BYTES or (
            bool(blocked) and not (tries_full_disk and blocked == DISK_FULL)
        )

    def wait_for_room(self) -> Future | None:
        """Return what to wait for before an item is taken; ``None``: nothing."""
        with self.link.locked():
            if self._is_held(self.tries_full_disk):
                return self.window.wait(self.link)
        return None

    def encode(self, item: K, engine: Connection) -> None:
        """Send an item for the first time."""
        self.sent.append(item)
        self.send(item, engine)

    @abstractmethod
    def send(self, item: K, engine: Connection) -> None:
        """Send an item, with the next number, which its answer will have."""

    @abstractmethod
    def send_again(self, engine: Connection) -> None:
        """Send unanswered items again, on the next socket."""

    def settled(self) -> Future:
        """Return a future that is answered once every item is answered, or cannot be."""
        future = Future(self.link)
        with self.link.locked():
            if self.sent or self.link.outbox.has_gathered(self):
                self.idle.append(future)
                return future
        future.set()
        return future

    # ── the link's side ─────────────────────────────────────────────────────────────────────────────────────────

    def tell_idle(self, later: Later) -> None:
        """Wake the callers that wait for all answers, if there are no unanswered items."""
        if not self.sent and self.idle and not self.link.outbox.has_gathered(self):
            later += [(future.offer, (None,)) for future in self.idle]
            self.idle.clear()

    def finish(self, item: K, error: Exception | None, later: Later) -> None:
        """Settle an answered item's confirm, and free its room."""
        later.append((item.confirm.offer, (None,)) if error is None else (item.confirm.fail, (error,)))
        self.window.give_back(item.size, later)

    def unblocked(self, later: Later) -> None:
        """Wake waiting publishers: the host's alarms are over."""
        self.window.open(later)

    def closed(self, error: WarrenError, later: Later) -> None:
        """Fail all items: the host refused one of them, it is not known which."""
        self._give_up(error, later)
        super().closed(error, later)

    def _give_up(self, error: WarrenError, later: Later) -> None:
        items: list[Any] = [*self.sent, *self.link.outbox.take_gathered(self)]
        self.sent = []
        for item in items:
            self.finish(item, error, later)
        self.window.open(later)
        later += [(future.offer, (None,)) for future in self.idle]
        self.idle.clear()

    def lost(self, error: WarrenError, later: Later) -> bool:
        if self.is_ready and self.error is None:
            later += [(future.fail, (error,)) for future in self.asked]
            self.asked.clear()
            self.window.open(later)
            return True
        return super().lost(error, later)

    def rejoin(self, engine: Connection) -> None:
        self.send_again(engine)

    def failed(self, error: WarrenError, later: Later) -> None:
        self._give_up(error, later)
        super().failed(error, later)
