"""What the files of a quorum queue, and those of the node that it lies in, are called."""

from __future__ import annotations

from typing import Final

CONFIG_NAME: Final = "config"
NAMES_FILE: Final = "names.dets"
META_FILE: Final = "meta.dets"
WAL_SUFFIX: Final = ".wal"
SEGMENT_SUFFIX: Final = ".segment"


def is_wal_name(name: str) -> bool:
    """Whether ``name`` is a write-ahead log's: digits, eight or (later) sixteen."""
    return name.endswith(WAL_SUFFIX) and name.removesuffix(WAL_SUFFIX).isdecimal()


def is_segment_name(name: str) -> bool:
    """Whether ``name`` is a segment's: digits, eight or (later) sixteen."""
    return name.endswith(SEGMENT_SUFFIX) and name.removesuffix(SEGMENT_SUFFIX).isdecimal()


def file_number(path: str) -> int:
    """The number that is a file's name, without its suffix."""
    digits = path.rpartition("/")[2].partition(".")[0]
    return int(digits) if digits.isdecimal() and len(digits) <= 32 else 0
