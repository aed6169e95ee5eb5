"""Waiting for what another process or thread does: until it is seen, with a deadline; and what was logged of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pytest


POLL_INTERVAL_S = 0.02
PATIENCE_S = 60.0
"""A busy machine is no failure."""


class Process(Protocol):
    def poll(self) -> int | None: ...


def wait_until(
    condition: Callable[[], object],
    what: str,
    *,
    process: Process | None = None,
    patience_s: float = PATIENCE_S,
    interval_s: float = POLL_INTERVAL_S,
) -> None:
    """Ask ``condition`` until it holds. Raises :class:`AssertionError` where ``process`` ends, or it takes too long."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert process is None or process.poll() is None, f"the process ended: {what}"
        assert time.monotonic() < deadline, what
        time.sleep(interval_s)


def together(*works: Callable[[], object]) -> None:
    """Run these at once, in a thread each; raise the first error. Raises :class:`AssertionError` where one hangs."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_S
    for thread in threads:
        while thread.is_alive() and not errors:
            assert time.monotonic() < deadline, "somebody hangs"
            thread.join(POLL_INTERVAL_S)
    if errors:
        raise errors[0]


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[tuple[int, object]]:
    """Level and count of each record of an event."""
    found = [record for record in caplog.records if getattr(record, "event", None) == name]
    return [(record.levelno, getattr(record, "count", None)) for record in found]
