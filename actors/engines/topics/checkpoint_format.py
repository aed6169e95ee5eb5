"""``checkpoint``: up to when a store's three kinds of files are safe; 4096 bytes, 24 of them used.

::

    0  CommitLog 8 | 8  ConsumeQueues 8 | 16  index 8 | zeros

Each is the store timestamp (milliseconds since 1970) of a message: all earlier messages are safe in those files. Of the
index, only full files count. Recovery after a dirty stop begins at a point up to which everything is surely safe.
"""

from __future__ import annotations

import struct
from typing import Final

import attrs

from warren.storage.filesystem import FileSystem, write_file

FILE_BYTES: Final = 4096
_STAMPS = struct.Struct(">qqq")

SAFETY_MS: Final = 3_000
"""Subtracted from a checkpoint's times, because its files are not written at the same moment."""


@attrs.frozen(kw_only=True)
class Checkpoint:
    """Milliseconds since 1970; 0: unknown."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0

    @property
    def min_timestamp(self) -> int:
        """Messages up to here are safe in the CommitLog and have their ConsumeQueue entries."""
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - SAFETY_MS, 0)


def read_checkpoint(files: FileSystem, path: str) -> Checkpoint:
    """Read the file; all times are 0 if it is missing or too short."""
    data = b""
    if files.exists(path):
        handle = files.open_read(path)
        try:
            data = handle.pread(_STAMPS.size, 0)
        finally:
            handle.close()
    physic, logics, index = _STAMPS.unpack(data.ljust(_STAMPS.size, b"\0"))
    return Checkpoint(physic_msg_timestamp=physic, logics_msg_timestamp=logics, index_msg_timestamp=index)


def write_checkpoint(files: FileSystem, path: str, checkpoint: Checkpoint, *, sync: bool) -> None:
    """Replace the file in one step: half a new time over half an old one could be later than both."""
    stamps = _STAMPS.pack(
        checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp, checkpoint.index_msg_timestamp
    )
    write_file(files, path, stamps.ljust(FILE_BYTES, b"\0"), sync=sync)
