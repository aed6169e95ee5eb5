"""The hook for an instrumentation, which sees what a program sends, is handed and settles through its handles.

:mod:`warren.opentelemetry` is one. Without any, a call looks at :attr:`Hook.instrumentation` once, and that is all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, Protocol, TypeVar

M = TypeVar("M")
T = TypeVar("T")


class Instrumentation(Protocol):
    """What is called instead of a verb, and around what is not one."""

    def call(
        self,
        verb: Callable[..., Generator[Any, Any, Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        becomes: Callable[[Any], Any] | None = None,
    ) -> Generator[Any, Any, Any]:
        """Call the method ``verb`` of a handle's verbs; return what ``becomes`` makes of its result."""

    def handed_out(self, message: Any) -> None:
        """A consumer of a queue, or an iteration over a topic, hands out a message."""

    def settling(self, deliveries: Sequence[Any], outcome: str) -> AbstractContextManager[object]:
        """Return the scope in which deliveries are settled together."""

    def enter(self, delivery: Any) -> None:
        """The program begins to process a message."""

    def leave(self, delivery: Any, error: BaseException | None) -> None:
        """It has processed it; ``error``: what it failed with."""


class Hook:
    """Where the instrumentation hangs."""

    __slots__ = ("instrumentation",)

    def __init__(self) -> None:
        self.instrumentation: Instrumentation | None = None


HOOK: Final = Hook()


def called(verb: Callable[..., Generator[Any, Any, T]], *args: Any, **kwargs: Any) -> Generator[Any, Any, T]:
    """Call a verb of a handle, by way of the instrumentation if there is one."""
    instrumentation = HOOK.instrumentation
    return verb(*args, **kwargs) if instrumentation is None else instrumentation.call(verb, args, kwargs)


@contextlib.contextmanager
def processed(delivery: object) -> Iterator[None]:
    """The scope in which a program processes a message."""
    instrumentation = HOOK.instrumentation
    if instrumentation is None:
        yield
        return
    instrumentation.enter(delivery)
    try:
        yield
    except BaseException as error:
        instrumentation.leave(delivery, error)
        raise
    instrumentation.leave(delivery, None)


class HandedOut(Iterator[M], Generic[M]):
    """Messages that the instrumentation sees as they are handed out one by one."""

    def __init__(self, rest: Iterator[M]) -> None:
        self.rest = rest
        """Those that are left, unseen."""

    def __next__(self) -> M:
        message = next(self.rest)
        if HOOK.instrumentation is not None:
            HOOK.instrumentation.handed_out(message)
        return message
