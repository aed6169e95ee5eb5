"""What is made of the reports of other people's suites, and of two sides' outcomes; tests/clients is a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.outcomes import Comparison, Outcome, compare, read, suspects
from tests.clients.page import PAGE, Result, with_results

PASSED, FAILED, SKIPPED = Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED


def phases(test: str, *phases: tuple[str, str]) -> str:
    entries = [{"$report_type": "TestReport", "nodeid": test, "when": when, "outcome": said} for when, said in phases]
    return "\n".join(map(json.dumps, entries))


REPORTS = {
    "pytest": "\n".join(
        (
            phases("passed", ("setup", "passed"), ("call", "passed"), ("teardown", "passed")),
            phases("at last", ("setup", "passed"), ("call", "rerun"), ("setup", "passed"), ("call", "passed")),
            phases("failed", ("setup", "passed"), ("call", "failed"), ("teardown", "passed")),
            phases("failed at its end", ("setup", "passed"), ("call", "passed"), ("teardown", "failed")),
            phases("skipped", ("setup", "skipped"), ("teardown", "passed")),
            '{"$report_type": "CollectReport", "nodeid": "not to be imported", "outcome": "failed"}',
            '{"$report_type": "TestRep',
        )
    ),
    "go": "\n".join(
        (
            '{"Action": "run", "Test": "passed"}\n{"Action": "pass", "Test": "passed"}\n{"Action": "pass"}',
            '{"Action": "run", "Test": "failed"}\n{"Action": "output", "Test": "failed"}',
            '{"Action": "run", "Test": "skipped"}\n{"Action": "skip", "Test": "skipped"}',
        )
    ),
    "junit": '<testsuites><testsuite name="s"><testcase name="passed"/><testcase name="failed"><failure/></testcase>'
    '</testsuite><testcase name="skipped"><skipped/></testcase></testsuites>',
    "rspec": json.dumps(
        {
            "examples": [
                {"id": "a[1]", "full_description": "passes", "status": "passed"},
                {"id": "a[2]", "full_description": "fails", "status": "failed"},
                {"id": "a[3]", "full_description": "waits", "status": "pending"},
            ]
        }
    ),
    "tap": "1..3\nok - passed\nnot ok - failed\nok - skipped # SKIP why\nnot ok 4 - failed\nnoise: ok - not",
}
FOUND = {
    "pytest": {
        "passed": PASSED,
        "at last": PASSED,
        "failed": FAILED,
        "failed at its end": FAILED,
        "skipped": SKIPPED,
        "not to be imported": FAILED,
    },
    "go": {"passed": PASSED, "failed": FAILED, "skipped": SKIPPED},
    "junit": {"s > passed": PASSED, "s > failed": FAILED, "skipped": SKIPPED},
    "tap": {"passed": PASSED, "failed": FAILED, "skipped": SKIPPED, "4 - failed": FAILED},
    "rspec": {"a[1] passes": PASSED, "a[2] fails": FAILED, "a[3] waits": SKIPPED},
}


@pytest.mark.parametrize("form", REPORTS)
def test_a_report_in_each_form_says_how_each_test_ended(form: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    assert read(form, report) == {}
    report.write_text(REPORTS[form])
    assert read(form, report) == FOUND[form]


def test_two_sides_outcomes_are_sorted_by_what_they_come_to() -> None:
    real = {"a": PASSED, "b": PASSED, "c": FAILED, "d": FAILED, "e": SKIPPED, "f": PASSED, "only there": PASSED}
    warren = {"a": PASSED, "b": FAILED, "c": PASSED, "d": FAILED, "e": FAILED, "f": FAILED, "only here": FAILED}
    assert suspects(real, warren) == ["b", "f", "only there"]
    assert compare(real, warren, flaky=["f"]) == Comparison(
        both=("a",),
        real_only=("b", "only there"),
        warren_only=("c",),
        neither=("d", "only here"),
        skipped=("e",),
        flaky=("f",),
    )


def test_a_run_replaces_the_rows_of_its_suites_and_leaves_the_others() -> None:
    page = PAGE.read_text()
    first = with_results(page, {"one": Result("one", "One 1.0", Comparison(both=("a", "b"))), "two": result("two")})
    again = with_results(first, {"one": Result("one", "One 1.1", Comparison(real_only=("a",)))})
    rows = [line for line in again.splitlines() if line.startswith(("| one", "| two"))]
    assert rows == ["| one | One 1.1 | 0 | 1 | 0 | 0 | 0 | 0 |", "| two | two | 0 | 0 | 0 | 0 | 0 | 0 |"]
    assert with_results(page, {}) == page


def result(name: str) -> Result:
    return Result(name, name, Comparison())
