"""The files of a topic store as they are, its settings and its checkpoint, and how findings about them are made.

All checks read through this. *Behind the end* is what recovery would no longer count. After a crash, problems there are
leftovers; so is an index file that recovery deletes. Findings of that kind begin with "leftover", as everywhere.

Damage comes in runs. Neighbouring findings of one kind become one finding (:class:`FindingRuns`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

import attrs

from warren.actors.engines.topics.checkpoint_format import Checkpoint, read_checkpoint
from warren.actors.engines.topics.store_files import ABORT, CHECKPOINT
from warren.actors.engines.topics.topic_store import commit_log_directory
from warren.salvage.queue_directory import Finding, Severity
from warren.salvage.read_only import below
from warren.storage.filesystem import File, FileSystem
from warren.storage.mapped_files import WRONG_LENGTH, missing_file, parse_file_name, wrong_length
from warren.storage.topic_settings import TopicSettings

_LEFTOVER: Final = "leftover"
MISSING_FILE: Final = "missing file"
_OPEN_FILES: Final = 64
_MOST_BASE: Final = (1 << 63) - 1


@attrs.define(eq=False, repr=False)
class StoreFiles:
    """One store. Files stay open, the least recently opened of many are closed."""

    files: FileSystem
    place: str
    settings: TopicSettings
    is_crashed: bool
    checkpoint: Checkpoint
    _open: dict[str, File] = attrs.Factory(dict)

    @classmethod
    def of(cls, files: FileSystem, place: str, settings: TopicSettings) -> StoreFiles:
        path = below(place, CHECKPOINT)
        checkpoint = read_checkpoint(files, path) if not files.is_directory(path) else Checkpoint()
        return cls(files, place, settings, files.exists(below(place, ABORT)), checkpoint)

    def path(self, *names: str) -> str:
        """A path in the store."""
        return below(self.place, "/".join(names))

    @property
    def commit_log(self) -> str:
        """The CommitLog's directory."""
        return commit_log_directory(self.place, self.settings)

    def read(self, path: str, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes of the file."""
        return self.open(path).pread(size, offset)

    def open(self, path: str) -> File:
        """The file, open; to be used before another one is opened."""
        handle = self._open.get(path)
        if handle is None:
            if len(self._open) >= _OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            handle = self._open[path] = self.files.open_read(path)
        return handle

    def close(self) -> None:
        """Close the files."""
        while self._open:
            self._open.popitem()[1].close()


def finding(kind: str, severity: Severity, path: str, offset: int | None, detail: str) -> Finding:
    """A finding; the kind of a leftover begins with "leftover"."""
    is_named = _LEFTOVER in kind
    return Finding(
        f"{_LEFTOVER} {kind}" if severity == _LEFTOVER and not is_named else kind, severity, path, offset, detail
    )


@attrs.define(eq=False, repr=False)
class FindingRuns:
    """Findings that are made one after the other: those of one ``key`` at numbers without a gap become one."""

    _open: dict[Hashable, tuple[int, int, Finding]] = attrs.Factory(dict)
    """The number that would continue it, its length, and its first finding."""

    def add(self, key: Hashable, number: int, finding: Finding, count: int = 1) -> Iterator[Finding]:
        """Add ``count`` findings from ``number`` on, first ``finding``; yield a run that they do not extend."""
        key = (key, finding.kind)
        following, previous_count, first = self._open.get(key, (number, 0, finding))
        if following != number:
            yield _merged(first, previous_count)
            previous_count, first = 0, finding
        self._open[key] = (number + count, previous_count + count, first)

    def finish(self) -> Iterator[Finding]:
        """Those that are still open."""
        for _, count, first in self._open.values():
            yield _merged(first, count)
        self._open.clear()


def _merged(first: Finding, count: int) -> Finding:
    return first if count == 1 else attrs.evolve(first, detail=f"{first.detail}; {count:,} in a row, this is the first")


# ── mapped files ─────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class MappedFile:
    """One of a row of mapped files."""

    base: int
    """The logical offset of its first byte."""
    path: str
    size: int
    """Bytes that are there, up to what the settings say."""
    is_cut_short: bool = False
    """A crash may be the cause, because it is the last file; see :func:`cut_short`."""

    @property
    def end(self) -> int:
        return self.base + self.size


def mapped_files(store_files: StoreFiles, directory: str, file_size: int) -> tuple[list[MappedFile], list[Finding]]:
    """The files of one directory in order, and what is wrong with their names and lengths.

    RocketMQ refuses the whole store for one strange name or length among them.
    """
    files: list[MappedFile] = []
    findings: list[Finding] = []
    for name in store_files.files.list(directory):
        path, base = below(directory, name), parse_file_name(name)
        if base is None or base > _MOST_BASE - file_size or store_files.files.is_directory(path):
            detail = "no mapped file's name; RocketMQ loads no store that has it"
            findings.append(Finding("misplaced file", "damage", path, None, detail))
            continue
        size = store_files.files.size(path)
        if base % file_size:
            detail = f"begins at {base}, which is no multiple of the file size {file_size}"
            findings.append(Finding("wrong file name", "damage", path, None, detail))
        files.append(MappedFile(base, path, size))
    files.sort(key=lambda file: file.base)
    for index, file in enumerate(files):
        is_last = index + 1 == len(files)
        is_short = store_files.is_crashed and is_last and file.size < file_size
        if file.size != file_size and not is_short:
            findings.append(_wrong_length(file, "damage", file_size))
        files[index] = attrs.evolve(file, size=min(file.size, file_size), is_cut_short=is_short)
    for index, file in enumerate(files[1:], start=1):
        previous = files[index - 1]
        expected = previous.base + file_size
        if file.base > expected:
            findings.append(Finding(MISSING_FILE, "damage", file.path, None, missing_file(expected, file.base)))
        elif file.base < expected:
            findings.append(
                Finding("overlapping files", "damage", file.path, None, f"{previous.path} ends at {expected}")
            )
            files[index - 1] = attrs.evolve(previous, size=min(previous.size, file.base - previous.base))
    return files, findings


def cut_short(files: list[MappedFile], file_size: int, *, ends_with_data: bool) -> Iterator[Finding]:
    """The last file, if it is too short.

    A crash explains it if the file ends with the data: it was just made, or cut there to be extended again.
    """
    if files and files[-1].is_cut_short:
        yield _wrong_length(files[-1], "leftover" if ends_with_data or not files[-1].size else "damage", file_size)


def _wrong_length(file: MappedFile, severity: Severity, file_size: int) -> Finding:
    detail = f"{wrong_length(file.size, file_size)}; RocketMQ loads no store that has it"
    return finding(WRONG_LENGTH, severity, file.path, None, detail)
