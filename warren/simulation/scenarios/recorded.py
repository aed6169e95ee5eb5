"""What a running node recorded of its queues (:mod:`warren.recording`), as rates and consumptions."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.recording import RecordedNode, read_record
from warren.simulation.scenarios.curves import Trace
from warren.simulation.scenarios.units import ScenarioError
from warren.storage.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
_DROP_BY_THEMSELVES: Final = ("x-message-ttl", "x-max-length", "x-max-length-bytes")
LEAST_SPAN_S: Final = 1e-6
DEEDS: Final = ("taken", "taken_no_ack", "acked", "requeued", "purged")


@attrs.frozen(eq=False)
class Consumption:
    """How many messages consumers took, acked and gave back within spans that follow one another.

    Each span lasts from its moment (seconds) to the next. It is a value of a scenario (``ConsumerSpec.record``), which
    :class:`warren.simulation.node.replayed_consumer.ReplayedConsumer` repeats.

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


class RecordedQueue:
    """The rows of one queue, as spans of time with activity."""

    def __init__(self, record: RecordedNode, name: str, rows: pd.DataFrame) -> None:
        self._record = record
        self.name = name
        self.rows = rows = rows.sort_values(["time_s", "step"], kind="stable")
        at_s = np.maximum(rows["time_s"].to_numpy(np.float64), 0.0)
        steps, asleep = rows["step"].to_numpy(np.int64), rows["asleep"].to_numpy(bool)
        # What a row counts came since the last one; but a queue that slept was looked at as soon as it did something.
        begins = np.concatenate([[0.0], at_s[:-1]])
        slept = np.concatenate([[False], asleep[:-1] & (np.diff(steps) > 1)])
        slept[0] = len(steps) > 0 and steps[0] > 1  # it was not there before
        begins = np.where(slept, np.maximum(begins, at_s - record.interval_s), begins)
        self._begins, self._ends = begins, at_s
        self._during = at_s > LEAST_SPAN_S  # what the very first row counts was before the record

    @classmethod
    def of(cls, path: str | os.PathLike[str] | RecordedNode, queue: str) -> RecordedQueue:
        """Return a queue of a record. Raises :class:`ScenarioError` if it was not recorded."""
        record = opened_record(path)
        return cls(record, queue, record.queues[record.queues["name"] == known_queue(record, queue)])

    def counts(self, name: str) -> Floats:
        """Return a count for each row; 0 for what was before the record."""
        return np.where(self._during, self.rows[name].to_numpy(np.float64), 0.0)

    def _spans(self, *counts: Floats) -> tuple[Floats, list[Floats]]:
        """Return rising moments, and what each of the counts has between them. Gaps become spans of nothing."""
        edges = np.unique(np.concatenate([[0.0], self._begins, self._ends]))
        edges = edges[np.concatenate([[True], np.diff(edges) > LEAST_SPAN_S])]
        if len(edges) < 2:
            edges = np.array([0.0, max(self._record.interval_s, LEAST_SPAN_S)])
        where = np.clip(np.searchsorted(edges, self._ends - LEAST_SPAN_S / 2) - 1, 0, len(edges) - 2)
        return edges, [np.bincount(where, count, len(edges) - 1).astype(np.float64) for count in counts]

    def rate(self) -> Trace:
        """Return the rate at which messages came during the record."""
        edges, [published] = self._spans(self.counts("published"))
        busy = np.flatnonzero(published)
        if len(busy):  # half a message more, and none comes just between two spans
            published[busy[0]] += 0.5
        rates = published / np.diff(edges)
        return Trace(f"{self._record.path}: {self.name}", tuple(edges.tolist()), tuple(rates.tolist()))

    def consumption(self) -> Consumption:
        """Return what its consumers did during the record."""
        no_ack = self.counts("delivered_no_ack")
        spans = (
            self.counts("delivered") - no_ack,
            no_ack + self._vanished(),
            self.counts("acked") - no_ack + self.counts("rejected"),
            self.counts("requeued"),
            self.counts("purged"),
        )
        edges, counts = self._spans(*(np.maximum(count, 0.0) for count in spans))
        rounded_counts = [tuple(int(value) for value in count) for count in counts]
        return Consumption(f"{self._record.path}: {self.name}", tuple(edges.tolist()), *rounded_counts)

    def _vanished(self) -> Floats:
        """Return the messages that expired by themselves. If the queue drops messages, the replay does so, too."""
        if any(name in self.arguments for name in _DROP_BY_THEMSELVES):
            return np.zeros(len(self.rows))
        arrived = self.counts("published") - self.counts("refused")
        departed = self.counts("acked") + self.counts("rejected") + self.counts("purged")
        depth = self.rows["len"].to_numpy(np.float64) + self.rows["unacked"].to_numpy(np.float64)
        previous_depth = np.concatenate([[float(self.at_start)], depth[:-1]])
        return np.where(self._during, np.maximum(previous_depth + arrived - departed - depth, 0.0), 0.0)

    @property
    def arguments(self) -> dict[str, Any]:
        """Its ``x-`` arguments."""
        arguments: dict[str, Any] = json.loads(self.rows["arguments"].iloc[0])
        return arguments

    @property
    def at_start(self) -> int:
        """The messages that were there when the record began, unacked ones included."""
        first = self.rows.iloc[0]
        depth = int(first["len"]) + int(first["unacked"])
        if not self._during[0]:
            return depth
        arrived = int(first["published"]) - int(first["refused"])
        return max(0, depth - arrived + int(first["acked"]) + int(first["rejected"]) + int(first["purged"]))


def opened_record(path: str | os.PathLike[str] | RecordedNode) -> RecordedNode:
    """Return a record; read it if it is a path. Raises :class:`ScenarioError`."""
    if isinstance(path, RecordedNode):
        return path
    try:
        return read_record(path)
    except DataError as error:
        raise ScenarioError(str(error)) from None


def known_queue(record: RecordedNode, name: str) -> str:
    """Return the name of a queue. Raises :class:`ScenarioError` if it was not recorded."""
    if name not in record.names:
        names = ", ".join(map(repr, record.names[:10])) or "none"
        raise ScenarioError(f"{record.path}: no queue {name!r} was recorded; there are {names}")
    return name
