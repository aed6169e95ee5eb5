"""Findings as ``export`` and ``shovel`` report them while they work: a line each on stderr, and not without end.

A damaged file may cost a million messages. The first :data:`LINES` of one kind in one file are reported at once, and
the number of the others at the end.
"""

from __future__ import annotations

from typing import Final

import attrs

from warren.commands.output import report_error
from warren.salvage.queue_directory import Finding

LINES: Final = 20


@attrs.define
class FindingReporter:
    """Called with each finding; :meth:`rest` comes last."""

    _counts: dict[tuple[str, str], int] = attrs.Factory(dict)
    """By path and kind."""

    def __call__(self, finding: Finding) -> None:
        key = finding.path, finding.kind
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count <= LINES:
            report_error(finding)

    def rest(self) -> None:
        """How many were not reported."""
        for (path, kind), count in self._counts.items():
            if count > LINES:
                report_error(f"{path}: {kind}: {count - LINES:,} more")
