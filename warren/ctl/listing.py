"""What verbs say of queues, exchanges, bindings, connections, channels and consumers; and end of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.errors import ArgumentsError, NotFoundError
from warren.actors.node.node_actor import NodeActor
from warren.actors.queue.inspecting import ask_politely
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.inbox import Call
from warren.ctl.text import typed_table
from warren.ctl.verb import Arguments
from warren.hosting.running_node import RunningNode
from warren.storage.errors import WarrenError
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.steps import run

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream

Rows = list[dict[str, Any]]

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
"""What need not be asked of a queue's actor."""
_PATIENCE_S: Final = 1.0
"""The longest wait for the answer of one queue."""


# ── what is declared ─────────────────────────────────────────────────────────────────────────────────────────────────


def list_queues(node: RunningNode, said: Arguments) -> Rows:
    wanted, vhost = set(said["columns"]), node.vhost(said["vhost"])
    queues = [_queue(entry, wanted) for entry in list(vhost.queues.values())]
    return queues + [_stream(node, stream, wanted) for stream in node.actor.streams.of(vhost.name)]


def _queue(entry: QueueEntry, wanted: set[str]) -> dict[str, Any]:
    actor, found = entry.running, dict[str, Any]()
    if not wanted <= _DECLARED:
        stats = None if actor is None else ask_politely(actor.actor_ref, Call(actor.stats), _PATIENCE_S)
        found = {"state": "down" if actor is None else "busy"} if stats is None else stats | {"state": "running"}
    return _declared(entry.declaration, found)


def _stream(node: RunningNode, stream: Stream, wanted: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if not wanted <= _DECLARED:
        try:
            found = run(node.stream_stats(stream))
        except WarrenError:  # the topics are down
            found = {"state": "down"}
    return _declared(stream.declaration, found)


def _declared(declaration: QueueDeclaration, found: Mapping[str, Any]) -> dict[str, Any]:
    """A row, of what a queue says of itself and what it was declared as."""
    return {
        **dict.fromkeys(QUEUE_COLUMNS),
        **found,
        "name": declaration.name,
        "durable": declaration.durable,
        "auto_delete": declaration.auto_delete,
        "exclusive": declaration.exclusive,
        "arguments": typed_table(declaration.arguments),
        "type": "stream" if declaration.is_stream else "classic",
    }


def list_exchanges(node: RunningNode, said: Arguments) -> Rows:
    def found(actor: NodeActor) -> Rows:
        definitions = actor.definitions.vhost(said["vhost"])
        return [
            {
                "name": one.name,
                "type": one.type,
                "durable": one.durable,
                "auto_delete": one.auto_delete,
                "internal": one.internal,
                "arguments": typed_table(one.arguments),
                "policy": definitions.policies.of("exchange", one.name).to_json()["policy"],
            }
            for one in definitions.exchanges()
        ]

    return run(node.change(found))


def list_bindings(node: RunningNode, said: Arguments) -> Rows:
    def found(actor: NodeActor) -> Rows:
        definitions = actor.definitions.vhost(said["vhost"])
        return [
            {
                "source_name": one.source,
                "source_kind": "exchange",
                "destination_name": one.destination,
                "destination_kind": one.destination_type,
                "routing_key": one.routing_key,
                "arguments": typed_table(one.arguments),
            }
            for one in [*definitions.bindings_from(""), *definitions.bindings()]
        ]

    return run(node.change(found))


def purge_queue(node: RunningNode, said: Arguments) -> dict[str, int]:
    if (stream := node.actor.streams.find(said["vhost"], said["queue"])) is not None:
        raise ArgumentsError(f"{stream.declaration} is a stream, which cannot be purged")
    queue = QueueVerbs(node, _entry(node, said))
    purged = run(queue.purge())
    run(queue.sync())
    return {"purged": purged}


def delete_queue(node: RunningNode, said: Arguments) -> dict[str, int]:
    if node.actor.streams.find(said["vhost"], said["queue"]) is None:
        _entry(node, said)
    ready = run(
        node.change(
            lambda actor: actor.delete_queue(
                said["vhost"], said["queue"], if_empty=said["if_empty"], if_unused=said["if_unused"]
            )
        )
    )
    return {"ready": ready}


def _entry(node: RunningNode, said: Arguments) -> QueueEntry:
    return node.queues(said["vhost"], [said["queue"]])[0]


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _connections(node: RunningNode) -> Iterator[tuple[Any, Any]]:
    """Each with its server, as they are at the moment; those that have not come as far as a vhost, too."""
    for server in list(node.hosted):
        for connection in list(getattr(server, "connections", {}).values()):
            yield server, connection


def _channels(node: RunningNode) -> Iterator[Any]:
    for _, connection in _connections(node):
        yield from list(connection.channels.values())


def list_connections(node: RunningNode, _: Arguments) -> Rows:
    rows = []
    for _, connection in _connections(node):
        info = _safe(connection.info())
        rows.append(info | {"pid": info["name"], "client_properties": typed_table(info["client_properties"])})
    return rows


def list_channels(node: RunningNode, _: Arguments) -> Rows:
    found = [channel.info() for channel in _channels(node)]
    return [_safe(info | {"pid": info["name"], "connection": info["connection_details"]["name"]}) for info in found]


def list_consumers(node: RunningNode, said: Arguments) -> Rows:
    node.vhost(said["vhost"])
    rows = []
    for channel in _channels(node):
        where = channel.info()
        if where["vhost"] != said["vhost"]:
            continue
        for consumer in list(channel.consumers.by_tag.values()):
            info = consumer.info()
            queue = info["queue"]
            rows.append(
                _safe(info)
                | {
                    "queue_name": queue["name"] if isinstance(queue, Mapping) else queue,
                    "channel_pid": where["name"],
                    "arguments": typed_table(info["arguments"] or {}),
                }
            )
    return rows


def close_connection(node: RunningNode, said: Arguments) -> None:
    for server, connection in _connections(node):
        if connection.info()["name"] == said["connection"]:
            _close(server, connection, said["reason"])
            return
    raise NotFoundError(f"no connection '{said['connection']}'")


def close_all_user_connections(node: RunningNode, said: Arguments) -> None:
    for server, connection in list(_connections(node)):
        if connection.info()["user"] == said["user"]:
            _close(server, connection, said["reason"])


def close_all_connections(node: RunningNode, said: Arguments) -> dict[str, int]:
    wanted = said["vhost"]
    if wanted is not None:
        node.vhost(wanted)
    found = [(server, one) for server, one in _connections(node) if wanted in (None, one.info()["vhost"])]
    closed = found[: said["limit"] or None]
    for server, connection in closed:
        _close(server, connection, said["reason"])
    return {"closed": len(closed)}


def _close(server: Any, connection: Any, reason: str) -> None:
    server.post(lambda: connection.close(reason))


def _safe(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if isinstance(value, str | int | float | bool | None)} | {
        "client_properties": info.get("client_properties", {})
    }
