"""Whether a path can be opened as a data directory: a part of one is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import warren
from warren.cli import app
from warren.hosting.data_directory import Kind, kind_of
from warren.salvage.archives.archive import unpack

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def extracted(tmp_path: Path) -> Path:
    """An archive of a broker's vhosts, unpacked."""
    place = tmp_path / "extracted"
    place.mkdir()
    unpack(str(GOLDEN / "02-crash-small-mixed.tar.gz"), str(place))
    return place


def everything(directory: Path) -> list[str]:
    return sorted(map(str, directory.rglob("*")))


def parts(extracted: Path) -> dict[str, Path]:
    vhost = next((extracted / "vhosts").iterdir())
    return {
        "as msg_stores": extracted,
        "vhosts": extracted / "vhosts",
        "a vhost": vhost,
        "its queues": vhost / "queues",
        "a queue": next((vhost / "queues").iterdir()),
    }


@pytest.mark.parametrize("open_it", [warren.open, warren.engine.open_vhost], ids=["open", "open_vhost"])
def test_a_part_of_a_data_directory_gets_no_node_into_it(extracted: Path, open_it: Callable[[Path], object]) -> None:
    before = everything(extracted)
    for name, part in parts(extracted).items():
        assert kind_of(str(part)) is Kind.PART, name
        with pytest.raises(warren.errors.ForeignDirectoryError, match="a part of a node's data directory"):
            open_it(part)
    assert everything(extracted) == before


def test_a_topic_store_alone_gets_no_node_into_it(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        node.topic("t").append(b"x").wait()
    with pytest.raises(warren.errors.ForeignDirectoryError):
        warren.open(tmp_path / "node" / "topics")


def test_a_directory_with_other_things_in_it_may_become_a_nodes(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder").mkdir()
    warren.open(tmp_path).close()
    assert kind_of(str(tmp_path)) is Kind.NODES


def test_a_directory_that_nobody_may_look_into_is_one_line_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    result = CliRunner().invoke(app, ["publish", str(tmp_path), "q", "x", "--declare"])
    assert (result.exit_code, result.stderr) == (2, f"warren: {tmp_path}: Permission denied\n")


def test_a_directory_that_cannot_be_made_is_one_line_on_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, mode: int = 0o777) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    path = tmp_path / "a" / "b"
    result = CliRunner().invoke(app, ["publish", str(path), "q", "x", "--declare"])
    assert (result.exit_code, result.stderr) == (2, f"warren: {path}: Permission denied\n")


def test_a_directory_that_appears_meanwhile_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was, in a process that opened a shared directory while another one made it."""
    path, stat = tmp_path / "data", os.stat

    def made_right_after(of: str) -> os.stat_result:
        try:
            return stat(of)
        finally:
            if not os.path.lexists(path):
                os.mkdir(path)

    monkeypatch.setattr(os, "stat", made_right_after)
    assert kind_of(str(path)) is Kind.MISSING
    assert kind_of(str(path)) is Kind.EMPTY
