"""The outcome on the terminal, in docs/performance.md, and as the README's table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import attrs
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, Unit
from benchmarks.peers.contestants import BARE, peer_class
from benchmarks.peers.growth import GROWTHS, Growth
from benchmarks.peers.outcome import Outcome, Points, WorkResult, behind, spark_figures
from benchmarks.peers.works import WORKS_BY_NAME
from benchmarks.report import (
    PERFORMANCE,
    PROJECT,
    goal_text,
    machine_line,
    markdown_table,
    number_text,
    table,
    value_text,
    write_into,
)

README: Final = PROJECT / "README.md"
README_BEGIN, README_END = "<!-- peers -->\n", "<!-- /peers -->"
PICTURE, GROWTH_PICTURE = "performance.png", "performance-growth.png"

README_ROWS: Final = {
    "W1": "publish",
    "W2": "publish",
    "W3": "round trip",
    "W3w": "round trip",
    "W3b": "round trip",
    "W4s": "drain",
    "W2h": "publish",
    "W7": "publish",
    "W8": "publish",
}
"""Works, and the value that the README shows."""
README_PEERS: Final = ("warren", "sqlite", "persist-queue", "litequeue", "diskcache", "huey", "redis", "rabbitmq")


def title_of(name: str) -> str:
    """A peer's title; its name where what it needs is not installed here."""
    try:
        return peer_class(name).title
    except ImportError:
        return name


# ── the terminal ─────────────────────────────────────────────────────────────────────────────────────────────────────


def show(console: Console, outcome: Outcome) -> None:
    """Medians, and the goals."""
    for result in outcome.works:
        work = WORKS_BY_NAME[result.work]
        shown = Table(title=f"{work.name}: {work.title}", title_justify="left", box=None, pad_edge=False)
        for heading in ("", "promise", "messages", *work.values):
            shown.add_column(heading, justify="right" if heading in {"messages", *work.values} else "left")
        for name, ran in result.ran.items():
            spreads = {value: result.spread(name, value) for value in work.values}
            cells = [
                value_text(spread.median if spread else None, work.values[value]) for value, spread in spreads.items()
            ]
            shown.add_row(title_of(name), ran.promise, f"{ran.messages:,}", *cells, *([ran.error] if ran.error else []))
        console.print(shown)
        console.print()
    for name, peers in outcome.growth.items():
        for peer, points in peers.items():
            console.print(f"{name}, {title_of(peer)}: " + "; ".join(_point(name, point) for point in points))
    console.print(table(outcome.figures()))
    for missing in outcome.not_measured():
        console.print(f"not measured: {missing}", style="yellow")
    for result in outcome.works:
        for line in _behind(result):
            console.print(f"behind: {line}", style="red")


def _point(growth: str, point: dict[str, float]) -> str:
    units = next(one.values for one in GROWTHS if one.name == growth)
    said = (f"{value} {value_text(point[value], unit)}" for value, unit in units.items() if value in point)
    return f"{point['at']:,}: " + ", ".join(said)


def _behind(result: WorkResult) -> Iterator[str]:
    for value, name, ratio in behind(result):
        yield f"{result.work}, {value}: {ratio.median:.2f} × {title_of(name)}"


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def markdown(outcome: Outcome) -> str:
    """What stands between the page's markers."""
    versions = "; ".join(
        f"{title_of(name)} {version}" for name, version in outcome.versions().items() if name not in BARE
    )
    lines = [machine_line(outcome.date, outcome.machine), "", f"Versions: {versions}.", ""]
    lines += [f"![Rates of warren and its peers at the same works]({PICTURE})", ""]
    lines += ["### Stores", "", *_rates_table(outcome, README_PEERS), ""]
    lines += ["### Bare writing, and what keeps less", "", *_rates_table(outcome, OTHERS), ""]
    lines += [*_goals(outcome), ""]
    lines += ["### How cost grows", "", f"![Rates and memory against what grows]({GROWTH_PICTURE})", ""]
    lines += [*_growth_table(outcome.growth), ""]
    return "\n".join(lines)


OTHERS: Final = ("warren", "plain", "bare", "file", "queuelib", "queue.Queue")
"""The columns of the second table; the first has the README's."""
WEAKER: Final = "†"
"""Stands after the figures of a peer that promises less than the work asks for."""


def _rates_table(outcome: Outcome, peers: tuple[str, ...]) -> list[str]:
    """A row for each value of each work that another one than warren has."""
    rows = []
    for result in outcome.works:
        work = WORKS_BY_NAME[result.work]
        title = f"{work.name}, {work.title}: " if peers is README_PEERS else f"{work.name}: "
        for value, unit in work.values.items():
            cells = [_cell(result, peer, value, unit) for peer in peers]
            if any(cells[1:]):
                rows.append([title + value + ("" if unit == "messages/s" else f", {unit}"), *cells])
                title = f"{work.name}: "
    return markdown_table(["messages/s", *map(title_of, peers)], rows, numbers=True)


def _cell(result: WorkResult, peer: str, value: str, unit: Unit) -> str:
    spread = result.spread(peer, value)
    if spread is None:
        return ""
    weaker = result.ran[peer].promise != WORKS_BY_NAME[result.work].promise
    return number_text(spread.median, unit) + (WEAKER if weaker else "")


def _goals(outcome: Outcome) -> list[str]:
    figures = [figure for figure in (*outcome.figures(), *spark_figures()) if figure.bar is not None]
    missed = [figure for figure in figures if figure.reached is False]
    lines = ["### Goals", "", f"{len(figures) - len(missed)} of {len(figures)} goals are reached. These are not:", ""]
    short = [attrs.evolve(figure, title=re.sub(r"^(W\w+), .*: ", r"\1: ", figure.title)) for figure in missed]
    lines += [*markdown_table(("what", "reached", "goal"), map(_missed, short)), ""] if short else []
    lines += [f"Not measured: {missing}." for missing in outcome.not_measured()]
    ahead: dict[str, list[str]] = {}
    for result in outcome.works:
        for value, peer, ratio in behind(result):
            ahead.setdefault(title_of(peer), []).append(f"{result.work} {value} {ratio.median:.2f} ×")
    said = "; ".join(f"{peer}: {', '.join(values)}" for peer, values in ahead.items()) or "nowhere"
    return [*lines, f"Where a peer with the same promise is ahead, and warren's multiple of it: {said}."]


def _missed(figure: Figure) -> tuple[str, str, str]:
    """A row: what the goal is of, without what the tables above have."""
    of_ratio = figure.bar is not None and figure.bar.of == "ratio"
    spread, unit = (figure.ratio, "×") if of_ratio else (figure.ours, figure.unit)
    beside = f" {figure.counterpart_name}" if of_ratio else ""
    return (
        figure.title,
        value_text(None if spread is None else spread.median, unit) + beside,
        goal_text(figure).partition(":")[0],
    )


def _growth_table(growths: dict[str, dict[str, Points]]) -> list[str]:
    """Rates and memory of warren at the first point, one in the middle and the last one; the picture has all."""
    rows = []
    for name, peers in growths.items():
        growth, points = next(one for one in GROWTHS if one.name == name), peers["warren"]
        for point in points[:: max(len(points) // 2, 1)]:
            cells = {column: number_text(point[value], growth.values[value]) for column, value in _columns(growth)}
            rows.append([f"{growth.axis}: {point['at']:,}", *(cells.get(column, "") for column in GROWTH_COLUMNS)])
    return markdown_table(["", *GROWTH_COLUMNS], rows, numbers=True)


GROWTH_COLUMNS: Final = ("publish, messages/s", "consume, messages/s", "memory, MB")


def _columns(growth: Growth) -> Iterator[tuple[str, str]]:
    """The values of a growth, each with its column."""
    for value, unit in growth.values.items():
        yield (value if value in {"publish", "memory"} else "consume") + f", {unit}", value


def readme(outcome: Outcome) -> str:
    """The README's table: medians."""
    results = {result.work: result for result in outcome.works}
    rows = []
    for name, value in README_ROWS.items():
        work, result = WORKS_BY_NAME[name], results[name]
        shown = {peer: result.spread(peer, value) for peer in README_PEERS}
        cells = [
            "" if spread is None or result.ran[peer].promise != work.promise else f"{spread.median:,.0f}"
            for peer, spread in shown.items()
        ]
        rows.append([work.title if work.name != "W2h" else f"{work.title}, one at a time", *cells])
    picture = f"![Rates of warren and its peers at the same works](docs/{PICTURE})"
    return "\n".join(
        [*markdown_table(["messages/s", *map(title_of, README_PEERS)], rows, numbers=True), "", picture, ""]
    )


def write(outcome: Outcome) -> None:
    """Both pages."""
    write_into(PERFORMANCE, markdown(outcome))
    write_into(README, readme(outcome), begin=README_BEGIN, end=README_END)
