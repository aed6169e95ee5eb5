"""What a task does where something cannot be read: it goes on behind it, or stops, as ``mode`` says.

What the system does not give away is damage on this machine's disks. On an object store it may come the next time:
there the task fails, and Spark tries it again.
"""

from __future__ import annotations

import attrs

from storage.errors import DataError, StorageError
from warren.pipeline.options import ReadOptions
from warren.pipeline.places import Node
from warren.salvage.classic_v1 import ClassicV1Directory
from warren.salvage.index_file import IndexFile
from warren.salvage.positions import Positions
from warren.salvage.queue_directory import UNREADABLE_FILE, Finding


@attrs.frozen
class Damage:
    """Told of everything that a task meets."""

    node: Node
    options: ReadOptions

    @property
    def stops(self) -> bool:
        """Whether damage stops the task."""
        return self.options.mode == "failfast"

    def found(self, path: str, offset: int | None, reason: str) -> None:
        """Something is lost; raises :class:`DataError` with ``mode=failfast``."""
        if self.stops:
            raise DataError(path, offset, reason)

    def finding(self, finding: Finding) -> None:
        """The same, as salvage says it."""
        if finding.kind == UNREADABLE_FILE and self.node.is_remote:
            raise StorageError(str(finding))
        if finding.severity == "damage":
            self.found(finding.path, finding.offset, f"{finding.kind}: {finding.detail}")

    def refused(self, path: str, error: StorageError) -> None:
        """The system does not give a file away; raises that error where the file is on another machine."""
        if self.node.is_remote:
            raise error
        self.found(path, None, f"unreadable file: {error}")

    def journal(self, file: IndexFile) -> None:
        """Look at a queue's journal."""
        if file.problem is not None:
            self.refused(file.path, file.problem)
        end, reason = file.columns.end, file.columns.reason
        if self.stops and reason != "complete" and file.has_bytes_behind(end):
            self.found(file.path, end, f"torn record: {file.size - end} bytes that hold no whole record")

    def segment(self, positions: Positions) -> None:
        """Look at a segment of a queue."""
        file = positions.file
        if file.problem is not None:
            self.refused(file.path, file.problem)
        for one in positions.file_findings:
            self.found(file.path, one.offset, f"{one.kind}: {one.detail}")
        for one in positions.journal_findings:
            self.found(positions.journal.path, one.offset, f"{one.kind}: {one.detail}")

    def look_at(self, directory: ClassicV1Directory, segments: range) -> None:
        """Look at these segments of a queue before they are read, where damage or another machine may stop it."""
        if self.stops or self.node.is_remote:
            with directory.journal() as journal:
                self.journal(journal.file)
                for positions in directory.segments(journal, segments):
                    self.segment(positions)
