"""The config files of a RocketMQ's store: shown, and read from their backups if they are damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import warren
from tests.support.cli_tools import warren as command

GROUP = {"groupName": "billing", "consumeEnable": True, "retryMaxTimes": 16}
TOPIC = {"topicName": "events", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "attributes": {}}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with all config files, and a backup of each."""
    with warren.open(tmp_path / "node") as node:
        node.topic("events", queues=2).append(b"x", queue=0).wait()
    config = tmp_path / "node" / "topics" / "config"
    texts = {
        "topics.json": json.dumps({"topicConfigTable": {"events": TOPIC}, "dataVersion": {"counter": 1}}, indent=1),
        "subscriptionGroup.json": json.dumps({"subscriptionGroupTable": {"billing": GROUP}}),
        "delayOffset.json": '{"offsetTable":{2:5,1:7}}',
        "consumerOffset.json": '{"offsetTable":{"events@billing":{0:1}}}',
    }
    for name, text in texts.items():
        (config / name).write_text(text)
        (config / f"{name}.bak").write_text(text)
    return tmp_path / "node" / "topics"


CONFIG = {
    "topics": [TOPIC],
    "subscription_groups": [GROUP],
    "delay_levels": [{"level": 1, "offset": 7}, {"level": 2, "offset": 5}],
}


def test_inspect_has_what_the_files_say(store: Path) -> None:
    result = command("inspect", store, "--json")
    report = json.loads(result.stdout)
    assert (report["config"], result.stderr) == (CONFIG, "")
    assert [(group["group"], group["offset"]) for group in report["groups"]] == [("billing", 1)]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"offsetTable":[],"topicConfigTable":{"a":1}}', b"\xff"])
@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "delayOffset.json", "consumerOffset.json"])
def test_a_damaged_file_falls_back_to_its_backup_with_a_note(store: Path, name: str, damage: bytes) -> None:
    (store / "config" / name).write_bytes(damage)
    result = command("inspect", store, "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["config"]) == (0, CONFIG)
    assert [group["offset"] for group in report["groups"]] == [1]
    assert f"{name}: " in result.stderr
    assert f"{name}.bak is read instead" in result.stderr
    (listed,) = json.loads(command("topic", "list", store, "--json").stdout)
    assert (listed["topic"], listed["queues"]) == ("events", 2)
    with warren.open(store.parent) as node:
        assert node.topics()["events"] == 2


def test_a_file_that_is_damaged_with_its_backup_is_named_and_the_rest_is_there(store: Path) -> None:
    for name in ("subscriptionGroup.json", "subscriptionGroup.json.bak"):
        (store / "config" / name).write_text("{")
    result = command("inspect", store, "--json")
    assert json.loads(result.stdout)["config"] == {**CONFIG, "subscription_groups": []}
    assert "subscriptionGroup.json: cannot be parsed" in result.stderr


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json"])
def test_verify_finds_a_damaged_file(store: Path, name: str) -> None:
    assert command("verify", store).exit_code == 0
    (store / "config" / name).write_text("{")
    result = command("verify", store)
    assert result.exit_code == 1
    assert f"config/{name}" in result.stdout
    assert "unreadable table: cannot be parsed" in result.stdout


def test_a_store_without_config_files_has_none(store: Path) -> None:
    for file in (store / "config").iterdir():
        file.unlink()
    assert json.loads(command("inspect", store, "--json").stdout)["config"] == {name: [] for name in CONFIG}
