"""LoopThread: an asyncio event loop in a thread of its own, and the ways into it from other threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from warren.actors.runtime.interrupts import uninterrupted

T = TypeVar("T")


class LoopThread:
    """An event loop that runs from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        name: str,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
        at_end_of_round: Callable[[], bool] = lambda: False,
    ) -> None:
        """``name``: the thread's. ``at_end_of_round``: done behind what was posted; whether it is to be done again."""
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._at_end_of_round = at_end_of_round
        self._posted: deque[Callable[[], None]] = deque()
        self._round_comes = False
        """Whether what is posted is seen to without a word to the loop."""

    def start(self) -> None:
        uninterrupted(self._thread.start)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` in the loop, from another thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def post(self, work: Callable[[], None]) -> None:
        """Do ``work`` in the loop, soon; for any thread. However many come, the loop is told once a round.

        A loop that is closed does none.
        """
        self._posted.append(work)
        self.see_to_round()

    def see_to_round(self) -> None:
        """Have a round, soon; for any thread."""
        if not self._round_comes:
            self._round_comes = True
            with contextlib.suppress(RuntimeError):
                if self._thread is threading.current_thread():
                    self.loop.call_soon(self.end_round)
                else:
                    self.loop.call_soon_threadsafe(self.end_round)

    def begin_round(self) -> None:
        """The loop's own callback does something now; :meth:`end_round` comes next."""
        self._round_comes = True

    def end_round(self) -> None:
        """Do what was posted until now, and what comes at the end. In the loop."""
        again = True
        try:
            for _ in range(len(self._posted)):
                self._posted.popleft()()
            again = self._at_end_of_round()
        finally:
            self._round_comes = False  # before it is looked whether anything was posted meanwhile
            if again or self._posted:
                self.see_to_round()

    def stop(self) -> None:
        """Stop the loop, with what still runs in it, and the thread. From another thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
