"""The actor of a node: opens a data directory, starts what runs in it, restarts what fails, stops it all.

The data directory is RabbitMQ's: ``msg_stores/vhosts/…`` (:mod:`warren.actors.vhost_files`). Beside it are warren's own
definitions (:mod:`warren.actors.engines.declared.definitions`), topics (:mod:`warren.actors.topics.running_topics`),
``warren.version``, which names the versions of warren that may read and write it (:mod:`warren.storage.data_version`),
and ``warren.lock``, which names the owner of the directory.

Declarations, and changes to them, are in :mod:`warren.actors.node.node_registry`.

*Supervision.* A queue that fails is restarted from its files, at most ``restart_limit`` times in the given number of
seconds; then it stays down with the reason, and everything else serves. A store that fails takes its vhost with it: all
of its queues are given up, and the vhost is reopened. What is down because of the disk (no bug, no damage) is retried
after a second, and then at growing intervals, until it comes up (:mod:`warren.actors.node.failed_parts`).

A crash of the process or of this actor leaves a directory that recovery can read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from pykka import ActorRef

from warren.actors import messages as m
from warren.actors.clock import NS
from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.declared.policies import AppliedPolicies
from warren.actors.engines.errors import PreconditionFailedError
from warren.actors.engines.memory_readings import MemoryReading
from warren.actors.engines.restarts import DISK_ERRORS, RETRY_NS, Restarts, What
from warren.actors.log_events import log_event, logger
from warren.actors.node.memory_monitor_actor import MemoryMonitorActor
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_errors import BrokenNodeError, ForeignDirectoryError, TopicsDownError, UnsavedError
from warren.actors.node.node_registry import VHOSTS_DIRECTORY, NodeRegistry
from warren.actors.node.running_vhost import RunningVhost
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.pooled_actor import ActorStoppedError, actor_of_ref
from warren.actors.runtime.timer import TimerActor, tell
from warren.actors.topics.node_streams import NodeStreams
from warren.actors.topics.node_topics import NodeTopics
from warren.queue_index.index import directory as names
from warren.storage.data_version import refuse_newer, stamp
from warren.storage.errors import DataError, DirectoryLostError, DiskFullError, StorageError, WarrenError
from warren.storage.filesystem import Lock
from warren.storage.lock_file import LOCK_FILE
from warren.storage.own_files import DEFINITIONS_FILE
from warren.storage.topic_settings import TopicSettings

if TYPE_CHECKING:
    from warren.actors.node.failed_parts import FailedParts
    from warren.actors.node.recorder_actor import Record
    from warren.actors.topics.running_topics import RunningTopics

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


class NodeActor(NodeRegistry):
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
        super().__init__(context, path)
        self._record = record
        context.node = self.actor_ref
        self._probes = probes
        self._owner = owner
        self._adopt = adopt
        self._lock: Lock | None = None
        self._owns_directory = False
        """Whether it was warren's before it was opened: then the definitions list its queues."""
        self._error: BaseException | None = None
        self._vhost_restarts: dict[str, Restarts] = {}
        self._entries_down: dict[str, Mapping[str, QueueEntry]] = {}
        """The entries of vhosts that are down, which handles still refer to."""
        self._kept_down: FailedParts | None = None
        topic_settings = TopicSettings() if topic_settings is None else topic_settings
        self.streams = NodeStreams(context, topic_settings, self._topics_of_streams, self._policies_of_queue)
        self._topics = NodeTopics(
            context,
            path,
            topic_settings,
            probes.used_disk_percent,
            owner=owner,
            note_down=self._note_down,
            streams=self.streams.retentions,
        )

    def describe(self) -> str:
        return f"the node of {self._path}"

    def stopped_error(self) -> WarrenError:
        if isinstance(self._error, WarrenError):
            return self._error.with_traceback(None)  # each raise would add to it
        return (
            super().stopped_error() if self._error is None else ActorStoppedError(f"{self.describe()}: {self._error}")
        )

    # ── opening ─────────────────────────────────────────────────────────────────────────────────────────────────

    def on_start(self) -> None:
        context, files = self._context, self._context.files
        if self._record is not None:
            self._record.check()
            context.counting = True
        refuse_newer(files, self._path)
        vhost_names = self._vhosts_on_disk()
        self._owns_directory = files.exists(f"{self._path}/{DEFINITIONS_FILE}")
        if vhost_names and not self._owns_directory and not self._adopt:
            raise ForeignDirectoryError(
                f"{self._path} is a RabbitMQ data directory; open it with adopt=True to take it over, or read it with "
                "the commands inspect, export and shovel"
            )
        files.make_directories(self._path)
        self._lock = files.lock(f"{self._path}/{LOCK_FILE}", self._owner)
        stamp(files, self._path, is_new=not vhost_names and not self._owns_directory)
        context.check_directory = self.check_directory
        if self._record is not None:
            self._record.open(self._about())
        context.timer = TimerActor.start(context.pool, context.clock)
        self._start_monitor()
        self._definitions = Definitions.open(files, self._path, context.random)
        if not vhost_names:  # so that a crash from here on leaves no directory that looks like a broker's
            self._definitions.save()
        for name in vhost_names:
            self._definitions.declare_vhost(name, named_by_node=True)
        for definition in self._definitions.passed_over:
            _LOG.error(
                "%s: a definition with invalid text is ignored, and stays in the file: %s",
                DEFINITIONS_FILE,
                definition,
                extra=log_event("definitions_unreadable", path=self._path, what=definition),
            )
        if (torn := self._definitions.torn) is not None:
            _LOG.warning("the log of definitions ends in invalid bytes: %s", torn, extra=log_event("log_torn", torn))
        for name in self._definitions.vhosts():
            try:
                self._open_vhost(name)
            except DiskFullError as error:
                self._keep_down(name, {}, error)
        with contextlib.suppress(DiskFullError):  # retried with the next change, or at the end
            self._definitions.save()
        self.streams.restore(self._definitions)
        if self._topics.on_disk:
            self._topics.try_to_open()
        self._declare_topics_of_streams()
        if self._record is not None:
            from warren.actors.node.recorder_actor import RecorderActor

            context.recorder = RecorderActor.start(context, self._record, self._queue_actors)

    def _queue_actors(self) -> Iterator[QueueActor]:
        """Yield the running queue actors; any thread may call it."""
        for vhost in list(self.vhosts.values()):
            for entry in list(vhost.queues.values()):
                if (actor := entry.running) is not None:
                    yield actor

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

    def _open_vhost(self, name: str) -> None:
        definitions = self.definitions.vhost(name)
        try:
            paths = self._vhost_path(name), self._side_path(name)
            vhost = RunningVhost.open(self._context, *paths, definitions, owner=self._owner)
        except DataError as error:
            _LOG.exception("vhost '%s' is down", name, extra=log_event("vhost_down", error, vhost=name))
            self.down[name] = error
            return
        vhost.streams = self.streams
        vhost.delays_path = self._delays_path(name)
        self.down.pop(name, None)
        self._entries_down.pop(name, None)
        orphans = [queue for queue in vhost.orphans() if definitions.declare_queue(queue, named_by_node=True)]
        vhost.start_queues(queue for queue in definitions.queues() if not queue.is_stream)
        self.vhosts[name] = vhost
        for orphan in orphans:
            if self._owns_directory and vhost.is_empty(orphan.name):  # left by a queue that was not to survive
                self._take_out(vhost, orphan.name)
            else:
                _LOG.warning(
                    "%s had messages but no definition, and was declared",
                    orphan,
                    extra=log_event("queue_adopted", of=orphan),
                )
        if orphans:  # only now: a crash must not turn those that were removed into durable queues
            self._save()

    def _try_to_open_vhost(self, name: str, entries: Mapping[str, QueueEntry]) -> None:
        """Reopen a vhost of a serving node, or note why it is down.

        ``entries``: its entries, which handles still refer to.
        """
        try:
            self._open_vhost(name)
        except UnsavedError as error:
            _LOG.exception(
                "vhost '%s' is available, but its adopted queues could not be saved",
                name,
                extra=log_event("vhost_unsaved", error, vhost=name),
            )
        except Exception as error:
            self._keep_down(name, entries, error)
        reopened = self.vhosts.get(name)
        if reopened is not None:
            reopened.take_over(entries)

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
                self.change(lambda: self._delete_unused(message.queue))
            case m.QueueFailed():
                self._restart_queue(message.queue, message.error)
            case m.MonitorFailed():
                _LOG.error(
                    "memory and disk are not watched for one second: %s",
                    message.error,
                    extra=log_event("monitor_failed", message.error),
                )
                self.call_later("monitor", NS, self._start_monitor, first=True)
            case m.StoreFailed():
                self._restart_vhost(message.store, message.error)
            case m.DelaysFailed():
                self._restart_delays(message.vhost, message.error)
            case m.TopicsFailed():
                self._topics.restart(message.topic_actor, message.error)
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

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def topics(self) -> RunningTopics | None:
        """The running topics; ``None`` before a topic is declared. Raises :class:`TopicsDownError`."""
        return self._topics.get()

    def declare_topic(self, name: str, queues: int) -> RunningTopics:
        """Create a topic if it does not exist."""
        return self._topics.declare(name, queues)

    def delete_topic(self, name: str) -> None:
        """Delete a topic if it exists."""
        if (topics := self._topics.get()) is not None:
            topics.delete(name)

    def _policies_of_queue(self, vhost: str, name: str) -> AppliedPolicies:
        return self.definitions.vhost(vhost).policies.of("queue", name)

    def _topics_of_streams(self) -> RunningTopics:
        topics = self._topics.get()
        if topics is None:
            raise TopicsDownError("there are no topics")
        return topics

    def _declare_topics_of_streams(self) -> None:
        """Declare topics that a crash kept from being declared, or that were lost with the topics' folder."""
        for stream in self.streams:
            with contextlib.suppress(WarrenError):  # the topics are down: using the stream raises the error
                topics = self._topics.get()
                if topics is None or topics.table.queues(stream.topic) is None:
                    self._topics.declare(stream.topic, 1)

    def forget(self, error: WarrenError) -> None:
        """In a forked child, stop the actors, which would otherwise work on the parent's files."""
        for vhost in self.vhosts.values():
            vhost.forget(error)
        if self._topics.running is not None:
            self._topics.running.forget(error)

    # ── supervision ─────────────────────────────────────────────────────────────────────────────────────────────

    def _entry_of(self, actor: ActorRef[Any]) -> tuple[RunningVhost, QueueEntry] | None:
        queue = actor_of_ref(actor, QueueActor)
        if (vhost := self.vhosts.get(queue.declaration.vhost)) is not None:
            entry = vhost.queues.get(queue.declaration.name)
            if entry is not None and entry.is_of(actor):
                return vhost, entry
        return None

    def _delete_unused(self, actor: ActorRef[Any]) -> None:
        vhost_entry = self._entry_of(actor)
        if vhost_entry is not None:
            vhost, entry = vhost_entry
            _LOG.info(
                "%s is unused and was deleted", entry.declaration, extra=log_event("queue_unused", of=entry.declaration)
            )
            with contextlib.suppress(PreconditionFailedError):  # it is used again
                self.delete_queue(vhost.name, entry.declaration.name, if_unused=True)

    def _restart_queue(self, actor: ActorRef[Any], error: BaseException) -> None:
        vhost_entry = self._entry_of(actor)
        if vhost_entry is None:
            return
        vhost, entry = vhost_entry
        if self._stays_down(("queue", vhost.name, entry.declaration.name), entry.restarts, error):
            entry.go_down(error)
            self._note_down(
                ("queue", vhost.name, entry.declaration.name),
                error,
                lambda: _LOG.error(
                    "%s stays down: %s",
                    entry.declaration,
                    error,
                    extra=log_event("queue_down", error, of=entry.declaration),
                ),
            )
            return
        try:
            vhost.wait_for_stores()
        except Exception:
            _LOG.warning(
                "%s waits until its vhost is reopened",
                entry.declaration,
                extra=log_event("queue_waiting", error, of=entry.declaration),
            )
            return
        _LOG.warning(
            "%s restarts from its files",
            entry.declaration,
            extra=log_event("queue_restarted", error, of=entry.declaration),
        )
        vhost.start_queue(entry)

    def _restart_delays(self, name: str, error: BaseException) -> None:
        delays = None if (vhost := self.vhosts.get(name)) is None else vhost.delays
        if delays is None or delays.running is not None:
            return
        if self._stays_down(("delays", name), delays.restarts, error):
            self._note_down(
                ("delays", name),
                error,
                lambda: _LOG.error(
                    "the delayed messages of vhost '%s' stay down: %s",
                    name,
                    error,
                    extra=log_event("delayed_down", error, vhost=name),
                ),
            )
            return
        _LOG.warning(
            "the delayed messages of vhost '%s' restart from their files",
            name,
            extra=log_event("delayed_restarted", error, vhost=name),
        )
        delays.start_again()

    def _keep_down(self, name: str, entries: Mapping[str, QueueEntry], error: BaseException) -> None:
        self.down[name] = error
        self._entries_down[name] = entries
        exc_info = None if isinstance(error, WarrenError) else error
        self._note_down(
            ("vhost", name),
            error,
            lambda: _LOG.error(
                "vhost '%s' is down: %s",
                name,
                error,
                exc_info=exc_info,
                extra=log_event("vhost_down", error, vhost=name),
            ),
        )

    def _note_down(self, what: What, error: BaseException, say: Callable[[], None]) -> None:
        """See :meth:`FailedParts.note`."""
        if self._kept_down is None:
            try:
                from warren.actors.node.failed_parts import FailedParts
            except OSError:  # no descriptor is left, which may be why it is down
                say()
                key = " ".join(("note", *what))
                self.call_later(key, RETRY_NS, lambda: self._note_down(what, error, lambda: None), first=True)
                return
            self._kept_down = FailedParts(self._context, self)
        self._kept_down.note(what, error, say)

    def try_again(self, what: What) -> bool:
        """Bring up a part that is down, for :class:`FailedParts`; return whether it is up."""
        self.check_directory()
        match what:
            case ("vhost", name):
                if name in self.down:
                    self._try_to_open_vhost(name, self._entries_down.get(name, {}))
                return name in self.vhosts
            case ("queue", vhost_name, name) if vhost_name in self.vhosts:
                vhost = self.vhosts[vhost_name]
                entry = vhost.queues.get(name)
                if entry is not None and entry.running is None and isinstance(entry.error, DISK_ERRORS):
                    vhost.start_queue(entry)
                return entry is not None and entry.running is not None
            case ("delays", name) if name in self.vhosts and (delays := self.vhosts[name].delays) is not None:
                return delays.start_again()
            case ("topics",):
                if self._topics.running is None:
                    self._topics.try_to_open()
                return self._topics.running is not None
        return False

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

    def _stays_down(self, what: What, restarts: Restarts, error: BaseException) -> bool:
        """Whether a failed part is not restarted at once, because it failed too often or is damaged."""
        if isinstance(error, DataError) or self._context.troubles.is_on_trial(what, error):
            return True
        return restarts.too_often(
            self._context.clock.now_ns(), self._context.settings.restart_limit, by_disk=isinstance(error, DISK_ERRORS)
        )

    def _restart_vhost(self, store: ActorRef[Any], error: BaseException) -> None:
        vhost = next((vhost for vhost in self.vhosts.values() if store in (vhost.persistent, vhost.transient)), None)
        if vhost is None:
            return
        vhost.give_up(error)
        entries = vhost.queues
        del self.vhosts[vhost.name]
        restarts = self._vhost_restarts.setdefault(vhost.name, Restarts())
        if not isinstance(error, DataError) and self._stays_down(("vhost", vhost.name), restarts, error):
            self._keep_down(vhost.name, entries, error)
            return
        _LOG.error(
            "vhost '%s' is reopened: %s",
            vhost.name,
            error,
            extra=log_event("vhost_reopened", error, vhost=vhost.name),
        )
        self._try_to_open_vhost(vhost.name, entries)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Make published messages safe and close all files. Raises the first error that kept that from being clean."""
        self.check_directory()
        failures: list[Exception] = []
        with contextlib.suppress(StorageError):  # most of the time there is nothing left to save
            self.definitions.save()
        for vhost in self.vhosts.values():
            try:
                for name in [name for name, entry in vhost.queues.items() if entry.owner is not None and entry.running]:
                    self.delete_queue(vhost.name, name)
                vhost.close()
            except (WarrenError, RuntimeError) as error:
                failures.append(error)
                vhost.abandon()
        if (topics := self._topics.running) is not None:
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
        for ref in (self._context.monitor, self._context.timer):
            ref.stop(block=False)
        if self._lock is not None:
            self._lock.remove()
            self._lock = None
        self._stop()

    def crash(self) -> None:
        """End as a killed process does, giving up everything as it is."""
        self.turns.fail(ActorStoppedError(f"the node of {self._path} was killed"), None)

    def note_error(self, error: BaseException) -> None:
        self._error = error

    def on_error(self, error: BaseException) -> None:
        if self._context.recorder is not None:
            tell(self._context.recorder, m.CloseRecord())
        elif self._record is not None:  # the recorder was not started
            with contextlib.suppress(Exception):
                self._record.close()
        for ref in (getattr(self._context, "monitor", None), getattr(self._context, "timer", None)):
            if ref is not None:
                ref.stop(block=False)
        for vhost in self.vhosts.values():
            with contextlib.suppress(Exception):  # nothing may write on in a directory that is released
                vhost.give_up(error)
        if self._topics.running is not None:
            self._topics.running.give_up(error)
        if self._lock is not None:
            self._lock.release()
        self._context.gate.end()
        self._context.on_failed()
