"""The files of a topic store: RocketMQ's names for them, and what recovery cut off."""

from __future__ import annotations

from typing import Any, Final, Literal

import attrs

COMMIT_LOG: Final = "commitlog"
CONSUME_QUEUES: Final = "consumequeue"
INDEX: Final = "index"
CONFIG: Final = "config"
CHECKPOINT: Final = "checkpoint"
ABORT: Final = "abort"
LOCK: Final = "lock"

Missing = Literal["messages", "entries"] | None


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
