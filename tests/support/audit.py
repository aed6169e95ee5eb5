"""What is installed, looked up among the vulnerabilities that PyPI knows: ``python -m tests.support.audit``.

pip-audit does it. A known vulnerability ends in a line and exit code 1. Where nothing can be looked up (no network, a
mirror that does not tell) one line says so, and nothing fails: code is checked without a network, too. Where only some
could be, it says how many could not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

COMMAND = ("-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--skip-editable", "--timeout", "10")
PATIENCE_S = 300.0


class Audit(NamedTuple):
    """What there is to say, and whether that is a failure."""

    said: str
    fails: bool


def pip_audit() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *COMMAND], check=False, capture_output=True, encoding="utf-8", timeout=PATIENCE_S
    )


def audit(run: Callable[[], subprocess.CompletedProcess[str]] = pip_audit) -> Audit:
    """Look everything up once."""
    try:
        done = run()
    except subprocess.TimeoutExpired:
        return Audit("pip-audit: not audited: no answer", False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Audit(f"pip-audit: not audited: {lines[-1][:200]}", False)
    return _judged(found)


def _judged(found: Sequence[dict[str, Any]]) -> Audit:
    known = [one for one in found if one.get("vulns")]
    if known:
        lines = [
            f"pip-audit: {one['name']} {one['version']}: {vulnerability['id']}, mended in "
            f"{', '.join(vulnerability['fix_versions']) or 'no version yet'}"
            for one in known
            for vulnerability in one["vulns"]
        ]
        return Audit("\n".join(lines), True)
    looked_up = [one for one in found if "vulns" in one]
    if not looked_up:
        return Audit("pip-audit: not audited: nobody knows any of these packages", False)
    missing = len(found) - len(looked_up)
    without = f"; {missing} could not be looked up" if missing else ""
    return Audit(f"pip-audit: no known vulnerability in {len(looked_up)} packages{without}", False)


def main() -> int:
    found = audit()
    sys.stdout.write(f"{found.said}\n")
    return int(found.fails)


if __name__ == "__main__":
    sys.exit(main())
