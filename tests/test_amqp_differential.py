"""Random AMQP programs on real servers: what comes is the same, frame by frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.support.amqp_differential import Side, first_difference, own_server, program_of, real_server, report
from tests.support.broker import requires_broker
from tests.support.differential_program import Step

pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated")  # basic.recover-async
SEEDS = range(140, 152)
"""More by hand: ``python -m tests.support.amqp_differential``. What they found has names in test_server_answers.py and
test_server_refusals.py."""
SAME_TWICE = range(2)
TRIES = 3


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with real_server(tmp_path_factory.mktemp("broker")) as side:
        yield side


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with own_server(tmp_path_factory.mktemp("warren") / "node") as side:
        yield side


def repeated(one: Side, other: Side, seed: int) -> str:
    """What differs, and does so each time: what a busy machine brings about once is no difference."""
    said = ""
    for _ in range(TRIES):
        if not (said := report(one, other, seed)):
            return ""
    return said


@requires_broker
def test_random_programs_are_answered_as_a_broker_answers_them(own: Side, real: Side) -> None:
    differences = [text for seed in SEEDS if (text := repeated(own, real, seed))]
    assert not differences, "\n".join(differences)


@requires_broker
def test_a_broker_says_the_same_twice(real: Side) -> None:
    assert not [text for seed in SAME_TWICE if (text := repeated(real, real, seed))]


def test_a_seed_gives_the_same_program_each_time() -> None:
    assert program_of(7) == program_of(7)
    assert program_of(7) != program_of(8)


def test_the_first_step_that_differs_is_found() -> None:
    program = tuple(Step(number, "basic.get", {}) for number in range(3))
    told: list[Mapping[str, Any]] = [{"0.1": [["basic.get_empty", {}]]}, {"queues": {}}, {}]
    found = first_difference(program, told, [told[0], {"queues": {"@q0": [1, 0]}}, {}])
    assert found is not None
    assert (found.step, found.what, found.there) == (program[1], "queues", {"@q0": [1, 0]})
    assert first_difference(program, told, list(told)) is None
