"""LazySequence: a sequence of messages that came together, whose objects are made on first access.

Callers that want only bodies ask for all of them at once; then no object is made per message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

from warren.verbs.steps import ProcessBound

T = TypeVar("T")


class LazySequence(ProcessBound, Sequence[T]):
    """Messages, in order; equal to a list of them, and ``+`` makes a list. Derived classes make the messages."""

    __slots__ = ("_count", "_messages")

    def __init__(self, count: int) -> None:
        self._count = count
        self._messages: list[T] | None = None

    def _make(self) -> list[T]:
        """Make all messages; called once."""
        raise NotImplementedError

    def _made(self) -> list[T]:
        if self._messages is None:
            self._messages = self._make()
        return self._messages

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._made()[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._made())

    def __add__(self, other: Sequence[T]) -> list[T]:
        return [*self._made(), *other] if isinstance(other, Sequence) else NotImplemented

    def __radd__(self, other: Sequence[T]) -> list[T]:
        return [*other, *self._made()] if isinstance(other, Sequence) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self is other or self._made() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._count}>"
