"""Which topics there are, and how many queues each has: ``config/topics.json``, as RocketMQ's broker writes it.

A topic has queues to write to and queues to read; here their numbers are the same. The file is JSON with a version that
counts its changes; other fields of a topic are preserved.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import attrs

from warren.actors.engines.topics.errors import QueueRangeError
from warren.actors.engines.topics.queue_rows import QueueKey
from warren.queue_index.index.config_file import ConfigFile
from warren.storage.errors import DataError, WarrenError, shortly
from warren.storage.filesystem import FileSystem, write_file

FILE_NAME: Final = "topics.json"
MOST_QUEUES: Final = 1 << 16

_READ_AND_WRITE = 6


@attrs.define
class TopicTable:
    """The topics of one store. Created by :meth:`load`."""

    files: FileSystem
    directory: str
    _topics: dict[str, dict[str, Any]] = attrs.Factory(dict)
    _version: int = 0

    @classmethod
    def load(cls, files: FileSystem, directory: str) -> TopicTable:
        """Load the file in ``directory`` or, if it is empty or damaged, its ``.bak``. Raises :class:`DataError` if
        there is a file and neither can be read."""
        file = ConfigFile(files, f"{directory}/{FILE_NAME}")
        loaded = file.load(_decode)
        if loaded is None and files.exists(file.path):
            raise DataError(file.path, None, "is no table of topics: empty")
        return cls(files, directory, *(loaded or ()))

    @property
    def topics(self) -> dict[str, int]:
        """The number of queues of each topic."""
        return {name: topic["writeQueueNums"] for name, topic in list(self._topics.items())}

    def queues(self, topic: str) -> int | None:
        """The number of a topic's queues; ``None`` if it does not exist."""
        config = self._topics.get(topic)
        return None if config is None else config["writeQueueNums"]

    def declare(self, topic: str, queues: int) -> bool:
        """Give a topic at least ``queues`` queues; return whether this changed it. Raises :class:`QueueRangeError`."""
        if not 1 <= queues <= MOST_QUEUES:
            raise QueueRangeError(f"a topic has 1 to {MOST_QUEUES} queues, not {queues}")
        before = self._topics.get(topic)
        if before is not None and before["writeQueueNums"] >= queues:
            return False
        self._topics[topic] = {
            "order": False,
            "perm": _READ_AND_WRITE,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            **(before or {}),
            "readQueueNums": queues,
            "writeQueueNums": queues,
        }
        self._version += 1
        return True

    def declare_all(self, queues: Iterable[QueueKey]) -> None:
        """Declare the queues' topics, each with as many queues as needed. Raises :class:`QueueRangeError`."""
        for topic, queue_id in queues:
            self.declare(topic, queue_id + 1)

    def take_back(self, topic: str, queues: int | None) -> None:
        """Set a topic's number of queues back to ``queues``; ``None`` removes the topic."""
        if queues is None:
            self._topics.pop(topic, None)
        else:
            self._topics[topic] |= {"readQueueNums": queues, "writeQueueNums": queues}
        self._version += 1

    def save(self, now_ms: int, *, sync: bool) -> None:
        """Write the file."""
        document = {
            "dataVersion": {"counter": self._version, "timestamp": now_ms},
            "topicConfigTable": self._topics,
        }
        text = json.dumps(document, indent="\t", ensure_ascii=False, separators=(",", ":"))
        write_file(self.files, f"{self.directory}/{FILE_NAME}", text.encode("utf-8"), sync=sync)


def _decode(text: str) -> tuple[dict[str, dict[str, Any]], int]:
    """The topics, and the version."""
    try:
        document = json.loads(text)
        topics = document["topicConfigTable"].items()
        version = int(document.get("dataVersion", {}).get("counter", 0))
        return {name: {**topic, "writeQueueNums": int(topic["writeQueueNums"])} for name, topic in topics}, version
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise WarrenError(f"is no table of topics: {shortly(error)}") from error
