"""Scheduler: threads that run one at a time, chosen by the scheduler.

They are real threads, so that thread-local state and identities are what they are elsewhere; but only the one that has
the *baton* runs. It can lose it at a step: a traced line (:meth:`Scheduler.traces`), and whatever the doubles of locks,
queues and waits do (:mod:`tests.schedules.doubles`). A waiting thread gives its deadline; if no thread can go on, time
passes on a clock that otherwise stands still. If none can go on for :attr:`Scheduler.patience_s` of that time, they are
*stuck*: a deadlock, or a thread that was not woken.

*Time* is chosen like a thread: it has the number 0.
"""

from __future__ import annotations

import _thread
import inspect
import math
import sys
import threading
import traceback
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from tests.schedules.strategies import NEVER, Choices, Chosen, Strategy
from warren.actors.clock import NS

TIME: Final = 0
MOST_STEPS: Final = 400_000
"""Threads that take this many steps never end."""
SOON_NS: Final = 30_000_000
"""Time that may pass while some thread could go on."""
MOST_PASSES: Final = 12
REAL_PATIENCE_S: Final = 60.0


class StuckError(AssertionError):
    """No thread can go on, or they go on forever."""


class Ended(BaseException):
    """Thrown into threads that are still there when a schedule is over."""


class Stepped:
    """One thread of a scheduler."""

    def __init__(self, scheduler: Scheduler, name: str, work: Callable[[], object], *, needed: bool) -> None:
        self.number = 0
        self.name = name
        self.needed = needed
        """Whether the schedule is not over before its end."""
        self.done = False
        self.killed = False
        self.error: BaseException | None = None
        self.until: Callable[[], object] | None = None
        """What it waits for."""
        self.deadline_ns: int | None = None
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self._scheduler, self._work = scheduler, work
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def can_go_on(self, now_ns: int) -> bool:
        return not self.done and (
            self.until is None or bool(self.until()) or (self.deadline_ns is not None and self.deadline_ns <= now_ns)
        )

    def _run(self) -> None:
        self.baton.acquire()
        scheduler = self._scheduler
        try:
            if not scheduler.over:
                sys.settrace(scheduler.trace)
                self._work()
        except Ended:
            pass
        except BaseException as error:
            self.error = error
        finally:
            sys.settrace(None)
            self.done = True
            scheduler.leave(self)


class Scheduler:
    """The threads of one schedule."""

    def __init__(self, strategy: Strategy, *, traced: tuple[str, ...] = (), patience_s: float = 0.9) -> None:
        """``traced``: how the names of files begin whose lines are steps."""
        self.strategy: Strategy = Chosen({})
        self._later = strategy
        self.choices: Choices = {}
        self.now_ns = 0
        self.alarms: list[Callable[[], int | None]] = []
        """When clocks are to go off."""
        self.patience_s = patience_s
        self.over = False
        self.is_tracing = False
        self.step = 0
        self._next_step = NEVER
        self.current: Stepped | None = None
        self.threads: list[Stepped] = []
        self._idle_ns = 0
        self._passes = 0
        self._traced = traced
        self._codes: dict[CodeType, bool] = {}
        self._stuck = ""
        self._finished = _thread.allocate_lock()
        self._finished.acquire()

    # ── threads ─────────────────────────────────────────────────────────────────────────────────────────────────

    def spawn(self, name: str, work: Callable[[], object], *, needed: bool = False) -> Stepped:
        """A thread that begins as soon as it is chosen."""
        stepped = Stepped(self, name, work, needed=needed)
        self.threads.append(stepped)
        stepped.number = len(self.threads)
        stepped.thread.start()
        return stepped

    def begin(self) -> None:
        """From here on the strategy decides, and lines are steps."""
        self.strategy, self.is_tracing = self._later, True
        self._next_step = self._step_after()

    def run(self) -> None:
        """Let the threads run until all are through that are needed. Raises the first error, or :class:`StuckError`."""
        self.over = False
        first = self._next()
        if first is not None:
            self._give(first)
            if not self._finished.acquire(timeout=REAL_PATIENCE_S):
                self._stuck = f"a thread does not come to its next step\n{self.where()}"
        if self._stuck:
            raise StuckError(self._stuck)
        for stepped in self.threads:
            if stepped.error is not None:
                raise stepped.error

    def end(self) -> None:
        """Let threads that are still there end."""
        self.over = True
        for stepped in self.threads:
            if not stepped.done:
                self.current = stepped
                stepped.baton.release()
                stepped.thread.join(REAL_PATIENCE_S)
        self.current = None

    def leave(self, stepped: Stepped) -> None:
        """A thread is through."""
        if self.over:
            return
        self._idle_ns = 0
        self._hand_on(None)

    def kill(self, name: str) -> None:
        """Threads whose names begin so never run again; not to be called by one of them."""
        for stepped in self.threads:
            if stepped.name.startswith(name):
                stepped.killed, stepped.needed = True, False
                stepped.until, stepped.deadline_ns = _never, None

    @property
    def group(self) -> str:
        """What the name of the running thread begins with, up to a slash: the process that it stands for."""
        return "" if self.current is None else self.current.name.rpartition("/")[0] + "/" * ("/" in self.current.name)

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def point(self) -> None:
        """A step of the running thread."""
        self.step += 1
        if self.step >= self._next_step:
            self._leave_for_another()

    def _step_after(self) -> int:
        return min(self.strategy.next_step(self.step), max(MOST_STEPS, self.step) + 1)

    def _leave_for_another(self) -> None:
        self._next_step = NEVER
        current = self.current
        if current is None or self.over or threading.get_ident() != current.thread.ident:
            self._next_step = self._step_after()
            return
        numbers = self._who_can_go_on(beside=current)
        self._next_step = self._step_after()
        if self._may_pass():
            numbers.append(TIME)
        if self.step > MOST_STEPS:
            self._give_up(f"{MOST_STEPS} steps have no end")
        if not numbers:
            return
        number = self.strategy.choose(self.step, current.number, numbers)
        if number == current.number:
            return
        self.choices[self.step] = number
        if number == TIME:
            self._passes += 1
            self._pass_time()
            self._idle_ns = 0
        else:
            self._switch(current, self.threads[number - 1])

    def wait(self, until: Callable[[], object], timeout_s: float | None = None) -> bool:
        """The running thread waits until something is so; whether it is, after ``timeout_s``."""
        current = self.current
        if current is None or self.over or threading.get_ident() != current.thread.ident:
            if self.over and current is not None and threading.get_ident() == current.thread.ident:
                raise Ended
            if until():
                return True
            raise StuckError("a thread beside the schedule waits")
        self.point()
        if until():
            return True
        current.until = until
        current.deadline_ns = None if timeout_s is None else self.now_ns + max(0, math.ceil(timeout_s * NS))
        self._hand_on(current)
        current.until = current.deadline_ns = None
        return bool(until())

    def _hand_on(self, current: Stepped | None) -> None:
        chosen = self._next()
        if chosen is None:
            self.current = None
            self._finished.release()
        elif chosen is current:
            return
        else:
            self._give(chosen)
        if current is not None:
            self._take(current)

    def _next(self) -> Stepped | None:
        """The next thread when the running one cannot go on; ``None`` if all are done."""
        next_step, self._next_step = self._next_step, NEVER
        try:
            return self._next_one()
        finally:
            self._next_step = next_step if self.step < next_step else self._step_after()

    def _next_one(self) -> Stepped | None:
        while True:
            if self.threads and all(one.done or not one.needed for one in self.threads):
                return None
            numbers = self._who_can_go_on()
            if numbers:
                break
            if self.step > MOST_STEPS:
                self._stuck = f"{MOST_STEPS} steps have no end\n{self.where()}"
                return None
            if not self._pass_time() or self._idle_ns > self.patience_s * NS:
                self._stuck = f"nobody can go on\n{self.where()}"
                return None
        self.step += 1
        number = numbers[0] if len(numbers) == 1 else self.strategy.choose(self.step, None, numbers)
        if len(numbers) > 1:
            self.choices[self.step] = number
        return self.threads[number - 1]

    def _who_can_go_on(self, beside: Stepped | None = None) -> list[int]:
        """Their numbers. What they wait for is looked up in code that may be traced: those lines are no steps."""
        step = self.step
        numbers = [one.number for one in self.threads if one is not beside and one.can_go_on(self.now_ns)]
        self.step = step
        return numbers

    def _switch(self, current: Stepped, chosen: Stepped) -> None:
        self._give(chosen)
        self._take(current)

    def _give(self, chosen: Stepped) -> None:
        self.current = chosen
        chosen.baton.release()

    def _take(self, current: Stepped) -> None:
        current.baton.acquire()
        if self.over:
            raise Ended

    def _give_up(self, why: str) -> None:
        current, self.current = self.current, None
        self._stuck = f"{why}\n{self.where()}"
        self._finished.release()
        if current is not None:
            self._take(current)

    def progress(self) -> None:
        """A user's thread has got what it asked for."""
        self._idle_ns = 0

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _next_ns(self) -> int | None:
        moments = [one.deadline_ns for one in self.threads if not one.done and one.deadline_ns is not None]
        moments += [at_ns for alarm in self.alarms if (at_ns := alarm()) is not None]
        return min(moments, default=None)

    def _may_pass(self) -> bool:
        if self._passes >= MOST_PASSES:
            return False
        next_ns = self._next_ns()
        return next_ns is not None and self.now_ns < next_ns <= self.now_ns + SOON_NS

    def _pass_time(self) -> bool:
        """Let time pass until something is due; ``False`` where nothing ever is."""
        next_ns = self._next_ns()
        if next_ns is None:
            return False
        self._idle_ns += max(0, next_ns - self.now_ns)
        self.now_ns = max(self.now_ns, next_ns)
        return True

    # ── lines ───────────────────────────────────────────────────────────────────────────────────────────────────

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self.is_tracing:
            return None
        code = frame.f_code
        wanted = self._codes.get(code)
        if wanted is None:
            wanted = bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_filename.startswith(self._traced)
            self._codes[code] = wanted  # functions only: bodies of modules run when they are first needed
        return self._trace_line if wanted else None

    def _trace_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.step += 1
            if self.step >= self._next_step:
                self._leave_for_another()
        return self._trace_line

    def where(self) -> str:
        """Where everybody stands."""
        frames = sys._current_frames()
        lines = [f"step {self.step}, {self.now_ns / NS:.3f} s"]
        for one in self.threads:
            frame = frames.get(one.thread.ident or 0)
            if one.done or frame is None:
                continue
            stack = [entry for entry in traceback.extract_stack(frame) if "/tests/schedules/" not in entry.filename]
            lines.append(f"{one.number} {one.name}:")
            lines += [f"    {entry.filename}:{entry.lineno} {entry.name}: {entry.line}" for entry in stack[-10:]]
        return "\n".join(lines)


def _never() -> bool:
    return False
