"""The documentation holds: its Python runs, its links lead somewhere, its tables say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from storage.settings import RABBITMQ_3_10, Settings

PROJECT = Path(__file__).parent.parent
DOCS = PROJECT / "docs"
PAGES = sorted([*PROJECT.glob("*.md"), *DOCS.glob("*.md")])
RUNNABLE = [page for page in (PROJECT / "README.md", DOCS / "queue.md") if "\n```python\n" in page.read_text()]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_SETTING = re.compile(r"^\| `(\w+)` \| `([^`]*)` \| `([^`]*)` \|", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """Every Python block of a page, with the line that it begins on."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start(2)), match[2]) for match in _BLOCK.finditer(text) if match[1] == "python"
    ]


def without_blocks(page: Path) -> str:
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made of them on the web."""
    titles = [re.sub(r"[^\w\- ]", "", title.lower()) for title in _HEADING.findall(without_blocks(page))]
    return {title.strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for line, block in python_blocks(page):
        exec(compile("\n" * line + block, name_of(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in _LINK.findall(without_blocks(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


def test_every_page_can_be_reached_from_the_first() -> None:
    index = DOCS / "index.md"
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in _LINK.findall(without_blocks(index))}
    assert {page for page in DOCS.glob("*.md") if page != index} <= linked


def test_the_settings_page_has_every_setting_with_both_profiles_values() -> None:
    shown = {
        name: (default, profile)
        for name, default, profile in _SETTING.findall((DOCS / "settings.md").read_text(encoding="utf-8"))
    }
    said = {
        field.name: (str(getattr(Settings(), field.name)), str(getattr(RABBITMQ_3_10, field.name)))
        for field in attrs.fields(Settings)
    }
    assert shown == said
