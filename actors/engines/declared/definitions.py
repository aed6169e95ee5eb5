"""A node's definitions: its vhosts, with their queues, exchanges, bindings and policies, and its users.

It owns all declarations (:mod:`warren.actors.engines.declared.vhost_definitions` describes a vhost's), keeps a routing
table for each vhost up to date, and writes the durable ones
(:mod:`warren.actors.engines.declared.definitions_file`) when :meth:`Definitions.save` is called. Several changes may be
saved at once; a durable declaration must not be acknowledged before the save returns. Definitions are imported and
exported as RabbitMQ's JSON by :mod:`warren.actors.engines.declared.definitions_json`.

A refused operation changes nothing. After a failed save the changes are in memory, and may or may not be on the disk;
the next save writes them all. :meth:`Definitions.undo` undoes all changes since :meth:`Definitions.begin` instead.

Definitions that an earlier warren wrote and this one would refuse (a name or an argument with invalid text) are skipped
and reported (:attr:`Definitions.passed_over`), and stay in the files.

If no users were ever saved (a new directory, or one from before users existed), there is one user,
:data:`~warren.actors.engines.declared.users.DEFAULT_USER`. Once that is saved, it can be deleted for good.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.changes import ChangeNotes, NotedTable
from warren.actors.engines.declared.definitions_file import DefinitionsFile, Snapshot
from warren.actors.engines.declared.exchanges import Binding, ExchangeDeclaration
from warren.actors.engines.declared.parameters import Parameters
from warren.actors.engines.declared.permissions import (
    Permissions,
    TopicPermissions,
    permissions_of,
    topic_permissions_of,
)
from warren.actors.engines.declared.policies import Policy
from warren.actors.engines.declared.texts import check_short_string, check_utf8, is_text
from warren.actors.engines.declared.users import Users
from warren.actors.engines.declared.vhost_definitions import (
    NOTHING_REMOVED,
    Removed,
    VhostDefinitions,
    is_builtin,
    is_kept,
)
from warren.actors.engines.declared.vhost_metadata import VhostMetadata
from warren.actors.engines.errors import ArgumentsError, NotFoundError, RefusedError
from warren.storage.errors import DataError, StorageError, shortly
from warren.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from warren.actors.engines.declared.definitions_json import Imported

DEFAULT_VHOST: Final = "/"
SLICE: Final = 100
"""Definitions that an import reads or declares at a time: about 10 ms of work, and one sync."""


@attrs.define(eq=False, repr=False)
class Definitions:
    """All declarations of one node. Created by :meth:`open`, or empty for a node without a disk.

    One caller at a time; a vhost's ``routing`` may be read by any thread, for as long as the vhost is there.
    """

    _file: DefinitionsFile | None = None
    _random: Callable[[int], bytes] = bytes
    """Returns as many random bytes, for salts; only a node without a disk uses these zeros."""
    _notes: ChangeNotes = attrs.field(init=False, factory=ChangeNotes)
    """The changes since the last successful save, and the undo steps since :meth:`begin`."""
    users: Users = attrs.field(init=False)
    parameters: Parameters = attrs.field(init=False)
    _metadata: NotedTable[str, VhostMetadata] = attrs.field(init=False)
    _vhosts: dict[str, VhostDefinitions] = attrs.field(init=False, factory=dict)
    _begun_at: int = attrs.field(init=False, default=0)
    """The number of changes that were noted before :meth:`begin`; :meth:`undo` leaves them."""
    _passed_over: list[tuple[str, dict[str, Any]]] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        self.users = Users(self._random, self._notes)
        self.parameters = Parameters(self._notes)
        self._metadata = NotedTable(self._notes, "vhost", lambda name, metadata: {"name": name} | metadata.in_file())
        snapshot = None if self._file is None else self._file.load()
        if self._file is None or snapshot is None:
            self.declare_vhost(DEFAULT_VHOST, VhostMetadata(description="Default virtual host"))
        else:
            self._restore(snapshot, self._file.path)
        if snapshot is None or "users" not in snapshot:
            self.users.add_default(DEFAULT_VHOST if DEFAULT_VHOST in self._vhosts else None)
        self.begin()

    @classmethod
    def open(
        cls, files: FileSystem, directory: str, random: Callable[[int], bytes], *, sync: bool = True
    ) -> Definitions:
        """Load the definitions saved in a node's data directory; if there are no saved ones, an empty vhost ``/``.

        Only reads. ``random``: returns as many random bytes, for passwords' salts. ``sync``: whether saved changes
        survive a power loss. Raises :class:`DataError` if the files are damaged.
        """
        return cls(DefinitionsFile(files, directory, sync), random)

    def _restore(self, snapshot: Snapshot, path: str) -> None:
        declare: dict[str, Callable[[Any], object]] = {
            "vhosts": lambda vhost: self.declare_vhost(
                vhost["name"], VhostMetadata.from_json(vhost), named_by_node=True
            ),
            "users": lambda user: self.users.put(self.users.from_json(user)),
            "permissions": lambda item: self.grant(item["user"], item["vhost"], permissions_of(item)),
            "topic_permissions": lambda item: self.grant_topics(
                item["user"], item["vhost"], item["exchange"], topic_permissions_of(item)
            ),
            "policies": lambda policy: self.set_policy(Policy.from_json("policy", policy)),
            "operator_policies": lambda policy: self.set_policy(Policy.from_json("operator_policy", policy)),
            "parameters": lambda item: self.set_parameter(
                item["vhost"], item["component"], item["name"], item["value"]
            ),
            "global_parameters": lambda item: self.parameters.set_global(item["name"], item["value"]),
            "exchanges": lambda exchange: self.declare_exchange(ExchangeDeclaration.from_json(exchange)),
            "queues": lambda queue: self.declare_queue(QueueDeclaration.from_json(queue), named_by_node=True),
            "bindings": lambda binding: self.bind(Binding.from_json(binding)),
        }
        for part, declare_one in declare.items():
            for definition in snapshot.get(part, ()):
                try:
                    declare_one(definition)
                except (RefusedError, KeyError, TypeError) as error:
                    if not self._may_pass_over(definition):
                        raise DataError(
                            path, None, f"definitions that contradict each other: {shortly(str(error))}"
                        ) from error
                    self._passed_over.append((part, definition))
        self._notes.changes.clear()

    @property
    def torn(self) -> DataError | None:
        """The end of the log, if its last record is incomplete."""
        return None if self._file is None else self._file.torn

    def _may_pass_over(self, definition: Any) -> bool:
        """Whether this definition or its parent contains invalid text."""
        if not isinstance(definition, dict):
            return False
        skipped = [
            (entry.get("vhost"), entry.get("name"))
            for part, entry in self._passed_over
            if part in ("exchanges", "queues")
        ]
        ends = [(definition.get("vhost"), definition.get(end)) for end in ("source", "destination")]
        return not is_text(definition) or any(end in skipped for end in ends)

    @property
    def passed_over(self) -> list[str]:
        """The definitions in the files that were skipped."""
        return [f"{part}: {json.dumps(definition):.200}" for part, definition in self._passed_over]

    # ── vhosts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def vhosts(self) -> list[str]:
        """In the order in which they were declared."""
        return list(self._vhosts)

    def vhost(self, name: str) -> VhostDefinitions:
        """Raises :class:`NotFoundError`."""
        vhost = self._vhosts.get(name)
        if vhost is None:
            raise NotFoundError(f"no vhost '{name}'")
        return vhost

    def declare_vhost(self, name: str, metadata: VhostMetadata | None = None, *, named_by_node: bool = False) -> bool:
        """Declare a vhost; return whether it is new. ``metadata``: for a new vhost.

        ``named_by_node``: the name may be bytes that are not UTF-8, as of a directory on the disk.
        """
        check_short_string("a vhost's name", name)
        if not name:
            raise ArgumentsError("a vhost needs a name")
        if name in self._vhosts:
            return False
        if not named_by_node:
            check_utf8("a vhost's name", name)
        self._metadata.put(name, VhostMetadata() if metadata is None else metadata)
        self._vhosts[name] = VhostDefinitions(name, self._notes, self._random)
        self._notes.undo.append(lambda: self._vhosts.pop(name))
        return True

    def metadata(self, vhost: str) -> VhostMetadata:
        """Return a vhost's metadata. Raises :class:`NotFoundError`."""
        return self._metadata.get(self.vhost(vhost).name) or VhostMetadata()

    def describe_vhost(self, vhost: str, metadata: VhostMetadata) -> None:
        """Set a vhost's metadata. Raises :class:`NotFoundError`."""
        self._metadata.put(self.vhost(vhost).name, metadata)

    def delete_vhost(self, name: str) -> Removed:
        """Delete a vhost, if it exists, with everything in it, its permissions and its parameters."""
        vhost = self._vhosts.get(name)
        if vhost is None:
            return NOTHING_REMOVED
        self.users.forget_vhost(name)
        self.parameters.forget_vhost(name)
        removed = vhost.delete_all()
        del self._vhosts[name]
        self._notes.undo.append(lambda: self._vhosts.__setitem__(name, vhost))
        self._metadata.drop(name)
        return removed

    # ── what is in them: see VhostDefinitions ───────────────────────────────────────────────────────────────────

    def declare_queue(self, declaration: QueueDeclaration, *, named_by_node: bool = False) -> bool:
        """Declare a queue; return whether it is new. ``named_by_node``: its name may be a reserved one.

        Each new stream gets a new topic, so it does not see what a deleted stream left in the files.
        """
        if declaration.is_stream and not declaration.topic:
            from warren.actors.engines.topics.names import stream_topic

            declaration = attrs.evolve(declaration, topic=stream_topic(declaration.name, self._random(8)))
        return self.vhost(declaration.vhost).declare_queue(declaration, named_by_node=named_by_node)

    def declare_exchange(self, declaration: ExchangeDeclaration) -> bool:
        """Declare an exchange; return whether it is new."""
        return self.vhost(declaration.vhost).declare_exchange(declaration)

    def bind(self, binding: Binding) -> bool:
        """Declare a binding; return whether it is new."""
        return self.vhost(binding.vhost).bind(binding)

    def unbind(self, binding: Binding) -> Removed:
        """Remove a binding, if it exists, and its source, if that is auto-delete and has no other binding."""
        return self.vhost(binding.vhost).unbind(binding)

    # ── users and parameters: see Users, Parameters ─────────────────────────────────────────────────────────────

    def grant(self, user: str, vhost: str, permissions: Permissions) -> bool:
        """Grant a user permissions in a vhost; return whether they changed. Raises :class:`NotFoundError`."""
        return self.users.grant(user, self.vhost(vhost).name, permissions)

    def grant_topics(self, user: str, vhost: str, exchange: str, permissions: TopicPermissions) -> bool:
        """Restrict what a user may do with a topic exchange, which need not exist; return whether that changed.

        Raises :class:`NotFoundError`.
        """
        return self.users.grant_topics(user, self.vhost(vhost).name, exchange, permissions)

    def set_parameter(self, vhost: str, component: str, name: str, value: Any) -> bool:
        """Return whether the value changed. Raises :class:`NotFoundError` if the vhost does not exist."""
        return self.parameters.set(self.vhost(vhost).name, component, name, value)

    # ── policies: see VhostPolicies ─────────────────────────────────────────────────────────────────────────────

    def set_policy(self, policy: Policy) -> bool:
        """Set a policy or operator policy; return whether that changed anything."""
        return self.vhost(policy.vhost).policies.put(policy)

    # ── on disk ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_saved(self) -> bool:
        """Whether all durable definitions are known to be safe. May be false after opening."""
        return not self._notes.changes and (self._file is None or (self._file.is_safe and self._file.is_known))

    def begin(self) -> None:
        """Begin a group of changes that :meth:`undo` undoes."""
        self._notes.undo.clear()
        self._begun_at = len(self._notes.changes)

    def undo(self) -> None:
        """Undo what was done since :meth:`begin` or the last successful save, in memory and on the disk.

        If that fails on the disk, the next save does it.
        """
        steps = self._notes.undo.copy()
        for step in reversed(steps):
            step()
        del self._notes.changes[self._begun_at :]
        self.begin()
        if self._file is not None and not self._file.is_known:
            with contextlib.suppress(StorageError):
                self.save()

    def save(self) -> None:
        """Write the changes. On return they survive a power loss. Raises :class:`StorageError`."""
        if self._file is not None and not self.is_saved:
            self._file.save(self._notes.changes, self._snapshot)
        self._notes.changes.clear()
        self.begin()

    def _snapshot(self) -> Snapshot:
        """All durable definitions."""
        vhosts = self._vhosts.values()
        snapshot: Snapshot = {
            "vhosts": [{"name": vhost.name} | self.metadata(vhost.name).in_file() for vhost in vhosts],
            **self.users.to_json(),
            "policies": [policy.to_json() for vhost in vhosts for policy in vhost.policies.all("policy")],
            "operator_policies": [
                policy.to_json() for vhost in vhosts for policy in vhost.policies.all("operator_policy")
            ],
            **self.parameters.to_json(),
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
        from warren.actors.engines.declared.definitions_json import export_node, export_vhost

        if vhost is not None:
            return export_vhost(self.vhost(vhost), self.parameters)
        return export_node(self._vhosts.values(), self.metadata, self.users, self.parameters)

    def import_definitions(self, document: Mapping[str, Any], vhost: str | None = None) -> Imported:
        """As :meth:`importing`, all slices at once."""
        from warren.actors.engines.declared.definitions_json import Imported

        return Imported.join(self.importing(document, vhost))

    def importing(self, document: Mapping[str, Any], vhost: str | None = None) -> Iterator[Imported]:
        """Add the definitions of RabbitMQ's JSON to the existing ones; if ``vhost`` is given, to that vhost.

        Each step reads or declares at most :data:`SLICE` definitions, and yields what it declared. Before anything is
        declared, raises :class:`DefinitionsError`, which lists all problems: a queue or an exchange that exists with
        other properties, a definition of an unknown vhost.
        """
        from warren.actors.engines.declared.definitions_json import DefinitionsError, Imported, Plan

        plan = Plan(self._vhosts, vhost, self.users)
        for count, _ in enumerate(plan.read(document), 1):
            if count % SLICE == 0:
                yield Imported()
        if plan.problems:
            raise DefinitionsError(plan.problems)
        new_vhosts = [name for name in plan.vhosts if self.declare_vhost(name)]
        for name, metadata in plan.vhosts.items():
            if metadata is not None:
                self.describe_vhost(name, metadata)
        access = plan.access
        imported = Imported(
            vhosts=tuple(new_vhosts),
            users=tuple(name for name, user in access.users.items() if self.users.put(user)),
            permissions=tuple(key for key, granted in access.permissions.items() if self.grant(*key, granted)),
            topic_permissions=tuple(
                key for key, granted in access.topic_permissions.items() if self.grant_topics(*key, granted)
            ),
            parameters=tuple(key for key, value in access.parameters.items() if self.set_parameter(*key, value)),
            global_parameters=tuple(
                name for name, value in access.global_parameters.items() if self.parameters.set_global(name, value)
            ),
            policies=tuple(policy for policy in plan.policies if self.set_policy(policy)),
            skipped=tuple(plan.skipped),
            kept=access.without_effect,
            ignored=plan.ignored,
        )
        planned = [*plan.exchanges.values(), *plan.queues.values(), *plan.bindings]
        for at in range(0, len(planned), SLICE):
            items = planned[at : at + SLICE]
            imported = attrs.evolve(
                imported,
                exchanges=tuple(x for x in items if isinstance(x, ExchangeDeclaration) and self.declare_exchange(x)),
                queues=tuple(x for x in items if isinstance(x, QueueDeclaration) and self.declare_queue(x)),
                bindings=tuple(x for x in items if isinstance(x, Binding) and self.bind(x)),
            )
            if at + SLICE < len(planned):
                yield imported
                imported = Imported()
        yield imported

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if a vhost contradicts itself or its routing table."""
        for name, vhost in self._vhosts.items():
            if vhost.name != name:
                raise RuntimeError(f"vhost {vhost.name!r} under the name {name!r}")
            vhost.check_invariants()
        self.users.check_invariants(self._vhosts)
        self.parameters.check_invariants(self._vhosts)
