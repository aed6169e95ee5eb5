"""RocketMQ's names of the files and folders of a topic store."""

from __future__ import annotations

from typing import Final

COMMIT_LOG: Final = "commitlog"
CONSUME_QUEUES: Final = "consumequeue"
INDEX: Final = "index"
CONFIG: Final = "config"
CHECKPOINT: Final = "checkpoint"
ABORT: Final = "abort"
LOCK: Final = "lock"
