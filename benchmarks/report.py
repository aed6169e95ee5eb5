"""The results as a table on the terminal, and as a table in a page of docs/.

``python -m benchmarks.report`` writes the tables of docs/performance.md again from the results that are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, Results, Spread

PROJECT: Final = Path(__file__).parent.parent
RESULTS: Final = PROJECT / "benchmarks" / "results"
DOCS: Final = PROJECT / "docs"
PERFORMANCE: Final = DOCS / "performance.md"
PARTS: Final = ("latest", "serving")
"""The results whose tables stand in that page, between markers of their names."""
BETWEEN: Final = re.compile(r"^identical: .*: (1024 B, |.* 16 connections$)")
BEGIN, END = "<!-- results -->\n", "<!-- /results -->"


def wide_console() -> Console:
    """Return a console that is wide enough for a table, also if the output is no terminal."""
    return Console(width=None if Console().is_terminal else 160)


def value_text(value: float | None, unit: str) -> str:
    """A value with its unit, and with as many digits as it deserves."""
    if value is None:
        return ""
    number = number_text(value, unit)
    return number + "/s" if unit == "messages/s" else f"{number} {unit}"


def number_text(value: float, unit: str) -> str:
    digits = {"s": 3, "×": 2}.get(unit, 0 if abs(value) >= 100 else 1)
    return f"{value:,.{digits}f}"


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def goal_text(figure: Figure) -> str:
    if figure.bar is None:
        return ""
    sign = "≥" if figure.bar.sense == "at least" else "≤"
    limit = f"{figure.bar.limit:,g} {'×' if figure.bar.of == 'ratio' else figure.unit}".replace(" messages/s", "/s")
    return f"{sign} {limit}: {'reached' if figure.reached else 'missed'}"


def _cells(figure: Figure) -> list[str]:
    beside = value_text(_median(figure.counterpart), figure.unit)
    return [
        figure.title,
        value_text(_median(figure.ours), figure.unit),
        f"{figure.counterpart_name}: {beside}" if beside else "",
        value_text(_median(figure.ratio), "×"),
        goal_text(figure),
    ]


HEADINGS = ("what", "warren", "beside it", "ratio", "goal")


def table(figures: Sequence[Figure]) -> Table:
    """For the terminal: medians."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in HEADINGS:
        shown.add_column(heading, overflow="fold")
    for figure in figures:
        style = {None: "", True: "green", False: "red"}[figure.reached]
        *cells, goal = _cells(figure)
        shown.add_row(*cells, f"[{style}]{goal}[/]" if style else "")
    return shown


def machine_line(date: str, machine: Mapping[str, str | int]) -> str:
    """When and where, for a page."""
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items())
    return f"Run of {date}; {said}. Medians; `benchmarks/results` has the lowest and highest."


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """Lines of a table; ``numbers``: all columns but the first are aligned to the right."""
    rules = ["---", *["---:" if numbers else "---"] * (len(headings) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, rules, *rows)]


def figures_table(figures: Sequence[Figure]) -> list[str]:
    """A row a figure."""
    return markdown_table(HEADINGS, [_cells(figure) for figure in figures])


def markdown(results: Results) -> str:
    """For the page: the run, and a row a figure with its note."""
    rows = []
    for figure in results.figures:
        title, *cells = _cells(figure)
        rows.append([f"{title} ({figure.note})" if figure.note else title, *cells])
    return "\n".join([machine_line(results.date, results.machine), "", *markdown_table(HEADINGS, rows), ""])


def write_into(page: Path, text: str, *, begin: str = BEGIN, end: str = END) -> None:
    """Put text between the page's markers."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")


def keep(results: Results, name: str, page: str | None = None) -> None:
    """Write the results into benchmarks/results and into a page of docs/, unless the run was a quick one.

    Without ``page``: into their part of docs/performance.md.
    """
    if not results.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(results.to_json(), indent=1) + "\n", encoding="utf-8")
        if page is None:
            write_part(results, name)
        else:
            write_into(DOCS / page, markdown(results))


def kept(name: str) -> Results:
    """The results of the last whole run."""
    return Results.from_json(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


def write_part(results: Results, name: str) -> None:
    """Write a table of docs/performance.md."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    write_into(PERFORMANCE, part_markdown(results), begin=begin, end=end)


def part_markdown(results: Results) -> str:
    """The figures of groups with a goal, without sizes between the smallest and the largest, or many connections."""
    groups = {figure.group for figure in results.figures if figure.bar is not None}
    shown = [figure for figure in results.figures if figure.group in groups and not BETWEEN.search(figure.title)]
    return "\n".join([machine_line(results.date, results.machine), "", *figures_table(shown), ""])


def show(console: Console, results: Results) -> None:
    """Print the results, and which bars were not reached."""
    console.print(table(results.figures))
    for figure in results.missed:
        console.print(f"not reached: {figure.title}")


if __name__ == "__main__":
    for part in PARTS:
        write_part(kept(part), part)
