"""What a suite says of its tests, in each form that suites have, and what two sides' outcomes come to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import attrs


class Outcome(Enum):
    """How one test ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


def read(report: str, path: Path) -> dict[str, Outcome]:
    """Return the outcomes by test, from the file at ``path`` in the form ``report``; empty if the file does not exist.

    A test that began without a later outcome has failed: the suite was killed in it.
    """
    if not path.exists():
        return {}
    return READERS[report](path.read_text(errors="replace"))


def _read_pytest(text: str) -> dict[str, Outcome]:
    """pytest-reportlog's lines: one for each phase of a test, and again for each rerun."""
    outcomes: dict[str, Outcome] = {}
    for entry in _json_lines(text):
        if entry.get("$report_type") not in ("TestReport", "SubTestReport", "SubtestReport"):
            if entry.get("$report_type") == "CollectReport" and entry["outcome"] == "failed":
                outcomes[entry["nodeid"]] = Outcome.FAILED
            continue
        test, when, outcome = entry["nodeid"], entry["when"], entry["outcome"]
        if outcome == "rerun":
            outcomes.pop(test, None)
        elif outcome == "failed":
            outcomes[test] = Outcome.FAILED
        elif outcome == "skipped":
            outcomes.setdefault(test, Outcome.SKIPPED)
        elif when == "call":
            outcomes.setdefault(test, Outcome.PASSED)
    return outcomes


def _read_go(text: str) -> dict[str, Outcome]:
    """``go test -json``: one line for each thing that happens to a test."""
    ends = {"pass": Outcome.PASSED, "fail": Outcome.FAILED, "skip": Outcome.SKIPPED, "run": Outcome.FAILED}
    return {
        entry["Test"]: ends[entry["Action"]]
        for entry in _json_lines(text)
        if "Test" in entry and entry["Action"] in ends
    }


def _read_junit(text: str) -> dict[str, Outcome]:
    """JUnit's XML, as Node.js writes it: suites in suites, whose names make up a test's."""
    outcomes: dict[str, Outcome] = {}

    def walk(element: ElementTree.Element, names: tuple[str, ...]) -> None:
        for child in element:
            inner = (*names, child.get("name", ""))
            if child.tag == "testcase":
                marks = {mark.tag for mark in child}
                bad = Outcome.FAILED if marks & {"failure", "error"} else Outcome.PASSED
                outcomes[" > ".join(inner)] = Outcome.SKIPPED if "skipped" in marks else bad
            else:
                walk(child, inner)

    if text.strip():
        walk(ElementTree.fromstring(text), ())
    return outcomes


def _read_rspec(text: str) -> dict[str, Outcome]:
    """RSpec's JSON, which is written at the end; the position tells tests of one name apart."""
    kinds = {"passed": Outcome.PASSED, "failed": Outcome.FAILED, "pending": Outcome.SKIPPED}
    return {
        f"{test['id']} {test['full_description']}": kinds[test["status"]]
        for test in json.loads(text or "{}").get("examples", ())
    }


def _read_tap(text: str) -> dict[str, Outcome]:
    """The lines ``ok - name``, ``not ok 5 - name`` and ``ok - name # SKIP why``; a number is part of the name."""
    outcomes: dict[str, Outcome] = {}
    for bad, name, skipped in re.findall(r"^(not )?ok (?:- )?(.*?)( # (?i:skip).*)?$", text, re.MULTILINE):
        outcomes[name] = Outcome.FAILED if bad else Outcome.SKIPPED if skipped else Outcome.PASSED
    return outcomes


READERS: Final[Mapping[str, Callable[[str], dict[str, Outcome]]]] = {
    "pytest": _read_pytest,
    "go": _read_go,
    "junit": _read_junit,
    "tap": _read_tap,
    "rspec": _read_rspec,
}


def _json_lines(text: str) -> Iterable[dict[str, Any]]:
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the last one of a suite that was killed, or what a program printed in between
        if isinstance(entry, dict):
            yield entry


@attrs.frozen
class Comparison:
    """One suite on both sides: the tests' names by what they came to."""

    both: tuple[str, ...] = ()
    """Passed on both sides."""
    real_only: tuple[str, ...] = ()
    """Passed by the real server alone, each time: what warren has to mend."""
    warren_only: tuple[str, ...] = ()
    neither: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    """Skipped by the suite itself on one side or both."""
    flaky: tuple[str, ...] = ()
    """Passed by the real server alone at first, and otherwise when they were run again, on one side or the other."""


def suspects(real: Mapping[str, Outcome], warren: Mapping[str, Outcome]) -> list[str]:
    """The tests that the real server passed and warren did not; worth another run."""
    return [
        test for test, outcome in real.items() if outcome is Outcome.PASSED and warren.get(test) is not Outcome.PASSED
    ]


def compare(real: Mapping[str, Outcome], warren: Mapping[str, Outcome], flaky: Iterable[str] = ()) -> Comparison:
    """What the outcomes of both sides come to. A test that one side alone knows has failed on the other."""
    sorted_out: dict[str, list[str]] = {field.name: [] for field in attrs.fields(Comparison)}
    unsteady = set(flaky)
    for test in {**real, **warren}:
        there, here = real.get(test, Outcome.FAILED), warren.get(test, Outcome.FAILED)
        if test in unsteady:
            kind = "flaky"
        elif Outcome.PASSED in (there, here):
            kind = "both" if there is here else "real_only" if there is Outcome.PASSED else "warren_only"
        else:
            kind = "skipped" if Outcome.SKIPPED in (there, here) else "neither"
        sorted_out[kind].append(test)
    return Comparison(**{kind: tuple(tests) for kind, tests in sorted_out.items()})
