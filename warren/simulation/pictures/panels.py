"""The panels of the pictures: each draws one aspect of a run into a pair of axes.

:mod:`warren.simulation.plots` puts panels together to pictures. :mod:`warren.simulation.pictures.ribbon` draws the
moments that all panels show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes

from warren.simulation.pictures.ribbon import draw_moments, draw_ribbon, rows_of
from warren.simulation.pictures.style import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    LINE,
    MINT,
    PALE,
    PAPER,
    PLUM,
    RED,
    SKY,
    Column,
    Panel,
    latency_axis,
    value_axis,
)
from warren.simulation.pictures.view import Columns, Floats, QueueView, View
from warren.simulation.pictures.words import bytes_text, count_text, share_text, short, time_text

STATES: Final = (
    ("q4", "Q4", BLUE),
    ("q3", "Q3", SKY),
    ("delta", "delta", AMBER),
    ("q2", "Q2", MINT),
    ("q1", "Q1", GREEN),
)
"""From the head, which consumers get next, to the tail, where messages come in."""
_LOG_FROM: Final = 30.0
"""Latencies that differ by more than this factor are drawn on a logarithmic scale."""
_STRIP_FROM: Final = 0.93
"""Where the strip of the time without a limit begins, as a share of a panel's height."""


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def draw_memory(axes: Axes, view: View) -> None:
    """Draw the memory used, with the limits at which paging begins and publishers are blocked."""
    node = view.node
    at, used, limit = node["time_s"], node["used_bytes"], node["limit_bytes"]
    axes.fill_between(at, used, color=BLUE, alpha=0.16, linewidth=0)
    axes.plot(at, limit, color=RED, linewidth=1.4, drawstyle="steps-post", label="watermark")
    paging_from = limit * view.paging_ratio
    axes.plot(at, paging_from, color=AMBER, linewidth=1.4, drawstyle="steps-post", label="paging from")
    axes.plot(at, used, color=BLUE, label="used")
    value_axis(axes, bytes_text, top=float(max(used.max(), limit.max())) if len(at) else 1.0)


# ── one queue ────────────────────────────────────────────────────────────────────────────────────────────────────────


def draw_states(axes: Axes, queue: QueueView) -> None:
    """Draw the messages in each list, the head at the bottom and unacked messages on top."""
    columns = queue.columns
    at, base = columns["time_s"], np.zeros(len(columns["time_s"]))
    for key, name, colour in STATES:
        top = base + columns[key]
        axes.fill_between(at, base, top, color=colour, linewidth=0, label=name)
        if columns[key].any():
            axes.plot(at, np.where(columns[key] > 0, top, np.nan), color=PAPER, linewidth=0.5)
        base = top
    if _has_unacked(columns):
        axes.fill_between(at, base, base + columns["unacked"], color=GREY, alpha=0.7, linewidth=0, label="unacked")
        base = base + columns["unacked"]
    value_axis(axes, count_text, top=float(base.max()) if len(at) else 1.0)


def _has_unacked(columns: Columns) -> bool:
    """Whether there are enough unacked messages to be seen."""
    return bool(columns["unacked"].max(initial=0) > 0.01 * columns["len"].max(initial=0))


def _has_unacked_in_ram(columns: Columns) -> bool:
    return bool(columns["ram_ack_count"].max(initial=0) > 0.01 * columns["ram_msg_count"].max(initial=0))


def draw_target(axes: Axes, queue: QueueView) -> None:
    """Draw the messages in RAM, and the target."""
    columns = queue.columns
    at, in_ram, target = columns["time_s"], columns["ram_msg_count"], columns["target_ram_count"]
    with_unacked = in_ram + columns["ram_ack_count"]
    axes.fill_between(at, in_ram, color=BLUE, alpha=0.16, linewidth=0)
    if _has_unacked_in_ram(columns):
        axes.plot(at, with_unacked, color=GREY, linewidth=1.2, label="with unacked")
    axes.plot(at, in_ram, color=BLUE, label="in RAM")
    finite = np.where(np.isfinite(target), target, np.nan)
    targets = finite[np.isfinite(finite)]
    if len(targets):
        axes.plot(at, finite, color=AMBER, drawstyle="steps-post", label="target")
        alone = _alone(finite)
        axes.plot(at[alone], finite[alone], color=AMBER, linestyle="", marker=".", markersize=2.5)
    most = float(with_unacked.max()) if len(at) else 0.0
    if len(targets):
        most = max(most, min(float(targets.max()), 1.6 * most) if most else float(targets.max()))
    value_axis(axes, count_text, top=most * 1.08)
    if queue.rates["no_limit"].any():
        _draw_no_limit(axes, queue.rates)


def _draw_no_limit(axes: Axes, rates: Columns) -> None:
    """Draw a strip at the top, as high as the share of the time in which the target is infinite."""
    across: Any = axes.get_xaxis_transform()
    heights = _STRIP_FROM + (1 - _STRIP_FROM) * rates["no_limit"]
    axes.plot([0, 1], [_STRIP_FROM] * 2, color=LINE, linewidth=0.6, transform=axes.transAxes)
    axes.stairs(
        heights, rates["time_s"], baseline=_STRIP_FROM, fill=True, color=AMBER, alpha=0.45, linewidth=0,
        transform=across, label="no limit",
    )  # fmt: skip


def draw_latency(axes: Axes, queue: QueueView) -> None:
    """Draw the latencies of the messages that were delivered in each step."""
    columns = queue.columns
    at, p50, p99 = columns["time_s"], columns["latency_p50_s"], columns["latency_p99_s"]
    latencies = np.concatenate((p50, p99))
    latencies = latencies[np.isfinite(latencies)]
    if not len(latencies):
        _say(axes, "nothing was delivered")
        value_axis(axes, time_text, top=0.0)
        axes.set_yticks([])
        return
    positive = latencies[latencies > 0]
    is_log = len(positive) > 0 and positive.max() > _LOG_FROM * max(positive.min(), 1e-6)
    if is_log:
        floor = max(float(positive.min()), 1e-6)
        p50, p99 = (np.where(np.isfinite(values), np.maximum(values, floor), np.nan) for values in (p50, p99))
        axes.fill_between(at, p50, p99, color=PLUM, alpha=0.18, linewidth=0)
        latency_axis(axes, floor, float(positive.max()))
    else:
        axes.fill_between(at, p50, p99, color=PLUM, alpha=0.18, linewidth=0)
        value_axis(axes, time_text, top=float(latencies.max()))
    for values, colour, name, width in ((p99, PLUM, "p99", 2.4), (p50, BLUE, "p50", 1.3)):
        axes.plot(at, values, color=colour, label=name, linewidth=width)
        alone = _alone(values)
        if alone.any():
            axes.plot(at[alone], values[alone], color=colour, linestyle="", marker=".", markersize=3.5)


def _alone(values: Floats) -> Any:
    """Return which values have no neighbour, so that a line does not show them."""
    is_finite = np.isfinite(values)
    padded = np.concatenate(([False], is_finite, [False]))
    return is_finite & ~padded[:-2] & ~padded[2:]


def draw_flow(axes: Axes, queue: QueueView) -> None:
    """Draw the messages published and delivered per second."""
    rates = queue.rates
    most = 0.0
    for key, name, colour, width in (
        ("acked", "acked", GREY, 3.4),  # below what is mostly the same
        ("published", "published", GREEN, 1.5),
        ("delivered", "delivered", BLUE, 1.5),
    ):
        if key != "acked" or rates[key].any():
            _stairs(axes, rates, key, color=colour, label=name, linewidth=width)
            most = max(most, float(rates[key].max(initial=0.0)))
    for key, name in (("dead_lettered", "dead-lettered"), ("refused", "refused")):
        if rates[key].any():
            _stairs(axes, rates, key, color=RED, label=name, linewidth=1.1)
    value_axis(axes, count_text, top=most)


def _stairs(axes: Axes, rates: Columns, key: str, **look: Any) -> None:
    axes.stairs(rates[key], rates["time_s"], baseline=None, **look)


def draw_waiting(axes: Axes, view: View) -> None:
    """Draw the messages that blocked publishers hold back."""
    at, waiting = view.node["time_s"], view.node["waiting_messages"]
    axes.fill_between(at, waiting, color=RED, alpha=0.2, linewidth=0)
    axes.plot(at, waiting, color=RED)
    value_axis(axes, count_text, top=float(waiting.max()) if len(at) else 0.0, most=3)


# ── the disk ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def draw_disk(axes: Axes, view: View) -> None:
    """Draw the bytes per second: written above, read below."""
    rates = view.rates
    written, read = rates["disk_write_bytes"], rates["disk_read_bytes"]
    axes.stairs(written, rates["time_s"], color=AMBER, fill=True, label="written", linewidth=0)
    axes.stairs(-read, rates["time_s"], color=BLUE, fill=True, label="read", linewidth=0)
    axes.axhline(0, color=PALE, linewidth=0.8)
    above, below = float(written.max(initial=0.0)), float(read.max(initial=0.0))
    value_axis(axes, _each_second)
    room = max(above, below) or 1.0
    axes.set_ylim(-1.1 * max(below, 0.08 * room), 1.1 * max(above, 0.08 * room))


def _each_second(size: float) -> str:
    return "0" if not size else f"{bytes_text(abs(size))}/s"


def draw_disk_busy(axes: Axes, view: View) -> None:
    """Draw the share of the time in which the disk worked."""
    rates = view.rates
    axes.stairs(rates["disk_busy"], rates["time_s"], color=PALE, fill=True, alpha=0.55, linewidth=0)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1])
    axes.yaxis.set_major_formatter(lambda value, _: share_text(value))


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def node_panels(view: View) -> dict[str, list[Panel]]:
    """Return the panels of the node as a whole: picture's name → panels."""
    memory = Panel("Memory of the node", partial(_of_view, draw_memory, view), 2.1, legend_entries=3)
    disk = [
        Panel("Disk", partial(_of_view, draw_disk, view), 1.7, legend_entries=2),
        Panel("Disk at work", partial(_of_view, draw_disk_busy, view), 0.6, legend_entries=0),
    ]
    waiting = Panel("Messages that publishers hold back", partial(_of_view, draw_waiting, view), 0.9, legend_entries=0)
    return {"memory": [memory], "disk": disk, "waiting": [waiting]}


def queue_panels(queue: QueueView) -> dict[str, Panel]:
    """Return the panels of one queue: picture's name → panel."""
    name = short(queue.name, 28) + (f" ({queue.queues:,} queues)" if queue.queues > 1 else "")

    def panel(title: str, draw: Callable[[Axes, QueueView], None], height: float, entries: int) -> Panel:
        return Panel(f"{name}: {title}", lambda axes: draw(axes, queue), height, min(entries, 3), entries)

    return {
        "states": panel("messages by state", draw_states, 2.1, 5 + int(_has_unacked(queue.columns))),
        "target": panel("in RAM, and its target", draw_target, 1.7, _target_entries(queue)),
        "latency": panel("latency", draw_latency, 1.7, 2),
        "flow": panel("messages a second", draw_flow, 1.5, 3),
    }


def _target_entries(queue: QueueView) -> int:
    columns, target = queue.columns, queue.columns["target_ram_count"]
    has_no_limit = queue.rates["no_limit"].any()
    return 1 + int(_has_unacked_in_ram(columns)) + int(np.isfinite(target).any()) + int(has_no_limit)


def _of_view(draw: Callable[[Axes, View], None], view: View, axes: Axes) -> None:
    draw(axes, view)


def column_of(view: View, panels: Sequence[Panel], *, queue: QueueView | None = None) -> Column:
    """Return a column: a ribbon with these panels below it. ``queue``: the ribbon is that of this queue."""
    paging = view.paging if queue is None else queue.paging
    rows = rows_of(view, paging)
    return Column(
        name=short(view.name, 40),
        scale=view.scale,
        panels=panels,
        ribbon_rows=len(rows),
        draw_ribbon=lambda axes: draw_ribbon(axes, view, rows),
        draw_moments=lambda axes: draw_moments(axes, view, paging),
    )


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=PALE)
