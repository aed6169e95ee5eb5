"""Several nodes at one place: when each was last written, and how many messages it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime

import attrs

from warren.salvage.names import Json
from warren.salvage.quorum.node import directories
from warren.salvage.read_only import ReadOnlyFileSystem, below
from warren.salvage.source import Place
from warren.storage.errors import WarrenError


@attrs.frozen
class NodeSummary:
    """One of several nodes, in a line."""

    name: str
    path: str
    last_written_ms: int | None
    """When its newest file was modified, in milliseconds since the epoch; ``None`` if it has no files."""
    messages: int | None
    """As ``inspect`` counts them, of queues and topics; ``None`` if it cannot be read."""
    problem: str | None
    """Why it cannot be read."""

    @property
    def last_written(self) -> str:
        """The time in UTC."""
        if self.last_written_ms is None:
            return "never"
        return f"{datetime.fromtimestamp(self.last_written_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"

    def __str__(self) -> str:
        counted = f"{self.messages:,} messages" if self.problem is None else self.problem
        return f"{self.name} (last written {self.last_written}, {counted})"

    def report(self) -> dict[str, Json]:
        """As JSON."""
        return {
            "name": self.name,
            "path": self.path,
            "last_written": self.last_written,
            "messages": self.messages,
            "problem": self.problem,
        }


def summaries(nodes: Mapping[str, Place]) -> list[NodeSummary]:
    """A line for each; one that cannot be read says why."""
    return [_summary(name, node) for name, node in nodes.items()]


def _summary(name: str, node: Place) -> NodeSummary:
    messages, problem = None, None
    try:
        messages = _messages(node)
    except WarrenError as error:
        problem = str(error)
    newest = max(_modified_ms(node.files, node.directory), default=None)
    return NodeSummary(name, node.path, newest, messages, problem)


def _messages(node: Place) -> int:
    source, store = node.both()
    count = 0
    if source is not None:
        with closing(source):
            count += sum(queue.summary().ready for vhost in source.vhosts for queue in vhost.queues)
    if store is not None:
        from warren.salvage.rocketmq.store import opened_store

        with opened_store(node.path, node.files, store, {}) as opened:
            count += sum(queue.max_offset - queue.min_offset for queue in opened.store.queues.values())
    return count


def _modified_ms(files: ReadOnlyFileSystem, directory: str) -> Iterator[int]:
    """When each file in a directory and below was modified, if that can be read."""
    pending = [directory]
    while pending:
        place = pending.pop()
        try:
            inner = set(directories(files, place))
            pending += inner
            for name in files.list(place):
                if (path := below(place, name)) not in inner:
                    yield files.modified_ms(path)
        except WarrenError:
            continue
