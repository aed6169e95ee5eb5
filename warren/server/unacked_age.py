"""UnackedAge: for how long a channel has had what it has not settled, to the tick.

Nothing is noted with a delivery. At each tick is noted which tag comes next: what has a smaller one was delivered
before.
"""

from __future__ import annotations

from collections import deque

import attrs


@attrs.define(eq=False)
class UnackedAge:
    """Of one channel."""

    _marks: deque[tuple[float, int]] = attrs.Factory(deque)
    """Moments, and the tag that came next then; the first is the first that came behind the oldest unsettled one."""

    def tick(self, now_s: float, oldest_tag: int | None, next_tag: int) -> float:
        """For so many seconds, or a tick longer, ``oldest_tag`` has been there. ``None``: everything is settled."""
        marks = self._marks
        while marks and (oldest_tag is None or marks[0][1] <= oldest_tag):
            marks.popleft()
        if oldest_tag is None:
            return 0.0
        if not marks or marks[-1][1] != next_tag:
            marks.append((now_s, next_tag))
        return now_s - marks[0][0]
