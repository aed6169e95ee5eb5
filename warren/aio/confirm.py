"""Confirms to be awaited.

Somebody who awaits one does not wait for the timer that groups syncs: the queue is told to hurry, and what came
meanwhile from others is made safe in the same go. Cancelled there, the message is published all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from warren.actors.runtime import future
from warren.aio.bridge import safe

W = TypeVar("W")


class AppendConfirm(Generic[W]):
    """Await it to know that a message is as safe as the node's ``sync`` promises, and where it is; raises why it never
    will be.

    It may be awaited by many, from any event loop, and by nobody: the message gets safe all the same.
    """

    __slots__ = ("_future", "_where")

    def __init__(self, confirm: future.Confirm, where: Callable[[], W]) -> None:
        self._future = confirm
        self._where = where

    @property
    def done(self) -> bool:
        """Whether it is known."""
        return self._future.done

    @property
    def error(self) -> BaseException | None:
        """Why it will not be safe, as far as that is known."""
        return self._future.error

    def __await__(self) -> Generator[Any, None, W]:
        yield from safe(self._future).__await__()
        return self._where()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'failed' if self.error else 'safe' if self.done else 'pending'}>"


class Confirm(AppendConfirm[None]):
    """Await it to know that messages are as safe as the node's ``sync`` promises; raises why they never will be.

    It may be awaited by many, from any event loop, and by nobody: the messages get safe all the same.
    """

    __slots__ = ()

    def __init__(self, confirm: future.Confirm) -> None:
        super().__init__(confirm, lambda: None)

    @property
    def message_id(self) -> str:
        """Of a message that comes later (``delay``, ``at``): by it :meth:`Queue.cancel_delayed` calls it back."""
        if not isinstance(found := getattr(self._future, "message_id", None), str):
            raise AttributeError("only of messages that come later the id is known")  # noqa: TRY004
        return found

    @property
    def duplicates(self) -> tuple[int, ...]:
        """Which of the messages, counted from 0, were not stored, as their keys (``unique``) were taken. Await it
        first."""
        if not self.done:
            raise RuntimeError("await the confirm first: it is not known yet what was stored")
        return self._future.duplicates

    @property
    def duplicate(self) -> bool:
        """Whether there is such a message: of a single one, whether it was not stored."""
        return bool(self.duplicates)
