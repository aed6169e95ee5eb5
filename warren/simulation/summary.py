"""The summary of a simulation: its result in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warren.simulation.node import Mark, SimulatedNode
from warren.simulation.scenario import Scenario
from warren.simulation.timeline import Timeline
from warren.simulation.units import NS


def finite(value: float) -> float | None:
    """Return a value as JSON has it: ``None`` if it is infinite or NaN."""
    return value if math.isfinite(value) else None


def summarize(scenario: Scenario, node: SimulatedNode, timeline: Timeline) -> dict[str, Any]:
    """Return the summary, as summary.json has it. Times are in seconds, sizes in bytes, counts in messages."""
    return {
        "name": scenario.name,
        "description": scenario.description,
        "seed": scenario.seed,
        "length_s": scenario.length,
        "start_s": scenario.start,
        "node": of_node(
            timeline.node_columns,
            node.marks,
            limit_bytes=node.monitor.limit_bytes,
            paging_ratio=node.monitor.paging_ratio,
            alarm_s=node.alarm_ns / NS,
            disk_busy=node.disk.busy_ns / NS / scenario.length,
            turns=sum(timeline.node_columns["turns"]),
        ),
        "queues": _of_lines(scenario, timeline),
    }


def of_node(
    columns: Mapping[str, Sequence[Any]],
    marks: Sequence[Mark],
    *,
    limit_bytes: int,
    paging_ratio: float,
    alarm_s: float,
    disk_busy: float,
    turns: int,
) -> dict[str, Any]:
    """Return the summary of a node with these rows (:data:`warren.simulation.timeline.NODE_COLUMNS`) and marks."""
    alarms = [mark.at_s for mark in marks if mark.kind == "memory-alarm"]
    return {
        "limit_bytes": limit_bytes,
        "paging_from_bytes": int(limit_bytes * paging_ratio),
        "max_used_bytes": max(columns["used_bytes"], default=0),
        "max_ratio": finite(max(columns["ratio"], default=0.0)),
        "alarms": len(alarms),
        "alarm_s": alarm_s,
        "first_alarm_s": min(alarms, default=None),
        "first_paging_s": min((mark.at_s for mark in marks if mark.kind == "paging-starts"), default=None),
        "max_disk_bytes": max(columns["disk_bytes"], default=0),
        **{name: sum(columns[name]) for name in ("disk_read_bytes", "disk_write_bytes", "disk_syncs")},
        "disk_busy": disk_busy,
        "turns": turns,
    }


_COUNTED = ("published", "delivered", "acked", "requeued", "refused", "dead_lettered")
_MOST = {
    "max_ready": "len",
    "max_ram_msg_count": "ram_msg_count",
    "max_ram_bytes": "ram_bytes",
    "max_waiting_messages": "waiting_messages",
}


def _of_lines(scenario: Scenario, timeline: Timeline) -> dict[str, dict[str, Any]]:
    columns, lines, length_ns = timeline.queue_columns, timeline.lines, scenario.length * NS
    by_step = {name: np.reshape(columns[name], (-1, len(lines))) for name in {"unacked", *_MOST.values()}}
    maxima = {name: by_step[column].max(axis=0).tolist() for name, column in _MOST.items()}
    ready, unacked = by_step["len"][-1].tolist(), by_step["unacked"][-1].tolist()
    totals = {name: timeline.total(name) for name in (*_COUNTED, "held_ns", "turns")}
    return {
        line.name: {
            "queues": len(line.queues),
            **{name: totals[name][number] for name in _COUNTED},
            "dropped": sum(queue.dropped for queue in line.queues),
            "ready": ready[number],
            "unacked": unacked[number],
            "max_ready": maxima["max_ready"][number],
            "mean_ready": sum(queue.ready_area for queue in line.queues) / length_ns,
            "mean_unacked": sum(queue.unacked_area for queue in line.queues) / length_ns,
            "max_ram_msg_count": maxima["max_ram_msg_count"][number],
            "max_ram_bytes": maxima["max_ram_bytes"][number],
            "publishers_held_s": totals["held_ns"][number] / NS,
            "max_waiting_messages": maxima["max_waiting_messages"][number],
            "latency_mean_s": finite(line.latencies.mean_s),
            "latency_p50_s": finite(line.latencies.quantile(0.5)),
            "latency_p99_s": finite(line.latencies.quantile(0.99)),
            "latency_max_s": line.latencies.largest_ns / NS,
            "turns": totals["turns"][number],
        }
        for number, line in enumerate(lines)
    }
