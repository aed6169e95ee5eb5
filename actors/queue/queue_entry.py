"""QueueEntry: a queue as a running vhost has it registered, and as handles hold on to it.

A queue's actor may stop and be started anew, the entry stays. It knows the actor of the moment, or why there is none.
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
from warren.storage.errors import WarrenError


@attrs.define(eq=False, repr=False)
class QueueEntry:
    """One queue of a running vhost, whoever its actor is."""

    declaration: QueueDeclaration
    owner: object | None = None
    """Of an exclusive queue: whose it is."""
    error: BaseException | None = None
    """Why it is down."""
    deleted: bool = False
    restarts: Restarts = attrs.Factory(Restarts)
    """When its actor was started anew."""
    _actor: QueueActor | None = None

    @property
    def actor(self) -> QueueActor:
        """The actor of the moment; raises what keeps the queue from having one."""
        actor = self._actor
        if actor is None or actor.actor_stopped.is_set():
            raise self.down_error()
        return actor

    @property
    def running(self) -> QueueActor | None:
        """The actor, if there is one that lives."""
        return None if self._actor is None or self._actor.actor_stopped.is_set() else self._actor

    def down_error(self) -> WarrenError:
        """Why there is no actor."""
        if self.deleted:
            return QueueGoneError(f"{self.declaration} was deleted")
        if self.error is not None:
            return QueueDownError(f"{self.declaration} is down: {self.error}")
        return self._actor.stopped_error() if self._actor is not None else QueueDownError(f"{self.declaration} is down")

    def check_owner(self, owner: object | None) -> None:
        """Raise :class:`ResourceLockedError` where the queue is exclusive to somebody else."""
        if self.owner is not None and self.owner is not owner:
            raise ResourceLockedError(locked(self.declaration))

    def start(self, actor: QueueActor) -> None:
        """Let an actor have the queue."""
        self._actor = actor
        self.error = None

    def is_of(self, actor: ActorRef[Any]) -> bool:
        """Whether this is the actor of the moment."""
        return self._actor is not None and self._actor.actor_ref == actor

    def go_down(self, error: BaseException) -> None:
        """Stay without an actor."""
        self._actor = None
        self.error = error
