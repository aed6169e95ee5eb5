"""A queue's directory on its way to a task: without its files and all that was read of them.

A directory of any format is a value; a plan takes those as :class:`warren.salvage.vhost.Vhost` found them and leaves
out what stays on the machine that plans. What reads them puts in its own. Their fields have the same names in every
format: ``files``; ``bodies``, the vhost's store; and ``nodes``, with the logs that quorum queues share, which are
scanned once for all queues that are opened together.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from warren.salvage.queue_directory import BodySource, QueueDirectory
from warren.salvage.quorum_node import QuorumNodes
from warren.salvage.read_only import ReadOnlyFileSystem

_LEFT_OUT: Final = ("files", "bodies", "nodes")


def bare(queue: QueueDirectory) -> QueueDirectory:
    """Small, and fit to be sent to a task; a format that reads nothing stays as it is."""
    found: QueueDirectory = _with(queue, dict.fromkeys(_LEFT_OUT))
    return found


@attrs.define
class Opening:
    """Opens bare directories: those of one task, or others that are read together."""

    files: ReadOnlyFileSystem
    _nodes: QuorumNodes | None = None

    def opened(self, queue: QueueDirectory, bodies: BodySource | None = None) -> QueueDirectory:
        """The directory, to be read. Without ``bodies`` nothing that lies in a store may be asked for."""
        values: dict[str, Any] = {"files": self.files, "bodies": bodies}
        if "nodes" in _fields(queue):
            if self._nodes is None:
                self._nodes = QuorumNodes(self.files)
            values["nodes"] = self._nodes
        found: QueueDirectory = _with(queue, values)
        return found


def _with(queue: Any, values: dict[str, Any]) -> Any:
    names = _fields(queue)
    return attrs.evolve(queue, **{name: value for name, value in values.items() if name in names})


def _fields(queue: Any) -> set[str]:
    return {field.name for field in attrs.fields(type(queue))}
