"""NodePart: an actor of a node, with access to the node's context and to timers."""

from __future__ import annotations

from collections.abc import Callable

from warren.actors.engines.restarts import What
from warren.actors.log_events import Named
from warren.actors.node.node_context import NodeContext
from warren.actors.runtime.inbox import Call, ControlCall
from warren.actors.runtime.pooled_actor import ActorStoppedError, PooledActor
from warren.actors.runtime.timer import tell
from warren.storage.errors import WarrenError


class NodePart(PooledActor):
    """One of a node's actors."""

    __slots__ = ("_context", "trouble")

    def __init__(self, context: NodeContext, subject: Named | str | None = None, trouble: What | None = None) -> None:
        super().__init__(context.pool, subject)
        self._context = context
        self.trouble = trouble
        """The part of the node that is down if this actor stops."""

    def is_known(self, error: BaseException) -> bool:
        return self.trouble is not None and self._context.troubles.is_on_trial(self.trouble, error)

    def stopped_error(self) -> WarrenError:
        return self._context.closing or super().stopped_error()

    def call_soon(self, work: Callable[[], object]) -> None:
        """Call ``work`` in a turn, after all waiting messages. From any thread; ignored if the actor has stopped."""
        tell(self.actor_ref, Call(work))

    def call_later(self, key: str, wait_ns: int, work: Callable[[], object], *, first: bool = False) -> None:
        """Call ``work`` in a turn after ``wait_ns``, after all waiting messages or (``first``) before data.

        Replaces a running timer of that ``key``.
        """
        due_ns = self._context.clock.now_ns() + wait_ns
        call = ControlCall(work) if first else Call(work)
        self._context.timer.start(self.actor_ref, key, due_ns, call)

    def cancel_timers(self) -> None:
        """Cancel all timers of this actor."""
        self._context.timer.cancel(self.actor_ref)


def stopped_by(actor: PooledActor, closing: WarrenError | None) -> WarrenError:
    """Return the error for late callers of an actor with a plural as its subject, which names the actor's error.

    ``closing``: what they get if none has ended the actor and the node is closed.
    """
    error = actor.error
    if isinstance(error, WarrenError):
        return error.with_traceback(None)  # each raise would add to it
    if error is None:
        return closing or ActorStoppedError(f"{actor.describe()} have stopped")
    return ActorStoppedError(f"{actor.describe()} are down: {error}")
