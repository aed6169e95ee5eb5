"""A progress bar on stderr for what takes longer than a second, if stderr is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, TypeAlias

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


Advance: TypeAlias = "AbstractContextManager[Callable[[int], object]]"


def counting_bar(what: str, total: Callable[[], int | None], *, is_shown: bool = True) -> Advance:
    """Yield a function to call with the number of messages done, of about ``total()``, asked only for a bar."""
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("messages"), TimeRemainingColumn()
    return _late_bar(what, total, *columns, is_shown=is_shown)


@contextmanager
def reading_bar(log: CommitLog, what: str, *, is_shown: bool = True) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the physical offset up to which the CommitLog was read."""
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with _late_bar(what, lambda: log.end - log.min_offset, *columns, is_shown=is_shown) as advance_to:
        yield lambda physical_offset: advance_to(physical_offset - log.min_offset)


def unpacking_bar(size: int | None) -> Advance:
    """Yield a function to call with the bytes of an archive that were read, of ``size`` (``None``: unknown)."""
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    return _late_bar("Unpacking", lambda: size, *columns)


def share_bar(what: str, total: int) -> Advance:
    """Yield a function to call with the amount that is done, of ``total``; the bar shows the share."""
    return _late_bar(what, lambda: total, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())


@contextmanager
def _late_bar(
    what: str, total: Callable[[], int | None], *columns: ProgressColumn, is_shown: bool = True
) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the amount that is done; the bar is shown after a while."""
    if not is_shown or not sys.stderr.isatty():
        yield lambda done: None
        return
    bar = Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total())
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
