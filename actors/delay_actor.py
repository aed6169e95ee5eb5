"""The actor of a vhost's delayed messages: it hosts their log, and publishes what is due.

*Coming.* Messages gather in its inbox and share a confirm, which is answered once they are as safe as the node's
``sync`` says. A full disk refuses them.

*Going.* What is due is published as anybody's messages are at that moment: to the queues that the exchange leads to
then. Until it is safe there it is kept here, so a crash publishes it again and loses nothing. What leads nowhere, or is
refused by a queue that is full, is dropped, and logged; where a queue is down it waits a while longer. So many messages
are on their way at a time (:data:`ON_THE_WAY`), and none while an alarm is set.

*Time.* Messages are due by the wall clock and timers go by the monotonic one; so it looks once a second at least, while
anything waits: a wall clock that was set is followed.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
from pykka import ActorRef
from pykka._envelope import Envelope as Letter

from warren.actors import messages as m
from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.engines.delays.delay_log import DelayLog, DueMessage, NewMessage
from warren.actors.engines.delays.publications import Run, runs_of
from warren.actors.engines.full_disk import MAX_WAIT_NS, FullDisk
from warren.actors.front_end import FrontEnd, PublishBatch
from warren.actors.future import Confirm, Future
from warren.actors.handing_over import CLOSED_WEIGHT, PublishKey, PublishRefusedError, QueueGoneError
from warren.actors.inbox import ControlCall, PendingBatch
from warren.actors.node_context import NodeContext
from warren.actors.pool import ActorStoppedError
from warren.actors.timer import tell
from warren.queue_index.message_format import MSG_ID_BYTES, encode_many
from warren.storage.errors import DiskFullError, NoRoomError, WarrenError

if TYPE_CHECKING:
    from warren.actors.queue_actor import QueueActor
    from warren.actors.queue_output import Dispatch, Target

_LOG = logging.getLogger("warren.delays")

BATCH_MESSAGES: Final = 1024
BATCH_BYTES: Final = 4 << 20
"""What is taken from the disk at a time."""
ON_THE_WAY: Final = 8 * BATCH_MESSAGES
ON_THE_WAY_BYTES: Final = 4 * BATCH_BYTES
"""What is being published at a time, at most, as far as that is more than one message."""
MOST_WAIT_MS: Final = 1000
"""So long at most it does not look at the wall clock."""
_DROPPED: Final = (PublishRefusedError, QueueGoneError)
"""With these a message is lost on purpose: a full queue refused it, or it was deleted just then."""
_MS_NS: Final = 1_000_000
_KEY: Final = object()
"""Of what gathers in the inbox: all is of one kind."""


@attrs.frozen(eq=False, repr=False)
class Delayed:
    """Messages that are to wait, as they are handed over."""

    key: PublishKey
    bodies: Sequence[bytes]
    target: int
    due_ms: Sequence[int]
    """Of each."""
    id_digests: Sequence[int]


class DelayActor(FrontEnd):
    """Owner of one vhost's delayed messages."""

    def __init__(  # noqa: PLR0917
        self,
        context: NodeContext,
        directory: str,
        name: str,
        dispatch: Dispatch,
        is_opening: Callable[[], bool],
        failed: Callable[[DelayActor, BaseException], None],
    ) -> None:
        """``name``: the vhost's; ``is_opening``: whether queues may be there that are not started yet; ``failed``: told
        when it has stopped by an error."""
        super().__init__(context)
        self._directory = directory
        self._name = name
        self._dispatch = dispatch
        self._is_opening = is_opening
        self._failed = failed
        self._log: DelayLog | None = None
        self._error: BaseException | None = None
        self._unconfirmed: list[Confirm] = []
        self._on_the_way = 0
        self._on_the_way_bytes = 0
        self._is_closing = False
        self._sync_armed = False
        self._reclaim_armed = False
        self._armed_ms: int | None = None
        """When, by the monotonic clock, it looks next."""
        self._full_disk: FullDisk | None = None

    def describe(self) -> str:
        return f"the delayed messages of vhost '{self._name}'"

    def stopped_error(self) -> WarrenError:
        if isinstance(self._error, WarrenError):
            return self._error
        why = "have stopped" if self._error is None else f"are down: {self._error}"
        return ActorStoppedError(f"{self.describe()} {why}")

    @property
    def log(self) -> DelayLog:
        """To be used in its turns; what the log says so of, in any thread."""
        if self._log is None:
            raise self.stopped_error()
        return self._log

    # ── any thread ──────────────────────────────────────────────────────────────────────────────────────────────

    def delay(self, delayed: Delayed, reserved_bytes: int) -> Confirm:
        """Hand messages over; returns their confirm, which messages that came together share."""
        if self.actor_stopped.is_set():
            self._context.gate.leave(reserved_bytes, unused_bytes=reserved_bytes)
            raise self.stopped_error()
        size_bytes = delayed.key.size_bytes(delayed.bodies)
        return self.actor_inbox.gather(
            _KEY, delayed, self._new_batch, len(delayed.bodies), size_bytes=size_bytes, reserved_bytes=reserved_bytes
        ).confirm

    # ── coming ──────────────────────────────────────────────────────────────────────────────────────────────────

    def on_start(self) -> None:
        limit = min(self._context.engine.msg_store_file_size_limit, 1 << 31)
        self._log = DelayLog.open(self._context.files, self._directory, file_size_limit_bytes=limit)

    def on_batch(self, entry: PendingBatch) -> None:
        if not isinstance(entry, PublishBatch):
            raise RuntimeError(f"{self.describe()} cannot handle {entry!r}")  # noqa: TRY004
        items: list[Delayed] = entry.items
        self.actor_inbox.lighten(sum(len(item.bodies) for item in items))
        try:
            self._context.check_directory()
            self.log.add([message for item in items for message in _new_messages(item)])
        except NoRoomError as error:
            entry.confirm.fail(DiskFullError(f"{self.describe()}: not taken, for the disk is full: {error}"))
            raise
        except BaseException as error:
            entry.confirm.fail(error)
            raise
        finally:
            self._context.gate.leave(entry.reserved_bytes, unused_bytes=max(entry.room_bytes, 0))
        self._unconfirmed.append(entry.confirm)

    def on_turn_end(self) -> None:
        hurry, self._hurry = self._hurry, False
        if hurry and not self.actor_inbox.empty():
            self._hurry = True  # what somebody waits for may not have been taken yet
        if self._unconfirmed:
            self._make_safe(hurry=hurry)
        self._publish_due()
        if not self._reclaim_armed and self.log.has_garbage and not self._is_closing:
            self._reclaim_armed = True
            self.call_soon(self._reclaim)
        if self._waiting_publishers:
            self._let_publishers_in()
        if self._context.check_invariants:
            self.log.check_invariants()

    def wants_turn(self) -> bool:
        return self._hurry and bool(self._unconfirmed)

    def _make_safe(self, *, hurry: bool) -> None:
        sync = self._context.settings.sync
        if sync != "os" and not hurry and sync != "always":
            if not self._sync_armed:
                self._sync_armed = True
                self.call_later("sync", self._context.settings.sync_interval_ms * _MS_NS, self._sync_due)
            return
        if sync != "os":
            self.log.sync()
        self._context.check_directory()
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for confirm in unconfirmed:
            if not confirm.done:
                confirm.set()

    def _sync_due(self) -> None:
        self._sync_armed = False
        self._hurry = True

    def _reclaim(self) -> None:
        if self._is_closing:
            return
        try:
            self.log.reclaim()
        except NoRoomError:
            self.call_later("reclaim", MAX_WAIT_NS, self._reclaim)
        else:
            self._reclaim_armed = False

    # ── going ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _publish_due(self) -> None:
        """Publish what is due, as far as there is room on the way, and ask to be woken for what is next."""
        log = self.log
        if self._is_closing:
            return
        wall_ms = self._context.clock.wall_us() // 1000
        held = self._is_opening() or bool(self._context.gate.reasons) or self._full_disk is not None
        while not held and self._has_room:
            taken = log.take_due(wall_ms, BATCH_MESSAGES, BATCH_BYTES)
            if not taken:
                break
            self._publish(taken)
        due_ms = log.next_due_ms()
        if due_ms is None or (due_ms <= wall_ms and not held):
            return  # what is on its way comes back, and this is called again
        self._look_within(MOST_WAIT_MS if held else min(max(due_ms - wall_ms, 0), MOST_WAIT_MS))

    @property
    def _has_room(self) -> bool:
        """Whether another batch may be on its way."""
        return (
            self._on_the_way <= ON_THE_WAY - BATCH_MESSAGES and self._on_the_way_bytes <= ON_THE_WAY_BYTES - BATCH_BYTES
        )

    def _look_within(self, wait_ms: int) -> None:
        now_ms = self._context.clock.now_ns() // _MS_NS
        if self._armed_ms is None or now_ms + wait_ms < self._armed_ms:
            self._armed_ms = now_ms + wait_ms
            self.call_later("due", wait_ms * _MS_NS, self._look, first=True)

    def _look(self) -> None:
        """The end of the turn does it."""
        self._armed_ms = None

    def _publish(self, taken: list[DueMessage]) -> None:
        unreadable: list[DueMessage] = []
        for run in list(runs_of(taken, unreadable)):
            self._on_the_way += len(run.messages)
            self._on_the_way_bytes += run.size_bytes
            try:
                targets = self._dispatch(run.exchange, run.routing_keys, run.headers)
            except WarrenError as error:
                self._come_back(run, error)
                continue
            if not targets:
                where = f"exchange '{run.exchange}', routing key '{run.routing_keys[0]}'"
                _LOG.warning("%s: %d lead nowhere and are dropped: %s", self.describe(), len(run.messages), where)
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
                _LOG.warning("%s: %d are dropped: %s", self.describe(), count, error)
            self.log.settle(run.messages)
            self._have_arrived(run)
            return
        if self._is_closing:
            return  # they are there when it is opened again
        try:
            self.log.postpone(run.messages, self._context.clock.wall_us() // 1000 + MOST_WAIT_MS)
        except NoRoomError as full:
            self._wait_for_room(full, functools.partial(self._arrived, run, error))
            return
        self._have_arrived(run)
        _LOG.warning("%s: %d wait on: %s", self.describe(), count, error)

    def _have_arrived(self, run: Run) -> None:
        self._on_the_way -= len(run.messages)
        self._on_the_way_bytes -= run.size_bytes

    def _wait_for_room(self, error: NoRoomError, again: Callable[[], object]) -> None:
        if self._full_disk is None:
            self._full_disk = FullDisk()
            _LOG.warning("%s: waiting for room on the disk: %s", self.describe(), error)

        def try_again() -> None:
            self._full_disk = None
            again()

        self.call_later("room", self._full_disk.next_wait_ns(), try_again)

    # ── calling back, looking ───────────────────────────────────────────────────────────────────────────────────

    def cancel(self, message_id: bytes, target: int | None = None) -> int:
        """Call back messages with this id that wait; returns how many there were. On return that is safe."""
        cancelled = len(self.log.cancel(message_id, target))
        self._sync_now()
        return cancelled

    def drop(self, target: int) -> int:
        """Call back all that wait of one target; returns how many."""
        dropped = self.log.drop(target)
        self._sync_now()
        return dropped

    def _sync_now(self) -> None:
        if self._context.settings.sync != "os":
            self.log.sync()

    def list_waiting(self, limit: int, target: int | None = None) -> list[tuple[int, bytes]]:
        """The first of those that wait: when each is due, and itself, encoded."""
        found: list[tuple[int, bytes]] = []
        if limit > 0:
            for one in self.log.waiting(target):
                found.append(one)
                if len(found) >= limit:
                    break
        return found

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def stop_publishing(self) -> None:
        """Publish nothing more: the queues are about to close."""
        self._is_closing = True

    def close(self) -> None:
        """Make safe what came, write down what is published, and close the files."""
        self._is_closing = True
        if self._unconfirmed:
            self._make_safe(hurry=True)
        self.log.close()
        self.cancel_timers()
        self._end()

    def give_up(self, error: BaseException) -> None:
        """Leave everything as a crash would."""
        self._error = error
        if self._log is not None:
            self._log.abandon()
        self._end()

    def forget(self, error: WarrenError) -> None:
        """In a forked child: the files are the parent's, and whoever comes here gets ``error``."""
        self._error = error
        self.actor_stopped.set()
        self.actor_inbox.weight = CLOSED_WEIGHT

    def _end(self) -> None:
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for confirm in unconfirmed:
            confirm.fail(self.stopped_error())
        self.actor_inbox.weight = CLOSED_WEIGHT
        self._stop()
        self._let_publishers_in()

    def note_error(self, error: BaseException) -> None:
        self._error = error

    def on_error(self, error: BaseException) -> None:
        if self._log is not None:
            self._log.abandon()
        self._end()
        self._failed(self, error)

    def on_undelivered(self, message: Any, error: WarrenError) -> None:
        if isinstance(message, PublishBatch):
            self._context.gate.leave(message.reserved_bytes)
            message.confirm.fail(error)


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


def _new_messages(item: Delayed) -> list[NewMessage]:
    bodies = item.bodies
    terms = encode_many(item.key.envelope, bytes(MSG_ID_BYTES * len(bodies)), bodies)  # ids come when they are due
    return [
        NewMessage(due_ms, digest, item.target, term)
        for due_ms, digest, term in zip(item.due_ms, item.id_digests, terms, strict=True)
    ]


def _is_down(target: Target) -> bool:
    return target is None or (isinstance(target, ActorRef) and target.actor_stopped.is_set())
