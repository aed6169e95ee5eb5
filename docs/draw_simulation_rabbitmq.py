"""Draws docs/simulation-rabbitmq.png: two workloads on a real RabbitMQ 3.10.8, and in the simulation.

python docs/draw_simulation_rabbitmq.py            from what was recorded (tests/data/simulation-broker)
python docs/draw_simulation_rabbitmq.py --record   after recording it anew: three minutes, with a RabbitMQ installed
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from tests.support.broker import Broker  # noqa: E402
from tests.support.recorder.paging_comparison import Curves, difference, load, observed, save, simulated  # noqa: E402
from tests.support.recorder.paging_recorder import Looking, Recording, Workload, record, settings  # noqa: E402
from warren.simulation.pictures.panels import STATES  # noqa: E402
from warren.simulation.pictures.style import (  # noqa: E402
    AMBER,
    BLUE,
    INK,
    PALE,
    PAPER,
    save_png,
    style,
    value_axis,
)
from warren.simulation.pictures.words import bytes_text, count_text  # noqa: E402

DATA: Final = HERE.parent / "tests" / "data" / "simulation-broker"
OUT: Final = HERE / "simulation-rabbitmq.png"
WORKLOADS: Final = (
    Workload(
        name="embedded",
        length_s=45.0,
        calibration_s=14.0,
        publish_rate=900,
        consume_rate=100,
        body_bytes=3000,
        persistent=False,
        room_bytes=40_000_000,
    ),
    Workload(
        name="stored",
        length_s=45.0,
        calibration_s=14.0,
        publish_rate=600,
        consume_rate=100,
        body_bytes=6000,
        persistent=True,
        room_bytes=40_000_000,
    ),
)
ROWS: Final = ("RabbitMQ 3.10.8: messages", "Simulated: messages")


def record_all() -> None:
    """Run the workloads against a broker and keep what it answered."""
    with tempfile.TemporaryDirectory() as scratch, Broker(Path(scratch) / "broker", settings()) as broker:
        broker.start()
        looking = Looking(broker, Path(scratch))
        for workload in WORKLOADS:
            save(record(looking, workload), DATA / f"{workload.name}.json.gz")


def draw() -> None:
    """From the recordings."""
    recordings = [load(DATA / f"{workload.name}.json.gz") for workload in WORKLOADS]
    with style():
        figure = Figure(figsize=(10.0, 8.8))
        grid: Any = figure.subplots(
            3, len(recordings), sharex=True, sharey="row", gridspec_kw={"height_ratios": (1, 1, 0.8)}
        )
        figure.subplots_adjust(left=0.085, right=0.985, top=0.868, bottom=0.06, hspace=0.34, wspace=0.1)
        most_bytes = 0.0
        top = max(sample["len"] for recording in recordings for sample in recording.samples)
        for number, recording in enumerate(recordings):
            there, here = observed(recording), simulated(recording)
            cells = grid[:, number]
            for axes, curves, name in zip(cells, (there, here), ROWS, strict=False):
                _states(axes, curves, top)
                _head(axes, name)
            _memory(cells[2], recording, there, here)
            most_bytes = max(most_bytes, there["used_bytes"].max(), here["used_bytes"].max())
            _head(cells[2], "Memory used")
            cells[2].set_xlabel("seconds since the first message")
            cells[2].xaxis.set_major_locator(MultipleLocator(10))
            cells[2].set_xlim(0, recording.workload.length_s)
            box = cells[0].get_position()
            figure.text(box.x0, 0.978, _name(recording.workload), fontsize=12, fontweight="bold", color=INK, va="top")
            figure.text(box.x0, 0.95, _said(there, here), fontsize=8.8, color=PALE, va="top")
        value_axis(grid[2, 0], bytes_text, top=most_bytes)
        _legends(grid)
        save_png(figure, OUT)


def _name(workload: Workload) -> str:
    kind = "persistent" if workload.persistent else "transient"
    return f"{workload.body_bytes / 1000:g} kB, {kind}: {workload.name}"


def _said(there: Curves, here: Curves) -> str:
    return (
        f"pages from {there.paging_starts_s:.1f} s on, simulated {here.paging_starts_s:.1f} s; "
        f"{difference(there, here):.0%} of messages elsewhere"
    )


def _head(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=9.5, color=INK, pad=7)


def _states(axes: Axes, curves: Curves, top: float) -> None:
    base = np.zeros(len(curves.time_s))
    for key, name, colour in STATES:
        upper = base + curves[key]
        axes.fill_between(curves.time_s, base, upper, color=colour, linewidth=0, label=name)
        axes.plot(curves.time_s, np.where(curves[key] > 0, upper, np.nan), color=PAPER, linewidth=0.5)
        base = upper
    _starts(axes, curves.paging_starts_s)
    value_axis(axes, count_text, top=top)


def _starts(axes: Axes, at_s: float) -> None:
    axes.axvline(at_s, color=INK, linewidth=1.0, linestyle=(0, (2, 2)))


def _memory(axes: Axes, recording: Recording, there: Curves, here: Curves) -> None:
    pages_from = recording.limit_bytes * recording.workload.paging_ratio
    axes.axhline(pages_from, color=AMBER, linewidth=1.4, label="paging from")
    axes.plot(there.time_s, there["used_bytes"], color=INK, linewidth=1.1, label="RabbitMQ")
    axes.plot(here.time_s, here["used_bytes"], color=BLUE, linewidth=1.6, label="simulated")


def _legends(grid: Any) -> None:
    """Beside the titles."""
    handles, labels = grid[0, 0].get_legend_handles_labels()
    look: dict[str, Any] = {
        "loc": "lower right",
        "bbox_to_anchor": (1.0, 1.02),
        "frameon": False,
        "fontsize": 8.5,
        "handlelength": 0.9,
        "handletextpad": 0.5,
        "columnspacing": 0.9,
        "borderaxespad": 0.0,
    }
    for axes in grid[0]:
        axes.legend(handles, labels, ncols=5, **look)
    for axes in grid[2]:
        axes.legend(ncols=3, **look)


if __name__ == "__main__":
    if "--record" in sys.argv[1:]:
        record_all()
    draw()
