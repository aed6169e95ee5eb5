"""`make lint` looks for known vulnerabilities: it fails for one, and for nothing else."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.support.audit import Audit, audit


def answered(dependencies: list[dict[str, Any]], code: int = 0) -> Audit:
    output = json.dumps({"dependencies": dependencies, "fixes": []})
    return audit(lambda: subprocess.CompletedProcess([], code, output, "some warning"))


GOOD = {"name": "attrs", "version": "25.1.0", "vulns": []}
BAD = {
    "name": "pillow",
    "version": "9.0.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["9.0.1"]}, {"id": "PYSEC-2", "fix_versions": []}],
}
UNKNOWN = {"name": "warrenmq", "skip_reason": "Dependency not found on PyPI"}


def test_a_known_vulnerability_fails_and_says_what_mends_it() -> None:
    said, fails = answered([GOOD, BAD, UNKNOWN], 1)
    assert fails
    assert said.splitlines() == [
        "pip-audit: pillow 9.0.0: PYSEC-1, mended in 9.0.1",
        "pip-audit: pillow 9.0.0: PYSEC-2, mended in no version yet",
    ]


def test_none_is_said_with_what_could_not_be_looked_up() -> None:
    assert answered([GOOD]) == ("pip-audit: no known vulnerability in 1 packages", False)
    assert answered([GOOD, UNKNOWN]) == (
        "pip-audit: no known vulnerability in 1 packages; 1 could not be looked up",
        False,
    )


def test_where_nothing_can_be_looked_up_nothing_is_called_safe() -> None:
    assert answered([UNKNOWN]) == ("pip-audit: not audited: nobody knows any of these packages", False)


def test_without_a_network_one_line_says_so_and_nothing_fails() -> None:
    stderr = "Traceback\nrequests.exceptions.ConnectionError: no route to pypi.org\n"
    found = audit(lambda: subprocess.CompletedProcess([], 1, "", stderr))
    assert found == ("pip-audit: not audited: requests.exceptions.ConnectionError: no route to pypi.org", False)


def test_who_does_not_answer_is_not_waited_for_for_ever() -> None:
    def silent() -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired("pip-audit", 1)

    assert audit(silent) == ("pip-audit: not audited: no answer", False)


@pytest.mark.parametrize("output", ["", "null", "[]", "{}"])
def test_what_is_no_answer_is_none(output: str) -> None:
    assert not audit(lambda: subprocess.CompletedProcess([], 1, output, "")).fails
