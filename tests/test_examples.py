"""The examples do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import warren

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> Any:
    """The ``main`` of an example."""
    return runpy.run_path(str(EXAMPLES / name))["main"]


@pytest.fixture
def dead_node(tmp_path: Path) -> Path:
    """The directory of a node that crashed with one message in the store and three in the index."""
    directory = tmp_path / "node"
    vhost = warren.open_vhost(directory)
    for queue, bodies in ((b"orders", [b"1", b"22", b"333"]), (b"files", [b"x" * 5000])):
        vhost.queue(queue).publish_many(vhost.envelope(queue), vhost.msg_ids.many(len(bodies)), bodies)
    vhost.sync()
    vhost.abandon()
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_embedded_queue_keeps_what_was_synced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("embedded_queue.py")(str(tmp_path / "data"))
    assert capsys.readouterr().out.splitlines() == [
        "safe: 100",
        "acked: 60",
        "after the crash: 40",
        "first: job 060 redelivered",
        "left: 0",
    ]


def test_the_workers_do_all_jobs_and_the_failed_ones_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example("asyncio_worker.py")(str(tmp_path / "data"))
    assert capsys.readouterr().out.splitlines() == ["left: 0", "failed: 10", "first: job 0"]


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
