"""The nodes that are open in this process: what becomes of them when it forks, and when it ends.

*A fork*: in the child every node that its parent has is forgotten (:meth:`warren.Node.forget`).

*A normal end* closes every node of :func:`warren.open` that is still open: at the interpreter's exit, when the threads
that it waits for have ended; daemon threads that still use the node get ``ClosedError``. A normal end is the last line
of a program, ``sys.exit``, an error that nobody caught, Ctrl-C; of a process of ``multiprocessing`` the end of its
function. A signal that Python does not handle (SIGTERM, unless the program handles it), ``os._exit`` and a kill are
none: what was confirmed is there then, what was not may be missing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from warren.actors.log_events import log_event, logger
from warren.actors.runtime.interrupts import uninterrupted
from warren.storage.call_arguments import signature

_LOG = logger("node")


class OpenNode(Protocol):
    """A node."""

    path: str

    def close(self) -> None: ...

    def forget(self) -> None: ...


N = TypeVar("N", bound=OpenNode)
P = ParamSpec("P")
T = TypeVar("T")


class Opening:
    """An opening: it gives a node, or it leaves nothing behind, whatever strikes it.

    An interrupt waits until the node is started, and is raised then; whoever meets it calls :meth:`undo`. Nothing is
    lost on the way to the caller: what is started is held here before anything can strike.
    """

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started: list[OpenNode] = []

    def start(self, start: Callable[[], N]) -> N:
        """Start a node."""
        found: list[N] = []

        def work() -> None:
            found.append(start())
            self._started.append(found[0])

        uninterrupted(work)
        return found[0]

    def undo(self) -> None:
        """Close what was started: nobody gets it."""
        for node in self._started:
            with contextlib.suppress(Exception):  # the caller is told what has struck
                node.close()


def opening(function: Callable[Concatenate[Opening, P], T]) -> Callable[P, T]:
    """Make a public function of one that opens a node with the :class:`Opening` that it is given.

    The arguments are checked first. If an interrupt strikes before the caller has the node, it is closed.
    """

    @functools.wraps(function)
    def open_whole(*args: P.args, **kwargs: P.kwargs) -> T:
        signature(function, 1).check(args, kwargs)
        opening = Opening()
        try:
            node = function(opening, *args, **kwargs)
        except BaseException:
            opening.undo()
            raise
        return node

    described = inspect.signature(function)
    open_whole.__signature__ = described.replace(parameters=[*described.parameters.values()][1:])  # type: ignore[attr-defined]
    return open_whole


_NODES: Final[weakref.WeakSet[OpenNode]] = weakref.WeakSet()
_TO_CLOSE: Final[set[OpenNode]] = set()
"""Held here, for a program may let go of a node whose queues it has published to."""


def opened(node: OpenNode) -> None:
    """Forget it in forked children."""
    _NODES.add(node)


def is_open(path: str) -> bool:
    """Whether a node in this process has the directory."""
    return any(os.path.realpath(node.path) == os.path.realpath(path) for node in list(_NODES))


def close_at_exit(node: OpenNode) -> None:
    """Close it at the end of the process, unless it is closed before."""
    _TO_CLOSE.add(node)
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, close_all, exitpriority=0)  # a forked one ends without the interpreter's exit


def closed(node: OpenNode) -> None:
    """Nothing is left to do for it."""
    _NODES.discard(node)
    _TO_CLOSE.discard(node)


def close_all() -> None:
    """The process ends."""
    for node in list(_TO_CLOSE):
        try:
            node.close()
        except Exception as error:
            _LOG.error(
                "%s: the node could not be closed at the end of the process: %s",
                node.path,
                error,
                extra=log_event("node_unclosed", error, path=node.path),
            )


atexit.register(close_all)


def _forget_all() -> None:
    _TO_CLOSE.clear()
    for node in list(_NODES):
        node.forget()


os.register_at_fork(after_in_child=_forget_all)
