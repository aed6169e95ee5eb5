"""Topology: what a guest has declared that does not survive its host, to be declared again at the next one.

Those are queues that are not durable, exclusive or deleted by themselves, exchanges of the kind, and the bindings of
both. They are empty then, as after a restart of a broker.
"""

from __future__ import annotations

from pamqp import commands as c
from pamqp.base import Frame as Method

Bind = c.Queue.Bind | c.Exchange.Bind


class Topology:
    """What one connection has declared."""

    def __init__(self) -> None:
        self._exchanges: dict[str, c.Exchange.Declare] = {}
        self._queues: dict[str, c.Queue.Declare] = {}
        self._bindings: dict[tuple[object, ...], Bind] = {}

    def declare_queue(self, method: c.Queue.Declare) -> None:
        """A queue is there."""
        if not method.durable or method.exclusive or method.auto_delete:
            self._queues[str(method.queue)] = method

    def delete_queue(self, name: str) -> None:
        """It is gone."""
        if self._queues.pop(name, None) is not None:
            self._bindings = {key: method for key, method in self._bindings.items() if _queue(method) != name}

    def declare_exchange(self, method: c.Exchange.Declare) -> None:
        """An exchange is there."""
        if not method.durable or method.auto_delete:
            self._exchanges[str(method.exchange)] = method

    def delete_exchange(self, name: str) -> None:
        """It is gone."""
        if self._exchanges.pop(name, None) is not None:
            self._bindings = {key: method for key, method in self._bindings.items() if name not in _exchanges(method)}

    def bind(self, method: Bind) -> None:
        """A binding is there."""
        if _queue(method) in self._queues or not self._exchanges.keys().isdisjoint(_exchanges(method)):
            self._bindings[_key(method)] = method

    def unbind(self, method: Bind) -> None:
        """It is gone; ``method`` is what made it."""
        self._bindings.pop(_key(method), None)

    def again(self) -> list[Method]:
        """What declares everything again."""
        return [*self._exchanges.values(), *self._queues.values(), *self._bindings.values()]


def _queue(method: Bind) -> str | None:
    return method.queue if isinstance(method, c.Queue.Bind) else None


def _exchanges(method: Bind) -> tuple[str, ...]:
    if isinstance(method, c.Queue.Bind):
        return (str(method.exchange),)
    return str(method.source), str(method.destination)


def _key(method: Bind) -> tuple[object, ...]:
    return _queue(method), *_exchanges(method), method.routing_key, repr(sorted((method.arguments or {}).items()))
