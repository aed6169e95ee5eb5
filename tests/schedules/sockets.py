"""Doubles of what processes of a shared directory wait with: sockets, ``poll``, an event loop, ``flock``.

Sockets and locks are the system's own; only waiting is the scheduler's: a thread that waits for a socket can go on when
the system says so. All are in one process, because an ``flock`` belongs to an open file and not to a process. A dying
process loses what the system takes from it: its sockets and its locks, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import inspect
import os
import random
import select
import selectors
import socket
from collections import defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from tests.schedules.scheduler import Scheduler
from warren.actors.clock import NS
from warren.actors.runtime.loop_thread import LoopThread
from warren.storage import lock_file

_NOW: Final = 0


class Poll:
    """``select.poll``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._poll = scheduler, select.poll()
        self.register, self.modify = self._poll.register, self._poll.modify

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        self._scheduler.wait(lambda: self._poll.poll(_NOW), None if timeout_ms is None else timeout_ms / 1000)
        return self._poll.poll(_NOW)


class Select:
    """What a module finds for ``select``."""

    POLLIN, POLLOUT = select.POLLIN, select.POLLOUT

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def poll(self) -> Poll:
        return Poll(self._scheduler)


class Processes:
    """What the processes of a schedule have from the system, by the beginning of their threads' names."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._sockets: dict[str, list[socket.socket]] = defaultdict(list)
        self._loops: dict[str, list[Loop]] = defaultdict(list)
        self._locks: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._coroutines: list[Coroutine[Any, Any, Any]] = []
        self.dead: set[str] = set()

    def opened(self, one: socket.socket) -> None:
        self._sockets[self.scheduler.group].append(one)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        loop = Loop(self)
        self._loops[self.scheduler.group].append(loop)
        return loop

    def noting_coroutines(self, run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """``run``, which has a loop's thread run a coroutine; a process may die in the middle of it."""

        def noted(thread: LoopThread, work: Coroutine[Any, Any, Any]) -> Any:
            self._coroutines.append(work)
            return run(thread, work)

        return noted

    def flock(self, descriptor: int, operation: int) -> None:
        self.scheduler.point()
        fcntl.flock(descriptor, operation)
        if operation & fcntl.LOCK_EX:
            self._locks[self.scheduler.group].append((descriptor, os.fstat(descriptor).st_ino))

    def kill(self, group: str, rng: random.Random) -> None:
        """Kill that process, whatever its threads are doing. Called by a thread of another process."""
        self.dead.add(group)
        self.scheduler.kill(group)
        numbers = [one.fileno() for one in self._sockets[group] if one.fileno() >= 0]
        for loop in self._loops[group]:
            numbers += [] if loop.is_closed() else loop.descriptors()
        ends: list[Callable[[], None]] = [partial(_hang_up, number) for number in numbers]
        ends += [lambda lock=lock: _let_go(*lock) for lock in self._locks[group]]  # type: ignore[misc]
        rng.shuffle(ends)
        for end in ends:
            end()
            self.scheduler.point()

    def end(self) -> None:
        """Close what is left, when no thread runs any more."""
        for loops in self._loops.values():
            for loop in loops:
                loop.give_up()
        for work in self._coroutines:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()
        for sockets in self._sockets.values():
            for one in sockets:
                one.close()
        for locks in self._locks.values():
            for lock in locks:
                _let_go(*lock)


def _hang_up(number: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copied:
        if copied.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            copied.setblocking(False)  # its process may have died before it did so
            with contextlib.suppress(BlockingIOError):  # pending connections that were not accepted
                while True:
                    copied.accept()[0].close()
        copied.shutdown(socket.SHUT_RDWR)


def _let_go(descriptor: int, inode: int) -> None:
    with contextlib.suppress(OSError):
        if os.fstat(descriptor).st_ino == inode:
            lock_file._set_record_lock(descriptor, fcntl.F_UNLCK)
            fcntl.flock(descriptor, fcntl.LOCK_UN)


class Fcntl:
    """What a module finds for ``fcntl``."""

    def __init__(self, processes: Processes) -> None:
        self.flock = processes.flock

    def __getattr__(self, name: str) -> Any:
        return getattr(fcntl, name)


def stepped_socket(processes: Processes) -> type[socket.socket]:
    """``socket.socket`` whose waits are the scheduler's."""
    scheduler = processes.scheduler

    class Socket(socket.socket):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            processes.opened(self)

        def connect(self, address: Any) -> None:
            scheduler.point()
            super().connect(address)

        def recv(self, size: int, flags: int = 0) -> bytes:
            if not flags:
                scheduler.wait(lambda: self.fileno() < 0 or _is_ready(self, select.POLLIN), self.gettimeout())
            return super().recv(size, flags)

        def sendall(self, data: Any, flags: int = 0) -> None:
            scheduler.point()
            super().sendall(data, flags)

    return Socket


def _is_ready(one: socket.socket, event: int) -> bool:
    poll = select.poll()
    poll.register(one, event)
    return bool(poll.poll(_NOW))


class SocketModule:
    """What a module finds for ``socket``."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.socket = stepped_socket(processes)

    def socketpair(self) -> tuple[socket.socket, socket.socket]:
        ends = socket.socketpair()
        for end in ends:
            self._processes.opened(end)
        return ends

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)


class _Selector(selectors.DefaultSelector):
    scheduler: Scheduler

    def select(self, timeout: float | None = None) -> Any:
        super_select = super().select
        if timeout is None or timeout > 0:
            self.scheduler.wait(lambda: super_select(_NOW), timeout)
        else:
            self.scheduler.point()
        return super_select(_NOW)


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose waits and whose time are the scheduler's."""

    def __init__(self, processes: Processes) -> None:
        selector = _Selector()
        self._processes, self._scheduler = processes, processes.scheduler
        selector.scheduler = processes.scheduler
        self._own_selector = selector
        super().__init__(selector)

    def time(self) -> float:
        return self._scheduler.now_ns / NS

    def _accept_connection2(self, protocol_factory: Any, conn: socket.socket, *arguments: Any, **named: Any) -> Any:
        self._processes.opened(conn)
        return super()._accept_connection2(protocol_factory, conn, *arguments, **named)  # type: ignore[misc]

    def descriptors(self) -> list[int]:
        """The descriptors that it watches."""
        return [key.fd for key in self._own_selector.get_map().values()]

    def give_up(self) -> None:
        """Close what it has, when its thread has ended in the middle of it."""
        if self.is_closed():
            return
        keys = list(self._own_selector.get_map().values())
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            asyncio.events._set_running_loop(None)
            self.close()
        for key in keys:
            for one in key.data or ():
                transport = getattr(getattr(one, "_callback", None), "__self__", None)
                own = getattr(transport, "_sock", None)
                if own is not None:
                    own.close()


class Asyncio:
    """What the module of an event loop's thread finds for ``asyncio``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def run_coroutine_threadsafe(self, work: Coroutine[Any, Any, Any], loop: Any) -> _Result:
        return _Result(self._scheduler, asyncio.run_coroutine_threadsafe(work, loop))

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


class _Result:
    def __init__(self, scheduler: Scheduler, future: Any) -> None:
        self._scheduler, self._future = scheduler, future

    def result(self) -> Any:
        self._scheduler.wait(self._future.done)
        return self._future.result(0)
