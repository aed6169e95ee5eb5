"""NodeTopics: the topics of one node: running, down with a reason, or not created yet.

Any failure takes all of the topics down, and they are reopened (:mod:`warren.actors.topics.running_topics`) as often as
the node's ``restart_limit`` allows. After that they stay down, and are retried if the disk is the cause
(:mod:`warren.actors.node.failed_parts`). The node's queues serve whatever becomes of its topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pykka import ActorRef

from warren.actors.engines.restarts import DISK_ERRORS, Restarts, What
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_errors import TopicsDownError
from warren.storage.errors import WarrenError
from warren.storage.topic_settings import TopicSettings

if TYPE_CHECKING:
    from warren.actors.topics.running_topics import RunningTopics, Streams

_LOG = logger("node")

TOPICS_DIRECTORY: Final = "topics"
TOPICS: Final[What] = ("topics",)


class NodeTopics:
    """See the module's prose. Changed by the node's actor alone."""

    def __init__(
        self,
        context: NodeContext,
        path: str,
        settings: TopicSettings,
        used_disk_percent: Callable[[], float],
        *,
        owner: str,
        note_down: Callable[[What, BaseException, Callable[[], None]], None],
    ) -> None:
        """``path``: the node's; ``note_down``: see :meth:`FailedParts.note`."""
        self.streams: Streams = dict
        """Returns the retention of the node's streams; set before the topics are opened."""
        self._context = context
        self._path = settings.store_path_root_dir or f"{path}/{TOPICS_DIRECTORY}"
        self._settings = settings
        self._used_disk_percent = used_disk_percent
        self._owner = owner
        self._note_down = note_down
        self._restarts = Restarts()
        self.running: RunningTopics | None = None
        self.error: BaseException | None = None
        """Why they are down."""

    def get(self) -> RunningTopics | None:
        """Return the running topics; ``None`` before a topic is declared. Raises :class:`TopicsDownError`."""
        if self.running is None and self.error is not None:
            raise TopicsDownError(f"the topics are down: {self.error}") from self.error
        return self.running

    def existing(self) -> RunningTopics:
        """Return the running topics. Raises :class:`TopicsDownError`."""
        topics = self.get()
        if topics is None:
            raise TopicsDownError("there are no topics")
        return topics

    @property
    def on_disk(self) -> bool:
        """Whether there are topics to open."""
        return self._context.files.is_directory(self._path)

    def declare(self, name: str, queues: int) -> RunningTopics:
        """Create a topic if it does not exist."""
        topics = self.get() or self._open()
        topics.declare(name, queues)
        return topics

    def delete(self, name: str) -> None:
        """Delete a topic if it exists."""
        if (topics := self.get()) is not None:
            topics.delete(name)

    def _open(self) -> RunningTopics:
        from warren.actors.topics.running_topics import RunningTopics

        self.running = RunningTopics.open(
            self._context,
            self._path,
            self._settings,
            self._used_disk_percent,
            owner=self._owner,
            has_failed=bool(self._restarts),
            streams=self.streams,
        )
        self.error = None
        return self.running

    def try_to_open(self) -> None:
        """Open the topics, or note why they are down."""
        try:
            self._open()
        except Exception as error:
            self._stay_down(error)

    def _stay_down(self, error: BaseException) -> None:
        self.running, self.error = None, error
        exc_info = None if isinstance(error, WarrenError) else error

        def say() -> None:
            _LOG.error(
                "the topics are down: %s",
                error,
                exc_info=exc_info,
                extra=log_event("topics_down", error, path=self._path),
            )

        self._note_down(TOPICS, error, say)

    def restart(self, actor: ActorRef[Any], error: BaseException) -> None:
        """Reopen the topics if ``actor``, which has failed, is one of their actors."""
        topics = self.running
        if topics is None or not topics.is_of(actor):
            return
        topics.give_up(error)
        self.running, self.error = None, error
        if self._context.troubles.is_on_trial(TOPICS, error) or self._restarts.too_often(
            self._context.clock.now_ns(),
            self._context.settings.restart_limit,
            by_disk=isinstance(error, DISK_ERRORS),
        ):
            self._stay_down(error)
            return
        _LOG.error("the topics are reopened: %s", error, extra=log_event("topics_reopened", error, path=self._path))
        self.try_to_open()
