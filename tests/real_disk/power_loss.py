"""What a disk with a volatile cache may have when its power fails: images that are made of a log.

What was written before the last flush is there. Of what was written after it any part may be, in units that a disk
writes at once: sectors of 512 bytes or blocks of 4096. A later write of a sector never gives way to an earlier one.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from pathlib import Path

import attrs

from tests.real_disk.write_log import Record

SECTOR, BLOCK = 512, 4096
_SUPERBLOCK = 1024
"""Where ext4 has its superblock: in the first block, or in the second one if blocks have 1024 bytes."""
_JOURNAL_MAGIC = b"\xc0\x3b\x39\x98"


@attrs.frozen
class PowerLoss:
    """When it comes, and what then is on the disk."""

    record_count: int
    """How many records the log has."""
    flushed_count: int
    """How many of the records, the last one a flush, are on the disk."""
    seed: int
    """Draws which part of the other records is kept."""


def draw_losses(records: Sequence[Record], count: int, rng: random.Random) -> list[PowerLoss]:
    """Draw ``count`` losses, ordered by time: at flushes, each at most once, and at least one half between them."""
    ends = [0, *(number + 1 for number, record in enumerate(records) if record.data is None)]
    gaps = [(start, end) for start, end in itertools.pairwise([*ends, len(records) + 1]) if end - start > 1]
    at_flushes = [PowerLoss(end, end, 0) for _, end in gaps if end <= len(records)]
    drawn = rng.sample(at_flushes, min(count // 2, len(at_flushes)))
    while len(drawn) < count:
        start, end = rng.choice(gaps)
        drawn.append(PowerLoss(rng.randrange(start + 1, end), start, rng.getrandbits(32)))
    return sorted(drawn, key=lambda loss: (loss.record_count, loss.flushed_count))


class FailingDisk:
    """Builds the images of losses that come in order of time."""

    def __init__(self, base: bytes, records: Sequence[Record]) -> None:
        self._content = bytearray(base)
        """What is on the disk for sure."""
        self._records = records
        self._done = 0

    def write_image(self, loss: PowerLoss, path: Path) -> None:
        if loss.flushed_count < self._done:
            raise ValueError("losses come in order of time")
        for record in self._records[self._done : loss.flushed_count]:
            if record.data is not None:
                self._content[record.offset : record.offset + len(record.data)] = record.data
        self._done = loss.flushed_count
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, self._content, 0)
            for offset, data in kept(self._records[loss.flushed_count : loss.record_count], random.Random(loss.seed)):
                os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)


def kept(records: Sequence[Record], rng: random.Random) -> list[tuple[int, memoryview]]:
    """Draw which part of the writes is on the disk although no flush followed."""
    share, torn = rng.choice([0.1, 0.5, 0.9, 1.0]), rng.choice([0.0, 0.2, 0.8])
    pieces: list[tuple[int, memoryview]] = []
    for record in records:
        if record.data is None or rng.random() >= share:
            continue
        if rng.random() >= torn:
            pieces.append((record.offset, record.data))
            continue
        unit = BLOCK if _written_at_once(record) else rng.choice([SECTOR, BLOCK])
        units = [(at, record.data[at : at + unit]) for at in range(0, len(record.data), unit)]
        chosen = units[: rng.randrange(len(units) + 1)] if rng.random() < 0.5 else rng.sample(units, len(units) // 2)
        pieces += [(record.offset + at, data) for at, data in sorted(chosen, key=lambda one: one[0])]
    return pieces


def _written_at_once(record: Record) -> bool:
    """Whether it has a superblock, of ext4's or of its journal's: of 1024 bytes, which ext4 needs whole."""
    assert record.data is not None
    return record.offset <= _SUPERBLOCK <= record.offset + len(record.data) - 1024 or any(
        record.data[at : at + 4] == _JOURNAL_MAGIC and record.data[at + 7] in (3, 4)
        for at in range(0, len(record.data) - 7, 1024)
    )
