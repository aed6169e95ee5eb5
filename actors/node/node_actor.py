"""The actor of a node: opens a data directory, starts what runs in it, restarts what fails, stops it all.

The data directory is RabbitMQ's: ``msg_stores/vhosts/…`` (:mod:`warren.actors.vhost_files`). Beside it are warren's own
definitions (:mod:`warren.actors.engines.declared.definitions`), topics (:mod:`warren.actors.topics.running_topics`),
``warren.version``, which names the versions of warren that may read and write it (:mod:`warren.storage.data_version`),
and ``warren.lock``, which names the owner of the directory.

What is declared, and changes to it, are in :mod:`warren.actors.node.node_registry`;
:mod:`warren.actors.node.supervision` restarts the parts that fail.

A crash of the process or of this actor leaves a directory that recovery can read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from warren.actors import messages as m
from warren.actors.clock import NS
from warren.actors.engines.memory_readings import MemoryReading
from warren.actors.log_events import log_event, logger
from warren.actors.node.memory_monitor_actor import MemoryMonitorActor
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_errors import BrokenNodeError, ForeignDirectoryError
from warren.actors.node.node_part import NodePart
from warren.actors.node.node_registry import VHOSTS_DIRECTORY, NodeRegistry
from warren.actors.node.supervision import Supervision
from warren.actors.runtime.pooled_actor import ActorStoppedError
from warren.actors.runtime.timer import tell
from warren.queue_index.index import directory as names
from warren.storage.data_version import refuse_newer, stamp
from warren.storage.errors import DirectoryLostError, StorageError, WarrenError
from warren.storage.filesystem import Lock
from warren.storage.lock_file import LOCK_FILE
from warren.storage.own_files import DEFINITIONS_FILE
from warren.storage.topic_settings import TopicSettings

if TYPE_CHECKING:
    from warren.actors.node.recorder_actor import Record

_LOG = logger("node")


@attrs.frozen(eq=False, repr=False, kw_only=True)
class Probes:
    """Functions that read the resources of the machine; injected."""

    reading: Callable[[NodeContext], MemoryReading]
    total_memory_bytes: int
    free_disk_bytes: Callable[[], int]
    give_back: Callable[[], None] = lambda: None
    """Return unused memory to the system."""
    used_disk_percent: Callable[[], float] = lambda: 0.0
    """The used share of the disk with the data directory."""
    polled: bool = True
    """Whether they are read periodically; otherwise only on request."""


class NodeActor(NodePart):
    """Owns a data directory and everything that runs in it."""

    def __init__(
        self,
        context: NodeContext,
        path: str,
        *,
        probes: Probes,
        owner: str,
        adopt: bool = False,
        topic_settings: TopicSettings | None = None,
        record: Record | None = None,
    ) -> None:
        super().__init__(context, f"the node of {path}")
        self._path = path
        self._record = record
        context.node = self.actor_ref
        self._probes = probes
        self._owner = owner
        self._adopt = adopt
        self._lock: Lock | None = None
        self.supervision = Supervision(context, self)
        self.registry: NodeRegistry = NodeRegistry(
            context,
            path,
            owner=owner,
            topic_settings=TopicSettings() if topic_settings is None else topic_settings,
            used_disk_percent=probes.used_disk_percent,
            supervision=self.supervision,
        )
        """What is declared. Any thread may read it."""

    def stopped_error(self) -> WarrenError:
        if isinstance(self.error, WarrenError):
            return self.error.with_traceback(None)  # each raise would add to it
        return super().stopped_error() if self.error is None else ActorStoppedError(f"{self.describe()}: {self.error}")

    # ── opening ─────────────────────────────────────────────────────────────────────────────────────────────────

    def on_start(self) -> None:
        context, files = self._context, self._context.files
        if self._record is not None:
            self._record.check()
            context.counting = True
        refuse_newer(files, self._path)
        vhost_names = self._vhosts_on_disk()
        is_ours = files.exists(f"{self._path}/{DEFINITIONS_FILE}")
        if vhost_names and not is_ours and not self._adopt:
            raise ForeignDirectoryError(
                f"{self._path} is a RabbitMQ data directory; open it with adopt=True to take it over, or read it with "
                "the commands inspect, export and shovel"
            )
        files.make_directories(self._path)
        self._lock = files.lock(f"{self._path}/{LOCK_FILE}", self._owner)
        stamp(files, self._path, is_new=not vhost_names and not is_ours)
        context.check_directory = self.check_directory
        if self._record is not None:
            self._record.open(self._about())
        self._start_monitor()
        self.registry.open(vhost_names, adopts_queues=not is_ours)
        if self._record is not None:
            from warren.actors.node.recorder_actor import RecorderActor

            context.recorder = RecorderActor.start(context, self._record, self.registry.queue_actors)

    def _about(self) -> dict[str, Any]:
        """Return the header of a record of this node."""
        context = self._context
        return {
            "began_us": context.clock.wall_us(),
            "total_memory_bytes": self._probes.total_memory_bytes,
            "node": attrs.asdict(context.settings),
            "engine": attrs.asdict(context.engine),
        }

    def _vhosts_on_disk(self) -> list[str]:
        files, root = self._context.files, f"{self._path}/{VHOSTS_DIRECTORY}"
        vhost_names = []
        for entry in files.list(root):
            name_path = f"{root}/{entry}/{names.VHOST_NAME_FILE}"
            if files.exists(name_path):
                vhost_names.append(files.read(name_path).decode("utf-8", "surrogateescape"))
        return vhost_names

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    def check_directory(self) -> None:
        """Raise :class:`DirectoryLostError` if the data directory was removed or replaced."""
        lock = self._lock
        if lock is not None and not lock.in_place:
            raise DirectoryLostError(f"{self._path}: removed or replaced while a node ran in it; what it held is lost")

    def on_receive(self, message: object) -> object:
        self.check_directory()
        match message:
            case m.QueueUnused():
                self.registry.change(lambda _: self.supervision.delete_unused(message.queue))
            case m.QueueFailed():
                self.supervision.restart_queue(message.queue, message.error)
            case m.MonitorFailed():
                _LOG.error(
                    "memory and disk are not watched for one second: %s",
                    message.error,
                    extra=log_event("monitor_failed", message.error),
                )
                self.call_later("monitor", NS, self._start_monitor, first=True)
            case m.StoreFailed():
                self.supervision.restart_vhost(message.store, message.error)
            case m.DelaysFailed():
                self.supervision.restart_delays(message.vhost, message.error)
            case m.TopicsFailed():
                self.registry.node_topics.restart(message.topic_actor, message.error)
            case _:
                return super().on_receive(message)
        return None

    def is_refusal(self, error: Exception) -> bool:
        """The node ends only if its state cannot be right any more, because nothing restarts it."""
        return not isinstance(error, (BrokenNodeError, DirectoryLostError))

    def on_refused(self, error: Exception) -> None:
        _LOG.error(
            "%s: %s",
            self.describe(),
            error,
            exc_info=None if isinstance(error, WarrenError) else error,
            extra=log_event("request_refused", error, part=self.describe()),
        )

    def forget(self, error: WarrenError) -> None:
        """In a forked child, stop the actors, which would otherwise work on the parent's files."""
        for vhost in self.registry.vhosts.values():
            vhost.forget(error)
        if self.registry.node_topics.running is not None:
            self.registry.node_topics.running.forget(error)

    def _start_monitor(self) -> None:
        context, probes = self._context, self._probes
        context.monitor = MemoryMonitorActor.start(
            context,
            reading=probes.reading(context),
            total_memory_bytes=probes.total_memory_bytes,
            free_disk_bytes=probes.free_disk_bytes,
            give_back=probes.give_back,
            polls=probes.polled,
        )

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Make published messages safe and close all files. Raises the first error that kept that from being clean."""
        self.check_directory()
        failures: list[Exception] = []
        with contextlib.suppress(StorageError):  # most of the time there is nothing left to save
            self.registry.definitions.save()
        for vhost in self.registry.vhosts.values():
            try:
                for name in [name for name, entry in vhost.queues.items() if entry.owner is not None and entry.running]:
                    self.registry.delete_queue(vhost.name, name)
                vhost.close()
            except (WarrenError, RuntimeError) as error:
                failures.append(error)
                vhost.abandon()
        if (topics := self.registry.node_topics.running) is not None:
            try:
                topics.close()
            except (WarrenError, RuntimeError) as error:
                failures.append(error)
                topics.give_up(error)
        self._end()
        if failures:
            raise failures[0]

    def _end(self) -> None:
        if (recorder := self._context.recorder) is not None:  # after the last messages of the queues
            with contextlib.suppress(Exception):
                recorder.ask(m.CloseRecord())
        self._context.monitor.stop(block=False)
        self._context.timer.close()
        if self._lock is not None:
            self._lock.remove()
            self._lock = None
        self._stop()

    def crash(self) -> None:
        """End as a killed process does, giving up everything as it is."""
        self.turns.fail(ActorStoppedError(f"the node of {self._path} was killed"), None)

    def on_error(self, error: BaseException) -> None:
        if self._context.recorder is not None:
            tell(self._context.recorder, m.CloseRecord())
        elif self._record is not None:  # the recorder was not started
            with contextlib.suppress(Exception):
                self._record.close()
        self._context.timer.close()
        if (monitor := getattr(self._context, "monitor", None)) is not None:
            monitor.stop(block=False)
        for vhost in self.registry.vhosts.values():
            with contextlib.suppress(Exception):  # nothing may write on in a directory that is released
                vhost.give_up(error)
        if self.registry.node_topics.running is not None:
            self.registry.node_topics.running.give_up(error)
        if self._lock is not None:
            self._lock.release()
        self._context.gate.end()
        self._context.on_failed()
