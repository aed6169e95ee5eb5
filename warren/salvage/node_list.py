"""Several nodes at one place: when each was last written, and how many messages it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime

import attrs

from warren.salvage.names import Json
from warren.salvage.queue_directory import Finding
from warren.salvage.read_only import ReadOnlyFileSystem, below, directories
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
    """Why it cannot be read, or what the number lacks: kinds of damage, and what is not read."""

    @property
    def last_written(self) -> str:
        """The time in UTC."""
        if self.last_written_ms is None:
            return "never"
        return f"{datetime.fromtimestamp(self.last_written_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"

    def __str__(self) -> str:
        counted = None if self.messages is None else f"{self.messages:,} messages"
        return f"{self.name} ({', '.join(filter(None, (f'last written {self.last_written}', counted, self.problem)))})"

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
    """A summary of each node; one that cannot be read completely says why."""
    return [_summary(name, node) for name, node in nodes.items()]


def _summary(name: str, node: Place) -> NodeSummary:
    messages, problem, kinds = None, None, Counter[str]()
    try:
        messages = _messages(node, kinds)
    except WarrenError as error:
        problem = str(error)
    else:
        if kinds:
            counts = (kind if count == 1 else f"{kind} ×{count:,}" for kind, count in kinds.items())
            problem = f"{node.path}: {', '.join(counts)}"
    newest = max(_modified_ms(node.files, node.directory), default=None)
    return NodeSummary(name, node.path, newest, messages, problem)


def _messages(node: Place, kinds: Counter[str]) -> int:
    """The number of messages; ``kinds``: counts the findings about what may be missing from it."""

    def report(finding: Finding) -> None:
        kinds[finding.kind] += 1

    source, store = node.both()
    count = 0
    if source is not None:
        with closing(source):
            for vhost in source.vhosts:
                count += sum(queue.summary(report).ready for queue in vhost.queues)
                kinds.update(problem.kind for problem in vhost.serious_problems())
    if store is not None:
        from warren.salvage.rocketmq.rocketmq_store import opened_store

        with opened_store(node.path, node.files, store, {}) as opened:
            count += sum(queue.max_offset - queue.min_offset for queue in opened.queues.values())
            kinds.update(
                f"missing {cut.missing}" if cut.missing else "cut off by recovery" for cut in opened.store.cuts
            )
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
