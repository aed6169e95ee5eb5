"""``warren spark republish``: into a live broker, in order, and on from where a killed run was."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.broker import Broker
from tests.support.cli_tools import warren
from tests.support.pipeline_tools import exported, lines, rabbitmq_node
from tests.support.waiting import wait_until
from warren.pipeline.jobs import rows_in
from warren.pipeline.jobs.republish import Order, Republished, publish
from warren.pipeline.jobs.republish_ledger import Ledger, Whose
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows(queue: str, count: int, node: str = "/disks/a") -> list[dict[str, Any]]:
    return [
        {
            "node": node,
            "vhost": "/",
            "queue": queue,
            "priority": None,
            "position": position,
            "expiry_us": None,
            "exchange": "",
            "routing_keys": [queue],
            "properties": json.dumps({"message_id": f"{node} {position}", "delivery_mode": 2}),
            "headers": None if position % 3 else json.dumps({"n": position}),
            "body": b"%d" % position,
        }
        for position in range(count)
    ]


def batches(of: list[dict[str, Any]], each: int = 500) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(of), each):
        yield pa.RecordBatch.from_pylist(of[at : at + each], schema=rows_in._ARROW)


def published(of: list[dict[str, Any]], url: str, ledger: Path, window: int = 100) -> list[Republished]:
    """What a task does."""
    order = Order(to=url, ledger=str(ledger), window=window)
    return list(publish(rows_in.rows_of(batches(of)), order, "the broker"))


WHOSE = Whose(node="/disks/a", vhost="/", queue="q", to="amqp://guest@127.0.0.1:1/%2F")


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_ledger_says_again_what_it_was_told(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path), WHOSE) as ledger:
        ledger.add([0, 1, 2])
        ledger.add([5, 4, 9])
        ledger.add([3])
    with Ledger.open(str(tmp_path), WHOSE) as again:
        assert [position for position in range(12) if again.has(position)] == [0, 1, 2, 3, 4, 5, 9]


def test_half_a_line_that_a_kill_left_is_cut_off(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path), WHOSE) as ledger:
        ledger.add(range(100))
    (file,) = tmp_path.iterdir()
    with file.open("ab") as torn:
        torn.write(b"100 19")  # of 100 to 199: not to be taken for 100 to 19, or to 1
    with Ledger.open(str(tmp_path), WHOSE) as ledger:
        assert not ledger.has(100)
        ledger.add([100])
    with Ledger.open(str(tmp_path), WHOSE) as ledger:
        assert [ledger.has(position) for position in (99, 100, 101)] == [True, True, False]


def test_a_ledger_of_another_broker_and_a_file_that_is_none_are_refused(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path), WHOSE):
        pass
    (file,) = tmp_path.iterdir()
    other = Whose(node=WHOSE.node, vhost=WHOSE.vhost, queue=WHOSE.queue, to="amqp://guest@other:1/%2F")
    with (
        pytest.raises(WarrenError, match="is about messages that went to amqp://guest@127"),
        Ledger.open(str(tmp_path), other),
    ):
        pass
    for text in (b"nonsense\n", b'{"warren": "shovel progress 1"}\n', WHOSE.head() + b"1 two\n"):
        file.write_bytes(text)
        with pytest.raises(WarrenError, match="ledger"), Ledger.open(str(tmp_path), WHOSE):
            pass


# ── a broker ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        broker.start()
        yield broker


@pytest.mark.broker
def test_queues_arrive_in_order_and_a_second_run_sends_nothing(running: Broker, tmp_path: Path) -> None:
    of = [*rows("first", 700), *rows("second", 1, node="/disks/a"), *rows("second", 300, node="/disks/b")]
    done = published(of, running.amqp_url, tmp_path)
    assert [(one.queue, one.node, one.messages, one.already) for one in done] == [
        ("first", "/disks/a", 700, 0),
        ("second", "/disks/a", 1, 0),
        ("second", "/disks/b", 300, 0),
    ]
    again = published(of, running.amqp_url, tmp_path)
    assert [(one.messages, one.already) for one in again] == [(0, 700), (0, 1), (0, 300)]
    first = running.drain("first")
    assert [int(delivery.body) for delivery in first] == list(range(700))
    assert [delivery.properties.message_id for delivery in first] == [f"/disks/a {n}" for n in range(700)]
    assert [delivery.properties.headers for delivery in first[:4]] == [{"n": 0}, None, None, {"n": 3}]
    assert [int(delivery.body) for delivery in running.drain("second")] == [0, *range(300)]


_TASK = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from tests.test_pipeline_republish import published, rows
published(rows("killed", {count}), {url!r}, Path({ledger!r}))
"""


@pytest.mark.broker
def test_a_task_that_was_killed_goes_on_where_its_ledger_ends(running: Broker, tmp_path: Path) -> None:
    count = 20_000
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    script = _TASK.format(paths=sys.path, count=count, url=running.amqp_url, ledger=str(ledger))
    task = subprocess.Popen([sys.executable, "-c", script])
    wait_until(lambda: any(file.stat().st_size > 400 for file in ledger.iterdir()), "no publishes", process=task)
    task.send_signal(signal.SIGKILL)
    task.wait()
    whose = Whose(node="/disks/a", vhost="/", queue="killed", to="the broker")
    with Ledger.open(str(ledger), whose) as written:
        confirmed = {position for position in range(count) if written.has(position)}
    assert 0 < len(confirmed) < count
    (done,) = published(rows("killed", count), running.amqp_url, ledger)
    assert done.already == len(confirmed)
    assert done.messages == count - len(confirmed)
    delivered = [int(delivery.body) for delivery in running.drain("killed")]
    assert list(dict.fromkeys(delivered)) == list(range(count)), "nothing lost, and in order"
    twice = {position for position, times in Counter(delivered).items() if times > 1}
    assert not twice & confirmed
    assert len(twice) <= 100, "no more than a window was on the way"


@pytest.mark.broker
def test_a_broker_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WarrenError, match=r"amqp://guest@127\.0\.0\.1:9/%2F: no connection"):
        published(rows("q", 1), "amqp://guest:guest@127.0.0.1:9/%2F", tmp_path)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.spark
def test_an_export_goes_into_a_broker_through_spark(spark: SparkSession, running: Broker, tmp_path: Path) -> None:
    node = rabbitmq_node("01-clean-small-mixed")
    out, ledger = tmp_path / "export", tmp_path / "ledger"
    exported(out, node, format="parquet")
    exported(tmp_path / "lines", node)
    arguments = ("spark", "republish", out, "--to", running.amqp_url, "--out", ledger, "--vhost", "/", "--json")
    result = warren(*arguments)
    assert result.exit_code == 0, result.output
    expected = [row for line in lines(tmp_path / "lines") if (row := json.loads(line))["vhost"] == "/"]
    assert expected
    said = json.loads(result.stdout)
    assert (said["messages"], said["already"]) == (len(expected), 0)
    for queue in dict.fromkeys(row["queue"] for row in expected):
        sent = [base64.b64decode(row["body"]) for row in expected if row["queue"] == queue]
        assert [delivery.body for delivery in running.drain(queue)] == sent
    assert json.loads(warren(*arguments).stdout)["already"] == len(expected)
