"""A progress bar on stderr for what takes longer than a second, where somebody looks at a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    FileSizeColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from warren.msg_store.commit_log import CommitLog

_AFTER_S: Final = 1.0
_STEP_BYTES: Final = 1 << 20


@contextmanager
def writing_bar(write: Callable[[bytes], object], what: str, *, to_stdout: bool) -> Iterator[Callable[[bytes], object]]:
    """The same ``write``, with a line that says how much was written: nobody knows how much it will be.

    ``to_stdout``: that is where it goes; there is no such line where that is a terminal itself.
    """
    if not sys.stderr.isatty() or (to_stdout and sys.stdout.isatty()):
        yield write
        return
    columns = (TextColumn("{task.description}"), FileSizeColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    begun, shown, pending = time.monotonic(), False, 0

    def counted(data: bytes) -> None:
        nonlocal shown, pending
        write(data)
        pending += len(data)
        if pending >= _STEP_BYTES:  # pieces are small and many
            bar.advance(task, pending)
            pending = 0
            if not shown and time.monotonic() - begun > _AFTER_S:
                shown = True
                bar.start()

    try:
        yield counted
    finally:
        if shown:
            bar.stop()


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
