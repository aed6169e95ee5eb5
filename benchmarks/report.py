"""The results as a table on the terminal, and as the table in docs/benchmarks.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Bar, Figure, Results, Spread

PROJECT: Final = Path(__file__).parent.parent
RESULTS: Final = PROJECT / "benchmarks" / "results"
DOCS: Final = PROJECT / "docs"
BEGIN, END = "<!-- results -->\n", "<!-- /results -->"


def wide_console() -> Console:
    """Return a console that is wide enough for a table, also if the output is no terminal."""
    return Console(width=None if Console().is_terminal else 160)


def value_text(spread: Spread | None, unit: str, *, brief: bool) -> str:
    if spread is None:
        return ""
    digits = {"s": 3, "×": 2}.get(unit, 0 if abs(spread.median) >= 100 else 1)
    median = f"{spread.median:,.{digits}f} {unit}"
    return median if brief else f"{median} ({spread.low:,.{digits}f} … {spread.high:,.{digits}f})"


def _bar(bar: Bar | None, unit: str) -> str:
    if bar is None:
        return ""
    sign = "≥" if bar.sense == "at least" else "≤"
    return f"{sign} {bar.limit:g} ×" if bar.of == "ratio" else f"{sign} {bar.limit:g} {unit}"


def _reached(figure: Figure) -> str:
    return {None: "", True: "yes", False: "no"}[figure.reached]


def _cells(figure: Figure, *, brief: bool) -> list[str]:
    beside = value_text(figure.counterpart, figure.unit, brief=brief)
    ratio = "" if figure.ratio is None else value_text(figure.ratio, "×", brief=brief)
    return [
        figure.title,
        value_text(figure.ours, figure.unit, brief=brief),
        f"{figure.counterpart_name}: {beside}" if beside else "",
        ratio,
        _bar(figure.bar, figure.unit),
        _reached(figure),
    ]


HEADINGS = ("what", "warren", "beside it", "ratio, pair by pair", "to reach", "reached")


def table(figures: Sequence[Figure]) -> Table:
    """For the terminal: medians."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in HEADINGS:
        shown.add_column(heading, overflow="fold")
    for figure in figures:
        style = {None: "", True: "green", False: "red"}[figure.reached]
        shown.add_row(*_cells(figure, brief=True)[:-1], f"[{style}]{_reached(figure)}[/]" if style else "")
    return shown


def machine_line(date: str, machine: Mapping[str, str | int]) -> str:
    """When and where, for a page."""
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items())
    return f"Run of {date}; {said}. Medians, lowest and highest in brackets."


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """Lines of a table; ``numbers``: all columns but the first are aligned to the right."""
    rules = ["---", *["---:" if numbers else "---"] * (len(headings) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, rules, *rows)]


def figures_table(figures: Sequence[Figure]) -> list[str]:
    """A row a figure."""
    return markdown_table(HEADINGS, [_cells(figure, brief=False) for figure in figures])


def markdown(results: Results) -> str:
    """For the page: the run, and a row a figure."""
    notes = dict.fromkeys(f"- {figure.title}: {figure.note}." for figure in results.figures if figure.note)
    return "\n".join([machine_line(results.date, results.machine), "", *figures_table(results.figures), "", *notes, ""])


def write_into(page: Path, text: str, *, begin: str = BEGIN, end: str = END) -> None:
    """Put text between the page's markers."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")


def keep(results: Results, name: str, page: str) -> None:
    """Write the results into benchmarks/results and into a page of docs/, unless the run was a quick one."""
    if not results.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(results.to_json(), indent=1) + "\n", encoding="utf-8")
        write_into(DOCS / page, markdown(results))


def show(console: Console, results: Results) -> None:
    """Print the results, and which bars were not reached."""
    console.print(table(results.figures))
    for figure in results.missed:
        console.print(f"not reached: {figure.title}")
