"""Confirms: which of a channel's messages are safe, reported in as few frames as possible. A plain object.

Messages are numbered from 1 on as they are published. What is settled is sent once, acks before nacks: everything below
the first open message by one ``multiple``, the rest one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import attrs


class Settled(NamedTuple):
    """An ``ack`` (or a nack) to be sent."""

    ack: bool
    tag: int
    multiple: bool


@attrs.define(eq=False)
class _Run:
    first: int
    count: int
    ack: bool | None = None
    """``None``: open."""
    is_sent: bool = False


@attrs.define(eq=False)
class Confirms:
    """The confirms of one channel."""

    _next: int = 1
    _runs: dict[int, _Run] = attrs.Factory(dict)
    """Runs by their first message, in order, including those that were sent but follow an open one."""
    _settled: list[_Run] = attrs.Factory(list)
    open: int = 0
    """Messages that are not settled."""

    @property
    def settled(self) -> int:
        """Messages that are settled."""
        return self._next - 1 - self.open

    def publish(self, count: int) -> int:
        """Number messages that were published together; return the first one's number."""
        first = self._next
        self._next += count
        self._runs[first] = _Run(first, count)
        self.open += count
        return first

    def extend(self) -> None:
        """Number one more message, which joins the messages that were numbered last."""
        run = self._runs[next(reversed(self._runs))]
        run.count += 1
        self._next += 1
        self.open += 1

    def settle(self, first: int, *, ack: bool) -> None:
        """Settle the messages that :meth:`publish` numbered from ``first`` on; without ``ack`` they never get safe."""
        run = self._runs[first]
        run.ack = ack
        self.open -= run.count
        self._settled.append(run)

    def take(self) -> list[Settled]:
        """Return the confirms to send now."""
        if not self._settled:
            return []
        if len(self._runs) == len(self._settled) == 1 and self._settled[0].ack:  # nothing else is on its way
            run = self._settled.pop()
            self._runs.clear()
            return [Settled(True, run.first + run.count - 1, run.count > 1)]
        below: list[_Run] = []
        for run in self._runs.values():
            if run.ack is None:
                break
            below.append(run)
        for run in below:
            del self._runs[run.first]
        confirms = list(self._below(below))
        for run in self._settled:
            if not run.is_sent:
                run.is_sent = True
                confirms += [Settled(bool(run.ack), run.first + index, False) for index in range(run.count)]
        self._settled.clear()
        return confirms

    @staticmethod
    def _below(runs: list[_Run]) -> Iterator[Settled]:
        """Runs below the first open one: stretches of acks as one, nacks one by one (an ack would cover them).

        An ack never ends with a message that was confirmed before: clients take that for an error.
        """
        position = 0
        while position < len(runs):
            run = runs[position]
            position += 1
            if run.is_sent:
                continue
            run.is_sent = True
            if not run.ack:
                yield from (Settled(False, run.first + index, False) for index in range(run.count))
                continue
            count = run.count
            while position < len(runs) and runs[position].ack:
                if not runs[position].is_sent:
                    run = runs[position]
                    run.is_sent = True
                    count += run.count
                position += 1
            yield Settled(True, run.first + run.count - 1, count > 1)
