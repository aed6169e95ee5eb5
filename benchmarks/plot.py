"""The picture of the results: rates beside the bare write, and memory while a backlog comes and goes."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

from benchmarks.figures import Figure, Memory, Results

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

OURS, BARE = "#2f6f4f", "#c9c3b4"
LISTS = {"q4": "#1b4332", "q3": "#2d6a4f", "delta": "#95d5b2", "q2": "#f4a261", "q1": "#e76f51"}


def draw(results: Results, target: Path) -> None:
    """Write the picture (PNG) to ``target``."""
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.4), width_ratios=[1.1, 1, 1])
        _rates(left, results.figures)
        _memory(middle, results.memory)
        _lists(right, results.memory)
        figure.tight_layout(w_pad=2.5)
        figure.savefig(target, dpi=140)
        plt.close(figure)


def _rates(axes: Axes, figures: list[Figure]) -> None:
    shown = [line for line in figures if line.unit == "messages/s" and line.counterpart_name.startswith("bare")]
    for row, line in enumerate(reversed(shown)):
        if line.counterpart is None:
            continue
        axes.barh(
            row + 0.2, line.counterpart.median, 0.36, color=BARE, label="the same bytes, bare" if not row else None
        )
        axes.barh(row - 0.2, line.ours.median, 0.36, color=OURS, label="warren" if not row else None)
        axes.plot([line.ours.low, line.ours.high], [row - 0.2] * 2, color="black", linewidth=0.8)
        axes.plot([line.counterpart.low, line.counterpart.high], [row + 0.2] * 2, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [line.title for line in reversed(shown)], fontsize=7)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.set_xlabel("messages a second (log); line: lowest to highest")
    axes.legend(loc="upper left", bbox_to_anchor=(-0.9, -0.08), fontsize=8, frameon=False)
    axes.set_title("Rates, beside the bare writing\nand reading of the same bytes", fontsize=10, loc="left")


def _short(value: float, _: object) -> str:
    """10 k, 1 M: what fits below an axis."""
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1e3:g} k"


def _memory(axes: Axes, memory: Memory) -> None:
    axes.plot(memory.seconds, memory.growth_mb, color=OURS)
    axes.axvline(memory.filled_at_s, color="gray", linewidth=0.8, linestyle=":")
    axes.axhline(64, color="#b23a48", linewidth=0.8, linestyle="--")
    axes.text(0, 65.5, "64 MB", color="#b23a48", fontsize=8)
    axes.set_ylim(0, max(72, *memory.growth_mb))
    axes.set_xlabel("seconds")
    axes.set_ylabel("resident memory, MB above the start")
    axes.set_title("Memory while a backlog is filled,\nthen (dotted line) drained", fontsize=10, loc="left")


def _lists(axes: Axes, memory: Memory) -> None:
    columns = [getattr(memory, name) for name in LISTS]
    names = [name if name == "delta" else name.upper() for name in LISTS]
    axes.stackplot(memory.seconds, columns, colors=list(LISTS.values()), labels=names)
    axes.axvline(memory.filled_at_s, color="gray", linewidth=0.8, linestyle=":")
    axes.yaxis.set_major_formatter(FuncFormatter(_short))
    axes.set_xlabel("seconds")
    axes.set_ylabel("messages")
    axes.legend(loc="upper right", fontsize=8, frameon=False)
    axes.set_title(f"Where its messages are\n(target in RAM: {memory.target_ram_count:,})", fontsize=10, loc="left")
