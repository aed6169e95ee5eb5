"""A vhost whose bodies are in typed store files: every command and table reads them, and no node writes to them."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import warren.sql
from tests.support.classic_tools import V2QueueOnDisk, bodies_at, findings_at, message, msg_id
from tests.support.cli_tools import warren as command
from tests.support.pipeline_tools import Row, check_messages, read_rows
from tests.support.sqs_writer import hole, sqs, stored
from warren.actors.node.node_errors import VhostDownError
from warren.actors.vhost_files import VhostFiles
from warren.msg_store.rdq.message_store import MessageStore
from warren.msg_store.rdq.rdq_format import encode_record
from warren.pipeline.jobs import compact, verify_parts
from warren.pipeline.jobs.parallel import Numbered
from warren.queue_index.index import index_v2_format as v2
from warren.storage.errors import DataError
from warren.storage.filesystem import RealFileSystem
from warren.storage.settings import Settings
from warren.tables.places import find_nodes

COUNT = 9
ORPHAN = b"o" * 16


def body(position: int) -> bytes:
    return b"body %d " % position * (1 + 700 * (position % 3))


def record(position: int) -> bytes:
    return stored(msg_id(position), message(position, body(position)))


class TypedVhost:
    """A queue of nine messages: three are in ``0.rdq``, four in ``1.sqs`` between holes, two in ``2.sqs``."""

    def __init__(self, place: Path) -> None:
        self.place, self.queue = place, V2QueueOnDisk(place)
        self.store = self.queue.vhost / "msg_store_persistent"
        for position in range(COUNT):
            self.queue.entry(position, v2.encode_entry(msg_id=msg_id(position), size=len(body(position))))
        for position in range(3):
            self.queue.rdq(msg_id(position), message(position, body(position)))
        self.first = sqs(record(3), hole(4), record(4), record(5), hole(700), record(6), record(4))
        (self.store / "1.sqs").write_bytes(self.first)
        (self.store / "2.sqs").write_bytes(sqs(record(7), hole(1), record(8)))

    def tasks(self, job: Any, *arguments: Any) -> list[Row]:
        """What a job's tasks give, without Spark."""
        (node,) = find_nodes([str(self.place)])
        works = [pickle.loads(pickle.dumps(work)) for work in job.plan(Numbered(0, node), *arguments)]
        return [row for work in works for batch in job.do(work) for row in batch.to_pylist()]


@pytest.fixture
def typed(tmp_path: Path) -> TypedVhost:
    return TypedVhost(tmp_path / "node")


def test_all_messages_are_exported(typed: TypedVhost) -> None:
    assert bodies_at(typed.place) == {position: body(position) for position in range(COUNT)}
    assert findings_at(typed.place) == set()
    assert command("verify", typed.place).exit_code == 0
    result = command("export", typed.place)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, COUNT)


def test_shovel_copies_all_messages(typed: TypedVhost, tmp_path: Path) -> None:
    result = command("shovel", typed.place, tmp_path / "data")
    assert result.exit_code == 0, result.output
    assert len(command("export", tmp_path / "data").stdout.splitlines()) == COUNT


def test_inspect_counts_files_of_both_formats(typed: TypedVhost) -> None:
    (vhost,) = json.loads(command("inspect", typed.place, "--json").stdout)["vhosts"]
    rdq, first, second = vhost["stores"]["msg_store_persistent"]["files"]
    assert rdq.keys() == {"number", "size", "messages", "valid_bytes"}
    valid_bytes = sum(map(len, map(record, (3, 4, 5, 6))))
    assert first == {
        "number": 1,
        "format": "sqs",
        "size": len(typed.first),
        "messages": 5,
        "valid_bytes": valid_bytes,
    }
    assert (second["number"], second["messages"]) == (2, 2)
    shown = command("inspect", typed.place).stdout
    assert all(name in shown for name in ("0.rdq", "1.sqs", "2.sqs"))


def test_tables_have_all_messages_and_records(typed: TypedVhost) -> None:
    with warren.sql.connect(typed.place) as connection:
        rows = connection.execute("select position, body from messages order by position").fetchall()
        assert [(position, bytes(content)) for position, content in rows] == [(n, body(n)) for n in range(COUNT)]
        query = "select file, msg_id, size, good, message, file_offset from store where file like '%.sqs'"
        records = connection.execute(query).fetchall()
    expected = []
    for name, positions in (("1.sqs", (3, 4, 5, 6, 4)), ("2.sqs", (7, 8))):
        content = (typed.store / name).read_bytes()
        for position in positions:
            whole = record(position)
            expected.append((name, msg_id(position).hex(), len(whole), True, message(position, body(position))))
            assert content.count(whole) == positions.count(position)
    assert [(Path(row[0]).name, *row[1:4], bytes(row[4])) for row in records] == expected
    for name, identity, size, _, _, offset in records:
        start = (typed.store / Path(name).name).read_bytes()[offset : offset + size]
        assert start[5:21].hex() == identity
    for partition_bytes in (1, 1 << 30):
        check_messages(read_rows("messages", str(typed.place), partition_bytes=partition_bytes), str(typed.place))
        tasks = read_rows("store", str(typed.place), partition_bytes=partition_bytes)
        assert [row["file_offset"] for row in tasks if row["file"].endswith(".sqs")] == [row[-1] for row in records]


@pytest.mark.parametrize("partition_bytes", [1, 1 << 30])
def test_tasks_of_verify_read_typed_files(typed: TypedVhost, partition_bytes: int) -> None:
    with (typed.store / "2.sqs").open("ab") as file:
        file.write(stored(ORPHAN, b"no term") + b"\0")
    rows = typed.tasks(verify_parts, {}, partition_bytes)
    records = [row for row in rows if row["what"] == verify_parts.RECORD]
    assert Counter(row["msg_id"] for row in records) == Counter([*map(msg_id, [*range(COUNT), 4]), ORPHAN])
    assert all(row["found_id"] == row["msg_id"] for row in records if row["msg_id"] != ORPHAN)
    assert [row["kind"] for row in rows if row["kind"] and row["severity"] == "damage"] == ["broken record"]


def test_compact_leaves_typed_files_out(typed: TypedVhost) -> None:
    rows = typed.tasks(compact, 1 << 30)
    assert sum(row["what"] == compact.RECORD for row in rows) == COUNT + 1
    names = [row["name"] for row in rows if row["what"] == compact.FILE]
    files = [{"name": name, "size": 100, "messages": 1, "valid_bytes": 10, "known": True} for name in names]
    assert sorted(names) == ["0.rdq", "1.sqs", "2.sqs"]
    assert [file["number"] for file in compact.propose(files, Settings())["files"]] == [0]


DAMAGE = {
    "a torn end": (record(7) + hole(1) + record(8)[:-1], len(record(7)) + 1, "record out of bounds", {8}),
    "a wrong type": (b"\0" + record(7) + record(8), 0, "broken record", {7, 8}),
    "two holes": (hole(9) + hole(9) + record(7) + record(8), 9, "broken record", {7, 8}),
    "a long run": (record(8) + hole(4) + hole(1) + record(7), len(record(8)), "broken record", {7}),
    "a small size": (record(7) + b"\2\0\0\0\3" + record(8), len(record(7)), "record out of bounds", {8}),
}


@pytest.mark.parametrize("situation", DAMAGE)
def test_what_a_broker_would_discard_is_named(situation: str, typed: TypedVhost) -> None:
    content, at, kind, lost = DAMAGE[situation]
    (typed.store / "2.sqs").write_bytes(sqs(content))
    findings = json.loads(command("verify", typed.place, "--json").stdout)["findings"]
    (damage,) = [finding for finding in findings if finding["path"].endswith(".sqs")]
    assert (damage["kind"], damage["severity"], damage["offset"]) == (kind, "damage", 64 + at)
    assert damage["detail"].endswith(f"; {len(content) - at} bytes after the last record")
    missing = [finding["detail"] for finding in findings if finding["kind"] == "missing body"]
    assert len(missing) == len(lost) == len(findings) - 1
    assert bodies_at(typed.place) == {position: body(position) for position in range(COUNT) if position not in lost}
    assert command("export", typed.place).exit_code == 1
    with pytest.raises(DataError, match=rf"2\.sqs, offset {64 + at}: {kind}: "):
        read_rows("store", str(typed.place), mode="failfast")


def test_unreferenced_and_broken_messages_are_found(typed: TypedVhost) -> None:
    (typed.store / "3.sqs").write_bytes(sqs(stored(ORPHAN, message(1, b"x")), stored(b"p" * 16, b"no term")))
    second = 64 + len(stored(ORPHAN, message(1, b"x")))
    orphans = command("export", typed.place, "--orphans").stdout.splitlines()
    assert len(orphans) == COUNT + 1
    assert findings_at(typed.place) == {
        ("orphan body", "leftover", "3.sqs", 64),
        ("wrong message", "damage", "3.sqs", 64),
        ("orphan body", "leftover", "3.sqs", second),
        ("unreadable message", "damage", "3.sqs", second),
    }


def test_damage_in_the_transient_store_is_left_over(typed: TypedVhost) -> None:
    (typed.queue.vhost / "msg_store_transient" / "0.sqs").write_bytes(sqs(b"\0"))
    assert findings_at(typed.place) == {("leftover broken record", "leftover", "0.sqs", 64)}


def test_a_name_that_no_store_file_has_is_left_over(typed: TypedVhost) -> None:
    (typed.store / "01.sqs").write_bytes(sqs())
    assert findings_at(typed.place) == {("leftover file", "leftover", "01.sqs", None)}


def digests(place: Path) -> dict[str, str]:
    return {str(path): hashlib.md5(path.read_bytes()).hexdigest() for path in place.rglob("*") if path.is_file()}


def test_a_node_refuses_the_vhost_and_changes_nothing(typed: TypedVhost) -> None:
    (typed.store / "clean.dot").write_bytes(b"[].")
    typed.queue.stop_cleanly({})
    before = digests(typed.place)
    expected = r"msg_store_persistent/1\.sqs: a typed store file, .* `warren shovel` or `warren export`"
    files = RealFileSystem()
    with pytest.raises(DataError, match=expected):
        VhostFiles.open(files, str(typed.queue.vhost), b"/", settings=Settings())
    with pytest.raises(DataError, match=expected):
        MessageStore.open(files, str(typed.store), Settings())
    assert digests(typed.place) == before
    with warren.open(str(typed.place), adopt=True) as node, pytest.raises(VhostDownError, match=expected):
        node.queue("q").get()
    assert before.items() <= digests(typed.place).items()


def test_an_archive_with_typed_files_is_read(typed: TypedVhost, tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "node.tar.gz", "w:gz") as archive:
        archive.add(typed.place, "node")
    assert len(command("export", tmp_path / "node.tar.gz").stdout.splitlines()) == COUNT


def test_the_later_place_counts_where_a_message_is_in_both_formats(typed: TypedVhost) -> None:
    """Both are equal unless one was torn: then the younger file is the one to trust."""
    with (typed.store / "0.rdq").open("ab") as file:
        file.write(encode_record(msg_id(7), message(7, b"torn")))
    assert bodies_at(typed.place)[7] == body(7)
