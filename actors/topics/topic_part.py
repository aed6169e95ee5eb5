"""The common base of a topic store's actors: if one of them fails, all of them do.

The node is notified, gives the others up and reopens the store (:mod:`warren.actors.topics.running_topics`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warren.actors import messages as m
from warren.actors.engines.back_off import FullDisk
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart, stopped_by
from warren.actors.runtime.timer import tell
from warren.storage.errors import NoRoomError, WarrenError

_LOG = logger("topics")

MS_NS: Final = 1_000_000


class TopicPart(NodePart):
    """One of a topic store's actors."""

    def __init__(self, context: NodeContext, subject: str) -> None:
        super().__init__(context, subject, ("topics",))
        self.full_disk = FullDiskTasks(self)

    def stopped_error(self) -> WarrenError:
        return stopped_by(self, self._context.closing)

    def close(self) -> None:
        """Handle everything that came before, save it and stop. Raises the error that prevents it."""
        self._save()
        self.cancel_timers()
        self._stop()

    def _save(self) -> None:
        """Save what a stop must not lose. Raises :class:`~warren.storage.errors.NoRoomError`."""

    def give_up(self, error: BaseException) -> None:
        """Stop and leave the files as they are, because another actor has failed."""
        self.error = error
        self.end()
        self._stop()

    def end(self) -> None:
        """Fail everything that waits for this actor."""

    def forget(self, error: WarrenError) -> None:
        """Stop in a forked child: the store is the parent's, and calls raise ``error``."""
        self.error = error
        self.actor_stopped.set()

    def on_error(self, error: BaseException) -> None:
        self.end()
        tell(self._context.node, m.TopicsFailed(self.actor_ref, error))


class FullDiskTasks:
    """The tasks of an actor that wait for room on a full disk. Logged for the first one, and when all have found it."""

    def __init__(self, actor: NodePart) -> None:
        self._actor = actor
        self.error: NoRoomError | None = None
        """The first task's error, until all have found room again."""
        self._waiting: dict[str, FullDisk] = {}

    def __contains__(self, task: str) -> bool:
        """Whether a task found no room when it was last tried."""
        return task in self._waiting

    def note(self, task: str, error: NoRoomError) -> FullDisk:
        """Note that a task finds no room."""
        if self.error is None:
            self.error = error
            part = self._actor.describe()
            _LOG.warning("%s: no room on the disk: %s", part, error, extra=log_event("disk_full", error, part=part))
        return self._waiting.setdefault(task, FullDisk())

    def retry(self, task: str, error: NoRoomError, work: Callable[[], object]) -> None:
        """Call ``work`` later, at growing intervals, for a task that finds no room."""
        self._actor.call_later(task, self.note(task, error).next_wait_ns(), work)

    def found_room(self, task: str) -> None:
        """Note that a task has found room."""
        if self._waiting.pop(task, None) is not None and not self._waiting:
            self.error = None
            part = self._actor.describe()
            _LOG.warning("%s: there is room on the disk again", part, extra=log_event("disk_room", part=part))


class Autosave:
    """Saves an actor's changes a while after the first one, together with later ones.

    On a full disk they wait in memory; after a crash the work since the last save is repeated.
    """

    def __init__(self, actor: TopicPart, save: Callable[[], None]) -> None:
        self._actor = actor
        self._save = save
        self._is_armed = False

    def arm(self, after_ms: int) -> None:
        """Save after this time, unless a timer is set already."""
        if not self._is_armed:
            self._is_armed = True
            self._actor.call_later("save", after_ms * MS_NS, self._due, first=True)

    def _due(self) -> None:
        self._is_armed = False
        try:
            self._save()
        except NoRoomError as error:
            self._is_armed = True
            self._actor.full_disk.retry("save", error, self._due)
        else:
            self._actor.full_disk.found_room("save")
