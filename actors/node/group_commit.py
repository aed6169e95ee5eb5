"""Group commit: the confirms of what an actor has written, which share a sync.

The mode is the node's ``sync``, or a store's own:

* ``"group"``: synced when a caller waits, or after ``sync_interval_ms``.
* ``"always"``: synced in the same turn.
* ``"os"``: confirmed as soon as it is written.
"""

from __future__ import annotations

from collections.abc import Callable

from warren.actors.node.backpressure import Intake
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart
from warren.actors.runtime.future import Future


class GroupCommit:
    """The group commit of one actor, which has an ``intake``. All methods are called in its turns."""

    __slots__ = ("_actor", "_context", "_intake", "_is_armed", "_mode", "_sync", "unconfirmed")

    def __init__(
        self, actor: NodePart, context: NodeContext, intake: Intake, *, mode: str, sync: Callable[[], object]
    ) -> None:
        """``sync``: called before confirming, in the mode ``"os"``, too."""
        self._actor = actor
        self._context = context
        self._intake = intake
        self._mode = mode
        self._sync = sync
        self.unconfirmed: list[tuple[Future, object]] = []
        """The confirms, and what to answer them with."""
        self._is_armed = False

    def make_safe(self, *, hurry: bool) -> None:
        """Sync, if it is time for that, and confirm. ``hurry``: whether a caller waits."""
        if self._mode == "group" and not hurry:
            if not self._is_armed:
                self._is_armed = True
                self._actor.call_later("sync", self._context.settings.sync_interval_ms * 1_000_000, self._due)
            return
        self._sync()
        self._context.check_directory()
        unconfirmed, self.unconfirmed = self.unconfirmed, []
        for confirm, answer in unconfirmed:
            if not confirm.done:
                confirm.set(answer)

    def _due(self) -> None:
        self._is_armed = False
        self._intake.hurry = True

    def fail(self, error: BaseException) -> None:
        """Fail all confirms, because the actor has stopped."""
        unconfirmed, self.unconfirmed = self.unconfirmed, []
        for confirm, _ in unconfirmed:
            confirm.fail(error)
