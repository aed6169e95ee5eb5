"""Compare two results: their numbers in one table, their pictures with the same scales and the same axis of time.

Queues of the same name are compared with each other. If the two have no name in common, the fullest queues are
compared.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.simulation.pictures.style import Column, compose, compose_each, save_png, style
from warren.simulation.pictures.view import View, that_matter, view_of
from warren.simulation.pictures.words import TimeScale, bytes_text, count_text, share_text, short, time_text
from warren.simulation.plots import OF_NODE, OVERVIEW, TITLES, column_for
from warren.simulation.report import EXPLAINED, inline, picture_section, table_section, write_page
from warren.simulation.result import Result, of_queues

if TYPE_CHECKING:
    import pandas as pd

PICTURE_FILE: Final = "compare.png"
PAGE_FILE: Final = "compare.html"
MOST_COMPARED: Final = 3
"""The most queues that are compared."""
_PERCENT_UNTIL: Final = 150


@attrs.frozen
class Row:
    """One number of both results; ``None`` if it did not happen."""

    what: str
    a: float | None
    b: float | None
    text: Callable[[float], str] = attrs.field(repr=False, eq=False)

    @property
    def texts(self) -> tuple[str, str, str]:
        """The number of the first, the number of the second, and the change from the first to the second."""
        return self._value_text(self.a), self._value_text(self.b), self._change()

    def _value_text(self, value: float | None) -> str:
        return "–" if value is None else self.text(value)

    def _change(self) -> str:
        if self.a == self.b:
            return ""
        if self.a is None or self.b is None:
            return "only the second" if self.a is None else "only the first"
        sign = "+" if self.b > self.a else "−"
        if not self.a:
            return f"{sign}{self.text(abs(self.b))}"
        percent = abs(self.b / self.a - 1) * 100
        if percent >= _PERCENT_UNTIL:
            return f"× {self.b / self.a:.3g}"
        return f"{sign}{percent:.0f} %" if percent >= 10 else f"{sign}{percent:.2g} %"


@attrs.frozen
class Comparison:
    """The outcome of a comparison."""

    names: tuple[str, str]
    rows: tuple[Row, ...]
    paths: tuple[Path, ...] = ()
    """The files that were written: the picture first, then the page."""

    @property
    def table(self) -> pd.DataFrame:
        """A row for each number: ``what``, ``a``, ``b`` (seconds, bytes, messages, shares). NaN: it did not happen."""
        import pandas as pd

        values = {"a": [row.a for row in self.rows], "b": [row.b for row in self.rows]}
        columns = {name: pd.Series(numbers, dtype="float64") for name, numbers in values.items()}
        return pd.DataFrame({"what": [row.what for row in self.rows], **columns})

    def to_json(self) -> dict[str, Any]:
        """Return the names and the numbers. Null: it did not happen."""
        rows = [{"what": row.what, "a": row.a, "b": row.b} for row in self.rows]
        return {"a": self.names[0], "b": self.names[1], "rows": rows}


def compare(
    a: Result, b: Result, folder: str | os.PathLike[str] | None = None, *, names: Sequence[str] | None = None
) -> Comparison:
    """Compare two results. Write ``compare.png`` and ``compare.html`` into ``folder``, which is made if it is missing.

    ``names`` are the names of the two. By default they are those of the scenarios; if these are the same, "(A)" and
    "(B)" are added. The same results give the same bytes.
    """
    labels = _names(a, b) if names is None else (names[0], names[1])
    rows = tuple(_rows(a.summary, b.summary))
    if folder is None:
        return Comparison(labels, rows)
    views = views_of(a, b, labels)
    with style():
        os.makedirs(folder, exist_ok=True)
        overview = [_column(view, OVERVIEW, views, most=1) for view in views]
        title = short(f"{labels[0]} and {labels[1]}", 90)
        picture = save_png(compose(overview, title=title), Path(folder) / PICTURE_FILE)
        sections = [_numbers(labels, rows), *_pictures(views)]
    page = write_page(folder, f"{labels[0]} and {labels[1]}", _subtitle(a, b), sections, name=PAGE_FILE)
    return Comparison(labels, rows, (picture, page))


def _names(a: Result, b: Result) -> tuple[str, str]:
    first, second = str(a.summary["name"]), str(b.summary["name"])
    return (first, second) if first != second else (f"{first} (A)", f"{second} (B)")


def _subtitle(a: Result, b: Result) -> str:
    texts = [f"{time_text(result.summary['length_s'])} simulated, seed {result.summary['seed']}" for result in (a, b)]
    return texts[0] if texts[0] == texts[1] else " · ".join(texts)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Row]:
    def of_node(what: str, key: str, text: Callable[[float], str]) -> Row:
        return Row(what, a["node"][key], b["node"][key], text)

    def of_all(what: str, key: str, text: Callable[[float], str], combine: Callable[[Any], Any]) -> Row:
        return Row(what, of_queues(a, key, combine), of_queues(b, key, combine), text)

    return [
        of_node("most memory used", "max_used_bytes", bytes_text),
        of_node("most memory used, of the watermark", "max_ratio", share_text),
        of_node("queues page from", "first_paging_s", time_text),
        of_node("first memory alarm at", "first_alarm_s", time_text),
        of_node("memory alarms", "alarms", count_text),
        of_node("publishers blocked", "alarm_s", time_text),
        of_all("published", "published", count_text, sum),
        of_all("delivered", "delivered", count_text, sum),
        of_all("ready at most, in one queue", "max_ready", count_text, max),
        of_all("ready at the end", "ready", count_text, sum),
        of_all("in RAM at most, of one queue", "max_ram_bytes", bytes_text, max),
        of_all("latency p50, of the slowest queue", "latency_p50_s", time_text, max),
        of_all("latency p99, of the slowest queue", "latency_p99_s", time_text, max),
        of_all("largest latency", "latency_max_s", time_text, max),
        of_node("written to disk", "disk_write_bytes", bytes_text),
        of_node("read from disk", "disk_read_bytes", bytes_text),
        of_node("syncs", "disk_syncs", count_text),
        of_node("disk at work", "disk_busy", share_text),
        of_node("turns of queues", "turns", count_text),
    ]


def _numbers(names: tuple[str, str], rows: Sequence[Row]) -> str:
    table_rows = [[row.what, *row.texts] for row in rows if row.a is not None or row.b is not None]
    return table_section("Numbers", ["", *(short(name, 40) for name in names), "change"], table_rows)


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def views_of(a: Result, b: Result, names: tuple[str, str]) -> tuple[View, View]:
    """Return the data of both for pictures: the queues that are compared, on the same axis of time."""
    first, second = a.summary["queues"], b.summary["queues"]
    common = {
        name: {key: max(first[name][key], second[name][key]) for key in ("max_ready", "published", "delivered")}
        for name in first
        if name in second
    }
    chosen = that_matter(common, MOST_COMPARED)
    selections = (chosen, chosen) if chosen else (that_matter(first, 1), that_matter(second, 1))
    views = [view_of(result, queues=queues) for result, queues in zip((a, b), selections, strict=True)]
    length_s = max(view.scale.length_s for view in views)
    starts = {view.scale.start_s for view in views}
    scale = TimeScale(length_s, starts.pop() if len(starts) == 1 else 0.0)
    view_a, view_b = (attrs.evolve(view, scale=scale, name=name) for view, name in zip(views, names, strict=True))
    return view_a, view_b


def _column(view: View, names: Sequence[str], views: Sequence[View], *, most: int) -> Column:
    """Return the column of one of them. Both have the same panels."""
    is_of_queue = len(view.queues) == 1 and len(names) == 1 and names[0] not in OF_NODE
    waiting = any(compared.node["waiting_messages"].any() for compared in views)
    return column_for(view, names, most=most, waiting=waiting, queue=view.queues[0] if is_of_queue else None)


def _pictures(views: tuple[View, View]) -> list[str]:
    sections = []
    for number, (name, title) in enumerate(TITLES.items()):
        columns = [_column(view, (name,), views, most=MOST_COMPARED) for view in views]
        wide = inline(compose(columns), title, f"w{number}", "screen")
        narrow = ""
        for which, (figure, column) in enumerate(zip(compose_each(columns), columns, strict=True)):
            narrow += f"<h3 class=phone>{html.escape(column.name)}</h3>"
            narrow += inline(figure, f"{title}: {column.name}", f"n{number}-{which}", "phone")
        note = _note(views, name)
        sections.append(picture_section(title, EXPLAINED.get(name, ""), wide + narrow, note))
    return sections


def _note(views: tuple[View, View], name: str) -> str:
    if name in OF_NODE:
        return ""
    left = [view.left_out for view in views]
    if not any(left):
        return ""
    return f"Not drawn: {left[0]:,} more queues of {views[0].name}, {left[1]:,} of {views[1].name}."
