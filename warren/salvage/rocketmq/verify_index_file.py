"""One index file alone: whether its header, its slots and its chains agree with its items.

An item's chain is known without walking it: item i must name the newest item before it with the same slot, or none; a
slot must name the newest of all. So one pass over the items, with one number for each slot in memory, finds every wrong
link, loops among them, and none is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.actors.engines.topics.store_files import INDEX
from warren.queue_index.topics.index_file_format import (
    HEADER_BYTES,
    ITEM,
    ITEM_BYTES,
    SLOT,
    SLOT_BYTES,
    Header,
    Layout,
    is_file_name,
)
from warren.salvage.queue_directory import Finding, Severity
from warren.salvage.read_only import below
from warren.salvage.rocketmq.verify_files import FindingRuns, StoreFiles, finding
from warren.storage.columns import Ints, Longs

_WINDOW_ITEMS: Final = 1 << 16
_WINDOW_SLOTS: Final = 1 << 18

NUMBERED_ITEM: Final = np.dtype(
    [("file", "i4"), ("number", "i8"), ("key_hash", "i8"), ("offset", "i8"), ("seconds", "i8")]
)
"""An item with its number in the file, and the file's number, which its owner gives."""
Items = npt.NDArray[np.void]


@attrs.define(eq=False, repr=False)
class VerifiedIndexFile:
    """A file and its header."""

    store_files: StoreFiles
    path: str
    size: int
    layout: Layout
    header: Header
    before: VerifiedIndexFile | None
    """The next older one."""
    is_doomed: bool
    """RocketMQ's recovery deletes it."""
    is_unsafe: bool
    """A crash may have left anything in it: it is doomed, or it was the one that was written to."""
    _runs: FindingRuns = attrs.Factory(FindingRuns)

    @property
    def end(self) -> int:
        """The number after the last item that can be read."""
        stored_count = (self.size - self.layout.item_offset(0)) // ITEM_BYTES
        return max(1, min(self.header.index_count, self.layout.item_count, stored_count))

    @property
    def severity(self) -> Severity:
        return "leftover" if self.is_unsafe else "damage"

    def finding(self, kind: str, offset: int | None, detail: str, severity: Severity | None = None) -> Finding:
        return finding(kind, severity or self.severity, self.path, offset, detail)

    def item(
        self, kind: str, number: int, detail: str, severity: Severity | None = None, count: int = 1
    ) -> Iterator[Finding]:
        """A finding at an item; neighbouring ones become one, which :meth:`finish` yields at the latest."""
        problem = self.finding(kind, self.layout.item_offset(number), f"item {number}: {detail}", severity)
        yield from self._runs.add("item", number, problem, count)

    def finish(self) -> Iterator[Finding]:
        """Findings that are still held back."""
        yield from self._runs.finish()

    # ── the file as a whole ─────────────────────────────────────────────────────────────────────────────────────

    def findings(self) -> Iterator[Finding]:
        """What is wrong with the header and the length."""
        header, size = self.header, self.layout.file_size
        if header.index_count > self.layout.item_count:
            detail = f"it counts to {header.index_count}, and there is room up to {self.layout.item_count}"
            yield self.finding("wrong index header", 36, detail)
        if self.size < self.layout.item_offset(min(header.index_count, self.layout.item_count)):
            yield self.finding("wrong file length", None, f"{self.size} bytes, and not {size}; items are missing")
        elif self.size != size:
            detail = f"{self.size} bytes, and not {size}; nothing is missing"
            yield self.finding("leftover file length", None, detail, "leftover")
        before = None if self.before is None else self.before.header
        ends = (header.begin_timestamp, header.begin_physical_offset)
        if header.index_count <= 1 and before is not None and not self.is_unsafe:
            expected = (before.end_timestamp, before.end_physical_offset)
            if ends != expected or ends != (header.end_timestamp, header.end_physical_offset):
                yield self.finding("wrong index header", 0, "no items, and it does not begin where the last file ends")

    def items(self) -> Iterator[Finding | Items]:
        """All items, many at a time, and what is wrong with their chains."""
        newest = np.zeros(self.layout.slot_count, np.int32)
        for start in range(1, self.end, _WINDOW_ITEMS):
            count = min(_WINDOW_ITEMS, self.end - start)
            data = self.store_files.read(self.path, count * ITEM_BYTES, self.layout.item_offset(start))
            items = np.frombuffer(data[: len(data) // ITEM_BYTES * ITEM_BYTES], ITEM)
            numbers = start + np.arange(len(items))
            hashes = items["key_hash"].astype(np.int64)
            yield from self._chains(numbers, hashes, items["previous"].astype(np.int64), newest)
            part = np.zeros(len(items), NUMBERED_ITEM)
            part["number"], part["key_hash"] = numbers, hashes
            part["offset"], part["seconds"] = items["physical_offset"], items["time_difference_s"]
            yield part
        yield from self._slots(newest)

    def _chains(self, numbers: Longs, hashes: Longs, previous: Longs, newest: Ints) -> Iterator[Finding]:
        slots = hashes % self.layout.slot_count
        order = np.argsort(slots, kind="stable")
        by_slot, members = slots[order], numbers[order]
        is_first = np.diff(by_slot, prepend=-1) != 0
        before = np.empty_like(members)
        before[1:] = members[:-1]
        before[is_first] = newest[by_slot[is_first]]
        expected = np.empty_like(before)
        expected[order] = before
        is_last = np.append(is_first[1:], True)
        newest[by_slot[is_last]] = members[is_last]
        for index in np.flatnonzero(hashes < 0).tolist():
            yield from self.item("wrong key hash", int(numbers[index]), f"it is negative: {hashes[index]}")
        for index in np.flatnonzero(previous != expected).tolist():
            number, link, actual = int(numbers[index]), int(previous[index]), int(expected[index])
            yield from self.item(*self._link(number, link, actual, int(slots[index])))

    def _link(self, number: int, link: int, actual: int, slot: int) -> tuple[str, int, str]:
        if link >= number:
            kind, reason = "loop in a chain", "is itself" if link == number else "comes after it"
        elif link < 0 or self._slot_of(link) != slot:
            kind, reason = "wrong chain", f"is not of its slot {slot}"
        else:
            kind, reason = "broken chain", "leaves items out" if link < actual else "is not the newest before it"
        after = actual if actual else "none"
        return (
            kind,
            number,
            f"it names item {link if link else 'none'} as the one before it, which {reason}; that is {after}",
        )

    def _slot_of(self, number: int) -> int | None:
        if not number:
            return None
        data = self.store_files.read(self.path, 4, self.layout.item_offset(number))
        return int.from_bytes(data, "big", signed=True) % self.layout.slot_count

    def _slots(self, newest: Ints) -> Iterator[Finding]:
        for start in range(0, len(newest), _WINDOW_SLOTS):
            expected = newest[start : start + _WINDOW_SLOTS]
            data = self.store_files.read(self.path, len(expected) * SLOT_BYTES, self.layout.slot_offset(start))
            slots = np.zeros(len(expected), np.int32)
            parsed = np.frombuffer(data[: len(data) // SLOT_BYTES * SLOT_BYTES], SLOT)
            slots[: len(parsed)] = parsed
            for index in np.flatnonzero(slots != expected).tolist():
                slot, stored, actual = start + index, int(slots[index]), int(expected[index])
                detail = f"slot {slot}: it names item {stored}, the newest of its chain is {actual}"
                problem = self.finding("wrong slot", self.layout.slot_offset(slot), detail)
                yield from self._runs.add("slot", slot, problem)
        yield from self._runs.finish()
        chains = int(np.count_nonzero(newest))
        if self.header.hash_slot_count != chains:
            detail = f"it counts {self.header.hash_slot_count} slots with a chain, there are {chains}"
            yield self.finding("wrong index header", 32, detail)


def index_files(store_files: StoreFiles) -> tuple[list[VerifiedIndexFile], list[Finding]]:
    """The files of the index, oldest first, and what is no file of an index."""
    files: list[VerifiedIndexFile] = []
    findings: list[Finding] = []
    settings = store_files.settings
    layout = Layout(settings.max_hash_slot_num, settings.max_index_num)
    for name in store_files.files.list(store_files.path(INDEX)):
        path = below(store_files.path(INDEX), name)
        if not is_file_name(name) or store_files.files.is_directory(path):
            findings.append(Finding("leftover file", "leftover", path, None, "no index file's name"))
            continue
        size = store_files.files.size(path)
        header = Header.decode(store_files.read(path, HEADER_BYTES, 0))
        is_doomed = store_files.is_crashed and header.end_timestamp > store_files.checkpoint.index_msg_timestamp
        is_unsafe = is_doomed or (store_files.is_crashed and header.index_count < layout.item_count)
        before = files[-1] if files else None
        files.append(VerifiedIndexFile(store_files, path, size, layout, header, before, is_doomed, is_unsafe))
    return files, findings
