"""How far a query is, on stderr: a line for each scan of a table, by the tasks that its reading is cut into."""

from __future__ import annotations

import time
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

_AFTER_S: Final = 1.0


class ScanBars:
    """Told by :class:`warren.sql.directories.Scanning`; shown when a query has taken a while."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("Reading {task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._begun, self._is_shown = time.monotonic(), False

    def begun(self, table: str, tasks: int) -> TaskID:
        """A scan of a table, with ``tasks`` tasks."""
        return self._bars.add_task(table, total=tasks)

    def advanced(self, scan: TaskID, task: int) -> None:
        """The scan has reached that task."""
        if not self._is_shown and time.monotonic() - self._begun > _AFTER_S:
            self._is_shown = True
            self._bars.start()
        if self._is_shown:
            self._bars.update(scan, completed=task)

    def close(self) -> None:
        """Remove the bars."""
        if self._is_shown:
            self._bars.stop()
