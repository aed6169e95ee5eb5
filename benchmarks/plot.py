"""The pictures of the results, in the style of the simulation's pictures (:mod:`warren.simulation.pictures.style`).

``python -m benchmarks.plot`` draws all of them again from the kept results, without measuring anything.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

import attrs
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.figures import Figure, Memory, Results
from benchmarks.report import DOCS, RESULTS
from warren.simulation.pictures.panels import STATES
from warren.simulation.pictures.style import AMBER, BLUE, GREY, INK, PALE, RED, WIDE_INCHES, save_png, style, value_axis
from warren.simulation.pictures.words import count_text

TOPIC: Final = "topic"
"""The prefix of the groups of the topics' figures."""

RIGHT: Final = 0.25
HEAD: Final = 0.36
"""Above each pair of axes: its title and its legend."""
FOOT: Final = 0.55
"""Below each pair of axes: ticks and label."""
ROW: Final = 0.34
_LETTER: Final = 0.066


@attrs.define
class Page:
    """A figure with places in inches, from its left and from its top."""

    height: float
    canvas: Canvas = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.canvas = Canvas(figsize=(WIDE_INCHES, self.height))
        FigureCanvasAgg(self.canvas)

    def axes(
        self, title: str, left: float, top: float, width: float, height: float, *, title_left: float | None = None
    ) -> Axes:
        """A pair of axes below its title."""
        y = self.height - top - height
        place = (left / WIDE_INCHES, y / self.height, width / WIDE_INCHES, height / self.height)
        x, above = (left if title_left is None else title_left) / WIDE_INCHES, 1 - (top - 0.12) / self.height
        self.canvas.text(x, above, title, ha="left", va="center", fontsize=9.5, fontweight="bold")
        return self.canvas.add_axes(place)


def legend(axes: Axes, columns: int) -> None:
    """Right above the axes, in line with the title."""
    axes.legend(
        loc="lower right", bbox_to_anchor=(1.006, 1.0), ncols=columns, borderaxespad=0.25, borderpad=0.0,
        handlelength=1.1, handleheight=0.8, handletextpad=0.45, columnspacing=1.1,
    )  # fmt: skip


# ── rates ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def draw(results: Results, target: Path) -> None:
    """Draw the queues' rates beside the bare write, and memory and lists of a backlog, as PNG."""
    bare = [line for line in results.figures if line.unit == "messages/s" and line.counterpart_name.startswith("bare")]
    shown = [line for line in bare if not line.group.startswith(TOPIC)]
    rows = ROW * len(shown)
    with style():
        page = Page(HEAD + rows + FOOT + HEAD + 2.2 + FOOT)
        _draw_rates(page, shown, "Rates, beside bare writing and reading of the same bytes")
        top, half = HEAD + rows + FOOT + HEAD, (WIDE_INCHES - 0.6 - 0.75 - RIGHT) / 2
        memory = results.memory
        _draw_memory(page.axes("Resident memory above the start", 0.6, top, half, 2.2), memory)
        title = f"Where its messages are (target {memory.target_ram_count:,})"
        _draw_lists(page.axes(title, 0.6 + half + 0.75, top, half, 2.2), memory)
        save_png(page.canvas, target)


def draw_topics(results: Results, target: Path) -> None:
    """Draw the topics' rates beside the bare write, as PNG."""
    bare = [line for line in results.figures if line.unit == "messages/s" and line.counterpart_name.startswith("bare")]
    shown = [line for line in bare if line.group.startswith(TOPIC)]
    with style():
        page = Page(HEAD + ROW * len(shown) + FOOT)
        _draw_rates(page, shown, "Rates of topics, beside bare writing and reading of the same bytes")
        save_png(page.canvas, target)


def _draw_rates(page: Page, shown: list[Figure], title: str) -> None:
    """A pair of bars for each figure, ours and its counterpart's, from the top."""
    axes = named_rows(page, [line.title for line in shown], title, ROW)
    named: set[str] = set()
    for row, line in enumerate(shown):
        beside = ("the same bytes, bare", GREY)
        for spread, offset, (name, colour) in ((line.counterpart, -0.19, beside), (line.ours, 0.19, ("warren", BLUE))):
            if spread is None:
                continue
            axes.barh(row + offset, spread.median, 0.36, color=colour, label=None if name in named else name)
            axes.plot([spread.low, spread.high], [row + offset] * 2, color=INK, linewidth=0.8)
            named.add(name)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
    axes.set_xlabel("messages a second, logarithmic; thin line: lowest to highest", fontsize=8.5)
    legend(axes, len(named))


def named_rows(page: Page, names: list[str], title: str, row_inches: float, *, top: float = HEAD) -> Axes:
    """Axes with a named row for each bar, the first on top."""
    longest = max((len(part) for name in names for part in name.split("\n")), default=1)
    left = min(5.0, 0.3 + longest * _LETTER)
    axes = page.axes(title, left, top, WIDE_INCHES - left - RIGHT, row_inches * len(names), title_left=0.15)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    return axes


def draw_spark(results: Results, target: Path) -> None:
    """Draw each of the pipeline's figures as a multiple of what stands beside it, with its bar, as PNG."""
    shown = [
        (line, line.ratio, line.bar) for line in results.figures if line.ratio is not None and line.bar is not None
    ]
    names = [f"{line.title.removeprefix('spark, ')}\nbeside {line.counterpart_name}" for line, _, _ in shown]
    with style():
        page = Page(HEAD + 0.46 * len(shown) + FOOT)
        axes = named_rows(page, names, "Spark, as a multiple of what stands beside it", 0.46)
        for row, (_, ratio, bar) in enumerate(shown):
            axes.barh(row, ratio.median, 0.55, color=BLUE, label=None if row else "warren")
            axes.plot([ratio.low, ratio.high], [row, row], color=INK, linewidth=0.8)
            name = None if row else "to be reached (memory: at most)"
            axes.plot([bar.limit] * 2, [row - 0.4, row + 0.4], color=RED, linewidth=1.6, label=name)
            furthest = max(ratio.high, bar.limit)
            axes.annotate(f"{ratio.median:.2f} ×", (furthest, row), (5, 0), textcoords="offset points", va="center")
        axes.set_xscale("log")
        most = max((max(ratio.high, bar.limit) for _, ratio, bar in shown), default=1.0)
        axes.set_xlim(0.2, 2 ** math.ceil(math.log2(most * 1.15)))
        axes.xaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 2, 4, 8, 16]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} ×"))
        axes.set_xlabel("ratio, logarithmic; thin line: lowest to highest", fontsize=8.5)
        legend(axes, 2)
        save_png(page.canvas, target)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _megabytes(value: float) -> str:
    return f"{value:,.0f} MB"


def _draw_memory(axes: Axes, memory: Memory) -> None:
    axes.fill_between(memory.seconds, memory.growth_mb, color=BLUE, alpha=0.16, linewidth=0)
    axes.axhline(64, color=RED, linewidth=1.4, label="64 MB")
    axes.plot(memory.seconds, memory.growth_mb, color=BLUE, label="memory")
    value_axis(axes, _megabytes, top=max(64, *memory.growth_mb, 0))
    _time_axis(axes, memory)
    legend(axes, 2)


def _draw_lists(axes: Axes, memory: Memory) -> None:
    columns = [getattr(memory, key) for key, _, _ in STATES]
    colours, names = [colour for _, _, colour in STATES], [name for _, name, _ in STATES]
    axes.stackplot(memory.seconds, columns, colors=colours, labels=names)
    value_axis(axes, count_text, top=max(map(sum, zip(*columns, strict=True)), default=1))
    _time_axis(axes, memory)
    axes.legend(loc="upper right", handlelength=1.1, handleheight=0.8)


def _time_axis(axes: Axes, memory: Memory) -> None:
    axes.axvline(memory.filled_at_s, color=PALE, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.set_xlim(0, max(memory.seconds, default=1))
    axes.set_xlabel("seconds; dotted: full, from here on drained", fontsize=8.5)


def draw_soak(series: dict[str, Any], target: Path) -> None:
    """Draw memory and backlog of a soak (:mod:`benchmarks.soak`) over time, as PNG."""
    samples = series["samples"]
    minutes = [sample["seconds"] / 60 for sample in samples]
    with style():
        page = Page(2 * HEAD + 2.3 + 1.9 + 0.3 + FOOT)
        width = WIDE_INCHES - 0.82 - RIGHT
        axes = page.axes("Resident memory", 0.82, HEAD, width, 2.3)
        rss = [sample["rss_mb"] for sample in samples]
        axes.fill_between(minutes, rss, color=BLUE, alpha=0.16, linewidth=0)
        axes.axhline(series["limit_mb"], color=RED, linewidth=1.4, label="watermark")
        axes.axhline(
            series["base_mb"], color=PALE, linewidth=1.0, linestyle=(0, (1, 2)), label="before the first message"
        )
        axes.plot(minutes, rss, color=BLUE, label="memory")
        _shade_blocked(axes, samples, minutes)
        value_axis(axes, _megabytes, top=max(series["limit_mb"], *rss))
        axes.tick_params(labelbottom=False)
        legend(axes, 4)
        below = page.axes("Backlog, in bytes of bodies", 0.82, 2 * HEAD + 2.3 + 0.3, width, 1.9)
        backlog = [sample["backlog_mb"] / 1000 for sample in samples]
        below.fill_between(minutes, backlog, color=AMBER, alpha=0.7, linewidth=0)
        value_axis(below, lambda value: f"{value:g} GB", top=max(backlog))
        below.set_xlabel("minutes", fontsize=8.5)
        for one in (axes, below):
            one.set_xlim(0, minutes[-1])
        save_png(page.canvas, target)


def draw_long_run(result: dict[str, Any], target: Path) -> None:
    """Draw a long run (:mod:`benchmarks.long_run`) over time, as PNG."""
    samples = result["samples"]
    minutes = [sample["seconds"] / 60 for sample in samples]
    width, height, step = WIDE_INCHES - 0.82 - RIGHT, 1.15, HEAD + 1.15 + 0.12

    def line(axes: Axes, label: str, color: str, *keys: str) -> list[float]:
        points = [(at, value) for at, sample in zip(minutes, samples, strict=True) if (value := _within(sample, keys))]
        axes.plot([at for at, _ in points], [value for _, value in points], color=color, label=label, linewidth=1.0)
        return [value for _, value in points]

    with style():
        page = Page(5 * step + FOOT)
        drawn: list[Axes] = []
        for number, (title, form, lines) in enumerate(_LONG_RUN):
            axes = page.axes(title, 0.82, HEAD + number * step, width, height)
            top = max(max(line(axes, label, color, *keys), default=0) for label, color, keys in lines)
            for at, how in result["takeovers"]:
                axes.axvline(at / 60, color=RED if how == "killed" else PALE, linewidth=0.6, linestyle=(0, (1, 2)))
            if number == 0:
                axes.axhline(result["limit_mb"], color=GREY, linewidth=0.8, label="watermark")
                top = max(top, result["limit_mb"])
            value_axis(axes, form, top=top)
            axes.set_xlim(0, minutes[-1])
            legend(axes, 4)
            drawn.append(axes)
        for axes in drawn[:-1]:
            axes.tick_params(labelbottom=False)
        drawn[-1].set_xlabel(
            "minutes; dotted: the host closed, or (red) was killed, and another took over", fontsize=8.5
        )
        save_png(page.canvas, target)


def _within(sample: dict[str, Any], keys: tuple[str, ...]) -> float | None:
    value: Any = sample
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


_SHARED_LABEL, _SERVED_LABEL = "program of a shared directory", "warren serve"
_LONG_RUN: Final = (
    ("Resident memory", lambda value: f"{value:g} MB", (
        (_SHARED_LABEL, BLUE, ("steady", "rss_mb")), (_SERVED_LABEL, AMBER, ("server", "rss_mb")),
    )),
    ("Open descriptors", lambda value: f"{value:g}", (
        (_SHARED_LABEL, BLUE, ("steady", "descriptors")), (_SERVED_LABEL, AMBER, ("server", "descriptors")),
    )),
    ("Threads", lambda value: f"{value:g}", (
        (_SHARED_LABEL, BLUE, ("steady", "threads")), (_SERVED_LABEL, AMBER, ("server", "threads")),
    )),
    ("Disk", lambda value: f"{value:g} MB", (
        ("queues of the shared directory", BLUE, ("disk_mb", "shared")), ("its topic", GREY, ("disk_mb", "topics")),
        ("served", AMBER, ("disk_mb", "served")),
    )),
    ("There and back, median of five seconds", lambda value: f"{value:g} ms", (
        (_SHARED_LABEL, BLUE, ("waits", "steady", "there_ms")), ("over AMQP", AMBER, ("waits", "amqp", "there_ms")),
    )),
)  # fmt: skip
"""Of each panel: its title, how a value is written, and its lines (name, colour, where a sample has it)."""


def _shade_blocked(axes: Axes, samples: list[dict[str, float]], minutes: list[float]) -> None:
    """The samples in which publishers were blocked."""
    name: str | None = "publishers blocked"
    for number, sample in enumerate(samples[:-1]):
        if sample["blocked"]:
            axes.axvspan(minutes[number], minutes[number + 1], color=RED, alpha=0.12, linewidth=0, label=name)
            name = None


def main() -> None:
    """Draw all pictures from the kept results."""
    latest, spark = (Results.from_json(_kept(name)) for name in ("latest", "spark"))
    draw(latest, DOCS / "benchmarks.png")
    draw_topics(latest, DOCS / "benchmarks-topics.png")
    draw_spark(spark, DOCS / "benchmarks-spark.png")
    draw_soak(_kept("soak"), DOCS / "soak.png")
    draw_long_run(_kept("long-run"), DOCS / "long-run.png")


def _kept(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
