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
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import attrs

import warren
from warren.actors.runtime.future import Confirm
from warren.actors.topics.log_intake import AppendConfirm

LIMIT_S: Final = 120.0
"""How long an end may take, from its program's first line on. It tells an end that never comes from one on a busy
machine, and measures nothing."""
QUEUE, TOPIC, DELAYED = "q", "t", "d"


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


def name_of(body: bytes) -> tuple[str, int]:
    stream, number, rest = body.decode().split(":", 2)
    assert not rest.strip("."), body[:80]
    return stream, int(number)


Name = tuple[str, int]


class Said:
    """What a program has said of each place."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.begun: dict[str, set[Name]] = defaultdict(set)
        self.published: dict[str, set[Name]] = defaultdict(set)
        self.confirmed: dict[str, set[Name]] = defaultdict(set)
        self.ack_begun: dict[str, set[Name]] = defaultdict(set)
        self.acked: dict[str, set[Name]] = defaultdict(set)
        self.prepared: dict[str, set[Name]] = defaultdict(set)
        self.rolled_back: dict[str, set[Name]] = defaultdict(set)
        kinds = {"b": self.begun, "p": self.published, "c": self.confirmed, "a": self.ack_begun, "g": self.acked}
        kinds |= {"h": self.prepared, "r": self.rolled_back}
        for line in lines:
            kind, place, stream, *numbers = line.split()
            first, last = int(numbers[0]), int(numbers[-1])
            kinds[kind][place] |= {(stream, number) for number in range(first, last + 1)}


def check_node(node: warren.Node, said: Said, kept: Kept, *, twice: bool = False, races: bool = False) -> None:
    """Everything is there that was promised, and nothing else; ``twice``, ``races``: as an :class:`End` has them."""
    queue = node.queue("q")
    there = {
        QUEUE: [name_of(message.body) for message in queue.browse()],
        TOPIC: [name_of(record.body) for record in node.topic("t").read("check")] if said.begun[TOPIC] else [],
        DELAYED: [name_of(message.body) for message in queue.delayed(1_000_000)],
    }
    assert said.begun, "it did nothing"
    halves = {name_of(one.message.body) for one in node.pending_transactions()}
    committed = set(there[TOPIC])
    assert not (lost := said.prepared[TOPIC] - halves - committed), f"prepared, and neither there nor open: {lost}"
    if kept is Kept.ALL and not twice:
        decided = committed | said.rolled_back[TOPIC]
        assert not (both := halves & decided), f"decided, and to be decided again: {both}"
    for place, found in there.items():
        here = set(found)
        assert twice or len(here) == len(found), f"{place}: a message occurs twice"
        assert here <= said.begun[place]
        for stream in {stream for stream, _ in here}:
            numbers = [number for at, number in found if at == stream]
            assert numbers == sorted(numbers), f"{place}: stream {stream} is out of order"
        must = said.published[place] if kept is Kept.ALL else said.confirmed[place]
        assert not (lost := must - said.ack_begun[place] - here), f"{place}: {sorted(lost)[:20]} are lost"
        if kept is Kept.ALL and not races:
            assert not (back := said.acked[place] & here), f"{place}: {sorted(back)[:20]} were acked, and are there"
