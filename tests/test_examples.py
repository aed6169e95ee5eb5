"""The examples do what they say."""

from __future__ import annotations

import hashlib
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import warren
from tests.support import rocketmq_golden as golden
from tests.support.pipeline_tools import rabbitmq_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> Any:
    """The ``main`` of an example."""
    return runpy.run_path(str(EXAMPLES / name))["main"]


@pytest.fixture
def dead_node(tmp_path: Path) -> Path:
    """The directory of a node that crashed with one message in the store and three in the index."""
    directory = tmp_path / "node"
    vhost = warren.engine.open_vhost(directory)
    for queue, bodies in ((b"orders", [b"1", b"22", b"333"]), (b"files", [b"x" * 5000])):
        vhost.queue(queue).publish_many(vhost.envelope(queue), vhost.msg_ids.many(len(bodies)), bodies)
    vhost.sync()
    vhost.abandon()
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


OUTPUTS = {
    "embedded_queue": [
        "safe: 100",
        "acked: 60",
        "after the crash: 40",
        "first: job 060 redelivered",
        "left: 0",
    ],
    "asyncio_worker": ["left: 0", "failed: 10", "first: job 0"],
    "worker": [
        "published 100 jobs, safe on the disk",
        "killed after 30 jobs",
        "did 70 jobs, 70 of them may have been begun before; 0 left",
    ],
    "fan_out": [
        "named: 1 1",
        "returned: no queue for routing key 'nobody' of exchange 'amq.direct'",
        "mail: welcome, order.paid",
        "audit: welcome, order.new, order.paid, user.login",
    ],
    "dead_letters": [
        "6 / 2 = 3",
        "6 / 0 failed, attempt 1",
        "6 / 0 failed, attempt 2",
        "6 / 0 failed, attempt 3",
        "for a human: 6 / 0 after 3 attempts",
    ],
    "durable_queue": [
        "in work: {'number': 3}",
        "waiting: 6",
        "after the stop: 7",
        "done: [3, 4, 5, 6, 7, 8, 9]",
        "left: 0",
    ],
    "topics": [
        "billed: order-0 order-1 order-2 order-4",
        "failed: order-3 attempt 0, order-3 attempt 1",
        "for a human: order-3 paid",
        "audit: 10 messages, the same ones",
        "order-1: order-1 paid, order-1 placed",
        "and again: 10",
    ],
}
"""What an example prints that only takes a directory."""


@pytest.mark.slow
@pytest.mark.parametrize("name", OUTPUTS)
def test_an_example_prints_what_it_promises(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example(f"{name}.py")(str(tmp_path / "data"))
    assert capsys.readouterr().out.splitlines() == OUTPUTS[name]


def test_salvage_reads_every_message_and_changes_nothing(dead_node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(dead_node)
    assert example("salvage.py")(str(dead_node)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "files 0: 5000 bytes redelivered",
        "orders 0: 1 bytes redelivered",
        "orders 1: 2 bytes redelivered",
        "orders 2: 3 bytes redelivered",
    ]
    assert contents(dead_node) == before


def test_salvage_reads_one_queue(dead_node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert example("salvage.py")(str(dead_node), "orders") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_salvage_counts_the_message_whose_body_is_gone(dead_node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [store] = dead_node.rglob("msg_store_persistent")
    (store / "0.rdq").write_bytes(b"")
    assert example("salvage.py")(str(dead_node)) == 1
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 3
    assert "missing body" in printed.err


@pytest.mark.slow
def test_a_backlog_far_above_the_limit_stays_on_disk_and_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example("memory_bounded.py")(str(tmp_path / "data"))
    first, in_ram, last = capsys.readouterr().out.splitlines()
    assert first == "50000 messages, 250 MB; allowed: 32 MiB"
    assert 0 < float(in_ram.split()[2]) < 100
    assert last == "all 50000 there, in order"


@pytest.mark.slow
def test_the_celery_application_does_its_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("celery_app.py")(str(tmp_path / "data"))
    assert capsys.readouterr().out.splitlines() == [
        "squares: [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]",
        "flaky: done after 2 retries",
    ]
    with warren.open(tmp_path / "data") as node:
        assert not any(len(queue) for queue in node.queues())


def test_a_dead_rocketmqs_messages_go_on_in_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = golden.unpacked("crash-recovery") / "store"
    before = contents(store)
    example("dead_rocketmq.py")(str(store), str(tmp_path / "data"))
    assert capsys.readouterr().out.splitlines() == [
        "TopicTest: 117 messages in 3 queues",
        "order-events: 98 messages in 3 queues",
        "%RETRY%groupA: 105 left behind",
    ]
    assert contents(store) == before
    records = [one for one in golden.manifest("crash-recovery")["recordsWritten"] if one.get("topic") == "TopicTest"]
    with warren.open(tmp_path / "data") as node:
        brought = list(node.topic("TopicTest").read("g"))
        assert {(one["queueId"], one["bodySha256"]) for one in records} == {
            (record.queue_id, hashlib.sha256(record.body).hexdigest()) for record in brought
        }


@pytest.mark.slow
@pytest.mark.spark
def test_spark_says_what_is_on_dead_brokers_disks(
    spark: SparkSession, dead_node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(dead_node)
    example("spark_dead_brokers.py")([str(dead_node), rabbitmq_node("03-clean-fanout-refcount")])
    assert capsys.readouterr().out.splitlines() == [
        "vhost /: 81 messages, 737653 bytes",
        "leftover: 5",
        "the deepest queue is fa: 32 messages",
        "1 with the routing key rk.12",
        "1 with the routing key rk.13",
        "1 with the routing key rk.14",
        "6 of them have a body that another one has, too",
    ]
    assert contents(dead_node) == before
    assert spark.range(1).count() == 1  # it was there before, and still is
