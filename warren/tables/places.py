"""What paths name: brokers' directories. A path may be a glob, or a URI of any file system that pyarrow supports.

A *node* is one directory that was loaded: its name in every table is the path as it was given, or as the glob matched
it. Which kinds of stores it holds is found out by looking: RabbitMQ's queues, a topic store, or both.

A URI's query may say how to open it: ``s3://bucket/broker-1?endpoint_override=minio:9000&scheme=http``, with
pyarrow's names. The rest comes from the environment, such as ``AWS_ACCESS_KEY_ID``, ``AWS_REGION`` and
``AWS_ENDPOINT_URL``, on the executors too. The query is no part of any name or file's path. In a URI a glob has ``*``
and ``[…]``, for ``?`` begins the query.
"""

from __future__ import annotations

import enum
import glob
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from urllib.parse import unquote

import attrs

from warren.salvage.live_node import refuse_live_node
from warren.salvage.quorum.quorum_node import QuorumNodes
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.source import DIRECTORY_DEPTH, Place, open_place
from warren.salvage.vhost import Vhost, VhostPlace
from warren.storage.descriptors import descriptor_bound
from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import FileSystem, RealFileSystem
from warren.tables.arrow_files import Address, ArrowFileSystem, address, has_magic, matches, moved
from warren.tables.pipeline_errors import PipelineError

_ARCHIVE = "an archive, which Spark cannot read in parts; unpack it first"


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
    """Its absolute path, or a URI."""
    secret: str = attrs.field(default="", repr=False)
    """What opens the URI, keys included; empty for a directory of this machine."""

    @property
    def path(self) -> str:
        """The path to give for this node alone, with all that opens it."""
        return self.secret or self.name

    @property
    def is_remote(self) -> bool:
        """Whether it is not a directory of the machine that reads it."""
        return bool(self.secret)

    def files(self) -> FileSystem:
        """The file system to read it with, on any machine."""
        return ArrowFileSystem(self.secret) if self.secret else RealFileSystem(descriptor_bound())

    def place(self) -> Place:
        """The directory, as :mod:`warren.salvage.source` knows it."""
        return Place(self.name, ReadOnlyFileSystem(self.files()), self.directory, 0)

    def nodes(self) -> list[Node]:
        """This node, or the nodes below it; if nothing is found, this one: reading it raises the error."""
        place = self.place()
        if place.is_warren_node():
            return [self]
        try:
            places = attrs.evolve(place, depth=DIRECTORY_DEPTH).nodes()
        except DataError:
            return [self]
        return [self._of(place, name=self.name if len(places) == 1 else place.path) for place in places]

    def _of(self, place: Place, name: str) -> Node:
        directory = place.directory
        secret = moved(self.secret, directory) if self.secret and name != self.name else self.secret
        return attrs.evolve(self, name=name, directory=directory, secret=secret)

    def contents(self) -> NodeContents:
        """What lies in it: a walk through its directories. Raises :class:`DataError` if it holds nothing."""
        vhosts, store = self.place().parts()
        return NodeContents(self, None if vhosts is None else tuple(vhosts), store)


@attrs.frozen
class UnpackedNode(Node):
    """What an archive holds, which lies unpacked on this machine; its files are named as they are in the archive."""

    unpacked: Place = attrs.field(kw_only=True)

    def place(self) -> Place:
        return attrs.evolve(self.unpacked, files=attrs.evolve(self.unpacked.files, inner=self.files()))

    def _of(self, place: Place, name: str) -> Node:
        directory = below(place.files.root, place.directory)
        return attrs.evolve(self, name=name, directory=directory, unpacked=place)


@attrs.frozen
class NodeContents:
    """What lies in a node."""

    node: Node
    vhosts: tuple[VhostPlace, ...] | None
    """``None``: it has no queues."""
    store: str | None
    """The directory of its topic store; ``None``: it has no topics."""

    @property
    def kinds(self) -> Kind:
        """Which of the two kinds it has."""
        return (Kind(0) if self.vhosts is None else Kind.QUEUES) | (Kind(0) if self.store is None else Kind.TOPICS)

    def opened_vhosts(self, queue_names: Collection[bytes] = ()) -> Iterator[Vhost]:
        """Its vhosts, each open until the next; ``queue_names``: other classic queues may be left out."""
        files = self.node.place().files
        nodes = QuorumNodes(files)
        for vhost_place in self.vhosts or ():
            with closing(Vhost.open(files, vhost_place, nodes, queue_names)) as vhost:
                yield vhost


def find_nodes(paths: Sequence[str], *, may_run: bool = False, archives: ExitStack | None = None) -> list[Node]:
    """The brokers' directories that the paths name or hold, each once, in order of the paths; those of a glob sorted.

    A directory that several paths name bears the first one's name. If a path holds several, each is named by the path
    and where it lies below it. ``archives``: the paths may be archives, too, which are there as long as that is
    open; without, none may be. Raises :class:`StorageError` if one names nothing, :class:`PipelineError` if no
    directory is found, and, unless a node ``may_run`` there, :class:`DirectoryLockedError` if one does on this
    machine.
    """
    nodes: dict[str, Node] = {}
    directories = (
        node for path in paths for node in (_local(path, archives) if _is_local(path) else _remote(address(path)))
    )
    for directory in directories:
        for node in directory.nodes():
            nodes.setdefault(node.directory if node.is_remote else os.path.realpath(node.directory), node)
    if not nodes:
        raise PipelineError("no path to load")
    for node in () if may_run else nodes.values():
        if not node.is_remote:
            refuse_live_node(node.directory)
    return list(nodes.values())


def check_paths(paths: Sequence[str]) -> None:
    """Raise what :func:`find_nodes` raises for a path of this machine that names nothing; look at no other path."""
    for path in filter(_is_local, paths):
        for _ in _local(path, None):
            break


def _is_local(path: str) -> bool:
    scheme, separator, _ = path.partition("://")
    return not separator or scheme == "file" or not scheme.isalnum()


def _local(path: str, archives: ExitStack | None) -> Iterator[Node]:
    """Directories of this machine; of a ``file://`` URI the name is a URI, too."""
    prefix, place = "", path
    if path.startswith("file://"):
        host, slash, rest = path.removeprefix("file://").partition("/")
        if host not in ("", "localhost"):
            raise StorageError(f"{path}: is on another machine")
        prefix, place = f"file://{host}", unquote(slash + rest)
    names = sorted(glob.glob(place)) if glob.has_magic(place) and not os.path.exists(place) else [place]
    if not names:
        raise StorageError(f"{path}: nothing matches")
    for name in names:
        shown = path if name == place else prefix + name
        if os.path.isdir(name):
            yield Node(shown, os.path.abspath(name))
        elif archives is not None:
            yield _unpacked(shown, archives.enter_context(open_place(name)))
        elif os.path.isfile(name):
            raise DataError(shown, None, _ARCHIVE)
        else:
            raise StorageError(f"{shown}: no such directory")


def _unpacked(name: str, place: Place) -> UnpackedNode:
    return UnpackedNode(name, below(place.files.root, place.directory), unpacked=place)


def _remote(pattern: Address) -> Iterator[Node]:
    """Directories on an object store: whatever has a file below it is one."""
    addresses = [pattern]
    if has_magic(pattern.shown) and not _is_there(pattern):
        addresses = matches(pattern)
        if not addresses:
            has_bucket = ArrowFileSystem(pattern.secret).has_bucket()
            raise StorageError(f"{pattern.shown}: {'nothing matches' if has_bucket else 'no such bucket'}")
    for remote in addresses:
        directory = remote.shown.rstrip("/")
        files = ArrowFileSystem(remote.secret)
        if not files.is_directory(directory):
            if files.exists(directory):
                raise DataError(remote.shown, None, _ARCHIVE)
            raise StorageError(f"{remote.shown}: no such {'directory' if files.has_bucket() else 'bucket'}")
        yield Node(remote.shown, directory, remote.secret)


def _is_there(remote: Address) -> bool:
    return ArrowFileSystem(remote.secret).exists(remote.shown.rstrip("/"))
