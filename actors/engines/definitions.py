"""A node's definitions: its vhosts, with their queues, exchanges and bindings; in memory, on disk, in and out.

The plain owner of all that is declared. It changes what :mod:`warren.actors.engines.vhost_definitions` describes, keeps
a routing table up to date with it, and writes down what is durable (:mod:`warren.actors.engines.definitions_file`) when
:meth:`Definitions.save` is called: several changes may be saved at once, and nobody should be told that something
durable is there before it returned. In RabbitMQ's JSON they come and go through
:mod:`warren.actors.engines.definitions_json`.

A refused operation changes nothing. After a save that failed, what was to be saved is here and may be on the disk or
not; the next save has it all. Or it is taken back (:meth:`Definitions.undo`), everything since
:meth:`Definitions.begin`.

What an earlier warren has written and this one would refuse, a name or an argument that is no text, is passed over and
told (:attr:`Definitions.passed_over`), and stays in the files.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from warren.actors.engines.arguments import QueueDeclaration
from warren.actors.engines.definitions_file import DefinitionsFile, Snapshot
from warren.actors.engines.definitions_json import DefinitionsError, Imported, Plan, export_node, export_vhost
from warren.actors.engines.errors import ArgumentsError, NotFoundError, RefusedError
from warren.actors.engines.exchanges import Binding, ExchangeDeclaration
from warren.actors.engines.texts import check_short_string, check_utf8, is_text
from warren.actors.engines.vhost_definitions import (
    NOTHING_REMOVED,
    Change,
    Removed,
    VhostDefinitions,
    is_builtin,
    is_kept,
)
from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import FileSystem

DEFAULT_VHOST: Final = "/"


@attrs.define
class Definitions:
    """Everything that is declared on one node. Made by :meth:`open`, or empty for a node without a disk.

    One caller at a time; a vhost's ``routing`` may be read by any thread, for as long as the vhost is there.
    """

    _file: DefinitionsFile | None = None
    _vhosts: dict[str, VhostDefinitions] = attrs.field(init=False, factory=dict)
    _changes: list[Change] = attrs.field(init=False, factory=list)
    """Since the last save that worked."""
    _undo: list[Callable[[], object]] = attrs.field(init=False, factory=list)
    """How to take back each step since :meth:`begin`, or the last save that worked."""
    _begun_at: int = attrs.field(init=False, default=0)
    """How many changes :meth:`undo` leaves."""
    _passed_over: list[tuple[str, dict[str, Any]]] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        snapshot = None if self._file is None else self._file.load()
        if self._file is None or snapshot is None:
            self.declare_vhost(DEFAULT_VHOST)
        else:
            self._restore(snapshot, self._file.path)
        self.begin()

    @classmethod
    def open(cls, files: FileSystem, directory: str) -> Definitions:
        """Those that were saved in a node's data directory; where there are none, the vhost ``/`` and nothing in it.

        Reads only. Raises :class:`DataError` where the files are damaged; they stay as they are.
        """
        return cls(DefinitionsFile(files, directory))

    def _restore(self, snapshot: Snapshot, path: str) -> None:
        declare: dict[str, Callable[[Any], object]] = {
            "vhosts": lambda vhost: self.declare_vhost(vhost["name"], named_by_node=True),
            "exchanges": lambda exchange: self.declare_exchange(ExchangeDeclaration.from_json(exchange)),
            "queues": lambda queue: self.declare_queue(QueueDeclaration.from_json(queue), named_by_node=True),
            "bindings": lambda binding: self.bind(Binding.from_json(binding)),
        }
        for part, declare_one in declare.items():
            for definition in snapshot[part]:
                try:
                    declare_one(definition)
                except (RefusedError, KeyError, TypeError) as error:
                    if not self._may_pass_over(definition):
                        raise DataError(path, None, f"definitions that contradict each other: {error}") from error
                    self._passed_over.append((part, definition))
        self._changes.clear()

    def _may_pass_over(self, definition: Any) -> bool:
        """Whether it has a text that is none, or belongs to something that has."""
        if not isinstance(definition, dict):
            return False
        gone = {(one.get("vhost"), one.get("name")) for part, one in self._passed_over if part == "exchanges"}
        gone |= {(one.get("vhost"), one.get("name")) for part, one in self._passed_over if part == "queues"}
        ends = {(definition.get("vhost"), definition.get(end)) for end in ("source", "destination")}
        return not is_text(definition) or not ends.isdisjoint(gone)

    @property
    def passed_over(self) -> list[str]:
        """What the files define and cannot be had."""
        return [f"{part}: {json.dumps(definition):.200}" for part, definition in self._passed_over]

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

    def declare_vhost(self, name: str, *, named_by_node: bool = False) -> bool:
        """See that the vhost is there; returns whether it is new. ``named_by_node``: by bytes that are no UTF-8, even.

        (A directory on the disk may be that vhost's.)
        """
        check_short_string("a vhost's name", name)
        if not name:
            raise ArgumentsError("a vhost needs a name")
        if name in self._vhosts:
            return False
        if not named_by_node:
            check_utf8("a vhost's name", name)
        self._vhosts[name] = VhostDefinitions(name, self._changes, self._undo)
        self._undo.append(lambda: self._vhosts.pop(name))
        self._changes.append(Change("put", "vhost", json.dumps({"name": name})))
        return True

    def delete_vhost(self, name: str) -> Removed:
        """With everything in it. One that is not there is fine."""
        vhost = self._vhosts.get(name)
        if vhost is None:
            return NOTHING_REMOVED
        removed = vhost.delete_all()
        del self._vhosts[name]
        self._undo.append(lambda: self._vhosts.__setitem__(name, vhost))
        self._changes.append(Change("drop", "vhost", json.dumps({"name": name})))
        return removed

    # ── what is in them: see VhostDefinitions ───────────────────────────────────────────────────────────────────

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
        """Whether all that is durable is on the disk and synced; not for sure when it was just opened."""
        return not self._changes and (self._file is None or (self._file.is_safe and self._file.is_known))

    def begin(self) -> None:
        """What comes from here on can be taken back together."""
        self._undo.clear()
        self._begun_at = len(self._changes)

    def undo(self) -> None:
        """Take back what was done since :meth:`begin` or the last save that worked, here and on the disk.

        Where the disk does not let, the next save does it.
        """
        steps = self._undo.copy()
        for step in reversed(steps):
            step()
        del self._changes[self._begun_at :]
        self.begin()
        if self._file is not None and not self._file.is_known:
            with contextlib.suppress(StorageError):
                self.save()

    def save(self) -> None:
        """Write down what has changed; on return it survives a power loss. Raises :class:`StorageError`."""
        if self._file is not None and not self.is_saved:
            self._file.save(self._changes, self._snapshot)
        self._changes.clear()
        self.begin()

    def _snapshot(self) -> Snapshot:
        """All that is durable."""
        vhosts = self._vhosts.values()
        snapshot: Snapshot = {
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
        for part, definition in self._passed_over:
            snapshot[part].append(definition)
        return snapshot

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
