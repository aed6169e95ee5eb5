"""The verbs that list queues, exchanges, bindings, connections, channels and consumers, or that end them.

They write it as rabbitmqctl does: values in a table, and arguments with their AMQP types.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from warren.actors.engines.errors import ArgumentsError, NotFoundError
from warren.actors.node.node_registry import NodeRegistry
from warren.actors.queue.queue_entry import QueueEntry
from warren.ctl.verb import Arguments, Verb, list_verb
from warren.hosting.queue_rows import each_queue, queue_row
from warren.hosting.running_node import RunningNode
from warren.salvage.names import printable
from warren.storage.errors import WarrenError
from warren.verbs.queue_host import LocalQueue
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.steps import run

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream


Typed = list[list[Any]]
"""A table's names, types and values: ``[["x-max-length", "signedint", 5]]``."""


def typed_table(table: Mapping[str, Any]) -> Typed:
    """A table as rabbitmqctl has it in JSON."""
    return [[name, *_typed(value)] for name, value in table.items()]


def _typed(value: Any) -> tuple[str, Any]:
    match value:
        case bool():
            return "bool", value
        case int():
            return ("signedint" if -(1 << 31) <= value < 1 << 31 else "long"), value
        case str():
            return "longstr", value
        case bytes() | bytearray():
            return "longstr", bytes(value).decode("utf-8", "surrogateescape")
        case float():
            return "double", value
        case None:
            return "void", None
        case datetime():
            return "timestamp", round(value.timestamp())
        case Decimal():
            return "decimal", float(value)
        case Mapping():
            return "table", typed_table(value)
        case list() | tuple():
            return "array", [list(_typed(element)) for element in value]
    return "longstr", str(value)


def shown(column: str, value: Any) -> str:
    """A value in a table of text; control characters are escaped."""
    if column in ("arguments", "client_properties") and isinstance(value, list):
        return printable(_erlang("table", value))
    return printable(plain(value))


def plain(value: Any) -> str:
    """A value that is no AMQP table."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return f"[{', '.join(plain(element) for element in value)}]"
        case dict():
            return f"[{','.join(f'{{{_quoted(name)},{_quoted(field)}}}' for name, field in value.items())}]"
    return str(value)


def _quoted(value: Any) -> str:
    if not isinstance(value, str):
        return plain(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _erlang(kind: str, value: Any) -> str:
    if kind == "table":
        return f"[{','.join(f'{{{_quoted(name)},{_erlang(type_, field)}}}' for name, type_, field in value)}]"
    if kind == "array":
        return f"[{','.join(_erlang(type_, element) for type_, element in value)}]"
    return "undefined" if value is None else _quoted(value)


Row = dict[str, Any]
Rows = list[Row]

QUEUE_COLUMNS: Final = (
    "name", "durable", "auto_delete", "arguments", "policy", "operator_policy", "effective_policy_definition",
    "exclusive", "exclusive_consumer_tag", "single_active_consumer_tag", "messages_ready", "messages_unacknowledged",
    "messages", "messages_ready_ram", "messages_unacknowledged_ram", "messages_ram", "messages_persistent",
    "message_bytes", "message_bytes_ready", "message_bytes_unacknowledged", "message_bytes_ram",
    "message_bytes_persistent", "disk_reads", "disk_writes", "consumers", "state", "type",
)  # fmt: skip
EXCHANGE_COLUMNS: Final = ("name", "type", "durable", "auto_delete", "internal", "arguments", "policy")
BINDING_COLUMNS: Final = (
    "source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments",
)  # fmt: skip
CONNECTION_COLUMNS: Final = (
    "pid", "name", "port", "host", "peer_port", "peer_host", "ssl", "state", "channels", "protocol", "auth_mechanism",
    "user", "vhost", "timeout", "frame_max", "channel_max", "client_properties", "recv_oct", "send_oct",
    "connected_at",
)  # fmt: skip
CHANNEL_COLUMNS: Final = (
    "pid", "connection", "name", "number", "user", "vhost", "transactional", "confirm", "consumer_count",
    "messages_unacknowledged", "messages_uncommitted", "acks_uncommitted", "messages_unconfirmed", "prefetch_count",
    "global_prefetch_count",
)  # fmt: skip
CONSUMER_COLUMNS: Final = (
    "queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments",
)  # fmt: skip
_DECLARED: Final = frozenset({"name", "durable", "auto_delete", "arguments", "exclusive", "type"})
"""The columns that need no answer of the queue's actor."""
_PATIENCE_S: Final = 1.0
"""The longest wait for the answer of one queue."""


def _row(columns: Iterable[str], shown: Mapping[str, Any], **others: Any) -> Row:
    """Return the columns of what is shown; ``others``: those that rabbitmqctl names or writes differently."""
    values = {**shown, **others}
    return {name: values.get(name) for name in columns}


# ── what is declared ─────────────────────────────────────────────────────────────────────────────────────────────────


def list_queues(node: RunningNode, arguments: Arguments) -> Rows:
    vhost, only_declared = node.vhost(arguments["vhost"]).name, _DECLARED.issuperset(arguments["columns"])
    if node.registry.streams.of(vhost) and not only_declared:
        with contextlib.suppress(WarrenError):  # the topics are down: the rows say so
            run(node.caught_up())
    return [_queue(queue, only_declared=only_declared) for _, queue in each_queue(node, vhost)]


def _queue(queue: QueueEntry | Stream, *, only_declared: bool) -> Row:
    declaration, shown = queue.declaration, dict[str, Any]()
    if not only_declared:
        row = queue_row(queue, _PATIENCE_S)
        shown = {"state": row.state} if row.stats is None else {**row.stats, "state": "running"}
    return _row(
        QUEUE_COLUMNS,
        shown | declaration.columns(),
        arguments=typed_table(declaration.arguments),
        type=declaration.queue_type,
    )


def list_exchanges(node: RunningNode, arguments: Arguments) -> Rows:
    def rows(registry: NodeRegistry) -> Rows:
        definitions = registry.definitions.vhost(arguments["vhost"])
        return [
            _row(
                EXCHANGE_COLUMNS,
                exchange.to_json() | definitions.policies.of("exchange", exchange.name).to_json(),
                arguments=typed_table(exchange.arguments),
            )
            for exchange in definitions.exchanges()
        ]

    return run(node.change(rows))


def list_bindings(node: RunningNode, arguments: Arguments) -> Rows:
    def rows(registry: NodeRegistry) -> Rows:
        definitions = registry.definitions.vhost(arguments["vhost"])
        return [
            {
                "source_name": binding.source,
                "source_kind": "exchange",
                "destination_name": binding.destination,
                "destination_kind": binding.destination_type,
                "routing_key": binding.routing_key,
                "arguments": typed_table(binding.arguments),
            }
            for binding in [*definitions.bindings_from(""), *definitions.bindings()]
        ]

    return run(node.change(rows))


def purge_queue(node: RunningNode, arguments: Arguments) -> dict[str, int]:
    if (stream := node.registry.streams.find(arguments["vhost"], arguments["queue"])) is not None:
        raise ArgumentsError(f"{stream.declaration} is a stream, which cannot be purged")
    queue = QueueVerbs(LocalQueue(node, _entry(node, arguments)))
    purged = run(queue.purge())
    run(queue.sync())
    return {"purged": purged}


def delete_queue(node: RunningNode, arguments: Arguments) -> dict[str, int]:
    if node.registry.streams.find(arguments["vhost"], arguments["queue"]) is None:
        _entry(node, arguments)
    ready = run(
        node.change(
            lambda registry: registry.delete_queue(
                arguments["vhost"], arguments["queue"], if_empty=arguments["if_empty"], if_unused=arguments["if_unused"]
            )
        )
    )
    return {"ready": ready}


def _entry(node: RunningNode, arguments: Arguments) -> QueueEntry:
    return node.queues(arguments["vhost"], [arguments["queue"]])[0]


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _connections(node: RunningNode) -> Iterator[tuple[Any, Any]]:
    """Yield each connection with its server, also those that have not opened a vhost yet."""
    for server in list(node.hosted):
        for connection in list(server.connections.values()):
            yield server, connection


def _channels(node: RunningNode) -> Iterator[Any]:
    for _, connection in _connections(node):
        yield from list(connection.channels.values())


def list_connections(node: RunningNode, _: Arguments) -> Rows:
    return [
        _row(CONNECTION_COLUMNS, info, pid=info["name"], client_properties=typed_table(info["client_properties"]))
        for info in [connection.info() for _, connection in _connections(node)]
    ]


def list_channels(node: RunningNode, _: Arguments) -> Rows:
    return [
        _row(CHANNEL_COLUMNS, info, pid=info["name"], connection=info["connection_details"]["name"])
        for info in [channel.info() for channel in _channels(node)]
    ]


def list_consumers(node: RunningNode, arguments: Arguments) -> Rows:
    node.vhost(arguments["vhost"])
    return [
        _row(
            CONSUMER_COLUMNS,
            info,
            queue_name=info["queue"]["name"],
            channel_pid=info["channel_details"]["name"],
            arguments=typed_table(info["arguments"]),
        )
        for channel in _channels(node)
        for info in channel.consumer_infos()
        if info["queue"]["vhost"] == arguments["vhost"]
    ]


def close_connection(node: RunningNode, arguments: Arguments) -> None:
    for server, connection in _connections(node):
        if connection.info()["name"] == arguments["connection"]:
            _close(server, connection, arguments["reason"])
            return
    raise NotFoundError(f"no connection '{arguments['connection']}'")


def close_all_user_connections(node: RunningNode, arguments: Arguments) -> None:
    for server, connection in list(_connections(node)):
        if connection.info()["user"] == arguments["user"]:
            _close(server, connection, arguments["reason"])


def close_all_connections(node: RunningNode, arguments: Arguments) -> dict[str, int]:
    vhost = arguments["vhost"]
    if vhost is not None:
        node.vhost(vhost)
    connections = [
        (server, connection) for server, connection in _connections(node) if vhost in (None, connection.info()["vhost"])
    ]
    closed = connections[: arguments["limit"] or None]
    for server, connection in closed:
        _close(server, connection, arguments["reason"])
    return {"closed": len(closed)}


def _close(server: Any, connection: Any, reason: str) -> None:
    server.post(lambda: connection.close(reason))


LISTS: Final[dict[str, Verb]] = {
    "list_queues": list_verb(
        list_queues, "Listing queues for vhost {vhost} ...", ("name", "messages"), QUEUE_COLUMNS, in_vhost=True
    ),
    "list_exchanges": list_verb(
        list_exchanges, "Listing exchanges for vhost {vhost} ...", ("name", "type"), EXCHANGE_COLUMNS, in_vhost=True
    ),
    "list_bindings": list_verb(
        list_bindings, "Listing bindings for vhost {vhost} ...", BINDING_COLUMNS, BINDING_COLUMNS, in_vhost=True
    ),
    "list_connections": list_verb(
        list_connections, "Listing connections ...", ("user", "peer_host", "peer_port", "state"), CONNECTION_COLUMNS
    ),
    "list_channels": list_verb(
        list_channels,
        "Listing channels ...",
        ("pid", "user", "consumer_count", "messages_unacknowledged"),
        CHANNEL_COLUMNS,
    ),
    "list_consumers": list_verb(
        list_consumers, "Listing consumers in vhost {vhost} ...", CONSUMER_COLUMNS, CONSUMER_COLUMNS, in_vhost=True
    ),
    "purge_queue": Verb(
        syntax="queue --vhost",
        says="Purging queue '{queue}' in vhost '{vhost}' ...",
        work=purge_queue,
    ),
    "delete_queue": Verb(
        syntax="queue --vhost --if_empty --if_unused",
        says="Deleting queue '{queue}' on vhost '{vhost}' ...",
        work=delete_queue,
        shown="text",
        text=lambda answer: f"Queue was successfully deleted with {answer['ready']} ready messages",
    ),
    "close_connection": Verb(
        syntax="connection reason",
        says="Closing connection {connection}, reason: {reason}...",
        work=close_connection,
    ),
    "close_all_user_connections": Verb(
        syntax="user reason",
        says="Closing connections of user {user}, reason: {reason}...",
        work=close_all_user_connections,
    ),
    "close_all_connections": Verb(
        syntax="reason --vhost --limit",
        says="Closing connections, reason: {reason}...",
        work=close_all_connections,
        defaults={"vhost": None, "limit": 0},
        without_vhost={"closed": 0},
        shown="text",
        text=lambda answer: f"Closed {answer['closed']} connections",
    ),
}
"""Queues, exchanges, bindings, clients."""
