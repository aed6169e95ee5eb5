"""The pictures of the results: queues' rates beside the bare write, and memory while a backlog comes and goes; topics'
rates beside the bare write and beside a peer that does the same work."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

from benchmarks.figures import Figure, Memory, Results

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

OURS, BARE, PEER = "#2f6f4f", "#c9c3b4", "#8fb8de"
TOPIC = "topic"
"""What the groups of the topics' figures begin with."""
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
    bare = [line for line in figures if line.unit == "messages/s" and line.counterpart_name.startswith("bare")]
    _bars(axes, [line for line in bare if not line.group.startswith(TOPIC)])
    axes.legend(loc="upper left", bbox_to_anchor=(-0.9, -0.08), fontsize=8, frameon=False)
    axes.set_title("Rates, beside the bare writing\nand reading of the same bytes", fontsize=10, loc="left")


def draw_topics(results: Results, target: Path) -> None:
    """Write the topics' picture (PNG) to ``target``."""
    shown = [
        line
        for line in results.figures
        if line.group.startswith(TOPIC)
        and line.unit == "messages/s"
        and line.counterpart_name.startswith(("bare", "SQL"))
    ]
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(figsize=(10, 0.5 + 0.42 * len(shown)))
        _bars(axes, shown)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=8, frameon=False)
        figure.tight_layout()
        figure.savefig(target, dpi=140)
        plt.close(figure)


def draw_spark(results: Results, target: Path) -> None:
    """Write the pipeline's picture (PNG): each figure as a multiple of what stands beside it, and its bar."""
    shown = [line for line in results.figures if line.ratio is not None and line.bar is not None]
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(figsize=(10, 0.8 + 0.5 * len(shown)))
        for row, line in enumerate(reversed(shown)):
            if line.ratio is None or line.bar is None:
                continue
            axes.barh(row, line.ratio.median, 0.55, color=OURS)
            axes.plot([line.ratio.low, line.ratio.high], [row, row], color="black", linewidth=0.8)
            axes.plot([line.bar.limit] * 2, [row - 0.4, row + 0.4], color="#b23a48", linewidth=1.6)
            axes.text(max(line.ratio.high, line.bar.limit) * 1.06, row, f"{line.ratio.median:.2f} ×", va="center")
        names = [f"{line.title.removeprefix('spark, ')}\nbeside {line.counterpart_name}" for line in reversed(shown)]
        axes.set_yticks(range(len(shown)), names, fontsize=7)
        axes.set_xscale("log")
        axes.set_xticks([0.25, 0.5, 1, 2, 4, 8], [f"{times:g} ×" for times in (0.25, 0.5, 1, 2, 4, 8)])
        axes.minorticks_off()
        axes.set_xlabel("times what stands beside it (log); red: what is to be reached (memory: at most)")
        figure.tight_layout()
        figure.savefig(target, dpi=140)
        plt.close(figure)


def _bars(axes: Axes, shown: list[Figure]) -> None:
    """Ours and its counterpart, a pair a line, from the top."""
    named: set[str] = set()
    for row, line in enumerate(reversed(shown)):
        is_bare = line.counterpart_name.startswith("bare")
        beside = ("the same bytes, bare", BARE) if is_bare else (line.counterpart_name, PEER)
        for spread, height, (name, color) in ((line.counterpart, 0.2, beside), (line.ours, -0.2, ("warren", OURS))):
            if spread is None:
                continue
            axes.barh(row + height, spread.median, 0.36, color=color, label=None if name in named else name)
            axes.plot([spread.low, spread.high], [row + height] * 2, color="black", linewidth=0.8)
            named.add(name)
    axes.set_yticks(range(len(shown)), [line.title for line in reversed(shown)], fontsize=7)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.set_xlabel("messages a second (log); line: lowest to highest")


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
