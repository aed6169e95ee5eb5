"""The style of pictures of a simulation: colours, axes, and figures with fixed margins.

A figure has rows of panels with a common axis of time. Several runs stand side by side in columns, and the panels of
a row have the same scale. Above the panels is the ribbon: when queues paged, when an alarm blocked publishers, the
events of the scenario. The colours can be told apart by colour-blind readers (after Okabe and Ito; colours of similar
hue differ in lightness). Margins are fixed, in inches, so the axis of time is at the same place in all pictures of a
report.

The same input gives the same bytes: no date and nothing about the machine goes into a file.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from warren.simulation.pictures.words import TimeScale, count_text, time_text

INK: Final = "#1f2a30"
PALE: Final = "#6b7780"
LINE: Final = "#c9d0d4"
GRID: Final = "#e9edef"
PAPER: Final = "#fefefe"
"""The colour of the lines between areas; not quite white, so that a report can find it."""

BLUE: Final = "#0a6ab0"
SKY: Final = "#7cc0ea"
AMBER: Final = "#efa126"
MINT: Final = "#8fd3b6"
GREEN: Final = "#0b7f5f"
RED: Final = "#c9371c"
PLUM: Final = "#9b5f8d"
GREY: Final = "#b4bcc1"

WIDE_INCHES: Final = 10.0
NARROW_INCHES: Final = 4.5
DPI: Final = 150

_LEFT: Final = 0.82
_RIGHT: Final = 0.22
_BETWEEN: Final = 0.72
_BOTTOM: Final = 0.52
_TITLE: Final = 0.52
_HEAD: Final = 0.27
_LEGEND_ROW: Final = 0.19
_GAP: Final = 0.16
_RIBBON_ROW: Final = 0.21
_NAMED: Final = 0.34
_NARROW_AXES: Final = 6.0
_STYLE: Final[Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": PALE,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": LINE,
    "xtick.labelcolor": PALE,
    "xtick.labelsize": 8.5,
    "ytick.color": LINE,
    "ytick.labelcolor": PALE,
    "ytick.labelsize": 8.5,
    "ytick.major.size": 0,
    "lines.linewidth": 1.6,
    "lines.solid_joinstyle": "round",
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "path.simplify": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "warren",
}


@contextmanager
def style() -> Iterator[None]:
    """Set matplotlib's style while figures are made and drawn."""
    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a queue's name: a box in its place
        yield


# ── axes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_LATENCIES_S: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36000, 86400 * 10)


def value_axis(axes: Axes, text: Callable[[float], str], *, most: int = 4, top: float | None = None) -> None:
    """Let an axis of values begin at 0 and end a little above ``top``, with round numbers."""
    if top is not None:
        axes.set_ylim(0, top * 1.08 if top > 0 else 1)
    axes.yaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=text is count_text))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def latency_axis(axes: Axes, smallest_s: float, largest_s: float) -> None:
    """Make an axis of latencies: logarithmic, with units of time."""
    axes.set_yscale("log")
    axes.set_ylim(smallest_s / 1.5, largest_s * 1.7)
    inside = [tick for tick in _LATENCIES_S if smallest_s / 1.5 <= tick <= largest_s * 1.7]
    axes.yaxis.set_major_locator(FixedLocator(inside[:: 2 if len(inside) > 6 else 1]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value)))


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Panel:
    """One pair of axes: how high (inches), its title, and the function that draws it."""

    title: str
    draw: Callable[[Axes], None]
    height: float = 2.0
    legend_columns: int = 3
    """In a narrow figure."""
    legend_entries: int = 3

    def legend_lines(self, *, is_narrow: bool) -> int:
        """Return the lines of the legend below the title. If there is room, it stands beside the title."""
        return math.ceil(self.legend_entries / self.legend_columns) if is_narrow else 0


@attrs.frozen
class Column:
    """One run's panels, from top to bottom, under its name and its ribbon."""

    name: str
    scale: TimeScale
    panels: Sequence[Panel]
    ribbon_rows: int
    draw_ribbon: Callable[[Axes], None]
    draw_moments: Callable[[Axes], None]
    """Into each panel."""


def compose(columns: Sequence[Column], *, title: str = "", note: str = "", width_inches: float = WIDE_INCHES) -> Figure:
    """Return a figure of columns. The panels of a row share their scale. Call it within :func:`style`."""
    figure, grid = _composed(columns, title, note, width_inches)
    for row in zip(*grid, strict=True):
        _share_scale(row)
    return figure


def compose_each(columns: Sequence[Column]) -> list[Figure]:
    """Return a figure for each column, to stand below one another. They share their scales as in one figure."""
    composed = [_composed([column], "", "", NARROW_INCHES) for column in columns]
    for row in zip(*(grid[0] for _, grid in composed), strict=True):
        _share_scale(row)
    return [figure for figure, _ in composed]


def _composed(columns: Sequence[Column], title: str, note: str, width_inches: float) -> tuple[Figure, list[list[Axes]]]:
    count = len(columns)
    column_width = (width_inches - _LEFT - _RIGHT - _BETWEEN * (count - 1)) / count
    ribbon = _RIBBON_ROW * max(column.ribbon_rows for column in columns)
    name_height = _NAMED if count > 1 else 0.0
    rows = columns[0].panels
    heads = [
        _HEAD + _LEGEND_ROW * max(panel.legend_lines(is_narrow=column_width < _NARROW_AXES) for panel in row)
        for row in zip(*(column.panels for column in columns), strict=True)
    ]
    above = (_TITLE if title else 0.06) + name_height + ribbon
    height = above + sum(heads) + sum(panel.height for panel in rows) + _GAP * (len(rows) - 1) + _BOTTOM
    height += 0.2 if note else 0.0
    figure = Figure(figsize=(width_inches, height))
    FigureCanvasAgg(figure)
    if title:
        x = _LEFT * 0.12 / width_inches
        figure.text(x, 1 - 0.16 / height, title, ha="left", va="top", fontsize=13, fontweight="bold")
    if note:
        figure.text(_LEFT / width_inches, 0.1 / height, note, ha="left", va="bottom", fontsize=8.5, color=PALE)
    grid: list[list[Axes]] = []
    for number, column in enumerate(columns):
        place = _Place(_LEFT + number * (column_width + _BETWEEN), column_width, above - ribbon, above)
        grid.append(_column(figure, column, place, heads, names=number == 0))
        if count > 1:
            y = 1 - (above - ribbon - 0.1) / height
            figure.text(
                place.left / width_inches, y, column.name, ha="left", va="bottom", fontsize=11, fontweight="bold"
            )
    return figure, grid


@attrs.frozen
class _Place:
    """The place of a column, in inches: its left, its width, and from the top where its ribbon and its panels begin."""

    left: float
    width: float
    ribbon: float
    panels: float


def _column(figure: Figure, column: Column, place: _Place, heads: Sequence[float], *, names: bool) -> list[Axes]:
    width, height = figure.get_size_inches()
    is_narrow = place.width < _NARROW_AXES
    all_axes: list[Axes] = []
    if column.ribbon_rows:
        axes = _axes(figure, place, place.ribbon, _RIBBON_ROW * column.ribbon_rows)
        axes.set_xlim(0, column.scale.length_s)
        column.draw_ribbon(axes)
    y = place.panels
    for panel, head in zip(column.panels, heads, strict=True):
        title_y = 1 - (y + _HEAD - 0.11) / height
        figure.text(place.left / width, title_y, panel.title, ha="left", va="center", fontsize=9.5, fontweight="bold")
        y += head
        axes = _axes(figure, place, y, panel.height)
        panel.draw(axes)
        axes.set_xlim(0, column.scale.length_s)
        column.draw_moments(axes)
        _legend(axes, panel, is_narrow=is_narrow)
        axes.xaxis.set_major_locator(FixedLocator(column.scale.ticks(6 if is_narrow else 10)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: column.scale.text(value)))
        axes.tick_params(labelleft=names, labelbottom=panel is column.panels[-1])
        all_axes.append(axes)
        y += panel.height + _GAP
    all_axes[-1].set_xlabel(column.scale.label, fontsize=8.5)
    return all_axes


def _axes(figure: Figure, place: _Place, top: float, high: float) -> Axes:
    width, height = figure.get_size_inches()
    return figure.add_axes((place.left / width, 1 - (top + high) / height, place.width / width, high / height))


def _legend(axes: Axes, panel: Panel, *, is_narrow: bool) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.006, 1.0), "ncols": len(handles)}
    if is_narrow:
        place = {"loc": "lower left", "bbox_to_anchor": (-0.012, 1.0), "ncols": panel.legend_columns}
    axes.legend(
        handles,
        labels,
        **place,
        borderaxespad=0.25,
        handlelength=1.1,
        handleheight=0.8,
        handletextpad=0.45,
        columnspacing=1.1,
        labelspacing=0.25,
        borderpad=0.0,
    )


def _share_scale(row: Sequence[Axes]) -> None:
    """Give the panels of a row one scale, which is logarithmic if one of theirs is."""
    if len(row) < 2:
        return
    is_log = any(axes.get_yscale() == "log" for axes in row)
    limits = [axes.get_ylim() for axes in row if not is_log or axes.get_yscale() == "log"]
    low, high = min(low for low, _ in limits), max(high for _, high in limits)
    for axes in row:
        if is_log:
            latency_axis(axes, low * 1.5, high / 1.7)
        else:
            axes.set_ylim(low, high)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def save_png(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as PNG, on white. Returns the path."""
    figure.savefig(path, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    return Path(path)


def svg_text(figure: Figure) -> str:
    """Return a figure as an SVG element without a background, for a page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
