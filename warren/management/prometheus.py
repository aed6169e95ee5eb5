"""``/metrics``: a node's numbers as Prometheus scrapes them, under the names of RabbitMQ's plugin.

``/metrics`` has sums of all queues, ``/metrics/per-object`` a series of each. They are read at the moment of the
scrape. Nobody needs to log in for them on the machine itself, as with RabbitMQ; who is elsewhere needs a user with the
tag ``monitoring``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import psutil
from starlette.requests import Request
from starlette.responses import Response

from warren.actors.engines.definitions_json import BROKER_VERSION
from warren.aio import bridge
from warren.management import access
from warren.management.call import MONITOR_TAGS, Managed
from warren.management.clients import channels_of, connections_of
from warren.management.http import not_authorised, not_found
from warren.metrics import Series, exposition
from warren.steps import run

PATHS: Final = frozenset({"/metrics", "/metrics/per-object"})

_GLOBAL: Final = (
    ("messages_received", "publish", "Messages published by clients"),
    ("messages_acknowledged", "ack", "Messages acked by consumers"),
    ("messages_delivered", "deliver_get", "Messages that consumers got"),
    ("messages_delivered_consume_manual_ack", "deliver", "Messages that consumers got and have to ack"),
    ("messages_delivered_consume_auto_ack", "deliver_no_ack", "Messages that consumers got and need not ack"),
    ("messages_delivered_get_manual_ack", "get", "Messages that were got one by one"),
    ("messages_redelivered", "redeliver", "Messages that were delivered again"),
)
"""Name, name in the message stats, help."""
_CHANNELS: Final = (
    ("consumers", "consumer_count", "Consumers of channels"),
    ("messages_unacked", "messages_unacknowledged", "Messages delivered and not yet acked"),
    ("messages_unconfirmed", "messages_unconfirmed", "Messages published and not yet confirmed"),
    ("messages_uncommitted", "messages_uncommitted", "Messages of transactions that were not committed"),
    ("acks_uncommitted", "acks_uncommitted", "Acks of transactions that were not committed"),
)


async def answer(managed: Managed, request: Request, path: str) -> Response:
    """The answer to a scrape. Raises :class:`HttpError`."""
    if request.method not in ("GET", "HEAD"):
        raise not_found()
    if not access.is_loopback(request):
        user = access.identify(managed, access.Sessions(0), request)
        if MONITOR_TAGS.isdisjoint(user.tags):
            raise not_authorised("Not monitor user")
    sample = await managed.sample()
    _, counted = managed.samples.totals(sample, None)
    further = [*_of_clients(managed), *_of_messages(counted), *_about(managed)]

    def read() -> tuple[bytes, str]:
        return exposition(run(managed.node.stats()), further, per_object=path.endswith("per-object"))

    body, content_type = await bridge.in_thread(read)
    return Response(body, headers={"content-type": content_type})


def _of_clients(managed: Managed) -> Iterator[Series]:
    connections = connections_of(managed.clients, managed.node_name)
    channels = channels_of(managed.clients, managed.node_name)
    yield Series("gauge", "rabbitmq_connections", "Connections currently open", {(): len(connections)})
    yield Series("gauge", "rabbitmq_channels", "Channels currently open", {(): len(channels)})
    yield Series("gauge", "rabbitmq_process_open_tcp_sockets", "Open TCP sockets", {(): len(connections)})
    for name, key in (("incoming", "recv_oct"), ("outgoing", "send_oct")):
        total = sum(one[key] for one in connections)
        yield Series("counter", f"rabbitmq_connection_{name}_bytes", "Bytes of open connections", {(): total})
    for name, key, text in _CHANNELS:
        yield Series("gauge", f"rabbitmq_channel_{name}", text, {(): sum(one[key] for one in channels)})


def _of_messages(counted: Mapping[str, Any]) -> Iterator[Series]:
    published = counted.get("publish", 0)
    yield Series("counter", "rabbitmq_queue_messages_published", "Messages published to queues", {(): published})
    for name, key, text in _GLOBAL:
        yield Series("counter", f"rabbitmq_global_{name}", text, {("amqp091",): counted.get(key, 0)}, ("protocol",))


def _about(managed: Managed) -> Iterator[Series]:
    versions = (BROKER_VERSION, BROKER_VERSION)
    labels = ("rabbitmq_version", "prometheus_plugin_version")
    yield Series("gauge", "rabbitmq_build_info", "Versions", {versions: 1}, labels)
    names = (managed.node_name, managed.cluster_name)
    yield Series("gauge", "rabbitmq_identity_info", "Names", {names: 1}, ("rabbitmq_node", "rabbitmq_cluster"))
    process = psutil.Process()
    if hasattr(process, "num_fds"):
        soft_limit = process.rlimit(psutil.RLIMIT_NOFILE)[0]
        yield Series("gauge", "rabbitmq_process_open_fds", "Open file descriptors", {(): process.num_fds()})
        yield Series("gauge", "rabbitmq_process_max_fds", "Open file descriptors allowed", {(): soft_limit})
        yield Series("gauge", "rabbitmq_process_max_tcp_sockets", "Open TCP sockets allowed", {(): soft_limit})
