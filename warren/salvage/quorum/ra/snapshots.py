"""Which snapshot of a queue counts: the newest, by index and term, whose checksum is right.

::

    snapshots/<term>_<index>/snapshot.dat      both as sixteen hexadecimal digits
                            /indexes           from RabbitMQ 4.3 on
    checkpoints/…                              from 4.0 on, the same: states that are no snapshots yet

The log continues after the snapshot, so a damaged one loses all that the log no longer has. An older one counts in its
place, or a checkpoint: with a hole after it if the log begins later. Anything with another name, or without a finished
snapshot in it, is what a crash left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import attrs

from warren.salvage.queue_directory import Finding, damage_by
from warren.salvage.quorum.ra.entry_runs import crc32_of
from warren.salvage.quorum.ra.snapshot_format import (
    MAX_META_BYTES,
    META_LENGTH,
    SNAPSHOT_HEADER,
    Member,
    Ranges,
    SnapshotMeta,
    parse_header,
    parse_indexes,
    parse_meta,
)
from warren.storage.erlang_terms import Term, decode
from warren.storage.errors import DataError, StorageError, TermError, WarrenError
from warren.storage.filesystem import FileSystem

SNAPSHOTS: Final = "snapshots"
CHECKPOINTS: Final = "checkpoints"
SNAPSHOT_NAME: Final = "snapshot.dat"
INDEXES_NAME: Final = "indexes"
ACCEPTING_NAME: Final = "accepting"
"""Beside a snapshot that another member was still sending."""
DAMAGED_SNAPSHOT: Final = "damaged snapshot"
UNFINISHED_SNAPSHOT: Final = "unfinished snapshot"

MAX_SNAPSHOT_BYTES: Final = 2 << 30
"""Its state is decoded in memory. Where bodies stand in the log, as they do from 3.10 on, that of a hundred million
messages takes as much."""
MAX_INDEXES_BYTES: Final = 1 << 28
_DIRECTORY = re.compile(r"([0-9A-Fa-f]{16})_([0-9A-Fa-f]{16})")


@attrs.frozen
class SnapshotInfo:
    """A snapshot whose checksum is right."""

    path: str
    index: int
    term: int
    machine_version: int
    members: tuple[Member, ...]
    indexes: Ranges
    """Entries up to its index that are still needed, as ranges (first, last); from 4.3 on."""
    state_offset: int
    files: FileSystem = attrs.field(repr=False, eq=False)

    def state(self) -> Term:
        """The machine's state. Raises :class:`DataError` if it is no term."""
        with closing(self.files.open_read(self.path)) as handle:
            data = handle.pread(max(0, handle.size() - self.state_offset), self.state_offset)
        try:
            return decode(data)
        except TermError as error:
            raise DataError(self.path, self.state_offset, f"no state: {error}") from error


@attrs.frozen
class _Candidate:
    directory: str
    index: int
    term: int

    @property
    def path(self) -> str:
        return f"{self.directory}/{SNAPSHOT_NAME}"


def find_snapshot(files: FileSystem, directory: str, problems: list[Finding]) -> SnapshotInfo | None:
    """The snapshot that counts in a queue's directory; what is wrong with others is added to ``problems``."""
    damaged: Finding | None = None
    for place in (SNAPSHOTS, CHECKPOINTS):
        for candidate in _candidates(files, f"{directory}/{place}", problems):
            try:
                snapshot = _read(files, candidate, problems)
            except (DataError, StorageError) as error:
                problem = _problem_with(files, candidate, error)
                problems.append(problem)
                damaged = damaged or (problem if problem.severity == "damage" else None)
                continue
            if damaged is not None:
                detail = f"counts in place of the damaged {damaged.path}"
                problems.append(Finding("older snapshot", "damage", snapshot.path, None, detail))
            return snapshot
        if damaged is None:
            return None  # a checkpoint counts only in place of a snapshot
    return None


def _candidates(files: FileSystem, directory: str, problems: list[Finding]) -> Iterator[_Candidate]:
    """The finished ones in ``directory``, newest first."""
    candidates: list[_Candidate] = []
    for name in files.list(directory):
        match = _DIRECTORY.fullmatch(name)
        if match is None:
            problems.append(Finding("leftover file", "leftover", f"{directory}/{name}", None, "no snapshot's name"))
        elif files.exists(f"{directory}/{name}/{ACCEPTING_NAME}"):
            detail = "it was still being received"
            problems.append(Finding(UNFINISHED_SNAPSHOT, "leftover", f"{directory}/{name}", None, detail))
        else:
            candidates.append(_Candidate(f"{directory}/{name}", int(match[2], 16), int(match[1], 16)))
    yield from sorted(candidates, key=lambda candidate: (candidate.index, candidate.term), reverse=True)


def _problem_with(files: FileSystem, candidate: _Candidate, error: WarrenError) -> Finding:
    """Why a snapshot does not count. A crash leaves a directory without a file, or with an empty one."""
    try:
        is_unfinished = SNAPSHOT_NAME not in files.list(candidate.directory) or not files.size(candidate.path)
    except StorageError as refused:
        return damage_by(refused, DAMAGED_SNAPSHOT, candidate.directory)
    if is_unfinished:
        return Finding(UNFINISHED_SNAPSHOT, "leftover", candidate.directory, None, "no snapshot in it")
    return damage_by(error, DAMAGED_SNAPSHOT, candidate.path)


def _read(files: FileSystem, candidate: _Candidate, problems: list[Finding]) -> SnapshotInfo:
    path = candidate.path
    meta, state_offset = _read_meta(files, path)
    if (meta.index, meta.term) != (candidate.index, candidate.term):
        detail = f"says index {meta.index}, term {meta.term}, other than its directory's name"
        problems.append(Finding(DAMAGED_SNAPSHOT, "damage", path, None, detail))
    return SnapshotInfo(
        path=path,
        index=meta.index,
        term=meta.term,
        machine_version=meta.machine_version,
        members=meta.members,
        indexes=_read_indexes(files, f"{candidate.directory}/{INDEXES_NAME}", problems),
        state_offset=state_offset,
        files=files,
    )


def _read_meta(files: FileSystem, path: str) -> tuple[SnapshotMeta, int]:
    """The meta term of a whole, sound snapshot, and where the state begins."""
    with closing(files.open_read(path)) as handle:
        size = handle.size()
        if size > MAX_SNAPSHOT_BYTES:
            raise DataError(path, None, f"a snapshot of {size:,} bytes, more than {MAX_SNAPSHOT_BYTES:,}")
        start = SNAPSHOT_HEADER.size
        checksum = parse_header(handle.pread(start, 0), path)
        if crc32_of(handle, start, size - start) != checksum:
            raise DataError(path, None, "its checksum is wrong")
        length_bytes = handle.pread(META_LENGTH.size, start)
        length = META_LENGTH.unpack(length_bytes)[0] if len(length_bytes) == META_LENGTH.size else size
        start += META_LENGTH.size
        if length > min(size - start, MAX_META_BYTES):
            raise DataError(path, start, f"a meta term of {length} bytes in a file of {size}")
        return parse_meta(handle.pread(length, start), path), start + length


def _read_indexes(files: FileSystem, path: str, problems: list[Finding]) -> Ranges:
    if not files.exists(path):
        return ()
    try:
        if files.size(path) > MAX_INDEXES_BYTES:
            raise DataError(path, None, f"a list of indexes of {files.size(path)} bytes")  # noqa: TRY301
        return parse_indexes(files.read(path), path)
    except DataError as error:
        problems.append(damage_by(error, DAMAGED_SNAPSHOT))
        return ()
