"""The files that warren makes: their names, modes and owners.

Messages are private to their user: files are made with mode 0600 and directories with 0700, whatever the umask.
Existing ones keep their mode. Temporary files with parts of messages are private too: those that other programs make,
with their own modes, lie in a folder that other users cannot enter.

The superuser makes files for others: a file or directory that it makes in another user's data directory belongs to the
owner (and group) of the directory that it is made in. So the user that a node, or an adopted RabbitMQ, runs as can read
what a command of root's has written there. A data directory itself is its maker's.
"""

from __future__ import annotations

import os
import stat
from typing import Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

DEFINITIONS_FILE: Final = "warren.definitions.json"
DEFINITIONS_LOG: Final = "warren.definitions.log"
"""Declarations in a data directory, and changes of them (:mod:`warren.actors.engines.declared.definitions_file`)."""
DELAYS_DIRECTORY: Final = "warren.delayed"
"""In a data directory, with a directory for each vhost that has delayed messages: outside of all that is RabbitMQ's."""
SIDE_DIRECTORY: Final = "warren.queues"
"""warren's own files of queues, apart from a broker's: by vhost and queue, named as there."""
RETURNED_LOG: Final = "returned.log"
"""Messages that came back to a queue (:mod:`warren.actors.engines.queue.retries`), in the queue's folder there."""
RETURNED_KIND: Final = "returned"
"""The word in its first line."""
KEYS_LOG: Final = "unique.log"
"""The keys of messages (:mod:`warren.actors.engines.unique_keys`), in the same folder."""


def create(path: str, flags: int) -> tuple[int, os.stat_result]:
    """Make a file and open it: its descriptor and status. Raises ``FileExistsError`` if something has the name."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        return descriptor, _settle(descriptor, FILE_MODE, os.path.dirname(path))
    except BaseException:
        os.close(descriptor)
        raise


def make_directories(path: str, *, for_owner: bool) -> None:
    """Make a directory and those above it; existing ones are fine. ``for_owner``: it is part of a data directory."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path.rstrip("/"))
    if parent and parent != path:
        make_directories(parent, for_owner=for_owner)
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:  # a umask that keeps even the user out; not the superuser
        os.chmod(path, DIRECTORY_MODE)
        return
    try:
        _settle(descriptor, DIRECTORY_MODE, parent if for_owner else None)
    finally:
        os.close(descriptor)


def private_folder(name: str) -> str | None:
    """Return a permanent folder for temporary files that only this user may enter; ``None`` if its name is taken."""
    import tempfile

    folder = os.path.join(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    try:
        os.mkdir(folder, DIRECTORY_MODE)
    except FileExistsError:
        pass
    except OSError:
        return None
    status = os.lstat(folder)
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return folder if is_ours else None


def _settle(descriptor: int, mode: int, parent: str | None) -> os.stat_result:
    """Set the mode of a new file, if the umask has removed bits, and (as the superuser) its owner.

    Returns the status that it had before.
    """
    status = os.fstat(descriptor)
    if stat.S_IMODE(status.st_mode) != mode:  # to look is cheap, to change is a write
        os.fchmod(descriptor, mode)
    if parent is not None and os.geteuid() == 0:
        owner = os.stat(parent or ".")
        if owner.st_uid:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return status
