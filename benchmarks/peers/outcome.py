"""What a run came to: values by work, peer and repeat; ratios, pair by pair; and which goals are reached."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import attrs

from benchmarks.figures import Figure, Results, Spread, ratios
from benchmarks.peers.contestants import BARE, OURS
from benchmarks.peers.peer import Promise
from benchmarks.peers.works import WORKS_BY_NAME, Goal, Work

Points = list[dict[str, float]]
"""The points of a growth: ``at`` and the values there."""

RESULTS: Final = Path(__file__).parent.parent / "results"
OUT: Final = RESULTS / "peers.json"


@attrs.define
class Ran:
    """One peer at one work: what it promised, with how many messages, and every value of every repeat."""

    promise: Promise
    messages: int
    version: str
    values: dict[str, list[float]]
    error: str = ""

    def note(self, found: dict[str, float]) -> None:
        """Add the values of a repeat."""
        for name, value in found.items():
            self.values.setdefault(name, []).append(value)


@attrs.define
class WorkResult:
    """All peers at one work, by their names."""

    work: str
    ran: dict[str, Ran]

    def spread(self, peer: str, value: str) -> Spread | None:
        """A peer's value; ``None`` if it is missing."""
        ran = self.ran.get(peer)
        return None if ran is None or not ran.values.get(value) else Spread.of(ran.values[value])

    def ratio(self, ours: str, value: str, beside: str, other: str = "") -> Spread | None:
        """One value by another, repeat by repeat."""
        mine, theirs = (
            self.ran[name].values.get(key, []) if name in self.ran else []
            for name, key in ((ours, value), (beside, other or value))
        )
        pairs = min(len(mine), len(theirs))
        return ratios(mine[:pairs], theirs[:pairs]) if pairs else None


@attrs.frozen(kw_only=True)
class Outcome:
    """Everything that one run measured."""

    date: str
    machine: dict[str, str | int]
    works: list[WorkResult]
    growth: dict[str, dict[str, Points]] = attrs.Factory(dict)
    """By the name of what grows, and by peer."""

    @staticmethod
    def points(found: dict[int, WorkResult]) -> dict[str, Points]:
        """What the works of a growth came to, by peer; medians."""
        points: dict[str, Points] = {}
        for at, result in found.items():
            for name, ran in result.ran.items():
                values = {value: median(measured) for value, measured in ran.values.items() if measured}
                points.setdefault(name, []).append({"at": at} | values)
        return points

    def to_json(self) -> dict[str, Any]:
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Outcome:
        """What :meth:`to_json` made."""
        works = [
            WorkResult(
                one["work"],
                {name: Ran(**ran | {"promise": Promise(ran["promise"])}) for name, ran in one["ran"].items()},
            )
            for one in plain["works"]
        ]
        return cls(**plain | {"works": works})

    @classmethod
    def kept(cls) -> Outcome:
        """The outcome of the last whole run."""
        return cls.from_json(json.loads(OUT.read_text(encoding="utf-8")))

    def versions(self) -> dict[str, str]:
        """The versions of all peers that took part, by name."""
        return {name: ran.version for result in self.works for name, ran in result.ran.items()}

    def figures(self) -> list[Figure]:
        """A figure for each goal, in the order of the works."""
        return [
            _figure(WORKS_BY_NAME[result.work], result, goal)
            for result in self.works
            for goal in WORKS_BY_NAME[result.work].goals
            if result.spread(goal.of, goal.value) is not None
        ]

    def not_measured(self) -> Iterator[str]:
        """Goals without a figure."""
        for result in self.works:
            for goal in WORKS_BY_NAME[result.work].goals:
                if result.spread(goal.of, goal.value) is None:
                    yield f"{result.work}: {goal.value}"


def _figure(work: Work, result: WorkResult, goal: Goal) -> Figure:
    ours = result.spread(goal.of, goal.value)
    assert ours is not None
    counterpart = result.spread(goal.beside, goal.other or goal.value) if goal.beside else None
    own = goal.beside == goal.of
    return Figure(
        group=work.name,
        title=f"{work.name}, {work.title}: {goal.value}" + ("" if goal.of == "warren" else " (the plain object)"),
        unit=work.values[goal.value],
        ours=ours,
        counterpart=counterpart,
        counterpart_name=(goal.other if own else goal.beside) if counterpart else "",
        ratio=result.ratio(goal.of, goal.value, goal.beside, goal.other) if counterpart else None,
        bar=goal.bar if counterpart or not goal.beside else None,
    )


def durable_peers(work: Work, result: WorkResult) -> list[str]:
    """The others that promise what the work asks for, and keep something: those that warren is to be ahead of."""
    if work.promise is Promise.VOLATILE:
        return []
    return [name for name, ran in result.ran.items() if name not in (*OURS, *BARE) and ran.promise == work.promise]


def behind(result: WorkResult) -> Iterator[tuple[str, str, Spread]]:
    """Values, peers and ratios where a peer with the same promise is ahead of warren."""
    work = WORKS_BY_NAME[result.work]
    for value, unit in work.values.items():
        if unit == "MB":
            continue  # a goal says how much it may be
        for name in durable_peers(work, result):
            ratio = result.ratio("warren", value, name)
            if ratio is None:
                continue
            more_is_better = unit.endswith("/s")
            if ratio.median < 1 if more_is_better else ratio.median > 1:
                yield value, name, ratio


def spark_figures() -> list[Figure]:
    """W11: the kept figures of the pipeline on Spark, which :mod:`benchmarks.spark` measures."""
    path = RESULTS / "spark.json"
    kept = Results.from_json(json.loads(path.read_text(encoding="utf-8")))
    wanted = ("two cores", "export to JSON", "rebuild")
    return [figure for figure in kept.figures if any(part in figure.title for part in wanted)]
