"""Delta: the messages without any part in RAM, as one term.

``start … end-1`` is the range of their positions, ``count`` how many of the positions are taken (the others are acked,
pending or were lost), ``transient`` how many of the messages are transient. It is *blank* when nothing is left between
start and end; the bounds are ``None`` until the first message comes.
"""

from __future__ import annotations

import attrs


@attrs.define
class Delta:
    """A queue's messages on disk only."""

    start: int | None = None
    count: int = 0
    transient: int = 0
    end: int | None = None

    @property
    def blank(self) -> bool:
        return self.start == self.end

    @property
    def bounds(self) -> tuple[int, int]:
        """Start and end of a delta that is not blank."""
        if self.start is None or self.end is None:
            raise RuntimeError("a blank delta has no bounds")
        return self.start, self.end

    def expand(self, start: int, count: int, *, transient: bool) -> None:
        """Add the messages ``start … start+count-1``: before, after or between the present ones."""
        end = start + count
        if self.start is None or self.end is None or self.blank:
            self.start, self.end, self.count, self.transient = start, end, 0, 0
        self.start = min(self.start, start)
        self.end = max(self.end, end)
        self.count += count
        self.transient += count * transient

    def clear(self) -> None:
        self.start = self.end = None
        self.count = self.transient = 0

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if more messages are counted than there are positions.

        ``transient`` may fall below 0: a lazy queue that is not durable adds persistent messages as such and takes them
        out as transient ones.
        """
        if (self.start is None) != (self.end is None) or self.count < 0 or self.transient > self.count:
            raise RuntimeError(f"{self} is not a delta")
        if self.start is not None and self.end is not None and self.start + self.count > self.end:
            raise RuntimeError(f"{self} counts more messages than positions")
