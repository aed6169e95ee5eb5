"""Replay: use the record of a running node (:mod:`warren.recording`) as the workload of a simulated one.

:func:`record_scenario` makes a scenario of a record: the node's limits; the queues with the messages that they had when
the record began; publishers that publish as many messages of the recorded sizes as were published; and consumers that
take, ack and give back as many as were taken, acked and given back. It is a scenario like any other: change the node or
the consumers, and see what would have happened. :func:`recorded_rate` and :func:`recorded_consumption` make its parts,
for other scenarios. :mod:`warren.simulation.recorded_answer` turns the record itself into a result.

A replay cannot repeat what a record does not have: the order of operations within an interval (they are spread evenly);
expiration and priority of single messages; dead letters on their way (they were recorded as publishes where they
arrived, so the queues of the scenario have no dead-letter arguments); and how long publishers were blocked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.actors.engines.node_settings import NodeSettings
from warren.recording import RecordedNode, read_record
from warren.simulation.consumption import Consumption
from warren.simulation.node_spec import MessageMemory, NodeSpec
from warren.simulation.rates import Trace
from warren.simulation.scenario import ConsumerSpec, PublisherSpec, QueueSpec, Scenario
from warren.simulation.sizes import ConstantSize, EmpiricalSize, Size
from warren.simulation.units import ScenarioError
from warren.storage.errors import DataError
from warren.storage.settings import PROFILES, Settings

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
_NOT_REPLAYED: Final = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-expires")
_DROP_BY_THEMSELVES: Final = ("x-message-ttl", "x-max-length", "x-max-length-bytes")
_LEAST_SPAN_S: Final = 1e-6
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
    names = record.names if queues is None else [_known(record, name) for name in queues]
    length_s = float(max((rows["time_s"].max() for rows in (record.queues, record.node) if len(rows)), default=0.0))
    if not names or length_s < _LEAST_SPAN_S:
        raise ScenarioError(f"{record.path}: nothing was recorded; a replay needs a queue and two steps")
    rows = dict(list(record.queues.groupby("name", sort=False)))
    specs: list[QueueSpec] = []
    publishers: list[PublisherSpec] = []
    replayed: list[ConsumerSpec] = []
    for name in names:
        recorded_queue = _RecordedQueue(record, name, rows[name])
        specs.append(recorded_queue.queue())
        publishers += recorded_queue.publishers()
        if consumers is None:
            replayed += recorded_queue.consumers()
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


def recorded_rate(path: str | os.PathLike[str] | RecordedNode, queue: str) -> Trace:
    """Return the rate at which messages came to a queue during a record. Raises :class:`ScenarioError`."""
    record = opened_record(path)
    return _RecordedQueue(record, queue, _rows_of(record, queue)).rate()


def recorded_consumption(path: str | os.PathLike[str] | RecordedNode, queue: str) -> Consumption:
    """Return what the consumers of a queue did during a record. Raises :class:`ScenarioError`."""
    record = opened_record(path)
    return _RecordedQueue(record, queue, _rows_of(record, queue)).consumption()


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


class _RecordedQueue:
    """The rows of one queue, as spans of time with activity."""

    def __init__(self, record: RecordedNode, name: str, rows: pd.DataFrame) -> None:
        self._record = record
        self._name = name
        self._rows = rows = rows.sort_values(["time_s", "step"], kind="stable")
        at_s = np.maximum(rows["time_s"].to_numpy(np.float64), 0.0)
        steps, asleep = rows["step"].to_numpy(np.int64), rows["asleep"].to_numpy(bool)
        # What a row counts came since the last one; but a queue that slept was looked at as soon as it did something.
        begins = np.concatenate([[0.0], at_s[:-1]])
        slept = np.concatenate([[False], asleep[:-1] & (np.diff(steps) > 1)])
        slept[0] = len(steps) > 0 and steps[0] > 1  # it was not there before
        begins = np.where(slept, np.maximum(begins, at_s - record.interval_s), begins)
        self._begins, self._ends = begins, at_s
        self._during = at_s > _LEAST_SPAN_S  # what the very first row counts was before the record

    def _counts(self, name: str) -> Floats:
        return np.where(self._during, self._rows[name].to_numpy(np.float64), 0.0)

    def _spans(self, *counts: Floats) -> tuple[Floats, list[Floats]]:
        """Return rising moments, and what each of the counts has between them. Gaps become spans of nothing."""
        edges = np.unique(np.concatenate([[0.0], self._begins, self._ends]))
        edges = edges[np.concatenate([[True], np.diff(edges) > _LEAST_SPAN_S])]
        if len(edges) < 2:
            edges = np.array([0.0, max(self._record.interval_s, _LEAST_SPAN_S)])
        where = np.clip(np.searchsorted(edges, self._ends - _LEAST_SPAN_S / 2) - 1, 0, len(edges) - 2)
        return edges, [np.bincount(where, count, len(edges) - 1).astype(np.float64) for count in counts]

    def rate(self) -> Trace:
        edges, [published] = self._spans(self._counts("published"))
        busy = np.flatnonzero(published)
        if len(busy):  # half a message more, and none comes just between two spans
            published[busy[0]] += 0.5
        rates = published / np.diff(edges)
        return Trace(f"{self._record.path}: {self._name}", tuple(edges.tolist()), tuple(rates.tolist()))

    def consumption(self) -> Consumption:
        no_ack = self._counts("delivered_no_ack")
        spans = (
            self._counts("delivered") - no_ack,
            no_ack + self._vanished(),
            self._counts("acked") - no_ack + self._counts("rejected"),
            self._counts("requeued"),
            self._counts("purged"),
        )
        edges, counts = self._spans(*(np.maximum(count, 0.0) for count in spans))
        rounded_counts = [tuple(int(value) for value in count) for count in counts]
        return Consumption(f"{self._record.path}: {self._name}", tuple(edges.tolist()), *rounded_counts)

    def _vanished(self) -> Floats:
        """Return the messages that expired by themselves. If the queue drops messages, the replay does so, too."""
        if any(name in self._arguments for name in _DROP_BY_THEMSELVES):
            return np.zeros(len(self._rows))
        arrived = self._counts("published") - self._counts("refused")
        departed = self._counts("acked") + self._counts("rejected") + self._counts("purged")
        depth = self._rows["len"].to_numpy(np.float64) + self._rows["unacked"].to_numpy(np.float64)
        previous_depth = np.concatenate([[float(self._at_start)], depth[:-1]])
        return np.where(self._during, np.maximum(previous_depth + arrived - departed - depth, 0.0), 0.0)

    @property
    def _arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = json.loads(self._rows["arguments"].iloc[0])
        return arguments

    @property
    def _at_start(self) -> int:
        """The messages that were there when the record began, unacked ones included."""
        first = self._rows.iloc[0]
        depth = int(first["len"]) + int(first["unacked"])
        if not self._during[0]:
            return depth
        arrived = int(first["published"]) - int(first["refused"])
        return max(0, depth - arrived + int(first["acked"]) + int(first["rejected"]) + int(first["purged"]))

    def queue(self) -> QueueSpec:
        first, arguments = self._rows.iloc[0], self._arguments
        durable = bool(first["durable"])
        at_start = self._at_start if durable else 0
        depth = int(first["len"]) + int(first["unacked"])
        body = round(int(first["message_bytes"]) / depth) if depth else 0
        return QueueSpec(
            name=self._name,
            durable=durable,
            arguments={name: value for name, value in arguments.items() if name not in _NOT_REPLAYED},
            messages=at_start,
            body=ConstantSize(body),
        )

    def publishers(self) -> list[PublisherSpec]:
        published = self._counts("published")
        if not published.any():
            return []
        share = np.nan_to_num(self._rows["persistent_share"].to_numpy(np.float64))
        persistent = float((published * share).sum() / published.sum())
        return [
            PublisherSpec(
                queue=self._name,
                rate=self.rate(),
                arrivals="constant",
                body=_sizes(published, np.nan_to_num(self._rows["mean_body_bytes"].to_numpy(np.float64))),
                persistent=min(max(persistent, 0.0), 1.0),
            )
        ]

    def consumers(self) -> list[ConsumerSpec]:
        consumption = self.consumption()
        return [] if consumption.is_nothing else [ConsumerSpec(queue=self._name, record=consumption)]


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


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def opened_record(path: str | os.PathLike[str] | RecordedNode) -> RecordedNode:
    """Return a record; read it if it is a path. Raises :class:`ScenarioError`."""
    if isinstance(path, RecordedNode):
        return path
    try:
        return read_record(path)
    except DataError as error:
        raise ScenarioError(str(error)) from None


def _known(record: RecordedNode, name: str) -> str:
    if name not in record.names:
        names = ", ".join(map(repr, record.names[:10])) or "none"
        raise ScenarioError(f"{record.path}: no queue {name!r} was recorded; there are {names}")
    return name


def _rows_of(record: RecordedNode, name: str) -> pd.DataFrame:
    return record.queues[record.queues["name"] == _known(record, name)]
