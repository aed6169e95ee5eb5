"""Streams beside a node's queues: named as not read, and no damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli_tools import warren
from tests.support.pipeline_tools import read_rows
from tests.support.quorum_tools import NODE, ORDERS, QuorumNode, plain_log, records
from warren.storage.filesystem import RealFileSystem

STREAM = "__events_1795847813505985842"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a quorum queue of five messages, and two streams."""
    directory = tmp_path / "data"
    node = QuorumNode(RealFileSystem(), str(directory / "quorum" / NODE))
    node.queue(b"/", b"orders", ORDERS)
    node.wal(1, records(ORDERS, plain_log(5)))
    for name in (STREAM, "__empty_1795847813586314658"):
        stream = directory / "stream" / name
        stream.mkdir(parents=True)
        (stream / f"{0:020}.segment").write_bytes(b"OSIL" + bytes(4))
        (stream / f"{0:020}.index").write_bytes(b"OSII" + bytes(4))
    return directory


def test_export_writes_the_queues_and_names_the_streams(data: Path) -> None:
    result = warren("export", data)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 5)
    assert "streams not read: 2 streams" in result.stderr
    assert STREAM in result.stderr


def test_export_of_one_queue_does_not_mention_streams(data: Path) -> None:
    result = warren("export", data, "--queue", "orders")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_stream_that_is_asked_for_as_a_queue_is_named_as_not_read(data: Path) -> None:
    result = warren("export", data, "--queue", "events")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "no queue 'events' (one that was never written to has no directory); streams not read: 2" in result.stderr
    assert STREAM in result.stderr


@pytest.mark.parametrize("inner", ["", "stream", f"stream/{STREAM}"])
def test_streams_are_unread_wherever_the_path_points(data: Path, inner: str) -> None:
    report = json.loads(warren("verify", data / inner, "--json").stdout)
    assert [(one["kind"], one["severity"]) for one in report["findings"]] == [("streams not read", "unread")]
    assert (report["damage"], report["leftover"]) == (0, 0)
    text = warren("verify", data / inner)
    assert (text.exit_code, STREAM in text.stdout, "No damage." in text.stdout) == (0, True, True)


def test_inspect_lists_no_stream_among_the_quorum_queues(data: Path) -> None:
    result = warren("inspect", data, "--json")
    (vhost,) = json.loads(result.stdout)["vhosts"]
    assert [queue["name"] for queue in vhost["queues"]] == ["orders"]
    assert "streams not read" in result.stderr


def test_the_table_of_findings_has_the_streams(data: Path) -> None:
    assert [row["severity"] for row in read_rows("findings", str(data))] == ["unread"]
