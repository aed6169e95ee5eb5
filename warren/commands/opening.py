"""Open a node's directory for a command: check whose it is and whether it is free, or explain why not.

A command opens nothing by mistake: a directory is warren's own (it has definitions), or RabbitMQ's and ``--adopt`` is
given, or the command may create it. Everything else is left as it is, and an error says what it looks like.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from warren.actors.clock import HandClock
from warren.actors.engines.errors import NotFoundError
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_errors import ForeignDirectoryError
from warren.actors.runtime.pool import HandPool
from warren.commands.options import AdoptOption, VhostOption
from warren.config import Config
from warren.handles.node import MEMORY, Node, Vhost
from warren.handles.node import open as open_node
from warren.handles.queue import Queue
from warren.hosting.data_directory import BrokerRunningError, Kind, kind_of, refuse_part, refuse_running_broker
from warren.hosting.open_nodes import Opening
from warren.hosting.running_node import RunningNode
from warren.storage.errors import DirectoryLockedError, StorageError, WarrenError
from warren.storage.filesystem import RealFileSystem
from warren.storage.lock_file import LOCK_FILE, SHARED, lock_holder
from warren.storage.overlay import OverlayFileSystem
from warren.verbs.vhost_host import LocalVhost
from warren.verbs.vhost_verbs import VhostVerbs

if TYPE_CHECKING:
    from warren.salvage.queue_directory import OnFinding
    from warren.top.attached import Attached


def check_directory(path: str, *, adopt: bool = False, make: bool = False) -> bool:
    """Raise the reason why ``path`` cannot be opened as a node's directory, before anything in it is touched.

    Return ``False`` if it is RabbitMQ's and ``adopt`` is set, else ``True``.
    """
    if path == MEMORY:
        raise StorageError(f"{path}: a node in memory would be gone with this command")
    kind = refuse_part(path)
    match kind:
        case Kind.BROKERS if not adopt:
            raise ForeignDirectoryError(
                f"{path}: a RabbitMQ's data directory; --adopt takes it over if RabbitMQ is stopped, and inspect, "
                "export and shovel read it as it is"
            )
        case Kind.MISSING if not make:
            raise StorageError(f"{path}: no such directory")
        case Kind.OTHER:
            raise StorageError(f"{path}: no node's data directory")
        case Kind.EMPTY if not make:
            raise StorageError(f"{path}: no node's data directory")
    return kind is not Kind.BROKERS


@contextmanager
def opened_node(path: str, *, adopt: bool = False, make: bool = False, share: bool = False) -> Iterator[Node]:
    """The node of a directory, for as long as the command needs it: one that another process has open, shared or not,
    or one of our own.

    ``share``: the command may take long, and others are to get in meanwhile.
    """
    check_directory(path, adopt=adopt, make=make)
    lock = os.path.join(path, LOCK_FILE)
    holder = lock_holder(lock)
    if holder is not None and not holder.endswith(SHARED):
        node = _guest(path, f"{lock}: in use by {holder or 'another process'}")
    else:
        try:
            node = open_node(path, adopt=adopt, share=share or holder is not None)
        except BrokerRunningError:
            raise
        except DirectoryLockedError as locked:  # just now
            node = _guest(path, str(locked))
    with node:
        yield node


def _guest(path: str, locked: str) -> Node:
    """The node of a process that has the directory for itself. Raises :class:`DirectoryLockedError`."""
    from warren.client.shared_directory import NotLetInError, open_shared

    opening = Opening()
    try:
        node = Node(open_shared(opening, os.path.abspath(path), Config.of(None), None))
    except NotLetInError as error:
        raise DirectoryLockedError(f"{locked}, and this command is not let in: {error}") from error
    except BaseException:
        opening.undo()
        raise
    return node


@contextmanager
def looking_at(path: str, *, attach: bool = False, adopt: bool = False) -> Iterator[Attached]:
    """The node that runs in a directory, or (without ``attach``) a node of our own if no node runs.

    A RabbitMQ's directory (``adopt``) is only looked at: the node's files are the directory's as they would be.
    """
    from warren.top.attached import NotAttachedError, attached, of_own

    is_ours = check_directory(path, adopt=adopt)
    with ExitStack() as opened:
        try:
            node = opened.enter_context(attached(path))
        except NotAttachedError as error:
            if attach:
                raise
            if is_ours:
                node = of_own(opened.enter_context(_own(path, error))._running)
            else:
                node = of_own(opened.enter_context(_overlaid(path)))
        yield node


def _own(path: str, not_attached: WarrenError) -> Node:
    """Open the node of a directory."""
    try:
        return open_node(path)
    except BrokerRunningError:
        raise
    except DirectoryLockedError as locked:
        raise DirectoryLockedError(f"{locked}, and cannot be looked at: {not_attached}") from locked


@contextmanager
def _overlaid(path: str) -> Iterator[RunningNode]:
    """A node over a directory that is not changed: all in this thread, and time stands still."""
    refuse_running_broker(path)
    files = OverlayFileSystem(RealFileSystem())
    try:
        config = Config.of(None)
        context = NodeContext(
            files=files,
            pool=HandPool(),
            clock=HandClock(time.time_ns() // 1000),
            random=os.urandom,
            settings=config.node,
            engine=config.engine,
        )
        yield RunningNode(context, os.path.abspath(path), config, adopt=True)
    finally:
        files.close()


def definitions_at(
    path: str,
    report: OnFinding,
    *,
    vhost: str | None = None,
    adopt: bool = False,
    for_import: bool = False,
    of_broker: bool = False,
) -> dict[str, Any]:
    """The definitions JSON of a node's directory: warren's, in use or not, or a stopped RabbitMQ's or an archive of it.

    ``report`` gets what could not be read of a RabbitMQ's. ``adopt``: those that warren would start with there.
    ``for_import``: with what a RabbitMQ's own export lacks. ``of_broker``: a RabbitMQ's, even in a node's directory.
    """
    from warren.salvage.source import is_stream, open_place

    if adopt or (
        not of_broker and not is_stream(path) and (path == MEMORY or kind_of(path) in (Kind.NODES, Kind.EMPTY))
    ):
        with looking_at(path, adopt=adopt) as node:
            own: dict[str, Any] = node.ask(want="definitions", vhost=vhost)
            return own
    from warren.salvage.metadata.broker_definitions import definitions_in, of_vhost

    with open_place(path) as place:
        document = definitions_in(place, report, for_import=for_import)
    return document if vhost is None else of_vhost(document, vhost)


def vhost_of(node: Node, name: str) -> Vhost:
    """Return a vhost. Raises :class:`NotFoundError` if it does not exist, or the reason why it cannot be used."""
    if name not in node.vhosts():
        raise NotFoundError(f"no vhost '{name}' in {node.path}")
    if node.is_guest:
        return node if name == "/" else node.vhost(name)
    node._running.vhost(name)
    return node if name == "/" else Vhost(VhostVerbs(LocalVhost(node._running, name)))


@attrs.frozen(kw_only=True)
class VhostOptions:
    """Which vhost, and whether the directory may be RabbitMQ's."""

    vhost: VhostOption = "/"
    adopt: AdoptOption = False

    @contextmanager
    def opened(self, path: str, *, make: bool = False) -> Iterator[Vhost]:
        """Open the vhost. ``make``: create the directory if it is missing."""
        with opened_node(path, adopt=self.adopt, make=make) as node:
            yield vhost_of(node, self.vhost)

    @contextmanager
    def opened_queue(self, path: str, queue: str, *, share: bool = False) -> Iterator[Queue]:
        """Open a queue that exists. ``share``: other processes may use the directory meanwhile."""
        with opened_node(path, adopt=self.adopt, share=share) as node:
            yield vhost_of(node, self.vhost).queue(queue, passive=True)
