"""Recorder of the memory monitor: what the real broker's answers in rounds, alarms, amounts and limits.

``monitor_recorder.erl`` does the work, inside a node that a :class:`~tests.support.broker.Broker` runs. The questions
are made here, partly from seeds. ``python -m tests.support.recorder.monitor_recorder tests/data/memory-monitor.json``
records the tests' data again.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

from tests.support.broker import Broker
from tests.support.recorder.recorder import load

Steps = list[dict[str, Any]]
Recording = dict[str, Any]

LIMIT_BYTES = 1_000_000
_SOURCE = Path(__file__).with_name("monitor_recorder.erl")
_MODULE = _SOURCE.stem
_UNIT_NAMES = (
    *("", "k", "K", "kB", "KB", "Kb", "kb", "kiB", "KiB", "kib", "KIB", "m", "M", "mB", "MB", "Mb", "mb", "miB", "MiB"),
    *(
        "mib",
        "MIB",
        "g",
        "G",
        "gB",
        "GB",
        "Gb",
        "gb",
        "giB",
        "GiB",
        "gib",
        "GIB",
        "T",
        "TB",
        "B",
        "b",
        "ki",
        "Mi",
        " MB",
    ),
)


def record(broker: Broker, directory: Path, asked: Recording) -> Recording:
    """``asked``, with the broker's answers. ``directory``: for the recorder's files; there before."""
    load(broker, _SOURCE, directory)
    path = directory / "asked.json"
    path.write_text(json.dumps(asked))
    broker.eval(f'{_MODULE}:record("{path}")')
    recorded: Recording = json.loads(path.with_name(path.name + ".recorded").read_text())
    return recorded


def questions(seeds: range) -> Recording:
    """All that a recording is asked; a scenario of rounds for each seed beside those with a name."""
    return {
        "scenarios": [*named_scenarios(), *map(random_scenario, seeds)],
        "alarms": [
            {"limit_bytes": LIMIT_BYTES, "used_bytes": [999_999, 1_000_000, 1_000_001, 1_000_000, 2_000_000, 0, 0]},
            {"limit_bytes": 0, "used_bytes": [1, 0, 1]},
        ],
        "units": [f"{number}{unit}" for number in ("1", "20") for unit in _UNIT_NAMES]
        + ["", "MB", "-1MB", "1.5GB", "0", "007k"],
        "limits": [
            *([share, total] for share in (0.0, 0.1, 0.4, 0.7, 1.0) for total in (0, 1, 1_000_003, 2**34 + 7)),
            *([{"absolute": amount}, 1_000_003] for amount in (0, 1, 1_000_002, 1_000_003, 1_000_004, 2**40)),
        ],
    }


def register(*queues: int) -> Steps:
    return [{"op": "register", "queue": queue} for queue in queues]


def report(queue: int, duration: float | None) -> dict[str, Any]:
    return {"op": "report", "queue": queue, "duration": duration}


def memory_round(used_bytes: int) -> dict[str, Any]:
    return {"op": "round", "used_bytes": used_bytes}


def disk_alarm(alarm: bool, used_bytes: int) -> dict[str, Any]:
    return {"op": "disk_alarm", "alarm": alarm, "used_bytes": used_bytes}


def scenario(name: str, *steps: Steps, paging_ratio: float = 0.5) -> dict[str, Any]:
    return {"name": name, "limit_bytes": LIMIT_BYTES, "paging_ratio": paging_ratio, "steps": [*chain(*steps)]}


def named_scenarios() -> list[dict[str, Any]]:
    def limit(limit_bytes: int) -> dict[str, Any]:
        return {"op": "limit", "limit_bytes": limit_bytes}

    return [
        scenario(
            "a value that falls is told to those above it only",
            register(0, 1, 2),
            [report(0, 30.0), report(1, 0.5), memory_round(600_000), memory_round(1_200_000)],
            [report(0, 4.0), report(2, 8.0), memory_round(1_100_000), memory_round(400_000), report(0, 1.0)],
        ),
        scenario(
            "the ratio at each of its thresholds",
            register(0),
            [report(0, 10.0)],
            [memory_round(used) for used in (499_999, 500_000, 949_999, 950_000, 999_999, 1_000_000, 1_000_001, 0)],
        ),
        scenario(
            "queues at nothing grow again below the second threshold only",
            register(0, 1),
            [report(0, 0.0), report(1, 0.0), memory_round(960_000), report(0, 0.0), memory_round(940_000)],
            [report(0, 0.2), report(1, 0.1), memory_round(940_000), memory_round(960_000)],
        ),
        scenario(
            "no finite duration means no limit however much is used",
            [memory_round(5_000_000), *register(0), memory_round(5_000_000)],
            [report(0, None), memory_round(5_000_000)],
        ),
        scenario(
            "a disk alarm lifts what was told, and what comes after it falls again",
            register(0, 1, 2),
            [report(0, 3.0), report(1, 5.0), memory_round(1_500_000), report(0, 2.0)],
            [disk_alarm(True, 1_500_000), memory_round(1_500_000), report(2, 7.0), disk_alarm(True, 0)],
            [disk_alarm(False, 1_500_000), disk_alarm(False, 600_000), report(1, 0.0)],
        ),
        scenario(
            "with no memory allowed everything is nothing",
            register(0, 1),
            [report(0, 3.0), limit(0), memory_round(0), memory_round(10), report(1, 2.0), report(0, 0.0)],
            [limit(LIMIT_BYTES), memory_round(700_000)],
        ),
        scenario(
            "a sum that comes back to nearly nothing is nothing",
            register(0, 1),
            [report(0, 0.1), report(1, 0.2), report(0, 0.3), report(0, 0.0), report(1, 1e-7), memory_round(960_000)],
            [report(1, 0.1), report(0, 0.2), {"op": "deregister", "queue": 0}, report(1, None), memory_round(600_000)],
        ),
    ]


def random_scenario(seed: int) -> dict[str, Any]:
    choose = random.Random(seed)
    steps, known, ever = [], list[int](), 0
    for _ in range(60):
        action = choose.choices(("register", "deregister", "report", "round", "disk_alarm"), (2, 0.5, 10, 6, 0.6))[0]
        if action == "register":
            steps += register(ever)
            known.append(ever)
            ever += 1
        elif action == "deregister" and known:
            steps.append({"op": "deregister", "queue": known.pop(choose.randrange(len(known)))})
        elif action == "report" and known:
            duration = choose.choice([None, 0.0, choose.uniform(0, 2), choose.expovariate(0.1), choose.uniform(0, 1e5)])
            steps.append(report(choose.choice(known), duration))
        elif action == "round":
            steps.append(memory_round(choose.randrange(300_000, 1_500_000)))
        elif action == "disk_alarm":
            steps.append(disk_alarm(choose.random() < 0.5, choose.randrange(300_000, 1_500_000)))
    return scenario(f"seed {seed}", steps, paging_ratio=choose.choice([0.5, 0.5, 0.25, 0.8]))


def main(target: str) -> None:
    with tempfile.TemporaryDirectory() as directory, Broker(Path(directory) / "broker") as broker:
        broker.start()
        recorded = record(broker, Path(directory), questions(range(4)))
    lists = ",\n".join(f" {json.dumps(name)}: [\n{_lines(answers)}\n ]" for name, answers in recorded.items())
    Path(target).write_text(f"{{\n{lists}\n}}\n")


def _lines(answers: list[Any]) -> str:
    """A line each; a scenario's steps a line each."""
    lines = []
    for answer in answers:
        if isinstance(answer, dict) and "steps" in answer:
            head = json.dumps({name: value for name, value in answer.items() if name != "steps"})
            steps = ",\n".join(f"   {json.dumps(step)}" for step in answer["steps"])
            lines.append(f'  {head[:-1]}, "steps": [\n{steps}\n  ]}}')
        else:
            lines.append(f"  {json.dumps(answer)}")
    return ",\n".join(lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
