"""Programs that are ended, or interrupted, in the middle of a verb: each verb of a node and of a guest."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NoReturn

import warren
from tests.support.ends import QUEUE, TOPIC, End, Kept, Program, add, body_of, name_of
from tests.support.ends_of_programs import ERROR
from tests.support.ends_of_workers import start
from warren.actors.runtime.future import Confirm


class Scene:
    """A node with messages, and what a program has taken of it."""

    def __init__(self, p: Program, stream: str) -> None:
        self.p = p
        self.stream = stream
        self.number = 0
        self.node = p.open()
        self.queue = self.node.queue("q")
        self.topic = self.node.topic("t")
        self.reader = self.topic.reader("g")
        self.taken: list[warren.Delivery] = []

    def fill(self) -> None:
        """Messages to take."""
        self.p.publish_many(self.queue, 0, 99, "f").wait()
        for number in range(20):
            self.p.append(self.topic, number, "f")

    def next(self) -> int:
        self.number += 1
        return self.number

    def more(self) -> warren.Delivery | None:
        """One that was delivered and is not settled."""
        if not self.taken:
            self.taken = list(self.queue.get_many(10))
        return self.taken.pop() if self.taken else None


def _publish_many(s: Scene) -> Confirm:
    first = s.next()
    s.number += 9
    return s.p.publish_many(s.queue, first, s.number, s.stream)


def _get(s: Scene) -> None:
    delivery = s.queue.get()
    if delivery is not None:
        delivery.nack()


def _ack(s: Scene) -> None:
    if (delivery := s.more()) is not None:
        s.p.ack(delivery)


def _ack_many(s: Scene) -> None:
    found = s.queue.get_many(10)
    names = [name_of(one.body) for one in found]
    for name in names:
        s.p.tell("a", QUEUE, *name)
    s.queue.ack(found)
    for name in names:
        s.p.tell("g", QUEUE, *name)


def _nack(s: Scene) -> None:
    if (delivery := s.more()) is not None:
        delivery.nack()


def _retry(s: Scene) -> None:
    if (delivery := s.more()) is not None:
        delivery.retry(0.01)


def _consume(s: Scene) -> None:
    with s.queue.consume(prefetch=5, timeout=0.001) as consumer:
        for _, delivery in zip(range(7), consumer, strict=False):
            delivery.nack()


def _declare(s: Scene) -> None:
    s.node.queue(f"{s.stream}-other", arguments={"x-max-length": 5})
    s.node.delete_queue(f"{s.stream}-other")


def _read(s: Scene) -> None:
    s.reader.read(5)
    s.reader.commit()


def _transaction(s: Scene) -> None:
    stream, number = f"{s.stream}-half", s.next()  # of its own: a commit takes its place when it is carried out
    prepared = s.topic.prepare(body_of(stream, number), group="p", queue=0)
    s.p.tell("h", TOPIC, stream, number)
    s.p.tell("b", TOPIC, stream, number)
    prepared.commit()
    s.p.tell("p", TOPIC, stream, number)
    stream = f"{s.stream}-undone"
    s.topic.prepare(body_of(stream, number), group="p", queue=0).rollback()
    s.p.tell("r", TOPIC, stream, number)


def _close_and_open(s: Scene) -> None:
    s.node.close()
    again = Scene(s.p, s.stream)
    s.node, s.queue, s.topic, s.reader, s.taken = again.node, again.queue, again.topic, again.reader, []


VERBS: Final[dict[str, Callable[[Scene], object]]] = {
    "publish": lambda s: s.p.publish(s.queue, s.next(), s.stream),
    "publish, and wait": lambda s: s.p.publish_safe(s.queue, s.next(), s.stream),
    "publish_many": _publish_many,
    "publish later": lambda s: s.p.publish(s.queue, s.next(), s.stream, delay=3600),
    "publish with a key": lambda s: s.p.publish(s.queue, s.next(), s.stream, unique=True),
    "get": _get,
    "get_many, ack": _ack_many,
    "ack": _ack,
    "nack": _nack,
    "retry": _retry,
    "consume": _consume,
    "declare, delete": _declare,
    "sync": lambda s: (s.p.publish(s.queue, s.next(), s.stream), s.queue.sync()),
    "append": lambda s: s.p.append(s.topic, s.next(), s.stream),
    "read, commit": _read,
    "a transaction": _transaction,
    "stats": lambda s: (s.node.stats(), len(s.queue)),
    "close, open": _close_and_open,
}


# ── signals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class TimeLimitError(Exception):
    """As a task queue's soft time limit."""


def _raise_limit(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeLimitError


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(3)


def _strike(p: Program, *numbers: int) -> None:
    """Send this process signals, one after the other, each at a random moment."""
    for number in numbers:
        time.sleep(p.rng.uniform(0, 0.01))
        os.kill(os.getpid(), number)


_RAISED: Final = {KeyboardInterrupt: signal.SIGINT, TimeLimitError: signal.SIGUSR2, SystemExit: signal.SIGTERM}


def _strike_again_where_it_is_dropped(p: Program) -> None:
    """What a signal's handler raises in a destructor Python drops (docs/failures.md): the signal is sent again."""

    def dropped(what: sys.UnraisableHookArgs) -> None:
        number = _RAISED.get(what.exc_type)
        if number is None:
            sys.__unraisablehook__(what)
        else:
            start(lambda: _strike(p, number), daemon=True)

    sys.unraisablehook = dropped


def _struck(p: Program, verb: str, *numbers: int) -> NoReturn:
    """Do a verb again and again, until a signal ends that."""
    scene = Scene(p, "v")
    scene.fill()
    start(lambda: _strike(p, *numbers), daemon=True)
    while True:
        VERBS[verb](scene)


def _interrupted(p: Program, verb: str) -> None:
    _strike_again_where_it_is_dropped(p)
    _struck(p, verb, signal.SIGINT)


def _interrupted_twice(p: Program, verb: str) -> None:
    _struck(p, verb, signal.SIGINT, signal.SIGINT)


def _exited(p: Program, verb: str) -> None:
    signal.signal(signal.SIGTERM, _exit)
    _strike_again_where_it_is_dropped(p)
    _struck(p, verb, signal.SIGTERM)


def _terminated(p: Program, verb: str) -> None:
    _struck(p, verb, signal.SIGTERM)


def _hung_up(p: Program, verb: str) -> None:
    _struck(p, verb, signal.SIGHUP)


STRIKES: Final = 6
SOME: Final = ("publish", "publish, and wait", "get_many, ack", "declare, delete", "a transaction", "close, open")
"""The works that hard ends are tried with."""


def _went_on(p: Program, verb: str) -> None:
    """Catch what signals raise, and go on with all verbs."""
    signal.signal(signal.SIGUSR2, _raise_limit)
    _strike_again_where_it_is_dropped(p)
    scene = Scene(p, "v")
    scene.fill()
    for number in range(STRIKES):
        try:
            start(lambda: _strike(p, signal.SIGINT if number % 2 else signal.SIGUSR2), daemon=True)  # noqa: B023
            while True:
                VERBS[verb](scene)
        except (KeyboardInterrupt, TimeLimitError):
            pass
        if verb == "close, open":
            with contextlib.suppress(warren.errors.WarrenError):
                scene.node.close()
            scene = Scene(p, f"v{number}")
    scene.taken = []
    after = Scene.__new__(Scene)
    after.__dict__ |= scene.__dict__ | {"stream": "after"}
    for name, use in VERBS.items():
        if name != "close, open":
            use(after)
    p.publish_safe(after.queue, after.next(), "after")
    after.node.close()


_ROWS: Final[list[tuple[str, str, Callable[[Program, str], object], dict[str, Any]]]] = [
    (
        "SIGINT in a verb",
        "Ctrl-C that is not caught, in any verb",
        _interrupted,
        {"code": -signal.SIGINT, "says": ERROR.format("KeyboardInterrupt")},
    ),
    ("SIGINT in a verb, caught", "Ctrl-C, or a time limit, that is caught: the program goes on", _went_on, {}),
    (
        "SIGTERM with a handler",
        "SIGTERM with a handler that raises (`sys.exit(3)`), in any verb",
        _exited,
        {"code": 3},
    ),
    (
        "two SIGINTs",
        "a second Ctrl-C, while the first one ends the program",
        _interrupted_twice,
        {"code": -signal.SIGINT, "says": ".*KeyboardInterrupt.*", "kept": Kept.CONFIRMED, "leaves_lock": None},
    ),
    (
        "SIGTERM",
        "SIGTERM that the program does not handle, in any verb",
        _terminated,
        {"code": -signal.SIGTERM, "kept": Kept.CONFIRMED, "leaves_lock": None},
    ),
    (
        "SIGHUP",
        "SIGHUP that the program does not handle: its terminal is closed",
        _hung_up,
        {"code": -signal.SIGHUP, "kept": Kept.CONFIRMED, "leaves_lock": None},
    ),
]


BEGIN_S: Final = 1.0
"""Their verbs have begun by then, or a machine is very busy."""


def _daemons(p: Program) -> None:
    """Every verb in a daemon thread, each until it gets the node's end."""
    first = Scene(p, "m")
    first.fill()
    begun: list[threading.Event] = []

    def work(name: str, event: threading.Event) -> None:
        scene = Scene.__new__(Scene)
        scene.__dict__ |= first.__dict__ | {"stream": name.replace(" ", "").replace(",", ""), "taken": []}
        try:
            scene.reader = first.topic.reader(f"g-{scene.stream}")
            while True:
                handed_over = VERBS[name](scene)
                if isinstance(handed_over, Confirm):
                    handed_over.wait()  # others have a turn, too
                event.set()
        except warren.errors.ClosedError:
            pass
        finally:
            event.set()

    for name in VERBS:
        if name != "close, open":
            begun.append(threading.Event())
            start(lambda name=name, event=begun[-1]: work(name, event), daemon=True)  # type: ignore[misc]
    deadline = time.monotonic() + BEGIN_S
    for event in begun:
        event.wait(max(0.0, deadline - time.monotonic()))
    time.sleep(p.rng.uniform(0, 0.02))


def _all() -> Iterator[End]:
    for shares, of in ((False, ""), (True, ", of a guest")):
        for name, what, run, promise in _ROWS:
            for verb in SOME if promise.get("kept") is Kept.CONFIRMED else VERBS:
                yield End(
                    name + of,
                    what + of,
                    lambda p, run=run, verb=verb: run(p, verb),  # type: ignore[misc]
                    verb,
                    shares=shares,
                    draws=True,
                    **promise,
                )
        what = f"daemon threads are in every verb{of}: they get `ClosedError`"
        yield End(f"daemons in every verb{of}", what, _daemons, shares=shares, draws=True, races=True)


for _end in _all():
    add(_end)
