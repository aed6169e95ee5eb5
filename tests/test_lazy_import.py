"""``import warren`` imports nothing but itself; every name is there all the same."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import warren

INIT = Path(warren.__file__)


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


def test_importing_warren_imports_none_of_its_modules() -> None:
    printed = run("import sys, warren; print([name for name in sys.modules if name.startswith('warren.')])")
    assert printed == "[]\n"


def test_importing_warren_imports_no_other_library() -> None:
    loaded = run("import sys, warren; print(*sys.modules)").split()
    assert not {"attrs", "numpy", "pykka"} & set(loaded)


@pytest.mark.parametrize("name", warren.__all__)
def test_every_name_is_imported_when_it_is_used(name: str) -> None:
    assert run(f"import warren; print(warren.{name}.__name__)") == f"{name}\n"


@pytest.mark.parametrize("module", ["aio", "engine", "errors"])
def test_a_module_of_the_top_needs_no_import_of_its_own(module: str) -> None:
    assert run(f"import warren; print(warren.{module}.__name__)") == f"warren.{module}\n"


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
