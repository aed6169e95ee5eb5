"""What the actors of a topic store have in common: if one of them fails, all of them do.

The node is told, gives the others up and opens the store anew (:mod:`actors.running_topics`).
"""

from __future__ import annotations

import logging
from types import TracebackType

from actors import messages as m
from actors import topic_messages as tm
from actors.pool import ActorStoppedError, PooledActor
from actors.store_actor import MAX_ROOM_INTERVAL_NS, ROOM_INTERVAL_NS
from actors.surroundings import Surroundings
from actors.timer import tell
from storage.errors import NoRoomError, WarrenError

_LOG = logging.getLogger("warren.topics")


class TopicPart(PooledActor):
    """One of a topic store's actors."""

    _around: Surroundings
    _error: BaseException | None = None
    """Why it was given up, or failed."""
    _room_wait_ns: int = 0
    """How long it last waited for room on the disk; 0: there was room."""

    def stopped_error(self) -> WarrenError:
        if isinstance(self._error, WarrenError):
            return self._error
        why = "have stopped" if self._error is None else f"are down: {self._error}"
        return ActorStoppedError(f"{self.describe()} {why}")

    def _wait_for_room(self, error: NoRoomError, key: str, message: object) -> None:
        """The disk is full: let ``message`` come in a while, ever more seldom."""
        if not self._room_wait_ns:
            _LOG.warning("%s: waiting for room on the disk: %s", self.describe(), error)
        self._room_wait_ns = min(2 * self._room_wait_ns, MAX_ROOM_INTERVAL_NS) or ROOM_INTERVAL_NS
        due_ns = self._around.clock.now_ns() + self._room_wait_ns
        tell(self._around.timer, m.StartTimer(self.actor_ref, key, due_ns, message))

    def _found_room(self) -> None:
        self._room_wait_ns = 0

    def end_with(self, error: BaseException) -> None:
        """Whoever waits here for something will not get it."""
        self._error = error

    def forget(self, error: WarrenError) -> None:
        """In a forked child: the store is the parent's, and whoever comes here gets ``error``."""
        self._error = error
        self.actor_stopped.set()

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        error = exception_value if exception_value is not None else RuntimeError("no error")
        self.end_with(error)
        tell(self._around.node, tm.TopicsFailed(self.actor_ref, error))
