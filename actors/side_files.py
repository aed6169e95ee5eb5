"""SideFiles: what warren keeps of a vhost's queues beside RabbitMQ's files, which have no place for it.

Every queue that needs one has a folder, ``warren.queues/<vhost>/<queue>`` in the data directory, under the names that
RabbitMQ gives their directories; a level of a priority queue has none of its own. A RabbitMQ that takes the directory
back does not look there. A folder goes with its queue: when that is deleted, or is not there any more when the vhost is
opened.
"""

from __future__ import annotations

import os

from warren.queue_index.directory import queue_directory_name
from warren.storage.filesystem import FileSystem

SIDE_DIRECTORY = "warren.queues"


class SideFiles:
    """The folders of one vhost's queues. ``vhost_path``: its directory, ``<data>/msg_stores/vhosts/<vhost>``."""

    __slots__ = ("_files", "_found", "_vhost", "path")

    def __init__(self, files: FileSystem, vhost_path: str, vhost: bytes) -> None:
        data, name = os.path.dirname(os.path.dirname(os.path.dirname(vhost_path))), os.path.basename(vhost_path)
        self._files = files
        self.path = f"{data}/{SIDE_DIRECTORY}/{name}"
        self._vhost = vhost
        self._found = set(files.list(self.path))
        """Those that were there when the vhost was opened."""

    def of(self, queue: str) -> str:
        """A queue's folder, whether it is there or not."""
        return f"{self.path}/{self._entry(queue)}"

    def has(self, queue: str) -> bool:
        """Whether a queue may have one."""
        return bool(self._found) and self._entry(queue) in self._found

    def keep_only(self, queues: list[str]) -> None:
        """Delete the folders of all others."""
        if self._found:
            kept = set(map(self._entry, queues))
            for entry in self._found - kept:
                self._files.delete_tree(f"{self.path}/{entry}")
            self._found &= kept

    def delete(self, queue: str) -> None:
        """A queue goes: its folder too, if there is one."""
        self._files.delete_tree(self.of(queue))
        self._found.discard(self._entry(queue))

    def delete_all(self) -> None:
        """The vhost goes."""
        self._files.delete_tree(self.path)
        self._found.clear()

    def _entry(self, queue: str) -> str:
        return queue_directory_name(self._vhost, queue.encode("utf-8", "surrogateescape"))
