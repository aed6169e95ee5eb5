"""Samples: the numbers of a node at one moment, as the management API names them, with rates since the last ones.

A sample asks all queues, each for at most :data:`QUEUE_PATIENCE_S`; a busy queue keeps the numbers of the sample
before. A queue that has been at rest since is not asked once its rates are zero: its sample would be the same. A sample
changes nothing and wakes nothing.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.queue.queue_entry import QueueEntry
from warren.aio import bridge
from warren.hosting.queue_rows import Key, QueueRow, each_queue, find_queue, queue_row
from warren.hosting.running_node import RunningNode
from warren.management.past import NOTHING, Past
from warren.management.rates import Rates, rates_of
from warren.server.client_link import ClientLink
from warren.top.snapshots import Snapshot, Snapshots
from warren.verbs.steps import run

if TYPE_CHECKING:
    from warren.actors.topics.streams import Stream

QUEUE_PATIENCE_S: Final = 0.5
FRESH_S: Final = 0.9
"""A snapshot that is younger than this is used again."""
SAMPLE_PATIENCE_S: Final = 3.0
"""The longest wait for all queues; the others keep their previous numbers."""

MAX_OTHER: Final = 10_000
"""Vhosts, connections and channels whose rates are known at a time; with more, all rates start over."""

LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
_STATS: Final = (
    "arguments", "auto_delete", "durable", "exclusive", "exclusive_consumer_tag", "single_active_consumer_tag",
    "consumers", "message_bytes", "message_bytes_paged_out", "message_bytes_persistent", "message_bytes_ram",
    "message_bytes_ready", "message_bytes_unacknowledged", "messages_paged_out", "messages_persistent", "messages_ram",
    "messages_ready_ram", "messages_unacknowledged_ram", "name", "state", "vhost", "policy", "operator_policy",
    "effective_policy_definition",
)  # fmt: skip
"""What a queue reports and the API repeats."""
CAPACITY_HALF_LIFE_S: Final = 10.0
"""How soon ``consumer_capacity`` forgets: samples of ten seconds ago weigh half as much as those of now."""
CAPACITY_RESOLUTION: Final = 0.001
"""A capacity that is nearer to 0 or 1 than this has reached it."""
_DISK: Final = ("disk_reads", "disk_writes")
_OF_STREAMS: Final = ("consumers", "policy", "operator_policy", "effective_policy_definition")
"""What a stream reports."""
_NOT_OF_QUORUM: Final = (
    "backing_queue_status", "exclusive_consumer_tag", "head_message_timestamp", "idle_since", "message_bytes_paged_out",
    "messages_paged_out", "messages_ready_ram", "messages_unacknowledged_ram", "recoverable_slaves",
)  # fmt: skip
"""What RabbitMQ does not report of a quorum queue."""

Document = dict[str, Any]


@attrs.frozen
class QueueSample:
    """One queue at one moment."""

    row: QueueRow
    document: Document
    """As ``/api/queues`` has it."""
    message_stats: Mapping[str, int] = attrs.Factory(dict)
    is_settled: bool = False
    """Whether the next sample is the same if the queue has been at rest in between."""


@attrs.define
class QueueUse:
    """What consecutive samples say about the use of one queue."""

    _row: QueueRow
    _sampled_s: float
    _capacity: float = attrs.field(init=False)
    _used_s: float | None = attrs.field(init=False, default=None)
    """When a sample found that the queue, although at rest, had passed on messages."""

    def __attrs_post_init__(self) -> None:
        self._capacity = float(self._row.can_deliver)

    def note(self, row: QueueRow, now_s: float) -> None:
        """Take another sample."""
        before, self._row = self._row, row
        if not row.stats or not before.stats or not before.stats["consumers"]:
            self._capacity = float(row.can_deliver)
        else:
            weight = 0.5 ** ((now_s - self._sampled_s) / CAPACITY_HALF_LIFE_S)
            self._capacity += (row.can_deliver - self._capacity) * (1.0 - weight)
            if abs(row.can_deliver - self._capacity) < CAPACITY_RESOLUTION:
                self._capacity = float(row.can_deliver)
        if row.rest_number != before.rest_number:
            self._used_s = None
        elif row.counts != before.counts:  # messages may bypass a queue at rest
            self._used_s = now_s
        self._sampled_s = now_s

    @property
    def is_settled(self) -> bool:
        """Whether another sample of a queue at rest changes nothing."""
        stats = self._row.stats
        return not stats or not stats["consumers"] or self._capacity == self._row.can_deliver

    @property
    def capacity(self) -> float:
        """The share of the last seconds in which the queue could deliver at once; 0 without consumers."""
        stats = self._row.stats
        return self._capacity if stats and stats["consumers"] else 0

    def idle_since(self, wall_s: float) -> str | None:
        """When a queue that rests was last used, as RabbitMQ writes it; ``None`` if it does not rest.

        ``wall_s``: the time of the last sample.
        """
        if (idle_s := self._row.idle_s) is None:
            return None
        if self._used_s is not None:
            idle_s = min(idle_s, self._sampled_s - self._used_s)
        since = datetime.datetime.fromtimestamp(wall_s - idle_s, datetime.UTC)
        return since.isoformat(timespec="milliseconds")


@attrs.frozen
class NodeSample:
    """A node at one moment."""

    memory: Document
    queues: dict[Key, QueueSample]
    lengths: dict[str | None, Counter[str]]
    """By vhost, and of all: sums of queues' lengths."""
    counted: dict[str | None, Counter[str]]
    """The same of their message stats; of all, including queues that no longer exist, and what they read and wrote."""


@attrs.define
class Samples:
    """The samples of one node. One is taken at a time; meanwhile others' totals and rates may be asked for.

    ``clock``: monotonic seconds.
    """

    _node: RunningNode
    node_name: str
    _clock: Callable[[], float] = time.monotonic
    _wall_clock: Callable[[], float] = time.time
    _rates: Rates = attrs.Factory(Rates)
    """Of queues."""
    _other_rates: Rates = attrs.Factory(Rates)
    _last: dict[Key, QueueSample] = attrs.Factory(dict)
    """The last sample of each queue that had statistics."""
    _uses: dict[Key, QueueUse] = attrs.Factory(dict)
    _deleted_counts: Counter[str] = attrs.Factory(Counter)
    """The counts of queues that no longer exist."""

    def begin(self) -> None:
        """Make queues count what happens to them, including queues that are declared later."""
        self._node.count()

    def take(self) -> NodeSample:
        """A sample. Blocks while queues are asked."""
        now_s = self._clock()
        memory = run(self._node.memory())
        before, self._last = self._last, {}
        samples = {}
        for key, queue in each_queue(self._node):
            samples[key] = self._sample(key, queue, before.pop(key, None), now_s)
        for sample in before.values():
            self._deleted_counts.update(sample.message_stats)
        self._rates.keep(samples)
        self._uses = {key: use for key, use in self._uses.items() if key in samples}
        if len(self._other_rates) > MAX_OTHER:
            self._other_rates.keep(())
        return self._summed(memory, samples)

    def _summed(self, memory: Document, queues: dict[Key, QueueSample]) -> NodeSample:
        vhosts = {*self._node.registry.vhosts, *self._node.registry.down, *(vhost for vhost, _ in queues)}
        every = (None, *vhosts)
        lengths = {vhost: Counter(dict.fromkeys(LENGTHS, 0)) for vhost in every}
        counted: dict[str | None, Counter[str]] = {vhost: Counter() for vhost in every}
        counted[None].update(self._deleted_counts)
        for (vhost, _), queue in queues.items():
            for name in LENGTHS:
                lengths[vhost][name] += queue.document.get(name, 0)
            counted[vhost].update(queue.message_stats)
            stats = queue.row.stats or {}
            counted[None].update({name: stats[name] for name in _DISK if name in stats})
        for vhost in vhosts:
            lengths[None].update(lengths[vhost])
            counted[None].update(counted[vhost])
        return NodeSample(memory, queues, lengths, counted)

    def queue_sample(self, vhost: str, name: str) -> QueueSample | None:
        """Return the sample of one queue; ``None`` if it does not exist."""
        queue, key = find_queue(self._node, vhost, name), (vhost, name)
        return None if queue is None else self._sample(key, queue, self._last.get(key), self._clock())

    def totals(self, sample: NodeSample, vhost: str | None = None, past: Past = NOTHING) -> tuple[Document, Document]:
        """``queue_totals`` and ``message_stats``, with rates, of all queues or of a vhost's."""
        return (
            self.rates_of(("lengths", vhost), sample.lengths.get(vhost, {}), past),
            self.rates_of(("counted", vhost), sample.counted.get(vhost, {}), past),
        )

    def rates_of(
        self, key: object, counters: Mapping[str, float], past: Past = NOTHING, kind: str = "msg_rates"
    ) -> Document:
        """Any other counters with their rates. ``kind``: which samples of the past they have."""
        now_s = self._clock()
        document = rates_of(counters, self._other_rates.note(key, now_s, counters))
        past.add(document, self._other_rates, key, now_s, kind)
        return document

    def document(self, sample: QueueSample, past: Past) -> Document:
        """A queue as the API has it, with samples of the past."""
        if not past.ranges:
            return sample.document
        declaration, document, now_s = sample.row.declaration, dict(sample.document), self._clock()
        key = declaration.vhost, declaration.name
        past.add(document, self._rates, key, now_s, "msg_rates")
        if "message_stats" in document:
            document["message_stats"] = dict(document["message_stats"])
            past.add(document["message_stats"], self._rates, key, now_s, "msg_rates")
        return document

    def _sample(self, key: Key, queue: QueueEntry | Stream, last: QueueSample | None, now_s: float) -> QueueSample:
        if last is not None and last.is_settled and last.row.is_current(queue):
            self._rates.note_unchanged(key, now_s)
            self._use(key, last.row, now_s)
            sample = last
        else:
            row = queue_row(queue, max(0.0, min(QUEUE_PATIENCE_S, now_s + SAMPLE_PATIENCE_S - self._clock())))
            if row.state == "busy" and last is not None and last.row.actor is row.actor:
                row = last.row
            sample = self._sample_of(key, queue, row, now_s)
        if sample.row.stats is not None:
            self._last[key] = sample
        return sample

    def _sample_of(self, key: Key, queue: QueueEntry | Stream, row: QueueRow, now_s: float) -> QueueSample:
        declaration, stats = row.declaration, row.stats
        if stats is None:
            state = {"state": "running"} if row.state == "busy" else {"state": "down", "reason": row.reason}
            return QueueSample(row, declared(declaration, self.node_name) | state)
        counted, lengths = _message_stats(row.counts), {name: stats[name] for name in LENGTHS}
        rates = self._rates.note(key, now_s, counted | lengths)
        numbers = rates_of(lengths, rates)
        if row.actor is None:
            document = declared(declaration, self.node_name) | {"state": "running"} | numbers
            document |= {name: stats[name] for name in _OF_STREAMS}
            return QueueSample(row, document | {"readers": {self.node_name: stats["consumers"]}, "memory": 0})
        use = self._use(key, row, now_s)
        document = {name: stats[name] for name in _STATS} | numbers | {
            "arguments": dict(stats["arguments"]),
            "backing_queue_status": _backing(stats["backing_queue_status"]),
            "consumer_capacity": use.capacity,
            "consumer_utilisation": use.capacity,
            "head_message_timestamp": row.head_timestamp,
            "memory": self._node.allocated_bytes(row.actor),
            "node": self.node_name,
            "recoverable_slaves": None,
            "state": "running",
            "type": declaration.queue_type,
        }  # fmt: skip
        if (idle_since := use.idle_since(self._wall_clock())) is not None:
            document["idle_since"] = idle_since
        if isinstance(queue, QueueEntry) and isinstance(owner := queue.owner, ClientLink) and owner.peer is not None:
            peer = {"peer_host": owner.peer.peer_host, "peer_port": owner.peer.peer_port}
            document["owner_pid_details"] = {"name": owner.name, **peer}
        if declaration.is_quorum:
            document = _of_quorum(document) | _members(declaration, self.node_name)
        if any(counted.values()):
            document["message_stats"] = rates_of(counted, rates)
        is_settled = row.rest_number > 0 and use.is_settled and not any(rates.values())
        return QueueSample(row, document, counted, is_settled)

    def _use(self, key: Key, row: QueueRow, now_s: float) -> QueueUse:
        if (use := self._uses.get(key)) is None:
            use = self._uses[key] = QueueUse(row, now_s)
        else:
            use.note(row, now_s)
        return use


def declared(declaration: QueueDeclaration, node: str) -> Document:
    """What is known of a queue without asking it."""
    members = _members(declaration, node)
    columns = declaration.columns() | {"node": node, "state": "live", "type": declaration.queue_type}
    return members | dict(sorted(columns.items()))


def _of_quorum(document: Document) -> Document:
    """A queue's document under the names that a quorum queue's has."""
    active = document.pop("single_active_consumer_tag")
    shown = {name: value for name, value in document.items() if name not in _NOT_OF_QUORUM}
    return shown | {"message_bytes_dlx": 0, "messages_dlx": 0, "single_active_consumer_ctag": active}


def _members(declaration: QueueDeclaration, node: str) -> Document:
    """The members of a queue that could have several."""
    if not (declaration.is_stream or declaration.is_quorum):
        return {}
    return {"members": [node], "online": [node]} | ({"leader": node} if declaration.is_quorum else {})


def _message_stats(counts: Mapping[str, int]) -> dict[str, int]:
    """RabbitMQ's ``message_stats`` of a queue; it tells gets from deliveries."""
    if not counts:
        return {}
    no_ack = counts["delivered_no_ack"]
    gets = counts["got"]
    return {
        "publish": counts["published"],
        "deliver_get": counts["delivered"],
        "deliver": counts["delivered"] - no_ack - gets,
        "deliver_no_ack": no_ack,
        "get": gets,
        "get_no_ack": 0,
        "get_empty": 0,
        "ack": counts["acked"] - no_ack,
        "redeliver": counts["redelivered"],
    }


def _backing(status: Mapping[str, Any]) -> Document:
    """``backing_queue_status`` as RabbitMQ writes it as JSON: delta is a tuple of Erlang's."""
    document = {name: value for name, value in status.items() if not name.startswith(("message", "disk_"))}
    delta = document.pop("delta")
    start, end = delta["start"], delta["end"]
    unknown = "undefined"
    document["delta"] = [
        "delta",
        unknown if start is None else start,
        delta["count"],
        delta["transient"],
        unknown if end is None else end,
    ]
    return document | {"version": 1}


@attrs.define(eq=False)
class Live:
    """The last snapshot of a node (:mod:`warren.top.snapshots`). ``clock``: monotonic seconds."""

    _node: RunningNode
    _clock: Callable[[], float] = time.monotonic
    _snapshots: Snapshots = attrs.field(init=False)
    _last: Snapshot | None = None
    _taken_s: float = 0.0
    _lock: asyncio.Lock = attrs.Factory(asyncio.Lock)
    _single: Snapshots = attrs.field(init=False)
    """Of single queues, so that the rates of all stay over a second."""
    _singles: dict[Key, tuple[float, Snapshot]] = attrs.Factory(dict)
    """The snapshots of single queues that are still used, and when they were taken."""
    _single_lock: asyncio.Lock = attrs.Factory(asyncio.Lock)

    def __attrs_post_init__(self) -> None:
        self._snapshots, self._single = Snapshots(self._node), Snapshots(self._node)

    async def take(self) -> Snapshot:
        """A snapshot that is hardly a second old."""
        async with self._lock:
            if self._last is None or self._clock() - self._taken_s >= FRESH_S:
                self._last = await bridge.in_thread(self._snapshots.take)
                self._taken_s = self._clock()
            return self._last

    async def queue(self, vhost: str, name: str) -> Snapshot:
        """One queue, with what was declared, hardly a second old. Raises :class:`NotFoundError`."""
        async with self._single_lock:
            oldest_s, key = self._clock() - FRESH_S, (vhost, name)
            self._singles = {of: entry for of, entry in self._singles.items() if entry[0] > oldest_s}
            if key not in self._singles:
                snapshot = await bridge.in_thread(lambda: self._single.queue(vhost, name))
                self._singles[key] = self._clock(), snapshot
            return self._singles[key][1]
