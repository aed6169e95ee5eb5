"""Local offsets: how far readers that read everything for themselves (RocketMQ's broadcasting) are.

RocketMQ's consumers keep them where they run, a file for each instance and group, and so does a node: it owns
``<instance name>/<group>/offsets.json`` below one directory. A reader is known here by ``group@instance``. A commit
changes the table only; :meth:`LocalOffsets.persist` writes what has changed, on a timer and at a clean stop. What a
crash takes is what was committed since: those messages come again.

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
        found = self._instances.get(reader)
        if found is None:
            group, _, instance = reader.partition(SEPARATOR)
            file = ConfigFile(self._files, f"{self._directory}/{instance}/{group}/{FILE_NAME}")
            found = self._instances[reader] = _InstanceOffsets(file)
            try:
                found.table = file.load(decode_local_offsets) or {}
            except DataError as error:
                found.damage = error
        return found

    @property
    def is_dirty(self) -> bool:
        """Something was committed that is not in its file."""
        return any(found.is_dirty for found in self._instances.values())

    def commit(self, topic: str, reader: str, queue_id: int, offset: int) -> None:
        """The reader wants the message with this queue offset next; smaller than before is allowed.

        Raises :class:`DataError` if its file is damaged: what that holds is not overwritten.
        """
        found = self._of(reader)
        if found.damage is not None:
            raise found.damage
        if found.table.get((BROKER_NAME, topic, queue_id)) != offset:
            found.table[BROKER_NAME, topic, queue_id] = offset
            found.is_dirty = True

    def offset(self, topic: str, reader: str, queue_id: int) -> int | None:
        """What was committed last; ``None`` for a reader that never came to this queue. Raises :class:`DataError`."""
        found = self._of(reader)
        if found.damage is not None:
            raise found.damage
        return found.table.get((BROKER_NAME, topic, queue_id))

    def damage(self, reader: str) -> DataError | None:
        """Return what is wrong with the reader's file; its offsets cannot be used then."""
        return self._of(reader).damage

    def positions(self) -> Iterator[Position]:
        """Every offset; ``group`` is ``group@instance``."""
        for reader, found in self._instances.items():
            for (broker, topic, queue_id), offset in found.table.items():
                if broker == BROKER_NAME:
                    yield Position(topic, reader, queue_id, offset)

    def persist(self, *, sync: bool = True) -> bool:
        """Write the files where something changed; whether anything did. ``sync``: a power loss finds it, too."""
        changed = [found for found in self._instances.values() if found.is_dirty]
        for found in changed:
            found.file.replace(encode_local_offsets(found.table), sync=sync)
            found.is_dirty = False
        return bool(changed)
