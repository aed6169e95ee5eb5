"""VhostDelays: the delayed messages of one vhost, running or down with a reason. Created with the first message.

Their actor is started on first use. If it fails, the node's actor restarts it from its files, as often as the node's
``restart_limit`` allows, and not after damage; if the disk is the cause, this is retried.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from warren.actors.delays.delay_actor import DelayActor, Delayed, DelayIntake
from warren.actors.engines.delays.delay_format import digest_of_id, target_of_exchange, target_of_queue
from warren.actors.engines.restarts import DISK_ERRORS, Restarts
from warren.actors.log_events import log_event, logger
from warren.actors.messages import DelaysFailed
from warren.actors.node.backpressure import InFront
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_errors import DelaysDownError
from warren.actors.queue.intake import PublishKey
from warren.actors.runtime.future import Confirm
from warren.actors.runtime.pooled_actor import actor_of_ref
from warren.actors.runtime.timer import tell
from warren.storage.errors import StorageError, WarrenError

if TYPE_CHECKING:
    from warren.actors.queue.queue_output import Dispatch

_LOG = logger("delays")


class VhostDelays:
    """See the module's prose. Any thread may use it."""

    def __init__(
        self, context: NodeContext, path: str, name: str, dispatch: Dispatch, is_opening: Callable[[], bool]
    ) -> None:
        """``path``: the directory of the vhost's delayed messages."""
        self.path = path
        self._context = context
        self._name = name
        self._dispatch = dispatch
        self._is_opening = is_opening
        self._lock = threading.Lock()
        self._actor: DelayActor | None = None
        self._error: BaseException | None = None
        self.restarts = Restarts()
        """Restarts by the node's actor."""
        self._closed = False

    @property
    def running(self) -> DelayActor | None:
        """Their actor, if it is running."""
        actor = self._actor
        return None if actor is None or actor.actor_stopped.is_set() else actor

    @property
    def actor(self) -> DelayActor:
        """Their actor, started if necessary. Raises :class:`DelaysDownError`."""
        actor = self._actor
        if actor is not None and not actor.actor_stopped.is_set():
            return actor
        with self._lock:
            if (running := self.running) is not None:
                return running
            if self._closed or self._is_kept_down:
                why = "it was closed" if self._error is None else str(self._error)
                raise DelaysDownError(f"the delayed messages of vhost '{self._name}' are down: {why}")
            return self._start()

    @property
    def error(self) -> BaseException | None:
        """Why they are down."""
        return None if self.running is not None else self._error

    @property
    def _is_kept_down(self) -> bool:
        """Whether only the node's actor may restart it, or it stays down."""
        if isinstance(self._error, DISK_ERRORS):
            return self._context.troubles.knows(("delays", self._name))
        return self._error is not None

    def _start(self) -> DelayActor:
        self._error = None
        ref = DelayActor.start(
            self._context,
            self.path,
            self._name,
            dispatch=self._dispatch,
            is_opening=self._is_opening,
            failed=self._failed,
        )
        self._actor = actor = actor_of_ref(ref, DelayActor)
        return actor

    def _failed(self, actor: DelayActor, error: BaseException) -> None:
        """Called in the turn in which the actor fails."""
        if actor is not self._actor:
            return
        self._error = error
        tell(self._context.node, DelaysFailed(self._name, error))

    def start_again(self) -> bool:
        """Start the actor if it is not running, for the node's actor; return whether it runs now."""
        with self._lock:
            if self.running is None and not self._closed:
                self._start()
            return not self._closed

    # ── what they are asked ─────────────────────────────────────────────────────────────────────────────────────

    def receiver(
        self, queue: str | None, exchange: str, due_ms: Sequence[int] | int, ids: Sequence[bytes] = ()
    ) -> Appointment:
        """Return a receiver of delayed messages. ``due_ms`` and ``ids``: one per message, or one for all."""
        target = target_of(queue, exchange)
        return Appointment(self.actor.intake, target, due_ms, tuple(map(digest_of_id, ids)))

    def __len__(self) -> int:
        """Return the number of waiting messages."""
        actor = self.running
        return 0 if actor is None or actor._log is None else len(actor._log)

    def waiting_of(self, queue: str | None, exchange: str) -> int:
        """Return how many waiting messages were published to a queue itself, or to an exchange."""
        actor = self.running
        log = None if actor is None else actor._log
        return 0 if log is None else log.waiting_of(target_of(queue, exchange))

    def drop_queue(self, queue: str) -> int:
        """Drop the messages of a deleted queue, unless they are down; return their number. For the node's actor."""
        actor = self.running
        dropped = 0
        if actor is not None:
            try:
                dropped = actor.turns.ask(lambda: actor.drop(target_of(queue, "")))
            except WarrenError as error:
                _LOG.warning(
                    "delayed messages of the deleted queue '%s' could not be deleted: %s",
                    queue,
                    error,
                    extra=log_event("delayed_kept", error, vhost=self._name, queue=queue),
                )
        return dropped

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def stop_publishing(self) -> None:
        """Stop publishing, before the queues close."""
        if (actor := self.running) is not None:
            with contextlib.suppress(WarrenError):
                actor.turns.ask(actor.stop_publishing, first=True)

    def close(self) -> None:
        """Close, after the queues. Raises the error that keeps that from being clean."""
        self._closed = True
        actor = self.running
        if actor is None:
            return
        actor.turns.ask(actor.close)
        parent = self.path.rpartition("/")[0]
        with contextlib.suppress(StorageError):
            if not self._context.files.list(parent):
                self._context.files.delete_tree(parent)

    def give_up(self, error: BaseException) -> None:
        """Leave everything as a crash would."""
        self._closed = True
        if (actor := self.running) is not None:
            with contextlib.suppress(WarrenError):
                actor.turns.ask(lambda: actor.give_up(error), first=True)

    def forget(self, error: WarrenError) -> None:
        """Stop the actor in a forked child."""
        if (actor := self.running) is not None:
            actor.forget(error)


@attrs.frozen(eq=False, repr=False)
class Appointment(InFront):
    """Receives messages for a given time. Publishers use it as they use a queue's intake
    (:class:`~warren.actors.node.backpressure.Intake`)."""

    behind: DelayIntake
    _target: int
    _due_ms: Sequence[int] | int
    _id_digests: Sequence[int]
    coalesces: bool = True

    def publish(self, key: PublishKey, body: bytes, reserved_bytes: int = 0, *, here: bool = True) -> Confirm:
        """Hand over one message; return its confirm."""
        return self.publish_many(key, [body], reserved_bytes, here=here)

    def publish_many(
        self,
        key: PublishKey,
        bodies: Sequence[bytes],
        reserved_bytes: int = 0,
        *,
        msg_ids: bytes = b"",
        here: bool = True,
    ) -> Confirm:
        """Hand over messages; return their confirm."""
        count = len(bodies)
        due_ms = [self._due_ms] * count if isinstance(self._due_ms, int) else self._due_ms
        digests = self._id_digests if len(self._id_digests) == count else [*self._id_digests, 0][:1] * count
        return self.behind.delay(Delayed(key, bodies, self._target, due_ms, digests), reserved_bytes)


def target_of(queue: str | None, exchange: str) -> int:
    """Return the target of messages published to a queue itself, or to an exchange."""
    if queue is not None and not exchange:
        return target_of_queue(queue.encode("utf-8", "surrogateescape"))
    return target_of_exchange(exchange.encode("utf-8", "surrogateescape"))
