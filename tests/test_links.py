"""Links in the place of a node's files: nothing is written, truncated or deleted that they lead to."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import warren
from tests.support import effort
from tests.support.tried import Count, Tried
from warren.storage.filesystem import RealFileSystem


def work(path: Path) -> None:
    """Touch every kind of file that a node has."""
    small: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 20_000}
    with warren.open(path, sync="os", **small) as node:
        node.queue("q").publish_many([b"small", b"L" * 10_000] * 20).wait()
        node.queue("q").get_many(5)
        node.vhost("v").queue("w", arguments={"x-max-priority": 2}).publish(b"x").wait()
        node.topic("t").append(b"x", key="k").wait()
        node.set_permissions("guest", ".*", ".*", ".*")


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and bytes of every file."""
    return {str(path): (path.stat().st_mode, path.read_bytes()) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("dangling", [False, True], ids=["to a file", "to nothing"])
def test_a_link_in_the_place_of_any_file_of_a_node(tmp_path: Path, dangling: bool, tried: Count) -> None:
    work(tmp_path / "whole")
    files = sorted(path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*") if path.is_file())
    files += [Path(name) for name in ("warren.lock", "warren.sock")]
    elsewhere = tmp_path / "elsewhere"
    files = files[dangling :: effort.times(5, quick=5, nightly=1)]
    for file in files:
        node = tmp_path / "node"
        shutil.copytree(tmp_path / "whole", node)
        elsewhere.mkdir()
        if (node / file).exists():
            shutil.move(node / file, elsewhere / "file")
        else:
            (elsewhere / "file").write_bytes(b"somebody else's")
        if dangling:
            (elsewhere / "file").unlink()
        (node / file).symlink_to(elsewhere / "file")
        before = contents(elsewhere)
        with contextlib.suppress(warren.WarrenError):
            work(node)
        assert contents(elsewhere) == before, file
        shutil.rmtree(node)
        shutil.rmtree(elsewhere)
    tried(Tried.DAMAGED_FILES, len(files))


@pytest.mark.slow
def test_a_directory_that_is_a_link_is_followed_and_what_else_is_there_is_kept(tmp_path: Path, tried: Count) -> None:
    """An operator moves what he likes to another disk."""
    work(tmp_path / "whole")
    directories = sorted(one.relative_to(tmp_path / "whole") for one in (tmp_path / "whole").rglob("*") if one.is_dir())
    directories = directories[:: effort.times(4, quick=4, nightly=1)]
    node, elsewhere = tmp_path / "node", tmp_path / "elsewhere"
    for directory in directories:
        shutil.copytree(tmp_path / "whole", node)
        elsewhere.mkdir()
        shutil.move(node / directory, elsewhere / "moved")
        (elsewhere / "moved" / "somebody's").mkdir()
        (elsewhere / "moved" / "somebody's" / "file").write_bytes(b"kept")
        (node / directory).symlink_to(elsewhere / "moved")
        held = elsewhere / "moved" / "somebody's"
        if directory.name == "queues" or directory.parent.name == "warren.queues":
            shutil.rmtree(held)  # a folder among queues is a queue's
            held = elsewhere / "moved"
        else:
            held = held / "file"
        work(node)
        with warren.open(node, sync="os") as opened:
            assert len(opened.queue("q")) == 80, directory
            for queue in opened.queues():
                queue.delete()
            opened.delete_vhost("v")
        assert held.exists(), directory
        shutil.rmtree(node)
        shutil.rmtree(elsewhere)
    tried(Tried.DAMAGED_FILES, len(directories))


@pytest.mark.parametrize("where", ["msg_stores/vhosts/*/queues", "warren.queues/*"])
def test_a_file_among_the_folders_of_queues_is_left_alone(tmp_path: Path, where: str) -> None:
    with warren.open(tmp_path, sync="os") as node:
        node.queue("q").publish(b"x", unique="k", unique_for=60).wait()
    [folder] = tmp_path.glob(where)
    (folder / ".DS_Store").write_bytes(b"not ours")
    with warren.open(tmp_path, sync="os") as node:
        assert [message.body for message in node.queue("q").browse()] == [b"x"]
    assert (folder / ".DS_Store").read_bytes() == b"not ours"


def test_a_lock_file_that_is_a_link_does_not_empty_what_it_leads_to(tmp_path: Path) -> None:
    warren.open(tmp_path / "node").close()
    (tmp_path / "precious").write_bytes(b"kept")
    (tmp_path / "node" / "warren.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(warren.StorageError, match="symbolic link"):
        warren.open(tmp_path / "node")
    assert (tmp_path / "precious").read_bytes() == b"kept"


def test_a_file_that_is_a_link_is_read_and_not_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    files = RealFileSystem()
    assert files.read(str(tmp_path / "link")) == b"kept"
    with pytest.raises(warren.StorageError, match="not a file, but a symbolic link"):
        files.open_append(str(tmp_path / "link"))
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_a_tree_that_is_a_link_is_deleted_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "there" / "inside").mkdir(parents=True)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "there")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    for name in ("tree", "link"):
        RealFileSystem().delete_tree(str(tmp_path / name))
        assert not os.path.lexists(tmp_path / name)
    assert (tmp_path / "there" / "inside").is_dir()
