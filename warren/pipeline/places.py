"""What paths name: broker's directories. A path may be a glob, and a URI of any file system that pyarrow knows.

A *node* is one directory that was loaded: its name in every table is the path as it was given, or as the glob matched
it. Which kinds of stores it holds is found out by looking: RabbitMQ's queues, a topic store, or both.
"""

from __future__ import annotations

import enum
import glob
import os
from collections.abc import Sequence

import attrs

from storage.descriptors import descriptor_bound
from storage.errors import DataError, StorageError
from storage.filesystem import FileSystem, RealFileSystem
from warren.pipeline.errors import PipelineError
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.salvage.source import Place


class Kind(enum.Flag):
    """What can lie in a directory."""

    QUEUES = enum.auto()
    """RabbitMQ's queues, or warren's."""
    TOPICS = enum.auto()
    """RocketMQ's store, or warren's."""
    BOTH = QUEUES | TOPICS


@attrs.frozen
class Node:
    """One directory that was loaded; small, and sent to every task that reads a part of it."""

    name: str
    """As given, or as the glob matched it."""
    directory: str
    """Where it is: an absolute path, or a URI."""

    def files(self) -> FileSystem:
        """What reads it, on whatever machine this is."""
        return RealFileSystem(descriptor_bound())

    def place(self) -> Place:
        """The directory, as :mod:`warren.salvage.source` knows it."""
        return Place(self.name, ReadOnlyFileSystem(self.files()), self.directory, 0)

    def kinds(self) -> Kind:
        """What lies in it; raises :class:`DataError` where there is nothing."""
        source, store = self.place().both()
        found = Kind(0)
        if source is not None:
            source.close()
            found |= Kind.QUEUES
        if store is not None:
            found |= Kind.TOPICS
        return found


def find_nodes(paths: Sequence[str]) -> list[Node]:
    """The directories that the paths name, each once, in order of the paths; those of a glob sorted.

    Raises :class:`StorageError` where one names nothing, and :class:`PipelineError` where there is none.
    """
    nodes: dict[str, Node] = {}
    for path in paths:
        names = sorted(glob.glob(path)) if glob.has_magic(path) and not os.path.exists(path) else [path]
        if not names:
            raise StorageError(f"{path}: nothing matches")
        for name in names:
            if not os.path.isdir(name):
                reason = "an archive, which Spark cannot read in parts; unpack it first"
                if os.path.isfile(name):
                    raise DataError(name, None, reason)
                raise StorageError(f"{name}: no such directory")
            nodes.setdefault(name, Node(name, os.path.abspath(name)))
    if not nodes:
        raise PipelineError("no path to load")
    return list(nodes.values())
