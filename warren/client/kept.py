"""KeptChannel: a channel that outlives its socket, with all that was handed over and is not answered.

What was sent is kept until it is answered, and is sent again, in order, over the next socket where this one is lost. So
something may be done twice when a host has died, and nothing is missing that was confirmed.

A *window* bounds what waits here; who hands something over waits for room in it, and while the host says that an alarm
is set.
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
"""What is not answered takes at most so much here."""
RUN_MESSAGES: Final = 4096
"""So many messages share a confirm at most."""


class Kept(Protocol):
    """What is handed over and answered."""

    @property
    def channel(self) -> Any: ...
    @property
    def confirm(self) -> Confirm: ...
    @property
    def size(self) -> int: ...
    def encode(self, engine: Connection) -> None: ...


K = TypeVar("K", bound=Kept)


class Window:
    """What one link has on its way, in bytes, and who waits until it is less. Guarded by the link's lock."""

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


class KeptChannel(ClientChannel, Generic[K]):
    """See the module's prose."""

    tries_full_disk: ClassVar[bool] = False
    """Whether what is handed over may fail for want of space, and so is not held while the disk is full."""

    def __init__(self, link: Link, window: Window) -> None:
        super().__init__(link)
        self.window = window
        self.idle: list[Future] = []
        """Who waits until everything is answered."""
        self.sent: list[K] = []
        """What is not answered, in order."""
        self.is_ready = False
        """Whether something can be handed over."""

    # ── handing over ────────────────────────────────────────────────────────────────────────────────────────────

    def hand_over(self, new: Callable[[], K], *, tries_full_disk: bool = False) -> Confirm | Future:
        """Take something; a future that is no confirm says what to wait for before that.

        ``tries_full_disk``: it is not held while the disk is full, whatever else comes through the channel.
        """
        return uninterrupted(self._hand_over, new, tries_full_disk or self.tries_full_disk)

    def _hand_over(self, new: Callable[[], K], tries_full_disk: bool) -> Confirm | Future:
        link = self.link
        with link.locked():
            if (error := self.error or link.refusing) is not None:
                raise error
            if self._is_held(tries_full_disk):
                return self.window.wait(link)
            kept = new()
            self.window.used_bytes += kept.size
            link.gather(kept, kept.size)
            return kept.confirm

    def _is_held(self, tries_full_disk: bool) -> bool:
        """Whether publishers wait: for the end of an alarm, or for answers."""
        blocked = self.link.blocked
        return self.window.used_bytes >= WINDOW_BYTES or (
            bool(blocked) and not (tries_full_disk and blocked == DISK_FULL)
        )

    def wait_for_room(self) -> Future | None:
        """What to wait for before something is taken; ``None``: it is."""
        with self.link.locked():
            if self._is_held(self.tries_full_disk):
                return self.window.wait(self.link)
        return None

    def encode(self, kept: K, engine: Connection) -> None:
        """Send something for the first time."""
        self.sent.append(kept)
        self.send(kept, engine)

    @abstractmethod
    def send(self, kept: K, engine: Connection) -> None:
        """Send it, with the next number that its answer has."""

    @abstractmethod
    def send_again(self, engine: Connection) -> None:
        """The channel is open on the next socket: send what is not answered."""

    def settled(self) -> Future:
        """Answered once everything that was handed over is answered, or cannot be."""
        future = Future(self.link)
        with self.link.locked():
            if self.sent or self.link.has_gathered(self):
                self.idle.append(future)
                return future
        future.set()
        return future

    # ── the link's side ─────────────────────────────────────────────────────────────────────────────────────────

    def tell_idle(self, later: Later) -> None:
        """Something was answered: say so to those who wait for all of it."""
        if not self.sent and self.idle and not self.link.has_gathered(self):
            later += [(future.offer, (None,)) for future in self.idle]
            self.idle.clear()

    def finish(self, kept: K, error: Exception | None, later: Later) -> None:
        """It is answered: it has its confirm, and its room is free."""
        later.append((kept.confirm.offer, (None,)) if error is None else (kept.confirm.fail, (error,)))
        self.window.give_back(kept.size, later)

    def unblocked(self, later: Later) -> None:
        """The host's alarms are over."""
        self.window.open(later)

    def closed(self, error: WarrenError, later: Later) -> None:
        """The host did not like something: what is not known, and none of it is safe."""
        self._give_up(error, later)
        super().closed(error, later)

    def _give_up(self, error: WarrenError, later: Later) -> None:
        kept: list[Any] = [*self.sent, *self.link.take_gathered(self)]
        self.sent = []
        for one in kept:
            self.finish(one, error, later)
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
