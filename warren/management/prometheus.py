"""``/metrics``: a node's numbers as Prometheus scrapes them, under the names of RabbitMQ's plugin.

``/metrics`` has sums of all queues, ``/metrics/per-object`` a series of each, and ``/metrics/detailed`` the families
that it is asked for. They are read at the moment of the scrape. On the machine itself no login is needed for them, as
with RabbitMQ; from elsewhere, a user with the tag ``monitoring`` is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import psutil
from starlette.requests import Request
from starlette.responses import Response

from warren.actors.engines.declared.definitions_json import BROKER_VERSION
from warren.aio import bridge
from warren.management import access
from warren.management.call import CLUSTER_ID, MONITOR_TAGS, Managed
from warren.management.clients import channels_of, connections_of
from warren.management.detailed import CHANNEL_GAUGES, Scrape
from warren.management.handlers.overview import churned, client_sums, io_counters
from warren.management.http import Pieces, in_pieces, joined, not_authorised, not_found
from warren.management.samples import Document, NodeSample
from warren.metrics import Series, exposition

_DETAILED: Final = "/metrics/detailed"
PATHS: Final = frozenset({"/metrics", "/metrics/per-object", _DETAILED})

_GLOBAL: Final = (
    ("messages_received", "publish", "Messages published by clients"),
    ("messages_confirmed", "confirm", "Messages confirmed to clients"),
    ("messages_routed", "publish", "Messages that queues got"),
    ("messages_unroutable_dropped", "drop_unroutable", "Messages that no queue got"),
    ("messages_unroutable_returned", "return_unroutable", "Messages that no queue got, and went back"),
    ("messages_acknowledged", "ack", "Messages acked by consumers"),
    ("messages_delivered", "deliver_get", "Messages that consumers got"),
    ("messages_delivered_consume_manual_ack", "deliver", "Messages that consumers got and have to ack"),
    ("messages_delivered_consume_auto_ack", "deliver_no_ack", "Messages that consumers got and need not ack"),
    ("messages_delivered_get_manual_ack", "get", "Messages that were got one by one"),
    ("messages_delivered_get_auto_ack", "get_no_ack", "Messages that were got one by one and need no ack"),
    ("messages_get_empty", "get_empty", "Gets from a queue that had nothing"),
    ("messages_redelivered", "redeliver", "Messages that were delivered again"),
)
"""Name, name in the message stats, help."""
_OF_CHANNELS: Final = (
    ("messages_published", "publish", "Messages published"),
    ("messages_confirmed", "confirm", "Messages published and confirmed"),
    ("messages_unroutable_returned", "return_unroutable", "Messages published that no queue got, and went back"),
    ("messages_unroutable_dropped", "drop_unroutable", "Messages published that no queue got"),
    ("messages_delivered", "deliver_no_ack", "Messages delivered that need no ack"),
    ("messages_delivered_ack", "deliver", "Messages delivered that have to be acked"),
    ("messages_redelivered", "redeliver", "Messages delivered again"),
    ("messages_acked", "ack", "Messages acked"),
    ("get", "get_no_ack", "Messages got one by one that need no ack"),
    ("get_ack", "get", "Messages got one by one that have to be acked"),
    ("get_empty", "get_empty", "Gets from a queue that had nothing"),
)
"""The same, of the channels of this server's clients."""
_OF_CLIENTS_ALONE: Final = ("confirm", "return_unroutable", "drop_unroutable", "get_no_ack", "get_empty")
"""What queues do not count."""
_CHURN: Final = (
    *((kind, *names) for kind in ("connection", "channel") for names in (("opened", "created"), ("closed", "closed"))),
    *(("queue", name, name) for name in ("declared", "created", "deleted")),
)
"""What comes and goes, its name, and its name in the churn rates."""


async def answer(managed: Managed, request: Request, path: str) -> Response:
    """The answer to a scrape. Raises :class:`HttpError`."""
    if request.method not in ("GET", "HEAD"):
        raise not_found()
    if not access.is_loopback(request):
        user = access.identify(managed, access.Sessions(0), request)
        if MONITOR_TAGS.isdisjoint(user.tags):
            raise not_authorised("Not monitor user")
    sample, of_clients = await managed.sample(), client_sums(managed)[None]
    connections = await in_pieces(connections_of(managed.clients))
    channels = await in_pieces(channels_of(managed.clients))
    further = [
        *_of_clients(managed, connections, channels, of_clients),
        *_of_messages(sample.counted[None] | {name: of_clients[name] for name in _OF_CLIENTS_ALONE}),
        *_of_node(managed, sample),
    ]
    stats: Mapping[str, Any] | None = None
    if path == _DETAILED:
        vhosts = frozenset(request.query_params.getlist("vhost"))
        scrape = Scrape(managed.node, sample, connections, channels, further, vhosts)
        further = list(scrape.families(request.query_params.getlist("family")))
    else:
        asked = {key: queue.row.stats for key, queue in sample.queues.items() if queue.row.stats is not None}
        stats = await managed.run(managed.node.stats(asked))
    parts, content_type = exposition(stats, further, per_object=path.endswith("per-object"))
    return await bridge.in_thread(lambda: Pieces(joined(parts), 200, {}, content_type, makes_in_thread=True))


def _of_clients(
    managed: Managed, connections: list[Document], channels: list[Document], counted: Mapping[str, int]
) -> list[Series]:
    consumers = sum(channel["consumer_count"] for channel in channels)
    publishers = sum("publish" in channel.get("message_stats", ()) for channel in channels)
    churn = churned(managed)
    return [
        Series("gauge", "rabbitmq_connections", "Connections currently open", {(): len(connections)}),
        Series("gauge", "rabbitmq_channels", "Channels currently open", {(): len(channels)}),
        Series("gauge", "rabbitmq_process_open_tcp_sockets", "Open TCP sockets", {(): len(connections)}),
        Series("gauge", "rabbitmq_connection_channels", "Channels of connections", {(): len(channels)}),
        Series("gauge", "rabbitmq_global_consumers", "Consumers", {("amqp091",): consumers}, ("protocol",)),
        Series("gauge", "rabbitmq_global_publishers", "Publishers", {("amqp091",): publishers}, ("protocol",)),
        *(
            Series("counter", f"rabbitmq_{kind}s_{past}", f"{kind.title()}s {past}", {(): churn[f"{kind}_{event}"]})
            for kind, past, event in _CHURN
        ),
        *(
            Series(
                "counter", f"rabbitmq_connection_{name}_bytes", "Bytes of open connections",
                {(): sum(connection[key] for connection in connections)},
            )
            for name, key in (("incoming", "recv_oct"), ("outgoing", "send_oct"))
        ),
        *(
            Series("gauge", f"rabbitmq_channel_{name}", text, {(): sum(channel[key] for channel in channels)})
            for name, key, text in CHANNEL_GAUGES
        ),
        *(
            Series("counter", f"rabbitmq_channel_{name}", text, {(): counted.get(key, 0)})
            for name, key, text in _OF_CHANNELS
        ),
    ]  # fmt: skip


def _of_messages(counted: Mapping[str, Any]) -> Iterator[Series]:
    published = counted.get("publish", 0)
    yield Series("counter", "rabbitmq_queue_messages_published", "Messages published to queues", {(): published})
    for name, key, text in _GLOBAL:
        yield Series("counter", f"rabbitmq_global_{name}", text, {("amqp091",): counted.get(key, 0)}, ("protocol",))
    for name, key in (("read", "disk_reads"), ("write", "disk_writes")):
        yield Series("counter", f"rabbitmq_msg_store_{name}", f"Messages: {name}", {(): counted.get(key, 0)})


def _of_node(managed: Managed, sample: NodeSample) -> Iterator[Series]:
    versions = (BROKER_VERSION, BROKER_VERSION)
    labels = ("rabbitmq_version", "prometheus_plugin_version")
    yield Series("gauge", "rabbitmq_build_info", "Versions", {versions: 1}, labels)
    names = (managed.node_name, managed.cluster_name, str(managed.node.registry.parameters.global_value(CLUSTER_ID)))
    identity = ("rabbitmq_node", "rabbitmq_cluster", "rabbitmq_cluster_permanent_id")
    yield Series("gauge", "rabbitmq_identity_info", "Names", {names: 1}, identity)
    memory = sum(queue.document.get("memory", 0) for queue in sample.queues.values())
    yield Series("gauge", "rabbitmq_queue_process_memory_bytes", "Memory of queues", {(): memory})
    uptime_s = time.monotonic() - managed.node.opened_s
    yield Series("gauge", "rabbitmq_erlang_uptime_seconds", "Since the node was opened", {(): uptime_s})
    process = psutil.Process()
    for name, value in io_counters(process).items():
        yield Series("counter", f"rabbitmq_{name.replace('_count', '_ops')}", "Of the process", {(): value})
    if hasattr(process, "num_fds"):
        soft_limit = process.rlimit(psutil.RLIMIT_NOFILE)[0]
        yield Series("gauge", "rabbitmq_process_open_fds", "Open file descriptors", {(): process.num_fds()})
        yield Series("gauge", "rabbitmq_process_max_fds", "Open file descriptors allowed", {(): soft_limit})
        yield Series("gauge", "rabbitmq_process_max_tcp_sockets", "Open TCP sockets allowed", {(): soft_limit})
