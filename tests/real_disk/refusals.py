"""``python -m tests.real_disk.refusals``: a node on an ext4 whose disk refuses writes, followed by power losses.

The disk refuses what has certain bytes in it, as one with bad sectors would: ext4 takes the write, its writeback fails,
and the process hears of it from ``fsync``, once. The pages stay in memory as if they were on the disk; and if their
blocks were to be written for the first time, ext4 goes on to call these unwritten, even when the same bytes are written
over them later, in place. So a node that trusts a second ``fsync``, or what it reads back, loses what it confirms then:
the power losses show that.

The last line that it prints is a JSON object: how many ``rounds`` there were, how much was ``confirmed`` and
``refused``, how many ``states`` were checked, and what was ``lost`` in them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

import warren
from tests.real_disk.kernel import end_with_parent, unshare_mounts
from tests.real_disk.loop_mounts import make_ext4, mounted
from tests.real_disk.power_loss import FailingDisk, PowerLoss
from tests.real_disk.session import DISK_BYTES, recorder, why_not, working_place
from tests.real_disk.workload import SETTINGS
from tests.real_disk.write_log import Counter, Record, read_log
from warren.actors.runtime.future import Confirm
from warren.actors.topics.log_intake import AppendConfirm
from warren.errors import WarrenError

REFUSED: Final = b"bad sector"
BLOCK_BYTES: Final = 4096
"""Block size of the ext4. With smaller blocks, a write below the loop device may fail in part, but report success."""
SIZES: Final = (30, 6000)
"""Sizes of bodies: in the queue's index, and in the message store."""
AT_ONCE: Final = 11
"""Most things that a place is asked to keep together; while all are waited for it is one, or the disk would be full."""
PATIENCE_S: Final = 100.0
"""What is down is tried again after waits of up to 64 seconds."""


@attrs.frozen
class Place:
    """Where something is kept: how it gets there, how long that takes, and what is found."""

    keep: Callable[[str], Confirm | AppendConfirm | None]
    find: Callable[[], set[str]]


def places_of(node: warren.Node) -> dict[str, Place]:
    """Messages of a queue, delayed ones, those with keys, and those of a topic; and names."""
    queue, unique, topic = node.queue("q"), node.queue("unique"), node.topic("t", queues=2)

    def declare(name: str) -> None:
        node.exchange(name, "fanout")

    return {
        "q": Place(lambda text: queue.publish(text.encode(), block=False), lambda: texts(queue.browse())),
        "later": Place(
            lambda text: queue.publish(text.encode(), delay=3600, block=False), lambda: texts(node.delayed(1 << 20))
        ),
        "unique": Place(
            lambda text: unique.publish(text.encode(), unique=text[:100], block=False),
            lambda: texts(unique.browse()),
        ),
        "t": Place(
            lambda text: topic.append(text.encode(), key=text[:100], block=False),
            lambda: texts(topic.read(uuid.uuid4().hex)),
        ),
        "names": Place(declare, lambda: {one["name"] for one in node.definitions()["exchanges"]}),
    }


def texts(found: Any) -> set[str]:
    return {one.body.decode() for one in found}


@attrs.define
class Kept:
    """What the node was asked to keep, and what it has confirmed, at how many records of the log."""

    counter: Counter
    rng: random.Random
    confirmed: list[tuple[int, str, str]] = attrs.Factory(list)
    refused: int = 0
    last: dict[str, WarrenError] = attrs.Factory(dict)
    """Why something was refused last, by its place."""
    _numbers: itertools.count[int] = attrs.Factory(itertools.count)

    def text(self, place: str) -> str:
        mark = REFUSED.decode() if self.rng.random() < 0.3 else ""
        return f"{next(self._numbers)};{mark}".ljust(self.rng.choice(SIZES) if place != "names" else 0, ".")

    def work(self, places: dict[str, Place], at_once: int = AT_ONCE) -> bool:
        """Keep some more in each place; whether all of it was confirmed."""
        before = self.refused
        self.last.clear()
        for name in self.rng.sample(sorted(places), len(places)):
            waiting: list[tuple[str, Confirm | AppendConfirm | None]] = []
            for text in [self.text(name) for _ in range(self.rng.randint(1, at_once))]:
                try:
                    waiting.append((text, places[name].keep(text)))
                except WarrenError as error:
                    self.refused += 1
                    self.last[name] = error
            for text, confirm in waiting:
                try:
                    if confirm is not None:
                        confirm.wait(PATIENCE_S)
                except WarrenError as error:
                    self.refused += 1
                    self.last[name] = error
                else:
                    self.confirmed.append((self.counter.value, name, text))
        return self.refused == before

    def missing(self, places: dict[str, Place], record_count: int) -> list[str]:
        """What was confirmed by then, and is not there."""
        wanted = {(name, text) for count, name, text in self.confirmed if count <= record_count}
        found = {(name, text) for name, place in places.items() for text in place.find()}
        return [f"{name} {text:.40}" for name, text in sorted(wanted - found)]


def work(directory: Path, refused: Path, kept: Kept, rounds: int) -> None:
    """Keep things while the disk is sound, while it is not, and again until all is well; ``rounds`` times."""
    with warren.open(directory, **SETTINGS, sync="group") as node:
        places = places_of(node)
        for _ in range(rounds):
            kept.work(places)
            refused.write_bytes(REFUSED)
            for _ in range(kept.rng.randrange(1, 6)):
                kept.work(places)
            refused.unlink()
            deadline = time.monotonic() + PATIENCE_S
            while not kept.work(places, at_once=1):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"it does not go on: {kept.last}, {node.stats()}")
                time.sleep(0.1)
        missing = kept.missing(places, kept.counter.value)
        assert not missing, missing
        assert node.failed_queues == {}


def losses_at_flushes(records: list[Record]) -> list[PowerLoss]:
    ends = [number + 1 for number, record in enumerate(records) if record.data is None]
    return [PowerLoss(end, end, 0) for end in ends]


def missing_behind(image: Path, point: Path, kept: Kept, record_count: int) -> list[str]:
    with mounted(image, point) as mount, warren.open(mount / "data", **SETTINGS, sync="os") as node:
        return kept.missing(places_of(node), record_count)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real_disk.refusals", description="A disk with bad sectors.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--states", type=int, default=20, help="so many power losses")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    asked = parser.parse_args(words)
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    end_with_parent()
    unshare_mounts()
    rng = random.Random(asked.seed)
    with working_place() as place:
        disk, log, counter, refused = (place / name for name in ("disk", "log", "counter", "refused"))
        make_ext4(disk, DISK_BYTES, "-b", str(BLOCK_BYTES))
        base = disk.read_bytes()
        with recorder(disk, log, counter, refused), mounted(disk, place / "mount") as point:
            kept = Kept(Counter(counter), rng)
            work(point / "data", refused, kept, asked.rounds)
        records, lost = read_log(log), list[str]()
        losses = losses_at_flushes(records)
        drawn = {losses[-1], *rng.sample(losses, min(asked.states - 1, len(losses)))}
        failing = FailingDisk(base, records)
        for loss in sorted(drawn, key=lambda one: one.record_count):
            failing.write_image(loss, place / "image")
            missing = missing_behind(place / "image", place / "mount", kept, loss.record_count)
            lost += [f"at {loss.record_count}: {one}" for one in missing]
        counts = {"rounds": asked.rounds, "confirmed": len(kept.confirmed), "refused": kept.refused}
        print(json.dumps(counts | {"states": len(drawn), "lost": lost[:20]}))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
