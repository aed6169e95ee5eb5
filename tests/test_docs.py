"""The documentation holds: its Python runs, its links lead somewhere, its tables say what the code says."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest
import typer.main
from typer.testing import CliRunner

import warren
from storage.errors import SettingsError
from storage.settings import RABBITMQ_3_10, Settings
from storage.topic_settings import TopicSettings
from warren.cli import app
from warren.node import Vhost

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
    """What the page says that it prints: the ``text`` block right behind it."""


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


def owners(name: str) -> list[str]:
    """The sources of the modules of that name, and of those that define a class of that name."""
    sources = [path for room in ROOMS for path in (PROJECT / room).rglob("*.py")]
    texts = [(path.stem, path.read_text(encoding="utf-8")) for path in sources]
    return [text for stem, text in texts if stem == name or re.search(rf"^class {name}\b", text, re.MULTILINE)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made of them on the web."""
    titles = [re.sub(r"[^\w\- ]", "", title.lower()) for title in _HEADING.findall(without_blocks(page))]
    return {title.strip().replace(" ", "-") for title in titles}


def runnable() -> list[Any]:
    """The pages, those marked that have a session of Spark's."""
    has_spark = {page: "from warren import pipeline" in page.read_text(encoding="utf-8") for page in RUNNABLE}
    return [
        pytest.param(page, marks=[pytest.mark.spark] if has_spark[page] else [], id=name_of(page)) for page in RUNNABLE
    ]


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


def test_every_page_can_be_reached_from_the_first() -> None:
    index = DOCS / "index.md"
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in _LINK.findall(without_blocks(index))}
    assert {page for page in DOCS.glob("*.md") if page != index} <= linked


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_the_code_are_the_codes(page: Path) -> None:
    """``module.name`` and ``Class.name`` where there is such a module or class, and every path in the project."""
    text = without_blocks(page)
    unknown = [path for path in _CODE_PATH.findall(text) if not (PROJECT / path).exists()]
    for owner, name in _CODE_NAME.findall(text):
        found = owners(owner)
        is_file = name in {"csv", "html", "json", "parquet", "png", "toml"}  # topics.json is no name of a module topics
        if found and not is_file and not any(re.search(rf"\b{name}\b", source) for source in found):
            unknown.append(f"{owner}.{name}")
    assert not unknown


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


def test_the_command_line_page_has_every_command_and_option() -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0].removeprefix("warren "): part for part in page.split("\n## `")[1:]}
    missing = []
    for name, command in commands(typer.main.get_command(app)):
        section = next((part for title, part in sections.items() if re.match(rf"{re.escape(name)}\b[^-]", title)), "")
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        missing += [f"warren {name} {option}" for option in ["", *options] if not section or option not in section]
    assert not missing


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command, those of groups too: ``topic read``."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


# ── commands that a page shows ───────────────────────────────────────────────────────────────────────────────────────


def shown_commands(page: Path) -> list[tuple[str, str]]:
    """What stands behind each ``$`` of a page, and what the page says that it prints."""
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
    monkeypatch.chdir(tmp_path)
    for command, said in shown_commands(DOCS / "recovery-walkthroughs.md"):
        printed = run_shown(command)
        assert says(printed, said), f"$ {command}\n{printed}"


# ── all names ────────────────────────────────────────────────────────────────────────────────────────────────────────

API_CLASSES = [
    *(
        one
        for one in map(vars(warren).__getitem__, warren.__all__)
        if inspect.isclass(one) and not issubclass(one, Exception)
    ),
    Vhost,
]


def api_sections() -> dict[str, str]:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    return {part.partition("\n")[0]: part for part in page.split("\n## ")[1:]}


def signature_of(function: Callable[..., object]) -> str:
    """As the page has it: without types."""
    parameters = inspect.signature(function).parameters.values()
    return str(
        inspect.Signature([one.replace(annotation=one.empty) for one in parameters if one.name not in {"self", "cls"}])
    )


def public_names(owner: type) -> dict[str, str]:
    """Every public name that a class has itself or from a class with no section of its own, with its signature."""
    found: dict[str, str] = {}
    for base in owner.__mro__:
        if base.__module__.partition(".")[0] in ROOMS and (base is owner or base not in API_CLASSES):
            for name, member in vars(base).items():
                function = member.__func__ if isinstance(member, classmethod) else member
                if not name.startswith("_"):
                    found.setdefault(name, signature_of(function) if inspect.isfunction(function) else "")
    return found


def test_the_api_page_has_every_name() -> None:
    sections = api_sections()
    functions = [name for name in warren.__all__ if inspect.isfunction(vars(warren)[name])]
    errors = [name for name in warren.__all__ if name not in functions and vars(warren)[name] not in API_CLASSES]
    missing = [name for name in functions if f"`{name}{signature_of(vars(warren)[name])}`" not in sections["Opening"]]
    missing += [name for name in errors if f"\n| `{name}` |" not in sections["Errors"]]
    assert not missing


@pytest.mark.parametrize("owner", API_CLASSES, ids=lambda owner: owner.__name__)
def test_the_api_page_has_every_name_of_a_class_with_its_signature(owner: type) -> None:
    sections = api_sections()
    inside = next(
        (line for line in sections["Not for programs"].splitlines() if line.startswith(f"| `{owner.__name__}`")), ""
    )
    names = public_names(owner)
    assert not [
        name + signature
        for name, signature in names.items()
        if f"`{name}{signature}`" not in sections[owner.__name__] and f"`{name}`" not in inside
    ]
    shown = set(re.findall(r"^\| `(\w+)", sections[owner.__name__], re.MULTILINE))
    assert shown <= names.keys()


def test_the_api_page_says_what_each_error_is() -> None:
    shown = re.findall(r"^\| `(\w+Error)` \| `(\w+)`(?:, (\d+))? \|", api_sections()["Errors"], re.MULTILINE)
    assert {(name, base) for name, base, _ in shown} == {
        (name, error.__mro__[1].__name__)
        for name, error in vars(warren).items()
        if name in warren.__all__ and inspect.isclass(error) and issubclass(error, Exception)
    }
    assert all(code == str(getattr(vars(warren)[name], "reply_code", "")) for name, _, code in shown if code)
