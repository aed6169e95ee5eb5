"""Replay: use the record of a running node (:mod:`warren.recording`) as the workload of a simulated one.

:func:`record_scenario` makes a scenario of a record: the node's limits; the queues with the messages that they had when
the record began; publishers that publish as many messages of the recorded sizes as were published; and consumers that
take, ack and give back as many as were taken, acked and given back. It is a scenario like any other: change the node or
the consumers, and see what would have happened. :mod:`warren.simulation.scenarios.recorded` makes its parts, for other
scenarios; :mod:`warren.simulation.recorded_answer` turns the record itself into a result.

A replay cannot repeat what a record does not have: the order of operations within an interval (they are spread evenly);
expiration and priority of single messages; dead letters on their way (they were recorded as publishes where they
arrived, so the queues of the scenario have no dead-letter arguments); and how long publishers were blocked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np

from warren.actors.engines.node_settings import NodeSettings
from warren.recording import RecordedNode
from warren.simulation.scenarios.node_spec import MessageMemory, NodeSpec
from warren.simulation.scenarios.recorded import LEAST_SPAN_S, Floats, RecordedQueue, known_queue, opened_record
from warren.simulation.scenarios.scenario import ConsumerSpec, PublisherSpec, QueueSpec, Scenario
from warren.simulation.scenarios.sizes import ConstantSize, EmpiricalSize, Size
from warren.simulation.scenarios.units import ScenarioError
from warren.storage.settings import PROFILES, Settings

_NOT_REPLAYED: Final = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-expires")
_MOST_SIZES: Final = 1000


def record_scenario(
    path: str | os.PathLike[str] | RecordedNode,
    *,
    queues: Sequence[str] | None = None,
    consumers: Sequence[ConsumerSpec] | None = None,
    node: NodeSpec | None = None,
    seed: int = 1,
) -> Scenario:
    """Return the scenario of a record.

    ``queues``: only these queues; in another vhost than ``/`` a queue's name is ``vhost/queue``. ``consumers``: used in
    place of the recorded ones. ``node``: used in place of the recorded one. Raises :class:`ScenarioError` if the file
    is not a record, or if the record is empty.
    """
    record = opened_record(path)
    names = record.names if queues is None else [known_queue(record, name) for name in queues]
    length_s = float(max((rows["time_s"].max() for rows in (record.queues, record.node) if len(rows)), default=0.0))
    if not names or length_s < LEAST_SPAN_S:
        raise ScenarioError(f"{record.path}: nothing was recorded; a replay needs a queue and two steps")
    rows = dict(list(record.queues.groupby("name", sort=False)))
    specs: list[QueueSpec] = []
    publishers: list[PublisherSpec] = []
    replayed: list[ConsumerSpec] = []
    for name in names:
        recorded = RecordedQueue(record, name, rows[name])
        specs.append(_queue(recorded))
        publishers += _publishers(recorded)
        if consumers is None:
            replayed += _consumers(recorded)
    return Scenario(
        name=f"{os.path.basename(record.path).removesuffix('.parquet')}, replayed",
        description=f"as recorded in {record.path}",
        length=length_s,
        step=min(record.interval_s, length_s),
        seed=seed,
        node=recorded_node(record) if node is None else node,
        queues=tuple(specs),
        publishers=tuple(publishers),
        consumers=tuple(replayed if consumers is None else consumers),
    )


def recorded_node(path: str | os.PathLike[str] | RecordedNode) -> NodeSpec:
    """Return the node of a record: its memory, its limits and its settings.

    If the memory of the whole process counted, the simulated node always takes what the process took beside its queues
    when the record began.
    """
    record = opened_record(path)
    about, settings = record.about, record.about["node"]
    if not len(record.node):
        raise ScenarioError(f"{record.path}: no row of the node was recorded")
    first = record.node.iloc[0]
    limit_bytes = int(first["limit_bytes"])
    base_bytes = 0
    if settings["vm_memory_calculation_strategy"] != "allocated":
        base_bytes = max(int(first["used_bytes"]) - int(first["allocated_bytes"]), 0)
    if base_bytes >= limit_bytes:
        raise ScenarioError(
            f"{record.path}: the process took {base_bytes} bytes beside its queues, and {limit_bytes} might be used: "
            "say node= with a node that can work"
        )
    profile, engine = _profile_of(about["engine"])
    changed = {name: settings[name] for name in ("sync", "sync_interval_ms", "credit_flow_default_credit")}
    return NodeSpec(
        profile=profile,
        memory=int(about["total_memory_bytes"]),
        watermark=limit_bytes,
        paging_ratio=settings["vm_memory_high_watermark_paging_ratio"],
        monitor_interval=settings["memory_monitor_interval"] / 1000,
        report_interval=settings["queue_ram_report_interval_ms"] / 1000,
        hibernate_after=settings["hibernate_after_ms"] / 1000,
        wake_idle_queues=False,
        message_memory=MessageMemory(node=base_bytes),
        settings=engine | {name: value for name, value in changed.items() if value != _default(name)},
    )


def _default(name: str) -> Any:
    value = getattr(NodeSettings(), name)
    return list(value) if isinstance(value, tuple) else value


def _profile_of(engine: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the profile with the fewest other settings than an engine, and those other settings."""
    candidates: list[tuple[int, str, dict[str, Any]]] = []
    for profile, settings in PROFILES.items():
        profile_settings = json.loads(json.dumps(attrs.asdict(settings)))
        names = {field.name for field in attrs.fields(Settings)}
        differing = {name: value for name, value in engine.items() if name in names and profile_settings[name] != value}
        candidates.append((len(differing), profile, differing))
    _, profile, differing = min(candidates, key=lambda candidate: candidate[0])
    return profile, differing


# ── one queue ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _queue(recorded: RecordedQueue) -> QueueSpec:
    first, arguments = recorded.rows.iloc[0], recorded.arguments
    durable = bool(first["durable"])
    at_start = recorded.at_start if durable else 0
    depth = int(first["len"]) + int(first["unacked"])
    body = round(int(first["message_bytes"]) / depth) if depth else 0
    return QueueSpec(
        name=recorded.name,
        durable=durable,
        arguments={name: value for name, value in arguments.items() if name not in _NOT_REPLAYED},
        messages=at_start,
        body=ConstantSize(body),
    )


def _publishers(recorded: RecordedQueue) -> list[PublisherSpec]:
    published = recorded.counts("published")
    if not published.any():
        return []
    share = np.nan_to_num(recorded.rows["persistent_share"].to_numpy(np.float64))
    persistent = float((published * share).sum() / published.sum())
    return [
        PublisherSpec(
            queue=recorded.name,
            rate=recorded.rate(),
            arrivals="constant",
            body=_sizes(published, np.nan_to_num(recorded.rows["mean_body_bytes"].to_numpy(np.float64))),
            persistent=min(max(persistent, 0.0), 1.0),
        )
    ]


def _consumers(recorded: RecordedQueue) -> list[ConsumerSpec]:
    consumption = recorded.consumption()
    return [] if consumption.is_nothing else [ConsumerSpec(queue=recorded.name, record=consumption)]


def _sizes(published: Floats, means: Floats) -> Size:
    """Return the mean sizes of the intervals, each as often as messages came in it."""
    sizes, where = np.unique(np.rint(means[published > 0]).astype(np.int64), return_inverse=True)
    weights = np.bincount(where, published[published > 0])
    if len(sizes) == 1:
        return ConstantSize(int(sizes[0]))
    if len(sizes) > _MOST_SIZES:  # neighbours are taken together
        edges = np.linspace(0, len(sizes), _MOST_SIZES + 1).astype(int)[:-1]
        sums, weights = np.add.reduceat(sizes * weights, edges), np.add.reduceat(weights, edges)
        sizes = np.rint(sums / weights).astype(np.int64)
    return EmpiricalSize(tuple(sizes.tolist()), tuple(weights.tolist()))
