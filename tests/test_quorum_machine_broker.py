"""Our machine of a quorum queue makes of random commands what the server's own makes of them, after each of them.

The entries of the logs are made by :mod:`tests.support.quorum_commands`; the server's machine is asked by
:mod:`tests.support.recorder.fifo_oracle`. No broker runs, but its libraries must be there.

Another seed: ``WARREN_SEED=7 pytest tests/test_quorum_machine_broker.py``; more: ``WARREN_EFFORT=nightly``. Each
history has a seed of its own, which a difference tells: with that as WARREN_SEED it comes first.
"""

from __future__ import annotations

import random
from pathlib import Path

import attrs
import pytest

from tests.support.broker import BrokerError, requires_broker
from tests.support.effort import new_seed, times
from tests.support.quorum_commands import PREAMBLE, History, generate
from tests.support.recorder.fifo_oracle import Answer, answers, first_difference
from warren.storage.erlang_terms import Atom, encode

pytestmark = [requires_broker, pytest.mark.xdist_group("fifo_oracle")]  # what they share is asked once

HISTORIES = times(40, quick=40)
STEPS = 80


@attrs.frozen
class Asked:
    """Histories, and what the server's machine answers to each."""

    first_seed: int
    histories: list[History]
    answered: list[list[Answer]]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    seed = new_seed()
    histories = [generate(seed + number, STEPS) for number in range(HISTORIES)]
    return Asked(seed, histories, answers(histories, tmp_path_factory.mktemp("oracle")))


def test_random_commands_make_the_queue_that_the_server_makes(asked: Asked) -> None:
    print(f"seed {asked.first_seed}")
    pairs = zip(asked.histories, asked.answered, strict=True)
    differences = [difference for pair in pairs if (difference := first_difference(*pair)) is not None]
    assert not differences, "\n".join(map(str, differences[:3]))
    assert sum(map(len, asked.answered)) == HISTORIES * STEPS


def test_a_queue_read_from_the_servers_snapshot_goes_on_as_the_servers(asked: Asked) -> None:
    print(f"seed {asked.first_seed}")
    for history, answered in zip(asked.histories, asked.answered, strict=True):
        rng = random.Random(history.seed)
        difference = first_difference(history, answered, snapshots=rng.sample(range(PREAMBLE, STEPS), 5))
        assert difference is None, str(difference)


def test_random_commands_bring_about_every_state(asked: Asked) -> None:
    """So that the other tests compare something: messages ready, returned, out and dead, consumers that wait."""
    print(f"seed {asked.first_seed}")
    seen = [answer.described for answered in asked.answered for answer in answered]
    for name in ("ready", "returns", "consumers", "waiting consumers", "turns", "publishers", "dead letters"):
        assert any(state[name] for state in seen), name
    assert len({one["status"] for state in seen for one in state["consumers"]}) > 2


def test_a_seed_makes_the_same_history_again() -> None:
    assert generate(7, STEPS) == generate(7, STEPS)
    assert generate(7, STEPS).entries != generate(8, STEPS).entries


def test_a_difference_is_told_with_its_seed_its_step_and_both_states(tmp_path: Path) -> None:
    history = generate(7, STEPS)
    (answered,) = answers([history], tmp_path)
    step = next(number for number in range(STEPS) if answered[number].described["ready count"])
    answered[step] = answered[0]
    difference = first_difference(history, answered)
    assert difference is not None
    assert difference.step == step
    assert "ready" in difference.what
    text = str(difference)
    assert f"seed 7, step {step}" in text
    assert str(difference.ours) in text
    assert str(difference.theirs) in text


def test_a_command_that_the_server_fails_at_is_told(tmp_path: Path) -> None:
    history = generate(7, 4)
    no_nodes = encode((Atom("$usr"), {Atom("ts"): 2000}, (Atom("purge_nodes"), 5), Atom("noreply")))
    history.entries.append((5, no_nodes))
    with pytest.raises(BrokerError, match=r"at,5,"):
        answers([history], tmp_path)
