"""The common base of a topic store's actors: if one of them fails, all of them do.

The node is notified, gives the others up and reopens the store (:mod:`warren.actors.topics.running_topics`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from warren.actors import messages as m
from warren.actors.engines.full_disk import FullDisk
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart, stopped_by
from warren.actors.runtime.timer import tell
from warren.storage.errors import NoRoomError, WarrenError

_LOG = logger("topics")

MS_NS: Final = 1_000_000


class TopicPart(NodePart):
    """One of a topic store's actors."""

    no_room: NoRoomError | None = None
    """The first error for lack of disk space, until all tasks have found room again."""
    _without_room: Mapping[str, FullDisk] = {}
    """The tasks that found no room when they were last tried."""
    _persist_armed: bool = False

    def __init__(self, context: NodeContext, subject: str) -> None:
        super().__init__(context, subject, ("topics",))

    def stopped_error(self) -> WarrenError:
        return stopped_by(self, self._context.closing)

    def _wait_for_room(self, error: NoRoomError, key: str, work: Callable[[], object]) -> None:
        """Retry ``work`` later, at growing intervals, because the disk is full."""
        self.call_later(key, self._note_full(key, error).next_wait_ns(), work)

    def _note_full(self, key: str, error: NoRoomError) -> FullDisk:
        """Note that the disk is full. Logged for the first task, and when all tasks have found room again."""
        if self.no_room is None:
            self.no_room = error
            _LOG.warning(
                "%s: no room on the disk: %s",
                self.describe(),
                error,
                extra=log_event("disk_full", error, part=self.describe()),
            )
        full_disk = self._without_room.get(key) or FullDisk()
        self._without_room = {**self._without_room, key: full_disk}
        return full_disk

    def _found_room(self, key: str) -> None:
        if self.no_room is None or key not in self._without_room:
            return
        self._without_room = {other: full for other, full in self._without_room.items() if other != key}
        if not self._without_room:
            self.no_room = None
            _LOG.warning(
                "%s: there is room on the disk again",
                self.describe(),
                extra=log_event("disk_room", part=self.describe()),
            )

    def _persist(self) -> None:
        """Save what a stop must not lose. Raises :class:`~warren.storage.errors.NoRoomError`."""

    def close(self) -> None:
        """Handle everything that came before, save it and stop. Raises the error that prevents it."""
        self._close()
        self.cancel_timers()
        self._stop()

    def _close(self) -> None:
        self._persist()

    def give_up(self, error: BaseException) -> None:
        """Stop and leave the files as they are, because another actor has failed."""
        self.end_with(error)
        self._stop()

    def _arm_persist(self, after_ms: int) -> None:
        """Save after a while, together with later changes."""
        if not self._persist_armed:
            self._persist_armed = True
            self.call_later("persist", after_ms * MS_NS, self._persist_if_room, first=True)

    def _persist_if_room(self) -> None:
        """Save now. On a full disk the data waits in memory; after a crash the work since the last save is repeated."""
        self._persist_armed = False
        try:
            self._persist()
        except NoRoomError as error:
            self._persist_armed = True
            self._wait_for_room(error, "persist", self._persist_if_room)
        else:
            self._found_room("persist")

    def end_with(self, error: BaseException) -> None:
        """Note the error, and fail everything that waits for this actor."""
        self.error = error

    def forget(self, error: WarrenError) -> None:
        """Stop in a forked child: the store is the parent's, and calls raise ``error``."""
        self.error = error
        self.actor_stopped.set()

    def on_error(self, error: BaseException) -> None:
        self.end_with(error)
        tell(self._context.node, m.TopicsFailed(self.actor_ref, error))
