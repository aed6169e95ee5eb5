"""Reject a directory on which a node of warren runs: its files change while they are read.

A node holds the lock of its data directory and of each of its vhosts; a vhost that is opened alone holds its own lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from warren.storage.errors import DirectoryLockedError
from warren.storage.lock_file import LOCK_FILE, lock_holder

_INSIDE: Final = (
    ("msg_stores", "vhosts", "*", "queues", "*"),
    ("queues", "*"),
    ("topics",),
)
"""Paths in a locked directory that a source may point at: these, or the first parts of them."""
_HELD_BELOW: Final = ("", "msg_stores/vhosts", "vhosts")
"""Where vhosts may be that are open by themselves."""


def refuse_live_node(directory: str) -> None:
    """Raise :class:`DirectoryLockedError` if ``directory``, one around it or one inside it is locked."""
    for place in _places(os.path.abspath(directory)):
        holder = lock_holder(os.path.join(place, LOCK_FILE))
        if holder is not None:
            raise DirectoryLockedError(
                f"{directory}: a node of warren runs here ({holder or 'another process'}), and its files change; ask "
                f"it (`warren queues`, `warren top`), or read a copy made after it is stopped"
            )


def holders(directory: str) -> Iterator[str]:
    """``directory``, and the data directories that it may be a part of."""
    yield directory
    parts = directory.split("/")
    for depth in range(1, min(len(parts), 1 + max(map(len, _INSIDE)))):
        if any(_matches(parts[-depth:], inside) for inside in _INSIDE):
            yield "/".join(parts[:-depth]) or "/"


def _places(directory: str) -> Iterator[str]:
    yield from holders(directory)
    for folder in _HELD_BELOW:
        place = os.path.join(directory, folder) if folder else directory
        try:
            names = sorted(os.listdir(place))
        except OSError:
            continue
        yield from (os.path.join(place, name) for name in names)


def _matches(parts: list[str], inside: tuple[str, ...]) -> bool:
    return len(parts) <= len(inside) and all(
        pattern in ("*", part) for part, pattern in zip(parts, inside, strict=False)
    )
