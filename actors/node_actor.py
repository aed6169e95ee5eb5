"""The actor of a node: opens a data directory, starts what runs in it, restarts what fails, stops it all.

The data directory is RabbitMQ's: ``msg_stores/vhosts/…`` (:mod:`actors.vhost_files`); beside it lie warren's own
definitions (:mod:`actors.engines.definitions`), topics (:mod:`actors.running_topics`) and ``warren.lock``, which says
who has the directory.

*Changes* of what is declared come one at a time (:class:`~actors.messages.Change`): in memory, then on disk, then the
queue's actor, and only then the answer. A change that fails, by whatever error, is taken back in memory and on disk and
answered with the error; the node goes on. A queue that is deleted loses its files first and its definition then: a
crash in between leaves an empty queue, never messages without one; and so does a definition that cannot be dropped.

*Supervision.* A queue that fails is started anew from its files, at most ``restart_limit`` times in that many seconds;
then it stays down with the reason, and everything else serves. A store that fails takes its vhost with it: every queue
of it is given up, and the vhost is opened anew. What the disk keeps down (no bug, no damage) is tried again, after a
second and then ever more seldom, until it comes up.

A crash, of the process or of this actor, leaves what recovery reads.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

import attrs
from pykka import ActorRef

from actors import messages as m
from actors import topic_messages as tm
from actors.clock import NS
from actors.engines.arguments import QueueDeclaration
from actors.engines.definitions import Definitions
from actors.engines.definitions_file import FILE_NAME as DEFINITIONS_FILE
from actors.engines.definitions_json import Imported
from actors.engines.errors import NotFoundError, PreconditionFailedError, ResourceLockedError
from actors.engines.exchanges import Binding, ExchangeDeclaration
from actors.engines.memory_readings import MemoryReading
from actors.handing_over import QueueDownError, QueueGoneError
from actors.inbox import Inbox
from actors.memory_monitor_actor import MemoryMonitorActor
from actors.pool import ActorStoppedError, PooledActor
from actors.queue_actor import QueueActor
from actors.recorder_actor import Record, RecorderActor
from actors.running_topics import TOPICS_DIRECTORY, RunningTopics
from actors.running_vhost import QueueCell, RunningVhost
from actors.surroundings import Surroundings
from actors.timer import TimerActor, tell
from actors.vhost_files import LOCK_FILE
from queue_index import directory as names
from storage.errors import DataError, DirectoryLostError, DiskFullError, StorageError, WarrenError
from storage.filesystem import Lock
from storage.topic_settings import TopicSettings

_LOG = logging.getLogger("warren.node")

T = TypeVar("T")

RETRY_NS: Final = NS
MAX_RETRY_NS: Final = 64 * NS
"""Between two attempts to bring up what the disk keeps down."""

VHOSTS_DIRECTORY: Final = "msg_stores/vhosts"


class ForeignDirectoryError(WarrenError):
    """The directory is somebody else's, and nobody said that it may be taken over."""


class VhostDownError(WarrenError):
    """The vhost cannot be opened, or its store has failed too often; the reason is in the text."""


class TopicsDownError(WarrenError):
    """The topics cannot be opened, or have failed too often; the reason is in the text."""


class UnsavedError(WarrenError):
    """What is declared could not be written down, so what was asked for was not done; but a queue that was to be
    deleted has lost its messages."""


class _BrokenNodeError(RuntimeError):
    """What is declared contradicts itself: nothing that the node did from here on would be right."""


@attrs.frozen(kw_only=True)
class Probes:
    """Where a node reads what its machine has; handed in."""

    reading: Callable[[Surroundings], MemoryReading]
    total_memory_bytes: int
    free_disk_bytes: Callable[[], int]
    give_back: Callable[[], None] = lambda: None
    """Return to the system what is held free."""
    used_disk_percent: Callable[[], float] = lambda: 0.0
    """Of the disk that the data directory lies on."""


class NodeActor(PooledActor):
    """Owner of a data directory and of everything that runs in it."""

    def __init__(
        self,
        around: Surroundings,
        path: str,
        *,
        probes: Probes,
        owner: str,
        adopt: bool = False,
        topic_settings: TopicSettings | None = None,
        record: Record | None = None,
    ) -> None:
        super().__init__(around.pool)
        self._record = record
        around.node = self.actor_ref
        self._around = around
        self._path = path
        self._probes = probes
        self._owner = owner
        self._adopt = adopt
        self._lock: Lock | None = None
        self._definitions: Definitions | None = None
        self._owns_directory = False
        """Whether it was warren's before it was opened: then definitions say which queues there are."""
        self._error: BaseException | None = None
        self.vhosts: dict[str, RunningVhost] = {}
        """Read by any thread, changed by this actor alone."""
        self.down: dict[str, BaseException] = {}
        """Vhosts that could not be opened, and why."""
        self._vhost_restarts: dict[str, deque[int]] = {}
        self._cells_down: dict[str, Mapping[str, QueueCell]] = {}
        """Of vhosts that are down: what handles hold on to."""
        self._retries: dict[tuple[str, ...], tuple[int, int]] = {}
        """How long the last wait for what is down was, and when it began (ns)."""
        self._topic_settings = TopicSettings() if topic_settings is None else topic_settings
        self._topics: RunningTopics | None = None
        self._topics_error: BaseException | None = None
        self._topics_restarts: deque[int] = deque()

    def describe(self) -> str:
        return f"the node of {self._path}"

    def stopped_error(self) -> WarrenError:
        if isinstance(self._error, WarrenError):
            return self._error
        return (
            super().stopped_error() if self._error is None else ActorStoppedError(f"{self.describe()}: {self._error}")
        )

    @property
    def definitions(self) -> Definitions:
        if self._definitions is None:
            raise RuntimeError("the node is not open")
        return self._definitions

    # ── opening ─────────────────────────────────────────────────────────────────────────────────────────────────

    def on_start(self) -> None:
        around, files = self._around, self._around.files
        if self._record is not None:
            self._record.check()
            around.counting = True
        found = self._vhosts_on_disk()
        self._owns_directory = files.exists(f"{self._path}/{DEFINITIONS_FILE}")
        if found and not self._owns_directory and not self._adopt:
            raise ForeignDirectoryError(
                f"{self._path}: a RabbitMQ's data directory; open it with adopt=True to take it over, or read it with "
                "the commands inspect, export and shovel"
            )
        files.make_directories(self._path)
        self._lock = files.lock(f"{self._path}/{LOCK_FILE}", self._owner)
        around.check_directory = self.check_directory
        if self._record is not None:
            self._record.open(self._about())
        around.timer = TimerActor.start(around.pool, around.clock)
        self._start_monitor()
        self._definitions = Definitions.open(files, self._path)
        if not found:  # so that a crash from here on leaves no directory that looks like a broker's
            self._definitions.save()
        for name in found:
            self._definitions.declare_vhost(name, named_by_node=True)
        for what in self._definitions.passed_over:
            _LOG.error("%s: what is no text cannot be had, and stays in the file: %s", DEFINITIONS_FILE, what)
        for name in self._definitions.vhosts():
            try:
                self._open_vhost(name)
            except DiskFullError as error:
                _LOG.exception("vhost '%s' is down", name)
                self._keep_down(name, {}, error)
        with contextlib.suppress(DiskFullError):  # it is tried again with the next change, or at the end
            self._definitions.save()
        if files.is_directory(self._topics_path):
            self._try_to_open_topics()
        if self._record is not None:
            around.recorder = RecorderActor.start(around, self._record, self._queue_actors)

    def _queue_actors(self) -> Iterator[QueueActor]:
        """Those that live at the moment; any thread may ask."""
        for vhost in list(self.vhosts.values()):
            for cell in list(vhost.cells.values()):
                if (actor := cell.running) is not None:
                    yield actor

    def _about(self) -> dict[str, Any]:
        """What a record says of its node."""
        around = self._around
        return {
            "began_us": around.clock.wall_us(),
            "total_memory_bytes": self._probes.total_memory_bytes,
            "node": attrs.asdict(around.settings),
            "engine": attrs.asdict(around.engine),
        }

    def _vhosts_on_disk(self) -> list[str]:
        files, root = self._around.files, f"{self._path}/{VHOSTS_DIRECTORY}"
        found = []
        for entry in files.list(root):
            name_path = f"{root}/{entry}/{names.VHOST_NAME_FILE}"
            if files.exists(name_path):
                found.append(files.read(name_path).decode("utf-8", "surrogateescape"))
        return found

    def _vhost_path(self, name: str) -> str:
        entry = names.vhost_directory_name(name.encode("utf-8", "surrogateescape"))
        return f"{self._path}/{VHOSTS_DIRECTORY}/{entry}"

    def _open_vhost(self, name: str) -> None:
        definitions = self.definitions.vhost(name)
        try:
            vhost = RunningVhost.open(self._around, self._vhost_path(name), definitions, owner=self._owner)
        except DataError as error:
            _LOG.exception("vhost '%s' is down", name)
            self.down[name] = error
            return
        self.down.pop(name, None)
        self._cells_down.pop(name, None)
        orphans = [one for one in vhost.orphans() if definitions.declare_queue(one, named_by_node=True)]
        vhost.start_queues(definitions.queues())
        self.vhosts[name] = vhost
        for orphan in orphans:
            if self._owns_directory and vhost.is_empty(orphan.name):  # what a queue left that was not to survive
                self._take_out(vhost, orphan.name)
            else:
                _LOG.warning("%s has messages and no definition: taken in", orphan)
        if orphans:  # only now: those that go must never be in the file, where a crash would make them durable queues
            self._save()

    def _try_to_open_vhost(self, name: str, cells: Mapping[str, QueueCell]) -> None:
        """Open a vhost again, of a node that serves already, or say why it is down.

        ``cells``: what handles hold on to.
        """
        try:
            self._open_vhost(name)
        except UnsavedError:
            _LOG.exception("vhost '%s' serves", name)
        except Exception as error:
            _LOG.exception("vhost '%s' is down", name)
            self._keep_down(name, cells, error)
        reopened = self.vhosts.get(name)
        if reopened is not None:
            reopened.take_over(cells)

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    def check_directory(self) -> None:
        """Raise :class:`DirectoryLostError` where what is written here would not be found, or be in another's way."""
        lock = self._lock
        if lock is not None and not lock.in_place:
            raise DirectoryLostError(f"{self._path}: removed or replaced while a node ran in it; what it held is lost")

    def on_receive(self, message: object) -> object:
        self.check_directory()
        match message:
            case m.Change():
                return self._change(message.work)
            case m.QueueUnused():
                self._change(lambda: self._delete_unused(message.queue))
            case m.QueueFailed():
                self._restart_queue(message.queue, message.error)
            case m.MonitorFailed():
                _LOG.error("nobody watches memory and disk for a second: %s", message.error)
                due_ns = self._around.clock.now_ns() + NS
                tell(self._around.timer, m.StartTimer(self.actor_ref, "monitor", due_ns, m.MonitorDue()))
            case m.MonitorDue():
                self._start_monitor()
            case m.StoreFailed():
                self._restart_vhost(message.store, message.error)
            case tm.TopicsFailed():
                self._restart_topics(message.actor, message.error)
            case m.RetryDue():
                self._retry(message.what)
            case m.CloseNode():
                self._close()
            case _:
                raise RuntimeError(f"a node cannot handle {message!r}")
        return None

    def _change(self, work: Callable[[], T]) -> T:
        """Change what is declared: all of it, or nothing and the error."""
        self.definitions.begin()
        try:
            return work()
        except BaseException as error:
            self.definitions.undo()
            if not isinstance(error, WarrenError):
                _LOG.exception("a change of what is declared was taken back")
                self._check_definitions()
            raise

    def _check_definitions(self) -> None:
        try:
            self.definitions.check_invariants()
        except RuntimeError as error:
            raise _BrokenNodeError(f"{self.describe()}: {error}") from error

    def is_refusal(self, error: Exception) -> bool:
        """Nobody could start another node in this one's place: it ends only where it cannot be right any more."""
        return not isinstance(error, (_BrokenNodeError, DirectoryLostError))

    def on_refused(self, error: Exception) -> None:
        _LOG.error("%s: %s", self.describe(), error, exc_info=None if isinstance(error, WarrenError) else error)

    # ── vhosts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def vhost(self, name: str) -> RunningVhost:
        """Raises :class:`NotFoundError`, or :class:`VhostDownError` with what keeps the vhost from being opened."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            if (error := self.down.get(name)) is not None:
                raise VhostDownError(f"vhost '{name}' is down: {error}") from error
            raise NotFoundError(f"no vhost '{name}'")
        return vhost

    def declare_vhost(self, name: str) -> None:
        """See that a vhost is there."""
        if self.definitions.declare_vhost(name):
            self._add_vhosts([name])
        self.vhost(name)

    def _add_vhosts(self, vhosts: Iterable[str]) -> None:
        """Open vhosts that are new, and write down what is declared; or leave none of them."""
        added: list[str] = []
        try:
            for name in vhosts:
                added.append(name)
                self._open_new_vhost(name)
            self._save()
        except BaseException as error:
            for name in added:
                self._discard_vhost(name, error)
            raise

    def _open_new_vhost(self, name: str) -> None:
        try:
            self._open_vhost(name)
        except StorageError as error:
            raise VhostDownError(f"vhost '{name}' cannot be opened: {error}") from error

    def _discard_vhost(self, name: str, error: BaseException) -> None:
        """Do away with a vhost that is not to be, after all."""
        self.down.pop(name, None)
        vhost = self.vhosts.pop(name, None)
        if vhost is not None:
            vhost.give_up(error)
        with contextlib.suppress(StorageError):  # what stays is taken for an empty vhost when the node is next opened
            self._around.files.delete_tree(self._vhost_path(name))

    def _save(self) -> None:
        """Write down what is declared, or refuse."""
        try:
            self.definitions.save()
        except StorageError as error:
            raise UnsavedError(f"what is declared could not be written down: {error}") from error

    def delete_vhost(self, name: str) -> None:
        """With everything in it."""
        vhost = self.vhost(name)
        cells = dict(vhost.cells)
        try:
            for queue, cell in cells.items():
                if cell.running is not None:
                    self._take_out(vhost, queue)
            vhost.give_up(QueueGoneError(f"vhost '{name}' was deleted"))
            self._around.files.delete_tree(vhost.directory.path)
            self.definitions.delete_vhost(name)
            self._save()
        except WarrenError as error:
            self.definitions.undo()
            del self.vhosts[name]
            vhost.give_up(error)
            self._try_to_open_vhost(name, cells)
            raise UnsavedError(f"vhost '{name}' could not be deleted: {error}") from error
        del self.vhosts[name]
        for cell in cells.values():
            cell.deleted = True

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _topics_path(self) -> str:
        return self._topic_settings.store_path_root_dir or f"{self._path}/{TOPICS_DIRECTORY}"

    @property
    def topics(self) -> RunningTopics | None:
        """The topics that run; ``None`` where there are none yet. Raises :class:`TopicsDownError`."""
        if self._topics is None and self._topics_error is not None:
            raise TopicsDownError(f"the topics are down: {self._topics_error}") from self._topics_error
        return self._topics

    def declare_topic(self, name: str, queues: int) -> RunningTopics:
        """See that a topic is there."""
        if self.topics is None:
            self._open_topics()
        topics = self.topics
        if topics is None:
            raise RuntimeError("topics were opened and are not there")
        topics.declare(name, queues)
        return topics

    def _open_topics(self) -> None:
        self._topics = RunningTopics.open(
            self._around,
            self._topics_path,
            self._topic_settings,
            self._probes.used_disk_percent,
            owner=self._owner,
            has_failed=bool(self._topics_restarts),
        )
        self._topics_error = None

    def _try_to_open_topics(self) -> None:
        """Open the topics of a node that serves its queues whatever comes of it, or say why they are down."""
        try:
            self._open_topics()
        except Exception as error:
            _LOG.exception("the topics are down")
            self._topics_error = error
            self._retry_later(("topics",), error)

    def _restart_topics(self, actor: ActorRef[Any], error: BaseException) -> None:
        topics = self._topics
        if topics is None or not topics.is_of(actor):
            return
        _LOG.error("the topics are opened anew: %s", error)
        topics.give_up(error)
        self._topics, self._topics_error = None, error
        if not self._too_often(self._topics_restarts):
            self._try_to_open_topics()
        else:
            self._retry_later(("topics",), error)

    def forget(self, error: WarrenError) -> None:
        """In a forked child: whatever asks the actors here would do their work, on the parent's files."""
        for vhost in self.vhosts.values():
            vhost.forget(error)
        if self._topics is not None:
            self._topics.forget(error)

    # ── queues, exchanges, bindings ─────────────────────────────────────────────────────────────────────────────

    def declare_queue(self, declaration: QueueDeclaration, owner: object | None) -> QueueCell:
        """See that a queue is there; one that is, is the one that is asked for or it is refused."""
        vhost = self.vhost(declaration.vhost)
        cell = vhost.cells.get(declaration.name)
        if cell is not None:
            _check_owner(cell, owner)
        if self.definitions.declare_queue(declaration, named_by_node=declaration.name.startswith("amq.gen-")):
            self._save()
            cell = vhost.cells[declaration.name] = QueueCell(declaration, owner if declaration.exclusive else None)
            vhost.start_queue(cell)
        elif cell is None:
            raise RuntimeError(f"{declaration} is defined and not running")
        elif (actor := cell.running) is not None:
            actor.actor_ref.tell(m.Touch())
        return cell

    def release(self, owner: object) -> None:
        """Delete the exclusive queues of an owner that goes."""
        for vhost in self.vhosts.values():
            for name in [name for name, cell in vhost.cells.items() if cell.owner is owner]:
                self.delete_queue(vhost.name, name)

    def find_queue(self, vhost: str, name: str, owner: object | None) -> QueueCell:
        """A queue that is there; raises :class:`NotFoundError`."""
        cell = self.vhost(vhost).cells.get(name)
        if cell is None:
            raise NotFoundError(f"no queue '{name}' in vhost '{vhost}'")
        _check_owner(cell, owner)
        return cell

    def delete_queue(
        self,
        vhost: str,
        name: str,
        *,
        owner: object | None = None,
        if_empty: bool = False,
        if_unused: bool = False,
        force: bool = False,
    ) -> int:
        """Returns how many messages were ready; raises :class:`PreconditionFailedError` where it may not go.

        ``owner``: who asks for it, by name; ``None``: the node itself, or who has a handle. ``force``: one that is down
        goes too, with whatever its files still hold.
        """
        running = self.vhost(vhost)
        if name not in running.cells:
            return 0
        cell = running.cells[name]
        if owner is not None:
            _check_owner(cell, owner)
        if force and cell.running is None:
            running.remove_files(cell)
        deleted = self._take_out(running, name, if_empty=if_empty, if_unused=if_unused)
        try:
            self._save()
        except UnsavedError:
            running.cells[name] = cell
            running.start_queue(cell)
            raise
        cell.deleted = True
        return deleted

    def _take_out(self, running: RunningVhost, name: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Delete a queue that is there; the file of definitions is not written yet."""
        cell = running.cells[name]
        actor = cell.running
        if actor is None and cell.error is not None:
            raise cell.down_error()
        deleted = 0
        if actor is not None:
            try:
                deleted = actor.actor_ref.ask(m.DeleteQueue(if_empty=if_empty, if_unused=if_unused))  # type: ignore[assignment]
            except Exception as error:
                if not actor.actor_stopped.is_set():
                    raise
                raise QueueDownError(f"{cell.declaration} could not be deleted: {error}") from error
        del running.cells[name]
        self.definitions.delete_queue(running.name, name)
        return deleted

    def declare_exchange(self, declaration: ExchangeDeclaration) -> None:
        """See that an exchange is there."""
        self.vhost(declaration.vhost)
        self.definitions.declare_exchange(declaration)
        self._save()

    def delete_exchange(self, vhost: str, name: str, *, if_unused: bool = False) -> None:
        """With its bindings."""
        self.definitions.delete_exchange(vhost, name, if_unused=if_unused)
        self._save()

    def bind(self, binding: Binding, owner: object) -> None:
        """See that a binding is there; raises :class:`ResourceLockedError` for another owner's exclusive queue."""
        if self.definitions.vhost(binding.vhost).has_ends(binding):
            self._check_destination(binding, owner)
        self.definitions.bind(binding)
        self._save()

    def unbind(self, binding: Binding, owner: object) -> None:
        """See that it is not; raises :class:`ResourceLockedError` as :meth:`bind` does."""
        if self.definitions.vhost(binding.vhost).has_binding(binding):
            self._check_destination(binding, owner)
        self.definitions.unbind(binding)
        self._save()

    def _check_destination(self, binding: Binding, owner: object) -> None:
        cell = self.vhost(binding.vhost).cells.get(binding.destination)
        if cell is not None and binding.destination_type == "queue":
            _check_owner(cell, owner)

    def export_definitions(self, vhost: str | None) -> dict[str, Any]:
        """As RabbitMQ's JSON."""
        return self.definitions.export_definitions(vhost)

    def import_definitions(self, document: Mapping[str, Any], vhost: str | None) -> Imported:
        """Add what the JSON has, all of it or nothing."""
        imported = self.definitions.import_definitions(document, vhost)
        into = {declaration.vhost for declaration in imported.queues}
        for name in into.difference(imported.vhosts):
            self.vhost(name)  # it may be down: then nothing is imported
        self._add_vhosts(imported.vhosts)
        for declaration in imported.queues:
            running = self.vhost(declaration.vhost)
            if declaration.name not in running.cells:
                cell = running.cells[declaration.name] = QueueCell(declaration)
                running.start_queue(cell)
        return imported

    # ── supervision ─────────────────────────────────────────────────────────────────────────────────────────────

    def _cell_of(self, actor: ActorRef[Any]) -> tuple[RunningVhost, QueueCell] | None:
        queue = actor.actor_inbox.owner if isinstance(actor.actor_inbox, Inbox) else None
        if isinstance(queue, QueueActor) and (vhost := self.vhosts.get(queue.declaration.vhost)) is not None:
            cell = vhost.cells.get(queue.declaration.name)
            if cell is not None and cell.is_of(actor):
                return vhost, cell
        return None

    def _delete_unused(self, actor: ActorRef[Any]) -> None:
        found = self._cell_of(actor)
        if found is not None:
            vhost, cell = found
            _LOG.info("%s is used no more and goes", cell.declaration)
            with contextlib.suppress(PreconditionFailedError):  # somebody has come meanwhile
                self.delete_queue(vhost.name, cell.declaration.name, if_unused=True)

    def _restart_queue(self, actor: ActorRef[Any], error: BaseException) -> None:
        found = self._cell_of(actor)
        if found is None:
            return
        vhost, cell = found
        if self._too_often(cell.restarts) or isinstance(error, DataError):
            cell.go_down(error)
            _LOG.error("%s stays down: %s", cell.declaration, error)
            self._retry_later(("queue", vhost.name, cell.declaration.name), error)
            return
        try:
            vhost.wait_for_stores()
        except Exception:
            _LOG.warning("%s waits for its vhost to be opened anew", cell.declaration)
            return
        _LOG.warning("%s is started anew from its files", cell.declaration)
        vhost.start_queue(cell)

    def _keep_down(self, name: str, cells: Mapping[str, QueueCell], error: BaseException) -> None:
        self.down[name] = error
        self._cells_down[name] = cells
        self._retry_later(("vhost", name), error)

    def _retry_later(self, what: tuple[str, ...], error: BaseException | None) -> None:
        """Try again what the disk keeps down; each time after twice as long, until it has been well for a while."""
        if not isinstance(error, StorageError):
            return
        now_ns = self._around.clock.now_ns()
        wait_ns, last_ns = self._retries.get(what, (0, 0))
        if now_ns - last_ns > 2 * MAX_RETRY_NS:
            wait_ns = 0
        wait_ns = min(2 * wait_ns, MAX_RETRY_NS) or RETRY_NS
        self._retries[what] = wait_ns, now_ns
        key = " ".join(("retry", *what))
        tell(self._around.timer, m.StartTimer(self.actor_ref, key, now_ns + wait_ns, m.RetryDue(what)))

    def _retry(self, what: tuple[str, ...]) -> None:
        match what:
            case ("vhost", name) if name in self.down:
                self._try_to_open_vhost(name, self._cells_down.get(name, {}))
            case ("queue", vhost_name, name) if vhost_name in self.vhosts:
                vhost = self.vhosts[vhost_name]
                cell = vhost.cells.get(name)
                if cell is not None and cell.running is None and isinstance(cell.error, StorageError):
                    _LOG.warning("%s is started anew from its files", cell.declaration)
                    vhost.start_queue(cell)
            case ("topics",) if self._topics is None:
                self._try_to_open_topics()

    def _start_monitor(self) -> None:
        around, probes = self._around, self._probes
        around.monitor = MemoryMonitorActor.start(
            around,
            reading=probes.reading(around),
            total_memory_bytes=probes.total_memory_bytes,
            free_disk_bytes=probes.free_disk_bytes,
            give_back=probes.give_back,
        )

    def _too_often(self, restarts: deque[int]) -> bool:
        """Note one more failure; whether there were too many of late."""
        limit = self._around.settings.restart_limit
        now_ns = self._around.clock.now_ns()
        restarts.append(now_ns)
        while restarts[0] < now_ns - limit.within_s * NS:
            restarts.popleft()
        return len(restarts) > limit.max_restarts

    def _restart_vhost(self, store: ActorRef[Any], error: BaseException) -> None:
        vhost = next((one for one in self.vhosts.values() if store in (one.persistent, one.transient)), None)
        if vhost is None:
            return
        _LOG.error("vhost '%s' is opened anew: %s", vhost.name, error)
        vhost.give_up(error)
        cells = vhost.cells
        del self.vhosts[vhost.name]
        if self._too_often(self._vhost_restarts.setdefault(vhost.name, deque())):
            _LOG.error("vhost '%s' stays down", vhost.name)
            self._keep_down(vhost.name, cells, error)
            return
        self._try_to_open_vhost(vhost.name, cells)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _close(self) -> None:
        failures: list[Exception] = []
        with contextlib.suppress(StorageError):  # most of the time there is nothing left to save
            self.definitions.save()
        for vhost in self.vhosts.values():
            try:
                for name in [name for name, cell in vhost.cells.items() if cell.owner is not None and cell.running]:
                    self.delete_queue(vhost.name, name)
                vhost.close()
            except (WarrenError, RuntimeError) as error:
                failures.append(error)
                vhost.abandon()
        if self._topics is not None:
            try:
                self._topics.close()
            except (WarrenError, RuntimeError) as error:
                failures.append(error)
                self._topics.give_up(error)
        self._end()
        if failures:
            raise failures[0]

    def _end(self) -> None:
        if (recorder := self._around.recorder) is not None:  # behind the last words of the queues
            with contextlib.suppress(Exception):
                recorder.ask(m.CloseRecord())
        for ref in (self._around.monitor, self._around.timer):
            ref.stop(block=False)
        if self._lock is not None:
            self._lock.remove()
            self._lock = None
        self._stop()

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._error = exception_value
        if self._around.recorder is not None:
            tell(self._around.recorder, m.CloseRecord())
        elif self._record is not None:  # it was not even begun
            with contextlib.suppress(Exception):
                self._record.close()
        for ref in (getattr(self._around, "monitor", None), getattr(self._around, "timer", None)):
            if ref is not None:
                ref.stop(block=False)
        error = exception_value if exception_value is not None else RuntimeError("no error")
        for vhost in self.vhosts.values():
            with contextlib.suppress(Exception):  # nobody writes on in a directory that is given free
                vhost.give_up(error)
        if self._topics is not None:
            self._topics.give_up(error)
        if self._lock is not None:
            self._lock.release()


def _check_owner(cell: QueueCell, owner: object | None) -> None:
    """Raise :class:`ResourceLockedError` where a queue is exclusive to somebody else."""
    if cell.owner is not None and cell.owner is not owner:
        raise ResourceLockedError(f"{cell.declaration} is exclusive to somebody else")
