"""What publishers wait for: room first, then safety.

*Room*: while too much waits for a queue, a store is behind or an alarm is set, :func:`admitted` holds the coroutine.
Nothing of its message has been taken then; cancelled there, it was never published.

*Safety*: a :class:`Confirm`. Somebody who awaits one does not wait for the timer that groups syncs: the queue is told
to hurry, and what came meanwhile from others is made safe in the same go. Cancelled there, the message is published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from actors import future
from actors.door import Door, admit
from actors.gate import Place
from actors.surroundings import BlockedError
from warren.aio.bridge import answer, settled

D = TypeVar("D", bound=Door)
T = TypeVar("T")


class Confirm:
    """Await it to know that a message is as safe as the node's ``sync`` promises; raises why it never will be.

    It may be awaited by many, from any event loop, and by nobody: the message gets safe all the same.
    """

    __slots__ = ("_future",)

    def __init__(self, future: future.Confirm) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Whether it is known."""
        return self._future.done

    @property
    def error(self) -> BaseException | None:
        """Why it will not be safe, as far as that is known."""
        return self._future.error

    def __await__(self) -> Generator[Any, None, None]:
        return safe(self._future).__await__()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'failed' if self.error else 'safe' if self.done else 'pending'}>"


async def safe(confirm: future.Confirm) -> None:
    """Wait until it is safe, and let those who see to that hurry."""
    if not confirm.done:
        confirm.hurry()
    await answer(confirm)


async def admitted(
    find: Callable[[], Sequence[D]], size_of: Callable[[Sequence[D]], int], timeout: float | None
) -> tuple[Sequence[D], int]:
    """Wait until all queues (or logs of topics) have room; returns them, and what is reserved for the messages.

    ``find`` is asked anew after every wait; ``size_of`` says how many bytes the messages take on their way. Raises
    :class:`BlockedError` after ``timeout`` seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    while True:
        actors = find()
        if not actors:
            return actors, 0
        wait = next((room for actor in actors if (room := actor.admission()) is not None), None)
        if wait is None:
            size_bytes, gate = max(size_of(actors), 1), actors[0].gate
            if reserved_bytes := gate.reserve(size_bytes, here=False):
                return actors, reserved_bytes
            wait = gate.get_in_line(size_bytes)
        left = None if deadline is None else max(0.0, deadline - loop.time())
        try:
            in_time = await settled(wait, left)
        except BaseException:
            actors[0].gate.withdraw(wait)
            raise
        if not in_time:
            actors[0].gate.withdraw(wait)
            raise BlockedError(f"{actors[0].describe()}: blocked for {timeout} seconds")
        if isinstance(wait, Place):
            return actors, size_bytes


async def has_room(find: Callable[[], Sequence[D]], timeout: float | None) -> None:
    """Wait until all queues (or logs of topics) have room. Raises :class:`BlockedError` after ``timeout`` seconds."""
    actors, reserved_bytes = await admitted(find, lambda _: 1, timeout)
    if actors:
        actors[0].gate.leave(reserved_bytes, unused_bytes=reserved_bytes)


def admitted_now(actors: Sequence[D], size_bytes: int, give: Callable[[int], T]) -> T:
    """``give`` what is reserved for messages of that size, all actors having room; raises :class:`BlockedError`."""
    return admit(actors, size_bytes, give, block=False, here=False)
