"""``export --queue`` looks at the directories of the named queues, and at others only if it has to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.classic_tools import QueueOnDisk, VhostOnDisk
from tests.support.cli_tools import warren
from warren.queue_index.index import directory as disk
from warren.salvage import source
from warren.storage.filesystem import RealFileSystem

MANY = 30


class CountingFileSystem(RealFileSystem):
    """Notes every directory that is listed and every file that is opened or read."""

    looked_at: list[str]

    def list(self, path: str) -> list[str]:
        self.looked_at.append(path)
        return super().list(path)

    def open_read(self, path: str) -> Any:
        self.looked_at.append(path)
        return super().open_read(path)

    def read(self, path: str) -> bytes:
        self.looked_at.append(path)
        return super().read(path)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths, as they are looked at."""
    paths: list[str] = []
    monkeypatch.setattr(CountingFileSystem, "looked_at", paths, raising=False)
    monkeypatch.setattr(source, "RealFileSystem", CountingFileSystem)
    return paths


@pytest.fixture
def queues(tmp_path: Path) -> dict[bytes, QueueOnDisk]:
    """By name, each with a message that is its name: q0 … and two levels of ``prio``."""
    vhost = VhostOnDisk(tmp_path / "node")
    names = [b"q%d" % number for number in range(MANY)]
    found = {name: vhost.queue(name) for name in (*names, disk.level_name(b"prio", 0), disk.level_name(b"prio", 9))}
    for queue in found.values():
        queue.publish(0, embedded=queue.message(0, queue.name))
    return found


def exported(tmp_path: Path, *names: str) -> list[str]:
    """The queues of the messages, in order."""
    result = warren("export", tmp_path / "node", *(word for name in names for word in ("--queue", name)))
    return [json.loads(line)["queue"] for line in result.stdout.splitlines()]


def directories(looked_at: list[str], queues: dict[bytes, QueueOnDisk]) -> set[bytes]:
    """The queues whose directories were looked at."""
    return {name for name, queue in queues.items() if any(path.startswith(str(queue.path)) for path in looked_at)}


def test_only_the_queue_that_is_named_is_looked_at(
    tmp_path: Path, queues: dict[bytes, QueueOnDisk], looked_at: list[str]
) -> None:
    assert exported(tmp_path, "q7") == ["q7"]
    assert directories(looked_at, queues) == {b"q7"}
    del looked_at[:]
    assert len(exported(tmp_path)) == MANY + 2
    assert directories(looked_at, queues) == set(queues), "all are wanted"


def test_the_levels_of_a_priority_queue_are_found_by_its_name(
    tmp_path: Path, queues: dict[bytes, QueueOnDisk], looked_at: list[str]
) -> None:
    assert exported(tmp_path, "prio", "q1") == ["prio", "prio", "q1"]
    assert directories(looked_at, queues) == {b"prio\0\0", b"prio\0\x09", b"q1"}


def test_a_queue_in_a_directory_of_another_name_is_found_beside_its_own(
    tmp_path: Path, queues: dict[bytes, QueueOnDisk]
) -> None:
    copy = queues[b"q3"].path.with_name("q3 of last week")
    copy.mkdir()
    for file in queues[b"q3"].path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert exported(tmp_path, "q3") == ["q3", "q3"]
    assert exported(tmp_path, "q4") == ["q4"]


def test_a_queue_that_is_not_where_its_name_says_is_found(tmp_path: Path, queues: dict[bytes, QueueOnDisk]) -> None:
    queues[b"q3"].path.rename(queues[b"q3"].path.with_name(disk.queue_directory_name(b"/", b"elsewhere")))
    assert exported(tmp_path, "q3") == ["q3"]


def test_a_directory_whose_name_file_is_damaged_is_no_proof(tmp_path: Path, queues: dict[bytes, QueueOnDisk]) -> None:
    (queues[b"q3"].path / disk.QUEUE_NAME_FILE).write_bytes(b"VHOST")
    assert exported(tmp_path, queues[b"q3"].path.name) == [queues[b"q3"].path.name], "its directory's name stands in"
    assert warren("export", tmp_path / "node", "--queue", "q3").exit_code == 2


def test_orphans_are_told_by_all_queues(tmp_path: Path, queues: dict[bytes, QueueOnDisk], looked_at: list[str]) -> None:
    assert warren("export", tmp_path / "node", "--queue", "q7", "--orphans").exit_code == 0
    assert directories(looked_at, queues) == set(queues)
