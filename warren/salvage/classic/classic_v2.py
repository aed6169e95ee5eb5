"""A classic queue's directory, version 2: index segments and the queue's own store, as a restarting broker reads them.

A starting broker acks messages that it cannot find, or that fail a check; here they are findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from warren.queue_index.index import index_v2_format as v2
from warren.salvage.classic import classic_v2_findings
from warren.salvage.classic.classic_directory import ClassicDirectory
from warren.salvage.classic.classic_v2_index import ClassicV2Index
from warren.salvage.classic.needed_body import Reference
from warren.salvage.names import Json
from warren.salvage.queue_directory import (
    Extent,
    Finding,
    OnFinding,
    SegmentColumns,
    Summary,
    UnindexedMessage,
    missing_bodies,
)
from warren.salvage.read_only import below

KIND: Final = "rabbitmq-classic-v2"


@attrs.frozen(eq=False, repr=False, kw_only=True)
class ClassicV2Directory(ClassicDirectory[ClassicV2Index]):
    """Implements :class:`warren.salvage.queue_reader.QueueDirectory`."""

    @property
    def kind(self) -> str:
        return KIND

    def summary(self, report: OnFinding = lambda _: None) -> Summary:
        ready = missing = payload_bytes = 0
        segments: list[Json] = []
        for segment in classic_v2_findings.walk(self.index):
            if isinstance(segment, Finding):
                if segment.severity == "damage":
                    report(segment)
                continue
            live, acked = int(segment.live.sum()), int(segment.acked.sum())
            segments.append(
                {
                    "number": segment.number,
                    "entries": live + acked,
                    "live": live,
                    "acked": acked,
                    "qi_bytes": segment.index_size,
                    "qs_bytes": segment.store.size,
                }
            )
            columns = self.index.columns_of(segment)
            sizes = self.ready_sizes(columns)
            ready += len(sizes)
            missing += int(columns.ready.sum()) - len(sizes)
            payload_bytes += int(sizes.sum())
        if missing:
            report(missing_bodies(self.path, missing))
        return Summary(ready, payload_bytes, {"type": "classic", "version": 2, "segments": segments})

    def extent(self) -> Extent:
        pieces = {
            number: sum(
                self.index.files.size(path)
                for suffix in (v2.INDEX_SUFFIX, v2.STORE_SUFFIX)
                if self.index.files.exists(path := below(self.path, f"{number}{suffix}"))
            )
            for number in self.index.numbers()
        }
        return Extent(pieces, 0, self.index.entry_count())

    def index_columns(self, only: range | None = None) -> Iterator[SegmentColumns | Finding]:
        for segment in classic_v2_findings.walk(self.index, only):
            if isinstance(segment, Finding):
                yield segment
            elif len(columns := self.index.columns_of(segment)):
                yield columns

    def knows_references(self) -> bool:
        return all(segment.problem is None for segment in self.index.segments())

    def unindexed_messages(self) -> Iterator[UnindexedMessage]:
        return classic_v2_findings.unindexed(self.index)

    def own_findings(self) -> Iterator[Finding | Reference]:
        return classic_v2_findings.of_directory(self.index)
