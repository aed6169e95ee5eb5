"""Confirms to be awaited.

Awaiting one does not wait for the timer that groups syncs: the queue syncs at once, with what other publishers added
meanwhile. If the await is cancelled, the message is published all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from warren.actors.runtime import future
from warren.aio.bridge import safe

W = TypeVar("W")


class AppendConfirm(Generic[W]):
    """Await it to know that a message is as safe as the node's ``sync`` promises, and its position; raises why it never
    will be.

    Any number of coroutines may await it, from any event loop, or none: the message gets safe all the same.
    """

    __slots__ = ("_future", "_where")

    def __init__(self, confirm: future.Confirm, where: Callable[[], W]) -> None:
        self._future = confirm
        self._where = where

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._future.done

    @property
    def error(self) -> BaseException | None:
        """Why the message will not be safe, if known."""
        return self._future.error

    def __await__(self) -> Generator[Any, None, W]:
        yield from safe(self._future).__await__()
        return self._where()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'failed' if self.error else 'safe' if self.done else 'pending'}>"


class Confirm(AppendConfirm[None]):
    """Await it to know that messages are as safe as the node's ``sync`` promises; raises why they never will be.

    Any number of coroutines may await it, from any event loop, or none: the messages get safe all the same.
    """

    __slots__ = ()

    def __init__(self, confirm: future.Confirm) -> None:
        super().__init__(confirm, lambda: None)

    @property
    def message_id(self) -> str:
        """The id of a delayed message (``delay``, ``at``), for :meth:`Queue.cancel_delayed`."""
        message_id: str | None = getattr(self._future, "message_id", None)
        if message_id is None:
            raise AttributeError("only of messages that come later the id is known")
        return message_id

    @property
    def duplicates(self) -> tuple[int, ...]:
        """The indexes of messages that were not stored because their keys (``unique``) were taken. Await the confirm
        first."""
        if not self.done:
            raise RuntimeError("await the confirm first: it is not known yet what was stored")
        return self._future.duplicates

    @property
    def duplicate(self) -> bool:
        """Whether there is such a message; for a single one, whether it was not stored."""
        return bool(self.duplicates)
