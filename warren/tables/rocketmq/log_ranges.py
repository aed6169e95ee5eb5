"""A CommitLog cut into ranges of bytes that parallel tasks read; together they give what one reader would get.

A range has the records that begin in it; the last one is read beyond the range's end. Where its first record begins is
known only for a file's first range. Elsewhere it is *guessed*: the first sound position
(:mod:`warren.msg_store.commit_log.record_finder`). Damage, or a body that holds a copy of a CommitLog, makes wrong
guesses. So afterwards the ranges of a file are put in a *chain*: each must begin where the one before it ended. One
that does not is read again, from the right position (:func:`chain`). After damage a reader goes on where RocketMQ's
dispatch does, which may be the next file; the ranges in between are empty then.

The tasks of the table ``records`` read such ranges, too, but each on its own and over damage, without a second pass: by
:class:`~warren.msg_store.commit_log.record_search.RecordSearch`, which looks ahead of its range instead.

Recovery determines the end of the log: it reads the last files and checks their CRCs. The ranges can do that too:
from :attr:`LogLayout.checked_from` on every record's CRC is compared, and the first failure there is the end. Recovery
then only has to read on from the last good record (``good_until``). Or the end is known, because recovery came first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import attrs

from warren.actors.engines.topics.checkpoint_format import read_checkpoint
from warren.actors.engines.topics.store_files import ABORT, CHECKPOINT
from warren.actors.engines.topics.store_recovery import reading_start
from warren.actors.engines.topics.topic_store import commit_log_directory
from warren.msg_store.commit_log.commit_log import CommitLog
from warren.msg_store.commit_log.commit_log_format import Blank
from warren.msg_store.commit_log.record_check import Failure
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.msg_store.commit_log.record_finder import RecordFinder
from warren.msg_store.commit_log.record_scan import read_columns
from warren.salvage.rocketmq.inference import infer
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore
from warren.storage.mapped_files import MappedFiles, file_name
from warren.storage.topic_settings import TopicSettings
from warren.tables.places import Node
from warren.tables.survey import recovered


@attrs.frozen(kw_only=True)
class LogLayout:
    """Files and settings of a node's CommitLog; small, and sent to every task."""

    node: Node
    directory: str
    """The store's."""
    settings: TopicSettings
    bases: tuple[int, ...]
    """Physical offsets of its files' first bytes."""
    end: int
    """The end of the last file; or the log's end, if that is known."""
    was_clean: bool
    checked_from: int | None = None
    """From where on recovery reads with CRCs; ``None``: the end is known."""

    @classmethod
    def of_recovered(cls, node: Node, opened: RocketmqStore) -> Self:
        """Return the layout of a store after its recovery."""
        log = opened.store.commit_log
        return cls(
            node=node,
            directory=opened.directory,
            settings=opened.settings,
            bases=tuple(log.mapped.bases),
            end=log.end,
            was_clean=opened.store.was_clean,
        )

    def commit_log(self) -> CommitLog:
        """Open the CommitLog for reading."""
        place = commit_log_directory(self.directory, self.settings)
        size = self.settings.mapped_file_size_commit_log
        mapped = MappedFiles(self.node.place().files, place, size, list(self.bases), writable=False)
        return CommitLog(mapped, self.settings, self.end, mapped.min_offset)


def layout_of(node: Node, changes: Mapping[str, str]) -> LogLayout:
    """The layout before recovery. Raises :class:`DataError` without a store that RocketMQ would accept."""
    place = node.place()
    directory = place.store()
    settings, _, _ = infer(place.files, directory, changes)
    if settings.rebuild_after_crash:  # its recovery may end the log for other reasons
        with recovered(node, changes) as opened:
            return LogLayout.of_recovered(node, opened)
    log = CommitLog.load(place.files, commit_log_directory(directory, settings), settings, writable=False)
    was_clean = not place.files.exists(f"{directory}/{ABORT}")
    start = None
    if log.mapped.bases:
        checkpoint = read_checkpoint(place.files, f"{directory}/{CHECKPOINT}")
        start = reading_start(log.mapped.read, log.mapped.bases, settings, checkpoint, was_clean=was_clean)
    log.close()
    return LogLayout(
        node=node,
        directory=directory,
        settings=settings,
        bases=tuple(log.mapped.bases),
        end=log.end,
        was_clean=was_clean,
        checked_from=start,
    )


# ── ranges ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class Range:
    """A part of one CommitLog file, in physical offsets."""

    layout: LogLayout
    """Without the other files."""
    base: int
    """The file's first byte."""
    start: int
    stop: int
    file_stop: int
    """After the last byte of the file that may belong to a record."""
    is_checked: bool
    """CRCs are looked at, and the first failure is the log's end."""
    first: int | None
    """Where its first record begins, if that is known; from ``stop`` on: it has no record."""

    @property
    def path(self) -> str:
        """Of the file."""
        return f"{commit_log_directory(self.layout.directory, self.layout.settings)}/{file_name(self.base)}"

    @property
    def file_end(self) -> int:
        """After the last byte of the file."""
        return self.base + self.layout.settings.mapped_file_size_commit_log

    def between(self, start: int, stop: int) -> Range:
        """Another part of the file."""
        return attrs.evolve(self, start=start, stop=stop, first=None)

    def joined(self, behind: object) -> Range | None:
        """Return both as one range; ``None`` if they are not neighbours in a file."""
        if not isinstance(behind, Range) or (behind.base, behind.start) != (self.base, self.stop):
            return None
        return attrs.evolve(self, stop=behind.stop) if behind.layout == self.layout else None


def ranges(layout: LogLayout, range_bytes: int) -> list[Range]:
    """The whole CommitLog, in ranges of about ``range_bytes``."""
    parts = []
    for base in layout.bases:
        file_layout = attrs.evolve(layout, bases=(base,))
        file_stop = min(base + layout.settings.mapped_file_size_commit_log, layout.end)
        is_checked = layout.checked_from is not None and base >= layout.checked_from
        for start in range(base, file_stop, range_bytes):
            parts.append(
                Range(
                    layout=file_layout,
                    base=base,
                    start=start,
                    stop=min(start + range_bytes, file_stop),
                    file_stop=file_stop,
                    is_checked=is_checked,
                    first=base if start == base else None,
                )
            )
    return parts


@attrs.frozen(kw_only=True)
class Outcome:
    """How the reading of a range went."""

    start: int | None
    """Where its first record begins, or what was taken for it; ``None``: none was found."""
    resume: int
    """Where the first record after it begins; if it :attr:`is_over`, a blank or a failure is there."""
    is_over: bool
    """Nothing after it in the file counts."""
    is_end: bool
    """Nothing after it in the log counts."""
    records: int
    failures: tuple[Failure, ...]
    """The invalid records, in order, without the one that ends the log."""


@attrs.define
class RangeWalk:
    """One reading of a range: :meth:`columns` once, then :attr:`outcome`."""

    part: Range
    with_keys: bool = False
    _outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        if self._outcome is None:
            raise RuntimeError("a walk that has not come to its end")
        return self._outcome

    def columns(self) -> Iterator[RecordColumns]:
        """The good records, many at a time."""
        part, log = self.part, self.part.layout.commit_log()
        start = part.first
        if start is None:
            start = RecordFinder(read=log.mapped.read, end=part.file_stop).first(part.start, part.stop)
        failures: list[Failure] = []
        resume, is_over, is_end, records = part.stop if start is None else start, False, False, 0
        items = iter(()) if start is None or start >= part.stop else self._items(log, start)
        try:
            for item in items:
                if isinstance(item, RecordColumns):
                    inside_count = int(item.positions.searchsorted(part.stop))
                    resume = item.stop if inside_count == len(item) else int(item.positions[inside_count])
                    records += inside_count
                    yield item if inside_count == len(item) else item.take(slice(inside_count))
                elif isinstance(item, Blank) or part.is_checked:
                    resume, is_over, is_end = item.physical_offset, True, isinstance(item, Failure)
                    break
                else:
                    failures.append(item)
                    resume = item.physical_offset if item.resume_at is None else item.resume_at
                    is_over = item.resume_at is None
                if resume >= part.stop:
                    break
        finally:
            log.close()
        self._outcome = Outcome(
            start=start, resume=resume, is_over=is_over, is_end=is_end, records=records, failures=tuple(failures)
        )

    def _items(self, log: CommitLog, start: int) -> Iterator[RecordColumns | Blank | Failure]:
        settings = self.part.layout.settings
        return read_columns(
            log.mapped.read,
            start,
            self.part.file_stop,
            check_crc=self.part.is_checked and settings.check_crc_on_recover,
            delay_levels_ms=settings.delay_levels_ms(),
            with_keys=self.with_keys,
        )


def walked(part: Range) -> Outcome:
    """Read a range only for its outcome."""
    walk = RangeWalk(part)
    for _ in walk.columns():
        pass
    return walk.outcome


# ── the chain ────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Chain:
    """The result of putting the ranges of a log together."""

    chained: tuple[int, ...]
    """Numbers of the ranges that count, in order; the others have no record, or were not read."""
    wrong: Mapping[int, int]
    """Numbers of the ranges that have to be read again, and where the first record of each is."""
    good_until: int
    """Where a record begins up to which recovery would find nothing wrong."""
    firsts: Mapping[int, int]
    """Where the first record of each range is, as far as that is known; from its end on: it has no record."""


def chain(parts: Sequence[Range], outcomes: Sequence[Outcome | None]) -> Chain:
    """Put the ranges of one log together, in order; ``None``: the last of a file need not be read.

    After a wrong range the next one is trusted for now: call this again when the wrong one has been read again.
    """
    chained: list[int] = []
    wrong: dict[int, int] = {}
    firsts: dict[int, int] = {}
    expected: int | None = None
    is_over = is_end = False
    good_until = 0
    for number, (part, outcome) in enumerate(zip(parts, outcomes, strict=True)):
        if part.start == part.base:
            expected, is_over = part.base, False
        if is_over or is_end:
            firsts[number] = part.file_stop
            continue
        if expected is not None:
            firsts[number] = expected
            if expected >= part.stop:
                continue
        if outcome is None:
            expected = None
        elif expected is not None and outcome.start != expected:
            wrong[number], expected = expected, None
        elif outcome.start is not None:
            chained.append(number)
            is_over, is_end = outcome.is_over, outcome.is_end
            expected = good_until = outcome.resume
    return Chain(tuple(chained), wrong, good_until, firsts)
