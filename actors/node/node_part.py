"""NodePart: an actor of a node, with access to the node's context and to timers."""

from __future__ import annotations

from collections.abc import Callable

from warren.actors import messages as m
from warren.actors.engines.restarts import What
from warren.actors.node.node_context import NodeContext
from warren.actors.runtime.inbox import Call, ControlCall
from warren.actors.runtime.pooled_actor import ActorStoppedError, PooledActor
from warren.actors.runtime.timer import tell
from warren.storage.errors import WarrenError


class NodePart(PooledActor):
    """One of a node's actors."""

    __slots__ = ("_context",)

    def __init__(self, context: NodeContext) -> None:
        super().__init__(context.pool)
        self._context = context

    @property
    def trouble(self) -> What | None:
        """The part of the node that is down if this actor stops."""
        return None

    def is_known(self, error: BaseException) -> bool:
        what = self.trouble
        return what is not None and self._context.troubles.is_on_trial(what, error)

    def stopped_error(self) -> WarrenError:
        return self._context.closing or super().stopped_error()

    def stopped_by(self, error: BaseException | None) -> WarrenError:
        """Return the error for callers that come too late, if ``error`` has stopped the actor (``None``: nothing has);
        for actors with a plural for a description."""
        if isinstance(error, WarrenError):
            return error.with_traceback(None)  # each raise would add to it
        if error is None:
            return self._context.closing or ActorStoppedError(f"{self.describe()} have stopped")
        return ActorStoppedError(f"{self.describe()} are down: {error}")

    def call_soon(self, work: Callable[[], object]) -> None:
        """Call ``work`` in a turn, after all waiting messages. From any thread; ignored if the actor has stopped."""
        tell(self.actor_ref, Call(work))

    def call_later(self, key: str, wait_ns: int, work: Callable[[], object], *, first: bool = False) -> None:
        """Call ``work`` in a turn after ``wait_ns``, after all waiting messages or (``first``) before data.

        Replaces a running timer of that ``key``.
        """
        due_ns = self._context.clock.now_ns() + wait_ns
        call = ControlCall(work) if first else Call(work)
        tell(self._context.timer, m.StartTimer(self.actor_ref, key, due_ns, call))

    def cancel_timers(self) -> None:
        """Cancel all timers of this actor."""
        tell(self._context.timer, m.CancelTimers(self.actor_ref))
