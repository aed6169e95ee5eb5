"""How many cases the tests tried, by kind: told at the end of a run, and kept for docs/guarantees.md.

A test that searches takes the fixture ``tried`` and says ``tried(Tried.KILLS, 50)`` when it is through; what a failed
test said does not count. `make nightly` runs the tests that have the fixture, marked ``counted`` for that, at length;
the environment's WARREN_TRIED names the file that is to have the counts.
"""

from __future__ import annotations

import enum
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.effort import EFFORT

if TYPE_CHECKING:
    import pytest

MARK = "counted"
FIXTURE = "tried"
VARIABLE = "WARREN_TRIED"
_PROPERTY = "tried"


class Tried(enum.Enum):
    """The kinds of cases, and what one of each is."""

    CRASH_STATES = "states of files after a crash, each opened and checked"
    EXT4_STATES = "states of a real ext4 after a power loss, each mounted, opened and checked"
    DISK_FAULTS = "faults of a disk, of its permissions, of descriptors and of clocks"
    FULL_DISKS = "times that a real file system was filled and freed again"
    DAMAGED_FILES = "damaged directories, files and frames, each read"
    FUZZED_INPUTS = "inputs of a fuzzer that follows the code's branches"
    KILLS = "processes killed at work"
    EXITS = "ends of an interpreter"
    INTERRUPTS = "moments of a verb at which it was interrupted"
    SCHEDULES = "orders of the actors' turns"
    TAKEOVER_SCHEDULES = "orders of steps of processes that take over from each other"
    ATTACKS = "attacks on a server"
    UPGRADES = "directories of released versions, each opened"


Count = Callable[[Tried, int], None]
"""What the fixture gives."""


def counter(request: pytest.FixtureRequest) -> Count:
    def count(kind: Tried, number: int) -> None:
        request.node.user_properties.append((_PROPERTY, (kind.name, number)))

    return count


def counts_of(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """What tests that passed have said, by the name of the kind."""
    counts: Counter[str] = Counter()
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == _PROPERTY and getattr(report, "when", "") == "teardown":
                counts[value[0]] += value[1]
    return counts


def tell(reporter: pytest.TerminalReporter, counts: Counter[str]) -> None:
    """Print the counts, and write them where the environment says."""
    if counts:
        reporter.section("tried")
        for kind in Tried:
            if counts[kind.name]:
                reporter.write_line(f"{counts[kind.name]:>11,} {kind.value}")
    if path := os.environ.get(VARIABLE):
        when = {"date": time.strftime("%Y-%m-%d"), "effort": EFFORT}
        kept = when | {kind.name.lower(): counts[kind.name] for kind in Tried}
        Path(path).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
