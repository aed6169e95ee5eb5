"""A RabbitMQ's records in Khepri's tree: their paths, and which are deleted together.

::

    rabbitmq/users/<user>                                                  rabbit_user
    rabbitmq/runtime_params/<name>                                         rabbit_runtime_parameters
    rabbitmq/vhosts/<vhost>                                                rabbit_vhost
                           /runtime_params/<component>/<name>              rabbit_runtime_parameters
                           /user_permissions/<user>                        rabbit_user_permission
                           /queues/<queue>                                 rabbit_durable_queue
                           /exchanges/<exchange>                           rabbit_durable_exchange
                                                /user_permissions/<user>   rabbit_topic_permission
                                                /bindings/queue/<queue>/<key>            rabbit_durable_route
                                                         /exchange/<exchange>/<key>

On the right are the tables of Mnesia that have the same records; bindings of the same ends and key are a set. With a
user go its permissions, with a queue or an exchange the bindings to it, and with its last binding an exchange that is
auto-delete. Up to 4.2 the transaction does so that deletes them; later, conditions in the tree do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from warren.salvage.metadata.khepri_tree import ANY_CHILD, HAS_DATA, Path, TreeNode
from warren.storage.erlang_terms import Atom, Term, decode_opaque
from warren.storage.errors import MessageError, TermError

ROOT: Final = Atom("rabbitmq")
VHOSTS, USERS, EXCHANGES, QUEUES = Atom("vhosts"), Atom("users"), Atom("exchanges"), Atom("queues")
PARAMETERS, PERMISSIONS, BINDINGS = Atom("runtime_params"), Atom("user_permissions"), Atom("bindings")

_VHOST: Final = (ROOT, VHOSTS, ANY_CHILD)
_ROUTES: Final = "rabbit_durable_route"
_PATTERNS: Final = (
    ("rabbit_user", (ROOT, USERS, HAS_DATA)),
    ("rabbit_vhost", (ROOT, VHOSTS, HAS_DATA)),
    ("rabbit_runtime_parameters", (ROOT, PARAMETERS, HAS_DATA)),
    ("rabbit_runtime_parameters", (*_VHOST, PARAMETERS, ANY_CHILD, HAS_DATA)),
    ("rabbit_user_permission", (*_VHOST, PERMISSIONS, HAS_DATA)),
    ("rabbit_topic_permission", (*_VHOST, EXCHANGES, ANY_CHILD, PERMISSIONS, HAS_DATA)),
    ("rabbit_durable_exchange", (*_VHOST, EXCHANGES, HAS_DATA)),
    ("rabbit_durable_queue", (*_VHOST, QUEUES, HAS_DATA)),
    (_ROUTES, (*_VHOST, EXCHANGES, ANY_CHILD, BINDINGS, ANY_CHILD, ANY_CHILD, HAS_DATA)),
)


@attrs.frozen
class KhepriMetadata:
    """The tree, and what is changed in it."""

    tree: TreeNode = attrs.field(factory=TreeNode)

    def put(self, pattern: Sequence[Term], record: Term) -> None:
        """Write a record."""
        self.tree.put(pattern, (Atom("p_data"), record))

    def delete(self, pattern: Sequence[Term]) -> None:
        """Delete what a pattern means, and what goes with it."""
        removed = [path for path, _ in self.tree.find(pattern)]
        for path in removed:
            self.tree.take(path)
        for path in removed:
            match path[1:]:
                case ("users", user):
                    self.delete((*_VHOST, PERMISSIONS, user))
                    self.delete((*_VHOST, EXCHANGES, ANY_CHILD, PERMISSIONS, user))
                case ("vhosts", _, "exchanges" | "queues", _):
                    self.unbind(path)
                case ("vhosts", _, "exchanges", _, "bindings", _, _, _):
                    if self._is_unused(path[:5]):
                        self.delete(path[:5])
                case _:
                    pass

    def unbind(self, destination: Path) -> None:
        """Delete the bindings to the exchange or queue at a path."""
        _, _, vhost, kind, name = destination
        ends = Atom("exchange" if kind == EXCHANGES else "queue"), name
        self.delete((ROOT, VHOSTS, vhost, EXCHANGES, ANY_CHILD, BINDINGS, *ends, ANY_CHILD))

    def has_bindings(self, source: Path) -> bool:
        """Whether something is bound to the exchange at a path."""
        return bool(self.tree.find((*source, BINDINGS, ANY_CHILD, ANY_CHILD, HAS_DATA)))

    def _is_unused(self, source: Path) -> bool:
        """Whether an auto-delete exchange has lost its last binding."""
        exchange = self.tree.get(source)
        is_auto_delete = exchange is not None and isinstance(exchange.data, tuple) and exchange.data[4] is True
        return is_auto_delete and not self.has_bindings(source)

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """The records by the tables of Mnesia that have them."""
        tables: dict[str, list[tuple[Any, ...]]] = {table: [] for table, _ in _PATTERNS}
        for table, pattern in _PATTERNS:
            for _, node in self.tree.find(pattern):
                tables[table] += _routes(node.data) if table == _ROUTES else [_record(node.data)]
        return tables


def _record(data: Any) -> tuple[Any, ...]:
    """A record. For anything else, one that its reader reports as invalid."""
    return data if isinstance(data, tuple) else (data,)


def _routes(data: Term) -> list[tuple[Any, ...]]:
    """A record for each binding of a set. For anything else, one that its reader reports as invalid."""
    try:
        return [(Atom("route"), binding, Atom("const")) for binding in bindings_in(data)]
    except (MessageError, TermError):
        return [(Atom("route"), data)]


def path_of(resource: Term) -> Path:
    """The path of the exchange or queue with this name."""
    match resource:
        case ("resource", bytes(vhost), "exchange" | "queue" as kind, bytes(name)):
            return ROOT, VHOSTS, vhost, EXCHANGES if kind == "exchange" else QUEUES, name
        case _:
            raise MessageError(f"{resource!r:.100} in place of a name")


def path_of_binding(binding: Term) -> Path:
    """The path of the set that a binding is in."""
    match binding:
        case ("binding", source, bytes(key), ("resource", _, Atom() as kind, bytes(name)), *_):
            return *path_of(source), BINDINGS, kind, name, key
        case _:
            raise MessageError(f"{binding!r:.100} in place of a binding")


def bindings_in(data: Term) -> Iterator[Term]:
    """The bindings of a set, which is a map without values."""
    if not isinstance(data, Mapping):
        raise MessageError(f"{data!r:.100} in place of a set of bindings")
    yield from map(decode_opaque, data)
