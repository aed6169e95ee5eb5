"""The outcome on the terminal, in docs/performance.md, and as the README's table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Spread
from benchmarks.peers.contestants import BARE, peer_class
from benchmarks.peers.growth import GROWTHS
from benchmarks.peers.outcome import Outcome, Points, Ran, WorkResult, behind, spark_figures
from benchmarks.peers.works import WORKS_BY_NAME
from benchmarks.report import figures_table, machine_line, markdown_table, table, value_text, write_into

PROJECT: Final = Path(__file__).parent.parent.parent
PAGE: Final = PROJECT / "docs" / "performance.md"
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


def _number(value: float, unit: str) -> str:
    return value_text(Spread.of([value]), unit, brief=True)


# ── the terminal ─────────────────────────────────────────────────────────────────────────────────────────────────────


def show(console: Console, outcome: Outcome) -> None:
    """Medians, and the goals."""
    for result in outcome.works:
        work = WORKS_BY_NAME[result.work]
        shown = Table(title=f"{work.name}: {work.title}", title_justify="left", box=None, pad_edge=False)
        for heading in ("", "promise", "messages", *work.values):
            shown.add_column(heading, justify="right" if heading in {"messages", *work.values} else "left")
        for name, ran in result.ran.items():
            cells = [_number(Spread.of(found).median, work.values[value]) if (found := ran.values.get(value)) else ""
                     for value in work.values]  # fmt: skip
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
    said = (f"{value} {_number(point[value], unit)}" for value, unit in units.items() if value in point)
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
    lines += ["### Goals", "", *figures_table([*outcome.figures(), *spark_figures()]), ""]
    lines += [f"Not measured: {missing}." for missing in outcome.not_measured()]
    found = [line for result in outcome.works for line in _behind(result)]
    lines += ["", "### Where a peer with the same promise is ahead", ""]
    lines += [f"- {line}." for line in found] or ["Nowhere."]
    lines += ["", "### Work by work", ""]
    for result in outcome.works:
        lines += [*_work_table(result), ""]
    lines += ["### How cost grows", "", f"![Rates and memory against what grows]({GROWTH_PICTURE})", ""]
    for name, peers in outcome.growth.items():
        lines += [*_growth_table(name, peers), ""]
    return "\n".join(lines)


def _work_table(result: WorkResult) -> list[str]:
    work = WORKS_BY_NAME[result.work]
    rows = []
    for name, ran in result.ran.items():
        cells = [_cell(result, name, ran, value) for value in work.values]
        rows.append([_peer(name, ran), ran.promise, f"{ran.messages:,}", *cells])
    title = f"**{work.name}: {work.title}.** {work.promise.capitalize()}, unless a row says otherwise."
    return [title, "", *markdown_table(["", "promise", "messages", *work.values], rows)]


def _peer(name: str, ran: Ran) -> str:
    try:
        note = peer_class(name).note
    except ImportError:
        note = ""
    return title_of(name) + (f" ({note})" if note else "") + (f": {ran.error}" if ran.error else "")


def _cell(result: WorkResult, name: str, ran: Ran, value: str) -> str:
    """A value with its spread, and warren's as a multiple of it where both promise the same."""
    spread = result.spread(name, value)
    if spread is None:
        return ""
    said = value_text(spread, WORKS_BY_NAME[result.work].values[value], brief=False)
    same = "warren" in result.ran and result.ran["warren"].promise == ran.promise and name not in ("warren", *BARE)
    ratio = result.ratio("warren", value, name) if same else None
    return said if ratio is None else f"{said}; warren: {ratio.median:.2f} ×"


def _growth_table(name: str, peers: dict[str, Points]) -> list[str]:
    growth = next(one for one in GROWTHS if one.name == name)
    headings = [growth.axis, *(f"{title_of(peer)}: {value}" for peer in peers for value in growth.values)]
    rows = []
    for number, first in enumerate(next(iter(peers.values()), [])):
        cells = [
            _number(points[number][value], unit) if number < len(points) and value in points[number] else ""
            for points in peers.values()
            for value, unit in growth.values.items()
        ]
        rows.append([f"{first['at']:,}", *cells])
    return markdown_table(headings, rows, numbers=True)


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
    write_into(PAGE, markdown(outcome))
    write_into(README, readme(outcome), begin=README_BEGIN, end=README_END)
