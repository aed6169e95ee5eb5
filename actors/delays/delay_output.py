"""DelayOutput: publishes the due messages of a vhost. Incoming messages and closing are in
:mod:`warren.actors.delays.delay_actor`.

Due messages are published like any others at that time: to the queues that the exchange then routes to. A message is
kept until every such queue has made it safe or refused it. A turn publishes a few hundred (:data:`TURN_MESSAGES`), the
next one others.

Messages that go to one target together are published in runs, in order of time.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
from pykka import ActorRef
from pykka._envelope import Envelope as Letter

from warren.actors import messages as m
from warren.actors.engines.back_off import FIRST_WAIT_NS
from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.engines.delays.delay_log import DelayLog, DueMessage
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart
from warren.actors.queue.intake import PublishRefusedError, QueueGoneError
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.runtime.future import Confirm, Future
from warren.actors.runtime.inbox import ControlCall
from warren.actors.runtime.pooled_actor import ActorStoppedError, actor_of_ref
from warren.actors.runtime.timer import tell
from warren.queue_index.message.message_format import MSG_ID_BYTES, Envelope, given_in, properties_in
from warren.queue_index.properties import decode_properties
from warren.storage.errors import MessageError, NoRoomError, WarrenError

if TYPE_CHECKING:
    from warren.actors.queue.queue_output import Dispatch, Target


_LOG = logger("delays")


@attrs.define(eq=False, repr=False)
class Run:
    """Consecutive messages with the same exchange, routing keys, headers, priority and expiration."""

    envelope: Envelope
    expiration_ms: int | None
    priority: int
    headers: Mapping[str, Any] | None
    """The headers for routing; ``None`` for the default exchange, which needs none."""
    messages: list[DueMessage] = attrs.Factory(list)
    given: list[bytes] = attrs.Factory(list)
    """Their contents or bodies, depending on the envelope."""

    @property
    def size_bytes(self) -> int:
        """The size of the messages' records."""
        return sum(message.entry.size for message in self.messages)

    @property
    def exchange(self) -> str:
        return self.envelope.exchange.decode("utf-8", "surrogateescape")

    @property
    def routing_keys(self) -> tuple[str, ...]:
        return tuple(key.decode("utf-8", "surrogateescape") for key in self.envelope.routing_keys)

    def takes(self, other: Run) -> bool:
        """Whether the messages of another run can be published with these."""
        return (self.envelope, self.expiration_ms, self.priority, self.headers) == (
            other.envelope,
            other.expiration_ms,
            other.priority,
            other.headers,
        )


def runs_of(messages: Iterable[DueMessage], unreadable: list[DueMessage]) -> Iterator[Run]:
    """Yield the runs. ``unreadable`` collects messages that can never be published."""
    last: Run | None = None
    for message in messages:
        try:
            run = _run_of(message)
        except MessageError as error:
            _LOG.error(
                "a delayed message that cannot be read is dropped: %s",
                error,
                extra=log_event("message_unreadable", error),
            )
            unreadable.append(message)
            continue
        if last is not None and last.takes(run):
            last.messages += run.messages
            last.given += run.given
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def _run_of(message: DueMessage) -> Run:
    envelope, given = given_in(message.term)
    properties = decode_properties(properties_in(given) if envelope.of_contents else envelope.properties)
    expiration = properties.expiration
    is_time = isinstance(expiration, str) and expiration.isascii() and expiration.isdigit()
    expiration_ms = int(expiration) if expiration is not None and is_time else None
    headers = dict(properties.headers or {}) if envelope.exchange else None
    return Run(envelope, expiration_ms, properties.priority or 0, headers, [message], [given])


BATCH_MESSAGES: Final = 1024
"""When this many have gathered, they are written at once."""
BATCH_BYTES: Final = 4 << 20
"""The most that is read from the disk at a time."""
TURN_MESSAGES: Final = 256
"""The most that a turn publishes: targets may differ, and other actors wait for the thread meanwhile."""
ON_THE_WAY: Final = 8 * BATCH_MESSAGES
ON_THE_WAY_BYTES: Final = 4 * BATCH_BYTES
"""The most that is being published at a time; a single message may be larger."""
MOST_WAIT_MS: Final = 1000
"""The longest time between two looks at the wall clock."""
_DROPPED: Final = (PublishRefusedError, QueueGoneError)
"""On these errors a message is lost on purpose: a full queue refused it, or the queue was just deleted."""
MS_NS: Final = 1_000_000


class DelayOutput:
    """Publishes the due messages of one vhost. All methods are called in the actor's turns."""

    def __init__(
        self,
        actor: NodePart,
        context: NodeContext,
        vhost: str,
        log: DelayLog,
        *,
        dispatch: Dispatch,
        is_opening: Callable[[], bool],
    ) -> None:
        """``is_opening``: whether there may be queues that are not started yet."""
        self._actor = actor
        self._context = context
        self._vhost = vhost
        self._log = log
        self._dispatch = dispatch
        self._is_opening = is_opening
        self.stopped = False
        """Whether nothing more is to be published."""
        self._on_the_way = 0
        self._on_the_way_bytes = 0
        self._armed_ms: int | None = None
        """The time of the next look, by the monotonic clock."""
        self._goes_on = False
        """Whether a turn that publishes more is scheduled."""
        self._without_room: list[tuple[Run, BaseException]] = []
        """Messages that wait for room on the disk, and why they could not be published."""

    def publish_due(self) -> None:
        """Publish due messages, as far as there is room on the way, and set a timer for the next ones."""
        log = self._log
        if self.stopped:
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
        # else messages on their way come back, and this is called again

    @property
    def _has_room(self) -> bool:
        """Whether another batch may be on its way."""
        return (
            self._on_the_way <= ON_THE_WAY - TURN_MESSAGES and self._on_the_way_bytes <= ON_THE_WAY_BYTES - BATCH_BYTES
        )

    def _go_on(self) -> None:
        """Schedule another turn, after all waiting messages."""
        if not self._goes_on:
            self._goes_on = True
            self._actor.call_soon(self._gone_on)

    def _gone_on(self) -> None:
        """Do nothing more: the end of the turn publishes."""
        self._goes_on = False

    def _look_within(self, wait_ms: int) -> None:
        now_ms = self._context.clock.now_ns() // MS_NS
        if self._armed_ms is None or now_ms + wait_ms < self._armed_ms:
            self._armed_ms = now_ms + wait_ms
            self._actor.call_later("due", wait_ms * MS_NS, self._look, first=True)

    def _look(self) -> None:
        """Do nothing more: the end of the turn publishes."""
        self._armed_ms = None
        self._log.write_removed()  # in case a full disk has prevented it

    def _publish(self, taken: list[DueMessage]) -> None:
        unreadable: list[DueMessage] = []
        for run in list(runs_of(taken, unreadable)):
            self._on_the_way += len(run.messages)
            self._on_the_way_bytes += run.size_bytes
            try:
                targets = self._dispatch(
                    self._actor.describe(), run.exchange, run.routing_keys, run.headers, run.envelope.properties
                )
            except WarrenError as error:
                self._come_back(run, error)
                continue
            down = [name for name, target in targets if _is_down(target)]
            if down:
                self._arrived(run, ActorStoppedError(f"queue '{down[0]}' is down"))
            else:
                self._send(run, [target for _, target in targets])
        if unreadable:
            self._log.settle(unreadable)

    def _send(self, run: Run, targets: list[Target]) -> None:
        """Send without holding any publisher, because the amount on the way is limited."""
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
        queue = actor_of_ref(target, QueueActor)
        overhead = MESSAGE_BYTES + len(run.envelope.properties)
        batch_size = (
            len(run.given) if queue.intake.coalesces else 1
        )  # the queue may refuse one message and accept the next
        confirms: list[Future] = []
        for first in range(0, len(run.given), batch_size):
            given = run.given[first : first + batch_size]
            size_bytes = self._context.gate.enter(sum(map(len, given)) + len(given) * overhead)
            ids = msg_ids[first * MSG_ID_BYTES : (first + batch_size) * MSG_ID_BYTES]
            confirms.append(confirm := Confirm(queue.intake))
            message = m.Publish(run.envelope, ids, given, run.expiration_ms, run.priority, confirm, size_bytes)
            try:
                queue.actor_inbox.put(Letter(message), len(given))
            except WarrenError as error:
                confirm.fail(error)
        if queue.actor_stopped.is_set():
            queue.turns.run()  # answers late messages
        queue.intake.hurry_up()
        return confirms

    def _come_back(self, run: Run, error: BaseException | None) -> None:
        """Report, in any thread, whether messages are safe in their queues."""
        tell(self._actor.actor_ref, ControlCall(functools.partial(self._arrived, run, error)))

    def _arrived(self, run: Run, error: BaseException | None) -> None:
        count = len(run.messages)
        if error is None or isinstance(error, _DROPPED):
            if error is not None:
                _LOG.warning(
                    "%s: some of %d messages were dropped: %s",
                    self._actor.describe(),
                    count,
                    error,
                    extra=log_event("delayed_dropped", error, vhost=self._vhost, count=count),
                )
            self._log.settle(run.messages)
            self._have_arrived(run)
            return
        if self.stopped:
            return  # they are still there when it is opened again
        try:
            self._log.postpone(run.messages, self._context.clock.wall_us() // 1000 + MOST_WAIT_MS)
        except NoRoomError as full:
            self._wait_for_room(full, run, error)
            return
        self._have_arrived(run)
        _LOG.warning(
            "%s: %d messages will be retried: %s",
            self._actor.describe(),
            count,
            error,
            extra=log_event("delayed_postponed", error, vhost=self._vhost, count=count),
        )

    def _have_arrived(self, run: Run) -> None:
        self._on_the_way -= len(run.messages)
        self._on_the_way_bytes -= run.size_bytes

    def _wait_for_room(self, full: NoRoomError, run: Run, error: BaseException) -> None:
        """Publish nothing more until these messages, which could not be published, can be written again."""
        self._without_room.append((run, error))
        if len(self._without_room) == 1:
            _LOG.warning(
                "%s: waiting for disk space: %s",
                self._actor.describe(),
                full,
                extra=log_event("disk_full", full, part=self._actor.describe()),
            )
            self._actor.call_later("room", FIRST_WAIT_NS, self._look_for_room)

    def _look_for_room(self) -> None:
        waiting, self._without_room = self._without_room, []
        for run, error in waiting:
            self._arrived(run, error)


class _Outcome:
    """Collects the results of all queues that messages were sent to; reports once the last is known."""

    def __init__(self, count: int, tell_error: Callable[[BaseException | None], object]) -> None:
        self._lock = threading.Lock()
        self._left = count
        self._error: BaseException | None = None
        self._tell_error = tell_error
        if not count:
            tell_error(None)

    def note(self, confirm: Future) -> None:
        """Note one result, in any thread. An error that requires a retry takes precedence over a refusal."""
        with self._lock:
            if self._error is None or not isinstance(confirm.error, (_DROPPED, NoneType)):
                self._error = confirm.error
            self._left -= 1
            last = not self._left
        if last:
            self._tell_error(self._error)


def _is_down(target: Target) -> bool:
    return target is None or (isinstance(target, ActorRef) and target.actor_stopped.is_set())
