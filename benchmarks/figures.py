"""Figures: what a benchmark says, with its spread, its bare counterpart, and the bar that it is to reach.

A *ratio* is taken pair by pair, of a measurement and the counterpart that ran right beside it: machines drift, and a
ratio of two medians would compare different minutes. Of pairs, too, the median counts.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any, Literal

import attrs
import numpy as np
import psutil

Unit = Literal["messages/s", "MB/s", "scenarios/s", "s", "MB", "µs", "KB", "threads", "files"]


@attrs.frozen
class Spread:
    """What several repeats came to."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@attrs.frozen
class Bar:
    """A limit to reach: at least or at most ``limit``, for the ratio or for the value itself."""

    sense: Literal["at least", "at most"]
    limit: float
    of: Literal["ratio", "value"] = "ratio"


@attrs.frozen(kw_only=True)
class Figure:
    """One line of the results. ``ratio`` is ours to the counterpart's, in the figure's own unit."""

    group: str
    title: str
    unit: Unit
    ours: Spread
    counterpart: Spread | None = None
    counterpart_name: str = ""
    ratio: Spread | None = None
    bar: Bar | None = None
    note: str = ""

    @classmethod
    def of_pairs(
        cls,
        ours: Sequence[float],
        counterparts: Sequence[float],
        counterpart_name: str,
        *,
        group: str,
        title: str,
        unit: Unit,
        bar: Bar | None = None,
        note: str = "",
    ) -> Figure:
        """Return a figure of measurements, each with its counterpart."""
        return cls(
            group=group,
            title=title,
            unit=unit,
            ours=Spread.of(ours),
            counterpart=Spread.of(counterparts),
            counterpart_name=counterpart_name,
            ratio=ratios(ours, counterparts),
            bar=bar,
            note=note,
        )

    @property
    def reached(self) -> bool | None:
        """Whether the bar is reached; ``None`` without a bar."""
        if self.bar is None:
            return None
        if self.bar.of == "value":
            value = self.ours.high if self.bar.sense == "at most" else self.ours.low
        elif self.ratio is not None:
            value = self.ratio.median
        else:
            raise ValueError(f"{self.title}: a bar for a ratio, and no ratio")
        return value >= self.bar.limit if self.bar.sense == "at least" else value <= self.bar.limit


def ratios(ours: Sequence[float], counterparts: Sequence[float]) -> Spread:
    """Ours by the counterpart's, pair by pair."""
    return Spread.of([mine / other for mine, other in zip(ours, counterparts, strict=True)])


def _figure(plain: dict[str, Any]) -> Figure:
    kinds = {"ours": Spread, "counterpart": Spread, "ratio": Spread, "bar": Bar}
    read = {name: None if plain[name] is None else kind(**plain[name]) for name, kind in kinds.items()}
    return Figure(**{name: value for name, value in plain.items() if name != "reached"} | read)


@attrs.frozen
class Memory:
    """A queue filled and drained, over time: seconds; MB of RSS above the beginning's; messages in each list."""

    seconds: list[float] = attrs.Factory(list)
    growth_mb: list[float] = attrs.Factory(list)
    q1: list[int] = attrs.Factory(list)
    q2: list[int] = attrs.Factory(list)
    delta: list[int] = attrs.Factory(list)
    q3: list[int] = attrs.Factory(list)
    q4: list[int] = attrs.Factory(list)
    filled_at_s: float = 0.0
    target_ram_count: int = 0


@attrs.frozen(kw_only=True)
class Results:
    """Everything that one run measured."""

    date: str
    quick: bool
    machine: dict[str, str | int]
    figures: list[Figure]
    memory: Memory = attrs.Factory(Memory)

    @classmethod
    def of(cls, figures: list[Figure], *, quick: bool, memory: Memory | None = None) -> Results:
        """Return the results of a run on this machine that ends now."""
        return cls(
            date=day_of(datetime.now(UTC)),
            quick=quick,
            machine=machine_facts(),
            figures=figures,
            memory=memory or Memory(),
        )

    def to_json(self) -> dict[str, Any]:
        plain = attrs.asdict(self)
        for line, figure in zip(plain["figures"], self.figures, strict=True):
            line["reached"] = figure.reached
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Results:
        """What :meth:`to_json` made."""
        figures = [_figure(line) for line in plain["figures"]]
        return cls(**plain | {"figures": figures, "memory": Memory(**plain["memory"])})

    @property
    def missed(self) -> list[Figure]:
        return [figure for figure in self.figures if figure.reached is False]


def machine_facts() -> dict[str, str | int]:
    """What of the machine the figures depend on; nothing that names it."""
    return {
        "cores": psutil.cpu_count() or 0,
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def day_of(now: datetime) -> str:
    return now.strftime("%Y-%m-%d")
