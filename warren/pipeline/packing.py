"""Parts of files put together into tasks: small ones share a task, a large one is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, Self, TypeVar


class Part(Protocol):
    """Items of one width in a row, numbered."""

    @property
    def start(self) -> int:
        """The number of the first."""

    @property
    def stop(self) -> int:
        """The number behind the last."""

    def between(self, start: int, stop: int) -> Self:
        """Those with these numbers."""


_Part = TypeVar("_Part", bound=Part)


def packed(parts: Iterable[_Part], item_bytes: int, limit_bytes: int) -> Iterator[list[_Part]]:
    """The parts in their order, of each group about ``limit_bytes`` and at least one item."""
    most = max(limit_bytes // item_bytes, 1)
    group: list[_Part] = []
    room = most
    for part in parts:
        at = part.start
        while at < part.stop:
            stop = min(at + room, part.stop)
            group.append(part.between(at, stop))
            room -= stop - at
            at = stop
            if not room:
                yield group
                group, room = [], most
    if group:
        yield group


def counts(parts: Sequence[Part]) -> list[int]:
    """How many items each has."""
    return [part.stop - part.start for part in parts]
