"""``python -m tests.real_disk --workload queues --states 100``: record a workload, and let the power fail.

The last line that it prints is a JSON object: ``states``, how many were checked, and ``failures``, each with what was
wrong and which state it was. Its exit code is 1 if there are failures. No other process sees its mounts, and they are
gone with the process, however that ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from pathlib import Path

from tests.real_disk.kernel import end_with_parent, unshare_mounts
from tests.real_disk.power_loss import draw_losses
from tests.real_disk.session import LENGTHS, Plan, check, record, why_not, working_place


def arguments_of(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.real_disk", description="Power losses on a real ext4.")
    parser.add_argument("--workload", choices=list(LENGTHS), default="queues")
    parser.add_argument("--sync", default="group", help="the node's; with os, messages are lost")
    parser.add_argument("--options", default="data=ordered", help="of the ext4's mount")
    parser.add_argument("--block", type=int, default=4096, help="of the ext4, in bytes")
    parser.add_argument("--rounds", type=int, default=3, help="so many processes work after each other")
    parser.add_argument("--states", type=int, default=100, help="so many power losses")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--keep", type=Path, default=Path(), help="where the image of a failure goes")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    asked = arguments_of(words)
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    end_with_parent()
    unshare_mounts()
    plan = Plan(asked.workload, asked.sync, asked.options, asked.block, asked.rounds, asked.seed)
    print(plan, flush=True)
    with working_place() as place:
        began = time.monotonic()
        recording = record(place, plan)
        flushes = sum(one.data is None for one in recording.records)
        size = sum(len(one.data or b"") for one in recording.records)
        print(f"{len(recording.records)} records with {size} bytes, {flushes} of them flushes;", end=" ")
        print(f"{len(recording.lines)} lines told; {time.monotonic() - began:.1f} s", flush=True)
        began = time.monotonic()
        losses = draw_losses(recording.records, asked.states, random.Random(plan.seed))
        failures = check(place, recording, losses, asked.keep)
        print(f"{len(losses)} states, {time.monotonic() - began:.1f} s")
        told = [{"loss": str(one.loss), "error": one.error[-3000:]} for one in failures]
        print(json.dumps({"states": len(losses), "failures": told}))
        return 1 if failures else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
