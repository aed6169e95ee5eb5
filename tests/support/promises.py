"""What was promised of things that are made and later end, and what may be there of them after a crash or a fault.

A thing is *begun* before it is asked for, *made* when that is confirmed, *ending* before its end is asked for, and
*ended* when that is confirmed. Whatever happens in between:

- what was made is there, unless its end was begun;
- nothing is there that was not begun, or that has ended;
- nothing is there twice, unless the harness says that it may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

import attrs

T = TypeVar("T", bound=Hashable)
Name = tuple[str, int]
"""The stream of a message, and its number there."""


@attrs.define
class Fates(Generic[T]):
    """The things of one kind or place."""

    begun: set[T] = attrs.Factory(set)
    made: set[T] = attrs.Factory(set)
    ending: set[T] = attrs.Factory(set)
    ended: set[T] = attrs.Factory(set)

    def copy(self) -> Fates[T]:
        return Fates(set(self.begun), set(self.made), set(self.ending), set(self.ended))

    def missing(self, found: Iterable[T]) -> set[T]:
        return self.made - self.ending - set(found)

    def check(self, what: str, found: Collection[T], *, may_repeat: bool = False) -> None:
        here = set(found)
        assert may_repeat or len(here) == len(found), f"{what}, there twice: {shown(repeated(found))}"
        assert not (strange := here - self.begun), f"{what} that were never begun: {shown(strange)}"
        assert not (lost := self.missing(here)), f"{what}, confirmed and lost: {shown(lost)}"
        assert not (back := self.ended & here), f"{what}, gone and back: {shown(back)}"

    def survive(self, found: Iterable[T]) -> None:
        """After a crash these are there: they must be after the next one, and nothing else may come back."""
        self.begun = set(found)
        self.made, self.ending, self.ended = set(self.begun), set(), set()


def check_order(what: str, found: Iterable[Name]) -> None:
    """The numbers of each stream ascend."""
    last: dict[str, int] = {}
    for stream, number in found:
        assert number >= last.get(stream, number), f"{what}: {stream}:{number} after {last[stream]}, out of order"
        last[stream] = number


def repeated(found: Iterable[T]) -> set[T]:
    return {one for one, count in Counter(found).items() if count > 1}


def shown(things: Iterable[object]) -> str:
    """The first of them, each cut."""
    return ", ".join(sorted(f"{thing!r:.60}" for thing in things)[:20])
