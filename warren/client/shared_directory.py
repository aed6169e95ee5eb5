"""SharedDirectory: one process's access to a data directory that many use.

The process that gets the directory's lock hosts the node: it opens it, and serves AMQP on a Unix socket in the
directory. The others connect. When the host is gone, they all notice at once: one gets the lock, opens the node from
its files and listens, and the others connect to that one. A lock of its own, held only while the node is opened, keeps
others from opening it at the same time.

A host that holds the lock and does not answer, because it is stopped or hangs, is neither killed nor replaced: two
hosts would destroy the directory. Calls fail after ``host_timeout_ms`` and name the process.

A process that opened the directory first works on its node directly. One that has connected remains a client whichever
process hosts, even if it is itself: unconfirmed messages must stay before those that it publishes next, and that holds
only on one connection.

A forked child is a client of its own. Its parent's node, requests and deliveries stay the parent's.

*Locks.* ``_hosting`` is held while this process becomes host, and while it closes. A thread that holds it takes no lock
of a link and waits for no answer. Threads that have published something never hold it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from warren.actors.node.node_errors import ClosedError
from warren.actors.node.node_socket import SOCKET_NAME, short_path
from warren.actors.runtime.interrupts import Closing, uninterrupted
from warren.actors.runtime.leader_follower import new_lock
from warren.actors.runtime.pooled_actor import WrongProcessError
from warren.client.errors import HostUnresponsiveError, LinkLostError, unresponsive_host
from warren.client.handshake import Login
from warren.client.link import Link
from warren.client.link_vhost import LinkVhost
from warren.client.remote import RemoteVhost
from warren.config import Config
from warren.hosting import open_nodes
from warren.hosting.running_node import RunningNode
from warren.storage.errors import DirectoryLockedError, DirectoryLostError, WarrenError
from warren.storage.lock_file import LOCK_FILE, SHARED, RealLock, identity_of, lock_holder
from warren.storage.real_file import refused
from warren.verbs.operation import NotFromOutsideError
from warren.verbs.steps import run
from warren.verbs.vhost_host import LocalVhost
from warren.verbs.vhost_verbs import NodeVerbs

ELECTION_FILE: Final = "warren.election"
"""The lock file of the process that is opening the node."""
RETRY_S: Final = 0.002
MAX_RETRY_S: Final = 0.02
"""How often a process looks for the next host: at first, and later."""
GRACE_S: Final = 1.0
"""How long a lock may be held by a process that has not written who it is."""

_NOBODY: Final = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)


class NotLetInError(WarrenError):
    """The process that has the directory open does not let this process in, or no longer does."""


class SharedDirectory:
    """The base of :class:`warren.Node` for a shared directory."""

    forked: Final = False
    """A forked child uses it as a client of its own."""

    def __init__(self, path: str, config: Config, host: Callable[[], RunningNode] | None) -> None:
        """``host``: opens the node and serves it; raises :class:`DirectoryLockedError` if another process does.
        ``None``: another process has the directory for itself, and this process is its guest until it closes it."""
        self.path = path
        self._lock_path = os.path.join(path, LOCK_FILE)
        self._identity = identity_of(path)
        self._host_timeout_s = config.node.host_timeout_ms / 1000
        self.config = config
        self._host = host
        self._running: RunningNode | None = None
        self._closed = False
        self._process = os.getpid()
        self._begin()
        self.local: RunningNode | None = None
        """The node, if handles use it directly."""
        if host is not None and lock_holder(self._lock_path) is None:
            with contextlib.suppress(DirectoryLockedError):
                self.local = self._become_host()
        self.node = self.new_remote("/")
        """The connection of the node's own verbs."""
        open_nodes.opened(self)
        open_nodes.close_at_exit(self)

    def meet_host(self) -> None:
        """Connect to the host, unless this process hosts. Raises why it cannot."""
        if self.local is None:
            try:
                run(self.node.publisher())
            except BaseException:
                self.close()
                raise

    def _begin(self) -> None:
        self._hosting = new_lock()
        self._remotes: list[RemoteVhost] = []
        self._closing = Closing()
        self._met: list[RemoteVhost] = []
        """For a guest of a process that does not share: the remotes that have connected."""

    def verbs(self) -> NodeVerbs:
        """Return the verbs of the node. In a forked child they, and all that come from them, become a client's."""
        if self.local is None:
            return NodeVerbs(self._link())
        self.local.moves = WeakKeyDictionary()
        verbs = NodeVerbs(LocalVhost(self.local))
        self.local.move_at_fork(verbs, self._link)
        return verbs

    def _link(self) -> LinkVhost:
        return LinkVhost(self.node, self.new_remote)

    # ── host or client ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def hosts(self) -> bool:
        """Whether this process hosts the node."""
        return self._running is not None

    def _become_host(self) -> RunningNode:
        """Open the node. Raises :class:`DirectoryLockedError` if another process is, or is becoming, host."""
        with self._hosting:
            if self._closed:
                raise LinkLostError("the directory is being closed")
            if self._running is None:
                uninterrupted(self._host_it)
            return self.running()

    def _host_it(self) -> None:
        self._running = self._elected()

    def _elected(self) -> RunningNode:
        """Open the node, if no other process has it or is opening it."""
        election = RealLock(os.path.join(self.path, ELECTION_FILE), f"process {os.getpid()}")
        try:
            if (holder := lock_holder(self._lock_path)) is not None:
                raise DirectoryLockedError(f"{self._lock_path}: in use by {holder}")
            if self._host is None:
                raise RuntimeError("a guest cannot host")
            return self._host()
        finally:
            election.remove()

    def running(self) -> RunningNode:
        """The node, if this process hosts it. Raises :class:`NotFromOutsideError`."""
        self.check_process()
        if self._running is None:
            raise NotFromOutsideError(f"another process hosts the node of {self.path}")
        return self._running

    def new_remote(self, vhost: str) -> RemoteVhost:
        """Return a connection, which is made on first use."""

        def connect(stopped: Callable[[], bool]) -> socket.socket:
            if remote not in self._remotes:  # it was released, and is used again
                self.check_process()
                self._remotes.append(remote)
            try:
                self._check_directory()
                return self._connect(stopped) if self._host is not None else self._attached(remote)
            except OSError as error:
                raise refused(self.path, error) from error

        remote = RemoteVhost(
            lambda: Link(connect, Login(vhost), self._unresponsive, self._host_timeout_s),
            vhost,
            self.path,
            self._forget_remote,
        )
        self._remotes.append(remote)
        return remote

    def _forget_remote(self, remote: RemoteVhost) -> None:
        with contextlib.suppress(ValueError):
            self._remotes.remove(remote)

    def _check_directory(self) -> None:
        """Raise :class:`DirectoryLostError` if the directory was removed or replaced."""
        if identity_of(self.path) != self._identity:
            raise DirectoryLostError(f"{self.path}: removed or replaced since it was opened")

    def _connect(self, stopped: Callable[[], bool]) -> socket.socket:
        """Return a socket to the host, which this process may become. Raises :class:`HostUnresponsiveError`."""
        if self._process != os.getpid():  # not at the fork: forking may clear exit handlers
            self._process = os.getpid()
            open_nodes.close_at_exit(self)
        begin, pause_s = time.monotonic(), RETRY_S
        shared_until = begin
        while not stopped():
            holder, locked = lock_holder(self._lock_path), None
            if holder is None:
                try:
                    self._become_host()
                except DirectoryLockedError as error:
                    locked = error
            elif holder.endswith(SHARED):
                shared_until = time.monotonic()
            elif time.monotonic() >= shared_until + GRACE_S:
                raise DirectoryLockedError(
                    f"{self._lock_path}: in use by {holder or 'another process'}, which does not share it"
                )
            if (holder is None or holder.endswith(SHARED)) and (connection := _connected(self.path)) is not None:
                return connection
            if time.monotonic() - begin >= self._host_timeout_s:
                raise locked or self._unresponsive(self._host_timeout_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RETRY_S)
        raise LinkLostError("the connection is no longer needed")

    def _unresponsive(self, silent_s: float) -> HostUnresponsiveError:
        return unresponsive_host(self.path, silent_s)

    def _attached(self, remote: RemoteVhost) -> socket.socket:
        """Return a socket to the process that has the directory for itself: only once, as the next one is another."""
        if remote in self._met or self._closed:
            raise NotLetInError(f"{self.path}: the host closed it, or this connection")
        self._met.append(remote)
        try:
            connection = _connected(self.path)
        except LinkLostError as error:
            raise NotLetInError(str(error)) from error
        if connection is None:
            raise NotLetInError(f"{self.path}: the process that has it open does not share it")
        return connection

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def closed(self) -> bool:
        return self._closed

    def check_process(self) -> None:
        """Raise :class:`ClosedError` if it was closed."""
        if self._closed:
            raise ClosedError(f"the node of {self.path} is closed")

    def close(self) -> None:
        """Wait until everything that was published is confirmed; then leave the directory to the others.

        Raises :class:`HostUnresponsiveError` if the host was silent for too long to confirm it, and
        :class:`DirectoryLostError` if the directory was removed or replaced. For interrupts see
        :meth:`RunningNode.close`.
        """
        self._closing.run(self._close)

    def _close(self) -> None:
        self._closed = True
        error = ClosedError(f"the node of {self.path} is closed")
        silent = None
        for remote in list(self._remotes):
            remote.link.refuse(error)  # else it would never end while other threads publish
            silent = run(remote.flush()) or silent
            uninterrupted(remote.close, error)
        with self._hosting:
            running = self._running
        try:
            if running is not None:
                running.close()
        finally:
            if running is None or running.ended:
                uninterrupted(self._let_go)
        if silent is not None:
            raise silent
        if running is None:
            self._check_directory()

    def _let_go(self) -> None:
        with self._hosting:
            self._running = None
        open_nodes.closed(self)
        self._closing.is_over = True

    def forget(self) -> None:
        """In a forked child: drop the parent's node and connections."""
        if self._closed:
            return
        error = WrongProcessError(f"{self.path}: requested by the parent process, before a fork")
        remotes, moves = self._remotes, None if self.local is None else self.local.moves
        self._begin()
        self._running = self.local = None
        for remote in remotes:
            remote.link.forget(error)
            remote.forget()
        self._remotes = remotes
        for verbs, new_host in (moves or {}).items():
            verbs.host = new_host()


def open_shared(
    opening: open_nodes.Opening, path: str, config: Config, host: Callable[[], RunningNode] | None
) -> SharedDirectory:
    """Access a shared directory; the arguments are those of :class:`SharedDirectory`."""
    directory = opening.start(lambda: SharedDirectory(path, config, host))
    directory.meet_host()
    return directory


def _connected(directory: str) -> socket.socket | None:
    """Return a socket to the process that listens in a directory; ``None`` if there is no such process."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(os.path.join(directory, SOCKET_NAME)) as name:
            connection.connect(name)
    except OSError as error:
        connection.close()
        if error.errno in _NOBODY:
            return None
        raise LinkLostError(f"{directory}: {error}") from error
    return connection
