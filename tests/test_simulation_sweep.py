"""Sweeps: the grid, the same rows wherever points run, and what becomes of points and processes that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import attrs
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import wait_until
from warren.simulation import (
    Constant,
    ConstantSize,
    ConsumerSpec,
    NodeSpec,
    PublisherSpec,
    QueueSpec,
    Scenario,
    ScenarioError,
    simulate,
)
from warren.simulation.grid import (
    ADDED_UP,
    MOST_POINTS,
    OF_NODE,
    WORST,
    Axis,
    Outcome,
    axes_of,
    points_of,
    run_point,
    shown,
    shown_values,
)
from warren.simulation.processes import on_processes
from warren.simulation.sweep import Sweep, run_grid, sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark_cluster import SparkCluster

PROJECT = Path(__file__).parent.parent
SMALL = Scenario(
    name="small",
    length=2,
    node=NodeSpec(memory="5MB", monitor_interval=0.25, report_interval=0.5),
    queues=[QueueSpec(name="orders"), QueueSpec(name="audit")],
    publishers=[PublisherSpec(queue="orders", rate=200, body="5kB"), PublisherSpec(queue="audit", rate=20)],
    consumers=[ConsumerSpec(queue="orders", rate=50)],
)
SMALL_TOML = """
name = "small"
length = 2
node = {memory = "5MB", monitor_interval = 0.25, report_interval = 0.5}
queues = [{name = "orders"}, {name = "audit"}]
publishers = [{queue = "orders", rate = 200, body = "5kB"}, {queue = "audit", rate = 20}]
consumers = [{queue = "orders", rate = 50}]
"""
"""The same as a file."""
LOGNORMAL = {"lognormal": {"median": 9, "sigma": 1.0}}
DAILY = {"daily": [["00:00", 1], ["12:00", 2]]}
VARY: dict[str, list[Any]] = {"node.paging_ratio": [0.1, 0.9], "publishers[0].body": ["1kB", "8kB"]}


@pytest.fixture(scope="module")
def swept() -> Sweep:
    """In this process."""
    return run_grid(SMALL, VARY, processes=1)


# ── the grid ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_points_are_in_the_order_of_the_values_and_the_last_axis_is_the_fastest() -> None:
    points = points_of(SMALL, axes_of(VARY))
    assert [point.number for point in points] == [0, 1, 2, 3]
    assert [tuple(point.values.values()) for point in points] == [
        (0.1, "1kB"),
        (0.1, "8kB"),
        (0.9, "1kB"),
        (0.9, "8kB"),
    ]
    assert [point.scenario.node.paging_ratio for point in points] == [0.1, 0.1, 0.9, 0.9]
    assert [point.scenario.publishers[0].body for point in points] == 2 * [ConstantSize(1000), ConstantSize(8000)]
    assert {point.scenario.publishers[1].body for point in points} == {SMALL.publishers[1].body}
    assert {point.scenario.seed for point in points} == {SMALL.seed}


def test_a_key_without_a_number_is_every_entrys() -> None:
    [point] = points_of(SMALL, axes_of({"publishers.rate": [7]}))
    assert [publisher.rate for publisher in point.scenario.publishers] == [Constant(7.0), Constant(7.0)]


def test_a_point_with_the_scenarios_own_values_is_the_scenario() -> None:
    [point] = points_of(SMALL, axes_of({"seed": [SMALL.seed]}))
    assert simulate(point.scenario).summary == simulate(SMALL).summary


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("node.paging_ratio=0.3,0.5", "node.paging_ratio", (0.3, 0.5)),
        ("publishers[0].rate=50", "publishers[0].rate", (50,)),
        ("node.memory= 1GB , 2GB", "node.memory", ("1GB", "2GB")),
        ("queues.lazy=true,false", "queues.lazy", (True, False)),
        ('queues.name="a,b",c', "queues.name", ("a,b", "c")),
        ("publishers.body={lognormal={median=9,sigma=1.0}},5", "publishers.body", (LOGNORMAL, 5)),
        ("publishers.rate={daily=[['00:00',1],['12:00',2]]}", "publishers.rate", (DAILY,)),
        ("start=09:30", "start", ("09:30",)),
    ],
)
def test_an_axis_of_the_command_line(text: str, key: str, values: tuple[Any, ...]) -> None:
    assert Axis.from_text(text) == Axis(key, values)
    assert [type(value) for value in Axis.from_text(text).values] == [type(value) for value in values]


PLAIN = st.one_of(
    st.booleans(),
    st.integers(-(10**15), 10**15),
    st.floats(allow_nan=False, allow_infinity=False),
    st.from_regex(r"[1-9][0-9]{0,3}(ms|min|kB|GB)", fullmatch=True),
)


@given(st.lists(PLAIN, min_size=1, max_size=6, unique_by=shown))
def test_values_are_read_as_they_are_shown(values: list[Any]) -> None:
    text = ",".join(shown(value) for value in values)
    assert Axis.from_text(f"node.memory={text}") == Axis("node.memory", tuple(values))


@given(st.text(max_size=60))
def test_any_text_is_an_axis_or_a_clear_error(text: str) -> None:
    said = "vary: "
    try:
        values = Axis.from_text(text).values
    except ScenarioError as error:
        values, said = (), str(error)
    assert values or said.startswith("vary: ")
    assert bool(values) == (said == "vary: ")


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ({}, "^vary: there is nothing to vary"),
        ({"seed": []}, "^vary: seed has no values$"),
        ({"seed": [1, 2, 1]}, "^vary: seed has the value 1 twice$"),
        ({"seed": "12"}, "^vary: seed wants a list of values, not '12'$"),
        ({"seed": 3}, "^vary: seed wants a list of values, not 3$"),
        ({"seed": range(200), "length": range(1, 200)}, f"^vary: 39800 points are more than {MOST_POINTS}$"),
        ([Axis("seed", (1,)), Axis("seed", (2,))], "^vary: seed occurs twice$"),
    ],
)
def test_a_grid_that_cannot_be_is_said(vary: Any, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        axes_of(vary)


@pytest.mark.parametrize(
    "text", ["seed", "seed=", "seed=1,", "seed=,1", "node.paging_ratio=nan", "node.watermark=inf,1"]
)
def test_an_axis_that_cannot_be_is_said(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"^vary: "):
        Axis.from_text(text)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("node.paging_ratio", -1.0, "^node.paging_ratio=-1.0: .*paging_ratio"),
        ("node.pging_ratio", 0.5, "^node.pging_ratio=0.5: .*paging_ratio"),
        ("publishers[7].rate", 1, r"^publishers\[7\].rate=1: .*2"),
        ("events.at", 1, "^events.at=1: .*events"),
        ("", 1, "^=1: "),
        ("publishers..rate", 1, r"^publishers..rate=1: "),
    ],
)
def test_a_point_that_cannot_be_is_said_with_its_values_before_anything_runs(key: str, value: Any, said: str) -> None:
    def run(*_: Any) -> list[Outcome]:
        pytest.fail("a point ran")

    with pytest.raises(ScenarioError, match=said):
        sweep(SMALL, {key: [value]}, run=run)


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_row_has_the_points_values_and_its_summarys_numbers(swept: Sweep) -> None:
    frame = swept.frame
    assert list(frame.columns) == ["point", *VARY, *OF_NODE, *ADDED_UP, *WORST, "error"]
    assert frame["point"].tolist() == [0, 1, 2, 3]
    assert frame["node.paging_ratio"].tolist() == [0.1, 0.1, 0.9, 0.9]
    assert frame["publishers[0].body"].tolist() == ["1kB", "8kB", "1kB", "8kB"]
    assert frame["error"].isna().all()
    for row, point in zip(frame.itertuples(), points_of(SMALL, axes_of(VARY)), strict=True):
        summary = simulate(point.scenario).summary
        queues = summary["queues"]
        assert row.published == queues["orders"]["published"] + queues["audit"]["published"]
        assert row.max_ready == max(queue["max_ready"] for queue in queues.values())
        assert row.latency_max_s == queues["orders"]["latency_max_s"] > queues["audit"]["latency_max_s"]
        assert row.max_used_bytes == summary["node"]["max_used_bytes"]


def test_larger_bodies_need_more_memory_and_a_higher_ratio_pages_later(swept: Sweep) -> None:
    used = swept.frame["max_used_bytes"]
    assert used[0] < used[1]
    assert used[2] < used[3]
    first = swept.frame["first_paging_s"]
    assert first[1] < first[3]
    assert first.isna()[2]


@pytest.mark.slow
def test_two_processes_give_the_same_bytes_as_none(swept: Sweep, tmp_path: Path) -> None:
    counts: list[int] = []
    run_grid(SMALL, VARY, processes=2, progress=counts.append).save(tmp_path / "two")
    swept.save(tmp_path / "none")
    assert counts == [1, 2, 3, 4]
    for name in ("sweep.parquet", "sweep.json"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "none" / name).read_bytes()


def test_what_is_saved_says_all_of_each_point(swept: Sweep, tmp_path: Path) -> None:
    import pandas as pd

    swept.save(tmp_path)
    said = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    assert said["name"] == "small"
    assert said["axes"] == [{"key": key, "values": values} for key, values in VARY.items()]
    assert [point["values"] for point in said["points"]] == [point.values for point in swept.points]
    assert said["points"][3]["summary"] == swept.outcomes[3].summary
    assert pd.read_parquet(tmp_path / "sweep.parquet").equals(swept.frame)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((1, 2), "int64"),
        ((1, 2.5), "float64"),
        ((True, False), "bool"),
        ((True, 2), "object"),
        (("1kB", 2), "object"),
        (({"daily": [["00:00", 1]]}, 2), "object"),
    ],
)
def test_a_column_of_values_has_the_kind_that_all_of_them_have(values: tuple[Any, ...], kind: str) -> None:
    axis = Axis("publishers.rate", values)
    points = [attrs.evolve(points_of(SMALL, [Axis("seed", (1,))])[0], values={axis.key: value}) for value in values]
    made = Sweep("x", (axis,), tuple(points), tuple(Outcome(0, None, "not run") for _ in points))
    assert made.frame[axis.key].dtype == kind
    expected = values if kind != "object" else [shown(value) for value in values]
    assert made.frame[axis.key].tolist() == list(expected)


# ── what fails ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_point_that_fails_while_it_runs_is_a_row_with_its_error(processes: int) -> None:
    points = list(points_of(SMALL, axes_of({"seed": [1, 2, 3]})))
    points[1] = attrs.evolve(points[1], scenario=None)  # type: ignore[arg-type]
    outcomes = on_processes(points, lambda _: None, processes=processes)
    made = Sweep("small", axes_of({"seed": [1, 2, 3]}), tuple(points), tuple(outcomes))
    assert made.frame["error"].notna().tolist() == [False, True, False]
    assert made.frame["published"].isna().tolist() == [False, True, False]
    assert made.frame["published"][0] > 0
    [said] = made.failed
    assert said.startswith("seed=2: scenario must be a Scenario, not None")


def test_the_scenarios_own_errors_are_the_points() -> None:
    [point] = points_of(SMALL, axes_of({"seed": [1]}))
    with patch("warren.simulation.grid.simulate", side_effect=ScenarioError("node: it cannot be")):
        outcome = run_point(point)
    assert outcome == Outcome(0, None, "node: it cannot be")


class _Deadly:
    """Ends the process that it is sent to."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os._exit, (9,)


@pytest.mark.slow
def test_a_process_that_dies_costs_its_own_point_alone() -> None:
    axes = axes_of({"seed": [1, 2, 3]})
    points = list(points_of(attrs.evolve(SMALL, length=0.5, step=0.5), axes))
    sound = on_processes(points, lambda _: None, processes=1)
    points[1] = attrs.evolve(points[1], scenario=_Deadly())  # type: ignore[arg-type]
    outcomes = on_processes(points, lambda _: None, processes=2)
    assert outcomes[1] == Outcome(1, None, "its process died; perhaps there was too little memory")
    assert [outcomes[number] for number in (0, 2)] == [sound[number] for number in (0, 2)]


@pytest.mark.slow
def test_an_interrupted_sweep_leaves_no_thread_behind() -> None:
    def interrupted(done: int) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    points = list(points_of(attrs.evolve(SMALL, length=0.5, step=0.5), axes_of({"seed": [1, 2, 3]})))
    with pytest.raises(KeyboardInterrupt):
        on_processes(points, interrupted, processes=2)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("processes", [0, -1, 100_000])
def test_a_number_of_processes_that_cannot_be(processes: int) -> None:
    with pytest.raises(ScenarioError, match=f"^processes must be 1 … 1024, not {processes}$"):
        sweep(SMALL, {"seed": [1, 2]}, processes=processes)


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────────

PROGRAM = """
from warren.simulation import PublisherSpec, QueueSpec, Scenario
from warren.simulation.sweep import sweep

print("begun", flush=True)
scenario = Scenario(length={length}, queues=[QueueSpec(name="q")], publishers=[PublisherSpec(queue="q", rate=50)])
print(sweep(scenario, {{"seed": [1, 2, 3]}}, processes=2)["published"].tolist())
"""


def program(path: Path, length: float) -> list[str]:
    path.write_text(textwrap.dedent(PROGRAM).format(length=length), encoding="utf-8")
    return [sys.executable, str(path)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT)}


@pytest.mark.slow
def test_a_program_needs_no_guard_around_its_sweep(tmp_path: Path) -> None:
    ran = subprocess.run(
        program(tmp_path / "program.py", 1), capture_output=True, text=True, check=False, env=environment()
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    begun, counts = ran.stdout.splitlines()
    assert begun == "begun"
    assert all(30 < int(count) < 80 for count in counts.strip("[]").split(","))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_nothing_goes_on_without_the_program_that_began_it(how: signal.Signals, tmp_path: Path) -> None:
    running = psutil.Popen(
        program(tmp_path / "program.py", 3_000_000),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    try:

        def workers() -> list[psutil.Process]:
            return [one for one in running.children() if "spawn_main" in " ".join(one.cmdline())]

        wait_until(lambda: len(workers()) == 2, "no two processes began")
        ours = running.children(recursive=True)
        running.send_signal(how)
        running.wait(60)
        _, alive = psutil.wait_procs(ours, timeout=60)
        assert not alive
    finally:
        if running.is_running():
            running.kill()


# ── Spark ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.spark
def test_spark_gives_the_same_bytes(spark: SparkSession, swept: Sweep, tmp_path: Path) -> None:
    from warren.pipeline.grid import on_spark

    assert spark.sparkContext.master == "local[2,4]"
    counts: list[int] = []
    run_grid(SMALL, VARY, run=on_spark, progress=counts.append).save(tmp_path / "spark")
    swept.save(tmp_path / "here")
    assert counts == [4]
    for name in ("sweep.parquet", "sweep.json"):
        assert (tmp_path / "spark" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.spark
def test_a_point_that_fails_on_spark_is_a_row_too(spark: SparkSession) -> None:
    from warren.pipeline.grid import on_spark

    points = list(points_of(SMALL, axes_of({"seed": [1, 2]})))
    points[0] = attrs.evolve(points[0], scenario=None)  # type: ignore[arg-type]
    failed, sound = on_spark(points, lambda _: None)
    assert failed.error is not None
    assert failed.error.startswith("scenario must be a Scenario, not None")
    assert sound == run_point(points[1])


@pytest.mark.slow
def test_what_executors_get_has_the_simulation_and_what_it_needs(tmp_path: Path) -> None:
    import zipfile

    import warren.data  # which leaves a __pycache__ among its files
    from warren.pipeline.shipping import pack

    assert warren.data.__file__ is not None
    packed = pack(str(tmp_path / "warren.zip"))
    with zipfile.ZipFile(packed.path) as opened:
        names = set(opened.namelist())
    assert {"simpy/__init__.py", "warren/simulation/sweep.py", "warren/pipeline/grid.py"} <= names
    assert "warren/data/scenario.toml" in names
    assert not any(name.startswith("matplotlib") for name in names)


def test_values_of_a_point_are_shown_as_the_command_has_them() -> None:
    assert shown_values({"queues.lazy": True, "node.memory": "1GB", "seed": 3}) == (
        "queues.lazy=true, node.memory=1GB, seed=3"
    )


# ── executors without warren ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.cluster
def test_executors_without_warren_and_simpy_give_the_same_bytes(
    cluster: SparkCluster, swept: Sweep, tmp_path: Path
) -> None:
    """``--spark`` hands both over. What is compiled their Python has."""
    from tests.support.spark_cluster import only, write_defaults

    bare = ["numpy", "pandas", "psutil", "pyarrow", "zlib-ng", "python-dateutil", "pytz", "six", "tzdata"]
    compiled = str(only(bare, tmp_path / "site"))
    write_defaults(tmp_path, {"spark.executorEnv.PYTHONPATH": compiled})
    (tmp_path / "small.toml").write_text(SMALL_TOML, encoding="utf-8")
    vary = [part for key, values in VARY.items() for part in ("--vary", f"{key}={','.join(map(shown, values))}")]
    command = [sys.executable, "-m", "warren.cli", "simulate", "sweep", str(tmp_path / "small.toml"), *vary]
    absent = cluster.bare_python("import simpy", compiled)
    assert "ModuleNotFoundError: No module named 'simpy'" in absent.stderr
    ran = cluster.run(
        [*command, "--spark", cluster.master, "--out", str(tmp_path / "out")],
        {"SPARK_CONF_DIR": str(tmp_path), "PYTHONPATH": str(PROJECT)},
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    swept.save(tmp_path / "here")
    for name in ("sweep.parquet", "sweep.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
