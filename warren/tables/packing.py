"""What is put together into tasks: small parts share a task; a large one is alone, or is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, Self, TypeVar

from warren.salvage.queue_directory import SizedFile
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore
from warren.tables.filters import Pushdown
from warren.tables.places import Node
from warren.tables.read_options import ReadOptions
from warren.tables.survey import recovered
from warren.tables.table import Task


class Part(Protocol):
    """Items of one width in a row, numbered."""

    @property
    def start(self) -> int:
        """The number of the first."""

    @property
    def stop(self) -> int:
        """The number after the last."""

    def between(self, start: int, stop: int) -> Self:
        """Those with these numbers."""


_Item = TypeVar("_Item")
_Part = TypeVar("_Part", bound=Part)


def packed(parts: Iterable[_Part], item_bytes: int, limit_bytes: int) -> Iterator[list[_Part]]:
    """Yield the parts in order, in groups of about ``limit_bytes`` and at least one item."""
    limit = max(limit_bytes // item_bytes, 1)
    group: list[_Part] = []
    room = limit
    for part in parts:
        start = part.start
        while start < part.stop:
            stop = min(start + room, part.stop)
            group.append(part.between(start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield group
                group, room = [], limit
    if group:
        yield group


def grouped(sized: Iterable[tuple[int, _Item]], limit_bytes: int) -> Iterator[tuple[int, list[_Item]]]:
    """Group items in order, up to ``limit_bytes``, with the bytes of each group; a larger one is alone."""
    group: list[_Item] = []
    total = 0
    for size, item in sized:
        if group and total + size > limit_bytes:
            yield total, group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield total, group


def files_of_parts(task: Task, pushdown: Pushdown, *, item_bytes: int) -> Iterator[SizedFile]:
    """The parts of files that a task has; what only a recovery would make is on no disk."""
    for part in task.work:
        if part.path is not None:
            yield SizedFile(part.path, (part.stop - part.start) * item_bytes, part.start * item_bytes)


def counts(parts: Sequence[Part]) -> list[int]:
    """How many items each has."""
    return [part.stop - part.start for part in parts]


# ── items of a topic store's files ───────────────────────────────────────────────────────────────────────────────────


class StorePart(Part, Protocol):
    """Items of a file of a topic store."""

    @property
    def is_recovered(self) -> bool:
        """The file is one that a recovery makes, and lies on no disk as it is read."""


_StorePart = TypeVar("_StorePart", bound=StorePart)


def store_tasks(node: Node, parts: Iterable[_StorePart], item_bytes: int, options: ReadOptions) -> Iterator[Task]:
    """Tasks for the parts that recovery does not change, in order; then one for all others, which runs the recovery."""
    all_parts = list(parts)
    for group in packed((part for part in all_parts if not part.is_recovered), item_bytes, options.partition_bytes):
        yield Task(node, tuple(group))
    if rest := tuple(part for part in all_parts if part.is_recovered):
        yield Task(node, rest)


def store_groups(task: Task, item_bytes: int, options: ReadOptions) -> Iterator[tuple[list[Any], RocketmqStore | None]]:
    """Yield the parts of a task that are read together, and the recovered store if they are in it."""
    with recovered(task.node, options.settings) if task.work[0].is_recovered else nullcontext() as opened:
        for group in packed(task.work, item_bytes, options.batch_bytes):
            yield group, opened
