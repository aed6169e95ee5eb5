"""The benchmarks run, at a size that takes seconds, and say every figure. How fast anything is, no test asserts."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from benchmarks.__main__ import measure
from benchmarks.comparison import CONTESTANTS, markdown, write_into
from benchmarks.figures import Bar, Figure, Results, Spread
from benchmarks.plot import draw
from benchmarks.report import BEGIN, END, table
from benchmarks.report import write_into as write_results
from benchmarks.scenarios import PLANS


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    console = Console(file=io.StringIO())
    with Progress(console=console) as progress:
        return measure(str(tmp_path_factory.mktemp("bench")), messages=20_000, scale=0.01, repeats=1, progress=progress)


def test_every_figure_that_was_asked_for_is_measured(results: Results) -> None:
    barred = [(figure.group, figure.bar) for figure in results.figures if figure.bar is not None]
    assert barred == [
        ("128 B", Bar("at least", 0.5)),
        ("128 B", Bar("at least", 0.4)),
        ("128 B, paged out", Bar("at least", 0.5)),
        ("128 B, paged out", Bar("at least", 0.4)),
        ("backlog", Bar("at most", 64.0, of="value")),
        ("recovery", Bar("at most", 3.0)),
        ("recovery", Bar("at most", 15.0)),
        ("export", Bar("at least", 50.0, of="value")),
    ]
    assert {figure.group for figure in results.figures} >= {plan.group for plan in PLANS}
    assert all(figure.ours.low <= figure.ours.median <= figure.ours.high for figure in results.figures)


def test_the_backlog_was_paged_out_and_is_gone_at_the_end(results: Results) -> None:
    memory = results.memory
    assert max(memory.delta) > 0
    assert [memory.q1[-1], memory.q2[-1], memory.delta[-1], memory.q3[-1], memory.q4[-1]] == [0] * 5


def test_the_results_can_be_shown_kept_and_drawn(results: Results, tmp_path: Path) -> None:
    output = io.StringIO()
    Console(file=output, width=160).print(table(results))
    assert "reached" in output.getvalue()
    assert json.loads(json.dumps(results.to_json()))["figures"][0]["ours"]["median"] > 0
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}\nafter\n")
    write_results(page, results)
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "old" not in written
    assert all(figure.title in written for figure in results.figures)
    draw(results, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_bar_is_reached_by_the_median_of_the_pairs_or_by_the_worst_value() -> None:
    ratio = Figure(
        group="g", title="t", unit="s", ours=Spread(9, 1, 20), ratio=Spread(2.9, 1, 9), bar=Bar("at most", 3.0)
    )
    assert ratio.reached
    value = Figure(group="g", title="t", unit="MB", ours=Spread(60, 50, 70), bar=Bar("at most", 64.0, of="value"))
    assert value.reached is False


def test_the_comparison_is_written_between_its_markers(tmp_path: Path) -> None:
    figures = {"publish_per_s": 1e6, "take_per_s": 5e5, "rss_growth_bytes": 1e6, "disk_bytes_per_message": 300.0}
    readme = tmp_path / "README.md"
    readme.write_text("above\n<!-- comparison -->\nold\n<!-- /comparison -->\nbelow\n")
    write_into(readme, markdown(dict.fromkeys(CONTESTANTS, figures | {"messages": 1e6})))
    written = readme.read_text()
    assert "old" not in written
    assert "| warren | 1,000,000 |" in written
    assert written.endswith("<!-- /comparison -->\nbelow\n")
