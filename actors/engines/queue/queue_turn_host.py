"""What a queue's turn (:mod:`~warren.actors.engines.queue.queue_turn`) needs of its host, its output, stores and
consumers, and what its parts share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import attrs

from warren.actors.engines.credit import GrantedCredit
from warren.actors.engines.node_settings import NodeSettings
from warren.actors.engines.queue.effects import DeadLetterBatch, Delivered
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.storage.errors import NoRoomError

MS_NS: Final = 1_000_000


class Clock(Protocol):
    """Monotonic and wall-clock time."""

    def now_ns(self) -> int:
        """Monotonic time in nanoseconds."""

    def wall_us(self) -> int:
        """Time since the Unix epoch in microseconds."""


class Receiver(Protocol):
    """The receiving side of a consumer."""

    @property
    def buffered(self) -> int:
        """How many messages it was handed and has not taken."""

    def put(self, delivered: Delivered, /) -> None:
        """Hand over messages."""


class QueueStore(Protocol):
    """A queue's access to a message store."""

    credit: GrantedCredit

    def sync(self) -> None:
        """Ask for what was handed over to be made safe soon."""

    def progress(self, taken: int, safe: int) -> bool:
        """Note the store's progress."""


class QueueTurnHost(Protocol):
    """The actor that has the turn: its inbox and its timers."""

    def has_more(self) -> bool:
        """Whether something waits in the inbox."""

    def has_work(self) -> bool:
        """Whether something waits in the inbox that a turn can handle now."""

    def call_soon(self, work: Callable[[], object]) -> None:
        """Do ``work`` in a later turn, after what is in the inbox."""

    def call_later(self, key: str, wait_ns: int, work: Callable[[], object], *, first: bool = False) -> None:
        """Do ``work`` in a turn after ``wait_ns``, or (``first``) before other work; replaces a timer of that key."""

    def cancel_timers(self) -> None:
        """Forget all timers."""

    def rested(self) -> None:
        """Called when the queue has released the memory that it does not need."""


class QueueTurnOutput(Protocol):
    """Where the results of a turn go."""

    def account_memory(self) -> None:
        """Account for the memory that the queue needs now."""

    def report(self, duration_s: float | None, *, pageable: bool, resting: bool) -> None:
        """Report to the memory monitor; its answer comes by ``set_duration_target``."""

    def leave_monitor(self) -> None:
        """Unregister from the memory monitor, because nothing can be paged here."""

    def disk_is_full(self, error: NoRoomError, *, since_now: bool) -> None:
        """Called when the disk has no room for what was written."""

    def disk_has_room(self) -> None:
        """Called when the disk has room again."""

    def confirmed(self, token: Any) -> None:
        """Called when a publish is safe."""

    def refused(self, token: Any) -> None:
        """Called when a publish, or a part of it, was refused because the queue is full."""

    def not_safe(self, token: Any, error: NoRoomError) -> None:
        """Called when a publish was taken, and the disk has no room for it."""

    def consumer_cancelled(self, receiver: Any) -> None:
        """Called when a consumer was cancelled because the queue was deleted."""

    def lapsed(self, receiver: Any, tags: range) -> None:
        """Called when a consumer has lost the messages with these tags, because it held them for too long."""

    def send_dead_letters(self, batch: DeadLetterBatch) -> None:
        """Publish dead letters, and call ``dead_letters_safe`` once they are safe."""

    def unused(self) -> None:
        """Called when the queue is unused and must be deleted."""


@attrs.define(eq=False, repr=False, kw_only=True)
class TurnContext:
    """What the parts of a queue's turn share."""

    host: QueueTurnHost
    output: QueueTurnOutput
    process: QueueProcess
    stores: Sequence[QueueStore]
    clock: Clock
    settings: NodeSettings
    rests_as_rabbitmq: bool = False
    """Whether a queue that comes to rest keeps what it has in RAM, and is woken to page it. A simulated RabbitMQ's
    queues do this; the node's own release what they can, so that paging need not wake them."""
    worked: bool = False
    """Whether this turn has had something to do."""

    @property
    def sync_interval_ns(self) -> int:
        """How long a commit that nothing waits for may be put off."""
        return self.settings.sync_interval_ms * MS_NS
