"""A fresh ext4 file system in a file, mounted through a loop device; for tests of what only a file system does.

It needs root, a free loop device and Debian's e2fsprogs and mount: :func:`why_not` says what is missing. The loop
device frees itself with the unmount.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("mkfs.ext4", "e2fsck", "mount", "umount")
_COMMAND_S = 120.0
"""A command that takes longer hangs."""


class MountError(Exception):
    """A command for the file system failed; the message is its output."""


def make_ext4(image: Path, size: int, *features: str) -> None:
    """Make a file of ``size`` bytes with an empty ext4 in it; ``features``: further arguments of ``mkfs.ext4``.

    All tables are written now: nothing is left for the kernel to initialise later.
    """
    with image.open("wb") as file:
        file.truncate(size)
    options = ["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", *features]
    run("mkfs.ext4", *options, str(image))


@contextlib.contextmanager
def mounted(image: Path, point: Path, *, options: str = "") -> Iterator[Path]:
    """The ext4 in ``image``, mounted at ``point``, which is created if it is missing."""
    point.mkdir(exist_ok=True)
    run("mount", "-t", "ext4", "-o", ",".join(filter(None, ["loop", options])), str(image), str(point))
    try:
        yield point
    finally:
        unmount(point)


def unmount(point: Path) -> None:
    """Unmount what is mounted; where a file of it is still open, as soon as that is closed."""
    try:
        run("umount", str(point))
    except MountError:
        run("umount", "--lazy", str(point))


@contextlib.contextmanager
def mounted_ext4(directory: Path, size: int, *, options: str = "") -> Iterator[Path]:
    """An empty ext4 of ``size`` bytes, a megabyte at least; its image and its mount point are below ``directory``.

    ``options``: of the mount, as ``mount -o`` takes them. Raises :class:`MountError`.
    """
    make_ext4(directory / "image", size)
    with mounted(directory / "image", directory / "mount", options=options) as point:
        yield point


@functools.cache
def why_not() -> str | None:
    """Return why nothing can be mounted here, as the reason of a skip; None if mounting works."""
    if os.geteuid() != 0:
        return "a loop mount needs root"
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"a loop mount needs the programs {', '.join(missing)}"
    with tempfile.TemporaryDirectory(prefix="warren-loop-") as directory:
        try:
            with mounted_ext4(Path(directory), 1 << 20):
                return None
        except MountError as error:
            return f"no loop mount is possible here: {error}"


def run(*command: str) -> str:
    """What a command prints; raises :class:`MountError` where it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    if ended.returncode != 0:
        raise MountError(f"{' '.join(command)}: {(ended.stderr or ended.stdout).strip()}")
    return ended.stdout
