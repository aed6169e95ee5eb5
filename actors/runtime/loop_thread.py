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
        """``name``: the thread's. ``at_end_of_round``: called after posted work; returns whether to repeat."""
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._at_end_of_round = at_end_of_round
        self._posted: deque[Callable[[], None]] = deque()
        self._round_comes = False
        """Whether a round is scheduled, so that posting need not call the loop."""

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
        """Run ``work`` in the loop, from another thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def post(self, work: Callable[[], None]) -> None:
        """Call ``work`` in the loop, soon; from any thread. The loop is woken at most once a round.

        A closed loop ignores it.
        """
        self._posted.append(work)
        self.see_to_round()

    def see_to_round(self) -> None:
        """Schedule a round; from any thread."""
        if not self._round_comes:
            self._round_comes = True
            with contextlib.suppress(RuntimeError):
                if self._thread is threading.current_thread():
                    self.loop.call_soon(self.end_round)
                else:
                    self.loop.call_soon_threadsafe(self.end_round)

    def begin_round(self) -> None:
        """Note that a callback of the loop runs now and that :meth:`end_round` follows."""
        self._round_comes = True

    def end_round(self) -> None:
        """Do the work posted so far, then call ``at_end_of_round``. In the loop."""
        again = True
        try:
            for _ in range(len(self._posted)):
                self._posted.popleft()()
            again = self._at_end_of_round()
        finally:
            self._round_comes = False  # before checking whether anything was posted meanwhile
            if again or self._posted:
                self.see_to_round()

    def stop(self) -> None:
        """Stop the loop, its tasks, and the thread. From another thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
