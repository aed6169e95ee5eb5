"""Random programs run on a node and on a real RabbitMQ 3.10, and compared step by step.

    python -m tests.support.differential [--seeds 0:1000] [--shorten] [--workers 4]

starts a broker, runs the programs of the seeds and prints those that differ, with ``--shorten`` as short as they get.
What is known to differ (docs/coming-from.md) is not in the programs.
A difference must show twice: the broker does what it does in processes of its own, which a loaded machine may hold up.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

from tests.support.broker import Broker
from tests.support.differential_program import Program, Step, program_of, shortened
from tests.support.differential_sides import Here, TooSlowError
from tests.support.differential_there import There

_runs = itertools.count(1)
SLOWER = (1.0, 3.0, 10.0)
"""A machine that is held up for longer than what is short gets a longer time, on both sides."""


@attrs.frozen
class Difference:
    """The first step after which the two sides are not the same."""

    step: Step
    what: str
    here: Any
    there: Any

    def __str__(self) -> str:
        return f"{self.what} after step {self.step}\n   here:  {self.here}\n   there: {self.there}"


def first_difference(broker: Broker, program: Program, patience_s: float = 1.0) -> Difference | None:
    """Run a program on both sides. Raise :class:`TooSlowError` if that cannot be done in time.

    ``patience_s``: how long the broker may take to get to the expected state.
    """
    for scale in SLOWER:
        prefix = f"{next(_runs)}-"
        there = There(broker, prefix, scale)
        here = Here(prefix, scale)
        try:
            return _compare(program_at(program, scale), here, there, patience_s)
        except TooSlowError:
            if scale == SLOWER[-1]:
                raise
        finally:
            here.close()
            there.close()
    raise RuntimeError("a loop that always returns or raises")


def program_at(program: Program, scale: float) -> Program:
    """The same with every short time as long."""
    if scale == 1.0:
        return program

    def longer(step: Step) -> Step:
        arguments = step.arguments.get("arguments")
        if step.verb != "declare" or not arguments:
            return step
        scaled = {
            name: round(value * scale) if name in ("x-message-ttl", "x-expires") else value
            for name, value in arguments.items()
        }
        return attrs.evolve(step, arguments={**step.arguments, "arguments": scaled})

    return tuple(map(longer, program))


def _compare(program: Program, here: Here, there: There, patience_s: float) -> Difference | None:
    for step in program:
        found = _compare_step(step, here, there, patience_s)
        if found is None and (following := here.follow_up(step)) is not None:
            found = _compare_step(following, here, there, patience_s)
        if found is not None:
            return found
    return None


def _compare_step(step: Step, here: Here, there: There, patience_s: float) -> Difference | None:
    outcomes = here.do(step), there.do(step)
    if outcomes[0] != outcomes[1]:
        return Difference(step, "outcome", *outcomes)
    expected = here.look()
    seen = there.look(expected, patience_s)
    for what, value in expected.items():
        if seen[what] != value:
            return Difference(step, what, value, seen[what])
    return None


def differs(broker: Broker, program: Program, patience_s: float = 1.0) -> Difference | None:
    """What differs each of two times."""
    return first_difference(broker, program, patience_s) and first_difference(broker, program, patience_s)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", metavar="FIRST:END")
    parser.add_argument("--shorten", action="store_true")
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args(arguments)
    first, end = map(int, options.seeds.split(":"))
    different = too_slow = 0
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, Broker(Path(directory)) as broker:
        broker.start()
        with ThreadPoolExecutor(options.workers) as pool:
            for found in pool.map(lambda seed: report(broker, seed, options.shorten), range(first, end)):
                too_slow += found.too_slow
                if found.text:
                    different += 1
                    print(found.text, flush=True)
    took_s = time.monotonic() - began_s
    print(f"{end - first} programs: {different} differ, {too_slow} could not be timed; {took_s:.0f} s")
    return 1 if different else 0


@attrs.frozen
class Report:
    """What came of a seed."""

    seed: int
    text: str = ""
    """How the sides differ; empty if they are the same."""
    too_slow: bool = False
    """Whether no comparison was possible, because time passed that the program does not know of."""


def report(broker: Broker, seed: int, shorten: bool = False) -> Report:
    """Run the program of a seed; a difference has to show twice."""
    program = program_of(seed)
    try:
        difference = differs(broker, program)
    except TooSlowError:
        return Report(seed, too_slow=True)
    if difference is None:
        return Report(seed)
    lines = [f"seed {seed}: {difference}"]
    if shorten:
        program = shortened(program, lambda part: differs(broker, part, 0.3) is not None)
        lines += [f"shortened: {differs(broker, program)}", *(f"   {step}" for step in program)]
    return Report(seed, "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
