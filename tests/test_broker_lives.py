"""A real broker goes on from whatever warren wrote, three turns each.

A thousand of them, in batches that share a broker's starts: ``WARREN_SEEDS=100 pytest tests/test_broker_lives.py``.
"""

from __future__ import annotations

import os

import broker_lives
import pytest
from broker import Broker

pytestmark = pytest.mark.broker
SEEDS = 10 * int(os.environ.get("WARREN_SEEDS", "1"))
BATCH = 50


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_a_broker_goes_on_from_random_lives_of_warren(broker: Broker, first: int) -> None:
    broker.settings |= broker_lives.BROKER_SETTINGS
    broker_lives.run(broker, range(first, min(first + BATCH, SEEDS)))
