"""kill -9 of processes that publish and consume at full speed, on real files, with real threads, again and again.

One directory goes through ten kills, in a full run through a hundred, each at a moment that nobody chose: most in the
middle of the work, some while the node is still being opened, so that recoveries are killed and recovered, too. After
every kill the parent opens a copy of what was left and holds it against what the process had told
(:mod:`tests.support.kill_child`):

- every confirmed message that nobody had begun to ack is there, whole, in every queue that it was published to;
- what was acked, and the ack made safe by a later ``sync()``, stays away, and so does whatever a recovery did not find;
- nothing is there that was not published, and each publisher's messages are in order, none twice;
- a message that comes for a second time, or from before the kill, says redelivered; one that cannot have been
  delivered before does not.

An ack that nobody made safe may be lost with the process: its message comes back, and says redelivered.
Another seed: ``WARREN_SEED=7 pytest tests/test_kill.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.effort import new_seed, times
from tests.support.kill_child import Nursery
from tests.support.kill_ledger import Ledger
from tests.support.killing import each_kill

KILLS = times(30, quick=6)


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


def test_kills_at_full_speed(tmp_path: Path, nursery: Nursery) -> None:
    ledger, rng = Ledger(), random.Random(new_seed())
    for left in each_kill(KILLS, ledger, nursery, tmp_path, rng):
        ledger.check(left)
