"""Who holds a lock file, found out without getting in anybody's way.

A lock file may stay behind when its holder is gone: what counts is the ``flock``. Linux lists those of all processes in
``/proc/locks``, by the file's inode, so that looking takes nothing. Where there is no such list a shared lock is tried,
and given up at once.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

_LOCKS: Final = "/proc/locks"


def lock_holder(path: str) -> str | None:
    """What the holder of the lock file at ``path`` wrote into it, ``""`` where it wrote nothing.

    ``None``: nobody holds it, there is no such file, or the system does not say.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        is_held = _is_listed(os.fstat(descriptor).st_ino)
        if is_held is None:
            is_held = _is_refused(descriptor)
        return os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() if is_held else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _is_listed(inode: int) -> bool | None:
    """Whether the system lists an ``flock`` of that file; ``None``: it lists none.

    Devices are not compared: some file systems show another one there than to ``stat``.
    """
    try:
        with open(_LOCKS, encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:5628942 0 EOF"; one that waits has "->" behind the number
    fields = (line.split() for line in lines)
    return any(of[1:2] == ["FLOCK"] and of[3] == "WRITE" and of[5].endswith(f":{inode}") for of in fields)


def _is_refused(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
