"""Shared directories whose processes are killed: what was confirmed is there, in order, whatever process hosted it."""

from __future__ import annotations

import contextlib
import enum
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

import warren
from tests.support.effort import times
from tests.support.promises import Fates, Name, check_order
from tests.support.sharing_tools import WINDOW, Member, host_of, next_host
from tests.support.tried import Count, Tried
from tests.support.waiting import wait_until

PUBLISHERS = 3
CONSUMERS = 2
KILLS = times(12, nightly=150)
"""How many each of the slow tests does."""


class Round(enum.IntEnum):
    """Which processes are killed together."""

    HOST = 0
    TAKEOVER = 1
    """The host, and the next one as soon as it has the lock."""
    TOGETHER = 2
    """The host and half of the guests in the same moment."""
    GUEST = 3


@attrs.define
class Kills:
    """Processes of one directory, some of them killed, and what they have reported."""

    directory: Path
    stack: contextlib.ExitStack
    role: str = "publish"
    """What the members other than consumers do."""
    members: list[tuple[str, Member]] = attrs.Factory(list)
    """The running ones: with a publisher's stream, or ``""`` for a consumer."""
    messages: Fates[Name] = attrs.Factory(Fates)
    """What publishers have begun to publish, and what they know to be safe."""
    pauses: list[float] = attrs.Factory(list)
    """How long publishers waited for their confirms."""
    got: list[list[str]] = attrs.Factory(list)
    """What each consumer has reported."""
    takeovers: int = 0
    kills: int = 0
    _streams: itertools.count[int] = attrs.Factory(itertools.count)

    def start(self, stream: str | None = None) -> Member:
        if stream is None:
            stream = str(next(self._streams))
        arguments = (self.role, stream, 0) if stream else ("consume",)
        member = self.stack.enter_context(Member(self.directory, *arguments, forked=True))
        self.members.append((stream, member))
        return member

    def kill(self, number: int) -> None:
        """Kill some of them (:class:`Round`), and start others of their kind."""
        for stream, member in self.members:
            member.hear("confirmed" if stream else "")
        host = host_of(self.directory)
        hosts: list[tuple[str, Member]] = []
        guests: list[tuple[str, Member]] = []
        for one in self.members:
            (hosts if one[1].process.pid == host else guests).append(one)
        turn = number // len(Round) % len(guests)
        guests = guests[turn:] + guests[:turn]
        round_ = Round(number % len(Round))
        match round_:
            case Round.HOST | Round.TAKEOVER:
                victims = hosts
            case Round.TOGETHER:
                victims = [*hosts, *guests[: len(guests) // 2]]
            case Round.GUEST:
                victims = guests[:1]
        for _, member in victims:
            member.process.kill()
        if round_ is Round.TAKEOVER:
            taker = next_host(self.directory, host)
            victims = [*victims, *(one for one in guests if one[1].process.pid == taker)]
            victims[-1][1].process.kill()
        self.takeovers += len(victims) if round_ is Round.TAKEOVER else round_ is not Round.GUEST
        self.kills += len(victims)
        for victim in victims:
            victim[1].kill()
            self._ended(*victim)
        for stream, _ in victims:
            self.start(None if stream else "")

    def end(self) -> None:
        """Let all end by themselves, publishers first."""
        for stream, member in list(self.members):
            if stream:
                member.hear("confirmed")
        for stream, member in sorted(self.members, key=lambda one: not one[0]):
            member.end()
            self._ended(stream, member)

    def _ended(self, stream: str, member: Member) -> None:
        self.members.remove((stream, member))
        if not stream:
            self.got.append([line for line in member.lines if line.startswith("got")])
        else:
            last = member.confirmed()
            count = 0 if last is None else last + 1
            self.messages.made |= {(stream, number) for number in range(count)}
            self.messages.begun |= {(stream, number) for number in range(count + WINDOW)}
            times = [float(line.split()[2]) for line in member.lines if line.startswith("confirmed")]
            self.pauses += [after - before for before, after in itertools.pairwise(times)]


def check_kills(place: Path, kills: int, tried: Count, *, role: str = "publish", consumers: int = 0) -> list[float]:
    """Kill ``kills`` processes, or a few more, while all publish and consume. Return how long confirms took."""
    with contextlib.ExitStack() as stack:
        run = Kills(place / "data", stack, role)
        run.start().hear("ready")
        for stream in [None] * (PUBLISHERS - 1) + [""] * consumers:
            run.start(stream)
        for number in itertools.count():
            run.kill(number)
            if run.kills >= kills:
                break
        run.end()
    check_messages(run, check_got(run))
    if role == "mixed":
        check_other_ways(run)
    tried(Tried.KILLS, run.kills)
    return sorted(run.pauses)


def check_got(run: Kills) -> set[Name]:
    """What consumers got: in order what came once, and flagged what had come before."""
    times: Counter[str] = Counter()
    fresh: Counter[str] = Counter()
    for _, body, redelivered in map(str.split, itertools.chain(*run.got)):
        times[body] += 1
        fresh[body] += redelivered == "False"
    for lines in run.got:
        once = [body for _, body, flag in map(str.split, lines) if times[body] == 1 and flag == "False"]
        check_order("got", map(name_of, once))
    # What a host may have kept and had not confirmed is sent again to the next one: that is another message.
    twice = sum(count - 1 for count in fresh.values() if count)
    assert twice <= run.takeovers * PUBLISHERS * WINDOW
    return set(map(name_of, times))


def check_messages(run: Kills, got: set[Name]) -> None:
    """Every message that was confirmed was got or is there, and of each stream the first of each come in order."""
    with warren.open(run.directory) as node:
        found = dict.fromkeys(name_of(body.decode()) for body in bodies_in(node, run.role))
    if not run.got:
        check_order("messages", found)
    run.messages.check("messages", got | set(found))


def bodies_in(node: warren.Node, role: str) -> Iterator[bytes]:
    """What is there, in order."""
    if role == "append":
        yield from (record.body for record in node.topic("work").read("check"))
        return
    yield from taken_from(node.queue("work"))


def taken_from(queue: warren.Queue) -> Iterator[bytes]:
    while batch := queue.get_many(1000, auto_ack=True):
        yield from (delivery.body for delivery in batch)


def check_other_ways(run: Kills) -> None:
    """What was confirmed is in the topic, has come or will come after its delay, and has its key, once."""
    with warren.open(run.directory) as node:
        later = node.queue("later")
        wait_until(lambda: not later.stats()["messages_delayed"], "all come")
        places = {
            "topic": bodies_in(node, "append"),
            "later": taken_from(later),
            "keyed": taken_from(node.queue("keyed")),
        }
        for place, bodies in places.items():
            names = [name_of(body.decode()) for body in bodies]
            run.messages.check(place, names, may_repeat=place != "keyed")


def name_of(body: str) -> Name:
    stream, number = body.split(":")
    return stream, int(number)


@pytest.mark.slow
def test_what_was_confirmed_survives_hosts_that_are_killed(tmp_path: Path, tried: Count) -> None:
    check_kills(tmp_path, times(5, nightly=30), tried)


@pytest.mark.slow
def test_and_so_does_a_mixed_load(tmp_path: Path, tried: Count) -> None:
    check_kills(tmp_path, KILLS, tried, role="mixed", consumers=1)


@pytest.mark.slow
def test_and_many_of_them(tmp_path: Path, tried: Count) -> None:
    pauses = check_kills(tmp_path, KILLS, tried, consumers=CONSUMERS)
    print("pauses:", [round(one, 3) for one in pauses[-60:]])
