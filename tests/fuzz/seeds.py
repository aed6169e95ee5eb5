"""What real brokers wrote, file by file: the inputs that fuzzing begins with."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.support.rabbitmq_golden import GOLDEN
from warren.salvage.archives.archive import unpack

V1: Final = "10-crash-restart-clean"
V2: Final = "rabbitmq-3.10.8-cqv2/13-crash-restart-clean"
QUORUM: Final = "rabbitmq-3.10.8-quorum/09-crash-restart-clean"
QUORUM_SNAPSHOT: Final = "rabbitmq-3.10.8-quorum/03-clean-wal-segments-snapshot"
STREAMS: Final = "rabbitmq-3.10.8-streams/02-crash-small"
TOPICS: Final = "rocketmq/basic-clean"

MEMORY_DIRECTORY: Final = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where files cost no disk."""
_UNPACKED = tempfile.TemporaryDirectory(prefix="warren-fuzz-")
MAX_SEED_BYTES: Final = 64 << 10
"""Longer files are cut off: the rest is more of the same."""


@functools.cache
def unpacked(archive: str) -> Path:
    """A golden directory, not to be changed."""
    place = Path(_UNPACKED.name) / archive.replace("/", "-")
    place.mkdir()
    unpack(str(GOLDEN / f"{archive}.tar.gz"), str(place))
    return place


def files(archive: str, pattern: str, *, most: int = 4, size: int = MAX_SEED_BYTES) -> Callable[[], Sequence[bytes]]:
    """The first ``most`` files of a golden directory that match."""

    @functools.cache
    def found() -> Sequence[bytes]:
        paths = sorted(path for path in unpacked(archive).rglob(pattern) if path.is_file() and path.stat().st_size)
        assert paths, f"{archive} has no {pattern}"
        return tuple(path.read_bytes()[:size] for path in paths[:most])

    return found


def of(*data: bytes) -> Callable[[], Sequence[bytes]]:
    """These."""
    return lambda: data
