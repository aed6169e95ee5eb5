"""``warren inspect``: what PATH may be, the output, and how it fails."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_tools import warren
from warren import cli
from warren.queue_index.index import directory as disk
from warren.salvage.archives.archive import unpack

GOLDEN = Path(__file__).parent / "golden"
CRASHED = GOLDEN / "12-crash-torn-journal.tar.gz"
PRIORITIES = GOLDEN / "11-clean-priority-queue.tar.gz"
ALL_TYPES = Path(__file__).parent.parent / "warren" / "data" / "rabbitmq-3.10.8-types.tar.gz"
VHOST = "628WB79CIFDYO9LJI6DKMI09L"


def inspected(path: Path) -> Any:
    result = warren("inspect", path, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def tree(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file's bytes, mode and time of change."""
    return {
        str(path.relative_to(directory)): (
            path.read_bytes() if path.is_file() else b"",
            path.stat().st_mode,
            path.stat().st_mtime_ns,
        )
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's data directory, with the vhosts of a broker that was killed."""
    vhosts = tmp_path / "rabbit@host" / "msg_stores"
    vhosts.mkdir(parents=True)
    unpack(str(CRASHED), str(vhosts))
    return vhosts.parent


def test_every_folder_on_the_way_to_a_vhost_is_a_source(node: Path) -> None:
    vhosts = node / "msg_stores" / "vhosts"
    reports = [inspected(path) for path in (node, node / "msg_stores", vhosts, vhosts / VHOST, CRASHED)]
    assert all(report == reports[0] for report in reports)
    assert reports[0]["kind"] == "rabbitmq-classic-v1"
    assert [(vhost["name"], vhost["dir"]) for vhost in reports[0]["vhosts"]] == [("/", VHOST)]


def test_a_queues_folder_brings_its_vhost_along(node: Path) -> None:
    whole = inspected(node)["vhosts"][0]
    for queue in whole["queues"]:
        vhost = inspected(node / "msg_stores" / "vhosts" / VHOST / "queues" / queue["dir"])["vhosts"][0]
        assert (vhost["name"], vhost["segment_entry_count"]) == ("/", whole["segment_entry_count"])
        assert vhost["queues"] == [queue]
        assert vhost["stores"] == {}


def test_a_queues_folder_that_lies_alone_is_read_without_its_store(node: Path, tmp_path: Path) -> None:
    queue = inspected(node)["vhosts"][0]["queues"][0]
    shutil.copytree(node / "msg_stores" / "vhosts" / VHOST / "queues" / queue["dir"], tmp_path / queue["dir"])
    alone = inspected(tmp_path / queue["dir"])["vhosts"][0]
    assert alone["name"] == "/"
    assert alone["queues"][0]["journal"] == queue["journal"]
    assert 0 < alone["queues"][0]["ready"] < queue["ready"]


def test_an_archive_of_a_folder_above_is_searched(node: Path, tmp_path: Path) -> None:
    path = tmp_path / "backup.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(node, "var/lib/rabbitmq/mnesia/rabbit@host")
    assert inspected(path) == inspected(node)


def test_journal_and_segments_of_a_killed_broker() -> None:
    other, torn = inspected(CRASHED)["vhosts"][0]["queues"]
    assert (other["name"], other["ready"], other["bytes"]) == ("other", 14, 65973)
    assert other["journal"] == {
        "publish_persistent": 16,
        "publish_transient": 0,
        "deliver": 16,
        "ack": 2,
        "torn_bytes": 0,
        "zero_bytes": 512,
    }
    assert (torn["journal"]["torn_bytes"], torn["journal"]["zero_bytes"]) == (370, 0)
    assert torn["segments"] == [{"number": 0, "publish": 0, "deliver": 0, "ack": 0, "unacked": 15}]


@pytest.mark.parametrize("words", ["torn record", "leftover zeros"])
def test_inspect_and_verify_have_the_same_words_for_the_end_of_a_journal(words: str) -> None:
    for command in ("inspect", "verify"):
        assert words in " ".join(warren(command, CRASHED).stdout.split())


def test_each_level_of_a_priority_queue_is_a_queue_of_its_own() -> None:
    queues = {queue["name"]: queue["ready"] for queue in inspected(PRIORITIES)["vhosts"][0]["queues"]}
    assert queues == {"plain": 5, "prio\0\0": 14, "prio\0\1": 6, "prio\0\2": 6, "prio\0\3": 5}
    assert "prio (priority 3)" in warren("inspect", PRIORITIES).stdout


def test_queues_of_all_types_say_what_they_are() -> None:
    report = inspected(ALL_TYPES)
    (vhost,) = report["vhosts"]
    assert report["kind"] == "rabbitmq"
    assert {queue["name"]: (queue["kind"], queue["type"], queue.get("version")) for queue in vhost["queues"]} == {
        **dict.fromkeys("ab", ("rabbitmq-quorum", "quorum", None)),
        **dict.fromkeys(("audit", "lazy", "never-used", "orders", "tmp"), ("rabbitmq-classic-v2", "classic", 2)),
        "old": ("rabbitmq-classic-v1", "classic", 1),
    }
    assert [list(queue)[:4] for queue in vhost["queues"]] == [["name", "dir", "kind", "type"]] * 8
    assert vhost["stores"]


def test_a_vhost_with_quorum_queues_alone_has_no_directory(tmp_path: Path) -> None:
    unpack(str(ALL_TYPES), str(tmp_path))
    (vhost,) = inspected(tmp_path / "node" / "quorum")["vhosts"]
    assert [vhost[key] for key in ("name", "dir", "segment_entry_count", "stores")] == ["/", "", None, {}]
    assert [queue["name"] for queue in vhost["queues"]] == ["a", "b"]
    whole = inspected(ALL_TYPES)["vhosts"][0]["queues"]
    assert vhost["queues"] == [queue for queue in whole if queue["type"] == "quorum"]


def test_a_name_that_is_not_utf8_is_said_without_loss(tmp_path: Path) -> None:
    name = b"caf\xe9\0\xc8"
    vhost = tmp_path / disk.vhost_directory_name(b"/")
    queue = vhost / "queues" / disk.queue_directory_name(b"/", name)
    queue.mkdir(parents=True)
    (vhost / ".vhost").write_bytes(b"/")
    (queue / ".queue_name").write_bytes(disk.queue_name_file(b"/", name))
    assert inspected(tmp_path)["vhosts"][0]["queues"][0]["name"] == os.fsdecode(name)
    assert "caf\\xe9 (priority 200)" in warren("inspect", tmp_path).stdout


def test_not_a_byte_changes(node: Path) -> None:
    before = tree(node)
    for path in node.rglob("*"):
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    locked = tree(node)
    assert inspected(node)["vhosts"]
    assert warren("export", node).exit_code == 1  # its journal is torn
    assert warren("verify", node).exit_code == 1
    assert tree(node) == locked
    assert {name: seen[0] for name, seen in locked.items()} == {name: seen[0] for name, seen in before.items()}
    for path in [node, *node.rglob("*")]:
        path.chmod(stat.S_IRWXU)


def test_what_a_terminal_would_obey_is_escaped(tmp_path: Path) -> None:
    vhost = tmp_path / disk.vhost_directory_name(b"\x1b[31m")
    (vhost / "msg_store_persistent").mkdir(parents=True)
    (vhost / ".vhost").write_bytes(b"\x1b[31m")
    assert "\\x1b[31m" in warren("inspect", tmp_path).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "/no/such/path"],
        ["inspect", str(GOLDEN)],
        ["inspect"],
        ["inspect", str(CRASHED), "--no-such-option"],
        ["no-such-command"],
        ["export", str(CRASHED), "--queue", "nobody's"],
        ["export", str(CRASHED), "--vhost", "nobody's"],
        ["export", str(CRASHED), "--format", "xml"],
        ["export", str(CRASHED), "--out", "/no/such/directory/file"],
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["warren", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    said = capsys.readouterr()
    assert exit_.value.code == 2
    assert said.out == ""
    assert said.err.startswith("warren: ")
    assert said.err.count("\n") == 1
