"""What came of a simulation, in a few numbers."""

from __future__ import annotations

import math
from typing import Any

from warren.simulation.node import SimulatedNode
from warren.simulation.scenario import Scenario
from warren.simulation.timeline import Line, Timeline
from warren.simulation.units import NS


def finite(value: float) -> float | None:
    """As JSON has it: neither infinite nor no number."""
    return value if math.isfinite(value) else None


def summarize(scenario: Scenario, node: SimulatedNode, timeline: Timeline) -> dict[str, Any]:
    """The summary, as summary.json has it. Times in seconds, sizes in bytes, counts in messages."""
    columns = timeline.node_columns
    starts = [mark.at_s for mark in node.marks if mark.kind == "paging-starts"]
    alarms = [mark.at_s for mark in node.marks if mark.kind == "memory-alarm"]
    return {
        "name": scenario.name,
        "seed": scenario.seed,
        "length_s": scenario.length,
        "node": {
            "limit_bytes": node.monitor.limit_bytes,
            "paging_from_bytes": int(node.monitor.limit_bytes * node.monitor.paging_ratio),
            "max_used_bytes": max(columns["used_bytes"]),
            "max_ratio": finite(max(columns["ratio"])),
            "alarms": len(alarms),
            "alarm_s": node.alarm_ns / NS,
            "first_alarm_s": min(alarms, default=None),
            "first_paging_s": min(starts, default=None),
            "max_disk_bytes": max(columns["disk_bytes"]),
            "disk_read_bytes": sum(columns["disk_read_bytes"]),
            "disk_write_bytes": sum(columns["disk_write_bytes"]),
            "disk_syncs": sum(columns["disk_syncs"]),
            "disk_busy": node.disk.busy_ns / NS / scenario.length,
            "turns": sum(columns["turns"]),
        },
        "queues": {line.name: _of_line(line, timeline, scenario) for line in timeline.lines},
    }


def _of_line(line: Line, timeline: Timeline, scenario: Scenario) -> dict[str, Any]:
    columns = timeline.queue_columns
    rows = [number for number, name in enumerate(columns["queue"]) if name == line.name]

    def most(name: str) -> Any:
        return max(columns[name][row] for row in rows)

    counters, latencies = line.counters, line.latencies
    length_ns = scenario.length * NS
    return {
        "queues": len(line.queues),
        "published": counters.published,
        "delivered": counters.delivered,
        "acked": counters.acked,
        "requeued": counters.requeued,
        "refused": counters.refused,
        "dead_lettered": counters.dead_lettered,
        "ready": columns["len"][rows[-1]],
        "unacked": columns["unacked"][rows[-1]],
        "max_ready": most("len"),
        "mean_ready": sum(queue.ready_area for queue in line.queues) / length_ns,
        "mean_unacked": sum(queue.unacked_area for queue in line.queues) / length_ns,
        "max_ram_msg_count": most("ram_msg_count"),
        "max_ram_bytes": most("ram_bytes"),
        "publishers_held_s": counters.held_ns / NS,
        "max_waiting_messages": most("waiting_messages"),
        "latency_mean_s": finite(latencies.mean_s),
        "latency_p50_s": finite(latencies.quantile(0.5)),
        "latency_p99_s": finite(latencies.quantile(0.99)),
        "latency_max_s": latencies.largest_ns / NS,
        "turns": counters.turns,
    }
