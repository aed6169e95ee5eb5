"""``warren spark backlog``: the tables on rows made by hand, and on the golden nodes beside what they hold."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from typer.testing import CliRunner

from tests.support.pipeline_tools import RABBITMQ, ROCKETMQ, Row, rabbitmq_node, read_rows, rocketmq_node
from warren.cli import app
from warren.pipeline.jobs import backlog_plots as plots
from warren.pipeline.jobs import backlog_tables as tables
from warren.pipeline.jobs.backlog import newest_ms, run
from warren.pipeline.jobs.backlog_page import page
from warren.pipeline.spark_schemas import MESSAGES, OFFSETS, RECORDS
from warren.storage.errors import WarrenError
from warren.tables.places import find_nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW_MS = 1_700_000_000_000


def frame(spark: SparkSession, schema: StructType, columns: tuple[str, ...], rows: list[Row]) -> DataFrame:
    """Some columns of a table."""
    wanted = StructType([schema[name] for name in columns])
    return spark.createDataFrame(pa.Table.from_pylist(rows, to_arrow_schema(wanted)))


def message(position: int, size: int, **more: Any) -> Row:
    properties = more.pop("properties", {})
    headers = more.pop("headers", None)
    row = {
        "node": "/one",
        "vhost": "/",
        "queue": "orders",
        "position": position,
        "size": size,
        "exchange": "x",
        "routing_keys": ["a", "b"],
        "properties": json.dumps(properties),
        "headers": None if headers is None else json.dumps(headers),
        "body_sha256": f"body-{size}",
    }
    return row | more


def record(queue_offset: int, ms: int, *, sys_flag: int = 0, topic: str = "t", body: bytes = b"body") -> Row:
    return {
        "node": "/two",
        "topic": topic,
        "queue_id": 1,
        "queue_offset": queue_offset,
        "size": 100 + len(body),
        "store_timestamp": ms,
        "sys_flag": sys_flag,
        "tags": "tag",
        "body": body,
    }


MESSAGE_ROWS = [
    message(0, 0, properties={"timestamp": NOW_MS // 1000 - 5}),
    message(1, 1, properties={"timestamp": NOW_MS - 65_000}),  # a publisher that writes milliseconds
    message(2, 7, headers={"x-death": [{"time": NOW_MS // 1000 - 100, "count": 1}, {"time": 1}]}),
    message(3, 8),
    message(4, 8, queue="copies", routing_keys=[]),
    message(5, 1024, properties={"timestamp": NOW_MS // 1000 + 60}),  # of a clock that was ahead
]
RECORD_ROWS = [
    record(0, NOW_MS - 120_000),
    record(1, NOW_MS - 60_000, body=b"other"),
    record(2, NOW_MS - 60_000, sys_flag=8),
    record(0, NOW_MS - 1_000, sys_flag=4),  # prepared
    record(0, NOW_MS - 1_000, sys_flag=12),  # rolled back
    record(0, NOW_MS - 60_000, topic="unread", body=b""),
]
OFFSET_ROWS = [
    {"node": "/two", "group": "fast", "topic": "t", "queue_id": 1, "offset": 3, "max_offset": 3, "lag": 0},
    {"node": "/two", "group": "slow", "topic": "t", "queue_id": 1, "offset": 1, "max_offset": 3, "lag": 2},
]


@pytest.fixture(scope="module")
def by_hand(spark: SparkSession) -> dict[str, list[Row]]:
    """All tables of the rows above."""
    messages = frame(spark, MESSAGES, tables.MESSAGE_COLUMNS, MESSAGE_ROWS)
    records = frame(spark, RECORDS, tables.RECORD_COLUMNS, RECORD_ROWS)
    offsets = frame(spark, OFFSETS, tuple(OFFSET_ROWS[0]), OFFSET_ROWS)
    now = spark.createDataFrame(pa.table({"node": ["/one", "/two"], "now_ms": [NOW_MS, NOW_MS]}))
    waiting = tables.waiting_messages(messages).unionByName(tables.waiting_records(records)).cache()
    assert tuple(waiting.columns) == tables.WAITING
    doubled = tables.duplicates(waiting)
    found = {
        "queues": tables.queues(waiting, now),
        "groups": tables.groups(offsets, waiting, now),
        "sizes": tables.sizes(waiting),
        "ages": tables.ages(waiting, now),
        "rates": tables.rates(waiting, offsets),
        "keys": tables.keys(waiting),
        "repeated": tables.repeated(doubled),
        "total": tables.repeated_total(doubled),
    }
    rows = {name: table.toArrow().to_pylist() for name, table in found.items()}
    waiting.unpersist()
    return rows


def picked(rows: list[Row], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.slow
@pytest.mark.spark
def test_a_queue_says_how_much_and_how_old(by_hand: dict[str, list[Row]]) -> None:
    assert picked(by_hand["queues"], "queue", "queue_id", "messages", "bytes", "timed", "oldest_age_s") == [
        ("orders", None, 5, 1040, 4, 100),
        ("t", 1, 3, 313, 3, 120),
        ("copies", None, 1, 8, 0, None),
        ("unread", 1, 1, 100, 1, 60),
    ]
    orders = by_hand["queues"][0]
    assert (orders["smallest_bytes"], orders["median_bytes"], orders["largest_bytes"]) == (0, 7, 1024)
    assert orders["oldest_ms"] == NOW_MS - 100_000
    assert orders["newest_ms"] == NOW_MS + 60_000


@pytest.mark.slow
@pytest.mark.spark
def test_a_group_says_what_it_has_not_consumed(by_hand: dict[str, list[Row]]) -> None:
    assert picked(by_hand["groups"], "group", "queue", "queue_id", "lag", "lag_bytes", "oldest_age_s") == [
        ("slow", "t", 1, 2, 209, 60),
        ("fast", "t", 1, 0, 0, None),
    ]


@pytest.mark.slow
@pytest.mark.spark
def test_sizes_are_counted_by_powers_of_two(by_hand: dict[str, list[Row]]) -> None:
    rows = [row for row in by_hand["sizes"] if row["node"] == "/one"]
    assert picked(rows, "from_bytes", "to_bytes", "messages", "bytes") == [
        (0, 1, 1, 0),
        (1, 2, 1, 1),
        (4, 8, 1, 7),
        (8, 16, 2, 16),
        (1024, 2048, 1, 1024),
    ]


@pytest.mark.slow
@pytest.mark.spark
def test_ages_are_counted_by_powers_of_ten_and_unknown_ones_apart(by_hand: dict[str, list[Row]]) -> None:
    rows = [row for row in by_hand["ages"] if row["node"] == "/one"]
    assert picked(rows, "from_s", "to_s", "messages", "bytes") == [
        (0, 1, 1, 1024),
        (1, 10, 1, 0),
        (10, 100, 1, 1),
        (100, 1000, 1, 7),
        (None, None, 2, 16),
    ]


@pytest.mark.slow
@pytest.mark.spark
def test_rates_say_what_came_and_what_every_group_has_consumed(by_hand: dict[str, list[Row]]) -> None:
    rows = [row for row in by_hand["rates"] if row["kind"] == "rocketmq"]
    minute = NOW_MS // 60_000 * 60_000
    assert picked(rows, "minute_ms", "queue", "messages", "bytes", "consumed") == [
        (minute - 120_000, "t", 1, 104, 1),
        (minute - 60_000, "t", 2, 209, 0),
        (minute - 60_000, "unread", 1, 100, None),
    ]
    rows = [row for row in by_hand["rates"] if row["kind"] == "rabbitmq"]
    assert sum(row["messages"] for row in rows) == 4
    assert {row["consumed"] for row in rows} == {None}


@pytest.mark.slow
@pytest.mark.spark
def test_routing_keys_and_bodies_that_are_there_twice(by_hand: dict[str, list[Row]]) -> None:
    assert picked(by_hand["keys"], "exchange", "routing_key", "messages", "queues") == [
        ("x", "a", 5, 1),
        ("t", "tag", 3, 1),
        ("x", None, 1, 1),
        ("unread", "tag", 1, 1),
    ]
    assert picked(by_hand["repeated"], "body_sha256", "messages", "bytes", "repeated_bytes", "queues", "queue") == [
        ("body-8", 2, 8, 8, 2, "copies"),
        (hashlib.sha256(b"body").hexdigest(), 2, 4, 4, 1, "t"),
    ]
    assert by_hand["total"] == [{"bodies": 2, "messages": 2, "bytes": 12}]


@pytest.mark.slow
@pytest.mark.spark
def test_the_backlog_of_golden_nodes_is_what_their_tables_hold(spark: SparkSession, tmp_path: Path) -> None:
    paths = [*(rabbitmq_node(one) for one in RABBITMQ[:4]), rocketmq_node(ROCKETMQ[0])]
    out = tmp_path / "out"
    said = CliRunner().invoke(
        app, ["spark", "backlog", *paths, "--out", str(out), "--format", "jsonl", "--now", str(NOW_MS), "--json"]
    )
    assert said.exit_code == 0, said.output
    summary = json.loads(said.stdout)
    queues = lines(out / "queues.jsonl")
    messages = read_rows("messages", *paths[:4], bodies="false")
    expected = Counter((row["node"], row["vhost"], row["queue"]) for row in messages)
    assert expected == {
        (row["node"], row["vhost"], row["queue"]): row["messages"] for row in queues if row["kind"] == "rabbitmq"
    }
    records = [row for row in read_rows("records", *paths[4:]) if row["sys_flag"] & 12 in (0, 8)]
    of_topics = Counter((row["node"], row["topic"], row["queue_id"]) for row in records)
    assert of_topics == {
        (row["node"], row["queue"], row["queue_id"]): row["messages"] for row in queues if row["kind"] == "rocketmq"
    }
    assert summary["messages"] == len(messages) + len(records)
    assert summary["bytes"] == sum(row["size"] for row in (*messages, *records))
    for name in ("sizes", "ages"):
        assert sum(row["messages"] for row in lines(out / f"{name}.jsonl")) == summary["messages"]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [
            "index.html",
            *(f"{name}.jsonl" for name in ("queues", "groups", "sizes", "ages", "rates", "keys", "repeated")),
        ]
    )
    html = (out / "index.html").read_text(encoding="utf-8")
    assert html.count("data:image/svg+xml;base64,") >= 5
    assert not re.search(r"(?:src|href)=\"(?!data:)", html)


def lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ── without Spark ────────────────────────────────────────────────────────────────────────────────────────────────────


def of_queue(number: int, **more: Any) -> Row:
    return {
        "node": f"/disks/broker-{number % 3}",
        "kind": "rabbitmq",
        "vhost": "/",
        "queue": f"queue-{number}",
        "queue_id": None,
        "messages": 1000 - number,
        "bytes": 10_000 - number,
        "median_bytes": 10,
        "largest_bytes": 20,
        "timed": 0,
        "oldest_ms": None,
        "oldest_age_s": None,
    } | more


NOTHING: dict[str, list[Row]] = {
    name: [] for name in ("queues", "groups", "sizes", "ages", "rates", "keys", "repeated")
}
SUMMARY: dict[str, Any] = {
    "nodes": 1,
    "queues": 0,
    "messages": 0,
    "bytes": 0,
    "timed": 0,
    "oldest_ms": None,
    "oldest_age_s": None,
    "lag": 0,
    "repeated": {"bodies": 0, "messages": 0, "bytes": 0},
}


def shown(figure: Any) -> list[str]:
    """The names beside the bars."""
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_sixty_queues_are_twenty_and_the_rest() -> None:
    figure = plots.deepest(NOTHING | {"queues": [of_queue(number) for number in range(60)]})
    assert figure is not None
    assert shown(figure) == [*(f"queue-{n} · broker-{n % 3}" for n in range(20)), "40 more"]
    (bars,) = (axes.containers[0] for axes in figure.axes[:1])
    assert bars[-1].get_width() == sum(1000 - number for number in range(20, 60))


def test_names_are_no_formulas_no_markup_and_never_too_long() -> None:
    name = "<script>alert(1)</script> $\\frac{1}{2}$ " + "x" * 300
    rows = NOTHING | {"queues": [of_queue(1, queue=name)]}
    figure = plots.deepest(rows)
    assert figure is not None
    assert max(len(label) for label in shown(figure)) <= 60
    written = page({table: pa.Table.from_pylist(found) for table, found in rows.items()}, SUMMARY)
    assert "<script>" not in written
    assert "&lt;script&gt;" in written


def test_nothing_that_waits_is_a_page_without_plots() -> None:
    written = page({table: pa.table({}) for table in NOTHING}, SUMMARY)
    assert "<img" not in written
    assert "not known" in written


@pytest.mark.parametrize("minutes", [1, 2, 60, 1440, 60 * 24 * 400])
def test_any_span_of_time_fits_into_a_plot(minutes: int) -> None:
    begin = NOW_MS // 60_000 * 60_000
    times = sorted({begin, begin + (minutes - 1) * 60_000})
    row = {"node": "n", "kind": "rabbitmq", "vhost": "/", "queue": None, "messages": 6, "bytes": 1, "consumed": None}
    figure = plots.came(NOTHING | {"rates": [row | {"minute_ms": ms} for ms in times]})
    assert figure is not None
    bars = figure.axes[0].containers[0]
    assert len(bars) <= 310
    width_minutes = bars[0].get_width() * 1440
    assert sum(bar.get_height() * width_minutes for bar in bars) == pytest.approx(6 * len(times))


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (plots.bytes_text(0), "0 B"),
        (plots.bytes_text(1023), "1,023 B"),
        (plots.bytes_text(1536), "1.5 KiB"),
        (plots.bytes_text(1000 << 20), "1,000 MiB"),
        (plots.count_text(999_999), "999,999"),
        (plots.count_text(1_250_000), "1.25 million"),
        (plots.duration_text(1), "1 second"),
        (plots.duration_text(119), "119 seconds"),
        (plots.duration_text(86400 * 3), "3 days"),
    ],
)
def test_numbers_are_said_in_few_digits(said: str, text: str) -> None:
    assert said == text


@pytest.mark.parametrize(
    ("out", "now", "said"),
    [("s3://bucket/out", None, "is a directory of this machine"), ("out", "yesterday", "--now is 'yesterday'")],
)
def test_what_cannot_be_asked_is_said_before_spark_starts(out: str, now: str | None, said: str) -> None:
    with pytest.raises(WarrenError, match=said):
        run(["/nowhere"], None, {}, out, now=now)


def test_the_newest_file_says_when_a_node_stopped(tmp_path: Path) -> None:
    (tmp_path / "msg_stores" / "vhosts").mkdir(parents=True)
    for name, seconds in (("a", 1000), ("msg_stores/b", 3000), ("msg_stores/vhosts/c", 2000)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    (node,) = find_nodes([str(tmp_path)])
    assert newest_ms(node) == 3_000_000
