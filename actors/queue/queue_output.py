"""QueueOutput: the results of a queue's turns, as messages to other actors.

It sends reports to the memory monitor, confirms to publishers, dead letters to other queues. Incoming messages are
handled in :mod:`warren.actors.queue.queue_actor`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pykka import ActorRef
from pykka._envelope import Envelope as Letter

from warren.actors import messages as m
from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.engines.queue.dead_letters import copies
from warren.actors.engines.queue.effects import DeadLetter, DeadLetterBatch
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.queue.deliveries import Deliveries
from warren.actors.queue.inspecting import allocated_bytes
from warren.actors.queue.intake import PublishRefusedError, QueueDownError, QueueGoneError
from warren.actors.runtime.future import CountDown, Future
from warren.actors.runtime.timer import tell
from warren.queue_index.message.msg_ids import MsgIds
from warren.storage.errors import DiskFullError, NoRoomError

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream

_LOG = logger("queue")
IDLE_BYTES: Final = 4096
"""The assumed size of an idle queue, where the engine itself counts memory."""


Target: TypeAlias = "ActorRef[Any] | Stream | None"
"""A queue's actor, or a stream; ``None``: a queue that is down."""
Dispatch = Callable[[object, str, tuple[str, ...], Any, bytes], list[tuple[str, Target]]]
"""Subject, exchange, routing keys, headers → name and target of each queue that a dead letter goes to."""

_OPENING_WAIT_NS: Final = 10_000_000


class QueueOutput:
    """The output of one queue's turns."""

    __slots__ = (
        "_call_later",
        "_context",
        "_declaration",
        "_dispatch",
        "_is_opening",
        "_msg_ids",
        "_process",
        "_ref",
    )

    def __init__(
        self,
        context: NodeContext,
        ref: ActorRef[Any],
        process: QueueProcess,
        *,
        dispatch: Dispatch,
        is_opening: Callable[[], bool],
        call_later: Callable[[str, int, Callable[[], object]], None],
        msg_ids: MsgIds,
    ) -> None:
        """``ref``: the queue's actor; ``is_opening``: whether there may be queues that are not started yet;
        ``call_later``: calls a function in a turn, after some nanoseconds."""
        self._context = context
        self._declaration = process.context.declaration
        self._ref = ref
        self._process = process
        self._dispatch = dispatch
        self._is_opening = is_opening
        self._call_later = call_later
        self._msg_ids = msg_ids

    def account_memory(self) -> None:
        process = self._process
        size_bytes = IDLE_BYTES if process.backing.asleep else allocated_bytes(process)
        self._context.allocated.account(self._ref.actor_urn, size_bytes)

    def report(self, duration_s: float | None, *, pageable: bool, resting: bool) -> None:
        tell(self._context.monitor, m.ReportDuration(self._ref, duration_s, pageable, resting))

    def leave_monitor(self) -> None:
        tell(self._context.monitor, m.LeaveMonitor(self._ref))

    def disk_is_full(self, error: NoRoomError, *, since_now: bool) -> None:
        if since_now:
            _LOG.warning(
                "%s waits for room on the disk: %s",
                self._declaration,
                error,
                extra=log_event("disk_full", error, of=self._declaration, part=str(self._declaration)),
            )
        tell(self._context.monitor, m.DiskRoom(self._ref, has_room=False))

    def disk_has_room(self) -> None:
        _LOG.warning(
            "%s: there is room on the disk again",
            self._declaration,
            extra=log_event("disk_room", of=self._declaration, part=str(self._declaration)),
        )
        tell(self._context.monitor, m.DiskRoom(self._ref, has_room=True))

    def confirmed(self, token: Future) -> None:
        if not token.done:  # it is done if a full disk made it fail
            token.set()

    def refused(self, token: Future) -> None:
        token.fail(PublishRefusedError(f"{self._declaration} is full"))

    def not_safe(self, token: Future, error: NoRoomError) -> None:
        token.fail(DiskFullError(f"{self._declaration}: not safe, for the disk is full: {error}"))

    def consumer_cancelled(self, receiver: Deliveries) -> None:
        receiver.end(QueueGoneError(f"{self._declaration} was deleted"))

    def lapsed(self, receiver: Deliveries, tags: range) -> None:
        receiver.lapse(tags)

    def unused(self) -> None:
        tell(self._context.node, m.QueueUnused(self._ref))

    def send_dead_letters(self, batch: DeadLetterBatch) -> None:
        """Publish dead letters to the targets of their exchange; once safe there, they may be removed here."""
        if self._is_opening():
            retry = functools.partial(self.send_dead_letters, batch)
            self._call_later(f"dead letters {batch.number}", _OPENING_WAIT_NS, retry)
            return
        confirms: list[Future] = []
        gate = self._context.gate

        def targets(letter: DeadLetter) -> list[tuple[str, Target]]:
            properties = letter.envelope.properties
            return self._dispatch(self._declaration, batch.exchange, letter.routing_keys, letter.headers, properties)

        for name, target, letter, msg_id in copies(batch, self._msg_ids, targets):
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
            tell(self._ref, m.DeadLettersSafe(number))
        else:
            _LOG.warning(
                "%s keeps dead letters: %s",
                self._declaration,
                error,
                extra=log_event("queue_dead_letters_kept", error, of=self._declaration),
            )
