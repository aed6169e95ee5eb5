"""Random programs beside a real broker: the same outcomes, deliveries and lengths after every step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.broker import Broker, requires_broker
from tests.support.differential import report
from tests.support.differential_program import Program, Step, program_of, shortened

SEEDS = range(10)
"""More by hand: ``python -m tests.support.differential``."""


@requires_broker
def test_random_programs_do_the_same_as_on_a_broker(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, ThreadPoolExecutor(4) as pool:
        broker.start()
        reports = list(pool.map(lambda seed: report(broker, seed), SEEDS))
    differences = [found.text for found in reports if found.text]
    assert not differences, "\n".join(differences)


def test_a_seed_gives_the_same_program_each_time() -> None:
    assert program_of(7) == program_of(7)
    assert program_of(7) != program_of(8)


@pytest.mark.parametrize("needed", [{0}, {3, 17}, {5, 6, 7, 19}])
def test_a_program_is_shortened_to_the_steps_that_matter(needed: set[int]) -> None:
    program = tuple(Step(number, "wait", {}) for number in range(20))

    def differs(part: Program) -> bool:
        return needed <= {step.number for step in part}

    assert {step.number for step in shortened(program, differs)} == needed
