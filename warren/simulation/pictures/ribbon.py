"""Moments: the ribbon above the panels of a picture, and the same moments inside the panels.

Inside a panel, alarms are shaded. A line marks the beginning of paging or of an alarm, a green dashed line its end, and
dotted lines the events of the scenario. If something happened many times, only its first beginning and its last end
have lines, and the ribbon says how often it happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from warren.simulation.pictures.style import AMBER, GREEN, GREY, INK, PALE, PLUM, RED
from warren.simulation.pictures.view import Span, View
from warren.simulation.pictures.words import short

_MOST_LINES: Final = 6
"""Spans of a kind whose beginnings and ends have lines."""
_MOST_WORDS: Final = 3
"""Spans of a kind that have words of their own."""
_LANES: Final = 3
"""Rows for events that overlap."""
_LEAST: Final = 0.003
"""A bar's width, as a share of the time: so that a moment can be seen."""
_LETTER_INCHES: Final = 0.068
_ON_DARK: Final = "#fffffe"
_ON_LIGHT: Final = "#101820"
"""Inks on bars, in light and in dark: not the report's own, which change."""


def draw_moments(axes: Axes, view: View, paging: Sequence[Span]) -> None:
    """Draw alarms, paging and events into a panel."""
    for spans, colour in ((view.alarms, RED), (view.disk_alarms, PLUM)):
        for span in spans:
            axes.axvspan(span.start_s, span.end_s, color=colour, alpha=0.09, linewidth=0, zorder=0.4)
        _lines(axes, spans, colour)
    _lines(axes, paging, AMBER)
    for event in view.events[:_MOST_LINES]:
        for at_s in sorted({event.start_s, event.end_s} if event.ended else {event.start_s}):
            axes.axvline(at_s, color=PALE, linewidth=0.8, linestyle=(0, (1, 2)), zorder=0.6)


def _lines(axes: Axes, spans: Sequence[Span], colour: str) -> None:
    starts, ends = [span.start_s for span in spans], [span.end_s for span in spans if span.ended]
    if len(spans) > _MOST_LINES:
        starts, ends = starts[:1], ends[-1:]
    for at_s in starts:
        axes.axvline(at_s, color=colour, linewidth=1.0, zorder=0.7)
    for at_s in ends:
        axes.axvline(at_s, color=GREEN, linewidth=1.0, linestyle=(0, (4, 2)), zorder=0.7)


# ── the ribbon ───────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Row:
    """One row of the ribbon."""

    name: str
    spans: Sequence[Span]
    colour: str


def rows_of(view: View, paging: Sequence[Span]) -> list[Row]:
    """Return the rows that have something to show."""
    rows = [Row("paging", paging, AMBER), Row("alarm", view.alarms, RED), Row("disk alarm", view.disk_alarms, PLUM)]
    rows += [Row("" if lane else "events", spans, GREY) for lane, spans in enumerate(_lanes(view.events))]
    return [row for row in rows if row.spans]


def _lanes(events: Sequence[Span]) -> list[list[Span]]:
    """Return events in rows, so that those in a row do not overlap. The last row takes what has no room elsewhere."""
    lanes: list[list[Span]] = []
    for event in events:
        free = next((lane for lane in lanes if lane[-1].end_s <= event.start_s), None)
        if free is None and len(lanes) < _LANES:
            lanes.append(free := [])
        (lanes[-1] if free is None else free).append(event)
    return lanes


def draw_ribbon(axes: Axes, view: View, rows: Sequence[Row]) -> None:
    """Draw bars over the axis of time, with their words."""
    axes.set_axis_off()
    axes.set_ylim(len(rows), 0)
    figure = axes.figure
    inches = axes.get_position().width * float(figure.get_size_inches()[0]) if isinstance(figure, Figure) else 1.0
    length_s = view.scale.length_s
    for number, row in enumerate(rows):
        bars = [(span.start_s, max(span.end_s - span.start_s, _LEAST * length_s)) for span in row.spans]
        axes.broken_barh(bars, (number + 0.14, 0.72), color=row.colour, linewidth=0)
        _write(axes, row.name, (0.0, number), -6, PALE)
        for word in _Words(view, row.spans, inches / length_s).placed():
            ink = INK if not word.inside else _ON_DARK if row.colour in (RED, PLUM) else _ON_LIGHT
            _write(axes, word.text, (word.at_s, number), -4 if word.before else 4, ink)


def _write(axes: Axes, text: str, at: tuple[float, int], points: int, ink: str) -> None:
    """Write to the right of a moment, or to its left if ``points`` is negative."""
    axes.annotate(
        text,
        (at[0], at[1] + 0.5),
        (points, -0.4),
        textcoords="offset points",
        ha="left" if points > 0 else "right",
        va="center",
        fontsize=8,
        color=ink,
    )


@attrs.frozen
class _Word:
    text: str
    at_s: float
    inside: bool = False
    """On the bar."""
    before: bool = False
    """It ends there."""


@attrs.frozen
class _Words:
    """The words on or beside the bars of a row, if they fit."""

    view: View
    spans: Sequence[Span]
    inches_a_second: float

    def placed(self) -> list[_Word]:
        if len(self.spans) > _MOST_WORDS:
            return self._of_many()
        words: list[_Word] = []
        taken_s = 0.0
        for number, span in enumerate(self.spans):
            next_starts = [later.start_s for later in self.spans[number + 1 :]]
            word = self._of_one(span, min(next_starts, default=self.view.scale.length_s), taken_s)
            taken_s = max(taken_s, span.end_s)
            if word is not None:
                words.append(word)
                taken_s = max(taken_s, word.at_s if word.before else word.at_s + self._width_s(word.text))
        return words

    def _width_s(self, text: str) -> float:
        return (len(text) * _LETTER_INCHES + 0.12) / self.inches_a_second

    def _of_one(self, span: Span, free_to_s: float, taken_s: float) -> _Word | None:
        """Return the words for one bar: on it, else after it, else before it."""
        scale = self.view.scale
        text = short(span.text, 40) or scale.span_text(span.start_s, span.end_s if span.ended else None)
        if span.times > 1:
            text = f"{span.times} times, {text}"
        width_s = self._width_s(text)
        if span.end_s - span.start_s >= width_s:
            return _Word(text, span.start_s, inside=True)
        if free_to_s - span.end_s >= width_s:
            return _Word(text, max(span.end_s, span.start_s + _LEAST * scale.length_s))
        return _Word(text, span.start_s, before=True) if span.start_s - taken_s >= width_s else None

    def _of_many(self) -> list[_Word]:
        """Return the words for all bars: how often, and if there is room since when."""
        scale, first, last = self.view.scale, self.spans[0], self.spans[-1]
        times = sum(span.times for span in self.spans)
        for text in (f"{times} times, {scale.span_text(first.start_s, None)} on", f"{times} times", f"{times}×"):
            if scale.length_s - last.end_s >= self._width_s(text):
                return [_Word(text, last.end_s + _LEAST * scale.length_s)]
            if first.start_s >= self._width_s(text):
                return [_Word(text, first.start_s, before=True)]
        return []
