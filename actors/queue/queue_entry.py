"""QueueEntry: a queue as registered in a running vhost, and as referenced by handles.

A queue's actor may be stopped and restarted; the entry stays. It knows the current actor, or why there is no actor.
"""

from __future__ import annotations

from typing import Any

import attrs
from pykka import ActorRef

from warren.actors.engines.declared.arguments import QueueDeclaration, locked
from warren.actors.engines.errors import ResourceLockedError
from warren.actors.engines.restarts import Restarts
from warren.actors.queue.intake import QueueDownError, QueueGoneError
from warren.actors.queue.queue_actor import QueueActor
from warren.storage.errors import DirectoryLostError, WarrenError


@attrs.define(eq=False, repr=False)
class QueueEntry:
    """One queue of a running vhost, independent of its current actor."""

    declaration: QueueDeclaration
    owner: object | None = None
    """The owner of an exclusive queue."""
    error: BaseException | None = None
    """Why it is down."""
    deleted: bool = False
    restarts: Restarts = attrs.Factory(Restarts)
    """When its actor was restarted."""
    _actor: QueueActor | None = None

    @property
    def actor(self) -> QueueActor:
        """The current actor. Raises the reason if there is no running one."""
        actor = self._actor
        if actor is None or actor.actor_stopped.is_set():
            raise self.down_error()
        return actor

    @property
    def running(self) -> QueueActor | None:
        """The current actor, or ``None`` if it does not run."""
        return None if self._actor is None or self._actor.actor_stopped.is_set() else self._actor

    def down_error(self) -> WarrenError:
        """Return the reason why there is no actor."""
        if self.deleted:
            return QueueGoneError(f"{self.declaration} was deleted")
        if isinstance(self.error, DirectoryLostError):
            return self.error.with_traceback(None)  # each raise would add to it
        if self.error is not None:
            return QueueDownError(f"{self.declaration} is down: {self.error}")
        return self._actor.stopped_error() if self._actor is not None else QueueDownError(f"{self.declaration} is down")

    @property
    def reason(self) -> str:
        """Why there is no actor, in words."""
        return str(self.error if self.error is not None else self.down_error())

    def check_owner(self, owner: object | None) -> None:
        """Raise :class:`ResourceLockedError` if the queue is exclusive to another owner."""
        if self.owner is not None and self.owner is not owner:
            raise ResourceLockedError(locked(self.declaration))

    def start(self, actor: QueueActor) -> None:
        """Set the current actor."""
        self._actor = actor
        self.error = None

    def is_of(self, actor: ActorRef[Any]) -> bool:
        """Whether ``actor`` is the current actor."""
        return self._actor is not None and self._actor.actor_ref == actor

    def go_down(self, error: BaseException) -> None:
        """Remove the actor and note the error."""
        self._actor = None
        self.error = error
