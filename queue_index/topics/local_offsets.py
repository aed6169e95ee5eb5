"""Local offsets: how far readers that read everything for themselves (RocketMQ's broadcasting) are.

RocketMQ's consumers keep them where they run, a file for each instance and group, and so does a node: it owns
``<instance name>/<group>/offsets.json`` below one directory. A reader is known here by ``group@instance``. A commit
changes the table only; :meth:`LocalOffsets.persist` writes changed tables, on a timer and at a clean stop. A crash
loses later commits: those messages are read again.

Queues of other brokers in a file are kept as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from warren.queue_index.index.config_file import ConfigFile
from warren.queue_index.topics.consumer_offsets import Position
from warren.queue_index.topics.consumer_offsets_format import (
    LocalOffsetTable,
    check_offset,
    decode_local_offsets,
    encode_local_offsets,
)
from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem

FILE_NAME: Final = "offsets.json"
BROKER_NAME: Final = "warren"
"""The broker name of a node's queues, next to those of brokers."""

SEPARATOR: Final = "@"
"""Between a group and an instance; no group's name has it."""


@attrs.define(eq=False, repr=False)
class _InstanceOffsets:
    """The offsets of one instance in one group."""

    file: ConfigFile
    table: LocalOffsetTable = attrs.Factory(dict)
    damage: DataError | None = None
    is_dirty: bool = False


@attrs.define(eq=False, repr=False)
class LocalOffsets:
    """The offsets of all instances; made by :meth:`load`."""

    _files: FileSystem
    _directory: str
    _instances: dict[str, _InstanceOffsets] = attrs.Factory(dict)

    @classmethod
    def load(cls, files: FileSystem, directory: str) -> LocalOffsets:
        """Load all existing offsets. A damaged file is an error only when its offsets are requested."""
        offsets = cls(files, directory)
        for instance in files.list(directory) if files.is_directory(directory) else ():
            inside = f"{directory}/{instance}"
            for group in files.list(inside) if files.is_directory(inside) else ():
                offsets._of(f"{group}{SEPARATOR}{instance}")
        return offsets

    def _of(self, reader: str) -> _InstanceOffsets:
        instance_offsets = self._instances.get(reader)
        if instance_offsets is None:
            group, _, instance = reader.partition(SEPARATOR)
            file = ConfigFile(self._files, f"{self._directory}/{instance}/{group}/{FILE_NAME}")
            instance_offsets = self._instances[reader] = _InstanceOffsets(file)
            try:
                instance_offsets.table = file.load(decode_local_offsets) or {}
            except DataError as error:
                instance_offsets.damage = error
        return instance_offsets

    @property
    def is_dirty(self) -> bool:
        """Whether there are commits that are not in the files."""
        return any(instance_offsets.is_dirty for instance_offsets in self._instances.values())

    def commit(self, topic: str, reader: str, queue_id: int, offset: int) -> None:
        """Set the queue offset of the reader's next message; it may be smaller than before.

        Raises :class:`DataError` if its file is damaged: the file is not overwritten.
        """
        check_offset(queue_id, offset)
        instance_offsets = self._of(reader)
        if instance_offsets.damage is not None:
            raise instance_offsets.damage
        if instance_offsets.table.get((BROKER_NAME, topic, queue_id)) != offset:
            instance_offsets.table[BROKER_NAME, topic, queue_id] = offset
            instance_offsets.is_dirty = True

    def offset(self, topic: str, reader: str, queue_id: int) -> int | None:
        """Return the last committed offset; ``None`` if the reader never committed here. Raises :class:`DataError`."""
        instance_offsets = self._of(reader)
        if instance_offsets.damage is not None:
            raise instance_offsets.damage
        return instance_offsets.table.get((BROKER_NAME, topic, queue_id))

    def damage(self, reader: str) -> DataError | None:
        """Return the error in the reader's file, whose offsets cannot be used then; ``None`` if it is sound."""
        return self._of(reader).damage

    def positions(self) -> Iterator[Position]:
        """Yield every offset; ``group`` is ``group@instance``."""
        for reader, instance_offsets in self._instances.items():
            for (broker, topic, queue_id), offset in instance_offsets.table.items():
                if broker == BROKER_NAME:
                    yield Position(topic, reader, queue_id, offset)

    def persist(self, *, sync: bool = True) -> bool:
        """Write the changed files; return whether there were any. ``sync``: make them survive a power loss."""
        changed = [instance_offsets for instance_offsets in self._instances.values() if instance_offsets.is_dirty]
        for instance_offsets in changed:
            instance_offsets.file.replace(encode_local_offsets(instance_offsets.table), sync=sync)
            instance_offsets.is_dirty = False
        return bool(changed)
