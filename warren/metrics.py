"""Metrics: a node's numbers for Prometheus, under the names that RabbitMQ's own plugin gives them.

Dashboards and alerts for RabbitMQ's queues work for a node, too. Every queue has its own series, with labels ``vhost``
and ``queue``, as the plugin has them when it does not aggregate. The numbers are read when they are scraped: every
queue is asked once. Names that begin with ``warren_`` are warren's own.

Needs ``pip install "warrenmq[prometheus]"``.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import attrs

from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

QUEUE_GAUGES: Final = (
    ("rabbitmq_queue_messages_ready", "messages_ready", "Messages ready to be delivered"),
    ("rabbitmq_queue_messages_unacked", "messages_unacknowledged", "Messages with consumers, not yet acked"),
    ("rabbitmq_queue_messages", "messages", "Ready and unacked messages"),
    ("rabbitmq_queue_messages_ram", "messages_ram", "Messages whose body is in memory"),
    ("rabbitmq_queue_messages_ready_ram", "messages_ready_ram", "Ready messages whose body is in memory"),
    ("rabbitmq_queue_messages_unacked_ram", "messages_unacknowledged_ram", "Unacked messages whose body is in memory"),
    ("rabbitmq_queue_messages_persistent", "messages_persistent", "Persistent messages"),
    ("rabbitmq_queue_messages_paged_out", "messages_paged_out", "Messages paged out to disk"),
    ("rabbitmq_queue_messages_bytes", "message_bytes", "Bytes of ready and unacked messages"),
    ("rabbitmq_queue_messages_ready_bytes", "message_bytes_ready", "Bytes of ready messages"),
    ("rabbitmq_queue_messages_unacked_bytes", "message_bytes_unacknowledged", "Bytes of unacked messages"),
    ("rabbitmq_queue_messages_ram_bytes", "message_bytes_ram", "Bytes of messages whose body is in memory"),
    ("rabbitmq_queue_messages_persistent_bytes", "message_bytes_persistent", "Bytes of persistent messages"),
    ("rabbitmq_queue_messages_paged_out_bytes", "message_bytes_paged_out", "Bytes of messages paged out to disk"),
    ("rabbitmq_queue_consumers", "consumers", "Consumers of the queue"),
)
"""Metric, name in the queue's stats, help."""

QUEUE_COUNTERS: Final = (
    ("rabbitmq_queue_disk_reads_total", "disk_reads", "Times that the queue read messages from disk"),
    ("rabbitmq_queue_disk_writes_total", "disk_writes", "Times that the queue wrote messages to disk"),
)

_NODE_GAUGES: Final = (
    ("rabbitmq_process_resident_memory_bytes", "used_bytes", "Memory used"),
    ("rabbitmq_resident_memory_limit_bytes", "limit_bytes", "Memory above which publishers are blocked"),
    ("rabbitmq_disk_space_available_bytes", "disk_free_bytes", "Free space on the disk"),
    ("rabbitmq_disk_space_available_limit_bytes", "disk_limit_bytes", "Free space below which publishers are blocked"),
)
"""Metric, name in the node's memory numbers, help."""

_ALARMS: Final = (
    ("rabbitmq_alarms_memory_used_watermark", "memory", "1 while the memory alarm is set"),
    ("rabbitmq_alarms_free_disk_space_watermark", "disk", "1 while the disk alarm is set"),
)

_STORE_GAUGES: Final = (
    ("warren_store_messages", "messages", "Bodies in the message store"),
    ("warren_store_size_bytes", "size_bytes", "Size of the store's files"),
    ("warren_store_valid_bytes", "valid_bytes", "Bytes in the store's files that are still needed"),
)

_COMMIT_LOG_GAUGES: Final = (
    ("rocketmq_commitlog_max_offset", "max_offset", "Where the next message goes in the CommitLog"),
    ("rocketmq_commitlog_min_offset", "min_offset", "Where the first message that is kept begins in the CommitLog"),
    ("rocketmq_dispatch_behind_bytes", "dispatch_behind_bytes", "Bytes of messages that cannot be found yet"),
)

_PART_SERIES: Final = 200
"""Series that are written at once, in a millisecond or so."""
_COMMENT_LINES: Final = 2
"""HELP and TYPE."""

_GROUP_LABELS: Final = ("group", "topic")
QUEUE_LABELS: Final = ("vhost", "queue")
_STORE_LABELS: Final = ("vhost", "store")


Kind = Literal["counter", "gauge"]


class MissingLibraryError(WarrenError, ImportError):
    """prometheus_client is not installed."""


class HasStats(Protocol):
    """A node (:class:`warren.Node`)."""

    def stats(self) -> dict[str, Any]: ...


@attrs.define(eq=False, repr=False)
class NodeCollector:
    """A collector of one node, as prometheus_client has them. Made by :func:`register`."""

    _node: HasStats
    _registry: CollectorRegistry | None = None

    def describe(self) -> list[Metric]:
        """Nothing: the registry shall not read the numbers to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read the node now. A node that was closed has no numbers."""
        try:
            stats = self._node.stats()
        except WarrenError:
            return
        yield from metrics_of(stats)

    def unregister(self) -> None:
        """Remove it from its registry; a second call does nothing."""
        registry, self._registry = self._registry, None
        if registry is not None:
            with contextlib.suppress(KeyError):
                registry.unregister(self)

    close = unregister

    def __enter__(self) -> NodeCollector:
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()


def register(node: HasStats, registry: CollectorRegistry | None = None) -> NodeCollector:
    """Let a registry, or the usual one, have the numbers of a node, until the collector is unregistered.

    Two nodes need a registry each, because their series would have the same names. Raises
    :class:`MissingLibraryError` if prometheus_client is not installed.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise MissingLibraryError('metrics need prometheus_client: pip install "warrenmq[prometheus]"') from error
    chosen = REGISTRY if registry is None else registry
    collector = NodeCollector(node, chosen)
    chosen.register(collector)
    return collector


@attrs.frozen
class Series:
    """A metric that other code has read: its samples by the values of its labels."""

    kind: Kind
    name: str
    """For a counter, without ``_total``."""
    text: str
    samples: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()


def exposition(
    stats: Mapping[str, Any] | None, further: Iterable[Series], *, per_object: bool
) -> tuple[Iterator[bytes], str]:
    """All metrics as a scrape gets them, in parts, and their content type. Raises :class:`MissingLibraryError`.

    ``stats``: a node's; ``None``: only the ``further`` metrics.
    """
    try:
        from prometheus_client import CONTENT_TYPE_LATEST
    except ImportError as error:
        raise MissingLibraryError('metrics need prometheus_client: pip install "warrenmq[server]"') from error
    of_node = () if stats is None else metrics_of(stats, per_object=per_object)
    families = itertools.chain(of_node, map(_family, further))
    return (part for family in families for part in _parts(family)), CONTENT_TYPE_LATEST


def _parts(family: Metric) -> Iterator[bytes]:
    """The text of a metric, the series of a few queues at a time, after its lines of comments."""
    from prometheus_client import generate_latest

    part = copy.copy(family)
    for start in range(0, max(len(family.samples), 1), _PART_SERIES):
        part.samples = family.samples[start : start + _PART_SERIES]
        text = generate_latest(_Collected([part]))
        yield text if start == 0 else text.split(b"\n", _COMMENT_LINES)[-1]


@attrs.frozen
class _Collected:
    """What a scrape gives, as a registry of prometheus_client's."""

    metrics: list[Metric]

    def collect(self) -> list[Metric]:
        """All of them."""
        return self.metrics


def _family(series: Series) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family_class = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    family = family_class(series.name, series.text, labels=series.labels)
    for labels, value in series.samples.items():
        family.add_metric(list(labels), value)
    return family


def metrics_of(stats: Mapping[str, Any], *, per_object: bool = True) -> Iterator[Metric]:
    """The metrics of a node's stats. Without ``per_object`` those of queues are sums of all, without labels."""
    yield from map(_family, node_series(stats["memory"]))
    yield from _of_vhosts(stats["vhosts"], per_object=per_object)
    if stats["topics"] is not None:
        yield from _of_topics(stats["topics"])


def node_series(memory: Mapping[str, Any]) -> Iterator[Series]:
    """The metrics of the node's memory and disk."""
    for name, key, text in _NODE_GAUGES:
        if (value := memory.get(key)) is not None:
            yield Series("gauge", name, text, {(): value})
    for name, alarm, text in _ALARMS:
        yield Series("gauge", name, text, {(): float(alarm in memory["alarms"])})


def _of_vhosts(vhosts: Mapping[str, Any], *, per_object: bool) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    queues = [([vhost, name], stats) for vhost, part in vhosts.items() for name, stats in part["queues"].items()]
    stores = [([vhost, kind], status) for vhost, part in vhosts.items() for kind, status in part["stores"].items()]
    yield GaugeMetricFamily("rabbitmq_queues", "Queues", value=len(queues))
    yield GaugeMetricFamily("rabbitmq_consumers", "Consumers", value=sum(stats["consumers"] for _, stats in queues))
    down = GaugeMetricFamily("warren_queues_down", "Queues that cannot be used", labels=["vhost"])
    for vhost, part in vhosts.items():
        down.add_metric([vhost], len(part["down"]))
    yield down
    if not per_object:
        queues = [([], _summed([stats for _, stats in queues]))]
    queue_labels = QUEUE_LABELS if per_object else ()
    for families, samples, labels in (
        (QUEUE_GAUGES, queues, queue_labels),
        (_STORE_GAUGES, stores, _STORE_LABELS),
    ):
        for name, key, text in families:
            gauge = GaugeMetricFamily(name, text, labels=labels)
            for values, numbers in samples:
                gauge.add_metric(values, numbers[key])
            yield gauge
    for name, key, text in QUEUE_COUNTERS:
        counter = CounterMetricFamily(name, text, labels=queue_labels)
        for values, numbers in queues:
            counter.add_metric(values, numbers[key])
        yield counter


def _summed(stats: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: sum(numbers[key] for numbers in stats) for _, key, _ in (*QUEUE_GAUGES, *QUEUE_COUNTERS)}


def _of_topics(stats: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    yield GaugeMetricFamily("warren_topics_down", "1 while topics cannot be used", value=float(bool(stats["down"])))
    for name, key, text in _COMMIT_LOG_GAUGES:
        if key in stats["commit_log"]:
            yield GaugeMetricFamily(name, text, value=stats["commit_log"][key])
    produced = GaugeMetricFamily("rocketmq_producer_offset", "Messages ever appended to the topic", labels=["topic"])
    consumed = GaugeMetricFamily("rocketmq_consumer_offset", "Messages the group has finished", labels=_GROUP_LABELS)
    lag = GaugeMetricFamily("rocketmq_group_diff", "Messages the group has not finished", labels=_GROUP_LABELS)
    for topic, numbers in stats["topics"].items():
        produced.add_metric([topic], sum(queue["max_offset"] for queue in numbers["queues"].values()))
        for group, state in numbers["groups"].items():
            consumed.add_metric([group, topic], sum(state["committed"].values()))
            lag.add_metric([group, topic], sum(state["lag"].values()))
    yield from (produced, consumed, lag)
