"""What a message costs in the works that warren is measured by: calls, memory, bytes and writes, counted and not timed.

A change that costs more fails here, and the message names the place. If the cost is intended, ``python -m
tests.support.work_counts`` rewrites the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import pytest

from tests.support.work_counts import COUNTED, Cost, complaints, costs_alone, kept

QUICK = {"W1", "W2", "W3", "W4", "W10"}
"""The rows of a quick run, by the beginnings of their names."""
COST = Cost(calls=100.0, peak_bytes=1000.0, blocks=10.0, writes=1.0, written_bytes=300.0, syncs=0.0)


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=() if row.split(",")[0] in QUICK else pytest.mark.slow) for row in COUNTED]
)
def test_a_message_costs_no_more_than_the_table_says(row: str, tmp_path: Path) -> None:
    said = complaints(row, kept()[row], costs_alone(COUNTED[row], tmp_path), python=sys.version_info[:2])
    assert not said, "\n".join(said)


def test_the_table_has_the_rows_that_are_counted() -> None:
    assert list(kept()) == list(COUNTED)


@pytest.mark.parametrize(
    "dearer",
    [
        {"calls": 104.0},
        {"peak_bytes": 1200.0},
        {"blocks": 14.0},
        {"writes": 2.0},
        {"written_bytes": 310.0},
        {"syncs": 1.0},
    ],
    ids=lambda dearer: next(iter(dearer)),
)
def test_what_costs_more_is_said_with_its_row(dearer: dict[str, float]) -> None:
    [said] = complaints("W3", {"round trip": COST}, {"round trip": attrs.evolve(COST, **dearer)})
    assert said.startswith(f"W3: round trip: {next(iter(dearer))} {next(iter(dearer.values()))} a message, at most")


def test_a_little_more_is_let_through_and_far_less_wants_a_new_table() -> None:
    assert complaints("W3", {"round trip": COST}, {"round trip": attrs.evolve(COST, calls=102.9, blocks=12.0)}) == []
    [said] = complaints("W3", {"round trip": COST}, {"round trip": attrs.evolve(COST, calls=40.0)})
    assert said == "W3: round trip: only 40.0 calls, 100.0 in the table: write it anew"
