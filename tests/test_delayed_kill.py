"""A process that delays messages at full speed, and is killed: what was confirmed comes, after however many kills."""

from __future__ import annotations

import random
from pathlib import Path

import warren
from tests.support.effort import new_seed, times
from tests.support.killed_program import lines_until_killed
from tests.support.waiting import wait_until

PROGRAM = """
import random, sys
import warren

rng = random.Random(sys.argv[2])
with warren.open(sys.argv[1], sync="os", msg_store_file_size_limit=20_000) as node:
    queue, number = node.queue("jobs"), int(sys.argv[3])
    while True:
        numbers = range(number, number + rng.randrange(1, 30))
        number = numbers.stop
        sent = queue.publish_many([b"%d" % n for n in numbers], delay=[rng.random() / 5 for _ in numbers])
        sent.wait()
        print(numbers.start, numbers.stop, flush=True)
        if rng.random() < 0.3:
            node.exchange("").publish(b"far", "jobs", delay=3600, message_id="far").wait()
            node.cancel_delayed("far")
"""


def test_what_was_confirmed_comes_after_kills(tmp_path: Path) -> None:
    rng = random.Random(new_seed())
    confirmed: set[int] = set()
    highest = 0
    for _ in range(times(12, quick=3)):
        for line in lines_until_killed(PROGRAM, rng, str(tmp_path / "node"), str(rng.random()), str(highest)):
            start, stop = map(int, line.split())
            confirmed |= set(range(start, stop))
            highest = max(highest, stop) + 1000
    with warren.open(tmp_path / "node") as node:
        queue = node.queue("jobs")
        queue.cancel_delayed("far")  # as a kill has kept one or the other from being
        wait_until(lambda: not queue.stats()["messages_delayed"], "all come")
        found = {delivery.body for delivery in queue.get_many(1_000_000)}
    assert confirmed
    assert not confirmed - {int(body) for body in found - {b"far"}}
