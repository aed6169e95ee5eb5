"""The record of a running node in the form of a simulation's result, to be drawn, saved and compared with a replay.

Every queue has a row for each step from its first one on. In steps without a sample, the row repeats the last state,
and its counts are 0. A value that a running node does not know is 0, or NaN for a duration; in the summary it is
None.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from warren.recording import RecordedNode
from warren.simulation.node.simulated_node import Mark, MarkKind
from warren.simulation.result import DTYPES, Result, of_node
from warren.simulation.scenarios.recorded import opened_record
from warren.simulation.timeline import MESSAGE_COUNTS, NODE_COLUMNS, QUEUE_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

_COUNTED: Final = (*MESSAGE_COUNTS, "turns")


def recorded_result(path: str | os.PathLike[str] | RecordedNode) -> Result:
    """Return a record in the form of a simulation's result. Raises :class:`ScenarioError` if it is not a record."""
    record = opened_record(path)
    queues, node = _columns(_filled(record), QUEUE_COLUMNS), _columns(record.node, NODE_COLUMNS)
    marks = _marks(record)
    return Result(
        scenario=None,
        timeline_columns=queues,
        node_columns=node,
        marks=marks,
        summary=_summary(record, queues, node, marks),
    )


def _filled(record: RecordedNode) -> pd.DataFrame:
    """Return a row for each queue and step."""
    import pandas as pd

    states = [name for name in QUEUE_COLUMNS if name in record.queues and name not in (*_COUNTED, "time_s", "queue")]
    parts = []
    for name, rows in record.queues.groupby("name", sort=False):
        by_step = rows.groupby("step")
        last_step = int(record.queues["step"].max())
        steps = pd.RangeIndex(int(rows["step"].min()), last_step + 1, name="step")
        filled = pd.concat(
            [by_step[["time_s", *states]].last().reindex(steps), by_step[list(_COUNTED)].sum().reindex(steps)], axis=1
        )
        filled[list(_COUNTED)] = filled[list(_COUNTED)].fillna(0)
        filled["time_s"] = filled["time_s"].fillna(pd.Series(steps * record.interval_s, steps))
        filled[states] = filled[states].ffill()
        parts.append(filled.assign(queue=name, queues=1).reset_index())
    return record.queues.assign(queues=1) if not parts else pd.concat(parts).sort_values("step", kind="stable")


def _columns(frame: pd.DataFrame, kinds: Any) -> dict[str, list[Any]]:
    return {
        name: frame[name].astype(DTYPES[kind]).tolist()
        if name in frame
        else [math.nan if kind == "f8" else 0] * len(frame)
        for name, kind in kinds.items()
    }


def _marks(record: RecordedNode) -> tuple[Mark, ...]:
    marks: list[Mark] = []
    for kind in ("memory", "disk"):
        alarm = record.node[f"{kind}_alarm"].to_numpy(bool)
        for row in np.flatnonzero(np.diff(alarm, prepend=False)):
            change = cast("MarkKind", f"{kind}-alarm" if alarm[row] else f"{kind}-alarm-ends")
            marks.append(Mark(float(record.node["time_s"].iloc[row]), change, f"{kind} alarm"))
    for name, rows in record.queues.groupby("name", sort=False):
        if '"lazy"' in str(rows["arguments"].iloc[0]):  # it has everything on disk anyway
            continue
        awake = rows[rows["asleep"] == 0]
        paged = (awake["q2"] + awake["q3"] + awake["delta"] > 0).to_numpy(bool)
        for row in np.flatnonzero(np.diff(paged, prepend=False)):
            change = "paging-starts" if paged[row] else "paging-ends"
            marks.append(Mark(float(awake["time_s"].iloc[row]), change, str(name), str(name)))
    return tuple(sorted(marks, key=lambda mark: mark.at_s))


def _summary(record: RecordedNode, queues: Any, node: Any, marks: tuple[Mark, ...]) -> dict[str, Any]:
    times = node["time_s"] or [0.0]
    alarmed = np.asarray(node["memory_alarm"], bool) | np.asarray(node["disk_alarm"], bool)
    return {
        "name": f"{os.path.basename(record.path).removesuffix('.parquet')}, recorded",
        "description": f"recorded in {record.path}",
        "seed": 0,
        "length_s": max([*times, *queues["time_s"]]),
        "start_s": 0.0,
        "node": of_node(
            node,
            marks,
            limit_bytes=node["limit_bytes"][-1] if node["limit_bytes"] else 0,
            paging_ratio=record.about["node"]["vm_memory_high_watermark_paging_ratio"],
            alarm_s=float(alarmed.sum()) * record.interval_s,
            disk_busy=0.0,
            turns=sum(queues["turns"]),
        ),
        "queues": _of_queues(queues),
    }


def _of_queues(queues: Any) -> dict[str, dict[str, Any]]:
    import pandas as pd

    summaries: dict[str, dict[str, Any]] = {}
    for name, rows in pd.DataFrame(queues).groupby("queue", sort=False):
        summaries[str(name)] = {
            "queues": 1,
            **{count: int(rows[count].sum()) for count in _COUNTED},
            "dropped": 0,
            "ready": int(rows["len"].iloc[-1]),
            "unacked": int(rows["unacked"].iloc[-1]),
            "max_ready": int(rows["len"].max()),
            "mean_ready": float(rows["len"].mean()),
            "mean_unacked": float(rows["unacked"].mean()),
            "max_ram_msg_count": int(rows["ram_msg_count"].max()),
            "max_ram_bytes": int(rows["ram_bytes"].max()),
            "publishers_held_s": 0.0,
            "max_waiting_messages": 0,
            **dict.fromkeys(("latency_mean_s", "latency_p50_s", "latency_p99_s")),
            "latency_max_s": 0.0,
        }
    return summaries
