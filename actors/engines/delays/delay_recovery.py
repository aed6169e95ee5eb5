"""Recovery of delayed messages after a stop or a crash: sealed files from their indexes, the last one by replaying it.

Which messages of a file are removed is recorded in that file or in a later one, so files are read from the last to the
first. A missing or damaged index is rebuilt from its log.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from warren.actors.engines.delays import delay_format as f
from warren.actors.engines.delays.delay_file import OpenFile, SealedFile, index_path, log_path
from warren.actors.engines.delays.delay_format import Entry, Place
from warren.actors.log_events import log_event, logger
from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem, write_file
from warren.storage.record_log import HEAD, RecordLog

_LOG = logger("delays")

_RemovedOf = defaultdict[int, bytearray]
"""The offsets of each file's removed messages, four bytes each: there may be millions."""


@attrs.define(eq=False, repr=False)
class Recovered:
    """The recovered files and counts."""

    sealed: dict[int, SealedFile] = attrs.Factory(dict)
    open: OpenFile | None = None
    last_number: int = 0
    by_target: Counter[int] = attrs.Factory(Counter)
    """How many messages of each target are not removed."""
    damage: list[DataError] = attrs.Factory(list)


def recover(files: FileSystem, directory: str) -> Recovered:
    """Recover all files of a directory. Raises :class:`DataError` for files of another kind."""
    names = [name.partition(".") for name in files.list(directory) if name.isascii()]
    numbers = {int(stem) for stem, _, kind in names if stem.isdigit() and kind == "delayed"}
    for stem, _, kind in names:
        if stem.isdigit() and kind.startswith("due") and (kind != "due" or int(stem) not in numbers):
            files.delete(f"{directory}/{stem}.{kind}")  # half written, or of a log that was just deleted
    recovered = Recovered(last_number=max(numbers, default=0))
    removed_offsets: _RemovedOf = defaultdict(bytearray)
    for number in sorted(numbers, reverse=True):
        log, path = RecordLog(files, log_path(directory, number), f.KIND), index_path(directory, number)
        if number == recovered.last_number and not files.exists(path):
            recovered.open = _open_file(number, log, removed_offsets, recovered)
        else:
            recovered.sealed[number] = _sealed_file(number, log, path, removed_offsets, recovered, files=files)
    return recovered


def _open_file(number: int, log: RecordLog, removed_offsets: _RemovedOf, recovered: Recovered) -> OpenFile:
    entries, places, damaged = _replayed(log, recovered.damage)
    _note(f.removed_of(places), removed_offsets)
    file = OpenFile(number, log, damaged=damaged, removed=places)
    out = set(_offsets(removed_offsets.pop(number, b"")).tolist())
    for entry in entries:
        is_removed = entry.offset in out
        file.add(entry, is_removed=is_removed)
        if not is_removed:
            recovered.by_target[entry.target] += 1
    return file


def _sealed_file(
    number: int, log: RecordLog, path: str, removed_offsets: _RemovedOf, recovered: Recovered, *, files: FileSystem
) -> SealedFile:
    entries, places, damaged = index_of(files, log, path, recovered.damage)
    _note(places, removed_offsets)
    out = np.isin(entries["offset"], _offsets(removed_offsets.pop(number, b"")))
    live = entries[~out]
    sealed = SealedFile(
        number,
        log,
        len(live),
        int(live["size"].sum(dtype=np.int64)),
        damaged=damaged,
        files=files,
        path=path,
        count=len(entries),
        log_bytes=files.size(log.path),
    )
    sealed.mark(out)
    targets, counts = np.unique(live["target"], return_counts=True)
    recovered.by_target.update(dict(zip(targets.tolist(), counts.tolist(), strict=True)))
    return sealed


def _note(places: f.Removed, removed_offsets: _RemovedOf) -> None:
    """Add the places' offsets to each file's removed offsets."""
    ordered = places[np.argsort(places["file"], kind="stable")]
    files, starts = np.unique(ordered["file"], return_index=True)
    for file, start, stop in zip(files.tolist(), starts.tolist(), [*starts[1:].tolist(), len(ordered)], strict=False):
        removed_offsets[file] += ordered["offset"][start:stop].tobytes()


def _offsets(data: bytes | bytearray) -> npt.NDArray[Any]:
    return np.frombuffer(data, "<u4")


def index_of(files: FileSystem, log: RecordLog, path: str, damage: list[DataError]) -> f.Index:
    """Return a log's index, rebuilt if it cannot be read. ``damage`` collects unreadable parts of the log."""
    size = files.size(log.path)
    if files.exists(path):
        try:
            return f.decode_index(files.read(path), path, size)
        except DataError as error:
            _LOG.warning(
                "an index of delayed messages is rebuilt: %s", error, extra=log_event("delayed_reindexed", error)
            )
    entries, places, damaged = _replayed(log, damage)
    encoded = f.encode_index(f.Index(f.entries_of(entries), f.removed_of(places), damaged), size)
    write_file(files, path, encoded, sync=False)
    return f.decode_index(encoded, path, size)


def _replayed(log: RecordLog, damage: list[DataError]) -> tuple[list[Entry], list[Place], bool]:
    """Replay a log: return its messages, the places that it marks as removed, and whether it is damaged."""
    entries: list[Entry] = []
    removed_places: list[Place] = []
    error: DataError | None = None
    for offset, payload in log.replay():
        try:
            places = f.removed_in(payload)
            record = None if places is not None else f.message_in(payload)
        except ValueError as invalid:
            error = DataError(log.path, offset, str(invalid))
            continue
        removed_places += places or ()
        if record is not None:
            if record.replaces != f.NOWHERE:
                removed_places.append(record.replaces)
            entries.append(Entry(record.due_ms, record.id_digest, record.target, offset, HEAD.size + len(payload)))
    if log.torn is not None:
        _LOG.warning(
            "a log of delayed messages ends in invalid bytes: %s", log.torn, extra=log_event("log_torn", log.torn)
        )
    error = log.damage or error
    if error is not None:
        _LOG.error("delayed messages are lost, and the file is kept: %s", error, extra=log_event("delayed_lost", error))
        damage.append(error)
    return entries, removed_places, error is not None
