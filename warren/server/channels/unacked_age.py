"""UnackedAge: the age of a channel's oldest unsettled delivery, to the tick.

Nothing is recorded with a delivery. Each tick records the next tag: deliveries with a smaller one were made
before.
"""

from __future__ import annotations

from collections import deque

import attrs


@attrs.define(eq=False)
class UnackedAge:
    """The age of one channel's deliveries."""

    _marks: deque[tuple[float, int]] = attrs.Factory(deque)
    """Moments, each with the next tag at that time; the first has a tag above the oldest unsettled one."""

    def tick(self, now_s: float, oldest_tag: int | None, next_tag: int) -> float:
        """Return the age of ``oldest_tag`` in seconds, at most a tick too low. ``None``: everything is settled."""
        marks = self._marks
        while marks and (oldest_tag is None or marks[0][1] <= oldest_tag):
            marks.popleft()
        if oldest_tag is None:
            return 0.0
        if not marks or marks[-1][1] != next_tag:
            marks.append((now_s, next_tag))
        return now_s - marks[0][0]
