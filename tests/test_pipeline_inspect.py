"""``warren spark inspect``: every queue and topic of every node, as on one machine; and the commands of three jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.support.damaged_nodes import DAMAGE, damaged
from tests.support.pipeline_tools import (
    RABBITMQ,
    ROCKETMQ,
    by_a_task,
    expected_rows,
    rabbitmq_node,
    reported_on_one_machine,
    rocketmq_node,
)
from warren.cli import app
from warren.pipeline.jobs.inspect import NODE, QUEUE, STORE_FILE, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.parametrize("scenario", RABBITMQ)
def test_queues_and_stores_are_those_of_one_machine(scenario: str) -> None:
    path = rabbitmq_node(scenario)
    found = by_a_task(path)
    queues, stores = expected_rows(reported_on_one_machine(path))
    assert (found[QUEUE], found[STORE_FILE], found[TOPIC]) == (queues, stores, [])
    (node,) = found[NODE]
    assert node["queues"] == len(queues)
    assert node["ready"] == sum(queue["ready"] for queue in queues)
    assert node["bytes"] == sum(queue["bytes"] for queue in queues)


@pytest.mark.parametrize("scenario", ROCKETMQ)
def test_topics_are_those_of_one_machine(scenario: str) -> None:
    path = rocketmq_node(scenario)
    found = by_a_task(path)
    report = reported_on_one_machine(path)
    assert (found[TOPIC], found[QUEUE], found[STORE_FILE]) == (report["queues"], [], [])
    (node,) = found[NODE]
    for name in ("commit_log", "groups", "checkpoint", "settings", "clean"):
        assert node[name] == report[name]
    for one in (*node["index_files"], *report["index_files"]):
        del one["name"]  # a file that recovery makes is named after the time
    assert node["index_files"] == report["index_files"]
    assert node["records"] == sum(file["records"] for file in report["commit_log"]["files"])


def test_settings_of_the_user_are_heeded() -> None:
    (node,) = by_a_task(rocketmq_node(ROCKETMQ[0]), maxIndexNum="7000000")[NODE]
    assert node["settings"]["maxIndexNum"] == {"value": 7000000, "from": "set"}


def test_what_cannot_be_read_of_a_node_is_its_problem(tmp_path: Path) -> None:
    node = tmp_path / "node"
    (node / "commitlog").mkdir(parents=True)
    for base, size in ((0, 500), (1024, 1024), (2048, 1024)):
        (node / "commitlog" / f"{base:020}").write_bytes(bytes(size))
    (said,) = by_a_task(str(node))[NODE]
    assert said["unread"]
    assert "wrong file length: 500 bytes, and not 1024" in said["problems"][-1]


@pytest.mark.slow
@pytest.mark.spark
def test_the_command_says_all_nodes_and_writes_tables(spark: SparkSession, tmp_path: Path) -> None:
    scenario, spoil = DAMAGE["a queue that cannot be read"]
    nodes = [rocketmq_node(ROCKETMQ[0]), rabbitmq_node(RABBITMQ[0]), damaged(scenario, tmp_path / "node", spoil)]
    result = CliRunner().invoke(app, ["spark", "inspect", *nodes, "--json"])
    said = json.loads(result.stdout)
    assert result.exit_code == 0
    queues = [{"node": node, **row} for node in nodes[1:] for row in expected_rows(reported_on_one_machine(node))[0]]
    assert said["queues"] == queues
    assert said["topics"] == [{"node": nodes[0], **row} for row in reported_on_one_machine(nodes[0])["queues"]]
    assert [node["node"] for node in said["nodes"]] == nodes

    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["spark", "inspect", *nodes, "--out", str(out), "--format", "jsonl"])
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir(out)) == ["nodes", "queues", "stores", "topics"]
    rows = [json.loads(line) for part in sorted((out / "queues").glob("part-*")) for line in part.open()]
    assert [(row["node"], row["name"], row["ready"]) for row in rows] == [
        (row["node"], row["name"], row["ready"]) for row in queues
    ]
    assert rows[0].keys() == {"node", "vhost", "name", "dir", "kind", "type", "version", "ready", "bytes", "report"}


@pytest.mark.slow
@pytest.mark.spark
def test_verify_as_a_command(spark: SparkSession, tmp_path: Path) -> None:
    scenario, spoil = DAMAGE["torn store file"]
    nodes = [rabbitmq_node(scenario), damaged(scenario, tmp_path / "node", spoil)]
    result = CliRunner().invoke(app, ["spark", "verify", *nodes, "--json"])
    said = json.loads(result.stdout)
    assert result.exit_code == 1
    damage = [row for row in said["findings"] if row["severity"] == "damage"]
    assert {row["node"] for row in damage} == {nodes[1]}
    assert (said["damage"], said["leftover"]) == (len(damage), len(said["findings"]) - len(damage))

    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["spark", "verify", *nodes, "--out", str(out), "--format", "jsonl"])
    assert (result.exit_code, f"{len(damage)} damaged" in result.stdout) == (1, True)
    rows = [json.loads(line) for part in sorted(out.glob("part-*")) for line in part.open()]
    assert rows == said["findings"]

    result = CliRunner().invoke(app, ["spark", "verify", nodes[1]])
    assert result.exit_code == 1
    assert "record out of bounds" in result.stdout


@pytest.mark.parametrize("job", ["inspect", "verify", "compact"])
def test_a_path_without_a_store_is_said_in_one_line(job: str) -> None:
    result = CliRunner().invoke(app, ["spark", job, "/nowhere"])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "warren: /nowhere: no such directory\n")
