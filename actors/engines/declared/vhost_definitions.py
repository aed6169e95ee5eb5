"""The definitions of one vhost: its queues, exchanges, bindings and policies, and which of them are deleted together.

A *redeclaration* with the same properties does nothing; with other properties it is refused. *Deleting* a queue or an
exchange also removes its bindings, and each auto-delete exchange that thereby loses its last binding as a source, and
so on. A :class:`Removed` lists what was removed.

Durable definitions survive a restart: durable exchanges and queues (except exclusive queues), bindings whose ends are
both durable, and all policies. Their changes are noted (:mod:`warren.actors.engines.declared.changes`) to be saved.

Invariants: a binding's ends exist; each binding is listed with its source, with its destination and in the routing
table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final

import attrs

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.changes import ChangeNotes
from warren.actors.engines.declared.exchanges import (
    ALTERNATE_EXCHANGE,
    BUILTIN_EXCHANGES,
    DEFAULT_EXCHANGE,
    RESERVED_PREFIX,
    Binding,
    DestinationType,
    ExchangeDeclaration,
    builtin_exchanges,
)
from warren.actors.engines.declared.missing_targets import MissingTargets
from warren.actors.engines.declared.policies import Policy
from warren.actors.engines.declared.queue_arguments import EffectiveArguments, effective
from warren.actors.engines.declared.routing import RoutingTable
from warren.actors.engines.declared.vhost_policies import VhostPolicies
from warren.actors.engines.errors import (
    AccessRefusedError,
    ArgumentsError,
    NotFoundError,
    PreconditionFailedError,
    ResourceLockedError,
)


@attrs.frozen
class Removed:
    """What a deletion removed."""

    queues: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()
    bindings: int = 0


NOTHING_REMOVED: Final = Removed()


@attrs.define(eq=False, repr=False)
class VhostDefinitions:
    """One vhost's definitions. One caller at a time; any thread may read ``routing``."""

    name: str
    _notes: ChangeNotes
    """Collects the changes of durable definitions, and the undo steps of all definitions."""
    _random: Callable[[int], bytes] = bytes
    """Returns as many random bytes."""
    missing_targets: MissingTargets = attrs.field(init=False)
    routing: RoutingTable = attrs.field(init=False)
    policies: VhostPolicies = attrs.field(init=False)
    _queues: dict[str, QueueDeclaration] = attrs.field(init=False, factory=dict)
    _exchanges: dict[str, ExchangeDeclaration] = attrs.field(init=False, factory=dict)
    _by_source: dict[str, dict[Hashable, Binding]] = attrs.field(init=False, factory=dict)
    """Every exchange is in it, with or without bindings."""
    _by_destination: dict[tuple[DestinationType, str], dict[Hashable, Binding]] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.missing_targets = MissingTargets(self.name, self.has)
        self.routing = RoutingTable(self.name, self.missing_targets.note_drop, self._random)
        self.policies = VhostPolicies(self._notes, self._policies_changed)
        for exchange in builtin_exchanges(self.name):
            self._put_exchange(exchange)

    # ── what there is ───────────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> QueueDeclaration:
        """Raises :class:`NotFoundError`."""
        if (queue := self._queues.get(name)) is None:
            raise NotFoundError(f"no queue '{name}' in vhost '{self.name}'")
        return queue

    def exchange(self, name: str) -> ExchangeDeclaration:
        """Raises :class:`NotFoundError`."""
        if (exchange := self._exchanges.get(name)) is None:
            raise NotFoundError(f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def has(self, kind: DestinationType, name: str) -> bool:
        return name in (self._queues if kind == "queue" else self._exchanges)

    def has_ends(self, binding: Binding) -> bool:
        """Whether both ends of a binding exist.

        Raises :class:`AccessRefusedError` for the default exchange.
        """
        self._check_ends(binding)
        return self.has("exchange", binding.source) and self.has(binding.destination_type, binding.destination)

    def has_binding(self, binding: Binding) -> bool:
        """Whether a binding exists; raises as :meth:`has_ends` does."""
        self._check_ends(binding)
        return binding.identity in self._by_source.get(binding.source, ())

    def check_targets(self, declared: QueueDeclaration | ExchangeDeclaration | Policy) -> None:
        """Log the missing targets that it, or its policies, name."""
        match declared:
            case QueueDeclaration(name=name):
                arguments = effective(declared, self.policies.of("queue", name).definition)
                self.missing_targets.check(declared, arguments, None)
            case ExchangeDeclaration():
                self.missing_targets.check(declared, None, self._alternate_of(declared))
            case Policy(name=name, definition=definition):
                arguments = effective(EffectiveArguments(name, {}), definition)
                alternate = definition.get(ALTERNATE_EXCHANGE)
                self.missing_targets.check(declared, arguments, alternate)

    def queues(self) -> list[QueueDeclaration]:
        """In the order in which they were declared."""
        return list(self._queues.values())

    def exchanges(self) -> list[ExchangeDeclaration]:
        """The builtin ones first, then in the order in which they were declared."""
        return list(self._exchanges.values())

    def bindings(self) -> list[Binding]:
        """All bindings except those of the default exchange."""
        return [binding for bindings in self._by_source.values() for binding in bindings.values()]

    def bindings_from(self, exchange: str) -> list[Binding]:
        """The bindings from an exchange, also from the default exchange, to which every queue is bound."""
        if exchange == DEFAULT_EXCHANGE:
            return [self._implicit(queue) for queue in self._queues]
        return list(self._by_source.get(exchange, {}).values())

    def bindings_to(self, kind: DestinationType, name: str) -> list[Binding]:
        """The bindings to a queue or an exchange, also that from the default exchange."""
        implicit = [self._implicit(name)] if kind == "queue" and name in self._queues else []
        return implicit + list(self._by_destination.get((kind, name), {}).values())

    def _implicit(self, queue: str) -> Binding:
        return Binding(vhost=self.name, source=DEFAULT_EXCHANGE, destination=queue, routing_key=queue)

    # ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────

    def declare_queue(self, declaration: QueueDeclaration, *, named_by_node: bool = False) -> bool:
        """Declare a queue; return whether it is new.

        Raises :class:`PreconditionFailedError` if the existing queue differs, :class:`ResourceLockedError` if one of
        the two is exclusive, :class:`AccessRefusedError` for a reserved name that is not the node's choice.
        """
        if (existing := self._queues.get(declaration.name)) is not None:
            if (difference := existing.equivalent(declaration)) is not None:
                error = PreconditionFailedError if existing.exclusive == declaration.exclusive else ResourceLockedError
                raise error(difference)
            return False
        if not declaration.name:
            raise ArgumentsError("a queue needs a name")
        if not named_by_node:
            self._check_name("queue", declaration.name)
        declaration.check_new()
        if is_kept(declaration):
            self._notes.note("put", "queue", declaration.to_json())
        self._put_queue(declaration)
        return True

    def delete_queue(self, name: str) -> Removed:
        """Delete a queue, if it exists, with its bindings and their auto-delete exchanges."""
        if (declaration := self._queues.get(name)) is None:
            return NOTHING_REMOVED
        removed = self._unbind_all(self._by_destination.get(("queue", name), {}).values())
        self._remove_queue(declaration)
        return attrs.evolve(removed, queues=(name,))

    def _remove_queue(self, declaration: QueueDeclaration) -> None:
        self._drop_queue(declaration)
        if is_kept(declaration):
            self._notes.note("drop", "queue", declaration.to_json())

    def _put_queue(self, declaration: QueueDeclaration) -> None:
        self._queues[declaration.name] = declaration
        self.routing.add_queue(declaration.name)
        self._notes.undo.append(lambda: self._drop_queue(declaration))

    def _drop_queue(self, declaration: QueueDeclaration) -> None:
        del self._queues[declaration.name]
        self.routing.remove_queue(declaration.name)
        self.missing_targets.forget(declaration)
        self._notes.undo.append(lambda: self._put_queue(declaration))

    # ── exchanges ───────────────────────────────────────────────────────────────────────────────────────────────

    def declare_exchange(self, declaration: ExchangeDeclaration) -> bool:
        """Declare an exchange; return whether it is new.

        Raises :class:`PreconditionFailedError` if the existing exchange differs, :class:`AccessRefusedError` for a
        reserved name and for the default exchange.
        """
        if declaration.name == DEFAULT_EXCHANGE:
            raise AccessRefusedError("operation not permitted on the default exchange")
        if (existing := self._exchanges.get(declaration.name)) is not None:
            if (difference := existing.equivalent(declaration)) is not None:
                raise PreconditionFailedError(difference)
            return False
        self._check_name("exchange", declaration.name)
        if declaration.durable:
            self._notes.note("put", "exchange", declaration.to_json())
        self._put_exchange(declaration)
        return True

    def _put_exchange(self, declaration: ExchangeDeclaration) -> None:
        self._exchanges[declaration.name] = declaration
        self._by_source[declaration.name] = {}
        self.routing.add_exchange(declaration, self._alternate_of(declaration))
        self._notes.undo.append(lambda: self._drop_exchange(declaration))

    def _alternate_of(self, exchange: ExchangeDeclaration) -> str | None:
        """The alternate exchange of its declaration, or else of its policies."""
        if (declared := exchange.alternate_exchange) is not None:
            return declared
        return self.policies.of("exchange", exchange.name).definition.get(ALTERNATE_EXCHANGE)

    def _policies_changed(self) -> None:
        for exchange in self._exchanges.values():
            self.routing.set_alternate(exchange.name, self._alternate_of(exchange))

    def _remove_exchange(self, declaration: ExchangeDeclaration) -> None:
        self._drop_exchange(declaration)
        if declaration.durable and not is_builtin(declaration.name):
            self._notes.note("drop", "exchange", declaration.to_json())

    def _drop_exchange(self, declaration: ExchangeDeclaration) -> None:
        """Remove an exchange that is the source of no binding."""
        del self._exchanges[declaration.name]
        del self._by_source[declaration.name]
        self.routing.remove_exchange(declaration.name)
        self.missing_targets.forget(declaration)
        self._notes.undo.append(lambda: self._put_exchange(declaration))

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> Removed:
        """Delete an exchange, if it exists, with its bindings and their auto-delete exchanges.

        Raises :class:`PreconditionFailedError` if it is the source of a binding (``if_unused``), and
        :class:`AccessRefusedError` for an exchange that every vhost has.
        """
        self.check_deletable(name)
        if name not in self._exchanges:
            return NOTHING_REMOVED
        if if_unused and self._by_source[name]:
            raise PreconditionFailedError(f"exchange '{name}' in vhost '{self.name}' in use")
        doomed = [*self._by_source[name].values(), *self._by_destination.get(("exchange", name), {}).values()]
        return self._unbind_all(doomed, name)

    def check_deletable(self, exchange: str) -> None:
        """Raise :class:`AccessRefusedError` for an exchange that every vhost has."""
        if exchange == DEFAULT_EXCHANGE or exchange.startswith(RESERVED_PREFIX):
            raise AccessRefusedError(f"deletion of system exchange '{exchange}' in vhost '{self.name}' not allowed")

    # ── bindings ────────────────────────────────────────────────────────────────────────────────────────────────

    def bind(self, binding: Binding) -> bool:
        """Declare a binding; return whether it is new.

        Raises :class:`NotFoundError` if one of its ends is missing, :class:`ArgumentsError` if the exchange's type
        cannot have it, :class:`AccessRefusedError` for the default exchange.
        """
        self._check_ends(binding)
        source = self.exchange(binding.source)
        if binding.destination_type == "queue":
            self.queue(binding.destination)
        else:
            self.exchange(binding.destination)
        binding.check_for(source)
        if binding.identity in self._by_source[binding.source]:
            return False
        if self._is_durable(binding):
            self._notes.note("put", "binding", binding.to_json())
        self._put_binding(binding)
        return True

    def _put_binding(self, binding: Binding) -> None:
        self._by_source[binding.source][binding.identity] = binding
        to = (binding.destination_type, binding.destination)
        self._by_destination.setdefault(to, {})[binding.identity] = binding
        self.routing.add_binding(binding)
        self._notes.undo.append(lambda: self._drop_binding(binding))

    def unbind(self, binding: Binding) -> Removed:
        """Remove a binding, if it exists, and its source, if that is auto-delete and has no other binding.

        Raises :class:`AccessRefusedError` for the default exchange.
        """
        self._check_ends(binding)
        existing = self._by_source.get(binding.source, {}).get(binding.identity)
        return NOTHING_REMOVED if existing is None else self._unbind_all([existing])

    def _unbind_all(self, bindings: Iterable[Binding], exchange: str | None = None) -> Removed:
        """Remove bindings, ``exchange``, and each auto-delete exchange that loses its last binding."""
        waiting = deque(bindings)
        doomed = {} if exchange is None else {exchange: None}
        count = 0
        while waiting:
            binding = waiting.popleft()
            if not self._unbind(binding):
                continue  # removed already: it connects two exchanges that are deleted
            count += 1
            source = self._exchanges[binding.source]
            if source.auto_delete and not self._by_source[source.name]:
                doomed[source.name] = None
                waiting.extend(self._by_destination.get(("exchange", source.name), {}).values())
        for name in doomed:
            self._remove_exchange(self._exchanges[name])
        return Removed(exchanges=tuple(doomed), bindings=count)

    def _unbind(self, binding: Binding) -> bool:
        if binding.identity not in self._by_source[binding.source]:
            return False
        self._drop_binding(binding)
        if self._is_durable(binding):
            self._notes.note("drop", "binding", binding.to_json())
        return True

    def _drop_binding(self, binding: Binding) -> None:
        del self._by_source[binding.source][binding.identity]
        to = (binding.destination_type, binding.destination)
        del self._by_destination[to][binding.identity]
        if not self._by_destination[to]:
            del self._by_destination[to]
        self.routing.remove_binding(binding)
        self._notes.undo.append(lambda: self._put_binding(binding))

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def delete_all(self) -> Removed:
        """Delete everything, because the vhost is deleted. Returns what was declared in it."""
        bindings, queues, exchanges = self.bindings(), self.queues(), self.exchanges()
        for binding in bindings:
            self._unbind(binding)
        for queue in queues:
            self._remove_queue(queue)
        for exchange in exchanges:
            self._remove_exchange(exchange)
        self.policies.clear_all()
        declared = tuple(exchange.name for exchange in exchanges if not is_builtin(exchange.name))
        return Removed(tuple(queue.name for queue in queues), declared, len(bindings))

    # ── how ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_name(self, kind: DestinationType, name: str) -> None:
        if name.startswith(RESERVED_PREFIX):
            raise AccessRefusedError(f"{kind} name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'")

    @staticmethod
    def _check_ends(binding: Binding) -> None:
        if binding.source == DEFAULT_EXCHANGE or (
            binding.destination_type == "exchange" and binding.destination == DEFAULT_EXCHANGE
        ):
            raise AccessRefusedError("operation not permitted on the default exchange")

    def _is_durable(self, binding: Binding) -> bool:
        if not self._exchanges[binding.source].durable:
            return False
        if binding.destination_type == "queue":
            return is_kept(self._queues[binding.destination])
        return self._exchanges[binding.destination].durable

    def kept_bindings(self) -> list[Binding]:
        """The bindings that survive a restart."""
        return [binding for binding in self.bindings() if self._is_durable(binding)]

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the definitions contradict themselves or the routing table."""
        bindings = self.bindings()
        for binding in bindings:
            if binding.identity not in self._by_destination[binding.destination_type, binding.destination]:
                raise RuntimeError(f"{binding} is unknown to its destination")
            if not self.has(binding.destination_type, binding.destination) or binding.source not in self._exchanges:
                raise RuntimeError(f"{binding} leads from or to nothing")
        if sum(map(len, self._by_destination.values())) != len(bindings) or not all(self._by_destination.values()):
            raise RuntimeError("bindings by destination are not those by source")
        if set(self._by_source) != set(self._exchanges):
            raise RuntimeError("bindings of exchanges that are not there")
        self.routing.check_invariants(
            set(self._queues), set(self._exchanges), {binding.identity for binding in bindings}
        )


def is_kept(queue: QueueDeclaration) -> bool:
    """Whether a queue survives a restart; an exclusive one does not, because its owner is gone then."""
    return queue.durable and not queue.exclusive


def is_builtin(exchange: str) -> bool:
    """Whether every vhost has the exchange of that name."""
    return exchange == DEFAULT_EXCHANGE or exchange in BUILTIN_EXCHANGES
