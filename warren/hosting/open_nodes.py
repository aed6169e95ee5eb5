"""The nodes that are open in this process: what happens to them when it forks, and when it ends.

*A fork*: the child forgets every node of its parent (:meth:`warren.Node.forget`).

*A normal end* closes every node of :func:`warren.open` that is still open: at the interpreter's exit, when the threads
that it waits for have ended; daemon threads that still use the node get ``ClosedError``. A normal end is the last line
of a program, ``sys.exit``, an uncaught error, Ctrl-C; of a process of ``multiprocessing`` the end of its function. A
signal that Python does not handle (SIGTERM, unless the program handles it), ``os._exit`` and a kill are not normal:
confirmed messages are kept then, others may be lost.
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

    @property
    def hosts(self) -> bool:
        """Whether this process has the directory's lock."""

    def close(self) -> None: ...

    def forget(self) -> None: ...


N = TypeVar("N", bound=OpenNode)
P = ParamSpec("P")
T = TypeVar("T")


class Opening:
    """An opening: it returns a node, or leaves nothing open, even if it is interrupted.

    An interrupt is held until the node is started, and raised then; its handler calls :meth:`undo`. Nothing is lost on
    the way to the caller: what is started is recorded here before an interrupt can be raised.
    """

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started: list[OpenNode] = []

    def start(self, start: Callable[[], N]) -> N:
        """Start a node."""
        nodes: list[N] = []

        def work() -> None:
            nodes.append(start())
            self._started.append(nodes[0])

        uninterrupted(work)
        return nodes[0]

    def undo(self) -> None:
        """Close what was started: the caller does not get it."""
        for node in self._started:
            with contextlib.suppress(Exception):  # the caller gets the original error
                node.close()


def opening(function: Callable[Concatenate[Opening, P], T]) -> Callable[P, T]:
    """Turn a function that opens a node with a given :class:`Opening` into a public one.

    The arguments are checked first. If an interrupt comes before the caller has the node, it is closed.
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
"""Nodes are kept here because a program may drop one whose queues it has published to."""


def opened(node: OpenNode) -> None:
    """Let forked children forget the node."""
    _NODES.add(node)


def is_open(path: str) -> bool:
    """Whether a node in this process has the directory open."""
    return any(node.hosts and os.path.realpath(node.path) == os.path.realpath(path) for node in list(_NODES))


def close_at_exit(node: OpenNode) -> None:
    """Close the node at the end of the process, unless it is closed before."""
    _TO_CLOSE.add(node)
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, close_all, exitpriority=0)  # a forked child ends without the interpreter's exit


def closed(node: OpenNode) -> None:
    """Forget a closed node."""
    _NODES.discard(node)
    _TO_CLOSE.discard(node)


def close_all() -> None:
    """Close all nodes, at the end of the process."""
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
