"""NodeRegistry: the vhosts of a running node, and what is declared in them.

*Changes* to declarations are serialized (:meth:`NodeRegistry.change`): in memory, then on disk, then the queue's actor,
and only then the answer. A change that fails, by whatever error, is undone in memory and on disk and answered with the
error; the node goes on. A queue that is deleted loses its files first and its definition then: a crash in between, or a
failure to drop the definition, leaves an empty queue, never messages without a queue.

:mod:`warren.actors.node.node_actor` opens the directory; :mod:`warren.actors.node.supervision` restarts failed parts.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.declared.exchanges import Binding, ExchangeDeclaration
from warren.actors.engines.declared.parameters import Parameters
from warren.actors.engines.declared.policies import Policy, PolicyKind
from warren.actors.engines.declared.users import Users
from warren.actors.engines.errors import NotFoundError, PreconditionFailedError
from warren.actors.engines.restarts import What
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_errors import BrokenNodeError, UnsavedError, VhostDownError
from warren.actors.node.running_vhost import RunningVhost
from warren.actors.queue.intake import QueueDownError, QueueGoneError
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Future
from warren.actors.runtime.inbox import Call
from warren.actors.topics.node_streams import NodeStreams
from warren.actors.topics.node_topics import NodeTopics
from warren.queue_index.index import directory as names
from warren.storage.errors import DataError, DiskFullError, StorageError, WarrenError
from warren.storage.own_files import DEFINITIONS_FILE, DELAYS_DIRECTORY, SIDE_DIRECTORY
from warren.storage.topic_settings import TopicSettings

if TYPE_CHECKING:
    from warren.actors.engines.declared.definitions_json import Imported
    from warren.actors.topics.running_topics import RunningTopics
    from warren.actors.topics.streams import Stream

_LOG = logger("node")

T = TypeVar("T")

VHOSTS_DIRECTORY = "msg_stores/vhosts"


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the garbage collector while many long-lived objects are created."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Supervisor(Protocol):
    """What restarts the parts of the node (:mod:`warren.actors.node.supervision`)."""

    def note_down(self, what: What, error: BaseException, say: Callable[[], None]) -> None:
        """Note that a part is down; ``say`` logs it."""

    def keep_down(self, name: str, entries: Mapping[str, QueueEntry], error: BaseException) -> None:
        """Note that a vhost is down; ``entries``: its queues, which handles still refer to."""

    def try_to_open_vhost(self, name: str, entries: Mapping[str, QueueEntry]) -> None:
        """Reopen a vhost, or note why it is down."""


class NodeRegistry:
    """Vhosts, queues, exchanges and bindings of one node. Any thread may read them; changes are made in the node's
    turns."""

    def __init__(
        self,
        context: NodeContext,
        path: str,
        *,
        owner: str,
        topic_settings: TopicSettings,
        used_disk_percent: Callable[[], float],
        supervision: Supervisor,
    ) -> None:
        """``owner``: the text in lock files."""
        self._context = context
        self._path = path
        self._owner = owner
        self._supervision = supervision
        self._adopts_queues = False
        self._definitions: Definitions | None = None
        self.vhosts: dict[str, RunningVhost] = {}
        self.down: dict[str, BaseException] = {}
        """Vhosts that could not be opened, and why."""
        self.traced: set[str] = set()
        """The vhosts whose clients' messages are traced (:mod:`warren.server.channels.tracing`)."""
        self.churn = Counter[str]()
        """How many queues were declared and deleted since the node was opened, under RabbitMQ's names."""
        self.entries_down: dict[str, Mapping[str, QueueEntry]] = {}
        """The entries of vhosts that are down, which handles still refer to."""
        self.node_topics = NodeTopics(
            context,
            path,
            topic_settings,
            used_disk_percent,
            owner=owner,
            note_down=supervision.note_down,
        )
        self.streams = NodeStreams(
            context,
            topic_settings,
            self.node_topics,
            lambda vhost, name: self.definitions.vhost(vhost).policies.of("queue", name),
        )
        self.node_topics.streams = self.streams.retentions

    @property
    def definitions(self) -> Definitions:
        if self._definitions is None:
            raise RuntimeError("the node is not open")
        return self._definitions

    @property
    def users(self) -> Users:
        """The users and their permissions. Any thread may read them; only :meth:`define` changes them."""
        return self.definitions.users

    @property
    def parameters(self) -> Parameters:
        """Limits of vhosts and other parameters; read and changed like :attr:`users`."""
        return self.definitions.parameters

    # ── opening ─────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, vhost_names: Iterable[str], *, adopts_queues: bool) -> None:
        """Open what is declared, and these vhosts, which are on disk. ``adopts_queues``: empty queues without a
        definition are declared, too, because the directory was a broker's."""
        self._adopts_queues = adopts_queues
        self._definitions = Definitions.open(
            self._context.files, self._path, self._context.random, sync=self._context.settings.sync != "os"
        )
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
                self.open_vhost(name)
            except DiskFullError as error:
                self._supervision.keep_down(name, {}, error)
        with contextlib.suppress(DiskFullError):  # retried with the next change, or at the end
            self._definitions.save()
        self.streams.restore(self._definitions)
        if self.node_topics.on_disk:
            self.node_topics.try_to_open()
        self.streams.declare_topics()

    def open_vhost(self, name: str) -> None:
        """Open a vhost that is defined, or note the damage that keeps it down."""
        definitions = self.definitions.vhost(name)
        try:
            path, side_path = self._vhost_path(VHOSTS_DIRECTORY, name), self._vhost_path(SIDE_DIRECTORY, name)
            vhost = RunningVhost.open(self._context, path, side_path, definitions, owner=self._owner)
        except DataError as error:
            _LOG.exception("vhost '%s' is down", name, extra=log_event("vhost_down", error, vhost=name))
            self.down[name] = error
            return
        vhost.streams = self.streams
        vhost.delays_path = self._vhost_path(DELAYS_DIRECTORY, name)
        self.down.pop(name, None)
        self.entries_down.pop(name, None)
        orphans = [queue for queue in vhost.orphans() if definitions.declare_queue(queue, named_by_node=True)]
        vhost.start_queues(queue for queue in definitions.queues() if not queue.is_stream)
        self.vhosts[name] = vhost
        for orphan in orphans:
            if not self._adopts_queues and vhost.is_empty(orphan.name):  # left by a queue that was not to survive
                self._take_out(vhost, orphan.name)
            else:
                _LOG.warning(
                    "%s had messages but no definition, and was declared",
                    orphan,
                    extra=log_event("queue_adopted", of=orphan),
                )
        if orphans:  # only now: a crash must not turn those that were removed into durable queues
            self._save()

    def _vhost_path(self, directory: str, name: str) -> str:
        """Return the folder of a vhost in one of the node's directories."""
        return f"{self._path}/{directory}/{names.vhost_directory_name(name.encode('utf-8', 'surrogateescape'))}"

    def change(self, work: Callable[[NodeRegistry], T]) -> T:
        """Change declarations exclusively: completely, or not at all and raise the error."""
        self._context.check_directory()
        self.definitions.begin()
        try:
            return work(self)
        except BaseException as error:
            self.definitions.undo()
            if not isinstance(error, WarrenError):
                _LOG.exception(
                    "a change of definitions failed and was undone",
                    extra=log_event("definitions_undone", error, path=self._path),
                )
                self._check_definitions()
            raise

    def _check_definitions(self) -> None:
        try:
            self.definitions.check_invariants()
        except RuntimeError as error:
            raise BrokenNodeError(f"the node of {self._path}: {error}") from error

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def topics(self) -> RunningTopics | None:
        """The running topics; ``None`` before a topic is declared. Raises :class:`TopicsDownError`."""
        return self.node_topics.get()

    def declare_topic(self, name: str, queues: int) -> RunningTopics:
        """Create a topic if it does not exist."""
        return self.node_topics.declare(name, queues)

    def queue_actors(self) -> list[QueueActor]:
        """Return the actors of all queues that are up. From any thread."""
        return [actor for vhost in list(self.vhosts.values()) for actor in vhost.actors()]

    # ── vhosts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def vhost(self, name: str) -> RunningVhost:
        """Return a vhost. Raises :class:`NotFoundError`, or :class:`VhostDownError` with the reason why it is down."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            if (error := self.down.get(name)) is not None:
                raise VhostDownError(f"vhost '{name}' is down: {error}") from error
            raise NotFoundError(f"no vhost '{name}'")
        return vhost

    def declare_vhost(self, name: str) -> None:
        """Create a vhost if it does not exist."""
        if self.definitions.declare_vhost(name):
            self._add_vhosts([name])
        self.vhost(name)

    def _add_vhosts(self, vhosts: Iterable[str]) -> None:
        """Open new vhosts and save the declarations, or remove them all again."""
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
            self.open_vhost(name)
        except DiskFullError:
            raise
        except StorageError as error:
            raise VhostDownError(f"vhost '{name}' cannot be opened: {error}") from error

    def _discard_vhost(self, name: str, error: BaseException) -> None:
        """Delete a vhost whose creation failed."""
        self.down.pop(name, None)
        vhost = self.vhosts.pop(name, None)
        if vhost is not None:
            vhost.give_up(error)
        with contextlib.suppress(StorageError):  # leftovers count as an empty vhost when the node is next opened
            self._context.files.delete_tree(self._vhost_path(VHOSTS_DIRECTORY, name))

    def _save(self) -> None:
        """Save the declarations, or raise an error that says so."""
        try:
            self.definitions.save()
        except DiskFullError as error:
            raise DiskFullError(f"what is declared could not be written down: {error}") from error
        except StorageError as error:
            raise UnsavedError(f"what is declared could not be written down: {error}") from error

    def define(self, work: Callable[[Definitions], T]) -> T:
        """Change declarations without an actor, such as users and permissions, and save them."""
        before = [user.name for user in self.users]
        result = work(self.definitions)
        self._save()
        for name in set(before).difference(user.name for user in self.users):
            self._context.on_deleted("user", name)
        return result

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with everything in it."""
        vhost = self.vhost(name)
        entries = dict(vhost.queues)
        try:
            for queue, entry in entries.items():
                if entry.running is not None:
                    self._take_out(vhost, queue)
            vhost.give_up(QueueGoneError(f"vhost '{name}' was deleted"))
            for path in (vhost.queue_opening.side_path, vhost.directory.path, vhost.delays_path):
                self._context.remove_tree(path)
            self.definitions.delete_vhost(name)
            self._save()
        except WarrenError as error:
            self.definitions.undo()
            del self.vhosts[name]
            vhost.give_up(error)
            self._supervision.try_to_open_vhost(name, entries)
            raise UnsavedError(f"vhost '{name}' could not be deleted: {error}") from error
        del self.vhosts[name]
        for entry in entries.values():
            entry.deleted = True
        for stream in self.streams.of(name):
            self.streams.remove(stream)
        self.traced.discard(name)
        self._context.on_deleted("vhost", name)

    # ── queues, exchanges, bindings ─────────────────────────────────────────────────────────────────────────────

    def declare_queue(self, declaration: QueueDeclaration, owner: object | None) -> QueueEntry:
        """Declare a queue. An existing queue must match the declaration."""
        if declaration.is_stream:
            raise PreconditionFailedError(f"{declaration}: streams are for clients of a server; here, use a topic")
        vhost = self.vhost(declaration.vhost)
        entry = vhost.queues.get(declaration.name)
        if entry is not None:
            entry.check_owner(owner)
        else:
            self.check_queue_limit(vhost.name, declaration.name)
        if self.definitions.declare_queue(declaration, named_by_node=declaration.name.startswith("amq.gen-")):
            self._save()
            self.churn["queue_created"] += 1
            entry = vhost.queues[declaration.name] = QueueEntry(declaration, owner if declaration.exclusive else None)
            vhost.start_queue(entry)
            vhost.definitions.check_targets(declaration)
            log_unknown_arguments(declaration)
        elif entry is None:
            raise RuntimeError(f"{declaration} is defined and not running")
        elif (actor := entry.running) is not None:
            actor.call_soon(actor.touch)
        self.churn["queue_declared"] += 1
        return entry

    def check_queue_limit(self, vhost: str, queue: str) -> None:
        """Raise :class:`PreconditionFailedError` if the vhost may not have one more queue."""
        count = len(self.vhost(vhost).queues) + len(self.streams.of(vhost))
        self.parameters.check_queue_limit(vhost, queue, count)

    def declare_stream(self, declaration: QueueDeclaration) -> Stream:
        """Declare a stream. An existing stream must match the declaration."""
        vhost = self.vhost(declaration.vhost)
        if not vhost.definitions.has("queue", declaration.name):
            self.check_queue_limit(vhost.name, declaration.name)
        if self.definitions.declare_queue(declaration):
            declaration = vhost.definitions.queue(declaration.name)
            self.declare_topic(declaration.topic, 1)  # a crash before the next line leaves an empty topic
            self._save()
            self.churn.update(("queue_declared", "queue_created"))
            return self.streams.add(declaration)
        stream = self.streams.find(declaration.vhost, declaration.name)
        if stream is None:
            raise RuntimeError(f"{declaration} is defined and not there")
        self.churn["queue_declared"] += 1
        return stream

    def delete_stream(self, stream: Stream) -> None:
        """Delete a stream with its bindings and messages; the messages go with their files."""
        declaration = stream.declaration
        self.definitions.vhost(declaration.vhost).delete_queue(declaration.name)
        self._save()
        self.churn["queue_deleted"] += 1
        self.streams.remove(stream)

    def release(self, owner: object) -> None:
        """Delete the exclusive queues of an owner that closes."""
        for vhost in self.vhosts.values():
            for name in [name for name, entry in vhost.queues.items() if entry.owner is owner]:
                self.delete_queue(vhost.name, name)

    def find_queue(self, vhost: str, name: str, owner: object | None) -> QueueEntry:
        """Return an existing queue. Raises :class:`NotFoundError`."""
        entry = self.vhost(vhost).queues.get(name)
        if entry is None:
            raise NotFoundError(f"no queue '{name}' in vhost '{vhost}'")
        entry.check_owner(owner)
        return entry

    def use_queue(self, vhost: str, name: str, owner: object | None) -> QueueEntry:
        """Like :meth:`find_queue`, for a passive declaration, which counts as use."""
        entry = self.find_queue(vhost, name, owner)
        if (actor := entry.running) is not None:
            actor.call_soon(actor.touch)
        return entry

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
        """Return how many messages were ready. Raises :class:`PreconditionFailedError` if the queue may not be deleted.

        ``owner``: the caller that asks by name; ``None``: the node itself, or the holder of a handle. ``force``: also
        delete a queue that is down, with whatever its files still hold.
        """
        running = self.vhost(vhost)
        if (stream := self.streams.find(vhost, name)) is not None:
            self.delete_stream(stream)
            return 0
        if name not in running.queues:
            return 0
        entry = running.queues[name]
        if owner is not None:
            entry.check_owner(owner)
        has_files = not force or entry.running is not None
        if not has_files:
            running.remove_files(entry)
        deleted = self._take_out(running, name, if_empty=if_empty, if_unused=if_unused, has_files=has_files)
        try:
            self._save()
        except (DiskFullError, UnsavedError):
            running.queues[name] = entry
            running.start_queue(entry)
            raise
        entry.deleted = True
        self.churn["queue_deleted"] += 1
        return deleted

    def _take_out(
        self,
        running: RunningVhost,
        name: str,
        *,
        if_empty: bool = False,
        if_unused: bool = False,
        has_files: bool = True,
    ) -> int:
        """Delete an existing queue, without saving the definitions."""
        entry = running.queues[name]
        deleted = 0
        if has_files:
            actor = entry.running or _restarted(running, entry)
            try:
                delete = functools.partial(actor.delete, if_empty=if_empty, if_unused=if_unused)
                deleted = actor.turns.ask(delete)
            except Exception as error:
                if not actor.actor_stopped.is_set():
                    raise
                raise QueueDownError(f"{entry.declaration} could not be deleted: {error}") from error
        if running.delays is not None:
            running.delays.drop_queue(name)
        if entry.declaration.durable:
            self._context.remove_tree(running.queue_opening.side_files(entry.declaration))
        del running.queues[name]
        running.definitions.delete_queue(name)
        return deleted

    def declare_exchange(self, declaration: ExchangeDeclaration) -> None:
        """Create an exchange if it does not exist."""
        vhost = self.vhost(declaration.vhost)
        is_new = self.definitions.declare_exchange(declaration)
        self._save()
        if is_new:
            vhost.definitions.check_targets(declaration)
            log_unknown_arguments(declaration)

    def delete_exchange(self, vhost: str, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings."""
        self.definitions.vhost(vhost).delete_exchange(name, if_unused=if_unused)
        self._save()

    def bind(self, binding: Binding, owner: object) -> None:
        """Create a binding if it is missing. Raises :class:`ResourceLockedError` for another owner's exclusive
        queue."""
        if self.definitions.vhost(binding.vhost).has_ends(binding):
            self._check_destination(binding, owner)
        history = self.definitions.vhost(binding.vhost).routing.histories.get(binding.source)
        remembered = [] if history is None else history.messages()
        is_new = self.definitions.bind(binding)
        self._save()
        if is_new and remembered:
            self.vhost(binding.vhost).send_remembered(binding, remembered)

    def unbind(self, binding: Binding, owner: object) -> None:
        """Delete a binding if it exists. Raises :class:`ResourceLockedError` like :meth:`bind`."""
        if self.definitions.vhost(binding.vhost).has_binding(binding):
            self._check_destination(binding, owner)
        self.definitions.unbind(binding)
        self._save()

    def _check_destination(self, binding: Binding, owner: object) -> None:
        entry = self.vhost(binding.vhost).queues.get(binding.destination)
        if entry is not None and binding.destination_type == "queue":
            entry.check_owner(owner)

    def set_policy(self, policy: Policy) -> Future | None:
        """Set a policy or an operator policy; return a future, answered when it is applied to the queues."""
        vhost = self.vhost(policy.vhost)
        if not self.definitions.set_policy(policy):
            return None
        self._save()
        vhost.definitions.check_targets(policy)
        return self._apply_policies([vhost])

    def clear_policy(self, kind: PolicyKind, vhost: str, name: str) -> Future:
        """Delete a policy; the answer is as for :meth:`set_policy`. Raises :class:`NotFoundError` if it does not
        exist."""
        running = self.vhost(vhost)
        self.definitions.vhost(vhost).policies.clear(kind, name)
        self._save()
        return self._apply_policies([running])

    def _apply_policies(self, vhosts: Iterable[RunningVhost], answer: object = None) -> Future:
        """Tell the queues of ``vhosts`` their policies; return a future for ``answer``, given when all have them.

        A slice waits for the queues of the one before, so that other queues have their turns in between.
        """
        applied, slices = Future(), itertools.chain.from_iterable([vhost.apply_policies() for vhost in vhosts])

        def go_on() -> None:
            if (applied_slice := next(slices, None)) is None:
                applied.offer(answer)
            else:
                applied_slice.on_done(ask_to_go_on)

        def ask_to_go_on(_: Future) -> None:
            step: Any = self._context.node.ask(Call(go_on), block=False)
            step.on_done(end)

        def end(step: Future) -> None:
            if step.error is not None:  # the node has stopped
                applied.fail(step.error)

        go_on()
        return applied

    def policies(self, kind: PolicyKind, vhost: str) -> list[dict[str, Any]]:
        """Return the policies as RabbitMQ's JSON."""
        return [policy.to_json() for policy in self.vhost(vhost).definitions.policies.all(kind)]

    @_uncollected()
    def import_slice(self, slices: Iterator[Imported]) -> Any:
        """Do the next step of :meth:`Definitions.importing`, or nothing of it; return what was declared (with policies,
        a future for it, answered when they are applied), or ``None`` after the last step."""
        imported = next(slices, None)
        if imported is None:
            return None
        into = {declaration.vhost for declaration in imported.queues}
        for name in into.difference(imported.vhosts):
            self.vhost(name)  # raises if it is down: then nothing is imported
        self._add_vhosts(imported.vhosts)
        for declaration in imported.queues:
            running = self.vhost(declaration.vhost)
            if declaration.is_stream:
                stream = self.streams.add(running.definitions.queue(declaration.name))
                self.declare_topic(stream.topic, 1)
            elif declaration.name not in running.queues:
                entry = running.queues[declaration.name] = QueueEntry(declaration)
                running.start_queue(entry)
        declarations: list[QueueDeclaration | ExchangeDeclaration | Policy]
        declarations = [*imported.exchanges, *imported.queues, *imported.policies]
        for declared in declarations:
            self.definitions.vhost(declared.vhost).check_targets(declared)
        changed = {policy.vhost for policy in imported.policies} & self.vhosts.keys()
        return self._apply_policies([self.vhosts[name] for name in changed], imported) if changed else imported


def log_unknown_arguments(declaration: QueueDeclaration | ExchangeDeclaration) -> None:
    """Log the arguments that have no effect."""
    kind = "queue" if isinstance(declaration, QueueDeclaration) else "exchange"
    fields: dict[str, Any] = {kind: declaration.name}
    for unknown in declaration.unknown_arguments:
        _LOG.warning(
            "%s: no %s knows the argument %s",
            declaration,
            kind,
            unknown,
            extra=log_event("argument_unknown", vhost=declaration.vhost, **fields),
        )


def _restarted(running: RunningVhost, entry: QueueEntry) -> QueueActor:
    """Restart a queue whose actor has failed just now, so that its files are deleted with it.

    Raises :class:`QueueDownError` if it is down, or its vhost is about to be reopened.
    """
    if entry.error is None:
        with contextlib.suppress(Exception):
            running.wait_for_stores()
            running.start_queue(entry)
    return entry.actor
