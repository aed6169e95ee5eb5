"""Memory readings: how many bytes a node uses, and how many it may.

A *reading* answers how much is used, one of two ways (vm_memory_calculation_strategy). ``rss``: what the operating
system has given to the process, so everything in it counts, the user's own data too. ``allocated``: what the engine
accounts for itself, queue by queue; in a process that does much else, the other strategy would have the queues page for
memory that is not theirs.

*Total* memory is the machine's, or less where a container (control groups, version 1 or 2) allows less: each group on
the way from the process's own up to the root can hold a limit, and the smallest counts. The *limit* is the share of
the total that vm_memory_high_watermark names, or an amount.

Nothing here reads from the machine by itself: the functions that do are at the end, and are passed in.
"""

from __future__ import annotations

import ctypes
import os
import posixpath
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Protocol

import attrs

from warren.storage.errors import SettingsError

ReadFile = Callable[[str], str | None]
"""Return a small file's text by its path; None if it cannot be read."""

CGROUP_MEMBERSHIP: Final = "/proc/self/cgroup"
CGROUP_ROOT: Final = "/sys/fs/cgroup"
_OWN_PAGES: Final = "/proc/self/statm"
"""Linux's: pages of the process, all and resident, …"""
HIGHEST_WATERMARK: Final = 1.0
_M_ARENA_MAX: Final = -8  # malloc.h's


class MemoryReading(Protocol):
    """A source of readings."""

    def read(self) -> int: ...


@attrs.frozen
class RssReading:
    """The process's resident set, as returned by a function."""

    rss_bytes: Callable[[], int]

    def read(self) -> int:
        return self.rss_bytes()


@attrs.define(eq=False, repr=False)
class AllocatedReading:
    """Bytes by owner. Owners may account for themselves from any thread, because there is no shared sum."""

    by_owner: dict[Hashable, int] = attrs.field(factory=dict, init=False)

    def account(self, owner: Hashable, size_bytes: int) -> None:
        """Set what ``owner`` holds now; 0 removes it."""
        if size_bytes < 0:
            raise RuntimeError(f"{owner!r} accounts for {size_bytes} bytes")
        if size_bytes:
            self.by_owner[owner] = size_bytes
        else:
            self.by_owner.pop(owner, None)

    def read(self) -> int:
        return sum(list(self.by_owner.values()))

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if an owner that holds nothing is listed."""
        if not all(size_bytes > 0 for size_bytes in self.by_owner.values()):
            raise RuntimeError(f"an owner of nothing: {self.by_owner}")


def total_memory_bytes(physical_bytes: int, read_file: ReadFile) -> int:
    """Memory that the process can have: the machine's, or the smallest limit of the control groups that it is in."""
    limits = (_limit_in(read_file(path)) for path in _limit_files(read_file(CGROUP_MEMBERSHIP) or ""))
    return min([physical_bytes, *(limit for limit in limits if limit is not None)])


def _limit_files(membership: str) -> Iterator[str]:
    """Every file that may hold a limit. A line of the membership: number ``:`` controllers ``:`` the group's path.

    Version 2 has no controllers on its line. In a container the path may be the host's, which cannot be seen from
    inside: these files are not there, the root's is the container's own.
    """
    for line in membership.splitlines():
        _, colon, rest = line.partition(":")
        controllers, second_colon, path = rest.partition(":")
        if not colon or not second_colon:
            continue
        if controllers == "":
            root, name = CGROUP_ROOT, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = f"{CGROUP_ROOT}/memory", "memory.limit_in_bytes"
        else:
            continue
        group = posixpath.normpath("/" + path.strip("/"))  # a group outside of the namespace's own begins with ..
        while group != "/":
            yield f"{root}{group}/{name}"
            group = posixpath.dirname(group)
        yield f"{root}/{name}"


def _limit_in(text: str | None) -> int | None:
    """Return bytes; None if unlimited (version 2 says ``max``, version 1 a number beyond every machine's)."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def memory_limit_bytes(high_watermark: float, total_bytes: int) -> int:
    """Bytes that a node may use of ``total_bytes``: a float is a share of them, an int an amount (at most all)."""
    if isinstance(high_watermark, int):
        return min(high_watermark, total_bytes)
    if not 0.0 <= high_watermark <= HIGHEST_WATERMARK:
        raise SettingsError(f"a relative vm_memory_high_watermark must be 0.0 … 1.0, not {high_watermark}")
    return int(high_watermark * total_bytes)


# ── the machine's own, to be handed in ──────────────────────────────────────────────────────────────────────────────


def process_rss_bytes() -> int:
    """This process's resident set; the answer holds after a fork, too."""
    if (pages := read_small_file(_OWN_PAGES)) is not None:
        return int(pages.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import psutil

    return int(psutil.Process().memory_info().rss)


def keep_one_heap() -> None:
    """Let threads that start from now on share the C library's one heap, whose free memory can be given back.

    glibc gives each thread an arena of its own, whose free end ``malloc_trim`` does not return: after a backlog four
    threads kept 130 MB of free memory. Under the interpreter's lock one heap is hardly contended. A value in
    ``MALLOC_ARENA_MAX`` takes precedence.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, 1)


def give_memory_back() -> None:
    """Let the C library return its free memory to the system. (Python returns its own arenas by itself.)

    Otherwise a process that once had a backlog in RAM keeps its resident size, and its memory alarm, for ever.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; elsewhere there is nothing to do
    if trim is not None:
        trim(ctypes.c_size_t(0))


def physical_memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def read_small_file(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def free_disk_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes that a user without privileges can still write to the file system that holds ``path``."""
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize


def used_disk_percent(path: str | os.PathLike[str]) -> float:
    """How much of the file system that holds ``path`` is used, without the part reserved for privileged users."""
    stats = os.statvfs(path)
    used = stats.f_blocks - stats.f_bfree
    usable = used + stats.f_bavail
    return round(100 * used / usable, 1) if usable else 0.0
