"""What a simulation answers: the timeline, the node's, the marks and the summary; and how they lie in a folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np

from warren.recording.parquet_log import arrow_types
from warren.simulation.node.simulated_node import Mark, SimulatedNode
from warren.simulation.scenarios.scenario import Scenario
from warren.simulation.scenarios.units import NS
from warren.simulation.timeline import MESSAGE_COUNTS, NODE_COLUMNS, QUEUE_COLUMNS, Timeline
from warren.storage.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TIMELINE_FILE: Final = "timeline.parquet"
NODE_FILE: Final = "node.parquet"
SUMMARY_FILE: Final = "summary.json"
DTYPES: Final = {"f8": "float64", "i8": "int64", "bool": "bool", "str": "object"}
"""What pandas calls the kinds of columns."""


@attrs.frozen(slots=False, eq=False, kw_only=True)
class Result:
    """One simulation's answer."""

    scenario: Scenario | None
    """``None``: it was read from a folder."""
    timeline_columns: Mapping[str, Any] = attrs.field(repr=False)
    node_columns: Mapping[str, Any] = attrs.field(repr=False)
    marks: tuple[Mark, ...] = attrs.field(repr=False)
    summary: Mapping[str, Any]
    """The contents of summary.json (:func:`summarize`)."""

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """A row for each queue (or group) and step; columns: :data:`warren.simulation.timeline.QUEUE_COLUMNS`."""
        return _frame(self.timeline_columns, QUEUE_COLUMNS)

    @cached_property
    def node(self) -> pd.DataFrame:
        """A row for each step; columns: :data:`warren.simulation.timeline.NODE_COLUMNS`."""
        return _frame(self.node_columns, NODE_COLUMNS)

    def queue(self, name: str) -> pd.DataFrame:
        """Return the rows of a queue or a group. Raises ``KeyError`` if there are no such rows."""
        rows = self.timeline[self.timeline["queue"] == name]
        if not len(rows):
            raise KeyError(f"no queue {name!r} in the timeline; there are {', '.join(self.names[:10])}")
        return rows.reset_index(drop=True)

    @property
    def names(self) -> list[str]:
        """The names of the queues and groups that have rows in the timeline."""
        return list(dict.fromkeys(self.timeline_columns["queue"]))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write timeline.parquet, node.parquet and summary.json into ``folder``, which is made if it is missing."""
        import pyarrow.parquet as pq

        os.makedirs(folder, exist_ok=True)
        pq.write_table(_table(self.timeline_columns, QUEUE_COLUMNS), os.path.join(folder, TIMELINE_FILE))
        pq.write_table(_table(self.node_columns, NODE_COLUMNS), os.path.join(folder, NODE_FILE))
        summary = dict(self.summary) | {"marks": [attrs.asdict(mark) for mark in self.marks]}
        write_json(os.path.join(folder, SUMMARY_FILE), summary)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Result:
        """Return what :meth:`save` wrote. Raises :class:`DataError` if a file is missing or damaged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = os.path.join(folder, SUMMARY_FILE)
        try:
            with open(path, encoding="utf-8") as file:
                summary = json.load(file)
            marks = tuple(Mark(**mark) for mark in summary.pop("marks"))
            tables: dict[str, dict[str, Any]] = {}
            for name, columns in ((TIMELINE_FILE, QUEUE_COLUMNS), (NODE_FILE, NODE_COLUMNS)):
                path = os.path.join(folder, name)
                table = pq.read_table(path, columns=list(columns))
                tables[name] = {column: table.column(column).to_numpy() for column in columns}
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise DataError(path, None, f"not the answer of a simulation: {error}") from None
        return cls(
            scenario=None,
            timeline_columns=tables[TIMELINE_FILE],
            node_columns=tables[NODE_FILE],
            marks=marks,
            summary=summary,
        )


def write_json(path: str, document: object) -> None:
    """Write a file of JSON for people to read."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def _table(columns: Mapping[str, Any], kinds: Mapping[str, str]) -> pa.Table:
    import pyarrow as pa

    types = arrow_types()
    return pa.table({name: pa.array(columns[name], types[kind]) for name, kind in kinds.items()})


def _frame(columns: Mapping[str, Any], kinds: Mapping[str, str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame({name: pd.Series(columns[name], dtype=DTYPES[kind]) for name, kind in kinds.items()})


# ── the summary ────────────────────────────────────────────────────────────


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
            alarm_s=node.gate.closed_ns / NS,
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
    totals = {name: timeline.total(name) for name in (*MESSAGE_COUNTS, "held_ns", "turns")}
    return {
        line.name: {
            "queues": len(line.queues),
            **{name: totals[name][number] for name in MESSAGE_COUNTS},
            "dropped": sum(queue.dropped for queue in line.queues),
            "ready": ready[number],
            "unacked": unacked[number],
            "max_ready": maxima["max_ready"][number],
            "mean_ready": sum(queue.occupancy.ready for queue in line.queues) / length_ns,
            "mean_unacked": sum(queue.occupancy.unacked for queue in line.queues) / length_ns,
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


def of_queues(summary: Mapping[str, Any], key: str, combine: Callable[[Any], Any]) -> Any:
    """Combine a number of all queues of a summary that have it; return ``None`` if no queue has it."""
    values = [queue[key] for queue in summary["queues"].values() if queue[key] is not None]
    return combine(values) if values else None
