"""RabbitMQ's transactions in Khepri's log, each a function with its variables: what each does to the metadata.

The function is compiled code, which is not run here. But it has a name, that of the function of RabbitMQ that it was
taken out of, and its variables are terms: records, names, paths, and functions like itself::

    {horus_fun, 'horus__<module>__-<function>/<arity>-fun-<n>-__<hash>', Beam, Arity, Functions, Names, Variables, _}

So a transaction is replayed by its name; all that RabbitMQ 4.0 to 4.3 have are here. Variables are distinguished by
their kind, because a compiler decides about their order. A function that checks whether a client may unbind is taken to
allow it. Changes by a policy leave definitions as they are, and the versions of payloads unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from warren.salvage.metadata.khepri_metadata import (
    EXCHANGES,
    PARAMETERS,
    PERMISSIONS,
    ROOT,
    USERS,
    VHOSTS,
    KhepriMetadata,
    bindings_in,
    path_of,
    path_of_binding,
)
from warren.salvage.metadata.khepri_tree import ANY_CHILD
from warren.storage.erlang_terms import Atom, Opaque, Term, encode
from warren.storage.errors import MessageError

_Value = TypeVar("_Value")
_NAME: Final = re.compile(r"horus__(rabbit_\w+?)__-?(\w+?)(?:_in_khepri|_v\d)?(?:_tx)?(?:/\d+-fun-\d+-)?__\d+")
_IF_EXISTS: Final = "with_fun"
"""The function that runs another one if a vhost or a user exists."""


@attrs.frozen
class _Function:
    """A function taken out of RabbitMQ's code, with its variables."""

    module: str
    name: str
    """Without the endings ``_in_khepri``, ``_tx`` and ``_v<n>``, in which versions differ."""
    variables: tuple[Any, ...]

    @classmethod
    def of(cls, term: Term) -> _Function:
        """Raises :class:`MessageError` if it is no function, or one of another application."""
        match term:
            case ("horus_fun", Atom() as name, _, _, _, _, [*variables], _) if match := _NAME.fullmatch(name):
                return cls(match[1], match[2], tuple(variables))
            case ("horus_fun", Atom() as name, *_):
                raise MessageError(f"an unknown transaction {name:.100}")
            case _:
                raise MessageError(f"{term!r:.100} in place of a transaction")

    def record(self, tag: str) -> tuple[Any, ...]:
        """The variable that is a record with this tag."""
        return self.first(value for value in self.variables if isinstance(value, tuple) and value[:1] == (tag,))

    def variable(self, kind: type[_Value]) -> _Value:
        """The variable of this kind."""
        return self.first(value for value in self.variables if isinstance(value, kind) and value != "undefined")

    def first(self, values: Iterator[_Value]) -> _Value:
        """Return the first value. Raises :class:`MessageError` if there is no value."""
        for value in values:
            return value
        raise MessageError(f"a transaction {self.module}:{self.name} without the expected variables")

    @property
    def inner(self) -> _Function:
        """The function among the variables."""
        return self.of(self.record("horus_fun"))


def replay_transaction(metadata: KhepriMetadata, term: Term) -> None:
    """Do what a transaction did. Raises :class:`MessageError` for one that is not known."""
    function = _Function.of(term)
    while function.name == _IF_EXISTS:
        kind = VHOSTS if function.module == "rabbit_db_vhost" else USERS
        if metadata.tree.get((ROOT, kind, function.variable(bytes))) is None:
            return
        function = function.inner
    effect = _EFFECTS.get((function.module, function.name))
    if effect is None:
        raise MessageError(f"an unknown transaction {function.module}:{function.name}")
    effect(metadata, function)


def _update_user(metadata: KhepriMetadata, function: _Function) -> None:
    path = (ROOT, USERS, function.variable(bytes))
    node, change = metadata.tree.get(path), function.inner
    if node is None:
        return
    tag, name, password_hash, tags, algorithm, limits, *rest = node.data
    match change.name:
        case "set_tags":
            tags = change.variable(list)
        case "change_password_hash":
            password_hash, algorithm = change.variable(bytes), change.variable(Atom)
        case "update_user_with_hash":
            password_hash, algorithm, tags = change.variable(bytes), change.variable(Atom), change.variable(list)
            limits = limits | next((value for value in change.variables if isinstance(value, dict)), {})
        case "validate_parameters_and_update_limit":
            limits = limits | change.variable(dict)
        case "clear_user_limits":
            limits = {
                key: value for key, value in dict(limits).items() if change.variables and key not in change.variables
            }
        case _:
            raise MessageError(f"an unknown change of a user, {change.module}:{change.name}")
    metadata.put(path, (tag, name, password_hash, tags, algorithm, limits, *rest))


def _set_permissions(metadata: KhepriMetadata, function: _Function) -> None:
    record = function.record("user_permission")
    _, user, vhost = record[1]
    metadata.put((ROOT, VHOSTS, vhost, PERMISSIONS, user), record)


def _set_topic_permissions(metadata: KhepriMetadata, function: _Function) -> None:
    record = function.record("topic_permission")
    _, (_, user, vhost), exchange = record[1]
    metadata.put((ROOT, VHOSTS, vhost, EXCHANGES, exchange, PERMISSIONS, user), record)


def _clear_permissions(metadata: KhepriMetadata, function: _Function) -> None:
    vhost = (ROOT, VHOSTS, function.variable(bytes))
    metadata.delete((*vhost, PERMISSIONS, ANY_CHILD))
    metadata.delete((*vhost, EXCHANGES, ANY_CHILD, PERMISSIONS, ANY_CHILD))


def _set_parameter(metadata: KhepriMetadata, function: _Function) -> None:
    key: tuple[Any, ...] = function.variable(tuple)
    value = function.first(value for value in function.variables if value is not key)
    vhost, component, name = key
    record = (Atom("runtime_parameters"), key, value)
    metadata.put((ROOT, VHOSTS, vhost, PARAMETERS, component, name), record)


def _change_binding(metadata: KhepriMetadata, function: _Function) -> None:
    """Bind or unbind: the bindings of the same ends and key are a set, at one path."""
    binding = function.record("binding")
    path = path_of_binding(binding)
    node = metadata.tree.get(path)
    bindings = [] if node is None or node.data is None else list(bindings_in(node.data))
    if function.name.startswith("delete"):
        rest = [other for other in bindings if other != binding]
    else:
        rest = bindings if binding in bindings else [*bindings, binding]
    if not rest:
        metadata.delete(path)
    elif rest != bindings:
        metadata.put(path, {Opaque(encode(other)[1:]): list[Term]() for other in rest})


def _unbind_all(metadata: KhepriMetadata, function: _Function) -> None:
    metadata.unbind(path_of(function.record("resource")))


def _delete_exchange(metadata: KhepriMetadata, function: _Function) -> None:
    path = path_of(function.record("resource"))
    if function.inner.name.startswith("unconditional") or not metadata.has_bindings(path):
        metadata.delete(path)


def _delete_exchanges(metadata: KhepriMetadata, function: _Function) -> None:
    metadata.delete((ROOT, VHOSTS, function.variable(bytes), EXCHANGES, ANY_CHILD))


def _set_exchanges(metadata: KhepriMetadata, function: _Function) -> None:
    for exchange in function.variable(list):
        metadata.put(path_of(exchange[1]), exchange)


def _delete_queue(metadata: KhepriMetadata, function: _Function) -> None:
    """From 4.3 on by a path that has conditions at its end."""
    paths = [tuple(value) for value in function.variables if isinstance(value, list) and value[:1] == [ROOT]]
    conditional = (path for path in paths if isinstance(path[-1], tuple))
    metadata.delete(next(conditional, path_of(function.record("resource"))))


def _delete_queues(metadata: KhepriMetadata, function: _Function) -> None:
    """The version of a queue is in its path, or beside it."""
    for path, *rest in function.variable(list):
        conditions = [path[-1], *((Atom("if_payload_version"), version) for version in rest[:-1])]
        metadata.delete((*path[:-1], (Atom("if_all"), conditions)))


def _update_queues(metadata: KhepriMetadata, function: _Function) -> None:
    for path, queue in function.variable(list):
        if not metadata.tree.find(path):
            return  # as the transaction stopped
        metadata.put(path, queue)


def _change_policies(metadata: KhepriMetadata, function: _Function) -> None:
    """By ``#{queue => Record, …}`` for each changed one, or with ``exchange``."""
    changes = [change for value in function.variables if isinstance(value, list) for change in value]
    for change in changes:
        record = change.get("queue", change.get("exchange")) if isinstance(change, dict) else None
        node = None if record is None else metadata.tree.get(path_of(record[1]))
        if node is not None:
            node.version = None


def _nothing(_: KhepriMetadata, __: _Function) -> None:
    """What it changes is in no definitions, or has no effect until something is deleted."""


_Effect: TypeAlias = "Callable[[KhepriMetadata, _Function], None]"
_EFFECTS: Final[Mapping[tuple[str, str], _Effect]] = {
    ("rabbit_db_user", "update"): _update_user,
    ("rabbit_db_user", "set_user_permissions"): _set_permissions,
    ("rabbit_db_user", "set_topic_permissions"): _set_topic_permissions,
    ("rabbit_db_user", "clear_all_permissions_for_vhost"): _clear_permissions,
    ("rabbit_db_rtparams", "set"): _set_parameter,
    ("rabbit_db_binding", "create"): _change_binding,
    ("rabbit_db_binding", "delete"): _change_binding,
    ("rabbit_db_binding", "delete_for_destination"): _unbind_all,
    ("rabbit_db_binding_m2k_converter", "copy_to_khepri"): _change_binding,
    ("rabbit_db_exchange", "set"): _set_exchanges,
    ("rabbit_db_exchange", "recover"): _set_exchanges,
    ("rabbit_db_exchange", "delete"): _delete_exchange,
    ("rabbit_db_exchange", "delete_all"): _delete_exchanges,
    ("rabbit_db_exchange", "next_serial"): _nothing,
    ("rabbit_db_queue", "delete"): _delete_queue,
    ("rabbit_db_queue", "delete_if"): _delete_queue,
    ("rabbit_db_queue", "do_delete_transient_queues"): _delete_queues,
    ("rabbit_db_queue", "update_durable"): _update_queues,
    ("rabbit_db_queue", "tie_binding_to_dest_with_keep_while_cond_enable"): _nothing,
    ("rabbit_db_policy", "update"): _change_policies,
    ("rabbit_db_msup", "update_all"): _nothing,
    ("rabbit_db_ch_exchange", "delete_bindings"): _nothing,
}
