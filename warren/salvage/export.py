"""``warren export``: the messages that a restarted broker would deliver, in order.

A line or a row for each: :mod:`warren.salvage.json_lines` describes its fields.

Queues come in the order of their names, vhost by vhost. The levels of a priority queue come under its bare name, the
highest first, each with seq_ids of its own. An *orphan* is a message in a vhost's store that no unacked message of any
queue refers to, and belongs to no queue; or one in the store of a queue of version 2 without an index entry. Nothing is
known of its delivery (``seq_id``, ``redelivered`` and ``expiry_us`` are null, and ``queue`` of the former).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from warren.msg_store.commit_log.commit_log_format import Record
from warren.salvage.classic.orphans import Orphan, orphans_of
from warren.salvage.json_lines import JsonLines, Write
from warren.salvage.message_batches import Batcher, MessageBatch
from warren.salvage.names import from_text, highest_level_first, split_level, to_text
from warren.salvage.queue_directory import Finding, MessageRun, StoredMessage
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.source import Source
from warren.salvage.vhost import Vhost
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from warren.salvage.saved_messages import SavedMessage, SavedRecord
    from warren.where import Where

BATCH_BYTES: Final = 1 << 17
"""About how many bytes of messages are turned into lines together."""

Report = Callable[[Finding], None]


@attrs.frozen(kw_only=True)
class Selection:
    """What to export of a source; names in their text form, ``None``: all of them."""

    vhost: str | None = None
    queues: tuple[str, ...] = ()
    """Empty: all."""
    include_acked: bool = False
    orphans: bool = False
    where: str | None = None
    """A condition (:mod:`warren.where`) on the fields of :data:`warren.salvage.saved_messages.SAVED_FIELDS`."""
    limit: int | None = None
    """The maximum number of messages."""
    raw_bodies: bool = False
    """Of topics: bodies as they are stored."""

    def condition(self) -> Where[SavedMessage] | None:
        """The compiled ``where``; raises :class:`warren.where.WhereError`."""
        if self.where is None:
            return None
        from warren.salvage.saved_messages import SAVED_FIELDS
        from warren.where import compile_where

        return compile_where(self.where, SAVED_FIELDS)

    def conditions(self) -> tuple[Where[SavedMessage] | None, Where[SavedRecord] | None]:
        """The same for messages of queues, and for records of topics.

        If one kind lacks a field of the condition, none of that kind is selected; raises
        :class:`warren.where.WhereError` if both lack one.
        """
        if self.where is None:
            return None, None
        from warren.salvage.saved_messages import SAVED_FIELDS
        from warren.where import RECORD_FIELDS, WhereError, compile_where

        conditions: list[Where[Any]] = []
        refused: list[WhereError] = []
        for fields in (SAVED_FIELDS, RECORD_FIELDS):
            try:
                conditions.append(compile_where(self.where, fields))
            except WhereError as error:
                refused.append(error)
                conditions.append(compile_where("FALSE"))
        if len(refused) == len(conditions):
            raise refused[0]
        return conditions[0], conditions[1]


@attrs.define
class Exported:
    """The result of an export."""

    messages: int = 0
    payload_bytes: int = 0
    problems: int = 0

    def add(self, other: Exported) -> None:
        """Count another export, too."""
        self.messages += other.messages
        self.payload_bytes += other.payload_bytes
        self.problems += other.problems


def export_source(source: Source, selection: Selection, write: Write, report: Report) -> Exported:
    """The same as :func:`export_to`, as lines of JSON; ``write`` gets them, perhaps in pieces."""
    return export_to(source, selection, JsonLines(write), report)


def export_to(
    source: Source,
    selection: Selection,
    writer: MessageWriter,
    report: Report,
    passed: Callable[[int], object] = lambda _: None,
) -> Exported:
    """Hand every selected message to ``writer``, and to ``report`` what could not be exported, and why.

    ``passed`` is called repeatedly with the number of the queues' messages that were looked at, selected or not.
    Raises :class:`WarrenError` if the selection names a vhost or a queue that does not exist, and
    :class:`warren.where.WhereError`.
    """
    by_node(source.path, {"": source}, selection)
    vhosts = _chosen_vhosts(source, selection)
    exporter = Exporter.of(selection, writer, report, passed)
    for vhost in vhosts:
        for name, directories in chosen_queues(vhost, selection.queues):
            exporter.position = 0
            for directory in directories:
                if not exporter.is_done:
                    exporter.messages(vhost.name, name, directory.message_runs(include_acked=selection.include_acked))
        if selection.orphans and not exporter.is_done:
            _orphans(exporter, vhost, selection)
        for problem in problems_of(vhost, selection.queues):
            exporter.problem(problem)
    writer.flush()
    return exporter.exported


def by_node(path: str, sources: Mapping[str, Source], selection: Selection) -> dict[str, Selection]:
    """The selection for each node that has any of it.

    Raises :class:`WarrenError` if the selection names a vhost or a queue that no node has.
    """
    vhosts = {node: _chosen_vhosts(source, selection) for node, source in sources.items()}
    if selection.vhost is not None and not any(vhosts.values()):
        raise WarrenError(f"{path}: no vhost {selection.vhost!r}")
    names_by_node = {
        node: {name for vhost in chosen for name, _ in chosen_queues(vhost, selection.queues)}
        for node, chosen in vhosts.items()
    }
    unread = [problem for source in sources.values() for vhost in source.vhosts for problem in unread_parts(vhost)]
    check_found(path, selection, set().union(*names_by_node.values()), unread)
    parts = {
        node: attrs.evolve(selection, queues=tuple(name for name in selection.queues if from_text(name) in names))
        for node, names in names_by_node.items()
    }
    return {node: part for node, part in parts.items() if part.queues or not selection.queues}


def _chosen_vhosts(source: Source, selection: Selection) -> list[Vhost]:
    return [vhost for vhost in source.vhosts if selection.vhost in (None, to_text(vhost.name))]


def count_chosen(source: Source, selection: Selection) -> int:
    """About how many messages :func:`export_to` will look at; no body is read for it."""
    every = range(1 << 62)
    count = sum(
        directory.count(every)
        for vhost in _chosen_vhosts(source, selection)
        for _, directories in chosen_queues(vhost, selection.queues)
        for directory in directories
    )
    return count if selection.limit is None or selection.where is not None else min(count, selection.limit)


def check_found(where: str, selection: Selection, there: Container[bytes], unread: Iterable[Finding]) -> None:
    """Raise :class:`WarrenError` for a named queue that is not in ``there``; ``unread``: what may hold it."""
    missing = [queue for queue in selection.queues if from_text(queue) not in there]
    if missing:
        hint = "".join(f"; {finding.kind}: {finding.detail}" for finding in unread)
        raise WarrenError(f"{where}: no queue {missing[0]!r} (one that was never written to has no directory){hint}")


def unread_parts(vhost: Vhost) -> list[Finding]:
    """The findings about what of a vhost is not read."""
    return [problem for problem in vhost.problems if problem.severity == "unread"]


def chosen_queues(vhost: Vhost, queues: Sequence[str] = ()) -> list[tuple[bytes, list[QueueDirectory]]]:
    """Bare name → directories, in the order of export; of all queues, or of the named ones."""
    names = {from_text(queue) for queue in queues}
    ordered = sorted(vhost.queues, key=lambda directory: highest_level_first(directory.name))
    by_name = groupby(ordered, key=lambda directory: split_level(directory.name)[0])
    return [(name, list(directories)) for name, directories in by_name if not names or name in names]


def problems_of(vhost: Vhost, queues: Sequence[str] = ()) -> Iterator[Finding]:
    """A vhost's problems so far, without those of other queues; if queues are named, without unread parts, too."""
    paths = {directory.path for _, directories in chosen_queues(vhost, queues) for directory in directories}
    other_paths = tuple(queue.path for queue in vhost.queues if queue.path not in paths)
    for problem in vhost.problems:
        if not problem.path.startswith(other_paths) and not (queues and problem.severity == "unread"):
            yield problem


class RecordWriter(Protocol):
    """What writes records of topics."""

    def record(self, position: int, record: Record) -> None:
        """A record of a topic."""

    def flush(self) -> None:
        """Write what is buffered."""


class MessageWriter(RecordWriter, Protocol):
    """What an export writes messages with."""

    def messages(self, vhost: bytes, queue: bytes, batch: MessageBatch) -> None:
        """Some of the messages of a queue."""

    def orphan(self, orphan: Orphan) -> None:
        """A stored message that no entry of a queue refers to."""


@attrs.define
class Exporter:
    """Hands messages to a writer, reports what cannot be read, and counts."""

    writer: MessageWriter
    _report: Report
    position: int = 0
    """Of the next message."""
    where: Where[SavedMessage] | None = None
    where_record: Where[SavedRecord] | None = None
    limit: int | None = None
    _passed: Callable[[int], object] = lambda _: None
    exported: Exported = attrs.Factory(Exported)
    _looked_at: int = 0
    _batcher: Batcher = attrs.Factory(partial(Batcher, BATCH_BYTES))

    @classmethod
    def of(
        cls, selection: Selection, writer: MessageWriter, report: Report, passed: Callable[[int], object]
    ) -> Exporter:
        """The exporter for a selection; raises :class:`warren.where.WhereError`."""
        return cls(writer, report, where=selection.condition(), limit=selection.limit, passed=passed)

    @property
    def is_done(self) -> bool:
        """Whether no more messages are wanted."""
        return self.limit is not None and self.exported.messages >= self.limit

    def messages(self, vhost: bytes, queue: bytes, runs: Iterable[StoredMessage | MessageRun | Finding]) -> None:
        """Some of the messages of a queue, in order."""
        self._batcher.position = self.position
        select = self._batch_filter(to_text(vhost), to_text(queue))
        for batch in self._batcher.batches(runs):
            if isinstance(batch, Finding):
                self.problem(batch)
                continue
            self._looked_at += len(batch)
            if (selected := select(batch)) is not None:
                self.exported.messages += len(selected)
                self.exported.payload_bytes += selected.payload_bytes
                self.writer.messages(vhost, queue, selected)
            self._passed(self._looked_at)
            if self.is_done:
                break
        self.position = self._batcher.position

    def _batch_filter(self, vhost: str, queue: str) -> Callable[[MessageBatch], MessageBatch | None]:
        """A function that returns the selected messages of a batch of a queue, or ``None``."""
        if self.where is None and self.limit is None:
            return lambda batch: batch
        if self.where is None:
            return self._limited
        from warren.salvage.saved_messages import Selector

        chosen = Selector(self.where, vhost=vhost, queue=queue).chosen

        def filtered(batch: MessageBatch) -> MessageBatch | None:
            selected = chosen(batch)
            return None if selected is None else self._limited(selected)

        return filtered

    def _limited(self, batch: MessageBatch) -> MessageBatch:
        return batch if self.limit is None else batch.first(self.limit - self.exported.messages)

    def orphan(self, orphan: Orphan) -> None:
        """A stored message that no entry of a queue refers to."""
        if self.where is not None:
            from warren.salvage.saved_messages import Selector

            vhost, queue = orphan.names
            fields = {
                "vhost": vhost,
                "queue": queue,
                "msg_id": orphan.msg_id.hex() or None,
                "persistent": orphan.persistent,
                "orphan": True,
            }
            if not Selector(self.where).wants(orphan.envelope, orphan.body, fields):
                return
        self.exported.messages += 1
        self.exported.payload_bytes += len(orphan.body)
        self.writer.orphan(orphan)

    def record(self, *messages: Record | Finding) -> None:
        """The next record of a topic store, as the messages that it holds."""
        for message in messages:
            if isinstance(message, Finding):
                self.problem(message)
            elif self._selects(message):
                self.exported.messages += 1
                self.exported.payload_bytes += len(message.body)
                self.writer.record(self.position, message)
        self.position += 1

    def _selects(self, record: Record) -> bool:
        if self.where_record is None:
            return True
        from warren.salvage.saved_messages import SavedRecord

        return self.where_record(SavedRecord(record)) is True

    def problem(self, finding: Finding) -> None:
        """Report it unless it is a leftover, and count it if it is damage."""
        self.exported.problems += finding.severity == "damage"
        if finding.severity != "leftover":
            self._report(finding)


def _orphans(exporter: Exporter, vhost: Vhost, selection: Selection) -> None:
    for orphan in orphans_of(vhost, chosen_queues(vhost, selection.queues)):
        if isinstance(orphan, Finding):
            exporter.problem(orphan)
        else:
            exporter.orphan(orphan)
        if exporter.is_done:
            return
