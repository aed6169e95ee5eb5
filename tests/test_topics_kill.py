"""kill -9 of processes that append to topics and read them at full speed, on real files, with real threads.

One directory goes through all the kills, each at a moment that nobody chose, some while the node is still being opened.
After every kill the parent opens a copy of what was left and holds it against what the process had told
(:mod:`tests.support.topic_kill_child`):

- every confirmed message is there, once, whole, and found by its key;
- nothing is there that was not appended, and in each queue a stream's messages are in order;
- what was there once stays;
- no group's offset is beyond what a reader of it was handed out.

Another seed: ``WARREN_SEED=7 pytest tests/test_topics_kill.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import topic_kill_child
from tests.support.effort import new_seed, times
from tests.support.kill_child import Nursery
from tests.support.killing import each_kill
from tests.support.topic_kill_ledger import Ledger

KILLS = times(10, quick=4)


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    nursery = Nursery(topic_kill_child.__file__)
    yield nursery
    nursery.close()


def test_kills_at_full_speed_lose_nothing_that_was_confirmed(tmp_path: Path, nursery: Nursery) -> None:
    ledger, rng = Ledger(), random.Random(new_seed())
    for left in each_kill(KILLS, ledger, nursery, tmp_path, rng, times=3):
        ledger.check(left, rng)
    assert len(ledger.handed_out) > 1
