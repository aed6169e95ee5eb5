"""DelayOutput: the half of a vhost's delayed messages that publishes what is due. What comes in, and the end, is
:mod:`warren.actors.delays.delay_actor`.

What is due is published as anybody's messages are at that moment: to the queues that the exchange leads to then. Until
it is known of all of them that it is safe, or that they refuse it, it is kept here. A turn publishes a few hundred
(:data:`TURN_MESSAGES`), the next one others.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, cast

from pykka import ActorRef
from pykka._envelope import Envelope as Letter

from warren.actors import messages as m
from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.engines.delays.delay_log import DelayLog, DueMessage
from warren.actors.engines.delays.publications import Run, runs_of
from warren.actors.engines.full_disk import FIRST_WAIT_NS
from warren.actors.engines.restarts import What
from warren.actors.log_events import log_event, logger
from warren.actors.node.front_end import FrontEnd
from warren.actors.node.node_context import NodeContext
from warren.actors.queue.intake import PublishRefusedError, QueueGoneError
from warren.actors.runtime.future import Confirm, Future
from warren.actors.runtime.inbox import ControlCall
from warren.actors.runtime.pool import ActorStoppedError
from warren.actors.runtime.timer import tell
from warren.queue_index.message.message_format import MSG_ID_BYTES
from warren.storage.errors import NoRoomError, WarrenError

if TYPE_CHECKING:
    from warren.actors.queue.queue_actor import QueueActor
    from warren.actors.queue.queue_output import Dispatch, Target

_LOG = logger("delays")

BATCH_MESSAGES: Final = 1024
"""So many that have gathered are written at once."""
BATCH_BYTES: Final = 4 << 20
"""What is taken from the disk at a time, at most."""
TURN_MESSAGES: Final = 256
"""What is published in a turn: each may go elsewhere, and other actors wait for the thread meanwhile."""
ON_THE_WAY: Final = 8 * BATCH_MESSAGES
ON_THE_WAY_BYTES: Final = 4 * BATCH_BYTES
"""What is being published at a time, at most, as far as that is more than one message."""
MOST_WAIT_MS: Final = 1000
"""So long at most it does not look at the wall clock."""
_DROPPED: Final = (PublishRefusedError, QueueGoneError)
"""With these a message is lost on purpose: a full queue refused it, or it was deleted just then."""
MS_NS: Final = 1_000_000


class DelayOutput(FrontEnd):
    """The outgoing half."""

    def __init__(self, context: NodeContext, name: str, dispatch: Dispatch, is_opening: Callable[[], bool]) -> None:
        """``name``: the vhost's; ``is_opening``: whether queues may be there that are not started yet."""
        super().__init__(context)
        self._name = name
        self._dispatch = dispatch
        self._is_opening = is_opening
        self._log: DelayLog | None = None
        self._error: BaseException | None = None
        self._on_the_way = 0
        self._on_the_way_bytes = 0
        self._is_closing = False
        self._armed_ms: int | None = None
        """When, by the monotonic clock, it looks next."""
        self._goes_on = False
        """Whether a turn is on its way that publishes more."""
        self._refuses = False
        """Whether the disk was full when messages came last."""
        self._without_room: list[tuple[Run, BaseException]] = []
        """What waits for room on the disk, and why it could not be published."""

    def describe(self) -> str:
        return f"the delayed messages of vhost '{self._name}'"

    @property
    def trouble(self) -> What:
        return ("delays", self._name)

    def stopped_error(self) -> WarrenError:
        if isinstance(self._error, WarrenError):
            return self._error
        if self._error is None:
            return self._context.closing or ActorStoppedError(f"{self.describe()} have stopped")
        return ActorStoppedError(f"{self.describe()} are down: {self._error}")

    @property
    def log(self) -> DelayLog:
        """The messages. To be used in its turns, but for what any thread may ask of them."""
        if self._log is None:
            raise self.stopped_error()
        return self._log

    # ── going ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _publish_due(self) -> None:
        """Publish what is due, as far as there is room on the way, and ask to be woken for what is next."""
        log = self.log
        if self._is_closing:
            return
        wall_ms = self._context.clock.wall_us() // 1000
        held = self._is_opening() or bool(self._context.gate.reasons) or bool(self._without_room)
        taken = [] if held or not self._has_room else log.take_due(wall_ms, TURN_MESSAGES, BATCH_BYTES)
        self._publish(taken)
        due_ms = log.next_due_ms()
        if due_ms is None:
            return
        if due_ms > wall_ms:
            self._look_within(min(due_ms - wall_ms, MOST_WAIT_MS))
        elif taken and self._has_room:
            self._go_on()
        elif held or not self._on_the_way:
            self._look_within(MOST_WAIT_MS)
        # else what is on its way comes back, and this is called again

    @property
    def _has_room(self) -> bool:
        """Whether another batch may be on its way."""
        return (
            self._on_the_way <= ON_THE_WAY - TURN_MESSAGES and self._on_the_way_bytes <= ON_THE_WAY_BYTES - BATCH_BYTES
        )

    def _go_on(self) -> None:
        """Have another turn, behind who waits for one."""
        if not self._goes_on:
            self._goes_on = True
            self.call_soon(self._gone_on)

    def _gone_on(self) -> None:
        """The end of the turn does it."""
        self._goes_on = False

    def _look_within(self, wait_ms: int) -> None:
        now_ms = self._context.clock.now_ns() // MS_NS
        if self._armed_ms is None or now_ms + wait_ms < self._armed_ms:
            self._armed_ms = now_ms + wait_ms
            self.call_later("due", wait_ms * MS_NS, self._look, first=True)

    def _look(self) -> None:
        """The end of the turn does it."""
        self._armed_ms = None
        self.log.write_gone()  # if a full disk has kept it from being written

    def _publish(self, taken: list[DueMessage]) -> None:
        unreadable: list[DueMessage] = []
        for run in list(runs_of(taken, unreadable)):
            self._on_the_way += len(run.messages)
            self._on_the_way_bytes += run.size_bytes
            try:
                targets = self._dispatch(self.describe(), run.exchange, run.routing_keys, run.headers)
            except WarrenError as error:
                self._come_back(run, error)
                continue
            down = [name for name, target in targets if _is_down(target)]
            if down:
                self._arrived(run, ActorStoppedError(f"queue '{down[0]}' is down"))
            else:
                self._send(run, [target for _, target in targets])
        if unreadable:
            self.log.settle(unreadable)

    def _send(self, run: Run, targets: list[Target]) -> None:
        """Nobody is held for it: so much is on the way at most."""
        confirms: list[Future] = []
        msg_ids = self._context.new_msg_ids(len(run.given))
        for target in targets:
            if isinstance(target, ActorRef):
                confirms += self._send_to_queue(run, target, msg_ids)
                continue
            for given in run.given:
                confirms.append(confirm := Future())
                envelope, body = run.envelope.with_content(given) if run.envelope.of_contents else (run.envelope, given)
                cast("Any", target).take_dead_letter(envelope, body, confirm)
        outcome = _Outcome(len(confirms), functools.partial(self._come_back, run))
        for confirm in confirms:
            confirm.on_done(outcome.note)

    def _send_to_queue(self, run: Run, target: ActorRef[Any], msg_ids: bytes) -> list[Future]:
        queue: QueueActor = target.actor_inbox.owner  # type: ignore[attr-defined]
        overhead = MESSAGE_BYTES + len(run.envelope.properties)
        each = len(run.given) if queue.coalesces else 1  # else one may be refused and the next not
        confirms: list[Future] = []
        for first in range(0, len(run.given), each):
            given = run.given[first : first + each]
            size_bytes = self._context.gate.enter(sum(map(len, given)) + len(given) * overhead)
            ids = msg_ids[first * MSG_ID_BYTES : (first + each) * MSG_ID_BYTES]
            confirms.append(confirm := Confirm(queue))
            message = m.Publish(run.envelope, ids, given, run.expiration_ms, run.priority, confirm, size_bytes)
            try:
                target.actor_inbox.put(Letter(message), len(given))  # type: ignore[call-arg]
            except WarrenError as error:
                confirm.fail(error)
        if queue.actor_stopped.is_set():
            queue.turn()  # answers what slipped in
        queue.hurry_up()
        return confirms

    def _come_back(self, run: Run, error: BaseException | None) -> None:
        """In any thread: messages are safe in their queues, or are not."""
        tell(self.actor_ref, ControlCall(functools.partial(self._arrived, run, error)))

    def _arrived(self, run: Run, error: BaseException | None) -> None:
        count = len(run.messages)
        if error is None or isinstance(error, _DROPPED):
            if error is not None:
                _LOG.warning(
                    "%s: of %d some are dropped: %s",
                    self.describe(),
                    count,
                    error,
                    extra=log_event("delayed_dropped", error, vhost=self._name, count=count),
                )
            self.log.settle(run.messages)
            self._have_arrived(run)
            return
        if self._is_closing:
            return  # they are there when it is opened again
        try:
            self.log.postpone(run.messages, self._context.clock.wall_us() // 1000 + MOST_WAIT_MS)
        except NoRoomError as full:
            self._wait_for_room(full, run, error)
            return
        self._have_arrived(run)
        _LOG.warning(
            "%s: %d wait on: %s",
            self.describe(),
            count,
            error,
            extra=log_event("delayed_postponed", error, vhost=self._name, count=count),
        )

    def _have_arrived(self, run: Run) -> None:
        self._on_the_way -= len(run.messages)
        self._on_the_way_bytes -= run.size_bytes

    def _wait_for_room(self, full: NoRoomError, run: Run, error: BaseException) -> None:
        """What could not be published cannot be written again either: nothing more is published until it can."""
        self._without_room.append((run, error))
        if len(self._without_room) == 1:
            _LOG.warning(
                "%s: waiting for room on the disk: %s",
                self.describe(),
                full,
                extra=log_event("disk_full", full, part=self.describe()),
            )
            self.call_later("room", FIRST_WAIT_NS, self._look_for_room)

    def _look_for_room(self) -> None:
        waiting, self._without_room = self._without_room, []
        for run, error in waiting:
            self._arrived(run, error)


class _Outcome:
    """What becomes of messages in all queues that they were sent to; told once it is known of the last."""

    def __init__(self, count: int, tell_error: Callable[[BaseException | None], object]) -> None:
        self._lock = threading.Lock()
        self._left = count
        self._error: BaseException | None = None
        self._tell_error = tell_error
        if not count:
            tell_error(None)

    def note(self, confirm: Future) -> None:
        """One more is known, in any thread. That they have to be sent again counts more than that they were refused."""
        with self._lock:
            if self._error is None or not isinstance(confirm.error, (_DROPPED, NoneType)):
                self._error = confirm.error
            self._left -= 1
            last = not self._left
        if last:
            self._tell_error(self._error)


def _is_down(target: Target) -> bool:
    return target is None or (isinstance(target, ActorRef) and target.actor_stopped.is_set())
