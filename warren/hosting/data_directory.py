"""What kind of path is to be opened as a node's data directory, determined without changing it."""

from __future__ import annotations

import enum
import os
from typing import Final

from warren.actors.node.node_errors import ForeignDirectoryError
from warren.actors.node.node_registry import VHOSTS_DIRECTORY
from warren.queue_index.index.directory import JOURNAL_NAME, QUEUE_NAME_FILE, VHOST_NAME_FILE
from warren.storage.data_version import refuse_newer
from warren.storage.errors import StorageError
from warren.storage.filesystem import RealFileSystem
from warren.storage.own_files import DEFINITIONS_FILE

_PARTS: Final = ("vhosts", "queues", VHOST_NAME_FILE, QUEUE_NAME_FILE, JOURNAL_NAME)
"""Names that are found in a ``msg_stores`` folder, a vhost's folder, or a queue's."""
_PARTS_BELOW: Final = (VHOST_NAME_FILE, QUEUE_NAME_FILE, JOURNAL_NAME)
"""Names that are found one level below a folder of vhosts or of queues."""
_STORE: Final = ("commitlog", "consumequeue")
"""Both are found in the folder of a topic store."""


class Kind(enum.Enum):
    """Kinds of paths."""

    MISSING = enum.auto()
    FILE = enum.auto()
    EMPTY = enum.auto()
    NODES = enum.auto()
    """A node's data directory."""
    BROKERS = enum.auto()
    """The data directory of a RabbitMQ that no node has taken over."""
    PART = enum.auto()
    """A folder from such a directory, or a topic store's."""
    OTHER = enum.auto()


def kind_of(path: str) -> Kind:
    """Return the kind of a path. Raises :class:`StorageError` if the directory cannot be read."""
    if not os.path.isdir(path):
        return Kind.FILE if os.path.lexists(path) else Kind.MISSING
    try:
        names = os.listdir(path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    if DEFINITIONS_FILE in names:
        return Kind.NODES
    if os.path.isdir(os.path.join(path, VHOSTS_DIRECTORY)):
        return Kind.BROKERS
    if any(name in names for name in _PARTS) or all(name in names for name in _STORE):
        return Kind.PART
    if any(os.path.exists(os.path.join(path, name, part)) for name in names for part in _PARTS_BELOW):
        return Kind.PART
    return Kind.OTHER if names else Kind.EMPTY


def refuse_part(path: str) -> Kind:
    """Return the kind of ``path``, before something is written there.

    Raises :class:`ForeignDirectoryError` for a part, in which nothing may be created,
    :class:`~warren.storage.errors.StorageError` for a file, and
    :class:`~warren.storage.data_version.VersionError` for a directory that only a newer warren may write to.
    """
    refuse_newer(RealFileSystem(), path)
    kind = kind_of(path)
    if kind is Kind.FILE:
        raise StorageError(f"{path}: no directory but a file")
    if kind is Kind.PART:
        raise ForeignDirectoryError(
            f"{path}: a part of a node's data directory or of a broker's; a node wants the whole of it (the directory "
            f"that holds {VHOSTS_DIRECTORY}), and inspect and export read it as it is"
        )
    return kind
