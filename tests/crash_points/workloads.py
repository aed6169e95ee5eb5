"""All workloads, by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, Protocol

from tests.crash_points import logs, nodes, queues, stores, topics, unique, unique_acks
from tests.crash_points.losses import ChosenSurvivors
from tests.crash_points.recording import Record
from tests.crash_points.search import Workload, moments_of
from warren.storage.memory import MemoryFileSystem


class GoOn(Protocol):
    def __call__(self, files: MemoryFileSystem, promises: Any, seed: int, /, *, power: bool) -> Record:
        """Take up what a crash left, a power loss perhaps, and work on, recorded."""


def behind_a_crash(run: Callable[[int], Record], go_on: GoOn) -> Callable[[int], Record]:
    """Another run, cut off somewhere, killed or without power; recorded is how the next process goes on from there."""

    def run_behind(seed: int) -> Record:
        rng = random.Random(seed)
        record = run(rng.getrandbits(32))
        last = rng.randrange(len(record.operations) // 4, len(record.operations) + 1)
        for replay, operation, _ in moments_of(record):
            if operation == last:
                drawn = ChosenSurvivors(rng=rng, share=rng.choice((0.1, 0.5, 0.9)), holes=False)
                disk = replay.disk
                power = rng.random() < 0.5
                left = disk.after_power_loss(drawn) if power else disk.after_process_crash()
                return go_on(left, record.promises[operation], rng.getrandbits(32), power=power)
        raise RuntimeError(f"no operation {last} of {len(record.operations)}")

    return run_behind


WORKLOADS: Final[dict[str, Workload]] = {
    one.name: one
    for one in (
        Workload("queues", queues.run, queues.check),
        Workload("backlog", queues.run_of_all, queues.check),
        Workload("queues-recovery", behind_a_crash(queues.run, queues.go_on), queues.check),
        Workload("stores", stores.run, stores.check),
        *(Workload(work.__name__.replace("_", "-"), stores.run_of(work), stores.check) for work in stores.WORKS),
        Workload("compact-all-recovery", behind_a_crash(stores.run_of(stores.compact_all), stores.go_on), stores.check),
        Workload("stores-recovery", behind_a_crash(stores.run, stores.go_on), stores.check),
        Workload("topics", topics.run, topics.check),
        Workload("topics-recovery", behind_a_crash(topics.run, topics.go_on), topics.check),
        Workload("nodes", nodes.run, nodes.check),
        Workload("unique", unique.run, unique.check),
        Workload("unique-acks", unique_acks.run, unique_acks.check),
        Workload("unique-acks-recovery", behind_a_crash(unique_acks.run, unique_acks.go_on), unique_acks.check),
        Workload("delays", logs.run_delays, logs.check_delays),
        Workload("delays-recovery", behind_a_crash(logs.run_delays, logs.delays_go_on), logs.check_delays),
        Workload("definitions", logs.run_definitions, logs.check_definitions),
        Workload(
            "definitions-recovery",
            behind_a_crash(logs.run_definitions, logs.definitions_go_on),
            logs.check_definitions,
        ),
        Workload("records", logs.run_records, logs.check_records),
        Workload("records-recovery", behind_a_crash(logs.run_records, logs.records_go_on), logs.check_records),
    )
}
