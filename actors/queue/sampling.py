"""Sampling: the state of a queue or a node as a row of a record (:mod:`warren.actors.node.recorder_actor`).

Sampling changes nothing: no queue wakes, and nothing is recalculated that the queue would not recalculate itself.
Counts of messages (``published`` … ``purged``, ``messages_read``, ``messages_written``, ``turns``) cover the time since
the queue's last row; everything else is as of the row's time. Names shared with a simulation's timeline have the same
meaning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from warren.actors.engines.declared.vhost_definitions import is_kept
from warren.actors.engines.queue.queue_context import Counts
from warren.actors.engines.queue.queue_process import QueueProcess

Row = dict[str, Any]

QUEUE_COLUMNS: Final[Mapping[str, str]] = {
    "time_s": "f8", "step": "i8", "vhost": "str", "queue": "str", "durable": "bool", "arguments": "str",
    "q1": "i8", "q2": "i8", "delta": "i8", "q3": "i8", "q4": "i8", "len": "i8", "unacked": "i8",
    "ram_msg_count": "i8", "ram_ack_count": "i8", "target_ram_count": "f8", "duration_s": "f8",
    "ingress_rate": "f8", "egress_rate": "f8", "ack_ingress_rate": "f8", "ack_egress_rate": "f8",
    "published": "i8", "mean_body_bytes": "f8", "persistent_share": "f8", "refused": "i8",
    "delivered": "i8", "delivered_no_ack": "i8", "redelivered": "i8", "acked": "i8", "requeued": "i8",
    "rejected": "i8", "dead_lettered": "i8", "purged": "i8",
    "consumers": "i8", "prefetch": "i8",
    "message_bytes": "i8", "message_bytes_ram": "i8", "ram_bytes": "i8",
    "messages_read": "i8", "messages_written": "i8", "turns": "i8", "asleep": "i8",
}  # fmt: skip
"""The columns of a record's queues: names and types. A missing target or duration is infinite, a mean of nothing
NaN."""

NODE_COLUMNS: Final[Mapping[str, str]] = {
    "time_s": "f8", "step": "i8", "used_bytes": "i8", "limit_bytes": "i8", "ratio": "f8", "desired_duration_s": "f8",
    "memory_alarm": "bool", "disk_alarm": "bool", "disk_free_bytes": "i8", "disk_limit_bytes": "i8",
    "allocated_bytes": "i8", "queues": "i8", "queues_awake": "i8",
}  # fmt: skip
"""The columns of a record's node. ``allocated_bytes``: accounted for by the queues; ``queues_awake``: those not
entirely on disk."""

_RATES: Final = ("ingress_rate", "egress_rate", "ack_ingress_rate", "ack_egress_rate")
_NO_COUNTS: Final = Counts()


def sample_queue(process: QueueProcess, *, prefetch: int) -> Row:
    """Return a queue's state and reset its counts. The recorder fills in the other columns: times, ``turns``."""
    counts = _NO_COUNTS if process.context.counts is None else process.context.counts.take()
    declaration, status = process.context.declaration, process.backing.status()
    asleep = process.backing.asleep
    published = counts.published
    return {
        "vhost": declaration.vhost,
        "queue": declaration.name,
        "durable": is_kept(declaration),
        "arguments": json.dumps(dict(declaration.arguments), default=str, sort_keys=True),
        **{name: status[name] for name in ("q1", "q2", "q3", "q4")},
        "delta": status["delta"]["count"],
        "len": len(process.backing),
        "unacked": process.consumers.unacked,
        "ram_msg_count": status["messages_ready_ram"],
        "ram_ack_count": status["messages_unacknowledged_ram"],
        "target_ram_count": math.inf
        if status["target_ram_count"] == "infinity"
        else float(status["target_ram_count"]),
        "duration_s": _duration_s(process),
        **{name: status[f"avg_{name}"] for name in _RATES},
        "published": published,
        "mean_body_bytes": counts.published_bytes / published if published else math.nan,
        "persistent_share": counts.persistent / published if published else math.nan,
        **{
            name: getattr(counts, name)
            for name in (
                "refused", "delivered", "delivered_no_ack", "redelivered", "acked", "requeued", "rejected",
                "dead_lettered", "purged",
            )
        },
        "consumers": len(process.consumers),
        "prefetch": prefetch,
        "message_bytes": status["message_bytes"],
        "message_bytes_ram": status["message_bytes_ram"],
        "messages_read": status["disk_reads"],
        "messages_written": status["disk_writes"],
        "asleep": int(asleep),
    }  # fmt: skip


def _duration_s(process: QueueProcess) -> float:
    """Return how long messages in RAM last at the last calculated rates: the shortest time of all levels."""
    durations = [
        (level.state.ram_msg_count + level.state.ram_ack_count) / level.state.rates.total
        for _, level in process.backing.awake()
        if not level.state.rates.idle
    ]
    return min(durations, default=math.inf)


def node_row(memory: Mapping[str, Any]) -> Row:
    """Return the memory monitor's numbers as columns; the recorder adds the rest."""
    desired = memory["desired_duration_s"]
    return {
        "used_bytes": memory["used_bytes"],
        "limit_bytes": memory["limit_bytes"],
        "ratio": float(memory["ratio"]),
        "desired_duration_s": math.inf if desired is None else float(desired),
        "memory_alarm": "memory" in memory["alarms"],
        "disk_alarm": "disk" in memory["alarms"],
        "disk_free_bytes": memory["disk_free_bytes"] or 0,
        "disk_limit_bytes": memory["disk_limit_bytes"],
    }
