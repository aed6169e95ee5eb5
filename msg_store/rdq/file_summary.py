"""What each file of a store holds: its bytes, and how many of them are still in use.

A message is *valid* while the store knows it; a file's *valid bytes* are the bytes of its records of valid messages,
each message counted once, in the file where the store finds it. The rest is *garbage*, and garbage is normal. Files are
in order of their numbers; the last one is *current*, the only one that is written to.

Invariants: valid bytes are at least 0 and at most the file's; the sums are the files' sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs

from warren.storage.settings import Settings


@attrs.define
class FileEntry:
    """One file: bytes in it, valid ones among them, and whether compaction found it damaged and keeps off."""

    size_bytes: int
    valid_bytes: int = 0
    damaged: bool = False


@attrs.define(eq=False, repr=False)
class FileSummary:
    """File number → :class:`FileEntry`, oldest first."""

    _entries: dict[int, FileEntry] = attrs.field(factory=dict)
    size_bytes: int = 0
    valid_bytes: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def __contains__(self, number: object) -> bool:
        return number in self._entries

    def __getitem__(self, number: int) -> FileEntry:
        return self._entries[number]

    @property
    def current(self) -> int | None:
        """The highest number; ``None`` if there is no file."""
        return next(reversed(self._entries), None)

    @property
    def garbage_fraction(self) -> float:
        """Share of the files' bytes that is garbage, 0 if the files are empty."""
        return 1 - self.valid_bytes / self.size_bytes if self.size_bytes else 0.0

    def add(self, number: int, size_bytes: int, valid_bytes: int = 0) -> None:
        """Take in a file younger than the others."""
        current = self.current
        if current is not None and number <= current:
            raise RuntimeError(f"file {number} comes after {current}")
        self._entries[number] = FileEntry(size_bytes, valid_bytes)
        self.size_bytes += size_bytes
        self.valid_bytes += valid_bytes

    def remove(self, number: int) -> None:
        """Forget a file without valid bytes."""
        entry = self._entries[number]
        if entry.valid_bytes:
            raise RuntimeError(f"file {number} still holds {entry.valid_bytes} valid bytes")
        del self._entries[number]
        self.size_bytes -= entry.size_bytes

    def resize(self, number: int, size_bytes: int) -> None:
        """Say how large a file is now."""
        entry = self._entries[number]
        self.size_bytes += size_bytes - entry.size_bytes
        entry.size_bytes = size_bytes

    def validate(self, number: int, more_bytes: int) -> None:
        """Count ``more_bytes`` of a file as valid; as invalid if negative."""
        self._entries[number].valid_bytes += more_bytes
        self.valid_bytes += more_bytes

    def find_pair(self, settings: Settings) -> tuple[int, int] | None:
        """Return the oldest two neighbours to combine, left and right, if there is enough garbage."""
        limit = settings.msg_store_file_size_limit
        if self.size_bytes <= 2 * limit or self.garbage_fraction <= settings.msg_store_garbage_fraction:
            return None
        closed = list(self._entries.items())[:-1]
        for (left_number, left), (right_number, right) in itertools.pairwise(closed):
            fits = left.valid_bytes + right.valid_bytes <= limit
            if fits and left.valid_bytes and right.valid_bytes and not (left.damaged or right.damaged):
                return left_number, right_number
        return None

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the numbers contradict each other."""
        if list(self._entries) != sorted(self._entries):
            raise RuntimeError(f"files out of order: {list(self._entries)}")
        for number, entry in self._entries.items():
            if not 0 <= entry.valid_bytes <= entry.size_bytes:
                raise RuntimeError(f"file {number} has {entry.valid_bytes} valid bytes of {entry.size_bytes}")
        sums = (
            sum(summary.size_bytes for summary in self._entries.values()),
            sum(summary.valid_bytes for summary in self._entries.values()),
        )
        if sums != (self.size_bytes, self.valid_bytes):
            raise RuntimeError(f"the files' sums are {sums}, not {(self.size_bytes, self.valid_bytes)}")
