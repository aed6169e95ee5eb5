"""A progress bar on stderr for what takes longer than a second, if stderr is a terminal."""

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
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from warren.msg_store.commit_log.commit_log import CommitLog

_AFTER_S: Final = 1.0


@contextmanager
def counting_bar(
    what: str, total: Callable[[], int | None], *, is_shown: bool = True
) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the number of messages done, of about ``total()``, asked only for a bar."""
    if not is_shown or not sys.stderr.isatty():
        yield lambda done: None
        return
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("messages"), TimeRemainingColumn()
    with _late_bar(what, total(), *columns) as advance_to:
        yield advance_to


@contextmanager
def reading_bar(log: CommitLog, what: str, *, is_shown: bool = True) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the physical offset up to which the CommitLog was read."""
    if not is_shown or not sys.stderr.isatty():
        yield lambda physical_offset: None
        return
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with _late_bar(what, log.end - log.min_offset, *columns) as advance_to:
        yield lambda physical_offset: advance_to(physical_offset - log.min_offset)


@contextmanager
def unpacking_bar(size: int | None) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the bytes of an archive that were read, of ``size`` (``None``: unknown)."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with _late_bar("Unpacking", size, *columns) as advance_to:
        yield advance_to


@contextmanager
def share_bar(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the amount that is done, of ``total``; the bar shows the share."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    with _late_bar(what, total, BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) as advance_to:
        yield advance_to


@contextmanager
def _late_bar(what: str, total: int | None, *columns: ProgressColumn) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the amount that is done; the bar is shown after a while."""
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
