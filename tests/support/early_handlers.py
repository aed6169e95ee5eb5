"""Handlers of ``atexit`` that were registered before warren was imported: what is in the list is called then."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Final

EARLY: Final[list[Callable[[], object]]] = []


@atexit.register
def _run() -> None:
    for work in EARLY:
        work()
