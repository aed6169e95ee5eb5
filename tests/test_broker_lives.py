"""A real broker goes on from whatever warren wrote, three turns each.

A hundred of them, in batches that share a broker's starts: ``WARREN_EFFORT=nightly pytest tests/test_broker_lives.py``.
"""

from __future__ import annotations

import pytest

from tests.support import broker_lives
from tests.support.broker import Broker
from tests.support.effort import times

pytestmark = pytest.mark.broker
SEEDS = times(10)
BATCH = 50


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_a_broker_goes_on_from_random_lives_of_warren(broker: Broker, first: int) -> None:
    broker.settings |= broker_lives.BROKER_SETTINGS
    broker_lives.run(broker, range(first, min(first + BATCH, SEEDS)))
