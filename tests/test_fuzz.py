"""Parsers under damaged bytes: each ends soon, within bounded memory, and with nothing but errors of ours."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.mutations import damaged
from tests.fuzz.table import TARGETS
from tests.support.effort import times
from tests.support.tried import Count, Tried

EXAMPLES = times(40, quick=1, nightly=300)
SLOW_EXAMPLES = times(3, quick=0, nightly=20)
QUICK = [name for name, target in TARGETS.items() if not target.is_slow]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name, target in TARGETS.items() if target.is_slow]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_sound_input_is_accepted(name: str) -> None:
    target = TARGETS[name]
    assert [target.run(seed) for seed in target.seeds()] == [True] * len(target.seeds())


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_a_damaged_input_is_refused_or_read(name: str, tried: Count) -> None:
    target, count = TARGETS[name], 0

    @settings(
        max_examples=SLOW_EXAMPLES if target.is_slow else EXAMPLES,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    @given(damaged(target.seeds()))
    def read(data: bytes) -> None:
        nonlocal count
        count += 1
        target.run_bounded(data)

    read()
    tried(Tried.DAMAGED_FILES, count)
