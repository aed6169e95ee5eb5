"""``warren demo``: the shipped directory is salvaged as its broker delivered it, and what is not so is named."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
from typer.testing import CliRunner, Result

from warren.cli import app
from warren.commands import demo
from warren.commands.demo import EXPORTED, load_oracle


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["demo", *arguments])


def test_the_directory_is_inspected_verified_and_exported_as_its_broker_delivered_it(tmp_path: Path) -> None:
    place = tmp_path / "new"
    result = run("--directory", str(place))
    assert (result.exit_code, result.stderr) == (0, "")
    commands = [line.split()[2] for line in result.stdout.splitlines() if line.startswith("$ warren ")]
    assert commands == ["inspect", "verify", "export"]
    assert result.stdout.splitlines()[-2:] == [
        "135 messages of 8 queues, classic v1, classic v2 and quorum: those that RabbitMQ 3.10.8 delivered, in order",
        f"The directory is kept: {place}",
    ]
    assert len((place / EXPORTED).read_bytes().splitlines()) == 135


def test_without_a_directory_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run("--json")
    assert (result.exit_code, json.loads(result.stdout)) == (
        0,
        {"broker": "RabbitMQ 3.10.8", "queues": 8, "messages": 135, "bytes": 236125, "held": True, "problems": []},
    )
    assert list(tmp_path.iterdir()) == []


def test_what_the_broker_did_not_deliver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = load_oracle()
    delivered = dict(oracle.delivered)
    delivered["orders"] = attrs.evolve(delivered["orders"], messages=12)
    delivered["a"] = attrs.evolve(delivered["a"], redelivered=[])
    monkeypatch.setattr(demo, "load_oracle", lambda: attrs.evolve(oracle, delivered=delivered))
    result = run()
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "warren: orders: 13 messages, not those that were delivered",
        "warren: a: others are marked as redelivered",
    ]


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    for place in (tmp_path, tmp_path / "precious"):
        result = run("--directory", str(place))
        assert result.exit_code == 2
        assert "there is something in it" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
