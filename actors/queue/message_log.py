"""MessageLog: the observed activity of a node's queues, for threads and event loops that wait for it. For tests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from warren.actors.engines.queue.queue_log import QueueLog


class MessageLog:
    """The log of one node. It outlives the node's restarts."""

    def __init__(self) -> None:
        self._logs: dict[tuple[str, str], QueueLog] = {}
        self._more = threading.Condition()
        self._listeners: list[Callable[[], None]] = []

    def of(self, vhost: str, queue: str) -> QueueLog:
        """Return the log of a queue, which is empty at first."""
        with self._more:
            log = self._logs.get((vhost, queue))
            if log is None:
                log = self._logs[vhost, queue] = QueueLog(self._changed)
            return log

    def queues(self) -> list[tuple[str, str]]:
        """Return vhost and name of every queue with logged messages."""
        with self._more:
            return [name for name, log in self._logs.items() if log.messages]

    def _changed(self) -> None:
        with self._more:
            self._more.notify_all()
            listeners = list(self._listeners)
        for tell in listeners:
            tell()

    def wait_for(self, is_true: Callable[[], bool], timeout: float) -> bool:
        """Wait until ``is_true`` returns true, at most ``timeout`` seconds; return whether it did."""
        with self._more:
            return self._more.wait_for(is_true, timeout)

    @contextlib.contextmanager
    def listening(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call ``tell``, from any thread, whenever something was logged."""
        with self._more:
            self._listeners.append(tell)
        try:
            yield
        finally:
            with self._more:
                self._listeners.remove(tell)
