"""The results as a table on the terminal, and as the table in docs/benchmarks.md."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from benchmarks.figures import Bar, Figure, Results, Spread

BEGIN, END = "<!-- results -->\n", "<!-- /results -->"


def _value(spread: Spread | None, unit: str, *, brief: bool) -> str:
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
    beside = _value(figure.counterpart, figure.unit, brief=brief)
    ratio = "" if figure.ratio is None else _value(figure.ratio, "×", brief=brief)
    return [
        figure.title,
        _value(figure.ours, figure.unit, brief=brief),
        f"{figure.counterpart_name}: {beside}" if beside else "",
        ratio,
        _bar(figure.bar, figure.unit),
        _reached(figure),
    ]


HEADINGS = ("what", "warren", "beside it", "ratio, pair by pair", "to reach", "reached")


def table(results: Results) -> Table:
    """For the terminal: medians."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in HEADINGS:
        shown.add_column(heading, overflow="fold")
    for figure in results.figures:
        style = {None: "", True: "green", False: "red"}[figure.reached]
        shown.add_row(*_cells(figure, brief=True)[:-1], f"[{style}]{_reached(figure)}[/]" if style else "")
    return shown


def markdown(results: Results) -> str:
    """For the page: the run, and a row a figure."""
    machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results.machine.items())
    lines = [
        f"Run of {results.date}; {machine}. Medians, lowest and highest in brackets.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "| " + " | ".join("---" for _ in HEADINGS) + " |",
    ]
    lines += ["| " + " | ".join(_cells(figure, brief=False)) + " |" for figure in results.figures]
    notes = dict.fromkeys(f"- {figure.title}: {figure.note}." for figure in results.figures if figure.note)
    return "\n".join([*lines, "", *notes]) + "\n"


def write_into(page: Path, results: Results) -> None:
    """Put the results between the page's markers."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{markdown(results)}{END}{after}", encoding="utf-8")
