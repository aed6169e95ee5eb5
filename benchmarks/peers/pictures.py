"""The pictures of the outcome, in the style of the others (:mod:`benchmarks.plot`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from benchmarks.peers.growth import GROWTHS, Growth
from benchmarks.peers.outcome import Outcome, Points
from benchmarks.peers.page import GROWTH_PICTURE, PICTURE, title_of
from benchmarks.peers.works import WORKS_BY_NAME
from benchmarks.plot import FOOT, HEAD, RIGHT, Page, legend, named_rows
from benchmarks.report import DOCS
from warren.simulation.pictures.style import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    INK,
    MINT,
    PALE,
    PLUM,
    RED,
    SKY,
    WIDE_INCHES,
    save_png,
    style,
)
from warren.simulation.pictures.words import bytes_text, count_text

_COLOURS: Final = {
    "warren": BLUE,
    "plain": SKY,
    "sqlite": RED,
    "redis": AMBER,
    "rabbitmq": GREEN,
    "litequeue": MINT,
    "persist-queue": PLUM,
    "huey": PALE,
    "diskcache": INK,
    "queuelib": GREY,
}
"""Those that are drawn."""
_ROW: Final = 0.3
_SMALL: Final = 1.5
_GAP: Final = 0.3


def draw_rates(outcome: Outcome, target: Path) -> None:
    """A row for each rate, a mark for each peer: filled where it promises what the work asks for."""
    rows = [
        (result, value)
        for result in outcome.works
        for value, unit in WORKS_BY_NAME[result.work].values.items()
        if unit == "messages/s"
    ]
    with style():
        page = Page(2 * HEAD + _ROW * len(rows) + FOOT)
        names = [f"{result.work}, {value}" for result, value in rows]
        axes = named_rows(page, names, "Messages a second", _ROW, top=2 * HEAD)
        named: set[str] = set()
        for row, (result, value) in enumerate(rows):
            for name, ran in result.ran.items():
                spread = result.spread(name, value)
                if spread is None or name not in _COLOURS:
                    continue
                colour, same = _COLOURS[name], ran.promise == WORKS_BY_NAME[result.work].promise
                axes.plot([spread.low, spread.high], [row, row], color=colour, linewidth=0.8)
                axes.plot(
                    spread.median, row, "o", color=colour, markersize=7 if name == "warren" else 5,
                    markerfacecolor=colour if same else "white", label=None if name in named else title_of(name),
                )  # fmt: skip
                named.add(name)
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
        axes.set_xlabel("logarithmic; thin line: lowest to highest; hollow: promises less", fontsize=8.5)
        legend(axes, 5)
        save_png(page.canvas, target)


def draw_growth(outcome: Outcome, target: Path) -> None:
    """Rates above, memory below, a column for each thing that grows."""
    shown = [growth for growth in GROWTHS if outcome.growth.get(growth.name)]
    left, below = 0.75, HEAD + 0.25
    with style():
        page = Page(max(1, len(shown)) * (HEAD + _SMALL + FOOT))
        width = (WIDE_INCHES - 2 * left - RIGHT - 0.2) / 2
        for number, growth in enumerate(shown):
            top = number * (HEAD + _SMALL + FOOT) + below - 0.25
            peers = outcome.growth[growth.name]
            rates = page.axes(f"Messages a second, by {growth.axis}", left, top, width, _SMALL)
            memory = page.axes("Memory", 2 * left + width + 0.2, top, width, _SMALL)
            _draw_lines(rates, growth, peers, "messages/s")
            _draw_lines(memory, growth, peers, "MB")
        save_png(page.canvas, target)


def _draw_lines(axes: Axes, growth: Growth, peers: dict[str, Points], unit: str) -> None:
    shown = [value for value, one in growth.values.items() if one == unit]
    for peer, points in peers.items():
        for value, line in zip(shown, ("-", "--"), strict=False):
            places = [(point["at"], point[value]) for point in points if value in point]
            label = title_of(peer) + (f", {value}" if len(shown) > 1 else "")
            axes.plot(*zip(*places, strict=True), line, color=_COLOURS[peer], marker=".", label=label)
    axes.set_xscale("symlog", linthresh=1, linscale=0.4)
    axes.xaxis.set_major_locator(FixedLocator(growth.points))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
    axes.set_xlabel(growth.axis, fontsize=8.5)
    if unit == "MB":
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value * 1e6)))
    else:
        axes.set_yscale("log")
        lowest = min((point[value] for points in peers.values() for point in points for value in shown), default=1)
        axes.set_ylim(bottom=lowest / 10)  # room for the legend
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
        axes.legend(loc="lower left", fontsize=6.5, handlelength=1.6)


def write(outcome: Outcome) -> None:
    """Both, into docs/."""
    draw_rates(outcome, DOCS / PICTURE)
    draw_growth(outcome, DOCS / GROWTH_PICTURE)
