"""Store files with messages between garbage, read in tasks: what no scan reaches is found, searched for once a store.

That ``verify`` and ``compact`` on Spark then say what one machine says is in :mod:`test_pipeline_verify`, with the
damaged nodes that have garbage.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.classic_tools import QueueOnDisk, VhostOnDisk
from tests.support.pipeline_tools import Row, check_messages, read_rows
from warren.cli import app
from warren.msg_store.rdq import hole_search, store_reader
from warren.msg_store.rdq.rdq_format import HEADER, encode_record
from warren.pipeline.jobs import compact, verify_parts
from warren.pipeline.jobs.parallel import Numbered
from warren.salvage.classic.classic_directory import UNCOUNTED
from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import File
from warren.tables import bodies
from warren.tables.bodies import hidden_in
from warren.tables.places import find_nodes

COUNT = 40
PARTITIONS = pytest.mark.parametrize("partition_bytes", [1, 1 << 30])


class Holed:
    """Two queues, and a store of three files: messages after zeros, after a dead one, and after a bad record."""

    def __init__(self, place: Path) -> None:
        self.node = str(place)
        self.vhost = VhostOnDisk(place)
        self.queues = [self.vhost.queue(name) for name in (b"p", b"q")]
        for queue in self.queues:
            for seq_id in range(COUNT):
                queue.publish(seq_id, b"body %d" % seq_id)
        whole = {n: b"".join(map(self.record, range(n, COUNT, 4))) for n in range(4)}
        hiding = HEADER.pack(16 + len(whole[3]), b"d" * 16) + whole[3] + b"!"
        self.write(0, whole[0][: -len(self.record(36))] + bytes(77) + self.record(36))
        self.write(1, b"a dead body\xff" + whole[1])
        self.write(2, hiding + whole[2])
        for seq_id in range(COUNT):  # all bodies of the other queue, in the last file
            self.vhost.append(
                "msg_store_persistent/2.rdq", encode_record(self.queues[1].msg_id(seq_id), self.message(1, seq_id))
            )
        self.hidden = {("0.rdq", 36)} | {("1.rdq", n) for n in range(1, COUNT, 4)}
        self.hidden |= {("2.rdq", n) for n in range(3, COUNT, 4)}

    def message(self, queue: int, seq_id: int) -> bytes:
        return self.queues[queue].message(seq_id, b"body %d" % seq_id)

    def record(self, seq_id: int) -> bytes:
        return encode_record(self.queues[0].msg_id(seq_id), self.message(0, seq_id))

    def write(self, number: int, data: bytes) -> None:
        (self.vhost.path / "msg_store_persistent" / f"{number}.rdq").write_bytes(data)

    def rows(self, job: Any, *arguments: Any) -> list[Row]:
        """What a job's tasks give, without Spark."""
        (node,) = find_nodes([self.node])
        works = [pickle.loads(pickle.dumps(work)) for work in job.plan(Numbered(0, node), *arguments)]
        return [row for work in works for batch in job.do(work) for row in batch.to_pylist()]


@pytest.fixture
def holed(tmp_path: Path) -> Iterator[Holed]:
    yield Holed(tmp_path / "node")
    bodies.current_caches().forget()


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ids each search of a file is for."""
    found: list[int] = []

    def search(file: File, msg_ids: hole_search.Ids, *, last: tuple[int, int]) -> hole_search.RecordTable:
        found.append(len(msg_ids))
        return real(file, msg_ids, last=last)

    real = hole_search.search
    monkeypatch.setattr(store_reader, "search", search)
    return found


def on_one_machine(path: str) -> list[Row]:
    found: list[Row] = json.loads(CliRunner().invoke(app, ["verify", path, "--json"]).stdout)["findings"]
    return [finding for finding in found if finding["kind"] != UNCOUNTED]


def named(queue: QueueOnDisk, rows: list[Row]) -> list[tuple[str, int]]:
    numbers = {queue.msg_id(seq_id): seq_id for seq_id in range(COUNT)}
    return [(Path(row["path"]).name, numbers[row["msg_id"]]) for row in rows if row["msg_id"] in numbers]


@PARTITIONS
def test_the_tasks_of_verify_find_what_no_scan_reaches(holed: Holed, searches: list[int], partition_bytes: int) -> None:
    rows = holed.rows(verify_parts, {}, partition_bytes)
    records = [row for row in rows if row["what"] == verify_parts.RECORD]
    assert all(row["good"] and row["found_id"] == row["msg_id"] for row in records)
    references = Counter(row["msg_id"] for row in rows if row["what"] == verify_parts.REFERENCE)
    assert Counter(row["msg_id"] for row in records) == references
    assert set(named(holed.queues[0], records)) >= holed.hidden
    said = [
        {name: row[name] for name in verify_parts.TASK_FINDINGS.names[1:]}
        for row in rows
        if row["kind"] not in (None, UNCOUNTED)
    ]
    assert said
    assert {row["kind"] for row in said} == {"leftover garbage between records"}
    assert sorted(said, key=str) == sorted(on_one_machine(holed.node), key=str)
    assert searches[:3] == [21, 21, 21], "once for each file: one may have another record of a message"
    assert len(searches) == 6, "and by the single machine"


@PARTITIONS
def test_what_is_missing_makes_garbage_damage(holed: Holed, partition_bytes: int) -> None:
    holed.write(1, b"a dead body\xff")
    rows = holed.rows(verify_parts, {}, partition_bytes)
    bad = [row for row in rows if row["good"] is False]
    assert [row["msg_id"] for row in bad] == [b"d" * 16]
    kinds = {row["kind"] for row in rows} - {None, UNCOUNTED}
    assert kinds == {"record out of bounds", "leftover bytes behind zeros"}


def test_garbage_is_not_explained_where_nobody_knows_what_is_needed(holed: Holed) -> None:
    (node,) = find_nodes([holed.node])
    path = str(holed.vhost.path / "msg_store_persistent" / "1.rdq")
    known, unknown = (hidden_in(node, node.place().files, path, knows_needs=knows) for knows in (True, False))
    assert (known.explains_breaks, unknown.explains_breaks) == (True, False)
    assert known.records == unknown.records
    assert len(known.records) == 10


@PARTITIONS
def test_compact_counts_hidden_messages_as_needed(holed: Holed, partition_bytes: int) -> None:
    rows = holed.rows(compact, partition_bytes)
    counted = {row["name"]: row["messages"] for row in rows if row["what"] == compact.FILE}
    counted = {name: count for name, count in counted.items() if name is not None}
    assert counted == {"0.rdq": 10, "1.rdq": 10, "2.rdq": 20 + COUNT}
    needed = Counter(row["msg_id"] for row in rows if row["what"] == compact.REFERENCE)
    assert Counter(row["msg_id"] for row in rows if row["what"] == compact.RECORD) == needed


@pytest.mark.slow
@PARTITIONS
def test_messages_are_searched_for_once(holed: Holed, searches: list[int], partition_bytes: int) -> None:
    rows = read_rows("messages", holed.node, partition_bytes=partition_bytes, batch_bytes=300)
    assert len(rows) == 2 * COUNT
    assert searches == [21, 21, 21]
    check_messages(rows, holed.node)
    found = [row for row in read_rows("findings", holed.node) if row["kind"] != UNCOUNTED]
    assert found == [{"node": holed.node, **row} for row in on_one_machine(holed.node)]


@PARTITIONS
def test_the_table_of_the_store_has_what_is_hidden(holed: Holed, partition_bytes: int) -> None:
    options = {"partition_bytes": partition_bytes, "batch_bytes": 300}
    rows = read_rows("store", holed.node, mode="failfast", **options)
    found = {(Path(row["file"]).name, row["msg_id"]): row["message"] for row in rows if row["good"]}
    assert len(found) == 2 * COUNT
    for name, seq_id in holed.hidden:
        assert found[name, holed.queues[0].msg_id(seq_id).hex()] == holed.message(0, seq_id)
    for row in rows:
        data = Path(row["file"]).read_bytes()[row["file_offset"] :][: row["size"]]
        assert (data[8:24].hex(), data[24:-1]) == (row["msg_id"], row["message"])
    without = read_rows("store", holed.node, bodies=False, **options)
    assert sorted(without, key=str) == sorted(({**row, "message": None} for row in rows), key=str)
    holed.write(1, b"")
    with pytest.raises(DataError, match=r"2\.rdq"):
        read_rows("store", holed.node, mode="failfast", **options)


def test_a_message_that_is_nowhere_is_searched_for_once(holed: Holed, searches: list[int]) -> None:
    for seq_id in range(COUNT, 2 * COUNT):
        holed.queues[1].publish(seq_id, b"lost")
    rows = read_rows("messages", holed.node, partition_bytes=1, batch_bytes=300)
    assert len(rows) == 2 * COUNT
    assert len(searches) == 3
    check_messages(rows, holed.node)


def test_a_search_that_failed_is_said_and_done_anew_by_the_next_task(
    holed: Holed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node,) = find_nodes([holed.node])
    directory = str(holed.vhost.path / "msg_store_persistent")
    store = bodies.store_at(node, node.place().files, directory)
    hidden = holed.queues[0].msg_id(1)
    with monkeypatch.context() as patched:

        def search(*_: object, **_options: object) -> None:
            raise StorageError("refused")

        patched.setattr(store_reader, "search", search)
        for _ in range(2):
            with pytest.raises(StorageError, match="refused"):
                store.read(hidden)
    with pytest.raises(StorageError, match="refused"):
        store.read(hidden)
    assert bodies.store_at(node, node.place().files, directory).read(hidden) == holed.message(0, 1)
