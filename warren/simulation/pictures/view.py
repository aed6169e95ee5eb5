"""The data of pictures: a result's columns, reduced to what a picture can show, and its marks as spans.

At most :data:`MOST_QUEUES` queues are drawn: those that held most messages, then those with most throughput. A long
timeline is reduced to :data:`MOST_POINTS` points. Each point shows the step with most messages or most memory among
those that it stands for, so no peak is lost; counts are means, and of the p99 it is the worst.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.simulation.node.simulated_node import Mark
from warren.simulation.pictures.words import TimeScale
from warren.simulation.result import Result
from warren.simulation.timeline import DISK_COUNTS, MESSAGE_COUNTS, QUEUE_COLUMNS

MOST_POINTS: Final = 900
MOST_BARS: Final = 180
"""The number of parts of the time in which rates are computed; single steps would show their granularity."""
MOST_QUEUES: Final = 4
_MATTERS: Final = 0.03
"""A queue that never held this share of what the fullest one held is not drawn beside it."""
_CLOSE: Final = 0.004
"""Spans with a smaller gap than this share of the time are drawn as one."""

Floats = npt.NDArray[np.float64]
Columns = dict[str, npt.NDArray[Any]]

_ENDS: Final = {
    "paging-starts": "paging-ends",
    "memory-alarm": "memory-alarm-ends",
    "disk-alarm": "disk-alarm-ends",
    "event": "event-ends",
}


@attrs.frozen
class Span:
    """A span of time. ``times``: the number of short spans that are drawn as this one."""

    start_s: float
    end_s: float
    ended: bool
    text: str = ""
    times: int = 1


@attrs.frozen
class QueueView:
    """One line of the timeline: a queue or a group."""

    name: str
    queues: int
    columns: Columns
    rates: Columns
    """What is counted by step, per second, and ``no_limit``: the share of the time in which the target is infinite.

    ``time_s`` has one more element: where each begins, and where the last one ends.
    """
    paging: tuple[Span, ...]


@attrs.frozen
class View:
    """The parts of a result that pictures need."""

    name: str
    scale: TimeScale
    node: Columns
    rates: Columns
    queues: tuple[QueueView, ...]
    """The queues that are drawn, the most important first."""
    left_out: int
    """The number of queues that are not drawn."""
    left_out_ready: int
    """The sum of the most messages that each of them had."""
    paging_ratio: float
    paging: tuple[Span, ...]
    alarms: tuple[Span, ...]
    disk_alarms: tuple[Span, ...]
    events: tuple[Span, ...]


def view_of(result: Result, *, queues: Sequence[str] | None = None, most_points: int = MOST_POINTS) -> View:
    """Return the data for pictures of ``queues``, or by default of the most important ones."""
    summary: Any = result.summary
    length_s = float(summary["length_s"])
    scale = TimeScale(length_s, float(summary.get("start_s") or 0.0))
    names = that_matter(summary["queues"]) if queues is None else list(queues)
    left = [queue["max_ready"] for name, queue in summary["queues"].items() if name not in names]
    node_summary = summary["node"]
    limit = node_summary["limit_bytes"]
    node = {name: result.node[name].to_numpy() for name in result.node.columns}
    views = []
    for name, columns in _columns_of(result, names).items():
        marks = [mark for mark in result.marks if mark.queue is not None and _is_of(mark.queue, name)]
        views.append(
            QueueView(
                name=name,
                queues=int(columns["queues"][0]) if len(columns["queues"]) else 1,
                columns=_thinned(columns, "len", most_points),
                rates=_rates(columns | {"no_limit": np.isinf(columns["target_ram_count"])}, shares=("no_limit",)),
                paging=spans(marks, "paging-starts", length_s),
            )
        )
    return View(
        name=str(summary["name"]),
        scale=scale,
        node=_thinned(node, "used_bytes", most_points),
        rates=_rates(node, shares=("disk_busy",)),
        queues=tuple(views),
        left_out=len(left),
        left_out_ready=sum(left),
        paging_ratio=node_summary["paging_from_bytes"] / limit if limit else 0.0,
        paging=spans(result.marks, "paging-starts", length_s),
        alarms=spans(result.marks, "memory-alarm", length_s),
        disk_alarms=spans(result.marks, "disk-alarm", length_s),
        events=spans(result.marks, "event", length_s),
    )


def _columns_of(result: Result, names: Sequence[str]) -> dict[str, Columns]:
    """Return the rows of some queues only, because a whole timeline as a DataFrame may be very large."""
    row_queues = np.asarray(result.timeline_columns["queue"], object)
    rows = {name: np.flatnonzero(row_queues == name) for name in names}
    columns: dict[str, Columns] = {name: {} for name in names}
    for key, kind in QUEUE_COLUMNS.items():
        if kind != "str":
            column = np.asarray(result.timeline_columns[key], kind)
            for name in names:
                columns[name][key] = column[rows[name]]
    return columns


def that_matter(queues: Mapping[str, Any], most: int = MOST_QUEUES) -> list[str]:
    """Return the names of the most important queues, in order; ``queues`` is that of the summary."""

    def importance(entry: tuple[str, Any]) -> tuple[float, float]:
        return -entry[1]["max_ready"], -(entry[1]["published"] + entry[1]["delivered"])

    order = sorted(queues.items(), key=importance)
    least = _MATTERS * order[0][1]["max_ready"] if order else 0.0
    return [name for name, queue in order[:most] if queue["max_ready"] >= least]


def _is_of(queue: str, line: str) -> bool:
    """Whether a queue's marks belong to a line of the timeline: its own, or its group's."""
    return queue == line or (queue.startswith(line) and re.fullmatch(r"-[0-9]+", queue[len(line) :]) is not None)


# ── marks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def spans(marks: Iterable[Mark], kind: str, length_s: float) -> tuple[Span, ...]:
    """Return the spans in which at least one queue was in that state. Each event has a span of its own."""
    if kind == "event":
        return _of_events(marks, length_s)
    state_spans: list[Span] = []
    open_at, depth = 0.0, 0
    for mark in marks:
        if mark.kind == kind:
            if not depth:
                open_at = mark.at_s
            depth += 1
        elif mark.kind == _ENDS[kind] and depth:
            depth -= 1
            if not depth:
                state_spans.append(Span(open_at, mark.at_s, ended=True))
    if depth:
        state_spans.append(Span(open_at, length_s, ended=False))
    return tuple(_joined(state_spans, length_s * _CLOSE))


def _of_events(marks: Iterable[Mark], length_s: float) -> tuple[Span, ...]:
    event_spans: list[Span] = []
    open_at: dict[str, list[float]] = {}
    for mark in marks:
        if mark.kind == "event":
            if mark.text.startswith("purge"):
                event_spans.append(Span(mark.at_s, mark.at_s, ended=True, text=mark.text))
            else:
                open_at.setdefault(mark.text, []).append(mark.at_s)
        elif mark.kind == "event-ends" and open_at.get(mark.text):
            event_spans.append(Span(open_at[mark.text].pop(0), mark.at_s, ended=True, text=mark.text))
    event_spans += [Span(at, length_s, ended=False, text=text) for text, moments in open_at.items() for at in moments]
    return tuple(sorted(event_spans, key=lambda span: (span.start_s, span.end_s, span.text)))


def _joined(raw_spans: Sequence[Span], close_s: float) -> list[Span]:
    joined: list[Span] = []
    for span in raw_spans:
        if joined and span.start_s - joined[-1].end_s < close_s:
            last = joined.pop()
            joined.append(attrs.evolve(span, start_s=last.start_s, times=last.times + 1))
        else:
            joined.append(span)
    return joined


# ── thinning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _edges(rows: int, most: int) -> npt.NDArray[np.int64]:
    """Return the first row of each of at most ``most`` groups."""
    return np.unique(np.linspace(0, rows, min(rows, most) + 1).astype(np.int64))[:-1]


def _thinned(columns: Columns, by: str, most: int) -> Columns:
    """Return the row with most of ``by`` of each group of rows, but the median p50 and the worst p99."""
    rows = len(columns["time_s"])
    if rows <= most:
        return columns
    edges = _edges(rows, most)
    groups = list(zip(edges, [*edges[1:], rows], strict=True))
    picked = np.asarray([low + int(np.argmax(columns[by][low:high])) for low, high in groups])
    thinned = {name: values[picked] for name, values in columns.items()}
    if "latency_p50_s" in columns:
        thinned["latency_p50_s"] = np.asarray([_finite(np.nanmedian, columns["latency_p50_s"][a:b]) for a, b in groups])
        thinned["latency_p99_s"] = np.asarray([_finite(np.nanmax, columns["latency_p99_s"][a:b]) for a, b in groups])
    if "waiting_messages" in columns:
        thinned["waiting_messages"] = np.maximum.reduceat(columns["waiting_messages"], edges)
    return thinned


def _finite(of: Any, values: Floats) -> float:
    """Return ``of`` the finite values; NaN if no value is finite."""
    finite = values[np.isfinite(values)]
    return float(of(finite)) if len(finite) else float("nan")


def _rates(columns: Columns, shares: Sequence[str] = ()) -> Columns:
    """Return counts per second in at most :data:`MOST_BARS` groups of steps, and the mean of shares."""
    ends = columns["time_s"].astype(np.float64)
    rows = len(ends)
    edges = _edges(rows, MOST_BARS)
    begins = np.concatenate(([0.0], ends[:-1]))[edges] if rows else np.zeros(0)
    last = np.concatenate((ends[edges[1:] - 1], ends[-1:])) if rows else np.zeros(0)
    elapsed = np.maximum(last - begins, 1e-9)
    rates: Columns = {"time_s": np.concatenate((begins, last[-1:]))}
    for name in (*MESSAGE_COUNTS, "turns", *DISK_COUNTS):
        if name in columns:
            rates[name] = np.add.reduceat(columns[name].astype(np.float64), edges) / elapsed
    steps = np.diff(np.concatenate(([0.0], ends)))
    for name in shares:
        rates[name] = np.add.reduceat(columns[name].astype(np.float64) * steps, edges) / elapsed
    return rates
