"""Pictures of a sweep: how the results depend on what was varied.

One key gives lines. Two keys give heat maps, the first key downwards, the second to the right. If there are more, the
last one goes to the right, and each combination of the others is a row. There is a map for each number that is not the
same at all points; the others are listed below the maps. A point that failed is hatched. A dash means that something
did not happen.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from warren.simulation.pictures.style import BLUE, GREY, GRID, INK, PALE, WIDE_INCHES, save_png, style, value_axis
from warren.simulation.pictures.words import bytes_text, count_text, share_text, short, time_text

if TYPE_CHECKING:
    import pandas as pd

PICTURE_FILE: Final = "sweep.png"
_CELLS_WITH_TEXT: Final = 16
"""With more columns than this, a cell has no room for its number."""
_MOST_LABELS: Final = 40
_COLOURS: Final = LinearSegmentedColormap.from_list("warren", ["#eef4f9", "#a9d2ef", "#4a9bd6", "#0a6ab0", "#0b2f57"])


@attrs.frozen
class Measure:
    """A number of the sweep's rows that has a map."""

    column: str
    title: str
    text: Callable[[float], str]


MEASURES: Final = (
    Measure("max_ratio", "peak memory, of the watermark", share_text),
    Measure("first_paging_s", "paging begins after", time_text),
    Measure("alarm_s", "publishers blocked", time_text),
    Measure("max_ready", "peak backlog of a queue", count_text),
    Measure("latency_p99_s", "latency p99, slowest queue", time_text),
    Measure("disk_write_bytes", "written to disk", bytes_text),
    Measure("disk_read_bytes", "read from disk", bytes_text),
    Measure("disk_busy", "disk at work", share_text),
)
"""In the order in which they are drawn."""


def draw_sweep(
    frame: pd.DataFrame,
    keys: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    measures: Sequence[Measure] = MEASURES,
    title: str = "",
) -> list[Path]:
    """Write ``sweep.png`` into ``folder``, which is made if it is missing. Returns its path in a list.

    ``frame`` has a row for each point, and a column for each of ``keys``, for each measure, and (if points failed) for
    ``error``. Raises ``ValueError`` if there is no row or no key.
    """
    if not len(frame) or not keys:
        raise ValueError("a sweep's picture needs at least one point and one key")
    present = [measure for measure in measures if measure.column in frame]
    grid = Grid.of(frame, keys)
    succeeded = frame[[not failed for failed in grid.failed]]
    varying = [measure for measure in present if _varies(succeeded[measure.column], measure.text)] or present[:1]
    constant = [measure for measure in present if measure not in varying]
    os.makedirs(folder, exist_ok=True)
    with style():
        heading = title or " and ".join(short(key, 40) for key in keys)
        figure = _lines(grid, varying, heading) if grid.is_line else _maps(grid, varying, heading)
        _add_note(figure, _same_text(succeeded, constant, grid))
        return [save_png(figure, Path(folder) / PICTURE_FILE)]


@attrs.frozen(eq=False)
class Grid:
    """A sweep's rows by their place: the last key to the right, what is left downwards."""

    frame: pd.DataFrame
    right: str
    right_labels: list[str]
    down: str
    down_labels: list[str]
    places: list[tuple[int, int]]
    """Row and column of each point."""
    values: list[Any]
    """The values of the last key."""
    failed: list[bool]

    @classmethod
    def of(cls, frame: pd.DataFrame, keys: Sequence[str]) -> Grid:
        *others, right = keys
        values = list(dict.fromkeys(frame[right].tolist()))
        rows = [tuple(row) for row in frame[others].itertuples(index=False)] if others else [()] * len(frame)
        downs = list(dict.fromkeys(rows))
        errors = frame["error"].tolist() if "error" in frame else [None] * len(frame)
        return cls(
            frame=frame,
            right=right,
            right_labels=[_label(value) for value in values],
            down=" · ".join(others),
            down_labels=[" · ".join(_label(value) for value in row) for row in downs],
            places=[(downs.index(row), values.index(value)) for row, value in zip(rows, frame[right], strict=True)],
            values=values,
            failed=[isinstance(error, str) and bool(error) for error in errors],
        )

    @property
    def is_line(self) -> bool:
        return len(self.down_labels) == 1

    def cells(self, column: str) -> Any:
        """Return a measure's values by place; NaN if a place has no point."""
        cells = np.full((len(self.down_labels), len(self.right_labels)), np.nan)
        for place, value in zip(self.places, self.frame[column].astype(float), strict=True):
            cells[place] = value
        return cells


def _label(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, int | float):
        return count_text(value) if abs(value) >= 1e4 else f"{value:.6g}"
    return short(str(value), 20)


def _varies(column: pd.Series, text: Callable[[float], str]) -> bool:
    """Whether the values differ as they are shown. What reads the same everywhere must not have different colours."""
    return len({"–" if math.isnan(value) else text(value) for value in column.astype(float)}) > 1


def _same_text(frame: pd.DataFrame, same: Sequence[Measure], grid: Grid) -> str:
    texts = [
        f"{measure.title} {'–' if math.isnan(value) else measure.text(value)}"
        for measure in same
        for value in frame[measure.column].astype(float).head(1)
    ]
    parts = [f"The same everywhere: {', '.join(texts)}."] if texts else []
    if any(grid.failed):
        prefix = "" if grid.is_line else "Hatched: "
        parts.append(f"{prefix}{sum(grid.failed)} of {len(grid.failed)} points failed.")
    return " ".join(parts)


# ── maps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_TOP: Final = 0.62
_UNDER: Final = 0.66
_HEAD: Final = 0.3


def _figure(title: str, counts: tuple[int, int], high: float, left: float, between: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes. ``counts``: how many in a row, and in all. ``high``: the height of each in inches."""
    across, count = counts
    down = math.ceil(count / across)
    width = (WIDE_INCHES - left - 0.2 - between * (across - 1)) / across
    height = _TOP + down * (high + _HEAD + _UNDER)
    figure = Figure(figsize=(WIDE_INCHES, height))
    FigureCanvasAgg(figure)
    figure.text(0.01, 1 - 0.16 / height, title, ha="left", va="top", fontsize=13, fontweight="bold")
    all_axes = []
    for number in range(count):
        x = left + number % across * (width + between)
        y = _TOP + number // across * (high + _HEAD + _UNDER) + _HEAD
        all_axes.append(figure.add_axes((x / WIDE_INCHES, 1 - (y + high) / height, width / WIDE_INCHES, high / height)))
    return figure, all_axes


def _maps(grid: Grid, measures: Sequence[Measure], title: str) -> Figure:
    rows, columns = len(grid.down_labels), len(grid.right_labels)
    names = max(len(label) for label in grid.down_labels[:_MOST_LABELS])
    wide = columns > 4 or names > 8 or len(measures) in (2, 4)
    across = 1 if columns > _CELLS_WITH_TEXT else 2 if wide else 3
    high = min(max(0.34 * rows, 0.9), 8.0)
    left = 0.5 + 0.075 * min(names, 34)
    figure, all_axes = _figure(title, (min(across, len(measures)), len(measures)), high, left, 0.3)
    for number, (axes, measure) in enumerate(zip(all_axes, measures, strict=True)):
        _map(axes, grid, measure, is_first=number % across == 0)
    return figure


def _map(axes: Axes, grid: Grid, measure: Measure, *, is_first: bool) -> None:
    cells = grid.cells(measure.column)
    finite = cells[np.isfinite(cells)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    axes.imshow(cells, cmap=_COLOURS, vmin=low, vmax=high if high > low else low + 1.0, aspect="auto")
    axes.grid(visible=False)
    rows, columns = cells.shape
    for row in range(1, rows):
        axes.axhline(row - 0.5, color="white", linewidth=1.2)
    for column in range(1, columns):
        axes.axvline(column - 0.5, color="white", linewidth=1.2)
    failed = {place for place, is_failed in zip(grid.places, grid.failed, strict=True) if is_failed}
    for place in failed:
        axes.add_patch(
            Rectangle((place[1] - 0.5, place[0] - 0.5), 1, 1, facecolor=GRID, edgecolor=GREY, hatch="///", linewidth=0)
        )
    if columns <= _CELLS_WITH_TEXT and rows <= _MOST_LABELS:
        for row, column in ((row, column) for row in range(rows) for column in range(columns)):
            if (row, column) not in failed:
                _number(axes, (column, row), cells[row, column], measure, (low, high))
    axes.set_title(measure.title, loc="left", fontsize=9.5, fontweight="bold", pad=5)
    axes.spines["bottom"].set_visible(False)
    _names(axes, grid, columns, rows, is_first=is_first)


def _number(axes: Axes, at: tuple[int, int], value: float, measure: Measure, ends: tuple[float, float]) -> None:
    low, high = ends
    is_dark = math.isfinite(value) and high > low and (value - low) / (high - low) > 0.5
    text = measure.text(value) if math.isfinite(value) else "–"
    axes.text(*at, text, ha="center", va="center", fontsize=8.5, color="white" if is_dark else INK)


def _names(axes: Axes, grid: Grid, columns: int, rows: int, *, is_first: bool) -> None:
    stride = math.ceil(columns / _MOST_LABELS)
    axes.set_xticks(range(0, columns, stride), grid.right_labels[::stride])
    stride = math.ceil(rows / _MOST_LABELS)
    axes.set_yticks(
        range(0, rows, stride), grid.down_labels[::stride] if is_first else [""] * len(range(0, rows, stride))
    )
    axes.tick_params(length=0)
    if columns > 8:
        axes.tick_params(axis="x", labelrotation=45)
    axes.set_xlabel(short(grid.right, 44), fontsize=8.5)
    if is_first:
        axes.set_ylabel(short(grid.down, 60), fontsize=8.5)


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _lines(grid: Grid, measures: Sequence[Measure], title: str) -> Figure:
    across = min(2, len(measures))
    figure, all_axes = _figure(title, (across, len(measures)), 1.7, 0.85, 0.85)
    for axes, measure in zip(all_axes, measures, strict=True):
        _line(axes, grid, measure)
    return figure


def _line(axes: Axes, grid: Grid, measure: Measure) -> None:
    cells = grid.cells(measure.column)[0]
    is_numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in grid.values)
    at = np.asarray(grid.values if is_numeric else range(len(cells)), float)
    order = np.argsort(at, kind="stable")
    axes.plot(at[order], cells[order], color=BLUE, marker="o", markersize=5)
    finite = cells[np.isfinite(cells)]
    if is_numeric and at.min() > 0 and at.max() > 30 * at.min():
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    shown = order if len(order) <= 10 else order[:: math.ceil(len(order) / 10)]
    axes.set_xticks(at[shown], [grid.right_labels[place] for place in shown])
    value_axis(axes, measure.text, top=float(finite.max()) if len(finite) else 0.0)
    for place, value in enumerate(cells):
        if not math.isfinite(value):
            label = "failed" if grid.failed[grid.places.index((0, place))] else "never"
            across: Any = axes.get_xaxis_transform()
            axes.text(at[place], 0.06, label, transform=across, ha="center", fontsize=8.5, color=PALE)
    axes.set_xlim(*_around(at, is_log=axes.get_xscale() == "log"))
    axes.set_title(measure.title, loc="left", fontsize=9.5, fontweight="bold", pad=6)
    axes.set_xlabel(short(grid.right, 60), fontsize=8.5)


def _around(at: Any, *, is_log: bool) -> tuple[float, float]:
    """Return limits a little outside the first and the last value."""
    low, high = float(at.min()), float(at.max())
    if is_log:
        room = (high / low) ** 0.06
        return low / room, high * room
    room = 0.06 * (high - low) or 0.5
    return low - room, high + room


def _add_note(figure: Figure, text: str) -> None:
    if text:
        _, height = figure.get_size_inches()
        figure.text(0.01, 0.08 / height, text, ha="left", va="bottom", fontsize=8.5, color=PALE)
