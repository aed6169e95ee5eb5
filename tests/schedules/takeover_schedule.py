"""Processes of a shared directory under a scheduler, some of them dying: who hosts, and what is left.

Each process is a user's thread that opens the directory and works, and all the threads that production starts for it.
The directory, its lock file and its socket are real (:mod:`tests.schedules.sockets`). What a schedule owes:

* no two processes that live host the node at once;
* there always is a host: every living process comes to its end, within ten seconds of the clock that stands still;
* messages that were confirmed and not acked are there;
* each process's messages are there in the order in which they were handed over, but for those that come twice.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import attrs

import warren
import warren.client.shared_directory
import warren.server.channels.guest_calls  # once, and not in a schedule
from tests.schedules import sockets
from tests.schedules.doubles import SteppedClock, Time, replace, stepped
from tests.schedules.node_schedule import logged, uncollected
from tests.schedules.programs import name_of
from tests.schedules.scheduler import Scheduler
from tests.schedules.strategies import Choices, Chosen, Strategy, drawn
from tests.support.promises import Fates, check_order
from tests.support.runtime_tools import forget_actors
from warren.actors.runtime.loop_thread import LoopThread
from warren.errors import WarrenError
from warren.handles import node as node_module
from warren.hosting import open_nodes
from warren.hosting.running_node import RunningNode

_WARREN: Final = str(Path(warren.__file__).parent)
_ACTORS: Final = str(Path(warren.actors.__file__).parent)
TRACED: Final = (
    *(
        f"{_WARREN}/client/{name}"
        for name in ("shared_directory", "link", "sending", "handshake", "remote", "channels")
    ),
    *(f"{_ACTORS}/{name}" for name in ("runtime/leader_follower", "node/node_socket", "runtime/loop_thread")),
    *(f"{_WARREN}/server/{name}" for name in ("server.py", "directory_socket")),
    f"{_WARREN}/hosting/running_node",
)
STEPS: Final = (500, 2000, 6000, 12_000)
"""A process dies within this many steps."""


@attrs.frozen
class Life:
    """What one process does: its rounds of each kind, and how it ends."""

    works: list[tuple[str, int]]
    ending: str
    """``close``, ``stay`` (it closes when all others are through), or ``die`` at a step."""
    step: int


def draw(rng: random.Random) -> list[Life]:
    """Two or three processes; the last one lives."""
    lives: list[Life] = []
    for number in range(count := rng.choice([2, 2, 3])):
        kinds = ["publish", "publish", "publish", "consume", "get", "len"]
        works = [(rng.choice(kinds), rng.randint(1, 4)) for _ in range(rng.randint(1, 3))]
        ending = rng.choice(["close", "die", "die"]) if number < count - 1 else "stay"
        lives.append(Life(works, ending, rng.randrange(rng.choice(STEPS))))
    rng.shuffle(lives)
    return lives


@attrs.define(eq=False)
class TakeoverSchedule:
    """One schedule."""

    program: list[Life]
    strategy: Strategy
    rng: random.Random
    messages: Fates[bytes] = attrs.Factory(Fates)
    """Of the queue ``work``."""
    choices: Choices = attrs.Factory(dict)
    steps: int = 0
    hosts: int = 0
    """How often a process became host."""
    deaths: int = 0
    _hosting: dict[str, RunningNode] = attrs.Factory(dict)
    _running: list[RunningNode] = attrs.Factory(list)
    _ended: int = 0

    def run(self) -> None:
        """Raises ``AssertionError`` where something is not as it is owed."""
        scheduler = Scheduler(self.strategy, traced=TRACED, patience_s=10.0)
        processes = sockets.Processes(scheduler)
        directory = tempfile.mkdtemp(prefix="warren-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        try:
            with uncollected(), logged() as failures, stepped(scheduler), contextlib.ExitStack() as undo:
                self._replace(undo, scheduler, processes)
                try:
                    self._run(scheduler, processes, directory)
                finally:
                    self.choices, self.steps = scheduler.choices, scheduler.step
                    failures.over = True
                    self._end(scheduler, processes, directory)
            assert not failures.unexpected, failures.unexpected[0]
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _replace(self, undo: contextlib.ExitStack, scheduler: Scheduler, processes: sockets.Processes) -> None:
        doubles = __import__("warren.actors.runtime.pool", fromlist=["threading"]).threading
        time, select, module = Time(scheduler), sockets.Select(scheduler), sockets.SocketModule(processes)
        for name in ("leader_follower", "loop_thread"):
            replace(undo, f"warren.actors.runtime.{name}", "threading", doubles)
        for name in (
            *(
                "actors.runtime.leader_follower",
                "client.shared_directory",
                "client.sending",
                "client.remote",
                "handles.consumer",
            ),
            "storage.filesystem",
        ):
            replace(undo, f"warren.{name}", "time", time)
        replace(undo, "warren.actors.runtime.leader_follower", "select", select)
        for name in ("actors.runtime.leader_follower", "actors.node.node_socket", "client.shared_directory"):
            replace(undo, f"warren.{name}", "socket", module)
        replace(undo, "warren.storage.lock_file", "fcntl", sockets.Fcntl(processes))
        for name, constant in (
            ("actors.runtime.leader_follower", "SILENCE_TICK_S"),
            ("server.client_link", "GUEST_BEAT_S"),
        ):
            replace(undo, f"warren.{name}", constant, 1e6)  # else a program that hangs would seem to go on
        replace(undo, "warren.actors.runtime.loop_thread", "asyncio", sockets.Asyncio(scheduler))
        replace(undo, "warren.server.server_context", "_new_loop", processes.new_loop)
        undo.enter_context(patch.object(LoopThread, "run", processes.noting_coroutines(LoopThread.run)))
        replace(undo, "warren.handles.node", "SystemClock", lambda: SteppedClock(scheduler))
        start = node_module._start

        def counted(*arguments: Any, **named: Any) -> RunningNode:
            running = start(*arguments, **named)
            others = [group for group, one in self._hosting.items() if group not in processes.dead and not one.closed]
            assert not others, f"{scheduler.group} hosts, and so do {others}"
            self._hosting[scheduler.group] = running
            self._running.append(running)
            self.hosts += 1
            return running

        replace(undo, "warren.handles.node", "_start", counted)

    def _run(self, scheduler: Scheduler, processes: sockets.Processes, directory: str) -> None:
        scheduler.begin()
        for number, life in enumerate(self.program):
            scheduler.spawn(f"p{number}/user", partial(self._live, scheduler, directory, number, life), needed=True)
        for number, life in enumerate(self.program):
            if life.ending == "die":
                scheduler.spawn(f"fate {number}", partial(self._kill, scheduler, processes, number, life))
        scheduler.run()
        scheduler.spawn("check/user", lambda: self._check(directory), needed=True)
        scheduler.run()

    def _live(self, scheduler: Scheduler, directory: str, number: int, life: Life) -> None:
        node = warren.open(directory, share=True, sync="os", threads=1)
        queue, sent = node.queue("work"), 0
        for kind, count in life.works:
            if kind == "publish":
                bodies = [b"%d-%d" % (number, sent + one) for one in range(count)]
                sent += count
                self.messages.begun.update(bodies)
                for body, confirm in [(body, queue.publish(body)) for body in bodies]:
                    confirm.wait()
                    self.messages.made.add(body)
            elif kind == "get":
                for one in queue.get_many(count):
                    self.messages.ending.add(one.body)
                    one.ack()
            elif kind == "consume":
                with queue.consume(prefetch=count) as consumer:
                    for _ in range(count):
                        if (got := consumer.receive(0.02)) is not None:
                            self.messages.ending.add(got.body)
                            with contextlib.suppress(WarrenError):
                                got.ack()
            else:
                len(queue)
            scheduler.progress()
        self._ended += 1
        if life.ending == "stay":
            others = sum(one.ending == "close" for one in self.program) + 1
            scheduler.wait(lambda: self._ended >= others)
        elif life.ending == "die":  # that is, now at the latest
            scheduler.current.needed = False  # type: ignore[union-attr]
            scheduler.wait(lambda: False)
        node.close()

    def _kill(self, scheduler: Scheduler, processes: sockets.Processes, number: int, life: Life) -> None:
        user = scheduler.threads[number]
        scheduler.wait(lambda: scheduler.step >= life.step or not user.needed)
        self.deaths += 1
        processes.kill(f"p{number}/", self.rng)

    def _check(self, directory: str) -> None:
        node = warren.open(directory, share=True, sync="os", threads=1)
        found = [one.body for one in node.queue("work").browse()]
        self.messages.check("messages", found, may_repeat=True)
        once = dict.fromkeys(
            body for body in found if body not in self.messages.ending
        )  # what was acked may come again
        check_order("messages", map(name_of, once))
        node.close()

    def _end(self, scheduler: Scheduler, processes: sockets.Processes, directory: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for what the dead processes leave
            scheduler.end()
            self._give_up(processes, directory)

    def _give_up(self, processes: sockets.Processes, directory: str) -> None:
        for node in [one for one in open_nodes._TO_CLOSE | set(open_nodes._NODES) if one.path == directory]:
            open_nodes.closed(node)  # those that a death has struck while they opened, too
        for running in self._running:
            forget_actors(running.pool)
        processes.end()
        self._running.clear()
        self._hosting.clear()


def drawn_schedule(seed: int) -> TakeoverSchedule:
    """The processes and the order of a seed."""
    rng = random.Random(seed)
    return TakeoverSchedule(draw(rng), drawn(rng), random.Random(seed))


def again(seed: int, choices: Choices) -> TakeoverSchedule:
    """The processes of a seed, in this order."""
    return TakeoverSchedule(draw(random.Random(seed)), Chosen(choices), random.Random(seed))
