"""A source that is a file of exported messages (:mod:`warren.shovel.exported_files`). The file is not changed.

A first pass finds the queues, where each begins and how many messages it has; then each queue's part is read again.
Invalid rows are reported and skipped. Progress is recorded elsewhere, as for a directory: a row's number serves as the
seq_id, and the content's digest, with the condition, as the directory. So a changed file or another condition is
another copy, which starts from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from warren.queue_index.properties import Properties, decode_properties
from warren.salvage.names import to_text
from warren.salvage.progress_bars import share_bar
from warren.salvage.queue_directory import Finding, OnFinding
from warren.salvage.saved_messages import SAVED_FIELDS
from warren.shovel.errors import ShovelError
from warren.shovel.exported_files import ExportedFile
from warren.shovel.exported_rows import Mark, Row, letter_of, name_of
from warren.shovel.letter import Letter, Position
from warren.shovel.places import SourceQueue
from warren.shovel.progress import Progress, Reach
from warren.storage.errors import MessageError
from warren.where import Where, compile_where

_DELIVERY_MODE_PERSISTENT = 2


@attrs.frozen(kw_only=True)
class Chosen:
    """Which messages of a file are copied, and where they go."""

    where: str | None = None
    """A condition (:mod:`warren.where`)."""
    vhost: bytes | None = None
    """Only those of this vhost."""
    into: bytes | None = None
    """All into this queue; ``None``: each into its own."""
    into_vhost: bytes | None = None
    """All into this vhost; ``None``: each into its own."""
    as_published: bool = False
    """Publish to their exchanges instead."""

    def copy_of(self, digest: str) -> str:
        """Return the key of this copy's progress; another copy has another key."""
        condition = "" if self.where is None else f" where {self.where}"
        return f"{digest}{condition}{' as published' if self.as_published else ''}"


class RowMessage:
    """A row with the fields that conditions read."""

    def __init__(self, row: Row, letter: Letter) -> None:
        self.fields: Mapping[str, Any] = row
        self.body = letter.body
        self.exchange: str = row["exchange"]
        self.routing_key: str = row["routing_keys"][0]
        self._encoded = letter.properties

    @cached_property
    def properties(self) -> Properties:
        return decode_properties(self._encoded)

    @property
    def persistent(self) -> bool:
        persistent = self.fields.get("persistent")
        return self.properties.delivery_mode == _DELIVERY_MODE_PERSISTENT if persistent is None else bool(persistent)


@attrs.define
class _Part:
    """A queue's rows: from the first to the last of them, perhaps with others in between."""

    first: Mark
    last: int = 0
    count: int = 0


@attrs.define
class FileSource:
    """A file whose messages are copied."""

    _file: ExportedFile
    _chosen: Chosen
    _progress: Progress
    _rename: Callable[[bytes], bytes]
    _report: OnFinding
    _where: Where[RowMessage] | None = attrs.field(init=False)

    @_where.default
    def _compile(self) -> Where[RowMessage] | None:
        where = self._chosen.where
        return None if where is None else compile_where(where, SAVED_FIELDS)

    def queues(self, names: Sequence[bytes]) -> list[SourceQueue]:
        parts = self._survey(names)
        for name in names:
            if not any(queue == name for _, queue in parts):
                raise ShovelError(f"{self._file.path}: no message of a queue {to_text(name)!r}")
        copy = self._chosen.copy_of(self._file.digest()[:32])
        queues: list[SourceQueue] = []
        for (vhost, queue), part in parts.items():
            reach = self._progress.reach(vhost, copy, self._rename(queue))
            queues.append(_FileQueue(vhost, queue, self, part, reach))
        return queues

    def _survey(self, names: Sequence[bytes]) -> dict[tuple[bytes, bytes], _Part]:
        """Return the queues in the order of the file."""
        parts: dict[tuple[bytes, bytes], _Part] = {}
        unassigned = 0
        with share_bar("Looking for queues", self._file.extent()) as passed:
            for mark, row in self._file.rows():
                passed(mark.at)
                if isinstance(row, MessageError):
                    self._report(Finding("unreadable row", "damage", self._file.path, None, str(row)))
                    continue
                home = self._home(row)
                if home is None:
                    unassigned += 1
                elif (not names or home[1] in names) and self._letter(mark, row, self._report) is not None:
                    part = parts.setdefault(home, _Part(mark))
                    part.last = mark.number
                    part.count += 1
        if unassigned:
            raise ShovelError(f"{self._file.path}: {unassigned:,} messages say no queue; say which one they go into")
        return parts

    def _home(self, row: Row) -> tuple[bytes, bytes] | None:
        """The vhost and the queue that a row goes into; ``None``: it has no queue."""
        queue = self._chosen.into or (None if row["queue"] is None else name_of(row["queue"]))
        if queue is None:
            return None
        return self._chosen.into_vhost or name_of(row["vhost"] or "/"), queue

    def _letter(self, mark: Mark, row: Row, report: OnFinding | None = None) -> Letter | None:
        """Return the message of a row, if it is valid and chosen."""
        if self._chosen.vhost is not None and name_of(row["vhost"] or "/") != self._chosen.vhost:
            return None
        try:
            letter = letter_of(row, (0, mark.number))
            decode_properties(letter.properties)
        except MessageError as error:
            if report is not None:
                detail = f"row {mark.number + 1}: {error}"
                report(Finding("unreadable row", "damage", self._file.path, None, detail))
            return None
        if self._where is not None and not self._where(RowMessage(row, letter)):
            return None
        own_queue = b"" if row["queue"] is None else name_of(row["queue"])
        into = self._chosen.into
        if into is not None and not letter.exchange and letter.routing_keys[0] == own_queue:
            return letter._replace(routing_keys=(into, *letter.routing_keys[1:]))  # a name of a queue follows it
        return letter

    def letters(self, home: tuple[bytes, bytes], part: _Part, reach: Reach) -> Iterator[Letter]:
        """A queue's letters that are not at the destination yet."""
        for mark, row in self._file.rows(part.first):
            if mark.number > part.last:
                return
            if isinstance(row, MessageError) or reach.has(mark.number) or self._home(row) != home:
                continue
            letter = self._letter(mark, row)
            if letter is not None:
                yield letter

    def save(self) -> None:
        """Save the progress."""
        self._progress.save()


@attrs.define(eq=False)
class _FileQueue:
    """One queue's messages; position: 0, and the row's number."""

    vhost: bytes
    name: bytes
    _source: FileSource
    _part: _Part
    _reach: Reach
    _handed_out: set[int] = attrs.field(factory=set)

    @property
    def already(self) -> int:
        return self._reach.messages

    def count(self) -> int:
        return max(self._part.count - self.already, 0)

    def letters(self, limit: int) -> Iterator[Letter | None]:
        for letter in self._source.letters((self.vhost, self.name), self._part, self._reach):
            if not limit:
                return
            self._handed_out.add(letter.position[1])
            limit -= 1
            yield letter

    def settle(self, positions: Sequence[Position]) -> None:
        numbers = [number for _, number in positions]
        self._handed_out.difference_update(numbers)
        self._reach.add(numbers, min(self._handed_out, default=None))
        self._source.save()

    def finish(self) -> None:
        """Everything is written down already."""
