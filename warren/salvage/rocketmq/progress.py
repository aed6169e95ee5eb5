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
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from warren.msg_store.commit_log import CommitLog

Write = Callable[[bytes | bytearray], object]

_AFTER_S: Final = 1.0
_STEP_BYTES: Final = 1 << 20


@contextmanager
def writing_bar(write: Write, what: str, *, to_stdout: bool) -> Iterator[Write]:
    """The same ``write``, with a line that says how much was written: nobody knows how much it will be.

    ``to_stdout``: that is where it goes; there is no such line where that is a terminal itself.
    """
    if not sys.stderr.isatty() or (to_stdout and sys.stdout.isatty()):
        yield write
        return
    with _late_bar(what, None, FileSizeColumn(), TransferSpeedColumn(), TimeElapsedColumn()) as advance_to:
        written = told = 0

        def counted(data: bytes | bytearray) -> None:
            nonlocal written, told
            write(data)
            written += len(data)
            if written - told >= _STEP_BYTES:  # pieces are small and many
                told = written
                advance_to(written)

        yield counted


@contextmanager
def reading_bar(log: CommitLog, what: str) -> Iterator[Callable[[int], object]]:
    """What is to be told up to which physical offset the CommitLog was read."""
    if not sys.stderr.isatty():
        yield lambda physical_offset: None
        return
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with _late_bar(what, log.end - log.min_offset, *columns) as advance_to:
        yield lambda physical_offset: advance_to(physical_offset - log.min_offset)


@contextmanager
def _late_bar(what: str, total: int | None, *columns: ProgressColumn) -> Iterator[Callable[[int], object]]:
    """What is to be told how many bytes are done; the bar is shown when it has taken a while."""
    bar = Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    begun, shown = time.monotonic(), False

    def advance_to(done: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - begun > _AFTER_S:
            shown = True
            bar.start()
        if shown:
            bar.update(task, completed=done)

    try:
        yield advance_to
    finally:
        if shown:
            bar.stop()
