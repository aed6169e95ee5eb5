"""What the pages compare with peers: each name on the side of warren exists, with the arguments that it shows."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from pathlib import Path
from typing import Any, Final

import pytest

import warren
from warren.handles.consumer import Consumer
from warren.handles.topic import Reader as TopicReader

DOCS: Final = Path(__file__).parents[1] / "docs"
PAGES: Final = ("coming-from.md", "topics.md")
HEADINGS: Final = {"here", "topic", "[queue](runtime.md)"}
"""Of the columns that are about warren; tables without one are not comparisons."""

NAMES: Final[dict[str, Any]] = {
    "warren": warren,
    "node": warren.Node,
    "q": warren.Queue,
    "jobs": warren.Queue,
    "logs": warren.Exchange,
    "topic": warren.Topic,
    "events": warren.Topic,
    "delivery": warren.Delivery,
    "consumer": Consumer,
    "reader": TopicReader,
    "record": warren.TopicRecord,
}
BARE: Final = (*{*NAMES.values()} - {warren}, warren.Confirm, warren.Transaction)
"""Where a name without an object may belong, such as ``publish(at=…)``."""
CHAINED: Final = {"queue": warren.Queue, "publish": warren.Confirm, "publish_many": warren.Confirm}
"""What some calls return."""
MISSING: Final = {
    "again from the start": "an acked message is deleted",
}
"""Rows that say that something is not there, by their first cell, and why it is not."""


def rows(page: str) -> list[tuple[str, str]]:
    """The first cell of each row of the page's comparisons, and each cell about warren."""
    found: list[tuple[str, str]] = []
    columns: list[int] | None = None
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not line.startswith("|"):
            columns = None
        elif columns is None:
            columns = [number for number, cell in enumerate(cells) if cell in HEADINGS]
        else:
            found += [(cells[0], cells[column]) for column in columns]
    return found


def expressions(cell: str) -> list[ast.expr]:
    """The pieces of code in a cell that are Python; a loop counts by what it goes over."""
    found = []
    for code in re.findall(r"`([^`]+)`", cell):
        text = code.replace("…", "...").replace("=...", "=None")
        text = re.sub(r"^for \w+ in (.*):$", r"\1", text.removeprefix("."))
        try:
            parsed = ast.parse(text)
        except SyntaxError:
            continue
        for statement in parsed.body:
            value = getattr(statement, "value", None)
            found += [value] if isinstance(value, ast.expr) else []
    return found


def owner(node: ast.expr) -> Any:
    """The class or module that an expression is about, if the pages' names tell."""
    match node:
        case ast.Name(id=name):
            return NAMES.get(name)
        case ast.Call(func=ast.Attribute(attr=name)):
            return CHAINED.get(name)
    return None


def problems(node: ast.expr) -> list[str]:
    """What of an expression does not exist."""
    found = []
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute | ast.Name):
            is_bare = isinstance(part.func, ast.Name)
            if isinstance(part.func, ast.Name):
                name, owners = part.func.id, BARE
            else:
                subject = owner(part.func.value)
                name, owners = part.func.attr, () if subject is None else (subject,)
            functions = [function for one in owners if (function := getattr(one, name, None)) is not None]
            if owners and not functions and not (is_bare and hasattr(builtins, name)):
                found.append(f"no {name} of {owners}")
            keywords = {keyword.arg for keyword in part.keywords if keyword.arg}
            if functions and keywords and not any(takes(function, keywords) for function in functions):
                found.append(f"{name} does not take {keywords}")
        elif isinstance(part, ast.Attribute) and (one := owner(part.value)) is not None and not has(one, part.attr):
            found.append(f"no {part.attr} of {one}")
    return found


def has(one: Any, name: str) -> bool:
    return hasattr(one, name) or name in getattr(one, "__annotations__", {})


def takes(function: Any, keywords: set[str]) -> bool:
    """Whether a function takes these, by its signature or by the page that describes it."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        described = (DOCS / "api.md").read_text(encoding="utf-8") + (DOCS / "publishing.md").read_text(encoding="utf-8")
        return all(keyword in parameters or f"`{keyword}" in described for keyword in keywords)
    return keywords <= parameters.keys()


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_offers_in_place_of_a_peers_feature_exists(page: str) -> None:
    wrong = [(first, text) for first, cell in rows(page) for node in expressions(cell) for text in problems(node)]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_only_what_is_missing_is_called_missing(page: str) -> None:
    absent = {first for first, cell in rows(page) if re.search(r"^(–$|no:|not possible|not there)", cell)}
    assert absent <= MISSING.keys()


def test_the_check_sees_what_does_not_exist() -> None:
    for cell in ("`q.pop()`", "`node.queue(sort=1)`", "`delivery.age`", "`publish(colour=1)`"):
        assert [text for node in expressions(cell) for text in problems(node)], cell


def test_the_figures_of_the_comparison_are_those_of_the_pages_that_measure() -> None:
    page = (DOCS / "coming-from.md").read_text(encoding="utf-8")
    section = page[page.index("Measured (") : page.index("Likeness is tested")]
    figures = set(re.findall(r"\d[\d,.]*\d(?=\*\*|/s| \||\s+µs| MB)", section.replace("\n", " ")))
    measured = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("performance.md", "sharing.md"))
    assert len(figures) > 30
    assert {
        figure for figure in figures if not re.search(rf"(?<![\d,.]){re.escape(figure)}(?![\d,.]*\d)", measured)
    } == set()
