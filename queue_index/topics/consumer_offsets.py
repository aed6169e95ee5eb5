"""Consumer offsets: how far each group has come in each queue of a topic.

It owns ``consumerOffset.json`` in the store's ``config`` directory, and the table in it. An offset is the queue offset
of the next message that the group reads. A commit changes the table only; :meth:`ConsumerOffsets.persist` writes it, on
a timer and at a clean stop. A crash loses later commits: those messages are delivered again.

Invariants: a name in the table is ``topic@group``; queue ids have 32 bits and offsets 64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from warren.queue_index.index.config_file import ConfigFile
from warren.queue_index.topics.consumer_offsets_format import (
    OffsetTable,
    check_offset,
    decode_consumer_offsets,
    encode_consumer_offsets,
)
from warren.storage.filesystem import FileSystem

FILE_NAME: Final = "consumerOffset.json"

_SEPARATOR: Final = "@"


@attrs.frozen
class Position:
    """A group's offset in one queue."""

    topic: str
    group: str
    queue_id: int
    offset: int


@attrs.define(eq=False, repr=False)
class ConsumerOffsets:
    """The offsets of every group; made by :meth:`load`."""

    _file: ConfigFile
    table: OffsetTable = attrs.Factory(dict)
    """By ``topic@group``, then by queue id; in the order in which they came."""
    is_dirty: bool = False
    """Something was committed that is not in the file."""

    @classmethod
    def load(cls, files: FileSystem, config_directory: str) -> ConsumerOffsets:
        """Load the offsets from the file or, if it is missing, empty or damaged, from its ``.bak``; empty without both.

        Raises :class:`DataError` if the existing files are damaged: starting over would deliver everything again.
        """
        file = ConfigFile(files, f"{config_directory}/{FILE_NAME}")
        return cls(file, file.load(decode_consumer_offsets) or {})

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set the queue offset of the group's next message; it may be smaller than before."""
        if not topic or not group or _SEPARATOR in topic:
            raise RuntimeError(f"no offset: {topic!r}, {group!r}")
        check_offset(queue_id, offset)
        offsets = self.table.setdefault(f"{topic}{_SEPARATOR}{group}", {})
        if offsets.get(queue_id) != offset:
            offsets[queue_id] = offset
            self.is_dirty = True

    def offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the last committed offset; ``None`` if the group never committed in this queue."""
        return self.table.get(f"{topic}{_SEPARATOR}{group}", {}).get(queue_id)

    def positions(self) -> Iterator[Position]:
        """Every offset, in the table's order."""
        for name, offsets in self.table.items():
            topic, _, group = name.partition(_SEPARATOR)
            for queue_id, offset in offsets.items():
                yield Position(topic, group, queue_id, offset)

    def remove(self, topic: str, group: str) -> bool:
        """Forget a group's offsets in all queues of a topic; whether there were any."""
        offsets = self.table.pop(f"{topic}{_SEPARATOR}{group}", None)
        self.is_dirty |= offsets is not None
        return offsets is not None

    def persist(self, *, sync: bool = True) -> bool:
        """Write the file where something changed; whether it did. ``sync``: a power loss finds it, too."""
        if not self.is_dirty:
            return False
        self._file.replace(encode_consumer_offsets(self.table, pretty=True), sync=sync)
        self.is_dirty = False
        return True

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the table holds what the file cannot."""
        for offsets in self.table.values():
            for queue_id, offset in offsets.items():
                check_offset(queue_id, offset)
