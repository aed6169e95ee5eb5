"""The outcome of one point of a sweep, and the function that simulates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from warren.simulation.grid import Point
from warren.simulation.running import simulate
from warren.storage.errors import WarrenError

Done = Callable[[int], None]
"""Called with the number of finished points whenever one more is finished."""

OF_NODE: Final = {
    "first_paging_s": "f8", "first_alarm_s": "f8", "alarms": "i8", "alarm_s": "f8", "max_used_bytes": "i8",
    "max_ratio": "f8", "max_disk_bytes": "i8", "disk_read_bytes": "i8", "disk_write_bytes": "i8", "disk_busy": "f8",
}  # fmt: skip
"""Columns that are the summary's numbers of the node, and their kinds."""

ADDED_UP: Final = ("published", "delivered", "acked", "refused", "ready", "unacked")
"""Columns that are counts of messages of all queues together."""

WORST: Final = {
    "max_ready": "i8", "publishers_held_s": "f8", "latency_p50_s": "f8", "latency_p99_s": "f8", "latency_max_s": "f8",
}  # fmt: skip
"""Columns that are the largest number of any queue, or of any group that the timeline adds up."""


@attrs.frozen
class Outcome:
    """The outcome of a point."""

    number: int
    summary: Mapping[str, Any] | None
    """The contents of summary.json; ``None`` if the point failed."""
    error: str | None = None

    def numbers(self) -> dict[str, Any]:
        """Return the row's numbers: an empty dict if the point failed, ``None`` for what did not happen."""
        if self.summary is None:
            return {}
        node, queues = self.summary["node"], list(self.summary["queues"].values())
        numbers: dict[str, Any] = {name: node[name] for name in OF_NODE}
        numbers |= {name: sum(queue[name] for queue in queues) for name in ADDED_UP}
        for name in WORST:
            numbers[name] = max((queue[name] for queue in queues if queue[name] is not None), default=None)
        return numbers


def run_point(point: Point) -> Outcome:
    """Simulate a point in this process. An error becomes its outcome, so that the others can go on."""
    try:
        return Outcome(point.number, simulate(point.scenario).summary)
    except WarrenError as error:
        return Outcome(point.number, None, str(error))
    except Exception as error:  # any error is reported with the point's values
        return Outcome(point.number, None, f"{type(error).__name__}: {error}")
