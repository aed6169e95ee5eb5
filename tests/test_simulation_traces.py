"""Traces: measured rates, from CSV and Parquet; errors in a file name the row."""

from __future__ import annotations

import datetime
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.effort import times
from warren.simulation import PublisherSpec, QueueSpec, Scenario, ScenarioError, Trace, simulate
from warren.simulation.scenarios.traces import read_trace
from warren.simulation.toml_file import scenario_from_table

MOMENTS = [datetime.datetime(2026, 3, 2, 9, minute, tzinfo=datetime.UTC) for minute in range(3)]


def csv(folder: Path, text: str, name: str = "rates.csv") -> str:
    path = folder / name
    path.write_bytes(text.encode())
    return str(path)


def parquet(folder: Path, **columns: Any) -> str:
    path = folder / "rates.parquet"
    pd.DataFrame(columns).to_parquet(path)
    return str(path)


def refused(path: str, **how: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        read_trace(path, **how)
    said = str(caught.value)
    assert "\n" not in said
    return said.removeprefix(f"{path}: ")


# ── what is read ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_row_holds_to_the_next_and_the_last_as_long_as_the_others(tmp_path: Path) -> None:
    trace = read_trace(csv(tmp_path, "time,rate\n0,10\n5,30\n10,20\n"))
    assert (trace.at_s, trace.rates) == ((0.0, 5.0, 10.0, 15.0), (10.0, 30.0, 20.0))
    assert trace.curve(0.0, 20.0).messages[-1] == 300


def test_messages_in_all_become_rates(tmp_path: Path) -> None:
    assert read_trace(csv(tmp_path, "time,messages\n0,60\n60,120\n")).rates == (1.0, 2.0)


def test_columns_can_be_called_otherwise_and_others_do_not_count(tmp_path: Path) -> None:
    path = csv(tmp_path, "n, minute , orders ,rate\n0,0,10,x\n1,60,30,y\n")
    assert read_trace(path, time_column="minute", rate_column="orders").rates == (10.0, 30.0)


def test_moments_are_seconds_from_the_first(tmp_path: Path) -> None:
    path = csv(tmp_path, "time,rate\n2026-03-02T09:00:00Z,1\n2026-03-02T09:01:00+00:00,2\n2026-03-02 11:02+02:00,3\n")
    assert read_trace(path).at_s == (0.0, 60.0, 120.0, 180.0)


def test_parquet_is_known_by_its_first_bytes_and_has_numbers_or_moments(tmp_path: Path) -> None:
    for time in ([0, 60, 120], [0.0, 60.0, 120.0], MOMENTS, [each.isoformat() for each in MOMENTS]):
        path = Path(parquet(tmp_path, time=time, rate=[1, 2, 3])).rename(tmp_path / "rates.csv")
        trace = read_trace(str(path))
        assert (trace.at_s, trace.rates) == ((0.0, 60.0, 120.0, 180.0), (1.0, 2.0, 3.0))


def test_steps_of_uneven_length_are_no_gap_while_none_is_much_longer_than_usual(tmp_path: Path) -> None:
    assert len(read_trace(csv(tmp_path, "time,rate\n0,1\n10,1\n19,1\n33,1\n34,1\n44,1\n")).rates) == 6


def test_a_gap_is_held_or_empty_where_that_is_asked_for(tmp_path: Path) -> None:
    path = csv(tmp_path, "time,rate\n0,5\n10,6\n50,7\n60,8\n")
    held, empty = (read_trace(path, gaps=gaps) for gaps in ("hold", "zero"))
    assert (held.at_s, held.rates) == ((0.0, 10.0, 50.0, 60.0, 70.0), (5.0, 6.0, 7.0, 8.0))
    assert (empty.at_s, empty.rates) == ((0.0, 10.0, 20.0, 50.0, 60.0, 70.0), (5.0, 6.0, 0.0, 7.0, 8.0))


def test_messages_before_a_gap_came_in_the_usual_time(tmp_path: Path) -> None:
    path = csv(tmp_path, "time,messages\n0,50\n10,60\n50,70\n60,80\n")
    assert read_trace(path, gaps="zero").rates == (5.0, 6.0, 0.0, 7.0, 8.0)


def test_a_publisher_does_what_the_trace_says(tmp_path: Path) -> None:
    rate = {"trace": csv(tmp_path, "time,rate\n2,10\n4,50\n")}
    spec = PublisherSpec(queue="q", rate=rate, arrivals="constant", body=10)
    result = simulate(Scenario(length=10, queues=[QueueSpec(name="q")], publishers=[spec]))
    published = result.queue("q")["published"].tolist()
    assert sum(published) == 120
    assert published[0] == published[7] == 0


# ── what is not ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the trace is empty: it has no line"),
        ("\n\n", "the trace is empty: it has no line"),
        ("time,rate\n", "the trace is empty: it has no row"),
        ("time,rate\n0,5\n", "a trace needs at least two rows: one row does not say how long its rate lasts"),
        (
            "time,rate\n0,5\n10,6\n20,7\n60,8\n",
            "row 4: a gap: there is no rate from 30 s to 60 s (rows are 10 s apart)",
        ),
        ("time,rate\n0,5\n10,\n20,7\n", "row 2: rate is missing"),
        ("time,rate\n0,5\n,6\n20,7\n", "row 2: time is missing"),
        ("time,rate\n0,5\n10\n20,7\n", "row 2: rate is missing"),
        ("time,rate\n0,5\n10,fast\n", "row 2: rate must be a number, not 'fast'"),
        ("time,rate\n0,nan\n10,1\n", "row 1: rate must be a number, not 'nan'"),
        ("time,rate\n0,inf\n10,1\n", "row 1: rate must be a number, not 'inf'"),
        ("time,rate\n0,5\n10,-1\n", "row 2: the rate must be 0 … 1e9 messages a second, not -1.0"),
        ("time,messages\n0,5\n1,1e12\n", "row 2: the rate must be 0 … 1e9 messages a second, not 1000000000000.0"),
        ("time,rate\n10,5\n5,6\n", "row 2: its time (5 s) is not after the row before (10 s)"),
        ("time,rate\n10,5\n10,6\n", "row 2: its time (10 s) is not after the row before (10 s)"),
        ("time,rate\n-1,5\n10,6\n", "row 1: time must be 0 … 31622400 seconds from the start"),
        ("time,rate\n1772442000,5\n1772442060,6\n", "row 1: time must be 0 … 31622400 seconds from the start"),
        ("time,rate\n2026-03-02T09:00,5\nnoon,6\n", "row 2: time must be seconds from the start, or a moment such as"),
        ("time,rate\n03/02/2026,5\n03/03/2026,6\n", "row 1: time must be seconds from the start, or a moment such as"),
        ("time;rate\n0;5\n", "there is no column 'time'; its columns are 'time;rate'"),
        ("time,speed\n0,5\n1,6\n", "there is no column 'rate' or 'messages'; its columns are 'time', 'speed'"),
        ("time,rate\n0,5,7\n1,6\n", "not CSV: a row has more values than the first has names"),
        ("time,rate\n0,5\n1,6,7,8\n", "not CSV: "),
        ('time,rate\n"0,5\n', "not CSV: "),
        ("PAR1 is the name of my first queue", "not Parquet: "),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_row(tmp_path: Path, text: str, said: str) -> None:
    assert refused(csv(tmp_path, text)).startswith(said)


def test_what_is_wrong_in_a_parquet_is_said_with_its_row(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"time": [0, 1], "speed": [1, 2]}, "there is no column 'rate' or 'messages'; its columns are 'time', 'speed'"),
        ({"time": [0, 1], "rate": ["a", "b"]}, "row 1: rate must be a number, not 'a'"),
        ({"time": [0, 1], "rate": [[1], [2]]}, "row 1: rate must be a number, not array([1])"),
        ({"time": [0, 1], "rate": [True, False]}, "row 1: rate must be a number, not "),
        ({"time": [0, 1], "rate": [1.0, math.nan]}, "row 2: rate is missing"),
        ({"time": [0.0, math.inf], "rate": [1, 2]}, "row 2: time must be a number, not "),
        ({"time": [MOMENTS[0], None], "rate": [1, 2]}, "row 2: time is missing"),
        ({"time": [], "rate": []}, "the trace is empty: it has no row"),
    ]
    for columns, said in wrong:
        assert refused(parquet(tmp_path, **columns)).startswith(said), said


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    assert refused(str(tmp_path / "none.csv")) == "there is no such file"
    assert refused(str(tmp_path)) == "is not a file"
    assert refused("/dev/zero") == "is not a file"
    assert refused("rates\0.csv") == "path must be a text of characters that can be printed, not 'rates\\x00.csv'"
    path = tmp_path / "latin.csv"
    path.write_bytes(b"time,rate\n0,\xe4\n")
    assert refused(str(path)) == "not CSV: it is not UTF-8 text"


def test_a_parquet_that_was_cut_off_is_said(tmp_path: Path) -> None:
    path = Path(parquet(tmp_path, time=[0, 1], rate=[1, 2]))
    path.write_bytes(path.read_bytes()[:-10])
    assert refused(str(path)).startswith("not Parquet: ")


def test_a_parquet_with_a_time_zone_that_is_none_is_said(tmp_path: Path) -> None:
    """Found by changing bytes of a file."""
    path = tmp_path / "rates.parquet"
    time = pa.array([0, 1], pa.timestamp("us", tz="Nowhere/Else"))
    pq.write_table(pa.table({"time": time, "rate": [1, 2]}), path)
    assert refused(str(path)).startswith("not Parquet: ")


def test_moments_that_are_centuries_apart_are_said(tmp_path: Path) -> None:
    """Found by changing bytes of a file."""
    path = parquet(tmp_path, time=[pd.Timestamp.max, pd.Timestamp.min], rate=[1, 2])
    assert refused(path) == "time: its times are centuries apart"


def test_what_pandas_wrote_of_its_own_into_a_parquet_does_not_count(tmp_path: Path) -> None:
    """Found by changing bytes of a file: damaged, it broke the reading of columns that were whole."""
    path = tmp_path / "rates.parquet"
    table = pa.table({"time": [0, 1], "rate": [1, 2]}).replace_schema_metadata({"pandas": '{"columns": 5}'})
    pq.write_table(table, path)
    assert read_trace(str(path)).rates == (1.0, 2.0)


def test_a_scenario_says_the_publisher_the_file_and_the_row(tmp_path: Path) -> None:
    csv(tmp_path, "time,rate\n0,1\n10,2\n20,2\n60,3\n")
    table: dict[str, Any] = {"queues": [{"name": "q"}], "publishers": [{"queue": "q", "rate": {"trace": "rates.csv"}}]}
    path = f"{tmp_path}/rates.csv"
    with pytest.raises(ScenarioError, match=re.escape(f"s.toml: publishers[0].rate.trace: {path}: row 4: a gap")):
        scenario_from_table(table, tmp_path / "s.toml")
    table["publishers"][0]["rate"]["gaps"] = "hold"
    assert isinstance(scenario_from_table(table, tmp_path / "s.toml").publishers[0].rate, Trace)


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        ({"trace": 5}, "publishers[0].rate.trace must be a text"),
        ({"trace": ""}, "publishers[0].rate.trace must be a text"),
        ({"trace": "x", "gaps": "fill"}, "publishers[0].rate.trace: gaps must be one of 'error', 'hold', 'zero'"),
        ({"trace": "x", "gap": "hold"}, "publishers[0].rate.gap: there is no such key; the nearest is gaps"),
        ({"trace": "x", "queue": "q"}, "publishers[0].rate.queue: there is no such key beside trace"),
        (
            {"trace": "x", "daily": []},
            "publishers[0].rate must hold one of bursts, daily, trace, record, not trace and",
        ),
    ],
)
def test_what_stands_beside_a_trace_is_checked(rate: Any, said: str) -> None:
    with pytest.raises(ScenarioError, match=f"^{re.escape(said)}"):
        scenario_from_table({"queues": [{"name": "q"}], "publishers": [{"queue": "q", "rate": rate}]})


# ── whatever comes ───────────────────────────────────────────────────────────────────────────────────────────────────


def trace_or_error(path: str) -> None:
    said = f"{path}: nothing"
    try:
        trace = read_trace(path)
    except ScenarioError as error:
        said = str(error)
    else:
        assert np.isfinite(trace.curve(0.0, 100.0).messages).all()
    assert said.startswith(f"{path}: ")
    assert "\n" not in said


_CELLS = st.sampled_from(["0", "1", "2.5", "", "x", "1e400", "-1", "nan", "2026-01-01", "9" * 400, '"', " 7 "])


@settings(max_examples=times(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(_CELLS, max_size=3).map(",".join), max_size=6))
def test_any_rows_are_a_trace_or_one_clear_error(tmp_path: Path, rows: list[str]) -> None:
    trace_or_error(csv(tmp_path, "\n".join(["time,rate", *rows])))


@settings(max_examples=times(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.sampled_from([b"", b"time,rate\n0,1\n", b"PAR1"]))
def test_any_bytes_are_a_trace_or_one_clear_error(tmp_path: Path, data: bytes, before: bytes) -> None:
    path = tmp_path / "rates"
    path.write_bytes(before + data)
    trace_or_error(str(path))


@settings(max_examples=times(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2000), st.integers(0, 255))
def test_a_parquet_with_another_byte_is_a_trace_or_one_clear_error(tmp_path: Path, at: int, byte: int) -> None:
    path = Path(parquet(tmp_path, time=MOMENTS, rate=[1, 2, 3]))
    data = bytearray(path.read_bytes())
    data[at % len(data)] = byte
    path.write_bytes(data)
    trace_or_error(str(path))
