"""A topic that a live node is writing, streamed into Parquet and killed a few times: each record is there exactly once.

One of the kills takes all of it: the driver, its Java and its Python processes. The others take a Python process of a
session that goes on, one at random: the one that says how far there is something to read, the one that others are
forked from, or one that reads; the query fails, or not, and is started again from its checkpoint.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

import warren
from tests.support import stream_kill_child as child
from tests.support.effort import new_seed, times
from tests.support.waiting import wait_until
from warren.pipeline import PipelineError
from warren.pipeline.spark_errors import spark_errors
from warren.pipeline.spark_schemas import RECORDS
from warren.pipeline.spark_source import WarrenSource
from warren.pipeline.stream_reader import Offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DRIVER_KILLS = 1
WORKER_KILLS = min(9, times(4))
MOST_KILLS = 40
PATIENCE_S = 300.0
ATTEMPTS = 5
LATEST_S = 0.4
"""A kill comes at most this long after something was seen to be done."""


@contextmanager
def appending(directory: str) -> Iterator[None]:
    command = [sys.executable, child.__file__, "append", directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        assert process.poll() is None
        process.stdin.close()
        assert process.wait() == 0


def kill_a_driver(rng: random.Random, *places: str) -> None:
    command = [sys.executable, child.__file__, "stream", *places]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for _ in range(rng.randrange(1, 4)):
            assert process.stdout.readline().startswith("batch")
        time.sleep(rng.uniform(0, LATEST_S))
        child.kill(process.pid, *child.descendants(process.pid))


def wait_for(what: Callable[[], object]) -> None:
    wait_until(what, "nothing happens", patience_s=PATIENCE_S)


def kill_a_worker(rng: random.Random, spark: SparkSession, query: StreamingQuery) -> bool:
    """Kill a worker once the query has done or begun a batch. Return whether there was one: a failed query may have
    no workers."""
    gateway: Any = spark.sparkContext._gateway
    java = gateway.proc.pid
    done = rng.random() < 0.7
    wait_for(lambda: query.lastProgress if done and query.isActive else True)
    wait_for(lambda: has_failed(query) or any(map(child.is_python, child.descendants(java))))
    time.sleep(rng.uniform(0, LATEST_S))
    workers = [process for process in child.descendants(java) if child.is_python(process)]
    if workers:
        child.kill(rng.choice(workers))
    return bool(workers)


def insisting(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query, where what was killed before, or a busy machine, lets Spark fail at it: a few times."""
    for _ in range(ATTEMPTS - 1):
        with suppress(PySparkException, Py4JError):
            return start()
    return start()


def run_to_its_end(start: Callable[[], StreamingQuery]) -> None:
    """A query that ends by itself, started again where it fails."""

    def run() -> StreamingQuery:
        query = start()
        assert query.awaitTermination(int(PATIENCE_S)) is not False
        return query

    insisting(run)


def heal(spark: SparkSession, node: str) -> None:
    """Let the session, which others use after us, find out which of its Python processes are gone."""
    fine = 0
    for _ in range(4 * ATTEMPTS):
        try:
            spark.read.format("warren").option("table", "offsets").load(node).count()
        except (PySparkException, Py4JError):
            fine = 0
        else:
            fine += 1
        if fine == ATTEMPTS:
            return
    raise AssertionError("the session does not recover")


def has_failed(query: StreamingQuery) -> bool:
    return not query.isActive


@pytest.mark.slow
@pytest.mark.spark
def test_a_stream_that_is_killed_again_and_again_has_each_record_once(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(new_seed())
    node, out, checkpoint = (str(tmp_path / name) for name in ("node", "out", "checkpoint"))
    restarts = 0

    def start(*, until_its_end: bool = False) -> StreamingQuery:
        return child.start(spark, node, out, checkpoint, until_its_end=until_its_end)

    with appending(node):
        for _ in range(DRIVER_KILLS):
            kill_a_driver(rng, node, out, checkpoint)
        query = insisting(start)
        kills = 0
        while kills < WORKER_KILLS or (not restarts and kills < MOST_KILLS):  # some meet no worker
            kills += kill_a_worker(rng, spark, query)
            seen = query.lastProgress
            wait_for(lambda: has_failed(query) or query.lastProgress != seen)  # noqa: B023
            if has_failed(query):
                restarts += 1
                query = insisting(start)
        if has_failed(query):
            restarts += 1
        else:
            query.stop()
    run_to_its_end(lambda: start(until_its_end=True))
    heal(spark, node)
    print("restarts", restarts)
    assert restarts
    with warren.open(node, attach=False, mapped_file_size_commit_log=1 << 18) as opened:
        expected = sorted((r.queue_id, r.queue_offset, r.body) for r in opened.topic(child.TOPIC).read("check"))
    found = sorted(
        (row.queue_id, row.queue_offset, bytes(row.body)) for row in spark.read.parquet(out).toLocalIterator()
    )
    assert len(found) == len(expected) > 500
    assert found == expected


@pytest.mark.slow
def test_a_node_that_is_killed_while_it_is_followed_takes_nothing_back(tmp_path: Path) -> None:
    """No Spark here: the reader's own methods, as fast as they go, over four lives of a node."""
    node = str(tmp_path / "node")
    source = WarrenSource({"path": node, "topic": child.TOPIC, "maxRecordsPerTrigger": "40"})
    schema = StructType([RECORDS[name] for name in ("queue_id", "queue_offset", "body")])
    reader = source.streamReader(schema)
    offset: Offsets = {}
    seen: list[tuple[int, int, bytes]] = []

    def follow() -> bool:
        nonlocal offset
        following = reader.latestOffset(offset, reader.getDefaultReadLimit())
        for partition in reader.partitions(offset, following):
            batch: Any
            for batch in reader.read(partition):
                seen.extend(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        has_more, offset = following != offset, following
        return has_more

    for _ in range(4):
        command = [sys.executable, child.__file__, "append", node]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            wait_for(Path(node, "warren.lock").exists)
            before = len(seen)
            while len(seen) < before + 300:
                follow()
            child.kill(process.pid)
    while follow():
        pass
    with warren.open(node, attach=False, mapped_file_size_commit_log=1 << 18) as opened:
        expected = [(r.queue_id, r.queue_offset, r.body) for r in opened.topic(child.TOPIC).read("check")]
    while follow():  # what was in the log, and had no entry yet
        pass
    assert sorted(seen) == sorted(expected)
    assert len(seen) >= 1200


@pytest.mark.slow
@pytest.mark.spark
def test_a_frame_and_a_stream_are_written_to_topics(spark: SparkSession, tmp_path: Path) -> None:
    node, copy = str(tmp_path / "node"), str(tmp_path / "copy")
    frame = spark.range(0, 500, 1, 3).selectExpr("concat('b', id) body", "concat('k', id % 7) keys", "'new' tags")
    frame.write.format("warren").option("topic", "orders").mode("append").save(node)
    stream = spark.readStream.format("warren").option("topic", "orders").load(node).select("body", "keys", "tags")
    writer = stream.writeStream.format("warren").option("topic", "copied").option("checkpointLocation", f"{copy}.state")
    for _ in range(2):
        run_to_its_end(lambda: writer.trigger(availableNow=True).start(copy))
    with warren.open(copy, attach=False) as opened:
        with pytest.raises(PipelineError, match="in use by"), spark_errors():
            frame.write.format("warren").option("topic", "copied").mode("append").save(copy)
        found = [(record.body, record.key, record.tag) for record in opened.topic("copied").read("g")]
    assert sorted(found) == sorted((row.body.encode(), row.keys, row.tags) for row in frame.collect())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "copy.state", "node"]
