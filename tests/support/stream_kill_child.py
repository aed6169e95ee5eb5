"""What is killed, and what goes on meanwhile: a driver that streams a topic into Parquet, a live node that appends.

``append DIRECTORY``: open a node, append until the standard input ends, close it. ``stream DIRECTORY OUT CHECKPOINT``:
a Spark of its own with the query; says ``batch N`` when a batch is done.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import warren

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "orders"
QUEUES = 3
AT_ONCE = 10
PAUSE_S = 0.03


def append(directory: str) -> None:
    with warren.open(directory, attach=False, mapped_file_size_commit_log=1 << 18) as node:
        topic = node.topic(TOPIC, queues=QUEUES)
        number = 0
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            numbers = range(number, number + AT_ONCE)
            topic.append_many([b"%d" % n for n in numbers], keys=[f"k{n % 11}" for n in numbers]).wait()
            number += AT_ONCE


def start(
    spark: SparkSession, directory: str, out: str, checkpoint: str, *, until_its_end: bool = False
) -> StreamingQuery:
    """The query, from where its checkpoint says that it is."""
    reader = spark.readStream.format("warren").option("topic", TOPIC)
    if not until_its_end:
        reader = reader.option("maxRecordsPerTrigger", 100)
    frame = reader.load(directory).select("queue_id", "queue_offset", "body")
    writer = frame.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if until_its_end else writer).start()


def stream(directory: str, out: str, checkpoint: str) -> None:
    from warren import pipeline

    query = start(pipeline.session("local[2]"), directory, out, checkpoint)
    last = None
    while not query.awaitTermination(0.05):  # type: ignore[arg-type]
        progress = query.lastProgress
        if progress is not None and progress.batchId != last:
            last = progress.batchId
            print(f"batch {last}", flush=True)


def descendants(process_id: int) -> list[int]:
    """Processes below one, itself left out."""
    found = []
    for child in _children(process_id):
        found += [child, *descendants(child)]
    return found


def _children(process_id: int) -> list[int]:
    """None of a process that has just ended."""
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{process_id}/task").iterdir():
            with suppress(OSError):
                children += map(int, (task / "children").read_text().split())
    return children


def is_python(process_id: int) -> bool:
    with suppress(OSError):
        return b"python" in Path(f"/proc/{process_id}/cmdline").read_bytes().split(b"\0")[0]
    return False


def kill(*process_ids: int) -> None:
    for process_id in process_ids:
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)


if __name__ == "__main__":
    work: Any = {"append": append, "stream": stream}[sys.argv[1]]
    work(*sys.argv[2:])
