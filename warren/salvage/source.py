"""A source: what the user points at, found out and opened without changing it.

It is a node's data directory, its ``msg_stores`` or ``vhosts`` folder, one vhost's folder or one queue's; or a
``.tar.gz`` that holds one of these at any depth, which is unpacked to a temporary directory.

A queue's folder brings its vhost with it where it lies in one: the vhost's settings, its store (for the bodies) and
what a clean stop said of the queue. The other queues are not looked at then, and so nothing is said of the store.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from queue_index import directory as disk
from storage.errors import DataError, StorageError
from storage.filesystem import RealFileSystem
from warren.salvage.archive import unpack
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.vhost import STORES, Vhost

KIND: Final = "rabbitmq-classic-v1"

_VHOSTS_PLACES = ("msg_stores/vhosts", "vhosts")
_VHOST_NAMES = (disk.VHOST_NAME_FILE, disk.VHOST_CONFIG_FILE, disk.RECOVERY_TERMS_FILE, *STORES)
_MAX_DEPTH = 8
"""Levels of an archive that are searched."""


@attrs.frozen
class Source:
    """The vhosts of a broker that is not running."""

    path: str
    """As the user gave it."""
    kind: str
    vhosts: list[Vhost]
    """In order of their directories' names."""

    def close(self) -> None:
        """Close the stores' files."""
        for vhost in self.vhosts:
            vhost.close()


@contextmanager
def open_source(path: str) -> Iterator[Source]:
    """The source at ``path``; raises :class:`DataError` or :class:`StorageError` where there is none to be read."""
    if os.path.isdir(path):
        source = find_source(path, ReadOnlyFileSystem(RealFileSystem()), os.path.abspath(path))
        try:
            yield source
        finally:
            source.close()
    elif os.path.exists(path):
        with tempfile.TemporaryDirectory(prefix="warren-", ignore_cleanup_errors=True) as unpacked:
            unpack(path, unpacked)
            source = find_source(path, ReadOnlyFileSystem(RealFileSystem(), unpacked), "", depth=_MAX_DEPTH)
            try:
                yield source
            finally:
                source.close()
    else:
        raise StorageError(f"{path}: no such file or directory")


def find_source(path: str, files: ReadOnlyFileSystem, place: str, *, depth: int = 0) -> Source:
    """The source in the directory ``place`` of ``files``, or at most ``depth`` levels below it.

    ``path`` is its name for people. Raises :class:`DataError` where there is none, or more than one.
    """
    places = [place]
    for _ in range(depth + 1):
        found = [vhosts for candidate in places if (vhosts := _vhosts_at(files, candidate)) is not None]
        if len(found) > 1:
            raise DataError(path, None, "holds more than one broker's directory; name one of them")
        if found:
            return Source(path, KIND, found[0])
        places = [inner for candidate in places for inner in _directories(files, candidate)]
    raise DataError(path, None, "is no RabbitMQ data directory, vhosts folder, vhost's folder or queue's folder")


def _vhosts_at(files: ReadOnlyFileSystem, place: str) -> list[Vhost] | None:
    """The vhosts of the source that ``place`` itself is; ``None`` where it is none."""
    if _is_vhost(files, place):
        return [Vhost.open(files, place)]
    if _is_queue(files, place):
        queues, _, _ = place.rpartition("/")
        vhost, _, folder = queues.rpartition("/")
        is_inside = folder == disk.QUEUES_DIRECTORY and _is_vhost(files, vhost)
        return [Vhost.open(files, vhost if is_inside else None, only=place)]
    for folder in (*(below(place, inner) for inner in _VHOSTS_PLACES), place):
        vhosts = [inner for inner in _directories(files, folder) if _is_vhost(files, inner)]
        if vhosts or (folder != place and files.is_directory(folder)):
            return [Vhost.open(files, inner) for inner in vhosts]
    return None


def _is_vhost(files: ReadOnlyFileSystem, place: str) -> bool:
    """Whether it has anything that a vhost's folder has; a damaged one may lack all but one of them."""
    if any(files.exists(below(place, name)) for name in _VHOST_NAMES):
        return True
    return any(_is_queue(files, queue) for queue in _directories(files, below(place, disk.QUEUES_DIRECTORY)))


def _is_queue(files: ReadOnlyFileSystem, place: str) -> bool:
    known = (disk.QUEUE_NAME_FILE, disk.JOURNAL_NAME)
    return any(name in known or disk.segment_number(name) is not None for name in files.list(place))


def _directories(files: ReadOnlyFileSystem, place: str) -> list[str]:
    if not files.is_directory(place):
        return []
    return [inner for name in files.list(place) if files.is_directory(inner := below(place, name))]
