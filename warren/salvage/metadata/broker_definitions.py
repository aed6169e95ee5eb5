"""A broker's records as its definitions JSON: what ``rabbitmqctl export_definitions`` prints after a start.

A start restores what is durable: exchanges, queues, and bindings whose ends both exist. Exclusive queues are deleted,
with their bindings, because their connection is gone; so is an auto-delete exchange that loses its last binding by it.
Khepri (RabbitMQ 4) also keeps transient exchanges, which stay, and transient queues, which go like exclusive ones.
Left out, as in a broker's export: the exchanges ``""``, ``amq.…`` and internal ones, and global parameters whose names
begin with ``internal``.

Some of that no broker imports again. An operator policy is refused, because objects have become lists of pairs; a
binding of an internal exchange is dropped, because the exchange is missing. *For an import* objects are objects, and
internal exchanges are there.

Records of 3.8 to 4.3 have the same first fields; what is missing at the end is what a broker assumes for it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from warren.actors.engines.declared.definitions_json import BROKER_VERSION, NODE_PARTS, OWN_PARTS
from warren.actors.engines.errors import NotFoundError
from warren.salvage.metadata.metadata_tables import has_metadata, read_metadata
from warren.salvage.names import to_text
from warren.salvage.queue_directory import Finding, OnFinding
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.salvage.source import Place
from warren.storage.erlang_terms import Atom, Term
from warren.storage.errors import MessageError

Json: TypeAlias = "dict[str, Any]"
Record: TypeAlias = "tuple[Any, ...]"
Resource: TypeAlias = "tuple[str, str, str]"
"""Vhost, kind (``exchange`` or ``queue``) and name."""

_Parsed = TypeVar("_Parsed")

_USERS, _PERMISSIONS, _TOPIC_PERMISSIONS = "rabbit_user", "rabbit_user_permission", "rabbit_topic_permission"
_VHOSTS, _PARAMETERS = "rabbit_vhost", "rabbit_runtime_parameters"
_EXCHANGES, _QUEUES, _BINDINGS = "rabbit_durable_exchange", "rabbit_durable_queue", "rabbit_durable_route"
_TABLES: Final = (
    _USERS, _PERMISSIONS, _TOPIC_PERMISSIONS, _VHOSTS, _PARAMETERS, _EXCHANGES, _QUEUES, _BINDINGS
)  # fmt: skip

_QUEUE_TYPES: Final = {
    "rabbit_classic_queue": "classic",
    "rabbit_quorum_queue": "quorum",
    "rabbit_stream_queue": "stream",
}
_TYPE_FIELD: Final = 19
"""Of a queue's record; records from before 3.8 lack it, and every queue was a classic one."""
_OLD_HASHING: Final = "rabbit_password_hashing_md5"
_INTERNAL_PREFIX: Final = "internal"
_LINE_CHARACTERS: Final = 76
"""Of base64 in an argument that is not UTF-8."""

_NO_DEFINITIONS: Final = "holds no RabbitMQ data directory with definitions (schema.DAT, LATEST.LOG, coordination)"


def definitions_in(place: Place, report: OnFinding, *, for_import: bool = False) -> Json:
    """The definitions of the stopped node at a place; ``report`` gets what could not be read.

    Raises :class:`DataError` if there is no node, or more than one.
    """
    directory = place.search(partial(_node_at, place.files), _NO_DEFINITIONS)
    return read_definitions(place.files, directory, report, for_import=for_import)


def _node_at(files: ReadOnlyFileSystem, directory: str) -> str | None:
    """``directory``, if it is the data directory of a node."""
    return directory if has_metadata(files, directory) else None


def read_definitions(files: ReadOnlyFileSystem, directory: str, report: OnFinding, *, for_import: bool = False) -> Json:
    """The definitions of the node whose data directory this is; ``report`` gets what could not be read."""
    metadata = read_metadata(files, directory, _TABLES, report)

    def read(table: str, parse: Callable[[Record], _Parsed]) -> list[_Parsed]:
        parsed = []
        for record in metadata.tables[table]:
            try:
                parsed.append(parse(record))
            except (MessageError, ValueError, TypeError, LookupError) as error:
                detail = f"in {table}: {record!r:.200}: {error}"
                report(Finding("unreadable record", "damage", metadata.path, None, detail))
        return parsed

    exchanges = {exchange.name: exchange for exchange in read(_EXCHANGES, _Exchange.of)}
    queues = {queue.name: queue for queue in read(_QUEUES, _Queue.of)}
    bindings = _restored_bindings(exchanges, queues, read(_BINDINGS, _Binding.of))
    parameters = read(_PARAMETERS, partial(_parameter, for_import=for_import))
    return {
        "rabbit_version": BROKER_VERSION,
        "rabbitmq_version": BROKER_VERSION,
        "users": read(_USERS, _user),
        "vhosts": read(_VHOSTS, _vhost),
        "permissions": read(_PERMISSIONS, _permission),
        "topic_permissions": read(_TOPIC_PERMISSIONS, _topic_permission),
        **{part: [value for of, value in parameters if of == part] for part in _PARAMETER_PARTS},
        "queues": [queue.json for queue in queues.values()],
        "exchanges": [
            exchange.json | ({"internal": exchange.is_internal} if for_import else {})
            for exchange in exchanges.values()
            if exchange.is_named and (for_import or not exchange.is_internal)
        ],
        "bindings": [binding.json for binding in bindings],
    }


def of_vhost(document: Json, vhost: str) -> Json:
    """What a node's definitions say of one vhost, in the form that names no vhost.

    Raises :class:`NotFoundError` if there is no such vhost.
    """
    if vhost not in (item["name"] for item in document["vhosts"]):
        raise NotFoundError(f"no vhost '{vhost}' in these definitions")
    parts = {
        part: [
            {name: value for name, value in item.items() if name != "vhost"}
            for item in document[part]
            if item["vhost"] == vhost
        ]
        for part in sorted(OWN_PARTS - NODE_PARTS)
    }
    return {"rabbit_version": document["rabbit_version"], **parts}


# ── exchanges, queues, bindings ──────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class _Exchange:
    name: Resource
    auto_delete: bool
    is_internal: bool
    json: Json

    @classmethod
    def of(cls, record: Record) -> _Exchange:
        _, resource, kind, durable, auto_delete, internal, arguments, *_ = record
        name = _resource(resource)
        json = _described(name, durable, auto_delete) | {"type": to_json(kind), "arguments": _arguments(arguments)}
        return cls(name, auto_delete is True, internal is True, json)

    @property
    def is_named(self) -> bool:
        """Whether a client named it."""
        return self.name[2] != "" and not self.name[2].startswith("amq.")


@attrs.frozen
class _Queue:
    name: Resource
    is_deleted: bool
    """By a start."""
    json: Json

    @classmethod
    def of(cls, record: Record) -> _Queue:
        _, resource, durable, auto_delete, owner, arguments, *_ = record
        name = _resource(resource)
        kind = record[_TYPE_FIELD] if len(record) > _TYPE_FIELD else "rabbit_classic_queue"
        json = {"type": _QUEUE_TYPES.get(str(kind), str(kind)), "arguments": _arguments(arguments)}
        return cls(name, owner != "none" or durable is not True, _described(name, durable, auto_delete) | json)


@attrs.frozen
class _Binding:
    source: Resource
    destination: Resource
    json: Json

    @classmethod
    def of(cls, record: Record) -> _Binding:
        _, (_, source, key, destination, arguments), *_ = record
        from_, to = _resource(source), _resource(destination)
        vhost, kind, name = to
        json = {"source": from_[2], "vhost": vhost, "destination": name, "destination_type": kind}
        return cls(from_, to, json | {"routing_key": _text(key), "arguments": _arguments(arguments)})


def _described(name: Resource, durable: Term, auto_delete: Term) -> Json:
    vhost, _, plain = name
    return {"vhost": vhost, "name": plain, "durable": durable, "auto_delete": auto_delete}


def _restored_bindings(
    exchanges: dict[Resource, _Exchange], queues: dict[Resource, _Queue], bindings: Iterable[_Binding]
) -> list[_Binding]:
    """The bindings that a start restores; removes the queues and exchanges that it does not."""
    restored = [
        binding
        for binding in bindings
        if binding.source[2]
        and binding.source in exchanges
        and (binding.destination in exchanges or binding.destination in queues)
    ]
    deleted = {name for name, queue in queues.items() if queue.is_deleted}
    while deleted:
        for name in deleted:
            queues.pop(name, None)
            exchanges.pop(name, None)
        dropped = [binding for binding in restored if deleted & {binding.source, binding.destination}]
        restored = [binding for binding in restored if not deleted & {binding.source, binding.destination}]
        unbound = {binding.source for binding in dropped} - {binding.source for binding in restored}
        deleted = {name for name in unbound if name in exchanges and exchanges[name].auto_delete}
    return restored


# ── users, vhosts, parameters ────────────────────────────────────────────────────────────────────────────────────────


def _user(record: Record) -> Json:
    _, name, password_hash, tags, *rest = record
    algorithm = rest[0] if rest else "undefined"
    return {
        "name": _text(name),
        "password_hash": base64.b64encode(password_hash).decode("ascii"),
        "hashing_algorithm": _OLD_HASHING if algorithm == "undefined" else str(algorithm),
        "tags": [to_json(tag) for tag in tags],
        "limits": to_json(rest[1]) if len(rest) > 1 else {},
    }


def _vhost(record: Record) -> Json:
    _, name, limits, *rest = record
    metadata = to_json(rest[0]) if rest else {"description": "", "tags": []}
    return {"name": _text(name), "limits": to_json(limits), "metadata": metadata}


def _permission(record: Record) -> Json:
    _, (_, user, vhost), (_, configure, write, read) = record
    return {"user": _text(user), "vhost": _text(vhost)} | {
        "configure": _text(configure),
        "write": _text(write),
        "read": _text(read),
    }


def _topic_permission(record: Record) -> Json:
    _, (_, (_, user, vhost), exchange), (_, _, write, read) = record
    return {"user": _text(user), "vhost": _text(vhost), "exchange": _text(exchange)} | {
        "write": _text(write),
        "read": _text(read),
    }


_PARAMETER_PARTS: Final = ("parameters", "global_parameters", "policies")


def _parameter(record: Record, *, for_import: bool) -> tuple[str, Json]:
    """A parameter, and the part of the definitions that it belongs to; an empty one if it is not exported."""
    convert = _importable if for_import else to_json
    _, key, value = record
    if isinstance(key, Atom):
        part = "" if key.startswith(_INTERNAL_PREFIX) else "global_parameters"
        return part, {"name": str(key), "value": convert(value)}
    vhost, component, name = map(_text, key)
    fields = _pairs(value)
    if component == "policy":
        definition = {key: convert(setting) for key, setting in _pairs(fields.get("definition", [])).items()}
        policy = {field: convert(fields.get(field, Atom("undefined"))) for field in ("pattern", "apply-to", "priority")}
        return "policies", {"vhost": vhost, "name": name, **policy, "definition": definition}
    values = {field: convert(setting) for field, setting in fields.items()}
    return "parameters", {"vhost": vhost, "component": component, "name": name, "value": values}


# ── terms as JSON ────────────────────────────────────────────────────────────────────────────────────────────────────


def to_json(term: Term) -> Any:
    """A term as ``rabbitmqctl`` writes it: tuples and lists of pairs are lists, atoms are texts (``null``, too)."""
    match term:
        case bool() | int() | float():
            return term
        case Atom():
            return None if term == "nil" else str(term)
        case bytes():
            return to_text(term)
        case Mapping():
            return {_text(name): to_json(value) for name, value in term.items()}
        case list() | tuple():
            return [to_json(element) for element in term]
        case _:
            raise MessageError(f"{term!r:.100} in place of JSON")


def _importable(term: Term) -> Any:
    """A term as the JSON that it was made of: tuples are the pairs of objects."""
    match term:
        case "null":
            return None
        case Mapping():
            return {_text(name): _importable(value) for name, value in term.items()}
        case [*elements] if elements and all(isinstance(element, tuple) and len(element) == 2 for element in elements):
            return {name: _importable(value) for name, value in _pairs(elements).items()}
        case list():
            return [_importable(element) for element in term]
        case _:
            return to_json(term)


def _arguments(term: Term) -> Json:
    """A table of AMQP's as ``rabbitmqctl`` writes it."""
    if not isinstance(term, list):
        return {}  # "undefined"; a map is an empty one
    return {_text(name): _argument(kind, value) for name, kind, value in term}


def _argument(kind: Any, value: Any) -> Any:
    match kind:
        case "array":
            return [_argument(inner, element) for inner, element in value]
        case "table":
            return _arguments(value)
        case "decimal":
            before, after = value
            return float(f"{before}.{after}")  # the scale and the number, as the broker joins them
        case _ if isinstance(value, bytes):
            return _utf8(value)
        case _:
            return to_json(value)


def _utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        encoded = base64.b64encode(value).decode("ascii")
        lines = (encoded[at : at + _LINE_CHARACTERS] for at in range(0, len(encoded), _LINE_CHARACTERS))
        return "Not UTF-8, base64 is: " + "\n".join(lines)


def _pairs(term: Term) -> dict[str, Term]:
    """A list of pairs, or a map, by its keys as text."""
    items: Any = term.items() if isinstance(term, Mapping) else term
    return {_text(name): value for name, value in items}


def _resource(term: Any) -> Resource:
    tag, vhost, kind, name = term
    if tag != "resource" or kind not in ("exchange", "queue"):
        raise MessageError(f"{term!r:.100} in place of a name")
    return _text(vhost), str(kind), _text(name)


def _text(name: Any) -> str:
    if isinstance(name, bytes):
        return to_text(name)
    if isinstance(name, Atom):
        return str(name)
    raise MessageError(f"{name!r:.100} in place of a text")
