"""Streams as the commands see them: beside queues of other types, with and without names, wherever PATH points."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_tools import warren
from tests.support.pipeline_tools import read_rows
from tests.support.quorum_tools import NODE, ORDERS, QuorumNode, plain_log, records
from tests.support.rabbitmq_golden import GOLDEN, STREAMS, archives
from tests.support.stream_tools import StreamWriter, overwrite, record
from warren.salvage.archives.archive import unpack
from warren.storage.filesystem import RealFileSystem

STREAM = "__events_1795847813505985842"
UNICODE = "s.übung/ж 1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a quorum queue of five messages and two streams, whose names no table knows."""
    directory = tmp_path / "data"
    node = QuorumNode(RealFileSystem(), str(directory / "quorum" / NODE))
    node.queue(b"/", b"orders", ORDERS)
    node.wal(1, records(ORDERS, plain_log(5)))
    StreamWriter(directory / "stream" / STREAM).write(record(b"a", b"events"), record(b"b", b"events"))
    StreamWriter(directory / "stream" / "__empty_1795847813586314658")
    return directory


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A node that a broker left, unpacked."""
    archive = next(path for path in archives(STREAMS) if path.name.startswith(request.param))
    (tmp_path / "unpacked").mkdir()
    unpack(str(archive), str(tmp_path / "unpacked"))
    return tmp_path / "unpacked" / "node"


def lines(*arguments: str | Path) -> list[dict[str, Any]]:
    result = warren("export", *arguments)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_export_writes_all_types_of_queues(data: Path) -> None:
    messages = lines(data)
    assert [message["queue"] for message in messages] == ["orders"] * 5 + [STREAM] * 2
    assert [message.get("stream_offset") for message in messages] == [*[None] * 5, 0, 1]
    assert [message["routing_keys"] for message in messages[5:]] == [["events"]] * 2


def test_without_tables_a_stream_is_named_after_its_directory(data: Path) -> None:
    result = warren("export", data)
    assert "nameless stream: no table of a node says which stream this is" in result.stderr
    (report,) = json.loads(warren("inspect", data, "--json").stdout)["vhosts"][1:]
    assert [queue["dir"] for queue in report["queues"]] == ["__empty_1795847813586314658", STREAM]


@pytest.mark.parametrize("inner", ["", "stream", f"stream/{STREAM}"])
def test_a_stream_is_read_wherever_the_path_points(data: Path, inner: str) -> None:
    messages = lines(data / inner, "--queue", STREAM)
    assert [message["seq_id"] for message in messages] == [0, 1]
    result = warren("verify", data / inner)
    assert (result.exit_code, "No damage." in result.stdout) == (0, True)


def test_inspect_lists_streams(data: Path) -> None:
    text = warren("inspect", data).stdout
    assert "stream" in text
    (queue,) = (
        queue
        for vhost in json.loads(warren("inspect", data, "--json").stdout)["vhosts"]
        for queue in vhost["queues"]
        if queue["name"] == STREAM
    )
    assert (queue["kind"], queue["type"], queue["ready"], queue["bytes"]) == ("rabbitmq-stream", "stream", 2, 2)
    assert (queue["first_offset"], queue["last_offset"]) == (0, 1)


def test_damage_is_reported_with_file_and_offset(data: Path) -> None:
    segment = data / "stream" / STREAM / f"{0:020}.segment"
    overwrite(segment, 60, b"\xff")
    report = json.loads(warren("verify", data, "--json").stdout)
    damage = [finding for finding in report["findings"] if finding["severity"] == "damage"]
    assert [(finding["kind"], finding["path"], finding["offset"]) for finding in damage] == [
        ("damaged chunk", str(segment), 8)
    ]


def test_the_tables_have_streams(data: Path) -> None:
    rows = [row for row in read_rows("messages", str(data)) if row["queue"] == STREAM]
    assert [(row["seq_id"], row["stream_offset"], row["body"]) for row in rows] == [(0, 0, b"a"), (1, 1, b"b")]
    assert [row["seq_id"] for row in read_rows("index", str(data)) if row["queue"] == STREAM] == [0, 1]
    types = {row["queue"]: row["type"] for row in read_rows("queues", str(data))}
    assert types == {"orders": "quorum", STREAM: "stream", "__empty_1795847813586314658": "stream"}


def test_a_condition_knows_the_offset(data: Path) -> None:
    assert [message["body"] for message in lines(data, "--where", "stream_offset = 1")] == ["Yg=="]


@pytest.mark.parametrize("node", ["08"], indirect=True)
def test_a_name_with_letters_that_no_directory_has(node: Path) -> None:
    messages = lines(node, "--queue", UNICODE)
    assert {(message["vhost"], message["queue"]) for message in messages} == {("/", UNICODE)}
    assert lines(node / "stream") == messages
    result = warren("export", node, "--queue", "s.none")
    assert (result.exit_code, "no queue 's.none'" in result.stderr) == (2, True)


@pytest.mark.parametrize("node", ["08"], indirect=True)
def test_what_is_left_of_a_deleted_stream_is_no_queue_unless_it_is_pointed_at(node: Path) -> None:
    gone = node / "stream" / "__gone_1795847550246451494"
    StreamWriter(gone).write(record(b"gone"))
    assert {message["queue"] for message in lines(node)} == {UNICODE}
    report = json.loads(warren("verify", node, "--json").stdout)
    assert [(finding["kind"], finding["path"]) for finding in report["findings"]] == [
        ("leftover of a deleted stream", str(gone))
    ]
    assert [message["body"] for message in lines(gone)] == ["Z29uZQ=="]


@pytest.mark.parametrize("node", ["02"], indirect=True)
def test_a_stream_of_the_tables_without_a_directory_is_named(node: Path) -> None:
    (gone,) = (node / "stream").glob("__s_two_*")
    shutil.rmtree(gone)
    result = warren("export", node)
    assert result.exit_code == 0
    assert "stream without files: the stream s.two has no directory here" in result.stderr


@pytest.mark.parametrize("node", ["02"], indirect=True)
def test_damaged_tables_leave_streams_without_names(node: Path) -> None:
    """Then no directory is taken for that of a deleted stream."""
    for log in node.glob("*.LOG"):
        log.write_bytes(b"no log")
    for table in (*node.glob("rabbit_durable_queue.*"),):
        table.write_bytes(b"no log")
    result = warren("export", node)
    assert (result.exit_code, "nameless stream" in result.stderr) == (1, True)
    queues = {json.loads(line)["queue"] for line in result.stdout.splitlines()}
    assert queues == {path.name for path in (node / "stream").iterdir()}


@pytest.mark.parametrize("node", ["02"], indirect=True)
def test_streams_are_copied_into_a_directory_of_warrens(node: Path, tmp_path: Path) -> None:
    result = warren("shovel", node, tmp_path / "target", "--queue", "s.two")
    assert result.exit_code == 0, result.stderr
    fields = ("body", "exchange", "routing_keys", "properties", "headers")
    copied, original = lines(tmp_path / "target"), lines(node, "--queue", "s.two")
    assert [[message[name] for name in fields] for message in copied] == [
        [message[name] for name in fields] for message in original
    ]
    again = warren("shovel", node, tmp_path / "target", "--queue", "s.two")
    assert (again.exit_code, len(lines(tmp_path / "target"))) == (0, len(original))


def test_golden_streams_are_here() -> None:
    assert list((GOLDEN / STREAMS).glob("*.tar.gz"))
