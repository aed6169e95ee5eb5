"""A volume or an archive with several nodes' directories: listed, and read one by one or together."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

import warren as library
from tests.support.cli_tools import warren
from tests.support.pipeline_tools import read_rows
from tests.support.quorum_tools import NODE, ORDERS, QuorumNode, plain_log, records
from tests.support.stream_tools import StreamWriter
from warren.salvage.source import open_source
from warren.storage.errors import DataError
from warren.storage.filesystem import RealFileSystem
from warren.tables.places import find_nodes

FIRST, SECOND = "rabbit@0a1b2c3d4e5f", "rabbit@f5e4d3c2b1a0"
STARTED = {FIRST: 1_600_000_000, SECOND: 1_700_000_000}
WRITTEN = {FIRST: "2020-09-13 12:26:40 UTC", SECOND: "2023-11-14 22:13:20 UTC"}
COUNTS = {FIRST: 5, SECOND: 3}


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """What a container leaves that had another host name at its second start."""
    for name, queue in ((FIRST, b"orders"), (SECOND, b"mails")):
        directory = tmp_path / "volume" / "mnesia" / name
        node = QuorumNode(RealFileSystem(), str(directory / "quorum" / NODE))
        node.queue(b"/", queue, ORDERS)
        node.wal(1, records(ORDERS, plain_log(COUNTS[name])))
        for place, _, files in os.walk(directory):
            for file in files:
                os.utime(Path(place, file), (STARTED[name],) * 2)
    return tmp_path / "volume"


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def listed(*arguments: str | Path) -> list[tuple[str, str, int]]:
    report = json.loads(warren("inspect", *arguments, "--json").stdout)
    return [(node["name"], node["last_written"], node["messages"]) for node in report["nodes"]]


EXPECTED = [(name, WRITTEN[name], COUNTS[name]) for name in (FIRST, SECOND)]


@pytest.mark.parametrize("inner", ["", "mnesia"])
def test_inspect_lists_the_nodes_of_a_volume(volume: Path, inner: str) -> None:
    assert listed(volume / inner) == EXPECTED
    text = warren("inspect", volume / inner)
    assert text.exit_code == 0
    for name in (FIRST, SECOND):
        assert f"{name}   {WRITTEN[name]}" in text.stdout


def test_inspect_lists_the_nodes_of_an_archive(volume: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "volume.tar.gz", "w:gz") as archive:
        archive.add(volume, "backup/var/lib/rabbitmq")
    assert listed(tmp_path / "volume.tar.gz") == EXPECTED
    shutil.make_archive(str(tmp_path / "volume"), "zip", volume)
    assert [(name, messages) for name, _, messages in listed(tmp_path / "volume.zip")] == list(COUNTS.items())


@pytest.mark.parametrize("command", ["verify", "export"])
def test_no_choice_among_several_nodes_is_an_error_that_lists_them(volume: Path, command: str) -> None:
    result = warren(command, volume)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    for name in (FIRST, SECOND):
        assert f"{name} (last written {WRITTEN[name]}, {COUNTS[name]} messages)" in result.stderr
    assert "--node" in result.stderr


def test_one_node_is_chosen_by_its_name(volume: Path) -> None:
    exported = lines(warren("export", volume, "--node", SECOND).stdout)
    assert [(line["queue"], "node" in line) for line in exported] == [("mails", False)] * 3
    report = json.loads(warren("inspect", volume, "--node", FIRST, "--json").stdout)
    assert [queue["name"] for queue in report["vhosts"][0]["queues"]] == ["orders"]
    assert warren("verify", volume, "--node", FIRST).exit_code == 0


def test_an_unknown_node_is_an_error_that_names_those_there(volume: Path) -> None:
    result = warren("inspect", volume, "--node", "rabbit@nobody")
    assert result.exit_code == 2
    assert f"no node 'rabbit@nobody'; there are {FIRST}, {SECOND}" in result.stderr


def test_lines_of_all_nodes_name_their_node(volume: Path) -> None:
    exported = lines(warren("export", volume, "--node", "all").stdout)
    assert [(line["node"], line["position"]) for line in exported] == [
        *((FIRST, position) for position in range(5)),
        *((SECOND, position) for position in range(3)),
    ]
    limited = lines(warren("export", volume, "--node", "all", "--limit", "6").stdout)
    assert [line["node"] for line in limited] == [FIRST] * 5 + [SECOND]


def test_a_queue_that_one_node_has_is_exported_from_it(volume: Path) -> None:
    exported = lines(warren("export", volume, "--node", "all", "--queue", "mails").stdout)
    assert {(line["node"], line["queue"]) for line in exported} == {(SECOND, "mails")}
    missing = warren("export", volume, "--node", "all", "--queue", "typo")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "no queue 'typo'" in missing.stderr


def test_a_format_without_a_column_for_nodes_takes_one_node(volume: Path, tmp_path: Path) -> None:
    out = tmp_path / "messages.csv"
    assert warren("export", volume, "--node", "all", "--out", out).exit_code == 2
    assert not out.exists()
    assert warren("export", volume, "--node", FIRST, "--out", out).exit_code == 0


def test_verify_of_all_nodes_adds_up_their_findings(volume: Path) -> None:
    assert warren("verify", volume, "--node", "all").exit_code == 0
    for name in (FIRST, SECOND):
        shutil.rmtree(volume / "mnesia" / name / "quorum" / NODE / ORDERS.decode())
        (volume / "mnesia" / name / "quorum" / NODE / ORDERS.decode()).mkdir()
        (volume / "mnesia" / name / "quorum" / NODE / ORDERS.decode() / "config").write_bytes(b"#{")
    report = json.loads(warren("verify", volume, "--node", "all", "--json").stdout)
    assert {path.split("/mnesia/")[1].split("/")[0] for path in (one["path"] for one in report["findings"])} == {
        FIRST,
        SECOND,
    }


def test_nodes_of_one_name_are_told_apart_by_their_paths(volume: Path, tmp_path: Path) -> None:
    for host in ("a", "b"):
        shutil.copytree(volume / "mnesia" / FIRST, tmp_path / "hosts" / host / "data")
    assert [name for name, _, _ in listed(tmp_path / "hosts")] == ["a/data", "b/data"]


def test_a_node_that_runs_is_listed_and_not_read(volume: Path) -> None:
    with library.open(volume / "mnesia" / "running") as node:
        node.queue("q").publish(b"x")
        report = json.loads(warren("inspect", volume, "--json").stdout)
        (running,) = [one for one in report["nodes"] if one["name"] == "running"]
        assert running["messages"] is None
        assert "a node of warren runs here" in running["problem"]
        assert warren("export", volume, "--node", "running").exit_code == 2
        assert warren("export", volume, "--node", FIRST).exit_code == 0


@pytest.mark.parametrize("target", [FIRST, "../outside"])
def test_a_link_to_a_node_is_no_node_of_its_own(volume: Path, target: str) -> None:
    """Whether its name comes before that of the directory or after; of two links to another place one counts."""
    if target != FIRST:
        shutil.move(volume / "mnesia" / FIRST, volume / "outside")
    for link in ("current", "the-first"):
        (volume / "mnesia" / link).symlink_to(target)
    assert len(listed(volume / "mnesia")) == 2
    exported = lines(warren("export", volume / "mnesia", "--node", "all").stdout)
    assert len(exported) == sum(COUNTS.values())
    if target == FIRST:
        assert listed(volume) == EXPECTED
    shutil.rmtree(volume / "mnesia" / SECOND)
    with open_source(str(volume / "mnesia")) as source:
        assert [queue.summary().ready for vhost in source.vhosts for queue in vhost.queues] == [COUNTS[FIRST]]


def test_the_list_says_what_was_lost_of_a_node_and_what_is_not_read(volume: Path) -> None:
    first, second = (volume / "mnesia" / name for name in (FIRST, SECOND))
    node = QuorumNode(RealFileSystem(), str(first / "quorum" / NODE))
    node.meta({ORDERS: 6})
    node.wal(1, records(ORDERS, plain_log(1)[:2]))
    StreamWriter(second / "stream" / "__events_1795847813505985842")
    result = warren("inspect", volume, "--json")
    report = json.loads(result.stdout)["nodes"]
    assert (result.exit_code, [node["messages"] for node in report]) == (0, [0, COUNTS[SECOND]])
    problems = [f"{first}: log cut short", f"{second}: nameless stream"]
    assert [node["problem"] for node in report] == problems
    assert warren("inspect", volume).stderr == "".join(f"warren: {problem}\n" for problem in problems)
    assert f", 0 messages, {problems[0]})" in warren("export", volume).stderr


def test_the_library_says_that_one_of_several_nodes_has_to_be_named(volume: Path) -> None:
    with pytest.raises(DataError, match=f"2 nodes \\(mnesia/{FIRST}, mnesia/{SECOND}\\)"), open_source(str(volume)):
        pass


# ── one node, from wherever the path points ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("above", ["", "..", "../.."])
def test_a_node_is_found_in_the_directories_above_it(volume: Path, above: str) -> None:
    shutil.rmtree(volume / "mnesia" / SECOND)
    path = volume / "mnesia" / FIRST / above
    assert len(lines(warren("export", path).stdout)) == 5
    rows = read_rows("messages", str(path))
    assert [row["node"] for row in rows] == [str(path)] * 5


def test_a_node_above_a_directory_of_its_own_files_is_not_searched_for(volume: Path) -> None:
    (volume / "mnesia" / "notes").mkdir()
    result = warren("inspect", volume / "mnesia" / "notes")
    assert (result.exit_code, "is no RabbitMQ data directory" in result.stderr) == (2, True)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tables_have_the_rows_of_every_node_in_a_volume(volume: Path) -> None:
    names = [f"{volume}/mnesia/{name}" for name in (FIRST, SECOND)]
    assert [node.name for node in find_nodes([str(volume)])] == names
    rows = read_rows("messages", str(volume))
    assert [row["node"] for row in rows] == [names[0]] * 5 + [names[1]] * 3


def test_a_node_that_two_paths_hold_is_loaded_once(volume: Path) -> None:
    assert len(find_nodes([str(volume), str(volume / "mnesia"), str(volume / "mnesia" / FIRST)])) == 2
