"""NodeSocket: the Unix-domain socket in a data directory, through which other processes reach the node.

*Location.* Always ``warren.sock`` in the data directory: no file in a directory names a socket elsewhere. A path too
long for a socket address goes through the directory's descriptor (``/proc/self/fd``).

Only the node's user can open it. A crash leaves the socket file: the next process that opens the directory holds its
lock, so the old socket is dead, and is removed.
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
"""The size that ``sun_path`` has on every system; Linux has room for four more."""
_CREDENTIALS: Final = struct.Struct("3i")


def find_socket(directory: str) -> str | None:
    """Return the path of the socket in ``directory``, if it exists; the node may have ended."""
    path = os.path.join(directory, SOCKET_NAME)
    return path if _identity(path) is not None else None


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """Yield a name for ``path`` that fits a socket address; valid until the block ends."""
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        yield path
        return
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{os.path.basename(path)}"
    finally:
        os.close(descriptor)


class NodeSocket:
    """The socket of one node. Create it while holding the directory's lock."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, SOCKET_NAME)
        self._identity = _identity(self.path)
        """Identifies the socket; before :meth:`listen`, the one left by a killed process."""

    def listen(self, backlog: int) -> socket.socket:
        """Return a non-blocking socket that listens. Raises ``OSError``, ``ValueError``."""
        self.remove()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_path(self.path) as name:
                listener.bind(name)
            self._identity = _identity(self.path)
            os.chmod(self.path, 0o600)  # before it listens, so that no other user can connect
            listener.listen(backlog)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        return listener

    def remove(self) -> None:
        """Remove the socket file if it is this socket."""
        with contextlib.suppress(OSError):
            if self._identity is not None and _identity(self.path) == self._identity:
                os.unlink(self.path)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end of a connection. Raises ``OSError``."""
    process, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return process, user


def may_come_in(user: int) -> bool:
    """Whether processes of ``user`` may connect: those of the node's user and of root. The mode of the socket already
    keeps others out, unless it is changed."""
    return user in (os.geteuid(), 0)


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of the socket at ``path``; ``None`` if there is no socket."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None
