"""A recorded workload beside its simulation: when paging starts, and where the messages are.

The simulation is given what was measured of the node and cannot be known otherwise: what it uses when its queue is
empty, what a message adds, and when its memory monitor makes its rounds. All else follows from the scenario.

*Difference*: of all messages, taken over all the time, the share that is in another of Q1, Q2, delta, Q3, Q4. 0 where
the curves lie on each other, 1 where no message is where the other says.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from tests.support.recorder.paging_recorder import Recording, Workload
from warren.simulation import RABBITMQ_MEMORY, ConsumerSpec, NodeSpec, PublisherSpec, QueueSpec, Scenario, simulate

Column = npt.NDArray[np.float64]
PLACES: Final = ("q1", "q2", "delta", "q3", "q4")
COLUMNS: Final = (*PLACES, "len", "unacked", "ram_msg_count", "target_ram_count", "used_bytes")
MONITOR_INTERVAL_S: Final = 2.5
REPORT_INTERVAL_S: Final = 5.0
READING_AGE_S: Final = 1.0
"""RabbitMQ's monitor goes by what memory was at the last of another process's looks, which are so far apart."""
GRID_S: Final = 0.1


@attrs.frozen(eq=False)
class Curves:
    """Where messages were, from the first message on."""

    time_s: Column
    columns: dict[str, Column]

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    @property
    def paging_starts_s(self) -> float:
        """When the first message left Q1 and Q4; NaN if none did."""
        paged = self["q2"] + self["q3"] + self["delta"] > 0
        return float(self.time_s[int(np.argmax(paged))]) if paged.any() else math.nan

    def at(self, moments_s: Column) -> dict[str, Column]:
        """The columns as they stood at those moments."""
        rows = np.clip(np.searchsorted(self.time_s, moments_s, side="right") - 1, 0, len(self.time_s) - 1)
        return {name: column[rows] for name, column in self.columns.items()}


def observed(recording: Recording) -> Curves:
    """As the broker answered."""
    samples = recording.samples
    columns = {
        name: np.asarray([math.inf if sample[name] is None else sample[name] for sample in samples], np.float64)
        for name in COLUMNS
    }
    return Curves(np.asarray([sample["time_s"] for sample in samples]), columns)


def scenario(recording: Recording, *, noise_bytes: int = 0) -> Scenario:
    """The recorded workload for the simulation; ``noise_bytes`` is added to the measured memory."""
    workload = recording.workload
    overhead_bytes = max(recording.message_bytes - workload.body_bytes, 0)
    start_s = MONITOR_INTERVAL_S - recording.first_round_s % MONITOR_INTERVAL_S
    memory = attrs.evolve(
        RABBITMQ_MEMORY,
        alpha=overhead_bytes,
        unacked=overhead_bytes,
        node=recording.base_bytes + noise_bytes,
        queue_awake=0,  # in what the node was seen to use
        queue_asleep=0,
        store_entry=0,  # in what a message was seen to add
    )
    return Scenario(
        name=workload.name,
        length=start_s + workload.length_s,
        step=GRID_S,
        node=NodeSpec(
            profile="rabbitmq-3.10",
            memory="16GB",
            watermark=recording.limit_bytes,
            paging_ratio=workload.paging_ratio,
            message_memory=memory,
        ),
        queues=[QueueSpec(name=workload.name)],
        publishers=[
            PublisherSpec(
                queue=workload.name,
                rate=workload.publish_rate,
                arrivals="constant",
                body=workload.body_bytes,
                persistent=float(workload.persistent),
                start=start_s,  # rounds are at 2.5 s, 5 s, …: so the first after it is as late as the broker's was
            )
        ],
        consumers=[ConsumerSpec(queue=workload.name, rate=workload.consume_rate, prefetch=workload.prefetch)],
    )


def simulated(recording: Recording, *, noise_bytes: int = 0) -> Curves:
    """As the simulation has it."""
    made = scenario(recording, noise_bytes=noise_bytes)
    result = simulate(made)
    rows, node = result.queue(recording.workload.name), result.node
    time_s = rows["time_s"].to_numpy() - float(made.publishers[0].start)
    since = time_s >= 0.0
    columns = {name: rows[name].to_numpy(np.float64)[since] for name in COLUMNS if name in rows}
    columns["used_bytes"] = node["used_bytes"].to_numpy(np.float64)[since]
    return Curves(time_s[since], columns)


def difference(one: Curves, other: Curves) -> float:
    """The share of messages that are in another place."""
    end_s = min(one.time_s[-1], other.time_s[-1])
    moments_s = np.arange(0.0, end_s, GRID_S)
    ones, others = one.at(moments_s), other.at(moments_s)
    elsewhere = sum(np.abs(ones[place] - others[place]).sum() for place in PLACES) / 2
    return float(elsewhere / np.maximum(ones["len"], others["len"]).sum())


def start_tolerance_s(recording: Recording) -> float:
    """How far apart the starts may be: memory's noise, by how fast it grows; the age of a reading; and, as what comes
    just too late for a round or a report waits for the next, the longer of the two intervals."""
    workload = recording.workload
    growth = recording.message_bytes * (workload.publish_rate - workload.consume_rate)
    return recording.noise_bytes / growth + READING_AGE_S + max(REPORT_INTERVAL_S, MONITOR_INTERVAL_S)


def shape_tolerance(recording: Recording) -> float:
    """How much the curves may differ: each wave of paging may come one report earlier or later, and what was published
    meanwhile is elsewhere for that time."""
    workload = recording.workload
    growth = workload.publish_rate - workload.consume_rate
    return REPORT_INTERVAL_S * workload.publish_rate / (growth * workload.length_s / 2)


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def save(recording: Recording, path: Path) -> None:
    """A line for what was measured of the node, then one for the columns' names and one for each sample."""
    head = attrs.asdict(recording, filter=lambda field, _: field.name != "samples")
    names = ("time_s", *COLUMNS, "memory_alarm")
    lines = [json.dumps(head), json.dumps(names)]
    lines += [json.dumps([sample[name] for name in names]) for sample in recording.samples]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def load(path: Path) -> Recording:
    """What :func:`save` wrote."""
    head, names, *rows = (json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines())
    samples: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in rows]
    return Recording(workload=Workload(**head.pop("workload")), samples=samples, **head)
