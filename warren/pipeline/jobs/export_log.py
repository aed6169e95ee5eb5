"""A CommitLog cut into ranges that parallel tasks export, with the very records of ``warren topic scan``.

A range has the records that begin in it. Where the first one does is known of a file's first range only. Elsewhere it
is *guessed*, by a magic code in front of the physical offset of that very place, and the range is *walked*: counted
from there to where the first record behind it begins. Damage, or a body that holds a piece of a CommitLog, makes wrong
guesses; so the ranges of a file are then put in a chain, each beginning where the one before it ended, and what was
walked from elsewhere is walked again (:class:`Chain`). Behind damage a scan goes on where RocketMQ's dispatch does,
which may be the next file; the ranges in between are empty then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Self

import attrs
import numpy as np

from warren.msg_store.commit_log import CommitLog
from warren.msg_store.commit_log_format import Blank, Record
from warren.msg_store.record_check import Failure
from warren.msg_store.record_columns import RecordColumns
from warren.msg_store.record_finder import RecordFinder
from warren.pipeline.places import Node
from warren.pipeline.survey import recovered
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.walking import bad_record, gap, gapless_ranges
from warren.storage.mapped_files import MappedFiles
from warren.storage.topic_settings import TopicSettings

FINEST_BYTES: Final = 16 << 20
"""Of a range: what a part is put together from."""


@attrs.frozen
class Log:
    """A node's CommitLog after its recovery; small, and sent to every task."""

    node: Node
    directory: str
    settings: TopicSettings
    bases: tuple[int, ...]
    end: int

    def opened(self) -> CommitLog:
        """It, to be read."""
        size = self.settings.mapped_file_size_commit_log
        mapped = MappedFiles(self.node.place().files, self.directory, size, list(self.bases), writable=False)
        return CommitLog(mapped, self.settings, self.end, mapped.min_offset)


@attrs.frozen
class LogChunk:
    """A range of one file, in physical offsets."""

    log: Log
    start: int
    stop: int
    file_stop: int
    """Of the file, or of the log in it."""
    begin: int | None
    """Where its first record begins, if that is known; behind ``stop``: it has none."""

    @property
    def node(self) -> Node:
        return self.log.node

    @property
    def byte_count(self) -> int:
        return self.stop - self.start

    @property
    def group(self) -> tuple[str, bytes | None, bytes | None]:
        """What positions are counted in: the store."""
        return self.node.name, None, None

    def joined(self, behind: object) -> LogChunk | None:
        """Both as one; ``None``: they are not neighbours in a file."""
        if not isinstance(behind, LogChunk) or behind.log != self.log or behind.start != self.stop:
            return None
        return attrs.evolve(self, stop=behind.stop) if behind.begin is None else None


@attrs.frozen
class Walked:
    """What a walk through a range found."""

    begin: int
    """Where it began."""
    resume: int
    """Where the first record behind the range begins; the file's end, where none does."""
    count: int


def survey_log(node: Node, settings: Mapping[str, str]) -> tuple[list[LogChunk], list[Finding], list[str]]:
    """The finest ranges of a node's CommitLog, what is missing of it, and what recovery has to say."""
    with recovered(node, settings) as opened:
        log = opened.store.commit_log
        found = Log(node, log.mapped.directory, opened.settings, tuple(log.mapped.bases), log.end)
        whole = list(gapless_ranges(log))
        missing = [gap(log, stop) for _, stop in whole if stop < log.end]
        notes = list(opened.notes)
    chunks = []
    for base in found.bases:
        file_stop = min(base + found.settings.mapped_file_size_commit_log, found.end)
        for start in range(base, file_stop, FINEST_BYTES):
            stop = min(start + FINEST_BYTES, file_stop)
            chunks.append(LogChunk(found, start, stop, file_stop, base if start == base else None))
    return chunks, missing, notes


def walk(chunk: LogChunk) -> Walked:
    """Count a range."""
    log = chunk.log.opened()
    try:
        begin = chunk.begin if chunk.begin is not None else _guess(log, chunk)
        at, count = begin, 0
        for item in log.columns(begin, chunk.file_stop, with_keys=False) if begin < chunk.stop else ():
            if isinstance(item, RecordColumns):
                inside = int(np.searchsorted(item.positions, chunk.stop))
                count += inside
                at = item.stop if inside == len(item) else int(item.positions[inside])
            else:
                at = _behind(item, chunk)
            if at >= chunk.stop:
                break
        return Walked(begin, max(at, chunk.stop), count)
    finally:
        log.close()


def _behind(item: Blank | Failure, chunk: LogChunk) -> int:
    """Where a scan goes on behind what is no message, if that begins in the range."""
    if item.physical_offset >= chunk.stop:
        return item.physical_offset
    resume_at = None if isinstance(item, Blank) else item.resume_at
    return chunk.file_stop if resume_at is None else resume_at


def log_records(chunk: LogChunk) -> Iterator[Record | Finding]:
    """A range's records, and what is none; where its first one begins is to be known."""
    if chunk.begin is None:
        raise RuntimeError(f"nobody says where the first record behind {chunk.start} begins")
    log, at = chunk.log.opened(), chunk.begin
    try:
        for item in log.items(at, chunk.file_stop) if at < chunk.stop else ():
            if isinstance(item, Record):
                if at >= chunk.stop:
                    return
                yield item
                at += item.size
                continue
            at = _behind(item, chunk)
            if item.physical_offset >= chunk.stop:
                return
            if isinstance(item, Failure):
                yield bad_record(log, item)
    finally:
        log.close()


@attrs.define
class Chain:
    """The ranges of a store put behind one another."""

    walked: dict[LogChunk, Walked]
    """Of ranges as they were asked for."""
    chunks: dict[LogChunk, LogChunk] = attrs.Factory(dict)
    """Each range, and the same with its begin."""
    counts: dict[LogChunk, int] = attrs.Factory(dict)
    """Of ranges with their begins."""
    wrong: list[LogChunk] = attrs.Factory(list)
    """Ranges, with their begins, that were walked from elsewhere."""

    @classmethod
    def of(cls, chunks: Iterable[LogChunk], walked: Mapping[LogChunk, Walked]) -> Self:
        """All that is known; the last ranges of a file need not be walked."""
        chain = cls(dict(walked))
        before, resume = None, None
        for chunk in chunks:
            begin = chunk.begin if before is None or chunk.begin is not None else resume
            if begin is None:
                raise RuntimeError(f"what lies ahead of {chunk.start} was not walked")
            resume = chain._add(chunk, attrs.evolve(chunk, begin=begin), begin)
            before = chunk
        return chain

    def _add(self, chunk: LogChunk, at: LogChunk, begin: int) -> int | None:
        """The range, now that its begin is known; returns where the next one's is, if that is known."""
        self.chunks[chunk] = at
        if begin >= chunk.stop:
            self.counts[at] = 0
            return begin
        known = self.walked.get(at) or self.walked.get(chunk)
        if known is None:
            return None
        if known.begin == begin:
            self.counts[at] = known.count
        else:
            self.wrong.append(at)
        return known.resume


def _guess(log: CommitLog, chunk: LogChunk) -> int:
    """Where the first sound record of a range begins; the range's end: none does."""
    found = RecordFinder(read=log.mapped.read, end=chunk.file_stop).first(chunk.start, chunk.stop)
    return chunk.stop if found is None else found
