"""``warren.version``: a directory says which warren may read and write it; what is too new is one line, untouched."""

from __future__ import annotations

import json
import random
import shutil
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warren as product
from tests.support.cli_tools import warren
from tests.support.runtime_tools import BIG, DATA, bodies, hand_node
from tests.support.sharing_tools import hang_up
from warren.amqp.own_methods import PROTOCOL
from warren.durable_queue import DurableQueue
from warren.salvage.source import open_source
from warren.server import login as host_side
from warren.storage import data_version
from warren.storage.data_version import (
    CURRENT,
    FILE_NAME,
    FORMAT,
    MAX_BYTES,
    WARREN_VERSION,
    DataVersion,
    Numbers,
    read_version,
)
from warren.storage.errors import DataError, DiskFullError, StorageError
from warren.storage.faults import SimulatedCrash
from warren.storage.filesystem import RealFileSystem
from warren.storage.memory import MemoryFileSystem

PATH = f"{DATA}/{FILE_NAME}"
GOLDEN = Path(__file__).parent / "golden"

NEWER = CURRENT._replace(numbers=Numbers(FORMAT.first + 1, 0), created_by="8.0.0", written_by="9.1.0")
"""What this warren would read wrongly."""
SLIGHTLY_NEWER = CURRENT._replace(numbers=Numbers(FORMAT.first, FORMAT.second + 1), written_by="9.1.0")
WITH_A_FEATURE = CURRENT._replace(features=(*CURRENT.features, "ciphers"), written_by="9.1.0")
ONLY_TO_READ = [SLIGHTLY_NEWER, WITH_A_FEATURE]


SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 50,
    "max_index_num": 100,
}
"""The topics' files are read whole again and again."""


def everything(directory: Path) -> dict[str, tuple[bytes, int] | None]:
    """All there is, with when it was changed."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else None
        for path in directory.rglob("*")
    }


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's directory, with a queue and a topic."""
    place = tmp_path_factory.mktemp("closed") / "data"
    with product.open(place, **SMALL) as node:
        node.queue("orders").publish_many([b"one", BIG]).wait()
        node.topic("events", queues=1).append(b"an event").wait()
    return place


@pytest.fixture
def directory(closed: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(closed, tmp_path / "data"))


def says(directory: Path) -> DataVersion | None:
    return read_version(RealFileSystem(), str(directory))


def test_this_is_the_version_that_is_packed() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == WARREN_VERSION == product.__version__
    assert "__version__" in dir(product)


# ── what is written ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_directory_says_who_made_it_and_in_which_format(directory: Path) -> None:
    assert says(directory) == CURRENT
    said = json.loads((directory / FILE_NAME).read_bytes())
    assert (said["version"], said["created_by"], said["written_by"]) == ([1, 0], WARREN_VERSION, WARREN_VERSION)


def test_it_is_written_once(directory: Path) -> None:
    before = everything(directory)[str(directory / FILE_NAME)]
    with product.open(directory, **SMALL) as node:
        node.queue("orders").publish(b"more").wait()
    assert everything(directory)[str(directory / FILE_NAME)] == before


def test_a_directory_from_before_there_was_such_a_file_gets_it(directory: Path) -> None:
    (directory / FILE_NAME).unlink()
    with product.open(directory, **SMALL) as node:
        assert says(directory) == CURRENT._replace(created_by=None)
        assert bodies(node.queue("orders")) == [b"one", BIG]


@pytest.mark.slow
def test_a_directory_of_an_older_version_is_raised_and_keeps_who_made_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Numbers(FORMAT.first + 1, 3)
    monkeypatch.setattr(data_version, "FORMAT", later)
    monkeypatch.setattr(data_version, "WARREN_VERSION", "9.1.0")
    monkeypatch.setattr(data_version, "CURRENT", CURRENT._replace(numbers=later, written_by="9.1.0"))
    with product.open(directory, **SMALL):
        assert says(directory) == DataVersion(later, WARREN_VERSION, "9.1.0", CURRENT.features)
    monkeypatch.undo()
    before = everything(directory)
    with pytest.raises(product.errors.VersionError):
        product.open(directory)
    assert everything(directory) == before


def test_a_brokers_directory_that_is_adopted_gets_it_and_looking_at_one_leaves_none(tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / "02-crash-small-mixed.tar.gz") as archive:
        archive.extractall(tmp_path / "rabbit" / "msg_stores", filter="data")
    rabbit = tmp_path / "rabbit"
    before = everything(rabbit)
    assert warren("inspect", rabbit).exit_code == 0
    assert warren("queues", rabbit).exit_code == 2
    assert everything(rabbit) == before
    product.open(rabbit, adopt=True).close()
    assert says(rabbit) == CURRENT._replace(created_by=None)


def test_a_vhost_by_itself_is_a_brokers_and_says_nothing(tmp_path: Path) -> None:
    product.engine.open_vhost(tmp_path).close()
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.slow
def test_messages_put_into_a_directory_by_the_shovel_leave_it_saying_so(directory: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    assert warren("export", directory, "--out", tmp_path / "out.jsonl").exit_code == 0
    assert warren("import", tmp_path / "out.jsonl", target).exit_code == 0
    assert says(target) is not None
    with product.open(target) as node:
        assert bodies(node.queue("orders")) == [b"one", BIG]


# ── what is too new ─────────────────────────────────────────────────────────────────────────────────────────────────

WRITERS: dict[str, Callable[[Path], object]] = {
    "open": product.open,
    "share": lambda path: product.open(path, share=True),
    "adopt": lambda path: product.open(path, adopt=True),
    "a durable queue": lambda path: DurableQueue(path, "orders"),
    "a vhost": product.engine.open_vhost,
}
WRITING = (
    ("queues",),
    ("publish", "orders", "body"),
    ("consume", "orders"),
    ("purge", "orders", "--yes"),
    ("definitions",),
)
QUICK = ("queues", "verify")
READING = (("inspect",), ("inspect", "--json"), ("verify",), ("export",), ("topic", "scan"))


@pytest.mark.parametrize("version", [NEWER, *ONLY_TO_READ], ids=["newer", "slightly newer", "with a feature"])
def test_what_a_newer_version_wrote_is_not_opened_to_write(directory: Path, version: DataVersion) -> None:
    (directory / FILE_NAME).write_bytes(version.encode())
    before = everything(directory)
    for name, opened in WRITERS.items():
        with pytest.raises(product.errors.VersionError, match=r"written by warren 9\.1\.0"):
            opened(directory)
        assert everything(directory) == before, name


@pytest.mark.parametrize(
    "command",
    [pytest.param(command, marks=[] if command[0] in QUICK else pytest.mark.slow) for command in (*WRITING, *READING)],
    ids=" ".join,
)
def test_what_a_newer_version_wrote_is_one_line_and_exit_code_2(directory: Path, command: tuple[str, ...]) -> None:
    (directory / FILE_NAME).write_bytes(NEWER.encode())
    before = everything(directory)
    words = 2 if command[0] == "topic" else 1
    result = warren(*command[:words], directory, *command[words:])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"warren: {directory}: written by warren 9.1.0 in format 2.0; this is warren {WARREN_VERSION}, which knows "
        "formats up to 1.x: use warren 9.1.0 or newer\n"
    )
    assert everything(directory) == before


@pytest.mark.slow
@pytest.mark.parametrize("version", ONLY_TO_READ, ids=["slightly newer", "with a feature"])
def test_what_is_slightly_newer_is_read(directory: Path, version: DataVersion) -> None:
    (directory / FILE_NAME).write_bytes(version.encode())
    before = everything(directory)
    assert warren("verify", directory).exit_code == 0
    assert warren("export", directory, "--format", "bodies", "--queue", "orders").stdout.startswith("one\n")
    refused = warren("queues", directory)
    assert refused.exit_code == 2
    assert "can only read it (inspect, verify, export): use warren 9.1.0 or newer" in refused.stderr
    assert everything(directory) == before


@pytest.mark.slow
@pytest.mark.parametrize("part", ["msg_stores", "msg_stores/vhosts", "msg_stores/vhosts/*", "topics"])
def test_a_part_of_what_is_too_new_is_too_new(directory: Path, part: str) -> None:
    (directory / FILE_NAME).write_bytes(NEWER.encode())
    (place,) = directory.glob(part)
    result = warren("inspect", place)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "written by warren 9.1.0" in result.stderr


@pytest.mark.slow
def test_so_is_an_archive_of_it(directory: Path, tmp_path: Path) -> None:
    (directory / FILE_NAME).write_bytes(NEWER.encode())
    with tarfile.open(tmp_path / "backup.tar.gz", "w:gz") as archive:
        archive.add(directory, "inside/data")
    with (
        pytest.raises(product.errors.VersionError, match="written by warren"),
        open_source(f"{tmp_path}/backup.tar.gz"),
    ):
        pass


@pytest.mark.slow
def test_messages_are_not_put_into_what_is_too_new(directory: Path, tmp_path: Path) -> None:
    assert warren("export", directory, "--out", tmp_path / "out.jsonl").exit_code == 0
    (directory / FILE_NAME).write_bytes(NEWER.encode())
    before = everything(directory)
    assert warren("import", tmp_path / "out.jsonl", directory).exit_code == 2
    assert everything(directory) == before


# ── damage ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def damaged() -> dict[str, bytes]:
    whole = CURRENT.encode()
    said = json.loads(whole)
    lacking = {key: value for key, value in said.items() if key not in ("features", "checksum")}
    return {
        "empty": b"",
        "torn": whole[: len(whole) // 2],
        "a number": b"17",
        "another format": b'{"format": "warren definitions"}',
        "edited": whole.replace(b"[1, 0]", b"[2, 0]"),
        "lacking": json.dumps({**lacking, "checksum": data_version._checksum(lacking)}).encode(),
        "deep": b"[" * 60_000,
        "huge": whole + b" " * MAX_BYTES,
        "no text": b"\xff\xfe\x00",
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", damaged())
def test_a_damaged_file_says_so_to_who_would_write_and_keeps_nobody_from_reading(directory: Path, kind: str) -> None:
    (directory / FILE_NAME).write_bytes(damaged()[kind])
    with pytest.raises(DataError) as caught:
        product.open(directory)
    assert caught.value.path == str(directory / FILE_NAME)
    result = warren("queues", directory)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert warren("export", directory, "--format", "bodies", "--queue", "orders").stdout.startswith("one\n")
    (directory / FILE_NAME).unlink()  # as docs/upgrading.md says
    with product.open(directory, **SMALL) as node:
        assert bodies(node.queue("orders")) == [b"one", BIG]


@pytest.mark.slow
def test_a_flipped_bit_never_makes_it_another_version() -> None:
    whole = CURRENT.encode()
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = data_version._parse(bytes(flipped), "v")
        except DataError:
            continue
        assert found == CURRENT  # white space alone


# ── crashes and disks that refuse ───────────────────────────────────────────────────────────────────────────────────


def unversioned() -> MemoryFileSystem:
    files = MemoryFileSystem(random.Random(0))
    scene = hand_node(files)
    scene.node.queue("q").publish_many([b"1", BIG]).wait()
    scene.node.close()
    files.delete(PATH)
    files.sync_all()
    return files


@pytest.mark.parametrize("power", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_crash_while_a_directory_gets_its_version_leaves_none_or_all_of_it(power: bool) -> None:
    files = unversioned()
    operations = files.operations
    scene = hand_node(files)
    total = files.operations - operations
    scene.kill()
    left_with: set[bool] = set()
    for operation in range(1, total + 1):
        files = unversioned()
        files.crash_at(operation, torn=True)
        with pytest.raises(SimulatedCrash):
            hand_node(files)
        left = files.after_power_loss(random.Random(operation)) if power else files.after_process_crash()
        found = read_version(left, DATA)
        assert found in (None, CURRENT._replace(created_by=None)), operation
        left_with.add(found is not None)
        again = hand_node(left)
        assert bodies(again.node.queue("q")) == [b"1", BIG]
        again.node.close()
        assert read_version(left, DATA) == CURRENT._replace(created_by=None)
    assert left_with == {False, True}


def test_a_disk_without_room_for_it_opens_and_the_next_opening_says_it() -> None:
    files = unversioned()
    files.fail("append", f"{PATH}*", error=DiskFullError)
    scene = hand_node(files)
    assert bodies(scene.node.queue("q")) == [b"1", BIG]
    scene.node.close()
    assert not files.exists(PATH)
    hand_node(files).node.close()
    assert files.exists(PATH)


@pytest.mark.slow
def test_a_disk_without_room_for_a_newer_number_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    files = unversioned()
    monkeypatch.setattr(data_version, "FORMAT", Numbers(FORMAT.first + 1, 0))
    files.fail("append", f"{PATH}*", error=DiskFullError)
    with pytest.raises(DiskFullError):
        hand_node(files)
    monkeypatch.undo()
    assert bodies(hand_node(files).node.queue("q")) == [b"1", BIG]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["append", "sync", "rename", "sync_directory"])
def test_a_disk_that_refuses_it_is_an_error_and_loses_nothing(kind: str) -> None:
    files = unversioned()
    files.fail(kind, DATA if kind == "sync_directory" else f"{PATH}*")
    with pytest.raises(StorageError, match="failed on purpose"):
        hand_node(files)
    scene = hand_node(files)
    assert bodies(scene.node.queue("q")) == [b"1", BIG]
    scene.node.close()


# ── the socket ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_guest_whose_host_speaks_otherwise_gets_one_line(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host_side, "PROTOCOL", 99)
    monkeypatch.setattr(host_side, "WARREN_VERSION", "9.1.0")
    with product.open(directory, share=True, **SMALL) as host:
        with pytest.raises(product.errors.VersionError) as caught:
            product.open(directory, share=True, **SMALL)
        assert str(caught.value) == (
            "the process that has the directory open is of warren 9.1.0, which speaks protocol 99 to its guests; this "
            f"is warren {WARREN_VERSION}, which speaks {PROTOCOL}: let all processes that share a directory be of one "
            "version"
        )
        result = warren("publish", directory, "orders", "body")
        assert (result.exit_code, result.stderr) == (2, f"warren: {caught.value}\n")
        assert bodies(host.queue("orders")) == [b"one", BIG]


@pytest.mark.slow
def test_a_guest_whose_next_host_speaks_otherwise_gets_the_same_and_does_not_hang(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with product.open(directory, share=True, **SMALL), product.open(directory, share=True, **SMALL) as guest:
        queue = guest.queue("orders")
        queue.publish(b"two").wait()
        monkeypatch.setattr(host_side, "PROTOCOL_PROPERTY", "of another kind")
        hang_up(guest)
        with pytest.raises(product.errors.VersionError, match=r"protocol 0 to its guests"):
            queue.publish(b"three").wait(30)
        monkeypatch.undo()
