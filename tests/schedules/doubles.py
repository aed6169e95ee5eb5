"""Doubles: locks, queues, threads and clocks whose waits are a scheduler's; what a module finds for ``threading``.

:func:`stepped` puts them into the modules of production code, as long as a schedule lasts. Whatever is made meanwhile
by those modules is a double. Production code runs unchanged: its pool, inboxes, futures and gates.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any, Final

from tests.schedules.scheduler import Scheduler, Stepped
from warren.actors.clock import NS, HandClock

WITH_THREADING: Final = (
    *(
        "runtime.pool",
        "runtime.pooled_actor",
        "runtime.inbox",
        "runtime.timer",
        "queue.deliveries",
        "clock",
        "runtime.shared",
        "queue.queue_consumers",
        "runtime.waiting_room",
        "delays.vhost_delays",
    ),
    *(
        "delays.delay_output",
        "topics.dispatch_actor",
        "queue.message_log",
        "runtime.wake_event",
        "node.node_context",
        "runtime.future",
    ),
    "runtime.interrupts",
)
"""Modules of the actors that make locks or threads."""
WITH_TIME: Final = ("runtime.future", "queue.deliveries")


class Lock:
    """A lock: ``threading.Lock``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._scheduler.point()
        if self.held and not (
            blocking and self._scheduler.wait(lambda: not self.held, None if timeout < 0 else timeout)
        ):
            return False
        self.held = True
        return True

    def release(self) -> None:
        if not self.held:
            raise RuntimeError("release unlocked lock")
        self.held = False
        self._scheduler.point()

    def locked(self) -> bool:
        return self.held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class Condition:
    """``threading.Condition``, with its own lock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = Lock(scheduler)
        self._rounds = 0

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        rounds = self._rounds
        self._lock.release()
        try:
            return self._scheduler.wait(lambda: self._rounds != rounds, timeout)
        finally:
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        while not (found := predicate()):
            if not self.wait(timeout):
                return predicate()
        return found

    def notify_all(self) -> None:
        self._rounds += 1

    notify = notify_all


class Semaphore:
    """``threading.Semaphore``."""

    def __init__(self, scheduler: Scheduler, value: int = 1) -> None:
        self._scheduler, self._value = scheduler, value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        self._scheduler.point()
        if self._value <= 0 and not (blocking and self._scheduler.wait(lambda: self._value > 0, timeout)):
            return False
        self._value -= 1
        return True

    def release(self) -> None:
        self._value += 1
        self._scheduler.point()


class SimpleQueue:
    """``queue.SimpleQueue``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._scheduler.point()

    def get(self, timeout: float | None = None) -> Any:
        if not self._scheduler.wait(lambda: bool(self._items), timeout):
            raise Empty
        return self._items.popleft()


class Thread:
    """``threading.Thread``; the schedule may be over without its end."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str = "thread",
        daemon: bool | None = None,
    ) -> None:
        self._scheduler, self._work = scheduler, lambda: target(*args)
        self.name = scheduler.group + name
        self.stepped: Stepped | None = None

    def start(self) -> None:
        self.stepped = self._scheduler.spawn(self.name, self._work)
        self._scheduler.point()

    def join(self, timeout: float | None = None) -> None:
        stepped = self.stepped
        if stepped is not None:
            self._scheduler.wait(lambda: stepped.done, timeout)

    def is_alive(self) -> bool:
        return self.stepped is not None and not self.stepped.done

    @property
    def ident(self) -> int | None:
        return None if self.stepped is None else self.stepped.thread.ident


class Threading:
    """What a module finds for ``threading``."""

    local = threading.local
    get_ident = staticmethod(threading.get_ident)

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._threads: list[Thread] = []

    def Lock(self) -> Lock:
        return Lock(self._scheduler)

    def RLock(self) -> Lock:  # type: ignore[valid-type]
        """A plain lock: production never takes one twice in one thread."""
        return Lock(self._scheduler)

    def Condition(self) -> Condition:
        return Condition(self._scheduler)

    def Semaphore(self, value: int = 1) -> Semaphore:
        return Semaphore(self._scheduler, value)

    def Thread(self, **arguments: Any) -> Thread:
        made = Thread(self._scheduler, **arguments)
        self._threads.append(made)
        return made

    def current_thread(self) -> Any:
        current = self._scheduler.current
        return next((one for one in self._threads if one.stepped is current), current)


class Time:
    """What a module finds for ``time``."""

    strftime, localtime = staticmethod(time.strftime), staticmethod(time.localtime)

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now_ns / NS

    def sleep(self, seconds: float) -> None:
        self._scheduler.wait(lambda: False, seconds)


class SteppedClock(HandClock):
    """A node's clock, whose thread is a scheduler's: its alarms go off when they are due and it is chosen."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._lock = Lock(scheduler)  # type: ignore[assignment]
        self._scheduler = scheduler
        ringing = scheduler.spawn(f"{scheduler.group}clock", self._ring)
        scheduler.alarms.append(lambda: None if self._alarm is None or ringing.killed else self._alarm[0])

    def now_ns(self) -> int:
        return self._scheduler.now_ns

    def wall_us(self) -> int:
        return self._wall_us + self._scheduler.now_ns // 1000

    def _is_due(self) -> bool:
        return self._alarm is not None and self._alarm[0] <= self._scheduler.now_ns

    def _ring(self) -> None:
        while True:
            self._scheduler.wait(self._is_due)
            with self._lock:
                alarm, self._alarm = self._alarm, None
            if alarm is not None:
                alarm[1]()


@contextlib.contextmanager
def stepped(scheduler: Scheduler) -> Iterator[Threading]:
    """As long as the block lasts, the actors' threads and locks are the scheduler's."""
    doubles = Threading(scheduler)
    with contextlib.ExitStack() as undo:
        for name in WITH_THREADING:
            replace(undo, f"warren.actors.{name}", "threading", doubles)
        for name in WITH_TIME:
            replace(undo, f"warren.actors.{name}", "time", Time(scheduler))
        replace(undo, "warren.actors.runtime.future", "_LOCK", Lock(scheduler))
        replace(undo, "warren.actors.node.running_vhost", "_DELAYS", Lock(scheduler))
        for name in ("pool", "leader_follower"):
            replace(undo, f"warren.actors.runtime.{name}", "SimpleQueue", lambda: SimpleQueue(scheduler))
        yield doubles


def replace(undo: contextlib.ExitStack, module: str, name: str, double: object) -> None:
    """Let a module have a double for something until ``undo`` ends."""
    found = importlib.import_module(module)
    undo.callback(setattr, found, name, getattr(found, name))
    setattr(found, name, double)
