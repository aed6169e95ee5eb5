"""The simulation's benchmarks run at tiny size and say what they are to say; how fast they are is not asked here."""

from __future__ import annotations

import pytest

from benchmarks import simulation
from benchmarks.figures import Bar
from benchmarks.simulation import simulating
from benchmarks.simulation_cases import CASES


@pytest.mark.slow
def test_every_figure_is_there_with_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(name: str, *numbers: int) -> dict[str, float]:
        """The case in this process, made small."""
        two_seconds = (2 * numbers[1], *numbers[1:]) if len(numbers) > 1 else (2000,)
        smaller = {"points": (1, 1), "queues": (20, 2)}.get(name, two_seconds)
        return CASES[name](*smaller)

    monkeypatch.setattr(simulation, "case", here)
    ticks: list[None] = []
    figures = simulating(scale=0.0, repeats=1, tick=lambda: ticks.append(None))
    assert [(figure.unit, figure.bar) for figure in figures] == [
        ("messages/s", Bar("at least", 0.1)),
        ("MB", Bar("at most", 1000.0, of="value")),
        ("messages/s", Bar("at least", 0.1)),
        ("MB", Bar("at most", 1000.0, of="value")),
        ("messages/s", None),
        ("MB", None),
        ("MB", Bar("at most", 1000.0, of="value")),
        ("s", Bar("at most", 10.0, of="value")),
        ("s", Bar("at most", 10.0, of="value")),
        ("MB", None),
        ("scenarios/s", Bar("at least", 1.6)),
    ]
    assert len({figure.title for figure in figures}) == len(figures)
    assert all((figure.ratio is None) == (figure.counterpart is None) for figure in figures)
    assert ticks


def test_both_sides_are_of_as_many_messages() -> None:
    real, simulated = CASES["real"](2000), CASES["backlog"](2000, 1000)
    assert real["messages"] == 2000
    assert abs(simulated["messages"] - 2000) <= 1
    assert simulated["ready"] > 900
