"""Random AMQP programs run on two servers, and what comes compared frame by frame, reply codes and texts included.

    python -m tests.support.amqp_differential [--seeds 0:1000] [--shorten] [--both-real]

starts a RabbitMQ and a warren, runs the programs of the seeds on both and prints those that differ, with ``--shorten``
as short as they get. ``--both-real`` runs them on RabbitMQ twice: what differs there is not a fault of warren's.

A difference is one that shows whenever it is tried: a real broker does what it does in processes of its own, and some
of what a program sees depends on their order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from tests.support.amqp_administration import AdministeringAuthor
from tests.support.amqp_driver import VHOSTS, Driver, Transcript
from tests.support.amqp_program import Author
from tests.support.broker import Broker
from tests.support.differential_program import Program, Step, shortened
from tests.support.management_tools import Api
from tests.support.server_tools import served
from warren.management import ManagementSettings
from warren.server import ServerSettings

TRIES: Final = 4
"""So often a difference has to show."""


@attrs.frozen
class Difference:
    """The first step after which two transcripts are not the same."""

    step: Step
    what: str
    here: Any
    there: Any

    def __str__(self) -> str:
        return f"{self.what} after step {self.step}\n   here:  {self.here}\n   there: {self.there}"


@attrs.frozen
class Side:
    """One of the two servers."""

    port: int
    api: Api


def program_of(seed: int) -> Program:
    """The program of a seed: every other one has several users, and an operator."""
    return (AdministeringAuthor if seed % 2 else Author)(seed).write()


def transcript(side: Side, program: Program) -> Transcript | str:
    """The transcript of a program, or why it is missing."""
    try:
        return Driver(side.port, side.api).run(program)
    except (AssertionError, TimeoutError, OSError) as error:
        return f"{type(error).__name__}: {error}"


def first_difference(program: Program, here: Transcript | str, there: Transcript | str) -> Difference | None:
    """Where the two part."""
    if isinstance(here, str) or isinstance(there, str):
        return None if here == there else Difference(program[-1], "the run", _run(here), _run(there))
    for step, ours, theirs in zip(program, here, there, strict=True):
        for what in sorted(ours.keys() | theirs.keys()):
            if ours.get(what) != theirs.get(what):
                return Difference(step, what, ours.get(what), theirs.get(what))
    return None


def _run(told: Transcript | str) -> str:
    return told if isinstance(told, str) else "to its end"


def differs(here: Side, there: Side, program: Program, tries: int = TRIES) -> Difference | None:
    """A difference between the servers at two ports that shows each time, whatever each of them chose."""
    ours: list[Transcript | str] = []
    theirs: list[Transcript | str] = []
    found: Difference | None = None
    for _ in range(tries):
        ours.append(transcript(here, program))
        theirs.append(transcript(there, program))
        if any(one in theirs for one in ours):
            return None
        found = found or first_difference(program, ours[0], theirs[0])
    return found


def report(here: Side, there: Side, seed: int, shorten: bool = False) -> str:
    """How the servers differ in the program of a seed; empty if they do not."""
    program = program_of(seed)
    found = differs(here, there, program)
    if found is None:
        return ""
    lines = [f"seed {seed}: {found}"]
    if shorten:

        def fails(part: Program) -> bool:
            other = differs(here, there, part, 2)
            return other is not None and other.what.split()[-1] == found.what.split()[-1]

        program = shortened(program, fails)
        lines += [f"shortened: {differs(here, there, program)}", *(f"   {step}" for step in program)]
    return "\n".join(lines)


@contextmanager
def real_server(directory: Path) -> Iterator[Side]:
    """A RabbitMQ."""
    with Broker(directory, management=True) as broker:
        broker.start()
        with _prepared(broker.amqp_port, f"http://127.0.0.1:{broker.management_port}") as side:
            yield side


@contextmanager
def own_server(directory: Path) -> Iterator[Side]:
    """A warren's server."""
    with served(directory, ServerSettings(management=ManagementSettings(management_tcp_port=0))) as found:
        assert found.server.management is not None
        with _prepared(found.port, found.server.management.url) as side:
            yield side


@contextmanager
def _prepared(port: int, url: str) -> Iterator[Side]:
    """With the vhosts that programs use."""
    with Api(url) as api:
        for vhost in VHOSTS[1:]:
            api.ask("PUT", f"/vhosts/{vhost}")
            api.ask("PUT", f"/permissions/{vhost}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        yield Side(port, api)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", metavar="FIRST:END")
    parser.add_argument("--shorten", action="store_true")
    parser.add_argument("--both-real", action="store_true")
    options = parser.parse_args(arguments)
    first, end = map(int, options.seeds.split(":"))
    different = 0
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        there = stack.enter_context(real_server(Path(directory) / "real"))
        here = there if options.both_real else stack.enter_context(own_server(Path(directory) / "own"))
        for seed in range(first, end):
            text = report(here, there, seed, options.shorten)
            if text:
                different += 1
                print(text, flush=True)
    print(f"{end - first} programs: {different} differ; {time.monotonic() - began_s:.0f} s")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
