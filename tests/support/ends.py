"""Ends of an interpreter: how a program ends, and what is promised of that, in one table (:data:`ENDS`).

The programs stand in ``ends_of_*.py``, which put them into the table by :func:`end`. Each gets a :class:`Program`, by
which it publishes and says what it does, a line at a time, in a file beside its directory:

==================  ==================================================================================================
``b PLACE S M N``   messages of stream S with the numbers from M to N are about to be published
``p PLACE S M N``   the verb that published them has returned
``c PLACE S M N``   they are confirmed
``a PLACE S N``     this one is about to be acked
``g PLACE S N``     its ack has returned
``h PLACE S N``     this one is prepared: there, or a half message that is not decided
``r PLACE S N``     the rollback of one that was prepared has returned
==================  ==================================================================================================

A place is ``q`` (the queue of that name), ``t`` (the topic) or ``d`` (what waits for the queue).
"""

from __future__ import annotations

import enum
import importlib
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import attrs

import warren
from tests.support.promises import Fates, Name, check_order
from warren.actors.runtime.future import Confirm
from warren.actors.topics.log_intake import AppendConfirm

LIMIT_S: Final = 120.0
"""How long an end may take, from its program's first line on. It tells an end that never comes from one on a busy
machine, and measures nothing."""
QUEUE, TOPIC, DELAYED, HALF = "q", "t", "d", "half"


class Kept(enum.Enum):
    """What is there afterwards."""

    ALL = "everything published; nothing acked"
    CONFIRMED = "everything confirmed"


@attrs.frozen
class End:
    """One way to end."""

    name: str
    """Its row in the table."""
    what: str
    """What the program does, for the page."""
    run: Callable[[Program], object]
    case: str = ""
    """The case, if a row has several."""
    kept: Kept = Kept.ALL
    code: int = 0
    """As :func:`os.waitstatus_to_exitcode` has it."""
    says: str = ""
    """A regular expression for all that it writes to stderr: the program's own errors."""
    leaves_lock: bool | None = False
    """Whether the lock file is left (``None``: perhaps), without a holder."""
    quick: bool = False
    """Whether a quick run tries it."""
    draws: bool = False
    """Whether it has another course each time."""
    races: bool = False
    """Whether it acks in one thread while another closes the node: such an ack may come to nothing."""
    twice: bool = False
    """Whether what was on its way may be there twice, as a guest sends it again to the next host."""
    shares: bool = False
    """Whether another process hosts its directory."""

    @property
    def id(self) -> str:
        return f"{self.name}: {self.case}" if self.case else self.name


ENDS: Final[dict[str, End]] = {}


def end(what: str, **promise: Any) -> Callable[[Callable[[Program], object]], Callable[[Program], object]]:
    """Put a program into the table, under its function's name."""

    def put(run: Callable[[Program], object]) -> Callable[[Program], object]:
        add(End(run.__name__.strip("_").replace("_", " "), what, run, **promise))
        return run

    return put


def add(found: End) -> None:
    if found.id in ENDS:
        raise ValueError(f"two ends are called {found.id}")
    ENDS[found.id] = found


def all_ends() -> dict[str, End]:
    """The table with all programs: importing their modules puts them into it."""
    for module in ("loops", "workers", "programs", "verbs"):
        importlib.import_module(f"tests.support.ends_of_{module}")
    return ENDS


class Program:
    """What a program that ends has at hand. Can be sent to processes of its own."""

    def __init__(self, path: Path, seed: int, *, shares: bool = False) -> None:
        self.path = path
        self.shares = shares
        self.rng = random.Random(seed)

    def tell(self, *words: object) -> None:
        line = " ".join(map(str, words)) + "\n"
        report = os.open(report_of(self.path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(report, line.encode())
        os.close(report)

    def open(self, **settings: Any) -> warren.Node:
        """The node; what is not waited for is not synced within ten seconds."""
        return warren.open(self.path, sync_interval_ms=10_000, attach=False, **{"share": self.shares} | settings)

    def publish(self, queue: warren.Queue, number: int = 0, stream: str = "s", **options: Any) -> Confirm:
        place = DELAYED if options.get("delay") else QUEUE
        self.tell("b", place, stream, number, number)
        confirm = queue.publish(body_of(stream, number), **options)
        self.tell("p", place, stream, number, number)
        return confirm

    def publish_many(self, queue: warren.Queue, first: int, last: int, stream: str = "s", size: int = 0) -> Confirm:
        self.tell("b", QUEUE, stream, first, last)
        confirm = queue.publish_many([body_of(stream, number, size) for number in range(first, last + 1)])
        self.tell("p", QUEUE, stream, first, last)
        return confirm

    def append(self, topic: warren.Topic, number: int = 0, stream: str = "s") -> AppendConfirm:
        self.tell("b", TOPIC, stream, number, number)
        confirm = topic.append(body_of(stream, number), queue=0)
        self.tell("p", TOPIC, stream, number, number)
        return confirm

    def publish_safe(self, queue: warren.Queue, number: int = 0, stream: str = "s") -> None:
        self.publish(queue, number, stream).wait()
        self.tell("c", QUEUE, stream, number, number)

    def ack(self, delivery: warren.Delivery) -> None:
        stream, number = name_of(delivery.body)
        self.tell("a", QUEUE, stream, number)
        delivery.ack()
        self.tell("g", QUEUE, stream, number)


def report_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.report")


def body_of(stream: str, number: int, size: int = 0) -> bytes:
    """At least ``size`` bytes."""
    return f"{stream}:{number}:".encode().ljust(size, b".")


def name_of(body: bytes) -> Name:
    stream, number, rest = body.decode().split(":", 2)
    assert not rest.strip("."), body[:80]
    return stream, int(number)


STATES: Final = {"b": "begun", "p": "made", "c": "made", "a": "ending", "g": "ended"}
HALVES: Final = {"h": "made", "r": "ended"}


def fates_of(lines: Iterable[str], kept: Kept, *, races: bool = False) -> dict[str, Fates[Name]]:
    """What a program has said of each place, and of the half messages of the topic (:data:`HALF`)."""
    fates: dict[str, Fates[Name]] = {place: Fates() for place in (QUEUE, TOPIC, DELAYED, HALF)}
    left_out = {"p", "g"} if kept is Kept.CONFIRMED else {"g"} if races else set()
    for line in lines:
        kind, place, stream, *numbers = line.split()
        names = {(stream, number) for number in range(int(numbers[0]), int(numbers[-1]) + 1)}
        if kind in HALVES:
            getattr(fates[HALF], HALVES[kind]).update(names)
        elif kind not in left_out:
            getattr(fates[place], STATES[kind]).update(names)
    return fates


def check_node(
    node: warren.Node, lines: Iterable[str], kept: Kept, *, twice: bool = False, races: bool = False
) -> None:
    """Everything is there that ``lines`` promise, and nothing else; ``twice``, ``races``: as an :class:`End` has
    them."""
    fates = fates_of(lines, kept, races=races)
    assert any(place.begun for place in fates.values()), "it did nothing"
    queue = node.queue("q")
    there = {
        QUEUE: [name_of(message.body) for message in queue.browse()],
        TOPIC: [name_of(record.body) for record in node.topic("t").read("check")] if fates[TOPIC].begun else [],
        DELAYED: [name_of(message.body) for message in queue.delayed(1_000_000)],
    }
    halves = {name_of(one.message.body) for one in node.pending_transactions()}
    committed = set(there[TOPIC])
    assert not (lost := fates[HALF].missing(halves | committed)), f"prepared, and neither there nor open: {lost}"
    if kept is Kept.ALL and not twice:
        decided = committed | fates[HALF].ended
        assert not (both := halves & decided), f"decided, and to be decided again: {both}"
    for place, found in there.items():
        fates[place].check(f"messages of {place}", found, may_repeat=twice)
        check_order(f"messages of {place}", found)
