"""Commands that read a directory, pointed at one that a node has open: one line, and nothing of half-written files."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren as product
from tests.support.cli_tools import warren
from warren.engine import open_vhost
from warren.salvage.live_node import refuse_live_node
from warren.storage import lock_file
from warren.storage.errors import DirectoryLockedError
from warren.storage.filesystem import RealFileSystem
from warren.storage.lock_file import lock_holder


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a node that runs."""
    place = tmp_path_factory.mktemp("live") / "data"
    with product.open(str(place)) as node:
        node.queue("orders").publish(b"body").wait()
        node.topic("events").append(b"body").wait()
        yield place


COMMANDS = (
    ("inspect",),
    ("verify",),
    ("verify", "--json"),
    ("export",),
    ("topic", "entries", "--topic", "events", "--queue-id", "0"),
    ("topic", "scan"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_directory_that_a_node_has_open_is_one_line(command: tuple[str, ...], directory: Path) -> None:
    words = 2 if command[0] == "topic" else 1
    result = warren(*command[:words], directory, *command[words:])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"warren: {directory}: a node of warren runs here (process {os.getpid()},")
    assert "`warren queues`" in line


def test_what_a_node_can_answer_it_is_asked_and_a_part_of_its_directory_is_no_node(directory: Path) -> None:
    read = ("topic", "read", directory, "--topic", "events", "--queue-id", "0", "--format", "body")
    assert warren(*read).stdout in ("", "body\n")
    assert "body\n" in [warren(*read[:-3], str(number), "--format", "body").stdout for number in range(4)]
    result = warren("topic", "read", directory / "topics", *read[3:])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a node of warren runs here" in result.stderr


@pytest.mark.parametrize("part", ["msg_stores", "msg_stores/vhosts", "topics"])
def test_so_is_a_part_of_it(part: str, directory: Path) -> None:
    with pytest.raises(DirectoryLockedError, match="a node of warren runs here"):
        refuse_live_node(str(directory / part))


def test_so_is_one_queue_of_it(directory: Path) -> None:
    (queue,) = directory.glob("msg_stores/vhosts/*/queues/*")
    with pytest.raises(DirectoryLockedError, match="a node of warren runs here"):
        refuse_live_node(str(queue))


def test_so_is_a_vhost_that_is_open_by_itself_and_the_folder_it_lies_in(tmp_path: Path) -> None:
    with open_vhost(str(tmp_path)):
        vhosts = tmp_path / "msg_stores" / "vhosts"
        for place in (tmp_path, vhosts.parent, vhosts, *vhosts.iterdir()):
            with pytest.raises(DirectoryLockedError, match="a node of warren runs here"):
                refuse_live_node(str(place))


def test_looking_takes_no_lock(directory: Path) -> None:
    with pytest.raises(DirectoryLockedError, match="in use by"):
        product.open(str(directory))
    locks, holder = sorted(directory.rglob("*lock*")), lock_holder(str(directory / "warren.lock"))
    assert warren("verify", directory).exit_code == 2
    assert sorted(directory.rglob("*lock*")) == locks
    assert lock_holder(str(directory / "warren.lock")) == holder is not None


def test_a_lock_file_that_stayed_behind_is_in_nobodys_way(tmp_path: Path) -> None:
    with product.open(str(tmp_path / "data")) as node:
        node.queue("orders").publish(b"body").wait()
    (tmp_path / "data" / "warren.lock").write_text("process 1")
    assert warren("export", tmp_path / "data").exit_code == 0
    assert lock_holder(str(tmp_path / "data" / "warren.lock")) is None


def test_a_copy_inside_the_directory_can_be_read(directory: Path) -> None:
    (directory / "backup" / "commitlog").mkdir(parents=True)
    refuse_live_node(str(directory / "backup"))


@pytest.mark.parametrize("can_query", [True, False], ids=["by a query", "by a try"])
def test_the_holder_of_a_lock_is_what_it_wrote(
    can_query: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_file, "_CAN_QUERY", can_query)
    path = str(tmp_path / "warren.lock")
    assert lock_holder(path) is None
    lock = RealFileSystem().lock(path, "process 4711")
    assert lock_holder(path) == "process 4711"
    lock.release()
    assert lock_holder(path) is None
    RealFileSystem().lock(path, "process 4712").release()


def test_a_query_tries_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a lock was tried")

    path = str(tmp_path / "warren.lock")
    lock = RealFileSystem().lock(path, "process 4711")
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refuse)
        assert lock_holder(path) == "process 4711"
    lock.release()
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert lock_holder(path) is None


def test_a_lock_on_another_file_of_the_same_number_is_not_this_ones(tmp_path: Path) -> None:
    """Two file systems number their files alike."""
    places = [tmp_path / "one", tmp_path / "two"]
    mounted = [mount_tmpfs(place) for place in places]
    try:
        if not all(mounted):
            pytest.skip("no file system can be mounted here")
        paths = [str(place / "warren.lock") for place in places]
        lock = RealFileSystem().lock(paths[0], "process 4711")
        RealFileSystem().lock(paths[1], "process 4712").release()
        assert os.stat(paths[0]).st_ino == os.stat(paths[1]).st_ino
        assert [lock_holder(path) for path in paths] == ["process 4711", None]
        lock.release()
    finally:
        for place, is_mounted in zip(places, mounted, strict=True):
            if is_mounted:
                subprocess.run(["umount", "-l", place], check=True)


def mount_tmpfs(place: Path) -> bool:
    place.mkdir()
    return not subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=False, capture_output=True).returncode


@pytest.mark.slow
def test_the_lock_of_another_process_namespace_is_seen(directory: Path) -> None:
    """As in two containers that have one volume."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no process namespace can be made here")
    found = subprocess.run(
        [*inside, sys.executable, "-m", "warren", "verify", directory], check=False, capture_output=True, text=True
    )
    assert found.returncode == 2
    assert "a node of warren runs here" in found.stderr
