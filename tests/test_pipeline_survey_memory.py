"""Surveys are kept while a store's files stay as they were, and only in places that no other user can write to."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.support.pipeline_tools import ROCKETMQ, rocketmq_node
from warren.tables.places import Node, find_nodes
from warren.tables.survey import remembered, survey


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A store of its own, and a system's folder for temporary files of its own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    store = tmp_path / "store"
    shutil.copytree(rocketmq_node(ROCKETMQ[0]), store)
    return find_nodes([str(store)])[0]


def made(node: Node, settings: dict[str, str] | None = None) -> bool:
    """Whether a survey has to be made; it must be the right one in any case."""
    count = 0

    def make() -> object:
        nonlocal count
        count += 1
        return survey(node, settings or {})

    assert remembered(node, settings or {}, make) == survey(node, settings or {})  # type: ignore[arg-type]
    return count == 1


def test_a_survey_is_made_once_for_the_same_files_and_settings(node: Node) -> None:
    assert made(node)
    assert not made(node)
    assert made(node, {"maxMessageSize": "100000"})
    assert not made(node)


def test_any_change_of_the_files_is_noticed(node: Node) -> None:
    assert made(node)
    (log,) = sorted(Path(node.directory, "commitlog").iterdir())[:1]
    before = log.stat().st_mtime_ns
    with log.open("r+b") as file:
        file.write(bytes(8))  # the first record is no more
    assert log.stat().st_mtime_ns != before
    assert made(node)
    Path(node.directory, "abort").touch()
    assert made(node)
    Path(node.directory, "abort").unlink()
    assert not made(node)


@pytest.mark.parametrize("mode", [0o777, 0o750])
def test_a_folder_that_others_may_use_is_not_used(node: Node, mode: int) -> None:
    folder = Path(tempfile.gettempdir(), f"warren-surveys-{os.getuid()}")
    folder.mkdir()
    folder.chmod(mode)
    assert made(node)
    assert made(node)
    assert not list(folder.iterdir())


def test_a_file_that_is_no_survey_is_made_anew(node: Node) -> None:
    assert made(node)
    (kept,) = Path(tempfile.gettempdir(), f"warren-surveys-{os.getuid()}").iterdir()
    kept.write_text("{")
    assert made(node)
    assert not made(node)
