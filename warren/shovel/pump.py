"""The pump: moves letters from a source's queue to a destination's, and acks them once they are confirmed.

At most ``window`` letters and about :data:`WINDOW_BYTES` of bodies are in flight or not yet settled, whatever the
backlog. A letter is settled at the source only after the destination has confirmed it. If one is refused, nothing new
is sent; letters in flight are awaited and settled (each on its own), and then :class:`RefusedError` is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from warren.salvage.names import printable, to_text
from warren.shovel.errors import RefusedError
from warren.shovel.letter import Position
from warren.shovel.places import Intake, SourceQueue
from warren.storage.errors import WarrenError

WINDOW_BYTES: Final = 16 << 20

WallClock = Callable[[], int]
"""Microseconds since the epoch."""


@attrs.define
class Moved:
    """The outcome for one queue."""

    vhost: str
    queue: str
    to: str
    messages: int = 0
    """Messages of this run that are safe at the destination."""
    payload_bytes: int = 0
    already: int = 0
    """Messages of earlier runs."""
    expired: int = 0
    """Messages of this run that had expired when they were sent."""
    renamed_exchanges: int = 0
    """Messages of this run that arrived under another exchange's name."""


@attrs.define
class Pump:
    """Moves one queue; each queue needs a new one."""

    source: SourceQueue
    intake: Intake
    moved: Moved
    window: int
    wall_clock: WallClock
    progress: Callable[[Moved], None]
    _on_the_way: dict[int, tuple[Position, int]] = attrs.field(factory=dict)
    """Number → position at the source, and size of the body."""
    _bytes_on_the_way: int = 0
    _safe: list[Position] = attrs.field(factory=list)
    """Confirmed and not settled yet: a quarter of a window goes at once, for a source syncs each time."""
    _refusals: list[str] = attrs.field(factory=list)

    def run(self, limit: int) -> None:
        """At most ``limit`` letters. Raises what either place raises, and :class:`RefusedError`."""
        try:
            self._pump(limit)
        except (WarrenError, KeyboardInterrupt):
            self._end_after_error()
            raise
        finally:
            self.moved.renamed_exchanges = self.intake.renamed_exchanges

    def _pump(self, limit: int) -> None:
        for letter in self.source.letters(limit):
            if letter is None:
                self._work(wait=bool(self._on_the_way))
            else:
                number = self.intake.put(letter)
                self._on_the_way[number] = letter.position, len(letter.body)
                self._bytes_on_the_way += len(letter.body)
                if 0 < letter.expiry_us <= self.wall_clock():
                    self.moved.expired += 1
                if not number % 64 or self._is_full():
                    self._work(wait=False)
            while self._is_full() and not self._refusals:
                self._work(wait=True)
            if self._refusals:
                break
        while self._on_the_way:
            self._work(wait=True)
        if self._refusals:
            raise RefusedError(
                f"{printable(to_text(self.source.name))}: {len(self._refusals):,} not taken: {self._refusals[0]}; "
                "still at the source"
            )
        self.source.finish()
        self.intake.close()

    def _is_full(self) -> bool:
        return len(self._on_the_way) + len(self._safe) >= self.window or self._bytes_on_the_way >= WINDOW_BYTES

    def _work(self, *, wait: bool) -> None:
        for number, refusal in self.intake.work(wait=wait):
            position, size = self._on_the_way.pop(number)
            self._bytes_on_the_way -= size
            if refusal is None:
                self._safe.append(position)
                self.moved.messages += 1
                self.moved.payload_bytes += size
            else:
                self._refusals.append(refusal)
        if len(self._safe) * 4 >= self.window or not self._on_the_way:
            self._settle()

    def _settle(self) -> None:
        if self._safe:
            safe, self._safe = self._safe, []
            self.source.settle(safe)
            self.progress(self.moved)

    def _end_after_error(self) -> None:
        """Settle confirmed letters and close, as far as that is still possible."""
        for step in (self._settle, self.source.finish, self.intake.close):
            try:
                step()
            except WarrenError:  # the first error is the one to tell
                continue
