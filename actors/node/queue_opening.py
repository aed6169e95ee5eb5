"""Opening the queues of a vhost from their files: those that a broker knows, and warren's own beside them."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pykka import ActorRef

from warren.actors import messages as m
from warren.actors.engines.credit import GrantedCredit
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.vhost_definitions import is_kept
from warren.actors.engines.queue.backing import Backing
from warren.actors.engines.queue.queue_context import Counts, QueueContext
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.node.store_actor import RemoteStore
from warren.actors.queue.queue_actor import OpenedQueue, QueueActor
from warren.actors.runtime.timer import tell
from warren.actors.vhost_files import VhostFiles
from warren.queue_index.index.directory import level_name
from warren.queue_index.index.recovery_terms import RecoveryTerms
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.variable_queue import QueueFiles, VariableQueue
from warren.storage.own_files import KEYS_LOG, RETURNED_KIND, RETURNED_LOG

if TYPE_CHECKING:
    from warren.queue_index.index.scan_losses import Losses
    from warren.storage.errors import DataError
    from warren.storage.record_log import RecordLog


_LOG = logger("node")


@attrs.define(eq=False)
class _Levels:
    """What was found of a queue when it was opened, by level; level 0 if it has no priorities."""

    opened: dict[int, VariableQueue] = attrs.Factory(dict)
    """The recovered levels."""
    terms: dict[int, RecoveryTerms] = attrs.Factory(dict)
    """The levels that were stopped cleanly: they are opened on first use."""
    counted: list[m.CountReferences] = attrs.Factory(list)
    """The bodies that they refer to, for a store that was scanned."""
    lost: list[tuple[Losses, bool]] = attrs.Factory(list)
    """The losses of each level, and whether it had been stopped cleanly."""
    crashed: bool = False
    foreign: bool = False
    """Whether another program stopped here last."""


@attrs.define(eq=False, repr=False)
class QueueOpening:
    """Opens the queues of one vhost, each in the first turn of its actor."""

    _context: NodeContext
    directory: VhostFiles
    side_path: str
    """The folder of warren's own files of the queues, beside those that a broker knows."""
    persistent: ActorRef[Any]
    transient: ActorRef[Any]
    _is_clean: bool = attrs.field(init=False)
    """Whether the store needed no scan."""
    _sides: set[str] = attrs.field(factory=set, init=False)
    """The folders there that were not looked into since the vhost was opened, by name."""
    _returned_log_of: Callable[[QueueDeclaration], RecordLog] = attrs.field(init=False)
    _now_ns: Callable[[], int] = attrs.field(init=False)
    _wall_us: Callable[[], int] = attrs.field(init=False)
    """Bound once for all queues."""

    def __attrs_post_init__(self) -> None:
        self._is_clean = self.directory.persistent_store.clean
        self._returned_log_of = self._returned_log
        self._now_ns, self._wall_us = self._context.clock.now_ns, self._context.clock.wall_us

    def open_process(self, actor: QueueActor) -> OpenedQueue:
        """Open a queue from its files; called in its actor's first turn."""
        declaration, context = actor.declaration, self._context
        clients = self._store_clients(actor)
        parts_of = _LevelFiles(self.directory, declaration, clients, self._now_ns)
        durable = is_kept(declaration)
        side = self.side_files(declaration)
        has_side = durable and self.directory.is_there(side, self._sides)
        with contextlib.ExitStack() as failing:  # closes its files on failure
            levels = self._open_levels(declaration, parts_of, failing)
            backing = Backing(
                parts_of,
                durable=durable,
                max_priority=declaration.max_priority,
                opened=levels.opened,
                terms=levels.terms,
            )
            shared = QueueContext(
                declaration,
                backing,
                self._wall_us,
                actor.policies,
                Counts() if context.counting else None,
                returned_log=self._returned_log_of if durable else None,
                sync=context.settings.sync != "os",
                tells_out=not self.directory.settings.deliver_with_publish,
                quorum_delivery_limit=context.settings.quorum_delivery_limit,
                crashed=levels.crashed,
                log=context.queue_log_of(declaration.vhost, declaration.name),
            )
            process = QueueProcess(shared)
            if has_side and context.files.exists(returned := f"{side}/{RETURNED_LOG}"):
                if levels.foreign:  # a broker stopped here last, and may have given the same seq_ids to others
                    context.files.delete(returned)
                else:
                    process.settlements.load_returned()
            failing.pop_all()
        keys = f"{side}/{KEYS_LOG}"
        return OpenedQueue(
            process,
            clients,
            lambda: self._tell_recovered(declaration, levels),
            keys_path=keys if durable else None,
            has_keys=has_side and context.files.exists(keys),
        )

    def _store_clients(self, actor: QueueActor) -> list[RemoteStore]:
        """Return a queue's access to the vhost's two stores."""
        context, directory = self._context, self.directory
        stores = ((self.persistent, directory.persistent_store), (self.transient, directory.transient_store))
        bound = context.engine.msg_store_credit_disc_bound
        return [
            RemoteStore(
                ref,
                actor.actor_ref,
                store,
                next(context.numbers),
                credit=GrantedCredit(*bound),
                gate=context.gate,
            )
            for ref, store in stores
        ]

    def _open_levels(
        self, declaration: QueueDeclaration, parts_of: Callable[[int | None], QueueFiles], failing: contextlib.ExitStack
    ) -> _Levels:
        """Recover the levels of a queue that may hold messages and must be examined now.

        ``failing``: gets a callback that abandons each recovered level. Files of a queue that is not kept are deleted.
        """
        files, top, levels = self._context.files, declaration.max_priority, _Levels()
        for level in range((top or 0) + 1):
            parts = parts_of(None if top is None else level)
            directory = parts.path.rpartition("/")[2]
            is_untouched = directory in self.directory.untouched
            if not self.directory.is_there(parts.path, self.directory.untouched):
                continue
            if not is_kept(declaration):
                files.delete_tree(parts.path)
                self.directory.forget(directory)
                continue
            terms = self.directory.terms.get(directory) if is_untouched else None
            if terms is not None and self._is_clean and (terms.persistent_count or terms.is_blank):
                levels.terms[level] = terms
                continue
            levels.crashed |= terms is None
            levels.foreign |= terms is not None and not self._is_clean
            levels.opened[level] = self._recover(parts, terms, directory, levels)
            failing.callback(levels.opened[level].abandon)
        return levels

    def side_files(self, declaration: QueueDeclaration) -> str:
        """Return the folder of warren's own files of a queue, beside those that a broker knows."""
        return f"{self.side_path}/{self.directory.entry(stored_name(declaration, None))}"

    def forget_sides(self, queues: Iterable[QueueDeclaration]) -> None:
        """Delete the side folders of queues that another program has deleted."""
        files, folders = self._context.files, {self.directory.entry(stored_name(queue, None)) for queue in queues}
        for entry in files.list(self.side_path):
            if entry in folders:
                self._sides.add(entry)
            elif files.is_directory(path := f"{self.side_path}/{entry}"):  # plain files are not ours
                files.delete_tree(path)

    def _returned_log(self, declaration: QueueDeclaration) -> RecordLog:
        from warren.storage.record_log import RecordLog

        return RecordLog(self._context.files, f"{self.side_files(declaration)}/{RETURNED_LOG}", RETURNED_KIND)

    def _recover(
        self, parts: QueueFiles, terms: RecoveryTerms | None, directory: str, levels: _Levels
    ) -> VariableQueue:
        """Recover one level, as far as its first message, and count its references and losses meanwhile."""
        from warren.queue_index.index.scan_losses import Losses

        losses = Losses()
        levels.lost.append((losses, terms is not None))
        references: Counter[bytes] = Counter()
        if not self._is_clean:
            levels.counted.append(m.CountReferences(directory, references))
        return VariableQueue.recover(
            parts,
            terms,
            store_recovered=self._is_clean and terms is not None,
            step_by_step=True,
            on_references=references.update,
            losses=losses,
        )

    def _tell_recovered(self, queue: QueueDeclaration, levels: _Levels) -> None:
        """Tell the store the references, and log the losses, once a queue is scanned completely."""
        for message in levels.counted:
            tell(self.persistent, message)
        for losses, was_clean in levels.lost:
            level = logging.ERROR if was_clean else logging.WARNING  # after a crash, they may not have been safe yet
            for cut in losses.cuts:
                _LOG.log(level, "queue '%s': %s", queue.name, cut, extra=log_event("queue_index_cut", cut, of=queue))
            if losses.messages:
                reason = "the store lacks their bodies" + ("" if was_clean else "; they may have been acked")
                _LOG.log(
                    level,
                    "queue '%s' has lost %d messages: %s",
                    queue.name,
                    losses.messages,
                    reason,
                    extra=log_event("queue_messages_lost", of=queue, count=losses.messages, reason=reason),
                )


@attrs.frozen(eq=False)
class _LevelFiles:
    """The files of a queue's levels. ``clients``: its access to the vhost's two stores."""

    _directory: VhostFiles
    _queue: QueueDeclaration
    _clients: Sequence[RemoteStore]
    _now_ns: Callable[[], int]

    def __call__(self, level: int | None) -> QueueFiles:
        persistent, transient = (StoreClient(client, client.credit) for client in self._clients)
        parts = self._directory.parts(
            stored_name(self._queue, level),
            clock=self._now_ns,
            persistent_store=persistent if is_kept(self._queue) else None,
            transient_store=transient,
        )
        return attrs.evolve(parts, wait_for_grant=self._wait_for_grant, on_damage=self._tell_damage)

    def _wait_for_grant(self) -> None:
        for client in self._clients:
            if client.credit.blocked:
                client.wait_until_taken()

    def _tell_damage(self, error: DataError) -> None:
        name = self._queue.name
        _LOG.error("queue '%s': %s", name, error, extra=log_event("queue_sizes_wrong", error, of=self._queue))


def stored_name(declaration: QueueDeclaration, level: int | None) -> bytes:
    """Return the stored name of a queue, or of one of its levels."""
    name = declaration.name.encode("utf-8", "surrogateescape")
    return name if level is None else level_name(name, level)


def stored_names(declaration: QueueDeclaration) -> list[bytes]:
    top = declaration.max_priority
    return [stored_name(declaration, None)] if top is None else [stored_name(declaration, n) for n in range(top + 1)]
