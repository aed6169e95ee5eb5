"""A progress bar on stderr for what takes longer than a second, where somebody looks at a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from msg_store.commit_log import CommitLog

_AFTER_S: Final = 1.0


@contextmanager
def reading_bar(log: CommitLog, what: str) -> Iterator[Callable[[int], object]]:
    """What is to be told up to which physical offset the CommitLog was read."""
    if not sys.stderr.isatty():
        yield lambda physical_offset: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=log.end - log.min_offset)
    begun, shown = time.monotonic(), False

    def advance(physical_offset: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - begun > _AFTER_S:
            shown = True
            bar.start()
        if shown:
            bar.update(task, completed=physical_offset - log.min_offset)

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
