"""NodeSocket: the Unix-domain socket in a data directory, by which other processes reach the node.

*Where it is.* ``warren.sock`` in the data directory, and nowhere else: nothing that lies in a directory says where a
socket is. A path that is longer than a socket's may be goes by the directory's descriptor (``/proc/self/fd``).

Only the node's user can open it. A crash leaves it behind: whoever opens the directory next has its lock, so nobody
answers there any more, and what lies there is removed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Iterator
from typing import Final

SOCKET_NAME: Final = "warren.sock"
MAX_SOCKET_PATH_BYTES: Final = 103
"""What every system's ``sun_path`` holds; Linux has room for four more."""
_CREDENTIALS: Final = struct.Struct("3i")


def find_socket(directory: str) -> str | None:
    """The socket of the node in ``directory``, if there is one; perhaps nobody answers there any more."""
    path = os.path.join(directory, SOCKET_NAME)
    return path if _identity(path) is not None else None


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """A name for ``path`` that is no longer than a socket's may be, as long as the block lasts."""
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        yield path
        return
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{os.path.basename(path)}"
    finally:
        os.close(descriptor)


class NodeSocket:
    """The socket of one node. Made with the directory's lock in hand."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, SOCKET_NAME)
        self._identity = _identity(self.path)
        """Of the socket; before there is one: of what a process that was killed has left."""

    def listen(self, backlog: int) -> socket.socket:
        """A socket that listens, and does not wait. Raises ``OSError``, ``ValueError``."""
        self.remove()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_path(self.path) as name:
                listener.bind(name)
            self._identity = _identity(self.path)
            os.chmod(self.path, 0o600)  # before it listens: nobody else has got in
            listener.listen(backlog)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        return listener

    def remove(self) -> None:
        """Remove the socket, if it is this one; nothing else."""
        with contextlib.suppress(OSError):
            if self._identity is not None and _identity(self.path) == self._identity:
                os.unlink(self.path)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a connection. Raises ``OSError``."""
    process, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return process, user


def may_come_in(user: int) -> bool:
    """Whether a user's processes may: the node's own, and root's. The socket's mode keeps others out already, as long
    as nobody changes it."""
    return user in (os.geteuid(), 0)


def _identity(path: str) -> tuple[int, int] | None:
    """Of the socket with that name; ``None`` where there is none."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None
