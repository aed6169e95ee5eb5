"""Which directory is a topic store: RocketMQ's store folder, or a warren node's ``topics``.

A store has its messages in ``commitlog``; one with only the derived files is still recognised.
"""

from __future__ import annotations

from typing import Final

from warren.actors.engines.topics.store_files import CHECKPOINT, COMMIT_LOG, CONFIG, CONSUME_QUEUES, INDEX, LOCK
from warren.salvage.read_only import ReadOnlyFileSystem, below

TOPICS: Final = "topics"
"""Where a warren node keeps its topics, in its data directory."""

_INNER: Final = ("store", TOPICS)
_BESIDE_AN_INDEX: Final = (CHECKPOINT, CONFIG, LOCK)
"""``index`` alone is a name that many directories have."""


def store_at(files: ReadOnlyFileSystem, place: str) -> str | None:
    """The store at ``place``, or just below it under one of the usual names; ``None`` if not found."""
    for candidate in (place, *(below(place, name) for name in _INNER)):
        if _is_store(files, candidate):
            return candidate
    return None


def _is_store(files: ReadOnlyFileSystem, place: str) -> bool:
    if any(files.is_directory(below(place, name)) for name in (COMMIT_LOG, CONSUME_QUEUES)):
        return True
    is_beside = any(files.exists(below(place, name)) for name in _BESIDE_AN_INDEX)
    return is_beside and files.is_directory(below(place, INDEX))
