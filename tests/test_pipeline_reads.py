"""How many bytes of files a job reads, for each byte that there is: about one, whatever the number of workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.classic_tools import VhostOnDisk
from tests.support.pipeline_tools import exported, one_by_one
from warren.pipeline.jobs import compact, export_parts, verify_parts
from warren.pipeline.jobs.parallel import numbered
from warren.pipeline.spark_source import WarrenSource
from warren.storage.real_file import RealFile
from warren.tables import bodies
from warren.tables.places import find_nodes

MOST = 1.2
"""Bytes that are read for each byte of the files."""

PARTITION_BYTES = 128 << 10


def forget() -> None:
    """What a worker keeps from one task to the next."""
    bodies.current_caches().forget()
    export_parts._OPEN = export_parts._LastOpened()


def by_workers(pieces: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
    """As Spark does it with a worker for each task."""
    answers = []
    for piece in pieces:
        forget()
        answers += one_by_one([piece], work)
    return answers


def filled(place: Path, *, embedded: bool, queues: int) -> str:
    """A vhost of a megabyte; its queues take turns, the first of them more often."""
    fresh, vhost, entries = random.Random(1), VhostOnDisk(place, entries=128), dict.fromkeys(range(queues), 0)
    by_number = [vhost.queue(b"queue-%d" % number) for number in range(queues)]
    for turn in range(1_024 if embedded else 240):
        number = fresh.randrange(queues) if turn % 2 else 0
        queue, seq_id = by_number[number], entries[number]
        entries[number] += 1
        message = queue.message(seq_id, fresh.randbytes(1_000 if embedded else 4_200))
        queue.publish(seq_id, message[-1_000 if embedded else -4_200 :], embedded=message if embedded else None)
        if not embedded:
            vhost.store(turn // 60, queue.msg_id(seq_id), message)
    return str(place)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """The bytes that were read from files so far."""
    total, pread = 0, RealFile.pread

    def counting(file: RealFile, size: int, offset: int) -> bytes:
        nonlocal total
        data = pread(file, size, offset)
        total += len(data)
        return data

    monkeypatch.setattr(RealFile, "pread", counting)
    yield lambda: total
    forget()


def read_table(path: str, table: str) -> int:
    source = WarrenSource({"table": table, "path": path, "partition_bytes": str(PARTITION_BYTES)})
    reader = source.reader(source.schema())
    rows = 0
    for partition in reader.partitions():
        forget()
        rows += sum(len(batch) for batch in reader.read(partition))
    return rows


def run_parts(path: str, job: Any, plan: Callable[..., Any]) -> int:
    rows = 0
    for numbered_node in numbered(find_nodes([path])):
        for work in plan(numbered_node):
            forget()
            rows += sum(len(batch) for batch in job.do(work))
    return rows


JOBS: dict[str, Callable[[str, Path], int]] = {
    "messages": lambda path, out: read_table(path, "messages"),
    "store": lambda path, out: read_table(path, "store"),
    "export": lambda path, out: exported(out, path, parallel=by_workers, partition_bytes=PARTITION_BYTES).messages,
    "verify": lambda path, out: run_parts(
        path, verify_parts, partial(verify_parts.plan, settings={}, partition_bytes=PARTITION_BYTES)
    ),
    "compact": lambda path, out: run_parts(path, compact, partial(compact.plan, partition_bytes=PARTITION_BYTES)),
}


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("queues", [1, 5])
@pytest.mark.parametrize("embedded", [True, False])
def test_a_job_reads_each_byte_about_once(
    job: str, queues: int, embedded: bool, tmp_path: Path, count: Callable[[], int]
) -> None:
    path = filled(tmp_path / "node", embedded=embedded, queues=queues)
    size = sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
    rows = JOBS[job](path, tmp_path / "out")
    assert rows or (job == "store" and embedded) or embedded
    assert count() <= MOST * size
