"""An actor that records its messages."""

from __future__ import annotations

from typing import Any

import attrs

from warren.actors.runtime.inbox import PendingBatch
from warren.actors.runtime.pool import Pool, PooledActor
from warren.storage.errors import WarrenError


@attrs.frozen
class Say:
    word: object


@attrs.frozen
class Do:
    work: Any


class Scribe(PooledActor):
    """Records every message that it gets."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.heard: list[object] = []
        self.turn_ends = 0
        self.failed_with: BaseException | None = None
        self.undelivered: list[object] = []
        self.refused: list[Exception] = []

    def on_receive(self, message: Any) -> object:
        if isinstance(message, Do):
            return message.work()
        self.heard.append(message.word)
        return message.word

    def on_batch(self, entry: PendingBatch) -> None:
        self.heard.append(list(entry.items))

    def on_turn_end(self) -> None:
        self.turn_ends += 1

    def on_refused(self, error: Exception) -> None:
        self.refused.append(error)

    def on_undelivered(self, message: Any, error: WarrenError) -> None:
        self.undelivered.append(message.items if isinstance(message, PendingBatch) else message.word)

    def on_error(self, error: BaseException) -> None:
        self.failed_with = error
