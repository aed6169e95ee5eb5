"""Shared directories whose processes are killed: what was confirmed is there, in order, whoever hosted it."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

import pytest

import warren
from tests.support.sharing_tools import Member, host_of

MEMBERS = 3


KILLS = int(os.environ.get("WARREN_KILLS", "12"))
"""How many the slow test does; a night has time for some hundreds."""


def check_kills(place: Path, kills: int, *, others: bool = False) -> list[float]:
    """Kill the host so often while all publish, every second time another one (``others``); how long confirms took."""
    directory = place / "data"
    confirmed: dict[str, int] = {}
    pauses: list[float] = []
    streams = iter(range(1_000_000))
    with contextlib.ExitStack() as stack:

        def start() -> tuple[str, Member]:
            stream = str(next(streams))
            return stream, stack.enter_context(Member(directory, "publish", stream, 0))

        members = [start()]
        members[0][1].hear("ready")
        members += [start() for _ in range(MEMBERS - 1)]
        for number in range(kills):
            for _, member in members:
                member.hear("confirmed")
            host = host_of(directory)
            victim = next(one for one in members if (one[1].process.pid == host) != (others and number % 2 == 1))
            victim[1].kill()
            members.remove(victim)
            if (last := victim[1].confirmed()) is not None:
                confirmed[victim[0]] = last
            members.append(start())
        for _, member in members:
            member.hear("confirmed")
        for stream, member in members:
            member.end()
            confirmed[stream] = member.confirmed() or 0
            times = [float(line.split()[2]) for line in member.lines if line.startswith("confirmed")]
            pauses += [after - before for before, after in itertools.pairwise(times)]
    check_messages(directory, confirmed)
    return sorted(pauses)


def check_messages(directory: Path, confirmed: dict[str, int]) -> None:
    """Every message that was confirmed is there, and of each stream the first of each come in order."""
    found: dict[str, dict[int, None]] = {}
    with warren.open(directory) as node:
        queue = node.queue("work")
        while batch := queue.get_many(1000, auto_ack=True):
            for delivery in batch:
                stream, number = delivery.body.decode().split(":")
                found.setdefault(stream, {})[int(number)] = None
    for stream, last in confirmed.items():
        numbers = list(found.get(stream, {}))
        assert numbers == sorted(numbers), f"stream {stream} is out of order"
        assert numbers[: last + 1] == list(range(last + 1)), f"of stream {stream} something is missing"


def test_what_was_confirmed_survives_hosts_that_are_killed(tmp_path: Path) -> None:
    check_kills(tmp_path, 2, others=True)


@pytest.mark.slow
def test_and_many_of_them(tmp_path: Path) -> None:
    pauses = check_kills(tmp_path, KILLS, others=True)
    print("pauses:", [round(one, 3) for one in pauses[-60:]])
