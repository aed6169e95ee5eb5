"""A source: what the user points at, recognised and opened without changing it.

It is a node's data directory, its ``msg_stores``, ``vhosts``, ``quorum`` or ``stream`` folder, one vhost's folder or
one queue's; a RocketMQ's store folder; a directory that holds any of them a few levels below; or an archive that does,
which is unpacked to a temporary directory (:mod:`warren.salvage.archives.archive`). A path may go on after an archive's
name: ``backup.tar.gz/a/store``. ``-`` is an archive that comes through stdin, and ``ssh://host/path`` a directory of
another machine, which comes as one (:mod:`warren.salvage.archives.over_ssh`). A warren node's directory may hold both
kinds, queues and a topics store.

A directory or an archive may hold several nodes, such as the volume of a container that has a new host name at every
start. :meth:`Place.nodes` gives all of them. Everything else needs one, and raises an error that names them.

A node's data directory includes its quorum queues and streams: each is one of its vhost's queues, beside the classic
ones.

A queue's folder includes its vhost if it is in one: the vhost's settings, its store (for the bodies) and the queue's
terms of a clean stop. The other queues are not read then, so nothing is reported about the store.
"""

from __future__ import annotations

import os
import posixpath
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import attrs

from warren.queue_index.index import directory as disk
from warren.salvage.archives import over_ssh
from warren.salvage.live_node import holders, refuse_live_node
from warren.salvage.names import split_level
from warren.salvage.queue_descriptor import QueuePlace
from warren.salvage.queue_directory import Finding
from warren.salvage.quorum.quorum_node import QuorumNodes
from warren.salvage.quorum.quorum_places import quorum_places
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.rocketmq.store_places import store_at
from warren.salvage.streams.stream_places import stream_places
from warren.salvage.vhost import STORES, Vhost, VhostPlace
from warren.storage.data_version import FILE_NAME as VERSION_FILE
from warren.storage.data_version import refuse_unreadable
from warren.storage.descriptors import descriptor_bound
from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import RealFileSystem
from warren.storage.lock_file import LOCK_FILE
from warren.storage.own_files import DEFINITIONS_FILE, DEFINITIONS_LOG, DELAYS_DIRECTORY, SIDE_DIRECTORY

KIND: Final = "rabbitmq-classic-v1"
MIXED_KIND: Final = "rabbitmq"

STDIN: Final = "-"
"""In place of a path."""

OWN_FILES: Final = (DELAYS_DIRECTORY, SIDE_DIRECTORY, DEFINITIONS_FILE, DEFINITIONS_LOG, VERSION_FILE)
"""What a warren node has beside a broker's files; there is at least one of them once a node has written there."""
_VHOSTS_PLACES = ("msg_stores/vhosts", "vhosts")
_VHOST_FILES = (disk.VHOST_NAME_FILE, disk.RECOVERY_TERMS_FILE)
_MAX_DEPTH = 8
"""Levels of an archive that are searched."""
DIRECTORY_DEPTH: Final = 3
"""Levels below a directory that are searched: /var/lib holds rabbitmq/mnesia/NODE. More would walk whole disks."""
_NO_BROKERS: Final = frozenset({DELAYS_DIRECTORY, SIDE_DIRECTORY, "coordination"})
"""Folders of a node that only look like the directory of another node."""

_NO_QUEUES = "is no RabbitMQ data directory, vhosts, quorum or stream folder, vhost's folder or queue's folder"
_NO_STORE = "is no RocketMQ store folder (with commitlog, consumequeue or index in it)"
_NEITHER = f"{_NO_QUEUES}, and {_NO_STORE.removeprefix('is ')}"

_Result = TypeVar("_Result")


@attrs.frozen
class Source:
    """The vhosts of a broker that is not running."""

    path: str
    """As the user gave it."""
    vhosts: list[Vhost]
    """In order of their directories' names; those without classic queues come last."""

    @property
    def kind(self) -> str:
        """The format, for programs: one name if all queues are of the first kind, another if not."""
        queues = (queue for vhost in self.vhosts for queue in vhost.queues)
        return KIND if all(queue.kind == KIND for queue in queues) else MIXED_KIND

    def close(self) -> None:
        """Close the stores' files."""
        for vhost in self.vhosts:
            vhost.close()


@attrs.frozen
class Place:
    """What the user points at."""

    path: str
    """As the user gave it."""
    files: ReadOnlyFileSystem
    directory: str
    depth: int
    """Levels below the directory that are searched, too."""
    may_run: bool = False
    """Whether a running node may have the files open: it is a directory of this machine."""

    def nodes(self) -> list[Place]:
        """The brokers' directories: this one, or all in the highest level below it that has any; each a place.

        Raises :class:`DataError` if nothing is found.
        """
        matches = self._highest_matches(self._parts_at)
        if not matches:
            raise DataError(self.path, None, _NEITHER)
        if len(matches) == 1:
            return [attrs.evolve(self, directory=matches[0][0], depth=0)]
        return [
            attrs.evolve(self, path=below(self.path.rstrip("/"), self.below(place)), directory=place, depth=0)
            for place, _ in matches
        ]

    def is_warren_node(self) -> bool:
        """Whether warren opened a node in this very directory, which may have no queue or topic yet."""
        return any(self.files.exists(below(self.directory, name)) for name in (LOCK_FILE, VERSION_FILE))

    def below(self, place: str) -> str:
        """The path of an inner directory, relative to this one."""
        return place[len(self.directory) :].lstrip("/") if place != self.directory else posixpath.basename(place)

    def search(self, look: Callable[[str], _Result | None], nothing: str) -> _Result:
        """What ``look`` finds in the directory, or at the highest level below it that has anything.

        Raises :class:`DataError` with the reason ``nothing`` if nothing is found, and if more than one thing is;
        :class:`~warren.storage.data_version.VersionError` if this warren does not know what it would read.
        """
        match self._highest_matches(look):
            case []:
                raise DataError(self.path, None, nothing)
            case [(place, result)]:
                if self.may_run:
                    refuse_live_node(place)
                refuse_unreadable(self.files, holders(place))
                return result
            case matches:
                names = ", ".join(self.below(place) for place, _ in matches)
                reason = f"holds the directories of {len(matches)} nodes ({names}); point at one of them"
                raise DataError(self.path, None, reason)

    def _highest_matches(self, look: Callable[[str], _Result | None]) -> list[tuple[str, _Result]]:
        """What ``look`` finds in the highest level that has anything, with its directories."""
        places = [self.directory]
        for _ in range(self.depth + 1):
            if matches := [(place, result) for place in places if (result := look(place)) is not None]:
                return matches
            inner = (inner for place in places for inner in _directories(self.files, place) if _may_hold(place, inner))
            places = _distinct(self.files, [*inner])
        return []

    def _parts_at(self, place: str) -> tuple[list[VhostPlace] | None, str | None] | None:
        vhosts, store = _vhost_places(self.files, place), store_at(self.files, place)
        return None if vhosts is None and store is None else (vhosts, store)

    def queues(self, names: Collection[bytes] = ()) -> Source:
        """RabbitMQ's queues, or warren's; ``names``: bare names of queues; at least these are opened."""
        try:
            places = self.search(lambda place: _vhost_places(self.files, place), _NO_QUEUES)
        except DataError:
            if self._has_store():
                reason = "is a RocketMQ store, which has no queues: see warren topic, and warren inspect"
                raise DataError(self.path, None, reason) from None
            raise
        return Source(self.path, _opened(self.files, places, names))

    def store(self) -> str:
        """The directory of a topic store."""
        return self.search(lambda place: store_at(self.files, place), _NO_STORE)

    def parts(self) -> tuple[list[VhostPlace] | None, str | None]:
        """Where its vhosts are, and the directory of a topic store: what :meth:`both` opens, found with less reading.

        Raises :class:`DataError` if there is neither.
        """
        return self.search(self._parts_at, _NEITHER)

    def both(self) -> tuple[Source | None, str | None]:
        """Queues and the directory of a topic store: at least one of them."""
        vhosts, store = self.parts()
        return (None if vhosts is None else Source(self.path, _opened(self.files, vhosts))), store

    def own_files(self) -> str | None:
        """The directory that has files of warren's own beside a broker's, if there is one."""

        def look(place: str) -> str | None:
            return place if any(self.files.exists(below(place, name)) for name in OWN_FILES) else None

        try:
            return self.search(look, _NEITHER)
        except DataError:
            return None

    def _has_store(self) -> bool:
        try:
            self.store()
        except DataError:
            return False
        return True


@contextmanager
def open_place(path: str) -> Iterator[Place]:
    """The directory ``path``, or what the archive at ``path`` holds; an inner directory of one can be named.

    Raises :class:`DirectoryLockedError` if a node runs on the directory.
    """
    if os.path.isdir(path):
        refuse_live_node(path)
        files = ReadOnlyFileSystem(_real_files())
        yield Place(path, files, os.path.abspath(path), DIRECTORY_DEPTH, may_run=True)
        return
    archive, inner = path, ""
    while archive and not is_stream(path) and not os.path.exists(archive):
        archive, _, name = archive.rstrip("/").rpartition("/")
        inner = below(name, inner) if inner else name
    if not is_stream(path) and (not archive or os.path.isdir(archive)):
        raise StorageError(f"{path}: no such file or directory")
    with tempfile.TemporaryDirectory(prefix="warren-", ignore_cleanup_errors=True) as unpacked:
        _unpack(archive, unpacked)
        files = ReadOnlyFileSystem(_real_files(), unpacked)
        directory = posixpath.normpath(inner) if inner else ""
        if inner and (directory.startswith("..") or not files.is_directory(directory)):
            raise StorageError(f"{path}: there is no {inner} in {archive}")
        yield Place(path, files, "" if directory == "." else directory, _MAX_DEPTH)


def is_stream(path: str) -> bool:
    """Whether the source comes through a pipe, and is no file or directory of this machine."""
    return path == STDIN or path.startswith(over_ssh.SCHEME)


def _unpack(archive: str, target: str) -> None:
    from warren.salvage.archives.archive import unpack
    from warren.salvage.progress_bars import unpacking_bar

    size = os.path.getsize(archive) if os.path.isfile(archive) else None
    with unpacking_bar(size) as passed:
        if archive == STDIN:
            if sys.stdin.isatty():
                raise StorageError("-: is an archive through stdin, and that is a terminal")
            unpack("stdin", target, source=sys.stdin.buffer, passed=passed)
        elif archive.startswith(over_ssh.SCHEME):
            with over_ssh.streamed(archive) as source:
                unpack(archive, target, source=source, passed=passed)
        else:
            unpack(archive, target, passed=passed)


def _real_files() -> RealFileSystem:
    """A file system with a bound on open files: a store may have more files than a process may open."""
    return RealFileSystem(descriptor_bound())


@contextmanager
def open_source(path: str, names: Collection[bytes] = ()) -> Iterator[Source]:
    """Open the queues at ``path``; raises :class:`DataError` or :class:`StorageError` if they cannot be read.

    ``names``: bare names of queues; at least these are opened. Others are not read then, if possible.
    """
    with open_place(path) as place:
        source = place.queues(names)
        try:
            yield source
        finally:
            source.close()


def _opened(files: ReadOnlyFileSystem, places: Sequence[VhostPlace], names: Collection[bytes] = ()) -> list[Vhost]:
    """The vhosts in these places, with all of their queues if the named ones are not found by name."""
    nodes = QuorumNodes(files)
    vhosts = [Vhost.open(files, place, nodes, names) for place in places]
    opened_names = {split_level(queue.name)[0] for vhost in vhosts for queue in vhost.queues}
    if opened_names.issuperset(names):
        return vhosts
    return [Vhost.open(files, place, nodes) for place in places]


def _vhost_places(files: ReadOnlyFileSystem, place: str) -> list[VhostPlace] | None:
    """Where its vhosts are: their classic queues, and the others. A directory's name tells the vhost."""
    classic = _classic_places(files, place)
    (quorum, problems), (streams, stream_problems) = quorum_places(files, place), stream_places(files, place)
    problems += stream_problems
    if not quorum and not streams and not problems:
        return classic
    by_directory: dict[str, list[QueuePlace]] = {}
    for other in (*quorum, *streams):
        by_directory.setdefault(disk.vhost_directory_name(other.vhost), []).append(other)
    places = []
    for vhost_place in classic or ():
        others = by_directory.pop(posixpath.basename(vhost_place.path or ""), [])
        places.append(attrs.evolve(vhost_place, others=tuple(others)))
    places += [VhostPlace(None, others=tuple(by_directory[name])) for name in sorted(by_directory)]
    first, *rest = places or [VhostPlace(None)]  # no file says which vhosts the problems belong to
    return [attrs.evolve(first, problems=(*first.problems, *problems)), *rest]


def _classic_places(files: ReadOnlyFileSystem, place: str) -> list[VhostPlace] | None:
    if _is_vhost(files, place):
        return [VhostPlace(place)]
    if _is_queue(files, place):
        queues, _, _ = place.rpartition("/")
        vhost, _, folder = queues.rpartition("/")
        is_inside = folder == disk.QUEUES_DIRECTORY and _is_vhost(files, vhost)
        return [VhostPlace(vhost if is_inside else None, place)]
    for folder in (*(below(place, inner) for inner in _VHOSTS_PLACES), place):
        vhosts = [inner for inner in _directories(files, folder) if _is_vhost(files, inner)]
        if vhosts or (folder != place and files.is_directory(folder)):
            places = [VhostPlace(inner) for inner in vhosts]
            if hidden := _hidden_in(files, folder):
                first, *others = places or [VhostPlace(None)]
                places = [attrs.evolve(first, problems=hidden), *others]
            return places
    return None


def _hidden_in(files: ReadOnlyFileSystem, folder: str) -> tuple[Finding, ...]:
    """The findings about directories in a folder of vhosts that cannot be listed."""
    findings = []
    for inner in _directories(files, folder):
        try:
            files.list(inner)
        except StorageError as error:
            findings.append(Finding("unreadable directory", "damage", inner, None, str(error)))
    return tuple(findings)


def _is_vhost(files: ReadOnlyFileSystem, place: str) -> bool:
    """Whether it has any of the files of a vhost's folder; a damaged one may lack all but one."""
    if any(
        files.exists(path) and not files.is_directory(path) for path in (below(place, name) for name in _VHOST_FILES)
    ):
        return True
    if any(files.exists(below(place, name)) for name in STORES):
        return True
    if any(_is_queue(files, queue) for queue in _directories(files, below(place, disk.QUEUES_DIRECTORY))):
        return True
    return _is_vhost_config(files, below(place, disk.VHOST_CONFIG_FILE))


def _is_vhost_config(files: ReadOnlyFileSystem, path: str) -> bool:
    """Whether that is a vhost's settings: many unrelated folders have something called ``.config``."""
    if not files.exists(path) or files.is_directory(path):
        return False
    try:
        disk.parse_vhost_config(files.read(path), path)
    except (DataError, StorageError):
        return False
    return True


def _is_queue(files: ReadOnlyFileSystem, place: str) -> bool:
    names = _names(files, place)
    return disk.QUEUE_NAME_FILE in names or any(disk.is_of_v1(name) or disk.is_of_v2(name) for name in names)


def _names(files: ReadOnlyFileSystem, place: str) -> list[str]:
    """The names in a directory; empty if it cannot be listed, which is reported when it is opened."""
    try:
        return files.list(place)
    except StorageError:
        return []


def _may_hold(*directories: str) -> bool:
    return _NO_BROKERS.isdisjoint(map(posixpath.basename, directories))


def _directories(files: ReadOnlyFileSystem, place: str) -> list[str]:
    if not files.is_directory(place):
        return []
    return [inner for name in _names(files, place) if files.is_directory(inner := below(place, name))]


def _distinct(files: ReadOnlyFileSystem, directories: Sequence[str]) -> list[str]:
    """The directories without the links to others among them. A URI is no path of this machine, and so no link."""
    links_first = sorted(directories, key=lambda path: os.path.islink(below(files.root, path)), reverse=True)
    chosen = {os.path.realpath(below(files.root, path)): path for path in links_first}
    return [path for path in directories if chosen[os.path.realpath(below(files.root, path))] == path]
