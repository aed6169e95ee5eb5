"""The table of results: on the terminal, and in docs/clients.md, where each run replaces the rows of its suites."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from tests.clients.outcomes import Comparison

PAGE: Final = Path(__file__).parents[2] / "docs" / "clients.md"
BEGIN: Final = "<!-- results: written by make test-clients -->"
END: Final = "<!-- end of results -->"
HEAD: Final = (
    "| suite | what | both | RabbitMQ only | warren only | neither | skipped | flaky |",
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
)


@attrs.frozen
class Result:
    """One suite's row."""

    suite: str
    what: str
    comparison: Comparison

    @property
    def row(self) -> str:
        counts = (len(tests) for tests in attrs.astuple(self.comparison, recurse=False))
        both, real_only, warren_only, neither, skipped, flaky = counts
        cells = (self.suite, self.what, both, real_only, warren_only, neither, skipped, flaky)
        return f"| {' | '.join(map(str, cells))} |"


def with_results(text: str, results: Mapping[str, Result]) -> str:
    """The page ``text`` with these results; rows of other suites stay. Raises :class:`ValueError` without a table."""
    before, rest = text.split(BEGIN)
    table, after = rest.split(END)
    rows = {match[1]: match[0] for match in re.finditer(r"^\| (\S+) \|.*$", table, re.MULTILINE)}
    rows = {suite: row for suite, row in rows.items() if suite not in ("suite", "---")}
    rows |= {suite: result.row for suite, result in results.items()}
    return "\n".join([f"{before}{BEGIN}", *HEAD, *rows.values(), f"{END}{after}"])
