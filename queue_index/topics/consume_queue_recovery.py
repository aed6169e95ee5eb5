"""Where the entries of a ConsumeQueue end: this is not stored, and a start has to find it.

Functions over the queue's mapped files; the queue (:mod:`warren.queue_index.topics.consume_queue`) calls them and keeps
the answer. Files are read some entries at a time: most end early, and a file of zeros need not be read to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np

from warren.queue_index.topics.consume_queue_format import ENTRY_BYTES, Entries, are_good, decode, physical_stops
from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem
from warren.storage.mapped_files import MappedFiles, parse_file_name

_READ_BYTES: Final = 4096 * ENTRY_BYTES

_RECOVERED_FILES: Final = 3
"""The number of last files that recovery reads; older ones are trusted. RocketMQ's number."""


@attrs.frozen
class End:
    """The logical byte after the last entry, and the physical offset after the message that it points at."""

    byte: int
    physical_offset: int

    def after(self, entries: Entries) -> End:
        """The end once these are put."""
        if not len(entries):
            return self
        last = entries[-1:]
        physical_offset = int(physical_stops(last["physical_offset"], last["size"])[0])
        return End(self.byte + len(entries) * ENTRY_BYTES, physical_offset)


def read(mapped: MappedFiles, at: int, size: int) -> bytes:
    """Return ``size`` bytes at the logical byte ``at`` of one file; raise :class:`DataError` if it is too short."""
    data = mapped.read(at, size)
    if len(data) < size:
        base = mapped.holding(at) or 0
        raise DataError(mapped.path(base), at + len(data) - base, "ends too early")
    return data


def entry_blocks(mapped: MappedFiles, start: int, stop: int) -> Iterator[Entries]:
    """The entries between two logical bytes of one file, some at a time."""
    for at in range(start, stop, _READ_BYTES):
        yield decode(read(mapped, at, min(_READ_BYTES, stop - at)))


def lengthen_files(files: FileSystem, directory: str, file_size: int) -> None:
    """Give files that are too short their zeros: several may have been made since the last flush."""
    for name in files.list(directory):
        path = f"{directory}/{name}"
        if parse_file_name(name) is not None and files.size(path) < file_size:
            handle = files.open_append(path)
            handle.truncate(file_size)
            handle.close()


def recovered_end(mapped: MappedFiles) -> End:
    """Return the place of the first invalid entry in the last three files; files must exist."""
    end = End(0, -1)
    for base in mapped.bases[-_RECOVERED_FILES:]:
        end = attrs.evolve(end, byte=base)
        for entries in entry_blocks(mapped, base, base + mapped.file_size):
            good = _until(entries, ~are_good(entries))
            end = end.after(good)
            if len(good) < len(entries):
                return end
    return end


def entries_behind(mapped: MappedFiles, end_byte: int) -> int:
    """Return how many good entries stand after the end, as far as one read shows."""
    data = mapped.read(end_byte, _READ_BYTES)
    return int(are_good(decode(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES])).sum())


def cut(mapped: MappedFiles, physical_end: int, *, keep_first: bool, stop_byte: int | None = None) -> End | None:
    """Delete files from the last backwards until one begins with a message below ``physical_end``.

    The end is then in that file, before the first entry that is invalid or whose message is not below ``physical_end``.
    ``keep_first``: of a file's first entry only the message's offset is checked. Nothing at or after ``stop_byte``
    counts as an entry. ``None``: no file is left.
    """
    for base in reversed(mapped.bases):
        end = End(base, -1)
        file_end = base + mapped.file_size
        for entries in entry_blocks(mapped, base, file_end if stop_byte is None else min(file_end, stop_byte)):
            behind = entries["physical_offset"] >= physical_end
            bad = behind | ~are_good(entries)
            if keep_first and end.byte == base:
                bad[0] = behind[0]
            good = _until(entries, bad)
            end = end.after(good)
            if len(good) < len(entries):
                break
        if end.byte > base:
            return end
        mapped.delete(base)
    return None


def _until(entries: Entries, is_last: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Entries:
    """The entries ahead of the first that is marked."""
    marked = np.flatnonzero(is_last)
    return entries[: marked[0]] if len(marked) else entries
