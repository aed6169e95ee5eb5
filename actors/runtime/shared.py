"""Shared: objects shared by several users in a process, created for the first user and closed by the last.

Creating and closing are serialized: a request for an object that is being closed waits, and gets a new one. A forked
child begins with nothing; the parent keeps its objects.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs

from warren.actors.runtime.pooled_actor import ActorStoppedError

K = TypeVar("K")
V = TypeVar("V")

_ALL: weakref.WeakSet[Shared[Any, Any]] = weakref.WeakSet()


@attrs.define
class _Entry(Generic[V]):
    thing: V
    users: int = 0


class Shared(Generic[K, V]):
    """Shared objects by key."""

    def __init__(self, close: Callable[[V], None], is_open: Callable[[V], bool]) -> None:
        self._close = close
        self._is_open = is_open
        self._lock = threading.Lock()
        self._entries: dict[K, _Entry[V]] = {}
        self._over = False
        _ALL.add(self)

    def acquire(self, key: K, make: Callable[[], V]) -> V:
        """Return the object of ``key``, made by ``make`` if there is no open one. Release it once for each call."""
        with self._lock:
            if self._over:
                raise ActorStoppedError(f"{key} is not opened any more: the process ends")
            entry = self._entries.get(key)
            if entry is None or not self._is_open(entry.thing):
                entry = self._entries[key] = _Entry(make())
            entry.users += 1
            return entry.thing

    def release(self, key: K, thing: V) -> None:
        """Drop one user; close the object after the last."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.thing is not thing:
                return  # it was closed, and there is another one now
            entry.users -= 1
            if not entry.users:
                del self._entries[key]
                if self._is_open(thing):
                    self._close(thing)

    def users(self, key: K) -> int:
        """Return the number of users of ``key``."""
        entry = self._entries.get(key)
        return 0 if entry is None else entry.users

    def close_all(self) -> None:
        """Close everything, even if it is used, and make nothing any more: at the end of the process."""
        with self._lock:
            self._over = True
            entries, self._entries = list(self._entries.values()), {}
            for entry in entries:
                if self._is_open(entry.thing):
                    self._close(entry.thing)

    def forget(self) -> None:
        """Start empty in a forked child."""
        self._lock = threading.Lock()
        self._entries = {}


def _forget_all() -> None:
    for shared in list(_ALL):
        shared.forget()


os.register_at_fork(after_in_child=_forget_all)
