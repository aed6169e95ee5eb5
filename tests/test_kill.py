"""kill -9 of processes that work at full speed, on real files, with real threads, again and again.

One directory goes through all the kills, each at a random moment: most in the middle of the work, some while the node
is still being opened, so that recoveries are killed and recovered, too. The work is a mixed load: queues and topics,
messages that are delayed, that are retried, that have keys; memory is short, so that messages are paged out; files are
small, so that they are compacted and rolled over (:mod:`tests.support.killing`). After every kill the parent opens a
copy of what was left and compares it with what the process had reported (:mod:`tests.support.kill_ledgers`).
Another seed: ``WARREN_SEED=7 pytest tests/test_kill.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.effort import new_seed, times
from tests.support.kill_ledgers import Ledger
from tests.support.killing import Nursery, each_kill
from tests.support.tried import Count, Tried

KILLS = times(36, quick=5, nightly=700)
LIVES = 40
"""How many kills a directory goes through before another one begins, because a topic keeps all that it ever had."""


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.mark.slow
def test_kills_at_full_speed(tmp_path: Path, nursery: Nursery, tried: Count) -> None:
    rng, kills = random.Random(new_seed()), 0
    while kills < KILLS:
        ledger, place = Ledger(), tmp_path / str(kills)
        place.mkdir()
        for left in each_kill(min(LIVES, KILLS - kills), ledger, nursery, place, rng, times=2):
            ledger.check(left, rng)
            kills += 1
        idle = [kind for kind, part in ledger.parts.items() if not part.confirmed_count]
        assert not idle or kills < LIVES, f"these did nothing: {idle}"
    tried(Tried.KILLS, kills)
