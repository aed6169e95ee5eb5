"""The timeline: a row for each queue (or group) and step, and a row for the node and step.

State in a row is that at the end of the step; rates, reads, writes and latencies are those of the step. A group's row
has the sums of its queues; durations and latencies are those of the group as a whole.

Of ten thousand queues, few are active in a step. So the last known state of each is kept in a matrix with a row for
each queue. Only queues that had a turn, or whose publishers were blocked, are read again; then the columns are summed
up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.simulation.node.simulated_node import SimulatedNode
from warren.simulation.node.simulated_queue import SimulatedQueue
from warren.simulation.scenarios.units import NS
from warren.storage.counted import DiskAccount

QUEUE_COLUMNS: Final = {
    "time_s": "f8", "queue": "str", "queues": "i8",
    "q1": "i8", "q2": "i8", "delta": "i8", "q3": "i8", "q4": "i8", "len": "i8", "unacked": "i8",
    "ram_msg_count": "i8", "ram_ack_count": "i8", "target_ram_count": "f8", "duration_s": "f8",
    "ingress_rate": "f8", "egress_rate": "f8", "ack_ingress_rate": "f8", "ack_egress_rate": "f8",
    "published": "i8", "delivered": "i8", "acked": "i8", "requeued": "i8", "refused": "i8", "dead_lettered": "i8",
    "message_bytes": "i8", "message_bytes_ram": "i8", "ram_bytes": "i8",
    "disk_reads": "i8", "disk_read_bytes": "i8", "disk_writes": "i8", "disk_write_bytes": "i8", "disk_syncs": "i8",
    "blocked_publishers": "i8", "waiting_messages": "i8", "turns": "i8", "asleep": "i8",
    "latency_p50_s": "f8", "latency_p99_s": "f8",
}  # fmt: skip
"""timeline.parquet: names and kinds. A missing target, duration or latency is NaN (an infinite one: inf)."""

NODE_COLUMNS: Final = {
    "time_s": "f8", "used_bytes": "i8", "limit_bytes": "i8", "ratio": "f8", "desired_duration_s": "f8",
    "memory_alarm": "bool", "disk_alarm": "bool", "blocked_publishers": "i8", "waiting_messages": "i8",
    "disk_bytes": "i8", "disk_reads": "i8", "disk_read_bytes": "i8", "disk_writes": "i8", "disk_write_bytes": "i8",
    "disk_syncs": "i8", "disk_busy": "f8", "turns": "i8", "queues_awake": "i8",
}  # fmt: skip
"""node.parquet. ``disk_busy``: the share of the step in which the disk worked."""

_NOW: Final = (
    "q1", "q2", "delta", "q3", "q4", "len", "unacked", "ram_msg_count", "ram_ack_count",
    "message_bytes", "message_bytes_ram", "ram_bytes", "blocked_publishers", "waiting_messages", "asleep",
)  # fmt: skip
"""What a queue has, as it is at a row's moment."""
MESSAGE_COUNTS: Final = ("published", "delivered", "acked", "requeued", "refused", "dead_lettered")
DISK_COUNTS: Final = ("disk_reads", "disk_read_bytes", "disk_writes", "disk_write_bytes", "disk_syncs")
_WHOLE: Final = (*_NOW, *MESSAGE_COUNTS, "turns", "held_ns", *DISK_COUNTS)
"""The columns of a matrix of integers; those after :data:`_NOW` are counted since the start."""
_ADDED: Final = ("target_ram_count", "ingress_rate", "egress_rate", "ack_ingress_rate", "ack_egress_rate")
_FLOATS: Final = (*_ADDED, "duration_s", "latency_p50_s", "latency_p99_s")
_AT: Final = {name: number for number, name in enumerate(_WHOLE)}
_FROM_COUNTED: Final = len(_NOW)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BUCKETS_A_DECADE: Final = 200
_SMALLEST_S: Final = 1e-6
_DECADES: Final = 12


@attrs.define(eq=False)
class Latencies:
    """How long messages of a queue or group waited, from the moment they were to be published to their delivery.

    The latencies are counted in buckets, 200 a decade, so each is known to 1.2 %; their sum and the largest are exact.
    During a step, the deliveries are only collected; at its end the latencies of all of them are computed together.
    """

    counts: Ints | None = None
    """By bucket; ``None`` before the first."""
    count: int = 0
    sum_ns: int = 0
    largest_ns: int = 0
    _ids: list[bytes] = attrs.Factory(list)
    _taken_ns: list[Ints] = attrs.Factory(list)
    """Of the step so far: messages' ids, and when they were delivered."""

    def add(self, ids: bytes, taken_ns: Ints) -> None:
        """Note delivered messages. ``ids``: 16 bytes each; the first half is the time (the other all ones: unknown)."""
        self._ids.append(ids)
        self._taken_ns.append(taken_ns)

    def end_step(self) -> tuple[float, float]:
        """Return the p50 and p99 (seconds) of the step; NaN if nothing was delivered."""
        if not self._ids:
            return math.nan, math.nan
        halves = np.frombuffer(b"".join(self._ids), ">i8").astype(np.int64)
        values = (np.concatenate(self._taken_ns) - halves[::2])[halves[1::2] >= 0]
        self._ids, self._taken_ns = [], []
        if not len(values):
            return math.nan, math.nan
        self.count += len(values)
        self.sum_ns += int(values.sum())
        self.largest_ns = max(self.largest_ns, int(values.max()))
        most = _DECADES * _BUCKETS_A_DECADE
        decades = np.log10(np.maximum(values / NS, _SMALLEST_S) / _SMALLEST_S)
        buckets = np.minimum(np.ceil(decades * _BUCKETS_A_DECADE), most).astype(np.int64)
        counts = np.bincount(buckets, minlength=most + 1)
        self.counts = counts if self.counts is None else self.counts + counts
        p50, p99 = np.percentile(values, (50, 99)) / NS
        return float(p50), float(p99)

    def quantile(self, share: float) -> float:
        """Return the seconds within which that share of all messages was delivered; NaN if there were none."""
        if self.counts is None:
            return math.nan
        bucket = int(np.searchsorted(np.cumsum(self.counts), share * self.count))
        if not bucket:
            return 0.0
        middle_s = _SMALLEST_S * 10 ** ((bucket - 0.5) / _BUCKETS_A_DECADE)
        return min(middle_s, self.largest_ns / NS)  # the last bucket's middle may lie above all that is in it

    @property
    def mean_s(self) -> float:
        return self.sum_ns / self.count / NS if self.count else math.nan


@attrs.define(eq=False)
class Line:
    """What shares the rows of one name: a queue, or a group."""

    name: str
    queues: list[SimulatedQueue]
    latencies: Latencies = attrs.Factory(Latencies)


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return all rows as one matrix, which takes the place of its parts."""
    if len(parts) > 1:
        parts[:] = [np.concatenate(parts)]
    return parts[0]


class Timeline:
    """The columns of one simulation, as they grow."""

    def __init__(self, node: SimulatedNode, lines: Sequence[Line]) -> None:
        self.lines = list(lines)
        self.node_columns: dict[str, list[Any]] = {name: [] for name in NODE_COLUMNS}
        self._node = node
        queues = [queue for line in self.lines for queue in line.queues]
        self._place = {queue: number for number, queue in enumerate(queues)}
        sizes = [len(line.queues) for line in self.lines]
        self._begins = np.cumsum([0, *sizes[:-1]])
        self._sizes = np.asarray(sizes, np.int64)
        self._whole: Ints = np.zeros((len(queues), len(_WHOLE)), np.int64)
        self._floats: Floats = np.zeros((len(queues), len(_ADDED) + 1))
        self._sums: Ints = np.zeros((len(self.lines), len(_WHOLE)), np.int64)
        self._line_floats: Floats = np.zeros((len(self.lines), len(_ADDED) + 1))
        self._times: list[float] = []
        self._whole_rows: list[Ints] = [self._whole[:0]]
        self._float_rows: list[Floats] = [np.zeros((0, len(_FLOATS)))]
        self._disk_busy_ns = 0
        self._at_ns = 0
        self._disk = DiskAccount()

    @property
    def queue_columns(self) -> dict[str, npt.NDArray[Any]]:
        """The columns of the queues' rows until now."""
        steps, count = len(self._times), len(self.lines)
        names = np.empty(count, object)
        names[:] = [line.name for line in self.lines]
        columns: dict[str, npt.NDArray[Any]] = {
            "time_s": np.repeat(np.asarray(self._times, np.float64), count),
            "queue": np.tile(names, steps),
            "queues": np.tile(self._sizes, steps),
        }
        columns |= zip(_WHOLE, _joined(self._whole_rows).T, strict=True)
        columns |= zip(_FLOATS, _joined(self._float_rows).T, strict=True)
        return {name: columns[name] for name in QUEUE_COLUMNS}

    def total(self, name: str) -> list[int]:
        """Return for each line what was counted until the last row."""
        totals: list[int] = self._sums[:, _AT[name]].tolist()
        return totals

    def take(self) -> None:
        """Add the rows of this moment."""
        self._look()
        previous_sums = self._sums
        if len(self._begins) == len(self._whole):
            self._sums, self._line_floats = self._whole.copy(), self._floats.copy()
        else:
            self._sums = np.add.reduceat(self._whole, self._begins, axis=0)
            added = np.add.reduceat(self._floats, self._begins, axis=0)
            added[:, -1] = np.minimum.reduceat(self._floats[:, -1], self._begins)
            self._line_floats = added
        rows = self._sums.copy()
        rows[:, _FROM_COUNTED:] -= previous_sums[:, _FROM_COUNTED:]
        latencies = [line.latencies.end_step() for line in self.lines]
        self._times.append(self._node.time.now_ns() / NS)
        self._whole_rows.append(rows)
        self._float_rows.append(np.column_stack([self._line_floats, np.asarray(latencies, np.float64)]))
        self._take_node(rows.sum(axis=0))

    def _look(self) -> None:
        """Read the queues again that have changed."""
        node, places, owners = self._node, self._place, self._node.allocated.by_owner
        changed, node.changed = node.changed, {}
        for queue in changed:
            place = places.get(queue)
            if place is not None:
                whole, floats = _seen(queue, owners.get(queue.name, 0))
                self._whole[place] = whole
                self._floats[place] = floats
                if queue.behind:  # what waits grows while nothing happens
                    node.changed[queue] = None

    def _take_node(self, step: Ints) -> None:
        node, now_ns = self._node, self._node.time.now_ns()
        disk = DiskAccount(*(int(self._sums[:, _AT[name]].sum()) for name in DISK_COUNTS))
        for store in (node.persistent, node.transient):
            disk.add(store.disk.account)
        step_account, self._disk = disk.since(self._disk), disk
        elapsed_ns, self._at_ns = max(now_ns - self._at_ns, 1), now_ns
        busy_ns, self._disk_busy_ns = node.disk.busy_ns - self._disk_busy_ns, node.disk.busy_ns
        used, monitor = node.read_memory(), node.monitor
        values = {
            "time_s": now_ns / NS,
            "used_bytes": used,
            "limit_bytes": monitor.limit_bytes,
            "ratio": used / monitor.limit_bytes if monitor.limit_bytes else math.inf,
            "desired_duration_s": _infinite(monitor.desired_duration),
            "memory_alarm": "memory" in node.alarms.active,
            "disk_alarm": "disk" in node.alarms.active,
            "blocked_publishers": int(step[_AT["blocked_publishers"]]),
            "waiting_messages": int(step[_AT["waiting_messages"]]),
            "disk_bytes": node.files.used_bytes,
            "disk_reads": step_account.reads,
            "disk_read_bytes": step_account.read_bytes,
            "disk_writes": step_account.writes,
            "disk_write_bytes": step_account.written_bytes,
            "disk_syncs": step_account.syncs,
            "disk_busy": min(busy_ns / elapsed_ns, 1.0),
            "turns": int(step[_AT["turns"]]),
            "queues_awake": len(self._whole) - int(step[_AT["asleep"]]),
        }
        for name, column in self.node_columns.items():
            column.append(values[name])


def _infinite(value: float | None) -> float:
    return math.inf if value is None else float(value)


def _seen(queue: SimulatedQueue, ram_bytes: int) -> tuple[list[int], list[float]]:
    """Return a queue's rows of both matrices."""
    process, counters, disk = queue.process, queue.counters, queue.disk.account
    backing = process.backing
    q1 = q2 = delta = q3 = q4 = ram = ram_acks = size = size_in_ram = 0
    ingress = egress = ack_ingress = ack_egress = 0.0
    target, duration = (math.inf if backing.asleep else 0.0), math.inf
    if backing.asleep:
        delta, size = len(backing), backing.ready_bytes
    for _, level in backing.awake():
        s, rates = level.state, level.state.rates
        q1, q2, delta, q3, q4 = q1 + len(s.q1), q2 + len(s.q2), delta + s.delta.count, q3 + len(s.q3), q4 + len(s.q4)
        ram, ram_acks = ram + s.ram_msg_count, ram_acks + s.ram_ack_count
        ingress, egress = ingress + rates.ingress, egress + rates.egress
        ack_ingress, ack_egress = ack_ingress + rates.ack_ingress, ack_egress + rates.ack_egress
        size, size_in_ram = size + s.bytes + s.unacked_bytes, size_in_ram + s.ram_bytes
        target += _infinite(s.told_ram_count)
        if not rates.idle:
            duration = min(duration, (s.ram_msg_count + s.ram_ack_count) / rates.total)
    whole = [
        q1, q2, delta, q3, q4, len(backing), process.consumers.unacked, ram, ram_acks,
        size, size_in_ram, ram_bytes, queue.blocked_publishers, queue.waiting_messages, queue.asleep,
        counters.published, counters.delivered, counters.acked, counters.requeued, counters.refused,
        counters.dead_lettered, counters.turns, counters.held_ns,
        disk.reads, disk.read_bytes, disk.writes, disk.written_bytes, disk.syncs,
    ]  # fmt: skip
    return whole, [target, ingress, egress, ack_ingress, ack_egress, duration]
