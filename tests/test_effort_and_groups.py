"""How the tests themselves are run: groups of one process each, and how much a run draws."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import effort

pytest_plugins = ["pytester"]

PROJECT = Path(__file__).parent.parent

MARKED = """
import os
import pytest

@pytest.mark.parametrize("number", range(6))
{mark}
def test_in_a_group(number, record_property):
    record_property("process", os.getpid())
"""


@pytest.mark.slow
def test_tests_of_a_group_and_of_a_file_run_in_one_process(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT), prepend=os.pathsep)
    pytester.makeconftest((PROJECT / "tests" / "conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers =\n    spark: s\n    cluster: c\n    xdist_group: g\n")
    names = {"test_a": "spark", "test_b": "spark", "test_c": "cluster", "test_d": "xdist_group('mine')", "test_e": ""}
    marks = {name: f"@pytest.mark.{mark}" if mark else "" for name, mark in names.items()}
    pytester.makepyfile(**{name: MARKED.format(mark=mark) for name, mark in marks.items()})

    result = pytester.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider", "--junit-xml=report.xml")

    result.assert_outcomes(passed=30)
    report = (pytester.path / "report.xml").read_text()
    processes = {name: set(_processes(report, name)) for name in names}
    assert all(len(found) == 1 for found in processes.values()), processes
    assert processes["test_a"] == processes["test_b"]
    assert len(set.union(*processes.values())) == 2, processes


def _processes(report: str, module: str) -> list[str]:
    cases = [case for case in report.split("<testcase ") if f'classname="{module}"' in case]
    assert len(cases) == 6
    return [case.split('name="process" value="')[1].split('"')[0] for case in cases]


@pytest.mark.parametrize(
    ("chosen", "counts"), [("quick", [1, 10, 16, 10]), ("full", [1, 20, 100, 100]), ("nightly", [10, 200, 1000, 1000])]
)
def test_an_effort_scales_what_is_drawn(monkeypatch: pytest.MonkeyPatch, chosen: str, counts: list[int]) -> None:
    monkeypatch.setattr(effort, "EFFORT", chosen)
    assert [effort.times(1), effort.times(20), effort.times(100), effort.times(100, quick=10)] == counts


def test_an_effort_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "EFFORT", "much")
    with pytest.raises(ValueError, match="one of quick, full, nightly"):
        effort.times(1)


def test_a_seed_is_printed_and_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WARREN_SEED", raising=False)
    seed = effort.new_seed()
    assert capsys.readouterr().out == f"WARREN_SEED={seed}\n"
    monkeypatch.setenv("WARREN_SEED", str(seed))
    assert effort.new_seed() == seed
