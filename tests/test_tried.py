"""The end of a run reports how many cases were tried, over all its processes, and the number is kept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PROJECT = Path(__file__).parent.parent

SEARCHES = """
import pytest
from tests.support.tried import Tried

@pytest.mark.parametrize("number", [1, 20, 300])
def test_that_searches(number, tried):
    tried(Tried.KILLS, number)
    tried(Tried.SCHEDULES, 1)

def test_that_fails(tried):
    tried(Tried.KILLS, 4000)
    assert False

def test_that_does_not_search():
    pass
"""


@pytest.mark.slow
def test_what_passed_is_added_up_over_all_processes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT), prepend=os.pathsep)
    monkeypatch.setenv("WARREN_TRIED", "tried.json")
    pytester.makeconftest((PROJECT / "tests" / "conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers =\n    xdist_group: g\n    counted: c\n")
    pytester.makepyfile(SEARCHES)

    result = pytester.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider", "-m", "counted")

    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*        321 processes killed at work", "*          3 orders of the actors' turns"])
    kept = json.loads((pytester.path / "tried.json").read_text())
    assert (kept["kills"], kept["schedules"], kept["exits"]) == (321, 3, 0)
