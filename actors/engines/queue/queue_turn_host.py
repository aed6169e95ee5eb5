"""What a queue's turn (:mod:`~warren.actors.engines.queue.queue_turn`) asks of its host, stores and consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from warren.actors.engines.credit import GrantedCredit
from warren.actors.engines.queue.effects import DeadLetterBatch, Delivered
from warren.storage.errors import NoRoomError


class Clock(Protocol):
    """Time in two forms."""

    def now_ns(self) -> int:
        """Monotonic time in nanoseconds."""

    def wall_us(self) -> int:
        """Time since the Unix epoch in microseconds."""


class Receiver(Protocol):
    """A consumer's side: where its messages go."""

    @property
    def buffered(self) -> int:
        """Messages that it was handed and has not taken."""

    def put(self, delivered: Delivered, /) -> None:
        """Hand over messages."""


class QueueStore(Protocol):
    """A queue's way to a message store."""

    credit: GrantedCredit

    def sync(self) -> None:
        """Ask for what was handed over to be made safe soon."""

    def progress(self, taken: int, safe: int) -> bool:
        """The store tells how far it is."""


class QueueTurnHost(Protocol):
    """What a turn asks of its host."""

    def has_more(self) -> bool:
        """Whether something waits in the inbox."""

    def has_work(self) -> bool:
        """Whether something waits there that is for a turn now."""

    def call_soon(self, work: Callable[[], object]) -> None:
        """Do ``work`` in a later turn, after what is in the inbox."""

    def call_later(self, key: str, wait_ns: int, work: Callable[[], object], *, first: bool = False) -> None:
        """Do ``work`` in a turn after ``wait_ns``, or (``first``) before other work; replaces a timer of that key."""

    def cancel_timers(self) -> None:
        """Forget all timers."""

    def account_memory(self) -> None:
        """Account for the memory that the queue needs now."""

    def rested(self) -> None:
        """The queue has given up the memory that it can do without."""

    def report(self, duration_s: float | None, *, pageable: bool, resting: bool) -> None:
        """Tell the memory monitor; its answer comes by ``set_duration_target``."""

    def leave_monitor(self) -> None:
        """Tell the memory monitor that nothing can be paged here."""

    def disk_is_full(self, error: NoRoomError, *, since_now: bool) -> None:
        """What was written found no room on the disk."""

    def disk_has_room(self) -> None:
        """It does again."""

    def confirmed(self, token: Any) -> None:
        """A publish is safe."""

    def refused(self, token: Any) -> None:
        """A publish was not taken, or not all of it: the queue is full."""

    def not_safe(self, token: Any, error: NoRoomError) -> None:
        """A publish was taken and found no room on the disk."""

    def consumer_cancelled(self, receiver: Any) -> None:
        """A consumer is gone because the queue is."""

    def lapsed(self, receiver: Any, tags: range) -> None:
        """A consumer held messages for too long: what it had under these delivery tags is not its any more."""

    def send_dead_letters(self, batch: DeadLetterBatch) -> None:
        """Publish dead letters; ``dead_letters_safe`` is to be called once they are safe."""

    def unused(self) -> None:
        """The queue is unused and is to be deleted."""
