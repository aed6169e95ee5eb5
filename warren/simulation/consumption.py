"""Consumption: how many messages consumers took, acked and gave back, and when, as a node recorded it.

A consumption is a value of a scenario (``ConsumerSpec.record``).
:class:`warren.simulation.replayed_consumer.ReplayedConsumer` repeats it, and
:func:`warren.simulation.recorded.recorded_consumption` reads it from a file.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.simulation.units import ScenarioError

DEEDS: Final = ("taken", "taken_no_ack", "acked", "requeued", "purged")


@attrs.frozen(eq=False)
class Consumption:
    """What was done within spans that follow one another: each from its moment (seconds) to the next.

    ``taken``: messages that are to be acked or given back; ``taken_no_ack``: messages that were gone with that;
    ``purged``: messages of a purge. All but ``at_s`` have one fewer item than that.
    """

    source: str
    at_s: tuple[float, ...]
    taken: tuple[int, ...]
    taken_no_ack: tuple[int, ...]
    acked: tuple[int, ...]
    requeued: tuple[int, ...]
    purged: tuple[int, ...]

    def __attrs_post_init__(self) -> None:
        at_s = np.asarray(self.at_s, np.float64)
        if len(at_s) < 2 or not np.isfinite(at_s).all() or at_s[0] < 0.0 or (np.diff(at_s) <= 0.0).any():
            raise ScenarioError(f"{self.source}: the moments of a consumption must rise from 0 s on, at least two")
        for name in DEEDS:
            values = getattr(self, name)
            if len(values) != len(at_s) - 1 or any(value < 0 for value in values):
                raise ScenarioError(f"{self.source}: {name} must be {len(at_s) - 1} counts that are not negative")

    @property
    def is_nothing(self) -> bool:
        """Whether the consumers did nothing."""
        return not any(any(getattr(self, name)) for name in DEEDS)

    @property
    def busy(self) -> npt.NDArray[np.int64]:
        """The numbers of the spans in which something was done."""
        return np.flatnonzero(sum(np.asarray(getattr(self, name), np.int64) for name in DEEDS))
