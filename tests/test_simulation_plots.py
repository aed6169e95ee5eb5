"""Pictures and reports of a simulation: every one is drawn, says what it leaves out, and is the same each time."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import rcParams
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from warren.simulation import ConsumerSpec, Event, NodeSpec, PublisherSpec, QueueSpec, Result, Scenario, simulate
from warren.simulation.compare import compare, views_of
from warren.simulation.heatmap import Grid, draw_sweep
from warren.simulation.node.simulated_node import Mark
from warren.simulation.pictures.panels import STATES, draw_latency, draw_states, draw_target
from warren.simulation.pictures.ribbon import rows_of
from warren.simulation.pictures.style import Column, Panel, compose, compose_each, save_png, style
from warren.simulation.pictures.view import QueueView, spans, that_matter, view_of
from warren.simulation.pictures.words import TimeScale, bytes_text, count_text, time_text
from warren.simulation.plots import TITLES, draw, left_out_text, overview_of
from warren.simulation.report import table_section, write_report

PNG = b"\x89PNG\r\n\x1a\n"

OUTAGE = Scenario(
    name="outage",
    description="Consumers are away, & <come> back",
    length=30,
    node=NodeSpec(memory="30MB", monitor_interval=0.5, report_interval=1),
    queues=[QueueSpec(name="orders")],
    publishers=[PublisherSpec(queue="orders", rate=120, body="5kB")],
    consumers=[ConsumerSpec(queue="orders", rate=400)],
    events=[Event(what="consumers-down", at=5, until=20, queue="orders")],
)


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(OUTAGE)


@pytest.fixture(scope="module")
def folder(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures")
    draw(result, path)
    write_report(result, path)
    return path


def with_columns(queue: QueueView, **columns: Any) -> QueueView:
    return attrs.evolve(queue, columns={**queue.columns, **columns})


def drawn(draw_panel: Any) -> Any:
    """The axes of one panel in a figure of its own."""
    kept: list[Any] = []

    def keep(axes: Any) -> None:
        draw_panel(axes)
        kept.append(axes)

    with style():
        compose([Column("", TimeScale(30.0), [Panel("", keep)], 0, lambda _: None, lambda _: None)])
    return kept[0]


def labels(axes: Any) -> list[str]:
    return [str(label) for label in axes.get_legend_handles_labels()[1]]


# ── what is written ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_there_is_a_picture_of_each_side_and_one_of_all(folder: Path) -> None:
    pictures = {path.stem for path in folder.glob("*.png")}
    assert pictures == {"overview", *TITLES}
    assert all(path.read_bytes().startswith(PNG) for path in folder.glob("*.png"))


@pytest.mark.slow
def test_pictures_are_on_white_whatever_they_are_looked_at_on(folder: Path) -> None:
    pixels = imread(folder / "overview.png")
    assert pixels[0, 0].tolist() == [1.0, 1.0, 1.0, 1.0]
    assert (pixels[..., 3] == 1.0).all()


@pytest.mark.slow
def test_the_same_result_gives_the_same_bytes_and_so_does_one_that_was_saved(
    result: Result, folder: Path, tmp_path: Path
) -> None:
    result.save(tmp_path / "saved")
    again = Result.load(tmp_path / "saved")
    for path in [*draw(again, tmp_path / "again"), write_report(again, tmp_path / "again")]:
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


def test_pictures_leave_the_settings_of_matplotlib_alone(tmp_path: Path) -> None:
    before = dict(rcParams)
    draw_sweep(points(a=[1, 2]), ["a"], tmp_path)
    assert dict(rcParams) == before


class _Page(HTMLParser):
    """What of a page asks for something, its ids, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.ids: list[str] = []
        self.said = ""
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href"} and not (value or "").startswith("#"):
                self.asked.append(f"{tag} {name}={value}")
            if name == "id":
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        self.said += data


def test_a_report_needs_nothing_else(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = _Page(text)
    assert page.asked == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "@import" not in text
    assert not re.findall(r"url\((?!#)", text)


def test_the_pictures_of_a_report_do_not_share_ids_and_find_their_own(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = _Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', text)) <= set(page.ids)


def test_a_report_says_the_numbers_and_the_moments_and_escapes_its_text(result: Result, folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = _Page(text)
    assert "Consumers are away, & <come> back" in page.said
    assert "come" not in page.tags
    assert bytes_text(result.summary["node"]["max_used_bytes"]) in page.said
    assert "paging begins" in page.said
    assert "consumers-down: orders begins" in page.said
    assert page.tags.count("svg") == 2 * len(TITLES)


def test_a_reports_pictures_have_no_colour_that_dark_would_hide(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    pictures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    fills = set(re.findall(r"fill: (#[0-9a-f]{6})", pictures))
    assert "#1f2a30" not in pictures
    assert "#000000" not in fills
    assert "var(--ink)" in pictures


@pytest.mark.slow
def test_names_of_any_kind_are_drawn_as_they_are(result: Result, tmp_path: Path) -> None:
    names = ["$x^2$ & <b> 空のキュー", "\udcff\x1b[31m %s {0}" + "a" * 300]
    queues = dict.fromkeys(names, result.summary["queues"]["orders"])
    rows = result.timeline.to_dict("list")
    columns = {column: [value for value in values for _ in names] for column, values in rows.items()}
    columns["queue"] = names * len(result.timeline)
    other = attrs.evolve(
        result,
        summary={**result.summary, "name": names[1], "description": names[0], "queues": queues},
        timeline_columns=columns,
        marks=tuple(Mark(n, "event", name) for n, name in enumerate(names)),
    )
    with style():
        save_png(overview_of(view_of(other)).figure(title=names[0]), tmp_path / "overview.png")
    page = _Page(write_report(other, tmp_path).read_text(encoding="utf-8"))
    assert "b" not in page.tags
    assert "\x1b" not in page.said
    assert names[0] in page.said


# ── many queues, and nothing at all ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_of_many_queues_the_few_that_matter_are_drawn_and_the_rest_is_said(tmp_path: Path) -> None:
    many = simulate(
        Scenario(
            length=3,
            queues=[QueueSpec(name="hot"), QueueSpec(name="cold", count=12), QueueSpec(name="group", count=150)],
            publishers=[PublisherSpec(queue="hot", rate=200), PublisherSpec(queue="cold", rate=2)],
        )
    )
    view = view_of(many)
    assert [queue.name for queue in view.queues] == ["hot"]
    assert view.left_out == 13
    assert left_out_text(view).startswith("13 more queues are not drawn")
    assert "13 more queues are not drawn" in write_report(many, tmp_path).read_text(encoding="utf-8")


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1, max_size=30))
def test_the_fullest_queue_is_drawn_first_and_there_are_never_too_many(held: list[tuple[int, int]]) -> None:
    queues = {
        f"q{n}": {"max_ready": ready, "published": published, "delivered": 0}
        for n, (ready, published) in enumerate(held)
    }
    names = that_matter(queues)
    assert 1 <= len(names) <= 4
    assert queues[names[0]]["max_ready"] == max(ready for ready, _ in held)


@pytest.mark.slow
def test_a_node_with_nothing_to_do_is_drawn_too(tmp_path: Path) -> None:
    idle = simulate(Scenario(length=2, queues=[QueueSpec(name="idle")]))
    assert "never" in write_report(idle, tmp_path).read_text(encoding="utf-8")


@pytest.mark.slow
def test_one_step_is_drawn_too(tmp_path: Path) -> None:
    short = simulate(Scenario(length=1, step=1, queues=[QueueSpec(name="q")], publishers=[PublisherSpec(queue="q")]))
    with style():
        assert save_png(overview_of(view_of(short)).figure(), tmp_path / "one.png").exists()


def test_a_table_that_is_wider_than_a_phone_says_that_it_scrolls() -> None:
    """It was cut at the edge of the screen, without any sign that there was more."""
    narrow, wide = (table_section("Queues", ["name"] * count, [["x"] * count]) for count in (5, 9))
    assert "class=hint" not in narrow
    assert "<p class=hint>9 columns: scroll sideways" in wide
    for table in (narrow, wide):
        assert "tabindex=0" in table  # the arrow keys scroll it too


# ── what a panel shows ───────────────────────────────────────────────────────────────────────────────────────────────


def with_target(result: Result, target: Any) -> Result:
    """The same with another target at each step: ``target(number of the step)``."""
    columns = dict(result.timeline_columns)
    columns["target_ram_count"] = np.asarray([target(n) for n in range(len(columns["time_s"]))], float)
    return attrs.evolve(result, timeline_columns=columns)


def test_a_target_without_a_limit_is_a_strip_and_does_not_stretch_the_axis(result: Result) -> None:
    queue = view_of(with_target(result, lambda n: math.inf)).queues[0]
    assert (queue.rates["no_limit"] == 1).all()
    unlimited = queue
    axes = drawn(lambda axes: draw_target(axes, unlimited))
    assert "no limit" in labels(axes)
    assert "target" not in labels(axes)
    assert axes.get_ylim()[1] < 2 * queue.columns["ram_msg_count"].max()


def test_a_limit_that_comes_and_goes_within_a_column_shows_as_a_share_of_the_time(result: Result) -> None:
    """It was drawn as a line, as if there had been no limit for all that time."""
    queue = view_of(with_target(result, lambda n: math.inf if n % 4 == 0 else 100.0)).queues[0]
    time_s = queue.columns["time_s"]
    steps = np.diff(np.concatenate(([0.0], time_s)))
    without = steps[np.isinf(queue.columns["target_ram_count"])].sum() / steps.sum()
    shares, edges = queue.rates["no_limit"], queue.rates["time_s"]
    assert (shares * np.diff(edges)).sum() / (edges[-1] - edges[0]) == pytest.approx(without)
    axes = drawn(lambda axes: draw_target(axes, queue))
    assert {"no limit", "target"} <= set(labels(axes))
    strip = next(patch for patch in axes.patches if patch.get_label() == "no limit")
    values, _, baseline = strip.get_data()
    assert ((values - baseline) / (1 - baseline)).tolist() == pytest.approx(shares.tolist())


def test_a_queue_that_always_had_a_limit_has_no_strip(result: Result) -> None:
    queue = view_of(with_target(result, lambda n: 100.0)).queues[0]
    assert "no limit" not in labels(drawn(lambda axes: draw_target(axes, queue)))


def test_a_target_far_above_what_is_there_does_not_hide_it(result: Result) -> None:
    queue = view_of(result).queues[0]
    high = with_columns(queue, target_ram_count=np.full(len(queue.columns["time_s"]), 1e12))
    axes = drawn(lambda axes: draw_target(axes, high))
    assert axes.get_ylim()[1] < 3 * (queue.columns["ram_msg_count"] + queue.columns["ram_ack_count"]).max()


def test_latencies_that_span_decades_are_on_a_logarithmic_scale_and_others_are_not(result: Result) -> None:
    queue = view_of(result).queues[0]
    flat = with_columns(
        queue,
        latency_p50_s=np.full_like(queue.columns["latency_p50_s"], 0.01),
        latency_p99_s=np.full_like(queue.columns["latency_p99_s"], 0.02),
    )
    assert drawn(lambda axes: draw_latency(axes, queue)).get_yscale() == "log"
    assert drawn(lambda axes: draw_latency(axes, flat)).get_yscale() == "linear"


def test_steps_in_which_nothing_was_delivered_are_gaps_and_a_lone_one_is_a_dot(result: Result) -> None:
    queue = view_of(result).queues[0]
    lone = np.full_like(queue.columns["latency_p50_s"], np.nan)
    lone[7] = 0.5
    axes = drawn(lambda axes: draw_latency(axes, with_columns(queue, latency_p50_s=lone, latency_p99_s=lone)))
    dots = [line for line in axes.get_lines() if line.get_marker() == "."]
    assert [list(line.get_ydata()) for line in dots] == [[0.5], [0.5]]
    nothing = np.full_like(lone, np.nan)
    axes = drawn(lambda axes: draw_latency(axes, with_columns(queue, latency_p50_s=nothing, latency_p99_s=nothing)))
    assert [text.get_text() for text in axes.texts] == ["nothing was delivered"]


def test_the_states_are_stacked_from_the_head_to_the_tail(result: Result) -> None:
    queue = view_of(result).queues[0]
    axes = drawn(lambda axes: draw_states(axes, queue))
    assert labels(axes)[:5] == ["Q4", "Q3", "delta", "Q2", "Q1"]
    assert axes.get_ylim()[1] >= queue.columns["len"].max()


def test_a_long_timeline_is_thinned_and_keeps_its_peaks(result: Result) -> None:
    whole, thin = view_of(result), view_of(result, most_points=10)
    assert len(thin.node["time_s"]) == 10
    assert thin.node["used_bytes"].max() == whole.node["used_bytes"].max()
    assert thin.queues[0].columns["len"].max() == whole.queues[0].columns["len"].max()
    p99, thinned_p99 = (view.queues[0].columns["latency_p99_s"] for view in (whole, thin))
    assert np.nanmax(thinned_p99) == np.nanmax(p99)
    states: Any = thin.queues[0].columns
    assert (sum(states[name] for name in ("q1", "q2", "delta", "q3", "q4")) == states["len"]).all()


def test_rates_add_up_to_what_was_counted(result: Result) -> None:
    rates = view_of(result).queues[0].rates
    published = (rates["published"] * np.diff(rates["time_s"])).sum()
    assert published == pytest.approx(result.summary["queues"]["orders"]["published"])


# ── moments ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_queues_that_page_at_once_are_one_span_of_the_node() -> None:
    marks = [
        Mark(1.0, "paging-starts", "a", "a"),
        Mark(2.0, "paging-starts", "b", "b"),
        Mark(3.0, "paging-ends", "a", "a"),
        Mark(5.0, "paging-ends", "b", "b"),
        Mark(8.0, "paging-starts", "a", "a"),
    ]
    found = spans(marks, "paging-starts", 10.0)
    assert [(span.start_s, span.end_s, span.ended) for span in found] == [(1.0, 5.0, True), (8.0, 10.0, False)]


def test_an_alarm_that_flaps_is_one_bar_that_says_how_often() -> None:
    marks = []
    for n in range(20):
        marks += [Mark(50 + n * 0.1, "memory-alarm", ""), Mark(50.05 + n * 0.1, "memory-alarm-ends", "")]
    (span,) = spans(marks, "memory-alarm", 100.0)
    assert span.times == 20
    assert (span.start_s, round(span.end_s, 6)) == (50, 51.95)


def test_events_that_overlap_have_rows_of_their_own(result: Result) -> None:
    marks = [
        Mark(1.0, "event", "a"),
        Mark(2.0, "event", "purge"),
        Mark(3.0, "event", "b"),
        Mark(4.0, "event-ends", "a"),
    ]
    view = attrs.evolve(view_of(result), events=spans(marks, "event", 10.0))
    assert [(span.text, span.end_s) for span in view.events] == [("a", 4.0), ("purge", 2.0), ("b", 10.0)]
    rows = [[span.text for span in row.spans] for row in rows_of(view, ()) if row.name in {"events", ""}]
    assert rows == [["a"], ["purge", "b"]]


def test_an_outage_of_a_consumers_own_is_a_moment_too() -> None:
    outage = {"at": 1, "lasting": 1}
    result = simulate(
        Scenario(
            length=3,
            queues=[QueueSpec(name="q", count=3)],
            consumers=[ConsumerSpec(queue="q", count=2, outages=[outage])],
        )
    )
    assert [(mark.at_s, mark.kind, mark.text) for mark in result.marks] == [
        (1.0, "event", "consumers-down: q"),
        (2.0, "event-ends", "consumers-down: q"),
    ]


@given(st.floats(0.01, 366 * 86400.0), st.integers(3, 12), st.sampled_from([0.0, 21_600.0, 80_000.0]))
def test_ticks_of_time_are_few_rise_and_stay_inside(length_s: float, most: int, start_s: float) -> None:
    scale = TimeScale(length_s, start_s)
    ticks = scale.ticks(most)
    assert len(ticks) <= most + 1
    assert ticks == sorted(set(ticks))
    assert all(-1e-9 <= tick <= length_s * (1 + 1e-9) for tick in ticks)
    assert len({scale.text(tick) for tick in ticks}) == len(ticks) or scale.is_clock


def test_a_scenario_that_begins_at_a_time_of_day_has_times_of_day() -> None:
    scale = TimeScale(3600.0, 9.75 * 3600)
    assert [scale.text(tick) for tick in scale.ticks(6)] == ["09:50", "10:00", "10:10", "10:20", "10:30", "10:40"]
    assert scale.span_text(900.0, 1804.0) == "from 10:00:00 to 10:15:04"
    assert TimeScale(7200.0, 9.75 * 3600).moment_text(900.0) == "10:00"


def test_no_time_of_day_is_cut() -> None:
    scale = TimeScale(300.0, 14 * 3600 + 11 * 60)
    assert [scale.text(at) for at in (0.0, 50.0, 60.0)] == ["14:11", "14:11:50", "14:12"]
    assert TimeScale(86400.0, 14 * 3600.0).moment_text(11 * 60 + 50.0) == "14:11:50"
    assert TimeScale(7200.0).span_text(900.0, 1804.0) == "from 15:00 to 30:04 min"


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (count_text(0), "0"), (count_text(9_999), "9,999"), (count_text(12_345), "12.3k"), (count_text(2e6), "2M"),
        (bytes_text(999), "999 B"), (bytes_text(1_500), "1.5 kB"), (bytes_text(2_000_000_000), "2 GB"),
        (time_text(0), "0 s"), (time_text(0.0032), "3.2 ms"), (time_text(45), "45 s"), (time_text(600), "10 min"),
        (time_text(7_200), "2 h"), (time_text(3 * 86_400), "3 d"), (time_text(math.nan), "–"),
        (time_text(5e-6), "5 µs"),
    ],
)  # fmt: skip
def test_numbers_in_words(said: str, wanted: str) -> None:
    assert said == wanted


_EYES = {
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
"""What is left of linear red, green and blue (Machado, Oliveira and Fernandes 2009, severity 1)."""


@pytest.mark.parametrize("eye", _EYES)
def test_colour_blind_eyes_tell_each_state_from_its_neighbours(eye: str) -> None:
    def seen(colour: str) -> Any:
        """In CIE Lab, where a distance of 2.3 can just be seen."""
        linear = ((np.array(to_rgb(colour)) + 0.055) / 1.055) ** 2.4
        to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        x, y, z = np.cbrt(to_xyz @ np.clip(np.array(_EYES[eye]) @ linear, 0, 1) / [0.9505, 1.0, 1.089])
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    colours = [seen(colour) for _, _, colour in STATES]
    assert min(np.linalg.norm(one - other) for one, other in pairwise(colours)) > 20


# ── two results ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_two_results_stand_side_by_side(result: Result, tmp_path: Path) -> None:
    other = simulate(attrs.evolve(OUTAGE, name="more memory", length=20, node=NodeSpec(memory="100MB"), events=[]))
    comparison = compare(result, other, tmp_path)
    assert [path.name for path in comparison.paths] == ["compare.png", "compare.html"]
    assert comparison.names == ("outage", "more memory")
    table = comparison.table.set_index("what")
    assert table.loc["most memory used"].tolist() == [
        result.summary["node"]["max_used_bytes"],
        other.summary["node"]["max_used_bytes"],
    ]
    assert math.isnan(table.loc["queues page from", "b"])
    page = _Page(comparison.paths[1].read_text(encoding="utf-8"))
    assert page.asked == []
    assert len(page.ids) == len(set(page.ids))


def test_two_results_of_one_scenario_are_told_apart(result: Result) -> None:
    comparison = compare(result, result)
    assert comparison.names == ("outage (A)", "outage (B)")
    assert comparison.paths == ()
    assert all(row.texts[2] == "" for row in comparison.rows)


def test_of_two_results_without_a_queue_in_common_the_fullest_are_compared_over_one_time(result: Result) -> None:
    other = simulate(Scenario(name="other", length=2, queues=[QueueSpec(name="letters")]))
    one, two = views_of(result, other, ("one", "two"))
    assert [queue.name for queue in one.queues] == ["orders"]
    assert [queue.name for queue in two.queues] == ["letters"]
    assert one.scale == two.scale == TimeScale(30.0)


def test_what_stands_side_by_side_has_one_scale() -> None:
    kept: list[Any] = []

    def column(top: float) -> Column:
        def draw_panel(axes: Any) -> None:
            axes.set_ylim(0, top)
            kept.append(axes)

        return Column("", TimeScale(10.0), [Panel("", draw_panel)], 0, lambda _: None, lambda _: None)

    with style():
        compose([column(5.0), column(50.0)])
        compose_each([column(5.0), column(50.0)])
    assert [axes.get_ylim() for axes in kept] == [(0, 50)] * 4


# ── sweeps ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def points(**keys: list[Any]) -> pd.DataFrame:
    frame = pd.MultiIndex.from_product(keys.values(), names=keys).to_frame(index=False)
    count = len(frame)
    return frame.assign(
        max_ratio=np.linspace(0.2, 1.1, count), first_paging_s=[math.nan, *np.linspace(5, 50, count - 1)], alarm_s=0.0
    )


@pytest.mark.slow
def test_a_sweep_of_two_keys_is_maps_and_of_one_is_lines(tmp_path: Path) -> None:
    grids: list[dict[str, list[Any]]] = [{"a": [1, 2, 3], "b": [0.1, 0.2]}, {"a": [1, 100]}, {"a": ["1kB", "2kB"]}]
    for number, keys in enumerate(grids):
        (path,) = draw_sweep(points(**keys), list(keys), tmp_path / str(number))
        assert path.read_bytes().startswith(PNG)
        (again,) = draw_sweep(points(**keys), list(keys), tmp_path / f"{number} again")
        assert path.read_bytes() == again.read_bytes()


def test_a_sweep_of_three_keys_has_a_row_for_each_of_the_others_combinations(tmp_path: Path) -> None:
    frame = points(a=[1, 2], lazy=[False, True], c=[10, 20, 30])
    grid = Grid.of(frame, ["a", "lazy", "c"])
    assert grid.down_labels == ["1 · false", "1 · true", "2 · false", "2 · true"]
    assert grid.right_labels == ["10", "20", "30"]
    assert grid.cells("max_ratio").ravel().tolist() == frame["max_ratio"].tolist()
    assert draw_sweep(frame, ["a", "lazy", "c"], tmp_path)


def test_a_sweep_with_points_that_failed_is_drawn_and_so_is_one_that_is_the_same_everywhere(tmp_path: Path) -> None:
    frame = points(a=[1, 2], b=[1, 2])
    frame["error"] = [None, "bad", None, None]
    frame.loc[1, ["max_ratio", "first_paging_s", "alarm_s"]] = math.nan
    assert draw_sweep(frame, ["a", "b"], tmp_path / "failed")
    assert draw_sweep(frame.iloc[:2], ["b"], tmp_path / "line")
    assert draw_sweep(points(a=[1, 2], b=[1]).assign(max_ratio=0.5, first_paging_s=math.nan), ["a", "b"], tmp_path)


def test_a_sweep_without_points_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one point"):
        draw_sweep(points(a=[1]).iloc[:0], ["a"], tmp_path)
