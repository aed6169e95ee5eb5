"""QueueOutput: the results of a queue's turns, as messages to other actors. The half of a queue's actor that sends.

It is the :class:`~warren.actors.engines.queue.queue_turn_host.QueueTurnHost` of the queue's turns: it sends reports to
the memory monitor, confirms to publishers, dead letters to other queues. Incoming messages are handled in
:mod:`warren.actors.queue.queue_actor`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pykka import ActorRef
from pykka._envelope import Envelope as Letter

from warren.actors import messages as m
from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.queue.dead_letters import copies
from warren.actors.engines.queue.effects import DeadLetter, DeadLetterBatch
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.actors.engines.queue.queue_turn import QueueTurn
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.queue.deliveries import Deliveries
from warren.actors.queue.inspecting import allocated_bytes
from warren.actors.queue.intake import PublishRefusedError, QueueDownError, QueueGoneError
from warren.actors.queue.queue_front_end import QueueFrontEnd
from warren.actors.runtime.future import CountDown, Future
from warren.actors.runtime.inbox import ControlCall
from warren.actors.runtime.timer import tell
from warren.queue_index.message.msg_ids import MsgIds
from warren.storage.errors import DiskFullError, NoRoomError

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream

_LOG = logger("queue")
_rest_numbers = itertools.count(1)
IDLE_BYTES: Final = 4096
"""The assumed size of an idle queue, where the engine itself counts memory."""


Target: TypeAlias = "ActorRef[Any] | Stream | None"
"""A queue's actor, or a stream; ``None``: a queue that is down."""
Dispatch = Callable[[object, str, tuple[str, ...], Any], list[tuple[str, Target]]]
"""Subject, exchange, routing keys, headers → name and target of each queue that a dead letter goes to."""

_OPENING_WAIT_NS: Final = 10_000_000


class QueueOutput(QueueFrontEnd):
    """The outgoing half of a queue's actor."""

    __slots__ = ("_dispatch", "_is_opening", "msg_ids", "rest_number")

    def __init__(
        self, context: NodeContext, declaration: QueueDeclaration, dispatch: Dispatch, is_opening: Callable[[], bool]
    ) -> None:
        super().__init__(context, declaration)
        self._dispatch = dispatch
        self._is_opening = is_opening
        """Whether there may be queues that are not started yet."""
        self.msg_ids = MsgIds(context.random(8))
        self.rest_number = 0
        """A new number for each rest, 0 at work: while it is unchanged, the queue's numbers are, too."""

    @property
    def process(self) -> QueueProcess:
        if self._process is None:
            raise RuntimeError(f"{self.describe()} is not open")
        return self._process

    @property
    def queue_turn(self) -> QueueTurn:
        if self._queue_turn is None:
            raise RuntimeError(f"{self.describe()} is not open")
        return self._queue_turn

    def has_more(self) -> bool:
        return not self.actor_inbox.empty()

    def account_memory(self) -> None:
        process = self.process
        size_bytes = IDLE_BYTES if process.is_asleep else allocated_bytes(process)
        self._context.allocated.account(self.actor_urn, size_bytes)

    def rested(self) -> None:
        self.actor_inbox.rest()
        self.rest_number = next(_rest_numbers)

    def report(self, duration_s: float | None, *, pageable: bool, resting: bool) -> None:
        tell(self._context.monitor, m.ReportDuration(self.actor_ref, duration_s, pageable, resting))

    def leave_monitor(self) -> None:
        tell(self._context.monitor, m.LeaveMonitor(self.actor_ref))

    def disk_is_full(self, error: NoRoomError, *, since_now: bool) -> None:
        if since_now:
            _LOG.warning(
                "%s waits for room on the disk: %s",
                self.describe(),
                error,
                extra=log_event("disk_full", error, part=self.describe(), **self.log_fields()),
            )
        tell(self._context.monitor, m.DiskRoom(self.actor_ref, has_room=False))

    def disk_has_room(self) -> None:
        _LOG.warning(
            "%s: there is room on the disk again",
            self.describe(),
            extra=log_event("disk_room", part=self.describe(), **self.log_fields()),
        )
        tell(self._context.monitor, m.DiskRoom(self.actor_ref, has_room=True))

    def confirmed(self, token: Future) -> None:
        if not token.done:  # it is done if a full disk made it fail
            token.set()

    def refused(self, token: Future) -> None:
        token.fail(PublishRefusedError(f"{self.describe()} is full"))

    def not_safe(self, token: Future, error: NoRoomError) -> None:
        token.fail(DiskFullError(f"{self.describe()}: not safe, for the disk is full: {error}"))

    def consumer_cancelled(self, receiver: Deliveries) -> None:
        receiver.end(QueueGoneError(f"{self.describe()} was deleted"))

    def lapsed(self, receiver: Deliveries, tags: range) -> None:
        receiver.lapse(tags)

    def unused(self) -> None:
        tell(self._context.node, m.QueueUnused(self.actor_ref))

    def send_dead_letters(self, batch: DeadLetterBatch) -> None:
        """Publish dead letters to the targets of their exchange; once safe there, they may be removed here."""
        if self._is_opening():
            retry = functools.partial(self.send_dead_letters, batch)
            self.call_later(f"dead letters {batch.number}", _OPENING_WAIT_NS, retry)
            return
        confirms: list[Future] = []
        gate = self._context.gate

        def targets(letter: DeadLetter) -> list[tuple[str, Target]]:
            return self._dispatch(self.declaration, batch.exchange, letter.routing_keys, letter.headers)

        for name, target, letter, msg_id in copies(batch, self.msg_ids, targets):
            confirms.append(confirm := Future())
            if target is not None and not isinstance(target, ActorRef):
                target.take_dead_letter(letter.envelope, letter.body, confirm)
                continue
            if target is None or target.actor_stopped.is_set():
                confirm.fail(QueueDownError(f"queue '{name}' is down"))
                continue
            envelope, body = letter.envelope, letter.body
            size_bytes = gate.enter(MESSAGE_BYTES + len(body) + len(envelope.properties))
            message = m.Publish(envelope, msg_id, [body], None, letter.priority, confirm, size_bytes)
            # They count in the weight, but their sender waits neither for room nor for bytes.
            target.actor_inbox.put(Letter(message), 1)  # type: ignore[call-arg]
        CountDown(confirms).on_done(lambda confirm: self._dead_lettered(batch.number, confirm))

    def _dead_lettered(self, number: int, confirm: Future) -> None:
        """Drop dead letters that are safe, or lost to a full or deleted target, as in RabbitMQ; else keep them."""
        error = confirm.error
        if error is None or isinstance(error, (PublishRefusedError, QueueGoneError)):
            tell(self.actor_ref, ControlCall(lambda: self.queue_turn.dead_letters_safe(number)))
        else:
            _LOG.warning(
                "%s keeps dead letters: %s",
                self.describe(),
                error,
                extra=log_event("queue_dead_letters_kept", error, of=self.declaration),
            )
