"""A queue's directory in a format that is not read: it is named and reported, and nothing comes out of it."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from warren.salvage.needed_body import Reference
from warren.salvage.queue_directory import (
    UNREADABLE_QUEUE,
    Extent,
    Finding,
    IndexColumns,
    MsgIds,
    StoredMessage,
    Stretch,
    Summary,
)


@attrs.frozen
class UnreadableQueue:
    """Answers :class:`warren.salvage.queue_directory.QueueDirectory` with one finding."""

    kind: str
    type: str
    """As :class:`warren.salvage.queue_directory.Summary` says it."""
    path: str
    name: bytes
    reason: str

    def summary(self) -> Summary:
        return Summary(0, 0, {"type": self.type, "unreadable": self.reason})

    def extent(self) -> Extent:
        return Extent({}, 0, None)

    def messages(self, *, include_acked: bool = False) -> Iterator[StoredMessage | Finding]:
        yield from self.findings()

    def stretches(
        self, *, include_acked: bool = False, only: range | None = None
    ) -> Iterator[StoredMessage | Stretch | Finding]:
        return self.messages(include_acked=include_acked)

    def count(self, only: range) -> int:
        return 0

    def deliverable(self, only: range) -> Iterator[tuple[int, MsgIds]]:
        return iter(())

    def index_columns(self, only: range | None = None) -> Iterator[IndexColumns | Finding]:
        return self.findings()

    def references(self, *, persistent: bool) -> Iterator[MsgIds]:
        return iter(())

    def findings(self) -> Iterator[Finding]:
        yield Finding(UNREADABLE_QUEUE, "damage", self.path, None, self.reason)

    def own_findings(self) -> Iterator[Finding | Reference]:
        return self.findings()
