"""Kernel calls that Python 3.11 lacks: mounts private to a process, processes that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x20000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1


def unshare_mounts() -> None:
    """What this process and its children mount is seen by them only, and unmounted when the last of them has ended."""
    _checked(_LIBC.unshare(_CLONE_NEWNS))
    _mount("none", "/", "", _MS_REC_PRIVATE, "")


def mount_fuse(descriptor: int, point: str) -> None:
    """Mount a file in the place of the one at ``point``; the reader of this ``/dev/fuse`` descriptor serves it."""
    _mount("warren-recorder", point, "fuse", 0, f"fd={descriptor},rootmode=100600,user_id=0,group_id=0")


def mount_tmpfs(point: str) -> None:
    _mount("warren-place", point, "tmpfs", 0, "mode=700")


def detach(point: str) -> None:
    """Unmount it for this process and those that share its mounts; others may have it further."""
    _checked(_LIBC.umount2(point.encode(), _MNT_DETACH))


def end_with_parent() -> None:
    """This process is killed as soon as its parent has ended, however that ended."""
    _checked(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _checked(_LIBC.mount(*arguments))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
