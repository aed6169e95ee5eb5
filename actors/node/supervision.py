"""Supervision: what becomes of a node's parts that fail.

A queue that fails is restarted from its files, at most ``restart_limit`` times in the given number of seconds; then it
stays down with the reason, and everything else serves. A store that fails takes its vhost with it: all of its queues
are given up, and the vhost is reopened. What is down because of the disk (no bug, no damage) is retried after a second,
and then at growing intervals, until it comes up (:mod:`warren.actors.node.failed_parts`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pykka import ActorRef

from warren.actors.engines.errors import PreconditionFailedError
from warren.actors.engines.restarts import DISK_ERRORS, RETRY_NS, Restarts, What
from warren.actors.log_events import log_event, logger
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_errors import UnsavedError
from warren.actors.node.node_registry import NodeRegistry
from warren.actors.node.running_vhost import RunningVhost
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.pooled_actor import actor_of_ref
from warren.storage.errors import DataError, WarrenError

if TYPE_CHECKING:
    from warren.actors.node.failed_parts import FailedParts

_LOG = logger("node")


class SupervisedNode(Protocol):
    """The node's actor."""

    registry: NodeRegistry

    def check_directory(self) -> None:
        """Raise an error if the data directory was removed or replaced."""

    def call_later(self, key: str, wait_ns: int, work: Callable[[], object], *, first: bool = False) -> None:
        """Do ``work`` in a turn after ``wait_ns``; replaces a timer of that key."""


class Supervision:
    """Restarts the parts of one node; called in its turns."""

    def __init__(self, context: NodeContext, node: SupervisedNode) -> None:
        self._context = context
        self._node = node
        self._vhost_restarts: dict[str, Restarts] = {}
        self._failed_parts: FailedParts | None = None

    def try_to_open_vhost(self, name: str, entries: Mapping[str, QueueEntry]) -> None:
        """Reopen a vhost of a serving node, or note why it is down.

        ``entries``: its entries, which handles still refer to.
        """
        try:
            self._node.registry.open_vhost(name)
        except UnsavedError as error:
            _LOG.exception(
                "vhost '%s' is available, but its adopted queues could not be saved",
                name,
                extra=log_event("vhost_unsaved", error, vhost=name),
            )
        except Exception as error:
            self.keep_down(name, entries, error)
        reopened = self._node.registry.vhosts.get(name)
        if reopened is not None:
            reopened.take_over(entries)

    def _entry_of(self, actor: ActorRef[Any]) -> tuple[RunningVhost, QueueEntry] | None:
        queue = actor_of_ref(actor, QueueActor)
        if (vhost := self._node.registry.vhosts.get(queue.declaration.vhost)) is not None:
            entry = vhost.queues.get(queue.declaration.name)
            if entry is not None and entry.is_of(actor):
                return vhost, entry
        return None

    def delete_unused(self, actor: ActorRef[Any]) -> None:
        vhost_entry = self._entry_of(actor)
        if vhost_entry is not None:
            vhost, entry = vhost_entry
            _LOG.info(
                "%s is unused and was deleted", entry.declaration, extra=log_event("queue_unused", of=entry.declaration)
            )
            with contextlib.suppress(PreconditionFailedError):  # it is used again
                self._node.registry.delete_queue(vhost.name, entry.declaration.name, if_unused=True)

    def restart_queue(self, actor: ActorRef[Any], error: BaseException) -> None:
        vhost_entry = self._entry_of(actor)
        if vhost_entry is None:
            return
        vhost, entry = vhost_entry
        if self._stays_down(("queue", vhost.name, entry.declaration.name), entry.restarts, error):
            entry.go_down(error)
            self.note_down(
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

    def restart_delays(self, name: str, error: BaseException) -> None:
        delays = None if (vhost := self._node.registry.vhosts.get(name)) is None else vhost.delays
        if delays is None or delays.running is not None:
            return
        if self._stays_down(("delays", name), delays.restarts, error):
            self.note_down(
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

    def keep_down(self, name: str, entries: Mapping[str, QueueEntry], error: BaseException) -> None:
        self._node.registry.down[name] = error
        self._node.registry.entries_down[name] = entries
        exc_info = None if isinstance(error, WarrenError) else error
        self.note_down(
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

    def note_down(self, what: What, error: BaseException, say: Callable[[], None]) -> None:
        """See :meth:`FailedParts.note`."""
        if self._failed_parts is None:
            try:
                from warren.actors.node.failed_parts import FailedParts
            except OSError:  # no descriptor is left, which may be why it is down
                say()
                key = " ".join(("note", *what))
                self._node.call_later(key, RETRY_NS, lambda: self.note_down(what, error, lambda: None), first=True)
                return
            self._failed_parts = FailedParts(self._context, self._node.call_later, self.try_again)
        self._failed_parts.note(what, error, say)

    def try_again(self, what: What) -> bool:
        """Bring up a part that is down, for :class:`FailedParts`; return whether it is up."""
        self._node.check_directory()
        registry = self._node.registry
        match what:
            case ("vhost", name):
                if name in registry.down:
                    self.try_to_open_vhost(name, registry.entries_down.get(name, {}))
                return name in registry.vhosts
            case ("queue", vhost_name, name) if vhost_name in registry.vhosts:
                vhost = registry.vhosts[vhost_name]
                entry = vhost.queues.get(name)
                if entry is not None and entry.running is None and isinstance(entry.error, DISK_ERRORS):
                    vhost.start_queue(entry)
                return entry is not None and entry.running is not None
            case ("delays", name) if name in registry.vhosts and (delays := registry.vhosts[name].delays) is not None:
                return delays.start_again()
            case ("topics",):
                if registry.node_topics.running is None:
                    registry.node_topics.try_to_open()
                return registry.node_topics.running is not None
        return False

    def _stays_down(self, what: What, restarts: Restarts, error: BaseException) -> bool:
        """Whether a failed part is not restarted at once, because it failed too often or is damaged."""
        if isinstance(error, DataError) or self._context.troubles.is_on_trial(what, error):
            return True
        return restarts.too_often(
            self._context.clock.now_ns(), self._context.settings.restart_limit, by_disk=isinstance(error, DISK_ERRORS)
        )

    def restart_vhost(self, store: ActorRef[Any], error: BaseException) -> None:
        vhost = next(
            (vhost for vhost in self._node.registry.vhosts.values() if store in (vhost.persistent, vhost.transient)),
            None,
        )
        if vhost is None:
            return
        vhost.give_up(error)
        entries = vhost.queues
        del self._node.registry.vhosts[vhost.name]
        restarts = self._vhost_restarts.setdefault(vhost.name, Restarts())
        if not isinstance(error, DataError) and self._stays_down(("vhost", vhost.name), restarts, error):
            self.keep_down(vhost.name, entries, error)
            return
        _LOG.error(
            "vhost '%s' is reopened: %s",
            vhost.name,
            error,
            extra=log_event("vhost_reopened", error, vhost=vhost.name),
        )
        self.try_to_open_vhost(vhost.name, entries)
