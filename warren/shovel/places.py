"""The interfaces of the two places that the pump connects.

Both identify a queue by its name and its vhost's, as bytes. A place raises a
:class:`warren.storage.errors.WarrenError` if it fails; a source that is closed after that keeps unsettled messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from warren.shovel.letter import Letter, Position


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


class Destination(Protocol):
    """Where letters go; a context manager."""

    def intake(self, vhost: bytes, source_name: bytes, name: bytes) -> Intake:
        """The queue ``name`` (at the source: ``source_name``), made if it is missing."""
