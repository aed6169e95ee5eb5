"""The documentation holds: its Python runs, its links lead somewhere, its tables say what the code says."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest
import typer.main
from typer.testing import CliRunner

import warren
from docs import site_hooks
from warren import management, server
from warren.cli import app
from warren.storage.errors import SettingsError
from warren.storage.settings import RABBITMQ_3_10, Settings
from warren.storage.topic_settings import TopicSettings

PROJECT = Path(__file__).parent.parent
DOCS = PROJECT / "docs"
ROOMS = ("storage", "msg_store", "queue_index", "actors", "warren")
PAGES = sorted([*PROJECT.glob("*.md"), *DOCS.glob("*.md")])
RUNNABLE = [page for page in PAGES if "\n```python\n" in page.read_text(encoding="utf-8")]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE_NAME = re.compile(r"`(\w+)\.(?!dets|ets|py|clean)(\w+)(?:\(\))?`")
_CODE_PATH = re.compile(r"`((?:storage|msg_store|queue_index|actors|warren|tests|examples)/[\w./-]*\w)`")
_TOPIC_SETTING = re.compile(r"^\| `(\w+)` \| `([^`]*)` \| `(\w+)`, ", re.MULTILINE)
_SETTING = re.compile(r"^\| `(\w+)` \| `([^`]*)` \| `([^`]*)` \|", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(PROJECT))


class PythonBlock(NamedTuple):
    line: int
    """The one that it begins on."""
    code: str
    output: str | None
    """The output that the page shows: the ``text`` block right after it."""


def python_blocks(page: Path) -> list[PythonBlock]:
    text = page.read_text(encoding="utf-8")
    matches = list(_BLOCK.finditer(text))
    found = []
    for match, behind in zip_longest(matches, matches[1:]):
        if match[1] == "python":
            follows = behind and behind[1] == "text" and not text[match.end() : behind.start()].strip()
            found.append(PythonBlock(text.count("\n", 0, match.start(2)), match[2], behind[2] if follows else None))
    return found


def without_blocks(page: Path) -> str:
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


@functools.cache
def owners() -> dict[str, list[str]]:
    """By the names of modules and of classes: the sources of the modules that have that name, or such a class.

    With those of the classes that they are made of.
    """
    found: dict[str, list[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in (path for room in ROOMS for path in (PROJECT / room).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        classes = re.findall(r"^class (\w+)(?:\[[^\]]*\])?(?:\(([^)]*)\))?", text, re.MULTILINE)
        for name, made_of in [(path.stem, " ".join(made_of for _, made_of in classes)), *classes]:
            found.setdefault(name, []).append(text)
            bases.setdefault(name, set()).update(re.findall(r"\w+", made_of))

    def all_bases(name: str) -> set[str]:
        known, new = {name}, {name}
        while new := {base for one in new for base in bases.get(one, ())} - known:
            known |= new
        return known

    return {name: [text for base in all_bases(name) for text in found.get(base, [])] for name in found}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made of them on the web."""
    titles = [re.sub(r"[^\w\- ]", "", title.lower()) for title in _HEADING.findall(without_blocks(page))]
    return {title.strip().replace(" ", "-") for title in titles}


def runnable() -> list[Any]:
    """The pages; those are marked that have a session of Spark's, or simulate."""

    def marks(page: Path) -> list[pytest.MarkDecorator]:
        if "from warren import pipeline" in page.read_text(encoding="utf-8"):
            return [pytest.mark.spark, pytest.mark.slow]
        return [pytest.mark.slow] if page.name.startswith("simulation") else []

    return [pytest.param(page, marks=marks(page), id=name_of(page)) for page in RUNNABLE]


@pytest.mark.slow
@pytest.mark.parametrize("page", runnable())
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if request.node.get_closest_marker("spark") is not None:
        request.getfixturevalue("spark")  # the page's session is this one
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for block in python_blocks(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * block.line + block.code, name_of(page), "exec"), namespace)
        if block.output is not None:
            assert printed.getvalue() == block.output, f"line {block.line}"


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


def test_the_lists_of_the_first_page_name_every_page_once() -> None:
    """They are the site's navigation."""
    top, *parts = site_hooks.navigation((DOCS / "index.md").read_text(encoding="utf-8"))
    assert [title for part in parts for title in part] == ["Tutorial", "How-to guides", "Reference", "Explanation"]

    def pages(entries: list[Any]) -> Iterator[str]:
        for entry in entries:
            if isinstance(entry, str):
                yield entry
            else:
                yield from (page for section in entry.values() for page in pages(section))

    assert sorted([top, *pages(parts)]) == sorted([*(page.name for page in DOCS.glob("*.md")), *site_hooks.ADDED])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_the_code_are_the_codes(page: Path) -> None:
    """``module.name`` and ``Class.name`` if there is such a module or class, and every path in the project.

    A name to which the page's own code assigns is a variable.
    """
    text = without_blocks(page)
    variables = {*re.findall(r"^\s*(\w+) = ", page.read_text(encoding="utf-8"), re.MULTILINE)}
    unknown = [path for path in _CODE_PATH.findall(text) if not (PROJECT / path).exists()]
    for owner, name in _CODE_NAME.findall(text):
        found = owners().get(owner, [])
        is_file = name in {"csv", "html", "json", "parquet", "png", "toml"}  # topics.json is no name of a module topics
        if (
            owner not in variables
            and found
            and not is_file
            and not any(re.search(rf"\b{name}\b", source) for source in found)
        ):
            unknown.append(f"{owner}.{name}")
    assert not unknown


def test_the_newcomers_table_names_classes_in_the_files_that_define_them() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    section = page[page.index("## From the design to the code") : page.index("## The modules")]
    rows = re.findall(r"^\| [^|`]+ \| `(\w+)` \| `([\w/.]+)` \|", section, re.MULTILINE)
    assert {"QueueActor", "RunQueue", "Delta", "SegmentJournal", "MessageStoreActor", "MemoryMonitorActor"} <= {
        name for name, _ in rows
    }
    elsewhere = [
        f"{name} in {path}"
        for name, path in rows
        if not re.search(rf"^class {name}\b", (PROJECT / path).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not elsewhere


@pytest.mark.slow
def test_the_picture_of_the_rooms_is_what_the_imports_are() -> None:
    """Otherwise: python docs/draw_rooms.py."""
    drawing = runpy.run_path(str(DOCS / "draw_rooms.py"))
    assert drawing["edges"]() == set(drawing["ARROWS"])
    assert (DOCS / "rooms.svg").read_text(encoding="utf-8") == drawing["draw"]()


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


def test_the_pages_of_servers_name_settings_that_are_imported_from_their_packages() -> None:
    pages = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("serving.md", "management.md"))
    names = {*re.findall(r"\b(\w+Settings)\(", pages)}
    assert names == {name for name in (*server.__all__, *management.__all__) if name.endswith("Settings")}


def test_the_settings_page_has_every_setting_of_topics_under_both_names() -> None:
    shown = {
        name: (default, theirs)
        for name, default, theirs in _TOPIC_SETTING.findall((DOCS / "settings.md").read_text(encoding="utf-8"))
    }
    for name, (_, theirs) in shown.items():
        if name.startswith("store_path"):
            assert getattr(TopicSettings().with_changes({theirs: "?"}), name) == "?"
            continue
        with pytest.raises(SettingsError, match=f"^{name}\\b"):
            TopicSettings().with_changes({theirs: "?"})
    said = {field.name: repr(getattr(TopicSettings(), field.name)) for field in attrs.fields(TopicSettings)}
    assert {name: default for name, (default, _) in shown.items()} == said


def test_the_command_line_page_has_every_command_and_its_help_every_option() -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    missing = []
    for name, command in commands(typer.main.get_command(app)):
        missing += [f"warren {name}"] * (re.search(rf"`warren {re.escape(name)}\b(?![-.])", page) is None)
        options = [parameter for parameter in command.command.params if parameter.opts[0].startswith("-")]
        missing += [f"warren {name} {option.opts[0]}: its help" for option in options if not option.help]
    assert not missing


def test_the_command_line_page_names_options_that_the_commands_have() -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    there = {"--install-completion", "--help", "--hostname"}  # the last one is docker's
    for _, command in commands(typer.main.get_command(app)):
        there.update(option for parameter in command.command.params for option in parameter.opts)
        there.update(option for parameter in command.command.params for option in parameter.secondary_opts)
    assert {option for option in re.findall(r"`(--[a-zA-Z][\w-]*)", page) if option not in there} == set()


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command, those of groups too: ``topic read``."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


# ── commands that a page shows ───────────────────────────────────────────────────────────────────────────────────────


def shown_commands(page: Path) -> list[tuple[str, str]]:
    """What follows each ``$`` of a page, and the output that the page shows."""
    blocks = [match[2] for match in _BLOCK.finditer(page.read_text(encoding="utf-8")) if match[1] == "console"]
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, said) for command, _, said in (part.partition("\n") for part in parts)]


def run_shown(command: str) -> str:
    """What a command prints, errors first; in this process where nothing but the command is asked for."""
    if command.startswith("warren ") and not re.search(r"[|<>]", command):
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        return result.stderr + result.stdout
    script = f'warren() {{ {shlex.quote(sys.executable)} -m warren.cli "$@"; }}; {command}'
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    ran = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    return ran.stderr + ran.stdout


def says(printed: str, said: str) -> bool:
    """Whether this was printed; ``…`` is anything, on a line of its own any lines."""
    lines = "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())
    pattern = re.sub(r"(?m)^…\\?\n", "(?s:.*)", re.escape(said)).replace("…", ".*")
    return re.fullmatch(pattern, lines) is not None


@pytest.mark.slow
def test_the_commands_on_a_dead_rocketmq_say_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(PROJECT / "tests/golden/rocketmq/crash-recovery.tar.gz", tmp_path / "dead-broker.tar.gz")
    monkeypatch.chdir(tmp_path)
    for command, said in shown_commands(DOCS / "rocketmq-disk.md"):
        printed = run_shown(command)
        assert says(printed, said), f"$ {command}\n{printed}"


def test_the_commands_of_the_recovery_walkthroughs_say_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(PROJECT / "warren/data/rabbitmq-3.10.8-types.tar.gz", tmp_path / "dead-node.tar.gz")
    killed = PROJECT / "tests/golden/rabbitmq-3.10.8-quorum/06-crash-delivery-limit.tar.gz"
    shutil.copy(killed, tmp_path / "killed-node.tar.gz")
    shutil.copy(PROJECT / "tests/golden/rabbitmq-3.10.8-definitions/02-crash-all.tar.gz", tmp_path)
    monkeypatch.chdir(tmp_path)
    for command, said in shown_commands(DOCS / "recovery-walkthroughs.md"):
        printed = run_shown(command)
        assert says(printed, said), f"$ {command}\n{printed}"


# ── all names ────────────────────────────────────────────────────────────────────────────────────────────────────────


def script_of(page: str) -> Any:
    """The script that makes the page."""
    spec = importlib.util.spec_from_file_location(f"make_{page}", DOCS / f"make_{page}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize("page", ["api", "guarantees"])
def test_a_page_is_what_its_script_makes_of_docstrings_tests_and_counts(page: str) -> None:
    made = script_of(page).page()
    assert (DOCS / f"{page}.md").read_text(encoding="utf-8") == made, f"python docs/make_{page}.py makes it anew"


def test_the_api_page_has_every_name_and_says_something_of_each() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    for owner in script_of("api").classes():
        assert f"\n## {owner.__name__}\n" in page
    for name in warren.errors.__all__:
        assert re.search(rf"^- `{name}` \(`\w+`(, \d+)?\): \S", page, re.MULTILINE), name


def test_handles_show_verbs_and_no_plumbing() -> None:
    plumbing = {
        warren.Node: {"actor", "gate", "pool", "change", "forget", "running_topics", "new_msg_ids"},
        warren.Vhost: {"cells", "key_to", "binding"},
        warren.Queue: {"actor", "key"},
        warren.Topic: {"log", "hand_over", "batch", "check", "half", "prepared"},
    }
    assert not {(owner, name) for owner, names in plumbing.items() for name in names & {*dir(owner)}}
