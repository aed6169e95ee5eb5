"""A classic queue's directory, version 1: journal and segments, read as a restarting broker reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np

from warren.queue_index.index import directory as disk
from warren.salvage.classic import classic_v1_findings
from warren.salvage.classic.classic_directory import ClassicDirectory
from warren.salvage.classic.classic_v1_index import ClassicV1Index
from warren.salvage.classic.needed_body import Reference
from warren.salvage.classic.positions import Positions
from warren.salvage.names import Json
from warren.salvage.queue_directory import Extent, Finding, SizedFile, sized
from warren.salvage.read_only import below

KIND: Final = "rabbitmq-classic-v1"


@attrs.frozen(eq=False, repr=False, kw_only=True)
class ClassicV1Directory(ClassicDirectory[Positions]):
    """Implements :class:`warren.salvage.queue_reader.QueueDirectory`."""

    index: ClassicV1Index
    kind = KIND

    def walk(self, only: range | None = None) -> Iterator[Positions | Finding]:
        return classic_v1_findings.walk(self.index, only)

    def counts_of(self, segment: Positions) -> dict[str, Json]:
        columns = segment.file.columns
        shorts = np.bincount(columns.delivers)
        return {
            "number": segment.number,
            "publish": len(columns.publish_numbers),
            "deliver": int((shorts >= 1).sum()),
            "ack": int((shorts >= 2).sum()),
            "unacked": int(segment.unacked.sum()),
        }

    def details(self) -> dict[str, Json]:
        with self.index.journal() as journal:
            columns, rest_bytes = journal.file.columns, journal.file.size - journal.file.columns.end
            is_zeros = classic_v1_findings.ends_in_zeros(journal.file)
            persistent = int(columns.publish_persistent.sum())
            counts: dict[str, Json] = {
                "publish_persistent": persistent,
                "publish_transient": len(columns.publish_numbers) - persistent,
                "deliver": len(columns.delivers),
                "ack": len(columns.acks),
                "torn_bytes": 0 if is_zeros else rest_bytes,
                "zero_bytes": rest_bytes if is_zeros else 0,
            }
        return {"version": 1, "journal": counts}

    def extent(self) -> Extent:
        files, journal = self.index.files, below(self.path, disk.JOURNAL_NAME)
        numbers = sorted(self.index.segment_files())
        paths = {number: below(self.path, disk.segment_name(number)) for number in numbers}
        pieces = {number: (SizedFile(path, files.size(path)),) for number, path in paths.items()}
        return Extent(pieces, sized(files, [journal]), self.index.segment_entry_count)

    def own_findings(self) -> Iterator[Finding | Reference]:
        return classic_v1_findings.of_directory(self.index)
