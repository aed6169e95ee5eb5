"""The rate for a scenario's value: messages a second, bursts, a daily curve, a trace, or a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from warren.simulation.scenarios.curves import Bursts, Constant, Daily, Trace, daily_points, per_second
from warren.simulation.scenarios.forms import file_path, inside, only_key, record_file, table_with
from warren.simulation.scenarios.recorded import RecordedQueue
from warren.simulation.scenarios.units import ScenarioError, period

Rate = Constant | Bursts | Daily | Trace


def rate_of(value: Any) -> Rate:
    """Return the rate for a scenario's value: messages a second, or a table with one of

    ==============================================  ===============================================================
    ``bursts = {base, peak, every, lasting, first}``  see :class:`Bursts`
    ``daily = [["00:00", 10], …]``                  see :class:`Daily`
    ``trace = "file.csv"``                          see :func:`~.traces.read_trace`, for what can stand beside it
    ``record = "file.parquet", queue = "orders"``   what a running node recorded of a queue
    ==============================================  ===============================================================
    """
    if isinstance(value, Constant | Bursts | Daily | Trace):
        return value
    if not isinstance(value, Mapping):
        return Constant(per_second(value))
    key = only_key(value, _FORMS, [name for beside in _BESIDE.values() for name in beside])
    for name in value:
        if name != key and name not in _BESIDE.get(key, ()):
            raise ScenarioError(f"{name}: there is no such key beside {key}")
    with inside(key):
        if key == "bursts":
            return _bursts(value[key])
        if key == "daily":
            return Daily(daily_points(value[key]))
    return _trace(value) if key == "trace" else _record(value)


_FORMS: Final = ("bursts", "daily", "trace", "record")
_BESIDE: Final = {"trace": ("time_column", "rate_column", "gaps"), "record": ("queue",)}


def _bursts(table: Any) -> Bursts:
    table = table_with(table, ("base", "peak", "every", "lasting"), ("first",))
    times = {}
    for name in ("every", "lasting", "first"):
        if name in table:
            with inside(name):
                times[f"{name}_s"] = period(table[name])
    return Bursts(base=table["base"], peak=table["peak"], **times)


def _trace(table: Mapping[str, Any]) -> Trace:
    from warren.simulation.scenarios.traces import read_trace

    with inside("trace"):
        path = file_path(table["trace"])
    with inside("trace: "):
        return read_trace(path, **{key: value for key, value in table.items() if key != "trace"})


def _record(table: Mapping[str, Any]) -> Rate:
    path, queue = record_file(table)
    with inside("record: "):
        return RecordedQueue.of(path, queue).rate()
