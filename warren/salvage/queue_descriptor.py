"""Where a queue's directory is and what reads it, as a small value that can be sent to another process."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import attrs

from warren.queue_index.index.recovery_terms import RecoveryTerms
from warren.salvage.queue_directory import BodySource, Finding
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.quorum.quorum_node import QuorumNodes
from warren.salvage.read_only import ReadOnlyFileSystem

if TYPE_CHECKING:
    from warren.salvage.classic.classic_v1 import ClassicV1Directory
    from warren.salvage.classic.classic_v2 import ClassicV2Directory


class QueueFormat(enum.Enum):
    """The formats of a queue's files."""

    CLASSIC_V1 = enum.auto()
    CLASSIC_V2 = enum.auto()
    CONVERTING = enum.auto()
    """A classic queue with files of both versions."""
    QUORUM = enum.auto()
    STREAM = enum.auto()


@attrs.frozen(kw_only=True)
class QueueDescriptor:
    """A value that opens one queue. It holds no open file, and no data of messages."""

    format: QueueFormat
    path: str
    name: bytes
    """As it is stored: the name of a priority queue's level ends in NUL and the level."""
    segment_entry_count: int = 0
    """Entries in a segment of version 1."""
    terms: RecoveryTerms | None = None
    """Of a classic queue; ``None``: it was not stopped cleanly."""
    members: tuple[str, ...] = ()
    """The directories of a quorum queue."""

    def open(self, files: ReadOnlyFileSystem, bodies: BodySource, nodes: QuorumNodes) -> QueueDirectory:
        """Its reader; ``bodies``: the vhost's persistent store, ``nodes``: shared with other quorum queues."""
        match self.format:
            case QueueFormat.QUORUM:
                from warren.salvage.quorum.quorum_directory import QuorumDirectory

                return QuorumDirectory(
                    files=files, path=self.path, name=self.name, members=self.members, bodies=bodies, nodes=nodes
                )
            case QueueFormat.STREAM:
                from warren.salvage.streams.stream_directory import StreamDirectory

                return StreamDirectory(files=files, path=self.path, name=self.name, bodies=bodies)
            case QueueFormat.CLASSIC_V1:
                return self._v1(files, bodies)
            case QueueFormat.CLASSIC_V2:
                return self._v2(files, bodies)
            case QueueFormat.CONVERTING:
                from warren.salvage.classic.classic_converting import ClassicConvertingDirectory

                v1, v2 = self._v1(files, bodies), self._v2(files, bodies)
                return ClassicConvertingDirectory(path=self.path, name=self.name, bodies=bodies, v1=v1, v2=v2)

    # A format is imported when it is first used.

    def _v1(self, files: ReadOnlyFileSystem, bodies: BodySource) -> ClassicV1Directory:
        from warren.salvage.classic.classic_v1 import ClassicV1Directory
        from warren.salvage.classic.classic_v1_index import ClassicV1Index

        index = ClassicV1Index(
            files=files,
            path=self.path,
            segment_entry_count=self.segment_entry_count,
            terms=self.terms,
            is_converting=self.format is QueueFormat.CONVERTING,
        )
        return ClassicV1Directory(index=index, name=self.name, bodies=bodies)

    def _v2(self, files: ReadOnlyFileSystem, bodies: BodySource) -> ClassicV2Directory:
        from warren.salvage.classic.classic_v2 import ClassicV2Directory
        from warren.salvage.classic.classic_v2_index import ClassicV2Index

        is_converting = self.format is QueueFormat.CONVERTING
        index = ClassicV2Index(files=files, path=self.path, terms=self.terms, is_converting=is_converting)
        return ClassicV2Directory(index=index, name=self.name, bodies=bodies)


class QueuePlace(NamedTuple):
    """A quorum queue or a stream: its directory is not in its vhost's."""

    vhost: bytes
    """Empty if it is unknown."""
    queue: QueueDescriptor
    problems: tuple[Finding, ...] = ()
