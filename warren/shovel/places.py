"""The interfaces of the two places that the pump connects.

Both identify a queue by its name and its vhost's, as bytes. A place raises a
:class:`warren.storage.errors.WarrenError` if it fails; a source that is closed after that keeps unsettled messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import attrs

from warren.shovel.letter import Letter, Position

HELD: Final = 256
HELD_BYTES: Final = 4 << 20
"""Letters that are handled together: up to this many, or about this many bytes."""


class Outcome(NamedTuple):
    """What became of a letter: ``number`` is what :meth:`Intake.put` gave."""

    number: int
    refusal: str | None
    """``None``: it is safe."""


class SourceQueue(Protocol):
    """One queue that is emptied, or read."""

    @property
    def vhost(self) -> bytes: ...

    @property
    def name(self) -> bytes: ...

    @property
    def already(self) -> int:
        """Messages that an earlier run brought over already."""

    def count(self) -> int:
        """Estimate the number of letters."""

    def letters(self, limit: int) -> Iterator[Letter | None]:
        """Yield at most ``limit`` letters, in order. ``None``: none is ready yet; process outcomes meanwhile."""

    def settle(self, positions: Sequence[Position]) -> None:
        """These letters are safe at the destination."""

    def finish(self) -> None:
        """End the reading. Everything settled is final when this returns."""


class Source(Protocol):
    """Where letters come from; a context manager."""

    def queues(self, names: Sequence[bytes]) -> list[SourceQueue]:
        """The named queues (all, if ``names`` is empty), in order; raises if one is missing."""


class Intake(Protocol):
    """One queue that is filled."""

    def put(self, letter: Letter) -> int:
        """Hand a letter over; returns its number, counted from 1."""

    def work(self, *, wait: bool) -> list[Outcome]:
        """Send the letters handed over; return the outcomes since the last call.

        ``wait``: if letters are in flight, wait for an outcome, or for a while.
        """

    def close(self) -> None:
        """Clean up after the last letter."""

    @property
    def renamed_exchanges(self) -> int:
        """Letters that arrived under another exchange's name than they were published to."""


@attrs.define(eq=False)
class HeldLetters:
    """An intake that publishes letters together. They are held until the pump asks for outcomes."""

    _publish: Callable[[Sequence[Letter]], Sequence[str | None]]
    """Returns why each was refused, or ``None``; all others are safe then."""
    _held: list[Letter] = attrs.field(factory=list)
    _held_bytes: int = 0
    _numbered: int = 0
    renamed_exchanges: int = 0

    def put(self, letter: Letter) -> int:
        self._held.append(letter)
        self._held_bytes += len(letter.body)
        self._numbered += 1
        return self._numbered

    def work(self, *, wait: bool) -> list[Outcome]:
        if not self._held or (not wait and len(self._held) < HELD and self._held_bytes < HELD_BYTES):
            return []
        letters, self._held, self._held_bytes = self._held, [], 0
        first = self._numbered - len(letters) + 1
        return [Outcome(number, refusal) for number, refusal in enumerate(self._publish(letters), first)]

    def close(self) -> None:
        """Drop letters whose outcome was not requested: they are still at the source."""


class Destination(Protocol):
    """Where letters go; a context manager."""

    def intake(self, vhost: bytes, source_name: bytes, name: bytes) -> Intake:
        """The queue ``name`` (at the source: ``source_name``), made if it is missing."""
