"""The grid of a sweep: the keys that are varied, their values, and a scenario for each combination.

An *axis* is a key with its values, for example ``node.paging_ratio`` with 0.3 and 0.5. A *point* is one value of each
axis, and the scenario that has these values. The last axis changes fastest. All points have the same seed, so two
points differ only in what was varied. :func:`run_point` simulates a point; the result is its *outcome*.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from warren.simulation.result import of_queues
from warren.simulation.running import simulate
from warren.simulation.scenarios.scenario import Scenario
from warren.simulation.scenarios.units import ScenarioError
from warren.simulation.toml_file import scenario_from_table, table_of, vary
from warren.storage.errors import WarrenError

MOST_POINTS: Final = 10_000
_OPENING: Final = {"[": "]", "{": "}"}


def shown(value: Any) -> str:
    """Return a value as it is written in the command: ``0.3``, ``2kB``, ``true``."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(value)


def shown_values(values: Mapping[str, Any]) -> str:
    """Return the values as in ``node.paging_ratio=0.3, publishers.rate=50``."""
    return ", ".join(f"{key}={shown(value)}" for key, value in values.items())


@attrs.frozen
class Axis:
    """A key of the scenario, and the values that it is given."""

    key: str
    values: tuple[Any, ...]

    def __attrs_post_init__(self) -> None:
        if not self.values:
            raise ScenarioError(f"vary: {self.key} has no values")
        texts = [shown(value) for value in self.values]
        if len(set(texts)) != len(texts):
            twice = next(text for text in texts if texts.count(text) > 1)
            raise ScenarioError(f"vary: {self.key} has the value {twice} twice")

    @classmethod
    def from_text(cls, text: str) -> Axis:
        """Return the axis for ``KEY=VALUE,VALUE,…``. A value is TOML or else a text: ``node.memory=1GB,2147483648``."""
        key, equals, values = text.partition("=")
        if not equals:
            raise ScenarioError(f"vary: {text!r} is not KEY=VALUE,VALUE,…")
        return cls(key.strip(), tuple(_value(key.strip(), part) for part in _parts(values)))


def _parts(text: str) -> list[str]:
    """Split a text at its commas, except those inside brackets or quotes."""
    parts, brackets, quote = [""], [], ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in _OPENING:
            brackets.append(_OPENING[sign])
        elif brackets and sign == brackets[-1]:
            brackets.pop()
        elif sign == "," and not brackets:
            parts.append("")
            continue
        parts[-1] += sign
    return [part.strip() for part in parts]


def _value(key: str, text: str) -> Any:
    if not text:
        raise ScenarioError(f"vary: {key} has an empty value")
    try:
        value = tomllib.loads(f"value = {text}\n")["value"]
    except tomllib.TOMLDecodeError:
        return text
    if isinstance(value, float) and not math.isfinite(value):
        raise ScenarioError(f"vary: {key}={text}: is no number")
    return value if isinstance(value, bool | int | float | str | dict | list) else text


@attrs.frozen
class Point:
    """One point of the grid. It can be pickled, and needs no file: whatever is simulated is in the scenario."""

    number: int
    """From 0 on, in the grid's order."""
    values: Mapping[str, Any]
    """By their axes' keys, in the axes' order."""
    scenario: Scenario = attrs.field(repr=False)


def axes_of(vary: Mapping[str, Sequence[Any]] | Sequence[Axis]) -> tuple[Axis, ...]:
    """Return the axes. Raises :class:`ScenarioError` if the list is empty, or if a key occurs twice."""
    if isinstance(vary, Mapping):
        for key, values in vary.items():
            if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
                raise ScenarioError(f"vary: {key} wants a list of values, not {values!r:.100}")
        axes = tuple(Axis(key, tuple(_plain(value) for value in values)) for key, values in vary.items())
    else:
        axes = tuple(vary)
    if not axes:
        raise ScenarioError("vary: there is nothing to vary: KEY=VALUE,VALUE,… says what")
    keys = [axis.key for axis in axes]
    if len(set(keys)) != len(keys):
        raise ScenarioError(f"vary: {next(key for key in keys if keys.count(key) > 1)} occurs twice")
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_POINTS:
        raise ScenarioError(f"vary: {count} points are more than {MOST_POINTS}")
    return axes


def _plain(value: Any) -> Any:
    """Return a value; a number of numpy's as Python's own."""
    return value.item() if hasattr(value, "item") and not isinstance(value, str) else value


def points_of(
    scenario: Scenario | Mapping[str, Any], axes: Sequence[Axis], path: str | None = None
) -> tuple[Point, ...]:
    """Return the points of the grid. All scenarios are made, and so checked, before one of them runs.

    ``scenario`` is a scenario, or the table of the file at ``path``. Raises :class:`ScenarioError`, which names the
    values of the first point that is wrong.
    """
    table = scenario if isinstance(scenario, Mapping) else table_of(scenario)
    points = []
    for number, combination in enumerate(itertools.product(*(axis.values for axis in axes))):
        values = dict(zip((axis.key for axis in axes), combination, strict=True))
        try:
            points.append(Point(number, values, scenario_from_table(vary(table, values), path)))
        except ScenarioError as error:
            raise ScenarioError(f"{shown_values(values)}: {error}") from None
    return tuple(points)


# ── outcomes ────────────────────────────────────────────────────────────────────────────────────────────────────────

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
        return numbers | {name: of_queues(self.summary, name, max) for name in WORST}


def run_point(point: Point) -> Outcome:
    """Simulate a point in this process. An error becomes its outcome, so that the others can go on."""
    try:
        return Outcome(point.number, simulate(point.scenario).summary)
    except WarrenError as error:
        return Outcome(point.number, None, str(error))
    except Exception as error:  # any error is reported with the point's values
        return Outcome(point.number, None, f"{type(error).__name__}: {error}")
