"""One vhost of a running node: its directory, its two store actors, and an entry for every queue.

Opening. Queues come from the definitions and from the directories found on disk. A durable queue's files are opened by
its actor; levels that were stopped cleanly are opened on first use. A directory without a definition is examined all
the same: messages that survived make it a durable queue (so nothing is lost with a file of definitions), otherwise it
is deleted. If the persistent store was scanned, each queue's actor scans its index and tells the store which bodies it
needs; until the last one has done so, the store deletes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
from pykka import ActorRef

from warren.actors import messages as m
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.definitions import SLICE
from warren.actors.engines.declared.exchanges import Binding
from warren.actors.engines.declared.routing import Remembered
from warren.actors.engines.declared.vhost_definitions import VhostDefinitions
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.node.queue_opening import QueueOpening, stored_names
from warren.actors.node.store_actor import MessageStoreActor
from warren.actors.queue.intake import PublishKey
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.queue.queue_output import Target
from warren.actors.runtime.future import CountDown, Future
from warren.actors.runtime.inbox import Call
from warren.actors.runtime.pooled_actor import actor_of_ref
from warren.actors.runtime.timer import tell
from warren.actors.vhost_files import VhostFiles
from warren.msg_store.rdq.message_store import StoreStatus
from warren.queue_index.index.recovery_terms import RecoveryTerms
from warren.queue_index.properties import decode_properties
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from warren.actors.delays.vhost_delays import VhostDelays
    from warren.actors.topics.node_streams import NodeStreams

_LOG = logger("node")

_DEAD_LETTER_ROUNDS: Final = 8
"""The longest chain of queues through which dead letters travel before a vhost closes."""
_DELAYS: Final = threading.Lock()
"""Held while a vhost's delayed messages are set up."""


@attrs.define(eq=False, repr=False)
class RunningVhost:
    """A vhost of a running node. Only the node's actor changes it; ``queues`` may be read from any thread."""

    name: str
    definitions: VhostDefinitions
    directory: VhostFiles
    persistent: ActorRef[Any]
    transient: ActorRef[Any]
    queue_opening: QueueOpening
    _context: NodeContext
    queues: dict[str, QueueEntry] = attrs.Factory(dict)
    streams: NodeStreams | None = None
    """The streams of the node; they go on when a vhost is reopened."""
    delays_path: str = ""
    """The directory of the delayed messages, if there are any."""
    delays: VhostDelays | None = None
    """The delayed messages; ``None`` before the first one."""
    opening: bool = True
    """Whether there may be queues that are not started yet."""
    _start: Callable[..., ActorRef[Any]] = attrs.field(init=False)
    """Starts a queue's actor, with what all queues share."""

    def __attrs_post_init__(self) -> None:
        self._start = functools.partial(
            QueueActor.start,
            self._context,
            open_process=self.queue_opening.open_process,
            dispatch=self.dispatch,
            is_opening=lambda: self.opening,
        )

    @classmethod
    def open(
        cls, context: NodeContext, path: str, side_path: str, definitions: VhostDefinitions, *, owner: str
    ) -> RunningVhost:
        """Open a vhost's directory and start its stores; :meth:`start_queues` then starts the queues."""
        directory = VhostFiles.open(
            context.files,
            path,
            definitions.name.encode("utf-8", "surrogateescape"),
            settings=context.engine,
            sync=context.settings.sync != "os",
            owner=owner,
        )
        persistent, transient = (
            MessageStoreActor.start(
                context, store, f"the {kind} message store of vhost '{definitions.name}'", definitions.name
            )
            for kind, store in (("persistent", directory.persistent_store), ("transient", directory.transient_store))
        )
        opening = QueueOpening(context, directory, side_path, persistent, transient)
        for error in directory.damage:
            _LOG.warning(
                "vhost '%s': an unreadable part is skipped: %s",
                definitions.name,
                error,
                extra=log_event("vhost_damaged", error, vhost=definitions.name),
            )
        return cls(definitions.name, definitions, directory, persistent, transient, opening, context)

    # ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────

    def orphans(self) -> list[QueueDeclaration]:
        """Return queues that have a directory and no definition. Levels of one priority queue are one queue."""
        defined = {name for declaration in self.definitions.queues() for name in stored_names(declaration)}
        highest: dict[bytes, int | None] = {}
        for stored in self.directory.queue_directories:
            if stored not in defined:
                name, level = (stored[:-2], stored[-1]) if stored[-2:-1] == b"\0" else (stored, None)
                before = highest.get(name)
                highest[name] = level if before is None else max(before, level or 0)
        orphans = []
        for name, level in highest.items():
            arguments = {} if level is None else {"x-max-priority": max(level, 1)}
            text = name.decode("utf-8", "surrogateescape")
            orphans.append(QueueDeclaration(vhost=self.name, name=text, arguments=arguments))
        return orphans

    def start_queues(self, declarations: Iterable[QueueDeclaration]) -> None:
        """Start an actor for each queue that exists when the vhost is opened."""
        started = list(declarations)
        self.queue_opening.forget_sides(started)
        directories = {self.directory.entry(name) for declaration in started for name in stored_names(declaration)}
        down = self.directory.down  # the needs of a queue that is down are unknown: then nothing is ever deleted
        if not (self.directory.persistent_store.clean or down):
            expected = frozenset(directories & set(self.directory.queue_directories.values()))
            tell(self.persistent, m.ExpectReferences(expected))
        for declaration in started:
            entry = self.queues[declaration.name] = QueueEntry(declaration)
            own_directories = map(self.directory.entry, stored_names(declaration))
            if reasons := [down[directory] for directory in own_directories if directory in down]:
                entry.go_down(reasons[0])
            else:
                self.start_queue(entry)
        self.opening = False
        if self._context.files.is_directory(self.delays_path):
            _ = self.delayed().actor

    def actors(self) -> list[QueueActor]:
        """Return the actors of the queues that are up. From any thread."""
        return [actor for entry in list(self.queues.values()) if (actor := entry.running) is not None]

    def remove_files(self, entry: QueueEntry) -> None:
        """Delete the files of a queue that is down; its bodies in the store stay until the next scan."""
        for stored in stored_names(entry.declaration):
            directory = self.directory.entry(stored)
            self._context.remove_tree(self.directory.queue_path(directory))
            self.directory.forget(directory)
        self._context.remove_tree(self.queue_opening.side_files(entry.declaration))
        entry.error = None

    def is_empty(self, name: str) -> bool:
        """Whether a completely recovered queue has no message."""
        if (actor := self.queues[name].running) is None:
            return False
        try:
            stats = actor.turns.ask(actor.stats)
        except Exception:
            return False  # an unreadable queue is kept, and is down
        return not stats["messages"] and not actor.process.backing.recovering

    def start_queue(self, entry: QueueEntry) -> None:
        """Start an actor for a queue, new or with files."""
        policies = self.definitions.policies.of("queue", entry.declaration.name)
        ref = self._start(declaration=entry.declaration, policies=policies)
        entry.start(actor_of_ref(ref, QueueActor))

    def apply_policies(self) -> Iterator[Future]:
        """Tell queues whose policies have changed. After every :data:`SLICE` queues comes a future, which is answered
        when they have applied them."""
        entries = list(self.queues.items())
        for at in range(0, len(entries), SLICE):
            answers: list[Any] = []
            for name, entry in entries[at : at + SLICE]:
                actor, policies = entry.running, self.definitions.policies.of("queue", name)
                if actor is not None and actor.policies != policies:
                    actor.policies = policies
                    apply = Call(functools.partial(actor.set_policies, policies))
                    answers.append(actor.actor_ref.ask(apply, block=False))
            yield CountDown(answers)

    # ── delayed messages ────────────────────────────────────────────────────────────────────────────────────────

    def delayed(self) -> VhostDelays:
        """Return the delayed messages, creating their object on first use. From any thread."""
        from warren.actors.delays.vhost_delays import VhostDelays

        with _DELAYS:
            if self.delays is None:
                self.delays = VhostDelays(
                    self._context, self.delays_path, self.name, self.dispatch, lambda: self.opening
                )
            return self.delays

    @property
    def messages_delayed(self) -> int:
        """The number of delayed messages."""
        return 0 if self.delays is None else len(self.delays)

    @property
    def failed_queues(self) -> dict[str, str]:
        """The queues that cannot be used, and why."""
        return {name: entry.reason for name, entry in list(self.queues.items()) if entry.running is None}

    def waiting_of_queue(self, queue: str) -> int:
        """Return how many delayed messages were published to the queue itself."""
        return 0 if self.delays is None else self.delays.waiting_of(queue, "")

    def waiting_of_exchange(self, exchange: str) -> int:
        """Return how many delayed messages were published to the exchange."""
        return 0 if self.delays is None else self.delays.waiting_of(None, exchange)

    # ── routing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def dispatch(
        self,
        subject: object,
        exchange: str,
        routing_keys: tuple[str, ...],
        headers: Mapping[str, Any] | None,
        properties: bytes,
    ) -> list[tuple[str, Target]]:
        """Return the targets of a dead letter or delayed message of ``subject``. A missing route is logged."""
        definitions, targets = self.definitions, list[tuple[str, Target]]()
        names: tuple[str, ...] = ()
        if definitions.has("exchange", exchange):
            names = definitions.routing.route_all(exchange, routing_keys, headers, properties, from_node=True)
        if not names:
            definitions.missing_targets.note_drop(subject, exchange, routing_keys[0])
        for name in names:
            entry = self.queues.get(name)
            if entry is not None:
                actor = entry.running
                targets.append((name, None if actor is None else actor.actor_ref))
            elif self.streams is not None and (stream := self.streams.find(self.name, name)) is not None:
                targets.append((name, stream))
        return targets

    def send_remembered(self, binding: Binding, messages: Iterable[Remembered]) -> None:
        """Publish what a new binding's source remembers, to the binding's destination; no sender waits for it."""
        for message in messages:
            envelope = message.envelope
            names: tuple[str, ...] = (binding.destination,)
            if binding.destination_type == "exchange":
                keys = tuple(key.decode("utf-8", "surrogateescape") for key in envelope.routing_keys)
                headers = decode_properties(envelope.properties).headers
                routing = self.definitions.routing
                names = routing.route_all(binding.destination, keys, headers, envelope.properties, from_node=True)
            self.send_to(names, PublishKey(envelope, message.expiration_ms, message.priority), message.body)

    def send_to(self, names: Iterable[str], key: PublishKey, body: bytes) -> None:
        """Publish a message to queues; no sender waits for it. Queues that are down do not get it."""
        for name in names:
            entry = self.queues.get(name)
            if entry is not None and (actor := entry.running) is not None:
                with contextlib.suppress(WarrenError):  # it has stopped
                    actor.intake.publish_many(key, [body], here=False)
            elif self.streams is not None and (stream := self.streams.find(self.name, name)) is not None:
                stream.take_dead_letter(key.envelope, body, Future())

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def wait_for_stores(self) -> None:
        """Wait until the stores have handled all earlier messages. Raises if one of them has stopped."""
        self.store_statuses()

    def store_statuses(self) -> list[tuple[str, StoreStatus]]:
        """Return the status of both stores, by kind, after all earlier messages are handled."""
        stores = (("persistent", self.persistent, self.directory.persistent_store),
                  ("transient", self.transient, self.directory.transient_store))  # fmt: skip
        return [(kind, cast("StoreStatus", actor.ask(Call(store.status)))) for kind, actor, store in stores]

    def close(self) -> None:
        """Stop the queues, then the stores, and record in recovery.dets how they were left.

        If a queue cannot be closed, the others are closed all the same; then the error is raised.
        """
        confirms: list[Future] = []
        if self.delays is not None:
            self.delays.stop_publishing()
        with contextlib.suppress(WarrenError):
            self._let_dead_letters_arrive()
        try:
            failures = self._close(confirms)
        except BaseException as error:
            for confirm in confirms:
                confirm.fail(error)
            raise
        for confirm in confirms:
            if not confirm.done:
                confirm.set()
        if self.delays is not None:  # only now: the queues have made safe what was published to them
            self.delays.close()
        if failures:
            raise failures[0]

    def _let_dead_letters_arrive(self) -> None:
        """Wait until dead letters are safe at their destination, so that a clean stop leaves each in one queue.

        If the destination is down or the disk is full, the queue that keeps the dead letters gets them back.
        """
        for _ in range(_DEAD_LETTER_ROUNDS):
            senders = [actor for actor in self.actors() if actor.arguments.dead_letter_exchange is not None]
            if not any(actor.turns.ask(actor.has_dead_letters_under_way, first=True) for actor in senders):
                return
            self._catch_up()

    def _catch_up(self) -> None:
        for actor in self.actors():
            with contextlib.suppress(WarrenError):
                actor.turns.ask(actor.catch_up, first=True)

    def _close(self, confirms: list[Future]) -> list[Exception]:
        """Close queues and stores; return the errors of queues that could not be closed."""
        terms: dict[str, RecoveryTerms] = {}
        failures: list[Exception] = []
        if "disk" in self._context.gate.reasons:  # the stores delete consumed messages: the queues' acks need room
            self._catch_up()
            self.wait_for_stores()
        for entry in self.queues.values():
            actor = entry.running
            if actor is None:
                continue
            try:
                queue_terms, waiting = actor.turns.ask(actor.close, first=True)
            except Exception as error:
                _LOG.exception(
                    "%s could not be closed, and is recovered from its files",
                    entry.declaration,
                    extra=log_event("queue_unclosed", error, of=entry.declaration),
                )
                entry.go_down(error)
                failures.append(error)
                continue
            terms |= {self.directory.entry(stored): level_terms for stored, level_terms in queue_terms.items()}
            confirms += waiting
        data = self.directory.terms_data(terms)
        any_down = any(entry.error is not None for entry in self.queues.values())
        token = None if failures or any_down else self.directory.token(data)
        for store in (self.persistent, self.transient):
            store.ask(m.CloseStore(token if store is self.persistent else None))
        self.directory.leave(data)
        return failures

    def abandon(self) -> None:
        """Give everything up as a crash would."""
        self.directory.abandon()

    def forget(self, error: WarrenError) -> None:
        """In a forked child, stop using the directory, which is the parent's."""
        if self.delays is not None:
            self.delays.forget(error)
        for ref in (self.persistent, self.transient):
            ref.actor_stopped.set()
        for actor in self.actors():
            actor.forget(error)

    def give_up(self, error: BaseException) -> None:
        """Stop everything as a crash would, to reopen the vhost after a store has failed, or to delete it."""
        if self.delays is not None:
            self.delays.give_up(error)
        for entry in self.queues.values():
            actor = entry.running
            entry.go_down(error)
            if actor is not None:
                with contextlib.suppress(WarrenError):
                    actor.turns.ask(functools.partial(actor.give_up, error), first=True)
        for store in (self.persistent, self.transient):
            store.stop()
        self.abandon()

    def take_over(self, entries: Mapping[str, QueueEntry]) -> None:
        """Connect the entries that handles refer to with the actors that run now."""
        for name, entry in entries.items():
            opened = self.queues.get(name)
            if opened is None:
                entry.deleted = True
                continue
            if (actor := opened.running) is None:
                entry.go_down(opened.down_error())
            else:
                entry.start(actor)
            self.queues[name] = entry
