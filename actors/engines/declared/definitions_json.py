"""Definitions as RabbitMQ exports and imports them: ``rabbitmqctl export_definitions``, the management plugin's button.

Two shapes. A *whole node's* export has ``vhosts``, and each queue, exchange and binding names its vhost. A *single
vhost's* names no vhost; the importer chooses one.

These parts of an export have an effect here: vhosts, users, permissions, policies, exchanges, queues, bindings, and of
the parameters the limits of vhosts and those of the component ``operator_policy``, which are a broker's operator
policies. Other parameters are *kept*, and exported again. The numbers of kept and of unknown items are reported, so
that users know that these have no effect.

*Skipped*, as by a broker: queues and exchanges whose names begin with ``amq.``, and bindings with a missing end. (A
broker's own exports have such bindings: it omits internal exchanges, but not their bindings.)
A quorum queue is one in all that clients see; it is stored as a classic queue is.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from warren.actors.engines.declared.access_plan import AccessPlan
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.changes import ChangeNotes
from warren.actors.engines.declared.exchanges import DEFAULT_EXCHANGE, RESERVED_PREFIX, Binding, ExchangeDeclaration
from warren.actors.engines.declared.parameters import Parameters
from warren.actors.engines.declared.policies import Policy
from warren.actors.engines.declared.queue_arguments import QUORUM
from warren.actors.engines.declared.stream_arguments import STREAM
from warren.actors.engines.declared.texts import check_short_string, check_utf8
from warren.actors.engines.declared.users import Users
from warren.actors.engines.declared.vhost_definitions import VhostDefinitions, is_builtin
from warren.actors.engines.declared.vhost_metadata import VhostMetadata
from warren.actors.engines.errors import ArgumentsError, PreconditionFailedError, RefusedError
from warren.queue_index.message.amqp_tables import table_to_json
from warren.storage.errors import shortly

BROKER_VERSION: Final = "3.10.8"
"""The version in an export. A broker infers the shape of some parts from it."""

NODE_PARTS: Final = frozenset({"vhosts", "users", "permissions", "topic_permissions", "global_parameters"})
"""The parts that only a whole node's definitions have."""
OWN_PARTS: Final = NODE_PARTS | {"policies", "parameters", "exchanges", "queues", "bindings"}

_UNDEFINED: Final = "undefined"
"""How a broker exports an argument without a value. It imports that as a text, and does not accept ``null``."""
_EXACT_ARGUMENTS: Final = "exact_arguments"

_PROBLEM_CHARACTERS: Final = 500
"""A sentence with four names of 127 characters each is not cut."""


class DefinitionsError(PreconditionFailedError):
    """Definitions that cannot be imported; nothing of them was. ``problems`` has a sentence for each reason."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(shortly(problem, _PROBLEM_CHARACTERS) for problem in problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "; ".join(self.problems)


@attrs.frozen(kw_only=True)
class Imported:
    """What an import did: what is new, and what was left out."""

    vhosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    """New and changed ones; so are the following fields."""
    permissions: tuple[tuple[str, str], ...] = ()
    """(user, vhost)"""
    topic_permissions: tuple[tuple[str, str, str], ...] = ()
    """(user, vhost, exchange)"""
    parameters: tuple[tuple[str, str, str], ...] = ()
    """(vhost, component, name)"""
    global_parameters: tuple[str, ...] = ()
    policies: tuple[Policy, ...] = ()
    """Operator policies too."""
    exchanges: tuple[ExchangeDeclaration, ...] = ()
    queues: tuple[QueueDeclaration, ...] = ()
    bindings: tuple[Binding, ...] = ()
    skipped: tuple[str, ...] = ()
    """A sentence for each queue or exchange with a reserved name, and each binding that lacks an end."""
    kept: Mapping[str, int] = attrs.field(factory=dict)
    """Numbers of items that have no effect here and are exported again: ``{"parameters": 2}``."""
    ignored: Mapping[str, int] = attrs.field(factory=dict)
    """Numbers of unknown items: ``{"topics": 3}``."""

    @classmethod
    def join(cls, slices: Iterable[Imported]) -> Imported:
        """Join the results of an import's slices."""
        parts = list(slices)
        joined: dict[str, Any] = {}
        for field in attrs.fields(cls):
            values = [getattr(part, field.name) for part in parts]
            if field.name in {"kept", "ignored"}:
                joined[field.name] = {name: count for value in values for name, count in value.items()}
            else:
                joined[field.name] = tuple(itertools.chain.from_iterable(values))
        return cls(**joined)


# ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def export_node(
    vhosts: Iterable[VhostDefinitions],
    metadata: Callable[[str], VhostMetadata],
    users: Users,
    parameters: Parameters,
) -> dict[str, Any]:
    """A whole node's definitions, without exclusive queues, which no import could restore."""
    exported = list(vhosts)
    return {
        "rabbit_version": BROKER_VERSION,
        "rabbitmq_version": BROKER_VERSION,
        **users.to_json(),
        "vhosts": [
            {
                "name": vhost.name,
                "limits": [list(limit) for limit in parameters.vhost_limits(vhost.name).items()],
                "metadata": metadata(vhost.name).to_json(),
            }
            for vhost in exported
        ],
        "parameters": parameters.in_vhost() + [item for vhost in exported for item in _operator_policies(vhost)],
        "global_parameters": parameters.of_node(),
        "policies": [item for vhost in exported for item in _policies(vhost)],
        "queues": [item for vhost in exported for item in _queues(vhost)],
        "exchanges": [item for vhost in exported for item in _exchanges(vhost)],
        "bindings": [item for vhost in exported for item in _bindings(vhost)],
    }


def export_vhost(vhost: VhostDefinitions, parameters: Parameters) -> dict[str, Any]:
    """A single vhost's definitions, which do not name the vhost."""
    parts = {
        "parameters": parameters.in_vhost(vhost.name) + _operator_policies(vhost),
        "policies": _policies(vhost),
        "queues": _queues(vhost),
        "exchanges": _exchanges(vhost),
        "bindings": _bindings(vhost),
    }
    for items in parts.values():
        for item in items:
            del item["vhost"]
    return {"rabbit_version": BROKER_VERSION, **parts}


def _operator_policies(vhost: VhostDefinitions) -> list[dict[str, Any]]:
    return [policy.to_parameter() for policy in vhost.policies.all("operator_policy")]


def _policies(vhost: VhostDefinitions) -> list[dict[str, Any]]:
    return [policy.to_json() for policy in vhost.policies.all("policy")]


def _queues(vhost: VhostDefinitions) -> list[dict[str, Any]]:
    items = []
    for queue in vhost.queues():
        if not queue.exclusive:
            items.append(queue.to_json() | {"type": queue.queue_type} | _exported(queue.arguments))
            items[-1].pop("topic", None)
    return items


def _exchanges(vhost: VhostDefinitions) -> list[dict[str, Any]]:
    return [
        exchange.to_json() | _exported(exchange.arguments)
        for exchange in vhost.exchanges()
        if not is_builtin(exchange.name)
    ]


def _bindings(vhost: VhostDefinitions) -> list[dict[str, Any]]:
    return [
        binding.to_json() | _exported(binding.arguments)
        for binding in vhost.bindings()
        if binding.destination_type == "exchange" or not vhost.queue(binding.destination).exclusive
    ]


def _exported(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as a broker exports and imports them, with :data:`_UNDEFINED` for an argument without a value.

    If there is one, the exact arguments are added under another key, which a broker ignores.
    """
    exact: Any = table_to_json(arguments)
    plain = _without_null(exact)
    return {"arguments": plain} if plain == exact else {"arguments": plain, _EXACT_ARGUMENTS: exact}


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_null(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    return _UNDEFINED if value is None else value


def _with_exact_arguments(definition: dict[str, Any]) -> dict[str, Any]:
    """A definition with its exact arguments, unless the plain ones were edited since the export."""
    exact = definition.pop(_EXACT_ARGUMENTS, None)
    if isinstance(exact, dict) and _without_null(exact) == definition.get("arguments"):
        definition["arguments"] = exact
    return definition


# ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class Plan:
    """What an import of a document would change, and in ``problems`` why it is not allowed."""

    _present: Mapping[str, VhostDefinitions]
    _vhost: str | None
    """The vhost that gets everything; ``None``: each definition names its own."""
    _users: Users
    vhosts: dict[str, VhostMetadata | None] = attrs.field(init=False, factory=dict)
    """The vhosts, including existing ones, with their metadata."""
    access: AccessPlan = attrs.field(init=False)
    policies: list[Policy] = attrs.field(init=False, factory=list)
    exchanges: dict[tuple[str, str], ExchangeDeclaration] = attrs.field(init=False, factory=dict)
    queues: dict[tuple[str, str], QueueDeclaration] = attrs.field(init=False, factory=dict)
    bindings: dict[Binding, None] = attrs.field(init=False, factory=dict)
    problems: list[str] = attrs.field(init=False, factory=list)
    skipped: list[str] = attrs.field(init=False, factory=list)
    ignored: dict[str, int] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.access = AccessPlan(self._users, self._has_vhost)

    def read(self, document: Any) -> Iterator[None]:
        """Go through a document, one definition at a time."""
        if not isinstance(document, Mapping):
            self.problems.append(f"definitions are a JSON object, not {document!r:.100}")
            return
        parts = OWN_PARTS if self._vhost is None else OWN_PARTS - NODE_PARTS
        self.ignored = {
            part: len(items)
            for part, items in document.items()
            if part not in parts and part != "vhosts" and isinstance(items, list | dict) and items
        }
        if self._vhost is not None and self._vhost not in self._present:
            self.problems.append(f"no vhost '{self._vhost}'")
            return
        for part, plan, has_vhost in (
            ("vhosts", self._plan_vhost, False),
            ("users", self.access.plan_user, False),
            ("permissions", self.access.plan_permission, True),
            ("topic_permissions", self.access.plan_topic_permission, True),
            ("policies", self._plan_policy, True),
            ("parameters", self._plan_parameter, True),
            ("global_parameters", self.access.plan_global_parameter, False),
            ("exchanges", self._plan_exchange, True),
            ("queues", self._plan_queue, True),
            ("bindings", self._plan_binding, True),
        ):
            for item in self._items(document, part) if part in parts else ():
                self._attempt(item, plan, has_vhost=has_vhost)
                yield

    def _items(self, document: Mapping[str, Any], part: str) -> list[Any]:
        items = document.get(part, [])
        if not isinstance(items, list):
            self.problems.append(f"{part} are a list, not {items!r:.100}")
            return []
        return items

    def _attempt(self, item: Any, plan: Callable[[dict[str, Any]], None], *, has_vhost: bool) -> None:
        if not isinstance(item, Mapping):
            self.problems.append(f"a definition is a JSON object, not {item!r:.100}")
            return
        try:
            json.dumps(item, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            self.problems.append(f"definitions that are not JSON: {error}")
            return
        definition = _with_exact_arguments(dict(item))
        if self._vhost is not None:
            definition["vhost"] = self._vhost
        elif has_vhost and "vhost" not in definition:
            self.problems.append(f"{_called(definition)} says no vhost: import it into one")
            return
        try:
            plan(definition)
        except RefusedError as error:
            self.problems.append(str(error))

    def _plan_vhost(self, definition: dict[str, Any]) -> None:
        name = definition.get("name")
        check_short_string("a vhost's name", name)
        if not name:
            raise ArgumentsError("a vhost needs a name")
        if name not in self._present:
            check_utf8("a vhost's name", name)
        self.vhosts[str(name)] = VhostMetadata.from_json(definition)

    def _plan_parameter(self, definition: dict[str, Any]) -> None:
        if definition.get("component") == "operator_policy":
            self._take_policy(Policy.from_parameter(definition))
        else:
            self.access.plan_parameter(definition)

    def _plan_policy(self, definition: dict[str, Any]) -> None:
        self._take_policy(Policy.from_json("policy", definition))

    def _take_policy(self, policy: Policy) -> None:
        if not self._has_vhost(policy.vhost):
            self.problems.append(f"{policy}: there is no such vhost")
        self.policies.append(policy)

    def _plan_exchange(self, definition: dict[str, Any]) -> None:
        exchange = ExchangeDeclaration.from_json(definition)
        if not is_builtin(exchange.name) and self._is_welcome(exchange):
            self._merge(exchange, self.exchanges, self._exchange(exchange.vhost, exchange.name))

    def _plan_queue(self, definition: dict[str, Any]) -> None:
        arguments = definition.get("arguments") or {}
        kind = definition.get("type") or "classic"
        if isinstance(arguments, Mapping) and kind == "classic":
            kind = arguments.get("x-queue-type", "classic")
        if kind in (QUORUM, STREAM) and isinstance(arguments, Mapping):
            arguments = {**arguments, "x-queue-type": kind}
        elif kind != "classic":
            raise ArgumentsError(
                f"{_called(definition)} is of type {kind!r:.100}; a queue is classic, a quorum queue or a stream"
            )
        definition.pop("topic", None)  # each stream has its own
        queue = QueueDeclaration.from_json({"auto_delete": False} | definition | {"arguments": arguments})
        if not queue.name:
            raise ArgumentsError("a queue needs a name")
        queue.check_new()
        if self._is_welcome(queue):
            self._merge(queue, self.queues, self._queue(queue.vhost, queue.name))

    def _is_welcome(self, item: QueueDeclaration | ExchangeDeclaration) -> bool:
        if item.name.startswith(RESERVED_PREFIX):
            self.skipped.append(f"{item}: the name is the node's own")
        elif not self._has_vhost(item.vhost):
            self.problems.append(f"{item}: there is no such vhost")
        else:
            return True
        return False

    def _merge(self, item: Any, planned: dict[tuple[str, str], Any], existing: Any) -> None:
        if existing is None:
            planned[item.vhost, item.name] = item
        elif (why := existing.equivalent(item)) is not None:
            self.problems.append(why)

    def _plan_binding(self, definition: dict[str, Any]) -> None:
        binding = Binding.from_json(definition)
        if binding.source == DEFAULT_EXCHANGE:
            return  # every queue has it
        exchange = self._exchange(binding.vhost, binding.source)
        if not self._has_vhost(binding.vhost):
            self.problems.append(f"{binding}: there is no such vhost")
        elif exchange is None:
            self.skipped.append(f"{binding}: there is no such exchange")
        elif (self._queue if binding.destination_type == "queue" else self._exchange)(
            binding.vhost, binding.destination
        ) is None or binding.destination == DEFAULT_EXCHANGE:
            self.skipped.append(f"{binding}: there is no such {binding.destination_type}")
        else:
            binding.check_for(exchange)
            self.bindings[binding] = None

    def _has_vhost(self, name: str) -> bool:
        return name in self._present or name in self.vhosts

    def _exchange(self, vhost: str, name: str) -> ExchangeDeclaration | None:
        planned = self.exchanges.get((vhost, name))
        if planned is None and is_builtin(name) and vhost not in self._present and vhost in self.vhosts:
            return _BUILTIN.get(name)
        present = self._present.get(vhost)
        if planned is None and present is not None and present.has("exchange", name):
            return present.exchange(name)
        return planned

    def _queue(self, vhost: str, name: str) -> QueueDeclaration | None:
        present = self._present.get(vhost)
        if present is not None and present.has("queue", name):
            return present.queue(name)
        return self.queues.get((vhost, name))


_BUILTIN: Final = {exchange.name: exchange for exchange in VhostDefinitions("", ChangeNotes()).exchanges()}
"""The exchanges of a vhost that does not exist yet."""


def _called(definition: Mapping[str, Any]) -> str:
    vhost = f" in vhost '{definition['vhost']!s:.100}'" if "vhost" in definition else ""
    return f"'{definition.get('name', definition.get('source'))!s:.100}'{vhost}"
