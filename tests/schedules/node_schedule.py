"""A node under a scheduler: one program, one order of its threads' steps, and what is owed then.

The node is production code on production's :class:`~warren.actors.runtime.pool.ThreadPool`; its disk is in memory, its
clock is the scheduler's. Lines of the actors, and of what users' threads run, are steps.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs

import warren
from tests.schedules import broken
from tests.schedules.doubles import Lock, SteppedClock, Time, replace, stepped
from tests.schedules.programs import QUEUES, SMALL, Owed, Program, User, draw
from tests.schedules.scheduler import Scheduler
from tests.schedules.shrinking import shrunk
from tests.schedules.strategies import Choices, Chosen, Strategy, drawn
from tests.support.runtime_tools import DATA, forget_actors, hand_node
from warren import Queue
from warren.actors.node.node_context import NodeContext
from warren.actors.queue.intake import QueueDownError
from warren.actors.runtime.pool import ThreadPool
from warren.config import Config
from warren.errors import WarrenError
from warren.handles.node import Node
from warren.hosting.running_node import RunningNode
from warren.storage.memory import MemoryFileSystem
from warren.testing import Machine

_ACTORS: Final = str(Path(warren.actors.__file__).parent)
_USERS: Final = str(Path(warren.__file__).parent / "handles")
TRACED: Final = (
    *(f"{_ACTORS}/runtime/{name}" for name in ("pool", "pooled", "inbox", "future", "timer", "shared", "waiting")),
    *(
        f"{_ACTORS}/node/{name}"
        for name in ("gate", "backpressure", "admission", "store_actor", "node_", "running", "memory")
    ),
    *(f"{_ACTORS}/queue/{name}" for name in ("queue_", "early", "deliver", "shared", "intake")),
    *(f"{_ACTORS}/topics/{name}" for name in ("node_", "commit", "dispatch", "groups", "running")),
    *(f"{_ACTORS}/{name}" for name in ("vhost", "delays/vhost", "delays/delay")),
    *(f"{_USERS}/{name}" for name in ("channel", "consumer", "queue.py")),
    broken.__file__,
)


class _Failures(logging.Handler):
    """Keeps what was logged of actors that ended."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.unexpected: list[str] = []
        self.over = False

    def emit(self, record: logging.LogRecord) -> None:
        why = "" if not record.exc_info else logging.Formatter().formatException(record.exc_info)
        text = f"{record.getMessage()}\n{why}"
        if "cannot handle <object" not in text and not self.over:
            self.unexpected.append(text)


@contextlib.contextmanager
def logged() -> Iterator[_Failures]:
    logger, failures = logging.getLogger("warren"), _Failures()
    of_loops = logging.getLogger("asyncio")
    of_loops.disabled = True
    level, propagates = logger.level, logger.propagate
    logger.addHandler(failures)
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    try:
        yield failures
    finally:
        logger.removeHandler(failures)
        logger.propagate = propagates
        logger.setLevel(level)
        of_loops.disabled = False


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection during a run, so that an order can be repeated."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@attrs.define(eq=False)
class NodeSchedule:
    """One schedule of one program."""

    program: Program
    strategy: Strategy
    owed: Owed = attrs.Factory(Owed)
    choices: Choices = attrs.Factory(dict)
    steps: int = 0
    _running: RunningNode | None = None
    _files: MemoryFileSystem = attrs.Factory(lambda: MemoryFileSystem(random.Random(0)))

    def run(self) -> None:
        """Raises ``AssertionError`` where something is not as it is owed."""
        scheduler = Scheduler(self.strategy, traced=TRACED, patience_s=self.program.patience_s)
        for name in QUEUES:
            self.owed.queues[name].limited = "x-max-length" in self.program.arguments[name]
        with uncollected(), logged() as failures:
            with stepped(scheduler), contextlib.ExitStack() as undo:
                replace(undo, "warren.handles.consumer", "time", Time(scheduler))
                try:
                    self._run(scheduler)
                finally:
                    self.choices, self.steps = scheduler.choices, scheduler.step
                    disk = self._files.after_process_crash()
                    failures.over = True
                    self._end(scheduler)
                    failures.over = False
            assert not failures.unexpected, failures.unexpected[0]
            self._check_disk(disk)
            assert not failures.unexpected, failures.unexpected[0]

    def _end(self, scheduler: Scheduler) -> None:
        scheduler.end()
        if self._running is not None:
            if not self._running.closed:
                self._running.forget()
            forget_actors(self._running.pool)

    def _run(self, scheduler: Scheduler) -> None:
        program, machine = self.program, Machine()
        clock = SteppedClock(scheduler)
        nodes: list[Node] = []
        handles: dict[str, Queue] = {}

        def open_node() -> None:
            config = Config.of(None, sync=program.sync, attach=False, **SMALL)
            context = NodeContext(
                files=self._files,
                pool=ThreadPool(program.threads),
                clock=clock,
                random=random.Random(1).randbytes,
                settings=config.node,
                engine=config.engine,
                check_invariants=True,
            )
            self._running = RunningNode(context, DATA, config, probes=machine.probes())
            self._running.gate._lock = Lock(scheduler)  # type: ignore[assignment]
            nodes.append(Node(self._running))
            for name in QUEUES:
                handles[name] = nodes[0].queue(name, arguments=program.arguments[name])

        scheduler.spawn("open", open_node, needed=True)
        scheduler.run()
        scheduler.begin()
        for number, steps in enumerate(program.users):
            user = User(
                number,
                nodes[0],
                self.owed,
                scheduler.wait,
                scheduler.progress,
                machine,
                arguments=program.arguments,
                queues=handles if program.shares_handles else {},
            )
            scheduler.spawn(f"user {number}", lambda user=user, steps=steps: user.run(steps), needed=True)  # type: ignore[misc]
        scheduler.run()
        if program.ending != "kill":
            scheduler.spawn("end", lambda: self._close(nodes[0], scheduler), needed=True)
            scheduler.run()

    def _close(self, node: Node, scheduler: Scheduler) -> None:
        for confirm, _ in self.owed.confirms:
            with contextlib.suppress(WarrenError, RuntimeError):
                confirm.wait()
            scheduler.progress()
        for name in QUEUES if self.program.ending == "close" else ():
            counted, found = self._look(node, name, scheduler)
            is_still = not self.owed.queues[name].delayed
            assert counted == len(found) or not is_still, f"{name}: {counted} are counted, {len(found)} are there"
            self.owed.check(name, found)
            scheduler.progress()
        node.close()

    def _look(self, node: Node, name: str, scheduler: Scheduler) -> tuple[int, list[bytes]]:
        """The queue's count and its messages; ask again while it restarts after a failure."""
        while True:
            try:
                queue = node.queue(name, arguments=self.program.arguments[name])
                return len(queue), [one.body for one in queue.browse()]
            except QueueDownError:
                scheduler.wait(lambda: False, 0.001)  # for its restart, which may need no other turn

    def _check_disk(self, disk: MemoryFileSystem) -> None:
        """What the next process finds."""
        for name in QUEUES:
            if self.program.ending == "kill":
                self.owed.queues[name].fail()  # a crash may forget acks, too
        hand = hand_node(disk, attach=False, sync="os", **SMALL)
        try:
            for name in QUEUES:
                queue = hand.node.queue(name, arguments=self.program.arguments[name])
                self.owed.check(name, [one.body for one in queue.browse()])
            if self.owed.appended:
                found = [record.body for record in hand.node.topic("t", queues=2).read("check")]
                confirmed = [body for body, safe in self.owed.appended.items() if safe]
                assert not set(confirmed) - set(found), "appended, confirmed, and lost"
                assert len(found) == len(set(found)), "appended twice"
        finally:
            hand.forget()


Draw = Callable[[random.Random], Program]
"""Draws a program."""


def drawn_schedule(seed: int, draw_program: Draw = draw) -> NodeSchedule:
    """The program and the order of a seed."""
    rng = random.Random(seed)
    return NodeSchedule(draw_program(rng), drawn(rng))


def again(seed: int, choices: Choices, draw_program: Draw = draw) -> NodeSchedule:
    """The program of a seed, in this order."""
    return NodeSchedule(draw_program(random.Random(seed)), Chosen(choices))


def outcome(schedule: Any) -> str:
    """How a schedule ended: in nothing, or in an error."""
    try:
        schedule.run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def kind_of(outcome: str) -> str:
    """What two failures of one kind have in common."""
    return outcome[:60].partition("\n")[0]


def complaint(seed: int, schedule: Any, said: str, repeat: Callable[[int, Choices], Any]) -> str:
    """Describe a failed schedule: its seed, its program and the shortest order that could be found."""
    kind = kind_of(said)
    few = shrunk(schedule.choices, lambda choices: kind_of(outcome(repeat(seed, choices))) == kind)
    return f"seed {seed}, {schedule.program}\n{said}\nand in this order, too: {few}"
