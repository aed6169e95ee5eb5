"""Parsers under damaged bytes: each ends soon, within bounded memory, and with nothing but errors of ours."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.mutations import damaged
from tests.fuzz.table import TARGETS
from tests.fuzz.target import Target, TooLongError, ends_within
from tests.support.effort import EFFORT, times
from tests.support.rabbitmq_golden import PROJECT
from tests.support.tried import Count, Tried
from warren.storage import erlang_terms

EXAMPLES = times(40, quick=1, nightly=300)
ENDS_WITHIN_S = 600
"""A run of the fuzzer on one target, including the instrumented imports."""
NEXT_ENDS_WITHIN_S = 60
"""Each further target, which has no imports left to do."""
SLOW_EXAMPLES = times(3, quick=1, nightly=20)
QUICK = [name for name, target in TARGETS.items() if not target.is_slow]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name, target in TARGETS.items() if target.is_slow]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_sound_input_is_accepted(name: str) -> None:
    target = TARGETS[name]
    assert [target.run(seed) for seed in target.seeds()] == [True] * len(target.seeds())


@pytest.mark.slow
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


def test_a_target_is_held_to_its_bounds() -> None:
    def of(read: Callable[[bytes], object]) -> Target:
        return Target("strange", read, lambda: [b""], memory_bytes=1 << 16)

    with pytest.raises(ZeroDivisionError):
        of(lambda data: 1 // len(data)).run_bounded(b"")
    with pytest.raises(AssertionError, match="bytes of memory"):
        of(lambda data: bytes(1 << 20)).run_bounded(b"")
    with pytest.raises(TooLongError), ends_within(0.01):
        of(lambda data: signal.pause()).run(b"")
    assert not of(erlang_terms.decode).run_bounded(b"")


SECONDS = times(2, nightly=6)
_EXECUTED = re.compile(r"number_of_executed_units: (\d+)")
FUZZED = tuple(TARGETS) if EFFORT == "nightly" else ("erlang-term",)


@pytest.mark.slow
def test_a_fuzzer_that_watches_branches_finds_nothing(tmp_path: Path, tried: Count) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed: pip install 'warrenmq[fuzz]'")
    command = [sys.executable, "-m", "tests.fuzz", ",".join(FUZZED)]
    command += ["--seconds", str(SECONDS), "--crashes", str(tmp_path)]
    within_s = ENDS_WITHIN_S + NEXT_ENDS_WITHIN_S * (len(FUZZED) - 1)
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, timeout=within_s, cwd=PROJECT
    )
    crashes = [(path.name, path.read_bytes()[:4096]) for path in tmp_path.iterdir()]
    assert (done.returncode, crashes) == (0, []), done.stderr[-4000:] + done.stdout[-4000:]
    executed = [int(count) for count in _EXECUTED.findall(done.stdout + done.stderr)]
    assert len(executed) == len(FUZZED)
    assert all(executed)
    tried(Tried.FUZZED_INPUTS, sum(executed))
