"""The actor of a vhost's delayed messages: it hosts their log, and publishes due messages.

*Incoming.* Messages gather in its inbox and share a confirm, which is answered once they are as safe as the node's
``sync`` requires. A full disk refuses them.

*Outgoing* (:mod:`warren.actors.delays.delay_output`). Due messages are published like any others at that time. They are
kept until they are safe there, so a crash publishes them again and loses none. Messages without a route, or refused by
a full queue, are dropped and logged; if a queue is down, they wait a while longer. The number on their way is limited
(:data:`~warren.actors.delays.delay_output.ON_THE_WAY`), and 0 while an alarm is set.

*Time.* Messages are due by the wall clock, timers use the monotonic one. So while messages wait, it checks at least
once a second, to notice that the wall clock was set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.actors.delays.delay_output import BATCH_MESSAGES, MOST_WAIT_MS, MS_NS, DelayOutput
from warren.actors.engines.back_off import MAX_WAIT_NS
from warren.actors.engines.delays.delay_log import DelayLog, NewMessage
from warren.actors.log_events import log_event, logger
from warren.actors.node.backpressure import Intake, PublishBatch
from warren.actors.node.group_commit import GroupCommit
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart, stopped_by
from warren.actors.queue.intake import PublishKey
from warren.actors.runtime.future import Confirm
from warren.actors.runtime.inbox import InboxClosedError, PendingBatch
from warren.queue_index.message.message_format import MSG_ID_BYTES, encode_many
from warren.storage.errors import DiskFullError, NoRoomError, WarrenError

if TYPE_CHECKING:
    from warren.actors.queue.queue_output import Dispatch

_LOG = logger("delays")

_KEY: Final = object()
"""The key of everything that gathers in the inbox: all items are of one kind."""


@attrs.frozen(eq=False, repr=False)
class Delayed:
    """Messages to delay, as they are handed over."""

    key: PublishKey
    bodies: Sequence[bytes]
    target: int
    due_ms: Sequence[int]
    """One per message."""
    id_digests: Sequence[int]


class DelayIntake(Intake):
    """Takes messages to delay."""

    __slots__ = ("_sync_interval_ns", "turn_armed")

    def __init__(self, actor: DelayActor, context: NodeContext) -> None:
        # Consumers make no room for delayed messages on a full disk, so waiting could last for ever.
        super().__init__(actor, context, tries_full_disk=True)
        self._sync_interval_ns = context.settings.sync_interval_ms * MS_NS
        self.turn_armed = False
        """Whether a timer is set for the turn that writes messages."""

    def delay(self, delayed: Delayed, reserved_bytes: int) -> Confirm:
        """Hand messages over; return their confirm, which messages that came together share."""
        self.refuse_if_stopped(reserved_bytes)
        wall_ms = self.clock.wall_us() // 1000
        try:
            batch = self.inbox.gather(
                _KEY,
                delayed,
                self.new_batch,
                len(delayed.bodies),
                size_bytes=delayed.key.size_bytes(delayed.bodies),
                reserved_bytes=reserved_bytes,
                wake=self._needs_a_turn if delayed.due_ms[0] > wall_ms + MOST_WAIT_MS else None,
            )
        except InboxClosedError:
            raise self.refusal(reserved_bytes) from None
        return batch.confirm

    def _needs_a_turn(self) -> bool:
        """Whether messages that are not due soon must be written now; otherwise they are written with the next sync."""
        if self.inbox.weight >= BATCH_MESSAGES:
            return True
        if not self.turn_armed:
            self.turn_armed = True
            self._actor.call_later("write", self._sync_interval_ns, _nothing, first=True)
        return False


class DelayActor(NodePart):
    """Owns the delayed messages of one vhost."""

    def __init__(
        self,
        context: NodeContext,
        directory: str,
        name: str,
        *,
        dispatch: Dispatch,
        is_opening: Callable[[], bool],
        failed: Callable[[DelayActor, BaseException], None],
    ) -> None:
        """``name``: the vhost's; ``is_opening``: whether there may be queues that are not started yet; ``failed``:
        called when an error has stopped it."""
        super().__init__(context, f"the delayed messages of vhost '{name}'", ("delays", name))
        self.intake = DelayIntake(self, context)
        self._directory = directory
        self._name = name
        self._dispatch = dispatch
        self._is_opening = is_opening
        self._failed = failed
        self._log: DelayLog | None = None
        self._output: DelayOutput | None = None
        self._refuses = False
        """Whether the disk was full for the last messages."""
        self._commits = GroupCommit(self, context, self.intake, mode=context.settings.sync, sync=self._sync)
        self._reclaim_armed = False

    def stopped_error(self) -> WarrenError:
        return stopped_by(self, self._context.closing)

    @property
    def log(self) -> DelayLog:
        """The log of messages. Use it in the actor's turns, except for what any thread may call."""
        if self._log is None:
            raise self.stopped_error()
        return self._log

    @property
    def output(self) -> DelayOutput:
        """What publishes due messages."""
        if self._output is None:
            raise self.stopped_error()
        return self._output

    # ── coming ──────────────────────────────────────────────────────────────────────────────────────────────────

    def on_start(self) -> None:
        limit = min(self._context.engine.msg_store_file_size_limit, 1 << 31)
        self._log = DelayLog.open(self._context.files, self._directory, file_size_limit_bytes=limit)
        self._output = DelayOutput(
            self, self._context, self._name, self._log, dispatch=self._dispatch, is_opening=self._is_opening
        )

    def on_batch(self, entry: PendingBatch) -> None:
        if not isinstance(entry, PublishBatch):
            raise TypeError(f"{self.describe()} cannot handle {entry!r}")
        self.intake.turn_armed = False  # later messages are seen at the end of the turn, or arm it again
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
        self._commits.unconfirmed.append((entry.confirm, None))
        if self._refuses:
            self._refuses = False
            _LOG.warning(
                "%s: there is room on the disk again",
                self.describe(),
                extra=log_event("disk_room", part=self.describe()),
            )

    def on_refused(self, error: Exception) -> None:
        if not isinstance(error, NoRoomError):
            super().on_refused(error)
        elif not self._refuses:  # every publisher gets the error; the log has it once
            self._refuses = True
            _LOG.warning(
                "%s accepts no more messages: %s",
                self.describe(),
                error,
                extra=log_event("disk_full", error, part=self.describe()),
            )

    def on_turn_end(self) -> None:
        hurry = self.intake.take_hurry()
        if self._commits.unconfirmed:
            self._commits.make_safe(hurry=hurry)
        self.output.publish_due()
        if not self._reclaim_armed and self.log.has_garbage and not self.output.stopped:
            self._reclaim_armed = True
            self.call_soon(self._reclaim)
        if self.intake.waiting_publishers:
            self.intake.let_publishers_in()
        if self._context.check_invariants:
            self.log.check_invariants()

    def wants_turn(self) -> bool:
        return self.intake.hurry and bool(self._commits.unconfirmed)

    def _reclaim(self) -> None:
        if self.output.stopped:
            return
        try:
            self.log.reclaim()
        except NoRoomError:
            self.call_later("reclaim", MAX_WAIT_NS, self._reclaim)
        else:
            self._reclaim_armed = False

    # ── calling back, looking ───────────────────────────────────────────────────────────────────────────────────

    def cancel(self, message_id: bytes, target: int | None = None) -> int:
        """Cancel waiting messages with this id, durably; return their number."""
        cancelled = len(self.log.cancel(message_id, target))
        self._sync()
        return cancelled

    def drop(self, target: int) -> int:
        """Cancel all waiting messages of one target; return their number."""
        dropped = self.log.drop(target)
        self._sync()
        return dropped

    def _sync(self) -> None:
        if self._context.settings.sync != "os":
            self.log.sync()

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def stop_publishing(self) -> None:
        """Stop publishing, because the queues are about to close."""
        self.output.stopped = True

    def close(self) -> None:
        """Make received messages safe, record the published ones, and close the files."""
        self.stop_publishing()
        self.turns.handle_last()
        if self._commits.unconfirmed:
            self._commits.make_safe(hurry=True)
        self.log.close()
        self.cancel_timers()
        self._end()

    def give_up(self, error: BaseException) -> None:
        """Leave everything as a crash would."""
        self.error = error
        if self._log is not None:
            self._log.abandon()
        self._end()

    def forget(self, error: WarrenError) -> None:
        """Stop in a forked child: the files are the parent's, and calls raise ``error``."""
        self.error = error
        self.actor_stopped.set()
        self.intake.close()

    def _end(self) -> None:
        self._commits.fail(self.stopped_error())
        self.intake.close()
        self._stop()
        self.intake.let_publishers_in()

    def on_error(self, error: BaseException) -> None:
        if self._log is not None:
            self._log.abandon()
        self._end()
        self._failed(self, error)

    def on_undelivered(self, message: Any, error: WarrenError) -> None:
        if isinstance(message, PublishBatch):
            self._context.gate.leave(message.reserved_bytes)
            message.confirm.fail(error)


def _nothing() -> None:
    """Do nothing: the turn itself handles waiting messages."""


def _new_messages(item: Delayed) -> list[NewMessage]:
    bodies = item.bodies
    terms = encode_many(item.key.envelope, bytes(MSG_ID_BYTES * len(bodies)), bodies)  # ids are assigned when due
    return [
        NewMessage(due_ms, digest, item.target, term)
        for due_ms, digest, term in zip(item.due_ms, item.id_digests, terms, strict=True)
    ]
