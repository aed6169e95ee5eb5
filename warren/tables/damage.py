"""What a task does if something cannot be read: it goes on after it, or stops, as ``mode`` says.

A read error is damage on this machine's disks. On an object store a later attempt may succeed: there the task fails,
and Spark tries it again.
"""

from __future__ import annotations

import attrs

from warren.salvage.queue_directory import UNREADABLE_FILE, Finding
from warren.salvage.queue_reader import QueueDirectory
from warren.storage.errors import DataError, StorageError
from warren.tables.places import Node
from warren.tables.read_options import ReadOptions


@attrs.frozen
class Damage:
    """Receives every problem that a task meets."""

    node: Node
    options: ReadOptions

    @property
    def stops(self) -> bool:
        """Whether damage stops the task."""
        return self.options.mode == "failfast"

    def report(self, path: str, offset: int | None, reason: str) -> None:
        """Report lost data; raises :class:`DataError` with ``mode=failfast``."""
        if self.stops:
            raise DataError(path, offset, reason)

    def finding(self, finding: Finding) -> None:
        """Report a finding of salvage."""
        if finding.kind == UNREADABLE_FILE and self.node.is_remote:
            raise StorageError(str(finding))
        if finding.severity == "damage":
            self.report(finding.path, finding.offset, f"{finding.kind}: {finding.detail}")

    def refused(self, path: str, error: StorageError) -> None:
        """Report a file that cannot be opened; raises the error if the file is on another machine."""
        if self.node.is_remote:
            raise error
        self.report(path, None, f"unreadable file: {error}")

    def look_at(self, directory: QueueDirectory, segments: range) -> None:
        """Check these segments of a queue before they are read, if a problem in them may stop the task."""
        if self.stops or self.node.is_remote:
            for columns in directory.index_columns(segments):
                if isinstance(columns, Finding):
                    self.finding(columns)
