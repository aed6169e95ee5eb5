"""What the files of a quorum queue, and those of the node that it lies in, are called."""

from __future__ import annotations

from typing import Final

CONFIG_NAME: Final = "config"
NAMES_FILE: Final = "names.dets"
META_FILE: Final = "meta.dets"
WAL_SUFFIX: Final = ".wal"
SEGMENT_SUFFIX: Final = ".segment"


def is_wal_name(name: str) -> bool:
    """Whether ``name`` is a write-ahead log's."""
    return name.endswith(WAL_SUFFIX) and _is_number(name.removesuffix(WAL_SUFFIX))


def is_segment_name(name: str) -> bool:
    """Whether ``name`` is a segment's. A stream's segments have longer names."""
    return name.endswith(SEGMENT_SUFFIX) and _is_number(name.removesuffix(SEGMENT_SUFFIX))


def _is_number(digits: str) -> bool:
    """Eight digits, or sixteen in later versions."""
    return digits.isdecimal() and len(digits) in (8, 16)


def file_number(path: str) -> int:
    """The number that is a file's name, without its suffix."""
    digits = path.rpartition("/")[2].partition(".")[0]
    return int(digits) if digits.isdecimal() and len(digits) <= 32 else 0
