"""Processes that publish with keys at full speed, and are killed: each key's message is stored once, and none is lost
that was confirmed, after however many kills."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import warren
from tests.support.effort import new_seed, times
from tests.support.killed_program import lines_until_killed

PROGRAM = """
import random, sys
import warren

rng = random.Random(sys.argv[2])
with warren.open(sys.argv[1], sync="os", segment_entry_count=64) as node:
    queue, done, number = node.queue("jobs"), node.queue("done"), int(sys.argv[3])
    while True:
        numbers = [max(number + rng.randrange(-30, 5), 0) for _ in range(rng.randrange(1, 20))]
        number += 3
        keys = [f"{n} {'t' if n % 2 else 'w'}" for n in numbers]
        for period, part in ((None, keys[::2]), (3600, keys[1::2])):
            part = [key for key in dict.fromkeys(part) if key.endswith("w" if period is None else "t")]
            if part:
                queue.publish_many([key.encode() for key in part], unique=part, unique_for=period).wait()
                print(number, *part, sep=",", flush=True)
        for job in queue.get_many(rng.randrange(9)):
            if job.body.endswith(b"t"):  # what waits stays, so that it has its key
                done.publish(job.body).wait()
                job.ack()
            else:
                job.nack()
"""


def test_each_key_is_stored_once_through_kills(tmp_path: Path) -> None:
    rng = random.Random(new_seed())
    confirmed: set[str] = set()
    number = 0
    for _ in range(times(12, quick=3)):
        for line in lines_until_killed(PROGRAM, rng, str(tmp_path / "node"), str(rng.random()), str(number)):
            first, *keys = line.rstrip().split(",")
            number = int(first)
            confirmed |= set(keys)
    with warren.open(tmp_path / "node") as node:
        waiting = [delivery.body.decode() for delivery in node.queue("jobs").get_many(1_000_000)]
        done = [delivery.body.decode() for delivery in node.queue("done").get_many(1_000_000)]
        assert Counter(waiting).most_common(1)[0][1] == 1, "of no key are there two"
        known = sorted(confirmed)
        answer = node.queue("jobs").publish_many([b"again"] * len(known), unique=known)
        answer.wait()
        assert answer.duplicates == tuple(range(len(known)))
    assert len(confirmed) > 20
    assert confirmed <= {*waiting, *done}
