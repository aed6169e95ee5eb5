"""Who may read what warren makes, and whose it is."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warren
from tests.support import cli_tools
from tests.support.waiting import wait_until
from warren.storage import own_files
from warren.storage.filesystem import RealFileSystem

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 20_000,
    "msg_store_file_size_limit": 1 << 16,
    "segment_entry_count": 64,
    "queue_index_max_journal_entries": 16,
}
"""Settings under which a little work fills files of each kind."""


def use_everything(node: warren.Node) -> None:
    """Use whatever a node keeps on disk: each of it twice, where the second time writes another file."""
    _use_queues(node)
    _use_vhost(node)
    _use_topics(node)


def _use_queues(node: warren.Node) -> None:
    queue = node.queue("q")
    queue.publish_many([b"small", b"L" * 10_000] * 40).wait()
    for message in queue.get_many(60):  # most of some files of the store are garbage then: it is compacted
        message.ack()
    queue.publish(b"transient", persistent=False).wait()
    queue.publish(b"later", delay=3600).wait()
    node.queue("p", arguments={"x-max-priority": 2}).publish(b"first", priority=1).wait()
    retried = node.queue("r", retry=warren.Retry(limit=3, delay=60))
    retried.publish(b"again").wait()
    if (delivery := retried.get()) is not None:
        delivery.retry()
    node.queue("u").publish(b"once", unique="key", unique_for=300).wait()


def _use_vhost(node: warren.Node) -> None:
    vhost = node.vhost("v")
    vhost.queue("w").publish(b"x", delay=3600).wait()
    vhost.exchange("e", "topic")
    vhost.bind("w", "e", "#")
    vhost.set_policy("p", "^w$", {"max-length": 10_000})
    if "u" not in {user["name"] for user in node.users()}:
        node.add_user("u", "secret")
    node.set_permissions("u", ".*", ".*", ".*")


def _use_topics(node: warren.Node) -> None:
    topic = node.topic("t")
    topic.append_many([b"T" * 5_000] * 30, keys=["k"] * 30).wait()
    for arguments in ({"group": "each"}, {"group": "all", "broadcast": True, "instance_name": "i"}):
        with topic.reader(**arguments) as reader:
            assert list(reader.records(10))
            reader.commit()
    topic.append(b"later", delay=60).wait()
    topic.prepare(b"half")


def kind_of(path: Path) -> str:
    """A file's kind: its path without what differs between files of one kind, numbers and hashes."""
    return re.sub(r"[0-9A-Z]{20,}|\d+", "#", str(path))


@pytest.fixture(params=[pytest.param(0o000, marks=pytest.mark.slow), 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, str]:
    """Of everything that is not private: what it is and its mode."""
    found = {}
    for path in [directory, *directory.rglob("*")]:
        mode = path.lstat().st_mode
        wanted = own_files.DIRECTORY_MODE if stat.S_ISDIR(mode) else own_files.FILE_MODE
        if stat.S_IMODE(mode) != wanted:
            found[str(path)] = stat.filemode(mode)
    return found


@pytest.mark.parametrize(
    "share", [pytest.param(False, id="alone"), pytest.param(True, id="shared", marks=pytest.mark.slow)]
)
def test_everything_that_a_node_makes_is_its_users_alone(tmp_path: Path, umask: None, share: bool) -> None:
    path = tmp_path / "new" / "node"
    kinds: set[str] = set()
    for _ in range(2):  # the second one recovers, and writes what is written over
        with warren.open(path, sync="os", share=share, **SMALL) as node:
            use_everything(node)
            kinds |= {kind_of(one.relative_to(path)) for one in path.rglob("*") if not one.is_dir()}
            wait_until(lambda: not modes(tmp_path / "new"), "what a node makes is not its user's alone")
        kinds |= {kind_of(one.relative_to(path)) for one in path.rglob("*") if not one.is_dir()}
        assert modes(tmp_path / "new") == {}
    assert {kind.rpartition("/")[2] for kind in kinds} >= KINDS


KINDS = (
    {"#.rdq", "#.idx", "journal.jif", ".queue_name", ".vhost", ".config", "recovery.dets", "warren.clean"}
    | {"warren.lock", "warren.sock", "warren.version", "warren.definitions.json", "warren.definitions.log"}
    | {"#.delayed", "returned.log", "unique.log"}
    | {
        "#",
        "abort",
        "lock",
        "checkpoint",
        "topics.json",
        "consumerOffset.json",
        "consumerOffset.json.bak",
        "offsets.json",
    }
)
"""Names, without numbers, of what the workload must have made, or the test would have tested less than it did."""


def test_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    warren.open(tmp_path / "node").close()
    (tmp_path / "node").chmod(0o750)
    [kept] = (tmp_path / "node").rglob("msg_store_persistent/0.rdq")
    kept.chmod(0o640)
    warren.open(tmp_path / "node").close()
    assert stat.S_IMODE((tmp_path / "node").stat().st_mode) == 0o750
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser makes things for others")
def test_what_the_superuser_makes_in_somebodys_directory_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12_345, 23_456)
    with warren.open(tmp_path / "theirs", sync="os") as node:
        node.queue("q").publish_many([b"small", b"L" * 10_000]).wait()
        node.topic("t").append(b"x").wait()
    for path in (tmp_path / "theirs").rglob("*"):
        assert (path.stat().st_uid, path.stat().st_gid) == (12_345, 23_456), path
    warren.open(tmp_path / "theirs" / "data of root's own").close()
    assert (tmp_path / "theirs" / "data of root's own").stat().st_uid == 0


def test_a_dangling_link_in_a_files_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "file").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(warren.StorageError):
        RealFileSystem().open_append(str(tmp_path / "file"))
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_a_record_is_its_users_alone_and_an_export_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with warren.open(tmp_path / "node", sync="os", record=str(tmp_path / "record.parquet")) as node:
            node.queue("q").publish(b"x").wait()
        assert cli_tools.warren("export", tmp_path / "node", "--out", tmp_path / "export.jsonl").exit_code == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "export.jsonl").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "record.parquet").stat().st_mode) == 0o600
