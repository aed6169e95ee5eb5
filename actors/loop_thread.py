"""LoopThread: an asyncio event loop in a thread of its own, and the ways into it from other threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop that runs from :meth:`start` to :meth:`stop`."""

    def __init__(self, name: str, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        """``name``: the thread's."""
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._posted: deque[Callable[[], None]] = deque()
        self._told = False

    def start(self) -> None:
        self._thread.start()

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
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):
                if self._thread is threading.current_thread():
                    self.loop.call_soon(self.work_off)
                else:
                    self.loop.call_soon_threadsafe(self.work_off)

    def work_off(self) -> None:
        """Do what was posted, now. In the loop."""
        self._told = False  # first: what is posted from now on tells the loop again
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    def stop(self) -> None:
        """Stop the loop, with what still runs in it, and the thread. From another thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
