"""The files of a topic store: RocketMQ's names for them, and what recovery cut off."""

from __future__ import annotations

from typing import Any, Final, Literal

import attrs

from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem

COMMIT_LOG: Final = "commitlog"
CONSUME_QUEUES: Final = "consumequeue"
BATCH_QUEUES: Final = "batchconsumequeue"
"""RocketMQ 5's, of topics of the type BatchCQ."""
INDEX: Final = "index"
CONFIG: Final = "config"
CHECKPOINT: Final = "checkpoint"
ABORT: Final = "abort"
LOCK: Final = "lock"

Missing = Literal["messages", "entries"] | None


def rocksdb_reason(files: FileSystem, directory: str) -> str | None:
    """Return why the store's ConsumeQueues are not read if they are in RocksDB, else ``None``."""
    place = f"{directory}/{CONSUME_QUEUES}"
    names = set(files.list(place)) if files.is_directory(place) else set[str]()
    if "CURRENT" not in names or not any(name.startswith("MANIFEST-") for name in names):
        return None
    return (
        "the ConsumeQueues are in RocksDB, which is not read; topic scan has the messages, topic rebuild makes queues"
    )


def refuse_queues(files: FileSystem, directory: str) -> None:
    """Raise :class:`DataError` if there are ConsumeQueues that a running node does not keep."""
    if (reason := rocksdb_reason(files, directory)) is not None:
        raise DataError(f"{directory}/{CONSUME_QUEUES}", None, reason)
    if files.is_directory(place := f"{directory}/{BATCH_QUEUES}") and files.list(place):
        raise DataError(place, None, "ConsumeQueues of batches can be read (warren topic read), not continued")


@attrs.frozen
class Cut:
    """Data that was cut off: its path, from which byte of the file on, and why."""

    path: str
    file_offset: int | None
    what: str
    missing: Missing = None
    """What has been missing since a clean stop, because files were deleted or cut."""

    def __str__(self) -> str:
        location = self.path if self.file_offset is None else f"{self.path}, offset {self.file_offset}"
        return f"{location}: {self.what}"

    def log_fields(self) -> dict[str, Any]:
        """The fields of a log record about it."""
        return {"path": self.path, "offset": self.file_offset, "reason": self.what}
