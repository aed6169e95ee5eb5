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
from warren.salvage.classic.segment_v2 import SegmentV2
from warren.salvage.names import Json
from warren.salvage.queue_directory import Extent, Finding, UnindexedMessage, sized
from warren.salvage.read_only import below

KIND: Final = "rabbitmq-classic-v2"


@attrs.frozen(eq=False, repr=False, kw_only=True)
class ClassicV2Directory(ClassicDirectory[SegmentV2]):
    """Implements :class:`warren.salvage.queue_reader.QueueDirectory`."""

    index: ClassicV2Index
    kind = KIND

    def walk(self, only: range | None = None) -> Iterator[SegmentV2 | Finding]:
        return classic_v2_findings.walk(self.index, only)

    def counts_of(self, segment: SegmentV2) -> dict[str, Json]:
        live, acked = int(segment.live.sum()), int(segment.acked.sum())
        return {
            "number": segment.number,
            "entries": live + acked,
            "live": live,
            "acked": acked,
            "qi_bytes": segment.index_size,
            "qs_bytes": segment.store.size,
        }

    def details(self) -> dict[str, Json]:
        return {"version": 2}

    def extent(self) -> Extent:
        suffixes = (v2.INDEX_SUFFIX, v2.STORE_SUFFIX)
        pieces = {
            number: sized(self.index.files, [below(self.path, f"{number}{suffix}") for suffix in suffixes])
            for number in self.index.numbers()
        }
        return Extent(pieces, (), self.index.entry_count())

    def knows_references(self) -> bool:
        return all(segment.problem is None for segment in self.index.segments())

    def unindexed_messages(self) -> Iterator[UnindexedMessage]:
        return classic_v2_findings.unindexed(self.index)

    def own_findings(self) -> Iterator[Finding | Reference]:
        return classic_v2_findings.of_directory(self.index)
