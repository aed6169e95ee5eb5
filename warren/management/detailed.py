"""``/metrics/detailed``: series of single queues, connections, channels and exchanges, as far as they are asked for.

A *family* is a group of metrics under the name that RabbitMQ 3.10 has for it. ``?family=queue_coarse_metrics&vhost=a``
asks for one; both parameters may occur several times. Vhosts limit the series of queues only. A family is empty if it
is about what is not counted here (Erlang's processes, Raft, messages of a channel by queue or exchange), or unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from warren.hosting.running_node import RunningNode
from warren.management.samples import Document, NodeSample
from warren.metrics import QUEUE_COUNTERS, QUEUE_GAUGES, QUEUE_LABELS, Kind, Series, node_series

CHANNEL_GAUGES: Final = (
    ("consumers", "consumer_count", "Consumers of channels"),
    ("messages_unacked", "messages_unacknowledged", "Messages delivered and not yet acked"),
    ("messages_unconfirmed", "messages_unconfirmed", "Messages published and not yet confirmed"),
    ("messages_uncommitted", "messages_uncommitted", "Messages of transactions that were not committed"),
    ("acks_uncommitted", "acks_uncommitted", "Acks of transactions that were not committed"),
)
_LABEL: Final = "channel"
"""RabbitMQ's label of a connection or channel; its value, a process there, is the name here."""
_PREFIX: Final = "rabbitmq_"
_DETAILED: Final = "rabbitmq_detailed_"

Labels = tuple[str, ...]
"""Names or values of labels."""
_Metrics = Sequence[tuple[Kind, str, str, str]]
"""Kind, name, name in the API's documents, help."""

_COARSE: Final = frozenset({"messages_ready", "messages_unacknowledged", "messages"})
_GAUGES: Final[_Metrics] = tuple(("gauge", name.removeprefix(_PREFIX), key, text) for name, key, text in QUEUE_GAUGES)
_CONSUMERS: Final = tuple(metric for metric in _GAUGES if metric[2] == "consumers")
_CAPACITY: Final = "Share of the time in which the queue could deliver at once"
_OF_QUEUES: Final[Mapping[str, _Metrics]] = {
    "queue_coarse_metrics": tuple(metric for metric in _GAUGES if metric[2] in _COARSE),
    "queue_consumer_count": _CONSUMERS,
    "queue_metrics": (
        *(metric for metric in _GAUGES if metric[2] not in _COARSE),
        ("gauge", "queue_consumer_capacity", "consumer_capacity", _CAPACITY),
        ("gauge", "queue_consumer_utilisation", "consumer_utilisation", _CAPACITY),
        ("gauge", "queue_process_memory_bytes", "memory", "Memory of the queue"),
        ("gauge", "queue_head_message_timestamp", "head_message_timestamp", "Timestamp of the next message"),
        *(
            ("counter", name.removeprefix(_PREFIX).removesuffix("_total"), key, text)
            for name, key, text in QUEUE_COUNTERS
        ),
    ),
}
_OF_CONNECTIONS: Final[Mapping[str, _Metrics]] = {
    "connection_coarse_metrics": (
        ("counter", "connection_incoming_bytes", "recv_oct", "Bytes received"),
        ("counter", "connection_outgoing_bytes", "send_oct", "Bytes sent"),
    ),
    "connection_metrics": (
        ("counter", "connection_incoming_packets", "recv_cnt", "Packets received"),
        ("counter", "connection_outgoing_packets", "send_cnt", "Packets sent"),
        ("gauge", "connection_pending_packets", "send_pend", "Bytes that wait to be sent"),
        ("gauge", "connection_channels", "channels", "Channels of the connection"),
    ),
}
_OF_CHANNELS: Final[Mapping[str, _Metrics]] = {
    "channel_metrics": (
        *(("gauge", f"channel_{name}", key, text) for name, key, text in CHANNEL_GAUGES),
        ("gauge", "consumer_prefetch", "prefetch_count", "Prefetch of the channel's next consumers"),
        ("gauge", "channel_prefetch", "global_prefetch_count", "Prefetch of the channel as a whole"),
    ),
}
_OF_NODE: Final[Mapping[str, tuple[str, ...]]] = {
    "connection_churn_metrics": (
        "connections_opened", "connections_closed", "channels_opened", "channels_closed", "queues_declared",
        "queues_created", "queues_deleted",
    ),
    "node_coarse_metrics": (
        "process_open_fds", "process_open_tcp_sockets", "process_resident_memory_bytes", "disk_space_available_bytes",
    ),
    "node_metrics": (
        "process_max_fds", "process_max_tcp_sockets", "resident_memory_limit_bytes",
        "disk_space_available_limit_bytes", "erlang_uptime_seconds",
    ),
    "node_persister_metrics": (
        "io_read_ops", "io_read_bytes", "io_write_ops", "io_write_bytes", "msg_store_read", "msg_store_write",
    ),
}  # fmt: skip
"""The names of metrics of the whole node, by family."""
_ALWAYS: Final = frozenset({"rabbitmq_build_info", "rabbitmq_identity_info"})


@attrs.frozen
class Scrape:
    """The numbers of a node at one moment."""

    _node: RunningNode
    _sample: NodeSample
    _connections: list[Document]
    _channels: list[Document]
    _of_node: list[Series]
    """What ``/metrics`` shows of clients and of the node itself."""
    _vhosts: Collection[str] = ()
    """Those whose queues are shown; empty: all."""

    def families(self, names: Iterable[str]) -> Iterator[Series]:
        """The series of those families, and what every scrape has."""
        asked = set(names)
        if "queue_metrics" in asked:  # it includes the numbers of consumers
            asked.discard("queue_consumer_count")
        for name in sorted(asked):
            yield from self._family(name)
        yield from (series for series in self._of_node if series.name in _ALWAYS)

    def _family(self, name: str) -> Iterator[Series]:
        if metrics := _OF_QUEUES.get(name):
            queues: dict[Labels, Document] = {
                key: {**(queue.row.stats or {}), **queue.document}
                for key, queue in self._sample.queues.items()
                if not self._vhosts or key[0] in self._vhosts
            }
            yield from _detailed(metrics, queues, QUEUE_LABELS)
        elif metrics := _OF_CONNECTIONS.get(name):
            yield from _detailed(metrics, _by_name(self._connections), (_LABEL,))
        elif metrics := _OF_CHANNELS.get(name):
            yield from _detailed(metrics, _by_name(self._channels), (_LABEL,))
        elif names := _OF_NODE.get(name):
            for series in (*self._of_node, *node_series(self._sample.memory)):
                if series.name.removeprefix(_PREFIX) in names:
                    yield attrs.evolve(series, name=_DETAILED + series.name.removeprefix(_PREFIX))
        elif name == "vhost_status":
            status: dict[Labels, float] = {(vhost,): 0.0 for vhost in self._node.registry.down}
            status |= {(vhost,): 1.0 for vhost in self._node.registry.vhosts}
            yield Series("gauge", "rabbitmq_cluster_vhost_status", "1: the vhost is running", status, ("vhost",))
        elif name == "exchange_names":
            yield self._exchanges()

    def _exchanges(self) -> Series:
        exchanges: dict[Labels, float] = {
            (vhost, exchange.name, exchange.type): 1.0
            for vhost, running in list(self._node.registry.vhosts.items())
            for exchange in running.definitions.exchanges()
            if exchange.name and not exchange.internal
        }
        labels = ("vhost", "exchange", "type")
        return Series("gauge", "rabbitmq_cluster_exchange_name", "1 for each exchange", exchanges, labels)


def _by_name(documents: list[Document]) -> dict[Labels, Document]:
    return {(document["name"],): document for document in documents}


def _detailed(metrics: _Metrics, objects: Mapping[Labels, Mapping[str, Any]], labels: Labels) -> Iterator[Series]:
    for kind, name, key, text in metrics:
        samples = {values: numbers[key] for values, numbers in objects.items() if numbers.get(key) is not None}
        yield Series(kind, _DETAILED + name, text, samples, labels)
