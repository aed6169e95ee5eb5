"""The timeline: a row for each queue (or group) and step, and one for the node; and how long messages waited.

Counts in a row are of the row's moment; rates, reads, writes and latencies are of the step that ends there. What queues
of a group share a row for is added up; of durations and latencies it is the group's as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from storage.counted import DiskAccount
from warren.simulation.node import SimulatedNode
from warren.simulation.simulated_queue import Counters, SimulatedQueue
from warren.simulation.units import NS

_BUCKETS_A_DECADE: Final = 200
_SMALLEST_S: Final = 1e-6
_DECADES: Final = 12

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
"""timeline.parquet: names and kinds. A target, duration or latency that there is not is NaN (an infinite one: inf)."""

NODE_COLUMNS: Final = {
    "time_s": "f8", "used_bytes": "i8", "limit_bytes": "i8", "ratio": "f8", "desired_duration_s": "f8",
    "memory_alarm": "bool", "disk_alarm": "bool", "blocked_publishers": "i8", "waiting_messages": "i8",
    "disk_bytes": "i8", "disk_reads": "i8", "disk_read_bytes": "i8", "disk_writes": "i8", "disk_write_bytes": "i8",
    "disk_syncs": "i8", "disk_busy": "f8", "turns": "i8", "queues_awake": "i8",
}  # fmt: skip
"""node.parquet. ``disk_busy``: the share of the step in which the disk worked."""


@attrs.define(eq=False)
class Latencies:
    """How long messages waited: buckets, 200 a decade, so each is known to 1.2 %; their sum and largest exactly."""

    counts: npt.NDArray[np.int64] = attrs.Factory(lambda: np.zeros(_DECADES * _BUCKETS_A_DECADE + 1, np.int64))
    count: int = 0
    sum_ns: int = 0
    largest_ns: int = 0
    step: list[npt.NDArray[np.int64]] = attrs.Factory(list)
    """Those of the step so far, as they are."""

    def add(self, latencies_ns: npt.NDArray[np.int64]) -> None:
        """Messages that were taken up."""
        self.step.append(latencies_ns)

    def end_step(self) -> tuple[float, float]:
        """p50 and p99 (seconds) of the step; NaN where nothing was taken up."""
        if not self.step:
            return math.nan, math.nan
        values, self.step = np.concatenate(self.step), []
        self.count += len(values)
        self.sum_ns += int(values.sum())
        self.largest_ns = max(self.largest_ns, int(values.max()))
        decades = np.log10(np.maximum(values / NS, _SMALLEST_S) / _SMALLEST_S)
        buckets = np.minimum(np.ceil(decades * _BUCKETS_A_DECADE), len(self.counts) - 1).astype(np.int64)
        self.counts += np.bincount(buckets, minlength=len(self.counts))
        p50, p99 = np.percentile(values, (50, 99)) / NS
        return float(p50), float(p99)

    def quantile(self, share: float) -> float:
        """Seconds within which that share of all messages was taken up; NaN where there were none."""
        if not self.count:
            return math.nan
        bucket = int(np.searchsorted(np.cumsum(self.counts), share * self.count))
        return 0.0 if not bucket else _SMALLEST_S * 10 ** ((bucket - 0.5) / _BUCKETS_A_DECADE)

    @property
    def mean_s(self) -> float:
        return self.sum_ns / self.count / NS if self.count else math.nan


@attrs.define(eq=False)
class Line:
    """What shares the rows of one name: a queue, or a group."""

    name: str
    queues: list[SimulatedQueue]
    latencies: Latencies = attrs.Factory(Latencies)
    disk: DiskAccount = attrs.Factory(DiskAccount)
    counters: Counters = attrs.Factory(Counters)
    """Both as they were at the last row."""


def _infinite(value: float | None) -> float:
    return math.inf if value is None else float(value)


class Timeline:
    """The columns of one simulation, as they grow."""

    def __init__(self, node: SimulatedNode, lines: Sequence[Line]) -> None:
        self.lines = list(lines)
        self.queue_columns: dict[str, list[Any]] = {name: [] for name in QUEUE_COLUMNS}
        self.node_columns: dict[str, list[Any]] = {name: [] for name in NODE_COLUMNS}
        self._node = node
        self._disk_busy_ns = 0
        self._at_ns = 0
        self._turns = 0
        self._store_disk = DiskAccount()

    def take(self) -> None:
        """Add the rows of now."""
        node = self._node
        now_s = node.time.now_ns() / NS
        total, blocked, waiting, turns, awake = DiskAccount(), 0, 0, 0, 0
        for line in self.lines:
            row = self._row(line, now_s)
            for name, column in self.queue_columns.items():
                column.append(row[name])
            blocked += row["blocked_publishers"]
            waiting += row["waiting_messages"]
            turns += row["turns"]
            awake += row["queues"] - row["asleep"]
            total.add(line.disk)
        for store in (node.persistent, node.transient):
            total.add(store.account)
        step = total.since(self._store_disk)
        self._store_disk = total.copy()
        elapsed_ns = max(node.time.now_ns() - self._at_ns, 1)
        busy_ns, self._disk_busy_ns = node.disk.busy_ns - self._disk_busy_ns, node.disk.busy_ns
        self._at_ns = node.time.now_ns()
        used, monitor = node.read_memory(), node.monitor
        values = {
            "time_s": now_s,
            "used_bytes": used,
            "limit_bytes": monitor.limit_bytes,
            "ratio": used / monitor.limit_bytes if monitor.limit_bytes else math.inf,
            "desired_duration_s": _infinite(monitor.desired_duration),
            "memory_alarm": "memory" in node.alarms.active,
            "disk_alarm": "disk" in node.alarms.active,
            "blocked_publishers": blocked,
            "waiting_messages": waiting,
            "disk_bytes": node.files.used_bytes,
            "disk_reads": step.reads,
            "disk_read_bytes": step.read_bytes,
            "disk_writes": step.writes,
            "disk_write_bytes": step.written_bytes,
            "disk_syncs": step.syncs,
            "disk_busy": min(busy_ns / elapsed_ns, 1.0),
            "turns": turns,
            "queues_awake": awake,
        }
        for name, column in self.node_columns.items():
            column.append(values[name])

    def _row(self, line: Line, now_s: float) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(QUEUE_COLUMNS, 0)
        row |= {"time_s": now_s, "queue": line.name, "queues": len(line.queues)}
        targets: list[float] = []
        durations: list[float] = []
        disk, counters = DiskAccount(), Counters()
        for queue in line.queues:
            _add_queue(row, queue, targets, durations)
            disk.add(queue.account)
            for name in _COUNTED:
                setattr(counters, name, getattr(counters, name) + getattr(queue.counters, name))
            row["ram_bytes"] += self._node.allocated.by_owner.get(queue.name, 0)
        row["target_ram_count"] = sum(targets) if targets else math.inf
        row["duration_s"] = min(durations, default=math.inf)
        step = disk.since(line.disk)
        row |= {
            "disk_reads": step.reads,
            "disk_read_bytes": step.read_bytes,
            "disk_writes": step.writes,
            "disk_write_bytes": step.written_bytes,
            "disk_syncs": step.syncs,
        }
        for name in _COUNTED:
            row[name] = getattr(counters, name) - getattr(line.counters, name)
        row["latency_p50_s"], row["latency_p99_s"] = line.latencies.end_step()
        line.disk, line.counters = disk, counters
        return row


_COUNTED: Final = ("published", "delivered", "acked", "requeued", "refused", "dead_lettered", "turns", "held_ns")


def _add_queue(row: dict[str, Any], queue: SimulatedQueue, targets: list[float], durations: list[float]) -> None:
    """Add what one queue has to a row."""
    process = queue.process
    row["blocked_publishers"] += queue.blocked_publishers
    row["waiting_messages"] += queue.waiting_messages
    row["len"] += len(process)
    row["unacked"] += process.unacked
    backing = process.backing
    if backing.asleep:
        row["asleep"] += 1
        row["delta"] += len(process)
        row["message_bytes"] += backing.ready_bytes
        targets.append(math.inf)
        return
    for _, level in backing.awake():
        s = level.state
        row["q1"] += len(s.q1)
        row["q2"] += len(s.q2)
        row["delta"] += s.delta.count
        row["q3"] += len(s.q3)
        row["q4"] += len(s.q4)
        row["ram_msg_count"] += s.ram_msg_count
        row["ram_ack_count"] += s.ram_ack_count
        row["ingress_rate"] += s.rates.ingress
        row["egress_rate"] += s.rates.egress
        row["ack_ingress_rate"] += s.rates.ack_ingress
        row["ack_egress_rate"] += s.rates.ack_egress
        row["message_bytes"] += s.bytes + s.unacked_bytes
        row["message_bytes_ram"] += s.ram_bytes
        targets.append(_infinite(s.target_ram_count))
        if not s.rates.idle:
            durations.append((s.ram_msg_count + s.ram_ack_count) / s.rates.total)
