"""A node's definitions: its vhosts, with their queues, exchanges and bindings; in memory, on disk, in and out.

The plain owner of all that is declared. It changes what :mod:`actors.engines.vhost_definitions` describes, keeps a
routing table up to date with it, and writes down what is durable (:mod:`actors.engines.definitions_file`) when
:meth:`Definitions.save` is called: several changes may be saved at once, and nobody should be told that something
durable is there before it returned. In RabbitMQ's JSON they come and go through :mod:`actors.engines.definitions_json`.

A refused operation changes nothing. After a save that failed, what was to be saved is here and may not be on the disk;
the next save has it all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from actors.engines.arguments import QueueDeclaration
from actors.engines.definitions_file import DefinitionsFile, Snapshot
from actors.engines.definitions_json import DefinitionsError, Imported, Plan, export_node, export_vhost
from actors.engines.errors import ArgumentsError, NotFoundError, RefusedError
from actors.engines.exchanges import Binding, DestinationType, ExchangeDeclaration, check_short_string
from actors.engines.routing import RoutingTable
from actors.engines.vhost_definitions import (
    NOTHING_REMOVED,
    Change,
    Removed,
    VhostDefinitions,
    is_builtin,
    is_kept,
)
from storage.errors import DataError
from storage.filesystem import FileSystem

DEFAULT_VHOST: Final = "/"


@attrs.define
class Definitions:
    """Everything that is declared on one node. Made by :meth:`open`, or empty for a node without a disk.

    One caller at a time; a :class:`RoutingTable` may be read by any thread, for as long as its vhost is there.
    """

    _file: DefinitionsFile | None = None
    _vhosts: dict[str, VhostDefinitions] = attrs.field(init=False, factory=dict)
    _changes: list[Change] = attrs.field(init=False, factory=list)
    """Since the last save that worked."""

    def __attrs_post_init__(self) -> None:
        snapshot = None if self._file is None else self._file.load()
        if self._file is None or snapshot is None:
            self.declare_vhost(DEFAULT_VHOST)
        else:
            self._restore(snapshot, self._file.path)

    @classmethod
    def open(cls, files: FileSystem, directory: str) -> Definitions:
        """Those that were saved in a node's data directory; where there are none, the vhost ``/`` and nothing in it.

        Reads only. Raises :class:`DataError` where the files are damaged; they stay as they are.
        """
        return cls(DefinitionsFile(files, directory))

    def _restore(self, snapshot: Snapshot, path: str) -> None:
        try:
            for vhost in snapshot["vhosts"]:
                self.declare_vhost(vhost["name"])
            for exchange in snapshot["exchanges"]:
                self.declare_exchange(ExchangeDeclaration.from_json(exchange))
            for queue in snapshot["queues"]:
                self.declare_queue(QueueDeclaration.from_json(queue), named_by_node=True)
            for binding in snapshot["bindings"]:
                self.bind(Binding.from_json(binding))
        except (RefusedError, KeyError, TypeError) as error:
            raise DataError(path, None, f"definitions that contradict each other: {error}") from error
        self._changes.clear()

    # ── vhosts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def vhosts(self) -> list[str]:
        """In the order in which they were declared."""
        return list(self._vhosts)

    def vhost(self, name: str) -> VhostDefinitions:
        """Raises :class:`NotFoundError`."""
        found = self._vhosts.get(name)
        if found is None:
            raise NotFoundError(f"no vhost '{name}'")
        return found

    def routing(self, vhost: str) -> RoutingTable:
        """The vhost's one table, always as of now. Raises :class:`NotFoundError`."""
        return self.vhost(vhost).routing

    def declare_vhost(self, name: str) -> bool:
        """See that the vhost is there; returns whether it is new."""
        check_short_string("a vhost's name", name)
        if not name:
            raise ArgumentsError("a vhost needs a name")
        if name in self._vhosts:
            return False
        self._vhosts[name] = VhostDefinitions(name, self._changes)
        self._changes.append(Change("put", "vhost", json.dumps({"name": name})))
        return True

    def delete_vhost(self, name: str) -> Removed:
        """With everything in it. One that is not there is fine."""
        vhost = self._vhosts.pop(name, None)
        if vhost is None:
            return NOTHING_REMOVED
        removed = vhost.delete_all()
        self._changes.append(Change("drop", "vhost", json.dumps({"name": name})))
        return removed

    # ── what is in them: see VhostDefinitions ───────────────────────────────────────────────────────────────────

    def queue(self, vhost: str, name: str) -> QueueDeclaration:
        """Raises :class:`NotFoundError`."""
        return self.vhost(vhost).queue(name)

    def exchange(self, vhost: str, name: str) -> ExchangeDeclaration:
        """Raises :class:`NotFoundError`."""
        return self.vhost(vhost).exchange(name)

    def queues(self, vhost: str) -> list[QueueDeclaration]:
        """In the order in which they were declared."""
        return self.vhost(vhost).queues()

    def exchanges(self, vhost: str) -> list[ExchangeDeclaration]:
        """The builtin ones first, then in the order in which they were declared."""
        return self.vhost(vhost).exchanges()

    def bindings(self, vhost: str) -> list[Binding]:
        """Those that were made; without the default exchange's."""
        return self.vhost(vhost).bindings()

    def bindings_from(self, vhost: str, exchange: str) -> list[Binding]:
        """With the default exchange's, which every queue has from the start."""
        return self.vhost(vhost).bindings_from(exchange)

    def bindings_to(self, vhost: str, kind: DestinationType, name: str) -> list[Binding]:
        """With the default exchange's."""
        return self.vhost(vhost).bindings_to(kind, name)

    def declare_queue(self, declaration: QueueDeclaration, *, named_by_node: bool = False) -> bool:
        """See that the queue is there; returns whether it is new. ``named_by_node``: its name may be a reserved one."""
        return self.vhost(declaration.vhost).declare_queue(declaration, named_by_node=named_by_node)

    def delete_queue(self, vhost: str, name: str) -> Removed:
        """With its bindings, and exchanges that go with these. One that is not there is fine."""
        return self.vhost(vhost).delete_queue(name)

    def declare_exchange(self, declaration: ExchangeDeclaration) -> bool:
        """See that the exchange is there; returns whether it is new."""
        return self.vhost(declaration.vhost).declare_exchange(declaration)

    def delete_exchange(self, vhost: str, name: str, *, if_unused: bool = False) -> Removed:
        """With the bindings from it and to it, and what goes with these. One that is not there is fine."""
        return self.vhost(vhost).delete_exchange(name, if_unused=if_unused)

    def bind(self, binding: Binding) -> bool:
        """See that the binding is there; returns whether it is new."""
        return self.vhost(binding.vhost).bind(binding)

    def unbind(self, binding: Binding) -> Removed:
        """Take the binding away, and an exchange that goes with it. One that is not there is fine."""
        return self.vhost(binding.vhost).unbind(binding)

    # ── on disk ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_saved(self) -> bool:
        """Whether all that is durable is on the disk for good; not for sure when it was just opened."""
        return not self._changes and (self._file is None or self._file.is_safe)

    def save(self) -> None:
        """Write down what has changed; on return it survives a power loss. Raises :class:`StorageError`."""
        if self._file is not None and not self.is_saved:
            self._file.save(self._changes, self._snapshot)
        self._changes.clear()

    def _snapshot(self) -> Snapshot:
        """All that is durable."""
        vhosts = self._vhosts.values()
        return {
            "vhosts": [{"name": vhost.name} for vhost in vhosts],
            "exchanges": [
                exchange.to_json()
                for vhost in vhosts
                for exchange in vhost.exchanges()
                if exchange.durable and not is_builtin(exchange.name)
            ],
            "queues": [queue.to_json() for vhost in vhosts for queue in vhost.queues() if is_kept(queue)],
            "bindings": [binding.to_json() for vhost in vhosts for binding in vhost.kept_bindings()],
        }

    # ── in and out ──────────────────────────────────────────────────────────────────────────────────────────────

    def export_definitions(self, vhost: str | None = None) -> dict[str, Any]:
        """All of them, or one vhost's, as RabbitMQ's definitions JSON, which a broker imports."""
        return export_node(self._vhosts.values()) if vhost is None else export_vhost(self.vhost(vhost))

    def import_definitions(self, document: Mapping[str, Any], vhost: str | None = None) -> Imported:
        """Add what RabbitMQ's definitions JSON has to what there is; where a vhost is said, into that one.

        All or nothing: raises :class:`DefinitionsError`, which lists everything that is in the way: a queue or an
        exchange that is there as another one, a queue that is not classic, a binding without its ends.
        """
        plan = Plan(self._vhosts, vhost)
        plan.read(document)
        if plan.problems:
            raise DefinitionsError(plan.problems)
        for name in plan.vhosts:
            self.declare_vhost(name)
        return Imported(
            vhosts=tuple(plan.vhosts),
            exchanges=tuple(exchange for exchange in plan.exchanges.values() if self.declare_exchange(exchange)),
            queues=tuple(queue for queue in plan.queues.values() if self.declare_queue(queue)),
            bindings=tuple(binding for binding in plan.bindings if self.bind(binding)),
            skipped=tuple(plan.skipped),
            ignored=plan.ignored,
        )

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` where a vhost contradicts itself or its routing table."""
        for name, vhost in self._vhosts.items():
            if vhost.name != name:
                raise RuntimeError(f"vhost {vhost.name!r} under the name {name!r}")
            vhost.check_invariants()
