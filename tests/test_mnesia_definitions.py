"""Definitions of stopped and killed RabbitMQs, from their Mnesia files, against what the restarted broker exported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.support import cli_tools
from tests.support.rabbitmq_golden import DEFINITIONS, archives, manifest_of, name_of
from warren.salvage.archives.archive import unpack

Json = dict[str, Any]


@pytest.fixture(scope="module", params=archives(DEFINITIONS), ids=name_of)
def archive(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def warren(*arguments: str | Path, exit_code: int = 0) -> Result:
    result = cli_tools.warren(*arguments)
    assert result.exit_code == exit_code, result.stderr
    return result


def as_sets(document: Json) -> Json:
    """Without an order of lists, and without the fields that say which program it was."""
    return {
        part: sorted(json.dumps(item, sort_keys=True) for item in items)
        for part, items in document.items()
        if isinstance(items, list)
    }


def definitions_of(*arguments: str | Path, exit_code: int = 0) -> Json:
    document: Json = json.loads(warren("definitions", *arguments, exit_code=exit_code).stdout)
    return document


def test_definitions_are_those_of_the_restarted_broker(archive: Path) -> None:
    expected = manifest_of(archive)["after_restart"]
    document = definitions_of(archive)
    assert as_sets(document) == as_sets(expected)
    assert document["rabbitmq_version"] == expected["rabbitmq_version"]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The directory of a node that was killed, with everything in LATEST.LOG."""
    (path,) = (path for path in archives(DEFINITIONS) if path.name.startswith("02-"))
    unpack(str(path), str(tmp_path))
    return tmp_path / "node"


def test_a_vhosts_definitions_do_not_name_the_vhost(killed: Path) -> None:
    whole, part = definitions_of(killed), definitions_of(killed, "--vhost", "vh/ö")
    assert {name: items for name, items in part.items() if isinstance(items, list)} == {
        name: [
            {key: value for key, value in item.items() if key != "vhost"}
            for item in whole[name]
            if item["vhost"] == "vh/ö"
        ]
        for name in ("queues", "exchanges", "bindings", "policies", "parameters")
    }
    assert "no vhost 'missing'" in warren("definitions", killed, "--vhost", "missing", exit_code=2).stderr


def test_a_torn_log_is_reported_and_the_rest_is_there(killed: Path) -> None:
    before = definitions_of(killed)
    log = killed / "LATEST.LOG"
    log.write_bytes(log.read_bytes()[:-5])
    result = warren("definitions", killed, exit_code=1)
    assert "LATEST.LOG, offset" in result.stderr
    assert "torn log" in result.stderr
    assert len(json.loads(result.stdout)["queues"]) >= len(before["queues"]) - 1


def test_damage_in_a_log_costs_only_what_it_hit(killed: Path) -> None:
    before = as_sets(definitions_of(killed))
    log = killed / "LATEST.LOG"
    data = bytearray(log.read_bytes())
    at = data.index(b"x.topic")
    data[at - 40 : at] = bytes(40)
    log.write_bytes(data)
    result = warren("definitions", killed, exit_code=1)
    assert "LATEST.LOG, offset" in result.stderr
    after = as_sets(json.loads(result.stdout))
    assert after["users"] == before["users"]
    assert after["queues"] == before["queues"]


def test_a_file_that_is_no_log_is_named_and_the_others_are_read(killed: Path) -> None:
    (killed / "rabbit_durable_queue.DCL").write_bytes(b"")
    result = warren("definitions", killed, exit_code=1)
    assert "rabbit_durable_queue.DCL, offset 0: unreadable log: no disk_log file" in result.stderr
    assert json.loads(result.stdout)["queues"]


def test_a_missing_table_of_the_schema_is_reported(killed: Path) -> None:
    (killed / "rabbit_user.DCD").unlink()
    result = warren("definitions", killed, exit_code=1)
    assert "rabbit_user.DCD: missing table" in result.stderr
    assert json.loads(result.stdout)["users"]  # the log has them


def test_definitions_in_khepri_are_refused_by_name(killed: Path) -> None:
    for name in ("schema.DAT", "LATEST.LOG"):
        (killed / name).unlink()
    config = next((killed / "coordination").glob("*/*/config"))
    config.write_text(config.read_text().replace("rabbit_stream_coordinator", "rabbitmq_metadata"))
    assert "its definitions are in Khepri" in warren("definitions", killed, exit_code=2).stderr


def test_places_without_definitions_are_refused(killed: Path) -> None:
    said = warren("definitions", killed / "msg_stores", exit_code=2).stderr
    assert "holds no RabbitMQ data directory with definitions" in said
    assert "no such file or directory" in warren("definitions", killed / "missing", exit_code=2).stderr
    assert "not a .tar.gz" in warren("definitions", killed / "schema.DAT", exit_code=2).stderr


def test_of_several_nodes_one_has_to_be_named(killed: Path) -> None:
    shutil.copytree(killed, killed.parent / "other")
    said = warren("definitions", killed.parent, exit_code=2).stderr
    assert "holds the directories of 2 nodes (node, other)" in said


def test_nothing_in_the_directory_changes(killed: Path) -> None:
    before = {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()}
    definitions_of(killed)
    assert {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()} == before
