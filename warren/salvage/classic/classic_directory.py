"""What the directories of classic queues have in common, and their indexes, whatever the version.

A restarted broker delivers a queue's persistent messages that are not acked in the order of their seq_ids; after a
clean stop, which leaves terms, only those below ``next_seq_id``. Those below ``next_deliver_seq_id`` were delivered
before; without terms, all were.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, Generic, TypeVar

import attrs
import numpy as np

from warren.queue_index.index.record_format import Bools, Ints
from warren.queue_index.index.recovery_terms import RecoveryTerms
from warren.salvage.names import Json
from warren.salvage.queue_directory import (
    BodySource,
    Finding,
    OnFinding,
    SegmentColumns,
    StoredMessage,
    Summary,
    missing_bodies,
)
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.read_only import ReadOnlyFileSystem, below

CHANGED: Final = "changed since the clean stop"
"""Kind of a finding: the files do not match the counts of the clean stop."""
UNCOUNTED: Final = "leftover without counts"
"""Kind of a finding: a file is missing or empty; it is either not needed or lost, and no count tells which."""


_Segment = TypeVar("_Segment")


@attrs.frozen(eq=False, repr=False, kw_only=True)
class ClassicIndex(Generic[_Segment]):
    """The index of one queue's directory: its files, and the terms of a clean stop."""

    files: ReadOnlyFileSystem
    path: str
    """The directory."""
    terms: RecoveryTerms | None
    """``None``: the queue was not stopped cleanly."""
    is_converting: bool = False
    """Whether it is one of two, of a directory whose conversion was interrupted."""

    @abstractmethod
    def segment_columns(self, only: range | None = None, *, stored: bool = False) -> Iterator[SegmentColumns]:
        """The segments as :meth:`warren.salvage.queue_reader.QueueDirectory.segment_columns` yields them."""

    @abstractmethod
    def columns_of(self, segment: _Segment, *, stored: bool = False) -> SegmentColumns:
        """A row for each message of an open segment; ``stored``: only those in the vhost's store."""

    def seen(self, seq_ids: Ints) -> Bools:
        """Which seq_ids a restarted broker looks at."""
        if self.terms is None or self.terms.next_seq_id is None:
            return np.ones(len(seq_ids), np.bool_)
        return seq_ids < self.terms.next_seq_id

    def redelivered(self, seq_ids: Ints) -> Bools:
        """Which were delivered before, as far as the terms tell."""
        below_seq_id = None
        if self.terms is not None:
            terms = self.terms
            below_seq_id = terms.next_seq_id if terms.next_deliver_seq_id is None else terms.next_deliver_seq_id
        return np.ones(len(seq_ids), np.bool_) if below_seq_id is None else seq_ids < below_seq_id

    def changed(
        self,
        recorded: Mapping[int, int],
        live: Mapping[int, int],
        persistent_live: int,
        only: range | None,
        words: tuple[Callable[[int], str], str],
    ) -> Iterator[Finding]:
        """Compare the counts of a clean stop with the files; nothing else reveals a missing file.

        ``recorded``, ``live``: messages by segment; ``words``: a function that names a segment's file, and a noun.
        """
        if self.terms is None:
            return
        file_name, noun = words
        numbers = (
            (recorded.keys() | live.keys())
            if only is None
            else filter(only.__contains__, recorded.keys() | live.keys())
        )
        for number in sorted(numbers):
            counted, current = recorded.get(number, 0), live.get(number, 0)
            if counted != current:
                detail = f"{counted} {noun} at the clean stop, {current} now"
                yield Finding(CHANGED, "damage", below(self.path, file_name(number)), None, detail)
        if only is None and self.terms.persistent_count not in (None, persistent_live):
            detail = f"{self.terms.persistent_count} persistent messages at the clean stop, {persistent_live} now"
            yield Finding(CHANGED, "damage", self.path, None, detail)

    @property
    def is_counted(self) -> bool:
        """Whether messages whose index files are missing are known from elsewhere: from the terms of a clean stop, or
        from the index of the other version."""
        return self.terms is not None or self.is_converting

    def missing_segments(
        self, present: Collection[int], is_full: bool, file_name: Callable[[int], str]
    ) -> Iterator[Finding]:
        """Segments that have no file after a crash: a broker deletes those whose messages are all acked.

        ``present``: segments that have a file, or need none; ``is_full``: whether the last of them is full.
        """
        if self.is_counted:
            return
        end = max(present, default=0) + 1 + (is_full and bool(present))
        first = 0
        for number in sorted({*present, end}):
            if number > first:
                others = f" to {file_name(number - 1)}" if number - 1 > first else ""
                detail = f"{file_name(first)}{others}: all of the messages were acked, or they are lost"
                yield Finding(UNCOUNTED, "leftover", below(self.path, file_name(first)), None, detail)
            first = number + 1


@attrs.frozen(eq=False, repr=False, kw_only=True)
class ClassicDirectory(QueueDirectory, Generic[_Segment]):
    """Each version implements the rest of :class:`warren.salvage.queue_reader.QueueDirectory`."""

    index: ClassicIndex[_Segment]
    name: bytes
    bodies: BodySource
    """The vhost's persistent store."""

    @property
    def path(self) -> str:
        return self.index.path

    @abstractmethod
    def walk(self, only: range | None = None) -> Iterator[_Segment | Finding]:
        """The segments in order, each open until the next, and all findings about the index files."""

    @abstractmethod
    def counts_of(self, segment: _Segment) -> dict[str, Json]:
        """A segment's own files in numbers."""

    @abstractmethod
    def details(self) -> dict[str, Json]:
        """The version first, and what else it has in numbers."""

    def summary(self, report: OnFinding = lambda _: None) -> Summary:
        ready = missing = payload_bytes = 0
        segments: list[Json] = []
        for segment in self.walk():
            if isinstance(segment, Finding):
                if segment.severity == "damage":
                    report(segment)
                continue
            segments.append(self.counts_of(segment))
            columns = self.index.columns_of(segment)
            sizes = self.ready_sizes(columns)
            ready += len(sizes)
            missing += int(columns.ready.sum()) - len(sizes)
            payload_bytes += int(sizes.sum())
        if missing:
            report(missing_bodies(self.path, missing))
        return Summary(ready, payload_bytes, {"type": "classic", **self.details(), "segments": segments})

    def segment_columns(self, only: range | None = None, *, stored: bool = False) -> Iterator[SegmentColumns]:
        return self.index.segment_columns(only, stored=stored)

    def index_columns(self, only: range | None = None) -> Iterator[SegmentColumns | Finding]:
        for segment in self.walk(only):
            if isinstance(segment, Finding):
                yield segment
            elif len(columns := self.index.columns_of(segment)):
                yield columns

    def deliveries(
        self, only: range | None, *, include_acked: bool
    ) -> Iterator[SegmentColumns | StoredMessage | Finding]:
        return self.index_columns(only)
