"""Where quorum queues are: a node's ``quorum`` folder, and whose directories lie in it.

::

    <node's data directory>/quorum/<node's name>/<UId>/config        says which queue it is
                                                /00000001.wal        the log of all of the node's queues

A queue may have several directories: those of its members on other nodes, put side by side, and those of a queue that
was declared again. A directory without a readable ``config``, or with that of another directory beside it, is a queue
without a vhost, named after the directory. What a deletion leaves is no queue, unless the source points at it. A
``config`` that says that it is one of the broker's own logs is no queue's either: the log is not read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from warren.salvage.names import printable, to_text
from warren.salvage.queue_descriptor import QueueDescriptor, QueueFormat, QueuePlace
from warren.salvage.queue_directory import Finding, damage_by, unreadable_file
from warren.salvage.quorum.quorum_node import QuorumNodes
from warren.salvage.quorum.ra.config import OtherMachineError, read_config
from warren.salvage.quorum.ra.file_names import CONFIG_NAME, META_FILE, NAMES_FILE, is_segment_name, is_wal_name
from warren.salvage.read_only import ReadOnlyFileSystem, below, directories
from warren.storage.errors import DataError, StorageError

QUORUM_FOLDER: Final = "quorum"
"""In a node's data directory."""
_COORDINATION_FOLDER: Final = "coordination"
"""Beside it: it looks the same, and holds the broker's own logs."""

_SNAPSHOT_FOLDERS: Final = frozenset({"snapshots", "checkpoints"})
_OTHER_FOLDERS: Final = frozenset({"msg_stores", "vhosts", "queues", "stream"})
"""No node's folder has these names, and each may hold thousands of queues."""

_MAP: Final = b"#{"
_NODE_FILES: Final = frozenset({NAMES_FILE, META_FILE})
_LEFT_OF_DELETION: Final = f"no config, and {NAMES_FILE} does not have it; pointing at it exports what is in it"


def quorum_places(files: ReadOnlyFileSystem, place: str) -> tuple[list[QueuePlace], list[Finding]]:
    """The quorum queues of a node's data directory, of its ``quorum`` folder, of a node's folder in that, or of one
    queue's directory; in order of vhost and name; empty for anything else. And findings about directories that are no
    queues: what is left of deleted ones, and the broker's own logs."""
    named: dict[tuple[bytes, bytes], list[str]] = {}
    problems: dict[tuple[bytes, bytes], list[Finding]] = {}
    others: list[Finding] = []
    nodes = QuorumNodes(files)
    for directory in _member_directories(files, place):
        if directory != place and nodes.of(directory).is_left_of_deletion(directory):
            others.append(Finding("leftover of a deleted queue", "leftover", directory, None, _LEFT_OF_DELETION))
            continue
        path = below(directory, CONFIG_NAME)
        key = b"", posixpath.basename(directory).encode()
        findings: list[Finding] = []
        try:
            config = read_config(files, directory)
            if nodes.of(directory).is_anothers(directory, config.uid):
                detail = f"of the queue with the uid {printable(to_text(config.uid))}; this directory is another one's"
                findings.append(Finding("another queue's config", "damage", path, None, detail))
            else:
                key = config.vhost, config.name
        except OtherMachineError as error:
            others.append(Finding("log not read", "unread", directory, None, error.reason))
            continue
        except DataError as error:
            findings.append(damage_by(error, "damaged config"))
        except StorageError as error:
            findings.append(
                unreadable_file(path, error)
                if files.exists(path)
                else Finding("missing config", "damage", path, None, "no file says which queue this is")
            )
        named.setdefault(key, []).append(directory)
        problems.setdefault(key, []).extend(findings)
    return [_place(*key, tuple(named[key]), tuple(problems[key])) for key in sorted(named)], others


def _place(vhost: bytes, name: bytes, members: tuple[str, ...], problems: tuple[Finding, ...]) -> QueuePlace:
    """The place of a queue; ``members``: its directories, one for each member there is."""
    queue = QueueDescriptor(format=QueueFormat.QUORUM, path=members[0], name=name, members=members)
    return QueuePlace(vhost, queue, problems)


def _member_directories(files: ReadOnlyFileSystem, place: str) -> Iterator[str]:
    if _is_member(files, place):
        yield place
        return
    folder = below(place, QUORUM_FOLDER)
    inside = [] if posixpath.basename(place) == _COORDINATION_FOLDER else directories(files, place)
    nodes = (node for node in inside if posixpath.basename(node) not in _OTHER_FOLDERS)
    for node in (place, *nodes, *directories(files, folder)):
        if _is_node(files, node):
            yield from (inner for inner in directories(files, node) if _is_member(files, inner))


def _is_node(files: ReadOnlyFileSystem, place: str) -> bool:
    """Whether it is a node's folder in ``quorum``."""
    names = files.list(place)
    if any(is_wal_name(name) or name in _NODE_FILES for name in names):
        return True
    return any(_is_member(files, below(place, name)) for name in names)


def _is_member(files: ReadOnlyFileSystem, place: str) -> bool:
    """Whether it is one queue's directory; a damaged one may lack all but one of its files."""
    if not files.is_directory(place):
        return False
    names = set(files.list(place))
    if any(is_wal_name(name) or name in _NODE_FILES for name in names):
        return False
    if any(is_segment_name(name) for name in names):
        return True
    if any(files.is_directory(below(place, name)) for name in names & _SNAPSHOT_FOLDERS):
        return True
    return CONFIG_NAME in names and _begins_as_map(files, below(place, CONFIG_NAME))


def _begins_as_map(files: ReadOnlyFileSystem, path: str) -> bool:
    """Whether a ``config`` begins as a queue's does; other things have the same name, and some are directories."""
    if files.is_directory(path):
        return False
    try:
        with closing(files.open_read(path)) as file:
            return file.pread(len(_MAP), 0) == _MAP
    except StorageError:
        return False
