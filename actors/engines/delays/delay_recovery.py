"""What a stop or a crash has left of delayed messages: sealed files as their indexes say, the last file by reading it.

What is gone of a file stands in that file or in a later one, so they are looked at from the last to the first. An index
that is missing or damaged is rebuilt from its log.
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

_GoneOf = defaultdict[int, bytearray]
"""The offsets of what is gone of each file, four bytes each: there may be millions."""


@attrs.define(eq=False, repr=False)
class Recovered:
    """What was found."""

    sealed: dict[int, SealedFile] = attrs.Factory(dict)
    open: OpenFile | None = None
    last_number: int = 0
    by_target: Counter[int] = attrs.Factory(Counter)
    """How many messages of each target are not gone."""
    damage: list[DataError] = attrs.Factory(list)


def recover(files: FileSystem, directory: str) -> Recovered:
    """Look at all files of a directory. Raises :class:`DataError` for those of another kind."""
    names = [name.partition(".") for name in files.list(directory) if name.isascii()]
    numbers = {int(stem) for stem, _, kind in names if stem.isdigit() and kind == "delayed"}
    for stem, _, kind in names:
        if stem.isdigit() and kind.startswith("due") and (kind != "due" or int(stem) not in numbers):
            files.delete(f"{directory}/{stem}.{kind}")  # half written, or of a log that was just deleted
    found = Recovered(last_number=max(numbers, default=0))
    gone: _GoneOf = defaultdict(bytearray)
    for number in sorted(numbers, reverse=True):
        log, path = RecordLog(files, log_path(directory, number), f.KIND), index_path(directory, number)
        if number == found.last_number and not files.exists(path):
            found.open = _open_file(number, log, gone, found)
        else:
            found.sealed[number] = _sealed_file(number, files, log, path, gone, found)
    return found


def _open_file(number: int, log: RecordLog, gone: _GoneOf, found: Recovered) -> OpenFile:
    entries, places, damaged = _replayed(log, found.damage)
    _note(f.gone_of(places), gone)
    there = OpenFile(number, log, damaged=damaged, gone=places)
    out = set(_offsets(gone.pop(number, b"")).tolist())
    for entry in entries:
        is_gone = entry.offset in out
        there.add(entry, is_gone=is_gone)
        if not is_gone:
            found.by_target[entry.target] += 1
    return there


def _sealed_file(  # noqa: PLR0917
    number: int,
    files: FileSystem,
    log: RecordLog,
    path: str,
    gone: _GoneOf,
    found: Recovered,
) -> SealedFile:
    entries, places, damaged = index_of(files, log, path, found.damage)
    _note(places, gone)
    out = np.isin(entries["offset"], _offsets(gone.pop(number, b"")))
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
    found.by_target.update(dict(zip(targets.tolist(), counts.tolist(), strict=True)))
    return sealed


def _note(places: f.Gone, gone: _GoneOf) -> None:
    """Add the offsets of what is gone to those of each file."""
    ordered = places[np.argsort(places["file"], kind="stable")]
    files, starts = np.unique(ordered["file"], return_index=True)
    for file, start, stop in zip(files.tolist(), starts.tolist(), [*starts[1:].tolist(), len(ordered)], strict=False):
        gone[file] += ordered["offset"][start:stop].tobytes()


def _offsets(data: bytes | bytearray) -> npt.NDArray[Any]:
    return np.frombuffer(data, "<u4")


def index_of(files: FileSystem, log: RecordLog, path: str, damage: list[DataError]) -> f.Index:
    """Return a log's index, rebuilt if it cannot be read. ``damage`` collects unreadable parts of the log."""
    size = files.size(log.path)
    if files.exists(path):
        try:
            return f.decode_index(files.read(path), path, size)
        except DataError as error:
            _LOG.warning("an index is made anew: %s", error, extra=log_event("delayed_reindexed", error))
    entries, places, damaged = _replayed(log, damage)
    encoded = f.encode_index(f.Index(f.entries_of(entries), f.gone_of(places), damaged), size)
    write_file(files, path, encoded, sync=False)
    return f.decode_index(encoded, path, size)


def _replayed(log: RecordLog, damage: list[DataError]) -> tuple[list[Entry], list[Place], bool]:
    """What a log says: its messages, what is gone of this and older ones, and whether something cannot be read."""
    entries: list[Entry] = []
    gone: list[Place] = []
    error: DataError | None = None
    for offset, payload in log.replay():
        try:
            places = f.gone_in(payload)
            record = None if places is not None else f.message_in(payload)
        except ValueError as why:
            error = DataError(log.path, offset, str(why))
            continue
        gone += places or ()
        if record is not None:
            if record.replaces != f.NOWHERE:
                gone.append(record.replaces)
            entries.append(Entry(record.due_ms, record.id_digest, record.target, offset, HEAD.size + len(payload)))
    if log.torn is not None:
        _LOG.warning("a log of delayed messages is torn: %s", log.torn, extra=log_event("log_torn", log.torn))
    error = log.damage or error
    if error is not None:
        _LOG.error("delayed messages are lost, and the file is kept: %s", error, extra=log_event("delayed_lost", error))
        damage.append(error)
    return entries, gone, error is not None
