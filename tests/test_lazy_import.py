"""``import warren`` imports nothing but itself; every name is there all the same."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import warren
from warren import aio

INIT = Path(warren.__file__)


def run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_importing_warren_imports_none_of_its_modules() -> None:
    printed = run("import sys, warren; print([name for name in sys.modules if name.startswith('warren.')])")
    assert printed == "[]\n"


def test_importing_warren_imports_no_other_library() -> None:
    loaded = run("import sys, warren; print(*sys.modules)").split()
    assert not {"attrs", "numpy", "pykka"} & set(loaded)


EACH_ALONE = """
import os, sys
import attr, attrs, numpy, pamqp.commands, pykka, sortedcontainers
import warren

for name in sys.argv[1:]:
    assert not [one for one in sys.modules if one.startswith("warren.")]
    if os.fork() == 0:
        print(name, getattr(warren, name).__name__, flush=True)
        os._exit(0)
    os.wait()
"""
"""The other libraries are imported once; of ours, a name's process imports what that name needs."""


@pytest.mark.slow
def test_every_name_is_imported_when_it_is_used_be_it_the_first() -> None:
    modules = ("aio", "engine", "errors")  # which need no import of their own
    said = dict(line.split() for line in run(EACH_ALONE, *warren.__all__, *modules).splitlines())
    assert said == {name: name for name in warren.__all__} | {name: f"warren.{name}" for name in modules}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'warren' has no attribute 'Broker'"):
        _ = warren.Broker  # type: ignore[attr-defined]


def test_dir_has_the_names_before_they_are_used() -> None:
    assert set(run("import warren; print(*dir(warren))").split()) >= {*warren.__all__, "aio", "engine", "errors"}


def test_type_checkers_are_told_the_same_names_from_the_same_homes() -> None:
    tree = ast.parse(INIT.read_text(encoding="utf-8"))
    told = {
        (alias.asname or alias.name): node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module not in {"typing", "__future__"}
        for alias in node.names
    }
    assert {name: home for name, home in told.items() if home != "warren"} == warren._HOMES
    assert {name for name, home in told.items() if home == "warren"} == set(warren._MODULES)
    assert sorted(warren.__all__) == sorted(warren._HOMES)


COUNTED = """
import sys
ours = [module for name, module in sys.modules.items() if name.partition(".")[0] == "warren"]
classes = {one for module in ours for one in vars(module).values() if "__attrs_attrs__" in getattr(one, "__dict__", {})}
print(len(ours), sum(one.__module__.startswith("warren.") for one in classes), *sys.modules)
"""
"""The last line: modules of ours, classes that attrs made for them, all modules by name."""

TOPICS = {
    "warren.actors.topics.running_topics",
    "warren.actors.topics.streams",
    "warren.msg_store.commit_log.commit_log",
}
UNPUBLISHED = TOPICS | {"psutil", "asyncio", "ssl", "typer", "zlib_ng", "pamqp", "tomllib", "warren.top.snapshots"}
PUBLISH = """
import sys, warren
with warren.open(sys.argv[1]) as node:
    node.queue("q").publish(b"x").wait()
"""
CONSUME = """
import sys, warren
with warren.open(sys.argv[1]) as node:
    queue = node.queue("q")
    for _ in range(3):
        queue.publish(b"x", headers={"tries": 1}).wait()
    with queue.consume(timeout=0) as consumer:
        for delivery in consumer:
            delivery.ack()
"""
INSPECT = """
import sys
from warren.cli import app
app(["inspect", "--json", sys.argv[1]], standalone_mode=False)
"""
SERVE = "import warren.cli, warren.commands.serve"


@pytest.mark.parametrize(
    ("program", "directory", "modules", "classes", "unused"),
    [
        (PUBLISH, "new", 196, 161, UNPUBLISHED | {"numpy"}),
        (PUBLISH, "data", 197, 161, UNPUBLISHED | {"numpy"}),
        (CONSUME, "data", 198, 163, UNPUBLISHED | {"numpy"}),
        (
            INSPECT,
            "data",
            91,
            60,
            TOPICS | {"asyncio", "pykka", "rich", "warren.handles.node", "numpy.ma", "pamqp", "tarfile"},
        ),
        (
            SERVE,
            "data",
            254,
            194,
            TOPICS | {"psutil", "starlette", "uvicorn", "rich", "warren.server.channels.guest_calls"},
        ),
    ],
    ids=["publish first", "publish", "consume", "inspect", "serve"],
)
def test_a_program_imports_what_it_uses_and_little_else(
    program: str, directory: str, *, modules: int, classes: int, unused: set[str], tmp_path: Path
) -> None:
    """Start-up time in what it is made of: a module costs a fifth of a millisecond, a class of attrs a third, numpy
    forty."""
    with warren.open(tmp_path / "data") as node:
        node.queue("q").publish(b"x").wait()
    some_modules, some_classes, *names = run(program + COUNTED, str(tmp_path / directory)).splitlines()[-1].split()
    assert not unused & set(names)
    assert int(some_modules) <= modules
    assert int(some_classes) <= classes


def test_a_name_of_the_asyncio_twin_is_imported_when_it_is_used() -> None:
    assert run("import sys, warren.aio; print([name for name in sys.modules if name.startswith('warren.')])") == (
        "['warren.aio']\n"
    )
    for name in aio.__all__:
        assert getattr(aio, name).__name__ == name
    with pytest.raises(AttributeError, match=r"module 'warren\.aio' has no attribute 'Broker'"):
        _ = aio.Broker  # type: ignore[attr-defined]
