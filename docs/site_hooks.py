"""What makes a site of pages that a forge shows as they are: see ``mkdocs.yml``.

The lists of ``index.md`` are the navigation. The Markdown files of the project's own folder become pages, too. Links to
other files outside of ``docs/``, such as tests, become plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PROJECT = Path(__file__).parent.parent
ADDED = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")

_LINK = re.compile(r"\[([^\[\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
_ENTRY = re.compile(r"^(#{2,3}) (.+)|^- \[[^\[\]]*\]\(([^)\s]+\.md)\)", re.MULTILINE)


def navigation(index: str) -> list[Any]:
    """The entries of the lists of ``index.md``, under its headings."""
    parts: list[Any] = ["index.md"]
    part: list[Any] = parts
    section: list[Any] = parts
    for level, title, page in _ENTRY.findall(index):
        if level == "##":
            part = section = []
            parts.append({title: part})
        elif level:
            section = []
            part.append({title: section})
        else:
            section.append(Path(page).name)
    return parts


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from ``index.md``."""
    config.nav = navigation((PROJECT / "docs/index.md").read_text(encoding="utf-8"))
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the Markdown files of the project's folder."""
    for name in ADDED:
        files.append(File.generated(config, name, abs_src_path=str(PROJECT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links so that they lead to pages of the site, or drop them."""
    folder = PROJECT if page.file.src_uri in ADDED else PROJECT / "docs"

    def rewritten(link: re.Match[str]) -> str:
        path, mark, anchor = link[2].partition("#")
        target = (folder / path).resolve()
        if target.parent == PROJECT / "docs" or target in {PROJECT / name for name in ADDED}:
            return f"[{link[1]}]({target.name}{mark}{anchor})"
        return link[1]

    return _LINK.sub(rewritten, markdown)
