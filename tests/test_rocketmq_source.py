"""Where a topic store is found, how an archive of one is unpacked, and which settings its files tell."""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import rocketmq_golden as golden
from tests.support.effort import times
from warren.queue_index.topics.index_file_format import Layout
from warren.queue_index.topics.key_index import KeyIndex
from warren.salvage.archives.archive import unpack
from warren.salvage.rocketmq.inference import index_division, infer, mapped_file_size
from warren.salvage.rocketmq.rocketmq_store import index_names, open_rocketmq
from warren.salvage.rocketmq.store_reading import scan_records
from warren.salvage.source import open_place, open_source
from warren.storage.errors import DataError, SettingsError, StorageError
from warren.storage.filesystem import RealFileSystem
from warren.storage.memory import MemoryFileSystem

STORES = [
    (scenario, part)
    for scenario in golden.SCENARIOS
    for part in ("store", "after")
    if part == "store" or "after" in golden.manifest(scenario)
]


# ── archives ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scenario", golden.SCENARIOS)
def test_unpacking_keeps_bytes_and_times_and_holes(scenario: str, tmp_path: Path) -> None:
    unpack(str(golden.GOLDEN / f"{scenario}.tar.gz"), str(tmp_path))
    for part, key in (("store", "storeFiles"), ("after", "afterFiles")):
        for file in golden.manifest(scenario).get(key, []):
            path = tmp_path / part / file["path"]
            assert path.stat().st_size == file["size"]
            assert path.stat().st_mtime_ns // 1_000_000 == file["mtimeMs"]
            if file["size"] < 10_000_000:
                assert path.read_bytes() == (golden.unpacked(scenario) / part / file["path"]).read_bytes()
    blocks = sum(path.stat().st_blocks for path in tmp_path.rglob("*") if path.is_file())
    assert blocks * 512 < 3_000_000  # the index file of default-index alone is 420 MB long


def test_zeros_become_a_hole_where_the_archive_has_none(tmp_path: Path) -> None:
    content = bytearray(8 << 20)
    content[5 << 20 : (5 << 20) + 3] = b"abc"
    archive = tmp_path / "zeros.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        member = tarfile.TarInfo("file")
        member.size, member.mtime = len(content), 1_600_000_000
        file.addfile(member, io.BytesIO(content))
    (tmp_path / "room").mkdir()
    unpack(str(archive), str(tmp_path / "room"))
    unpacked = tmp_path / "room" / "file"
    assert unpacked.read_bytes() == content
    assert unpacked.stat().st_blocks * 512 <= 1 << 20
    assert unpacked.stat().st_mtime == 1_600_000_000


def sparse_archive(path: Path, size: int, holes: str, content: bytes) -> None:
    """One member in pax's sparse format 1.0, whose map stands before its content."""
    numbers = holes.encode()
    data = numbers + bytes(-len(numbers) % 512) + content
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as file:
        member = tarfile.TarInfo("file")
        member.size = len(data)
        member.pax_headers = {
            "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "file",
            "GNU.sparse.realsize": str(size), "mtime": "1600000000.123456789",
        }  # fmt: skip
        file.addfile(member, io.BytesIO(data))


def test_a_sparse_member(tmp_path: Path) -> None:
    sparse_archive(tmp_path / "archive", 10_000_000, "2\n5000\n3\n9000000\n2\n", b"abcde")
    (tmp_path / "room").mkdir()
    unpack(str(tmp_path / "archive"), str(tmp_path / "room"))
    unpacked = tmp_path / "room" / "file"
    expected = bytearray(10_000_000)
    expected[5000:5003], expected[9_000_000:9_000_002] = b"abc", b"de"
    assert unpacked.read_bytes() == expected
    assert unpacked.stat().st_blocks * 512 < 100_000
    assert unpacked.stat().st_mtime_ns == 1_600_000_000_123_456_789


@pytest.mark.parametrize(
    ("size", "holes", "reason"),
    [
        (10_000_000, "2\n5000\n3\n4000\n2\n", "overlapping pieces"),
        (10_000_000, "2\n5000\n3\n5002\n2\n", "overlapping pieces"),
        (10_000_000, "1\n-5\n3\n", "overlapping pieces"),
        (10_000_000, "1\n5\n-3\n", "overlapping pieces"),
        (100, "1\n98\n5\n", "after its end"),
        (-1, "1\n0\n5\n", "after its end"),
        (10_000_000, "1\n5000\n600\n", "broken"),
        (10_000_000, "many\n5000\n600\n", "broken"),
        (1 << 40, "1\n5000\n3\n", "more than there is room for"),
        (10_000_000, "999999999\n" + f"{0:0400}\n" * 11_000, "a header of more than"),
    ],
)
def test_a_sparse_member_that_lies(size: int, holes: str, reason: str, tmp_path: Path) -> None:
    sparse_archive(tmp_path / "archive", size, holes, b"abcde")
    (tmp_path / "room").mkdir()
    with pytest.raises(DataError, match=reason):
        unpack(str(tmp_path / "archive"), str(tmp_path / "room"))


# ── places ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store(tmp_path: Path) -> Path:
    target = tmp_path / "data" / "store"
    shutil.copytree(golden.directory("basic-clean"), target)
    return target


def found_at(path: Path) -> str:
    with open_place(str(path)) as place:
        return place.store()


def test_a_store_is_found_in_its_folder_and_in_those_above(store: Path) -> None:
    assert found_at(store) == found_at(store.parent) == str(store)
    store.rename(store.parent / "topics")
    assert found_at(store.parent) == str(store.parent / "topics")
    assert found_at(store.parent.parent) == str(store.parent / "topics")


@pytest.mark.parametrize("kept", [["commitlog"], ["consumequeue"], ["index", "checkpoint"], ["index", "config"]])
def test_a_part_of_a_store_is_one(store: Path, kept: list[str]) -> None:
    for name in os.listdir(store):
        if name not in kept:
            shutil.rmtree(store / name) if (store / name).is_dir() else (store / name).unlink()
    assert found_at(store) == str(store)


def test_an_index_alone_is_none(store: Path) -> None:
    for name in os.listdir(store):
        if name != "index":
            shutil.rmtree(store / name) if (store / name).is_dir() else (store / name).unlink()
    with pytest.raises(DataError, match="no RocketMQ store folder"):
        found_at(store)


def test_several_stores_in_an_archive_have_to_be_named(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "backup.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("a", "b"):
            archive.add(store.parent, f"home/{name}/rocketmq")
    with pytest.raises(DataError, match=r"directories of 2 nodes \(home/a/rocketmq, home/b/rocketmq\)"):
        found_at(path)
    assert found_at(path / "home" / "b") == "home/b/rocketmq/store"
    with pytest.raises(StorageError, match=r"there is no \.\./x in"):
        found_at(path / ".." / "x")


def test_who_wants_queues_is_told_that_there_are_topics(store: Path) -> None:
    with pytest.raises(DataError, match="is a RocketMQ store, which has no queues"), open_source(str(store)):
        pass


def test_a_store_may_have_more_files_than_may_be_open(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.salvage.source.descriptor_bound", lambda: 8)
    before = len(os.listdir("/proc/self/fd"))
    with open_rocketmq(str(store), {}) as opened:
        assert len(opened.store.queues) == 9
        assert opened.store.query("order-events", "键") == [553217, 529427, 491405, 484498, 458882]
        assert sum(1 for _ in scan_records(opened)) == 218
        assert len(os.listdir("/proc/self/fd")) <= before + 8
    assert len(os.listdir("/proc/self/fd")) == before


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("scenario", "part"), STORES)
def test_every_golden_store_tells_its_settings(scenario: str, part: str) -> None:
    found, inferred, notes = infer(RealFileSystem(), str(golden.unpacked(scenario) / part), {})
    config = golden.manifest(scenario)["config"]
    assert {one.name: one.value for one in inferred} == {one.name: config[one.name] for one in inferred}
    assert {one.origin for one in inferred} == {"files"}
    assert notes == []
    assert found.mapped_file_size_commit_log == config["mappedFileSizeCommitLog"]
    assert found.max_index_num == config["maxIndexNum"]


@pytest.mark.parametrize(("scenario", "part"), STORES)
def test_each_index_file_alone_tells_how_it_is_divided(scenario: str, part: str, tmp_path: Path) -> None:
    config = golden.manifest(scenario)["config"]
    for path in sorted((golden.unpacked(scenario) / part / "index").iterdir()):
        if path.stat().st_size < 10_000_000:
            directory = tmp_path / path.name
            directory.mkdir()
            shutil.copy(path, directory)
            division, origin = index_division(RealFileSystem(), str(directory), {})
            is_empty = not any(path.read_bytes()[36:40])
            assert origin == ("guess" if is_empty else "files")
            assert is_empty or division == Layout(config["maxHashSlotNum"], config["maxIndexNum"])


def test_an_index_file_without_items_is_guessed_and_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with open(tmp_path / "index" / "20260101000000000", "wb") as file:
        file.truncate(Layout(1000, 4000).file_size)
    found, inferred, notes = infer(RealFileSystem(), str(tmp_path), {})
    assert (found.max_hash_slot_num, found.max_index_num) == (1000, 4000)
    assert {one.name: one.origin for one in inferred}["maxIndexNum"] == "guess"
    (note,) = notes
    assert re.search(r"do not tell how they are divided.*--set maxHashSlotNum=1000 --set maxIndexNum=4000", note)
    for changes in ({"maxHashSlotNum": "1500"}, {"maxIndexNum": "3900"}, {"max_index_num": "3900"}):
        found, inferred, notes = infer(RealFileSystem(), str(tmp_path), changes)
        assert (found.max_hash_slot_num, found.max_index_num) == (1500, 3900)
        assert notes == []


def test_what_the_user_says_wins() -> None:
    changes = {"maxHashSlotNum": "7", "maxIndexNum": "9", "mappedFileSizeCommitLog": "65536", "maxMsgsNumBatch": "3"}
    found, inferred, _ = infer(RealFileSystem(), golden.directory("crash-recovery"), changes)
    assert (found.max_hash_slot_num, found.max_index_num, found.mapped_file_size_commit_log) == (7, 9, 65536)
    assert (found.mapped_file_size_consume_queue, found.max_msgs_num_batch) == (300, 3)
    assert [one.origin for one in inferred] == ["set", "files", "set", "set"]
    with pytest.raises(SettingsError, match="no setting"):
        infer(RealFileSystem(), golden.directory("crash-recovery"), {"maxSlots": "1"})


def test_a_store_with_nothing_in_it_has_the_usual_settings(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    found, inferred, notes = infer(RealFileSystem(), str(tmp_path), {})
    assert (found.mapped_file_size_commit_log, found.max_index_num) == (1 << 30, 20_000_000)
    assert {one.origin for one in inferred} == {"default"}
    assert notes == []
    with open_rocketmq(str(tmp_path), {}) as opened:
        assert opened.store.commit_log.end == 0
    assert os.listdir(tmp_path / "commitlog") == []


@pytest.mark.parametrize(
    ("directories", "size"),
    [
        ([], None),
        ([{}], None),
        ([{0: 4096}], 4096),
        ([{0: 4096, 4096: 4096, 8192: 1000}], 4096),
        ([{0: 4096, 4096: 1000}], 4096),
        ([{4096: 1000, 8192: 4096}], 4096),
        ([{0: 4096, 12288: 4096}], 4096),
        ([{0: 400}, {0: 400, 400: 400}, {1200: 7}], 400),
        ([{0: 0}], None),
    ],
)
def test_most_files_and_steps_decide_how_long_a_file_is(directories: list[dict[int, int]], size: int | None) -> None:
    assert mapped_file_size(directories) == size


@st.composite
def indexes(draw: st.DrawFn) -> tuple[Layout, list[int]]:
    layout = Layout(draw(st.integers(1, 400)), draw(st.integers(2, 300)))
    hashes = draw(st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=600))
    return layout, hashes


@settings(max_examples=times(60))
@given(indexes(), st.booleans())
def test_an_index_of_any_numbers_tells_them(index: tuple[Layout, list[int]], old: bool) -> None:
    """``old``: the messages lie far into the CommitLog; else the first at 0, where an item can be nearly all zeros."""
    layout, hashes = index
    files = MemoryFileSystem()
    made = KeyIndex.load(
        files, "index", max_hash_slot_num=layout.slot_count, max_index_num=layout.item_count, new_name=index_names()
    )
    count = len(hashes)
    made.put_many(
        np.arange(count) * 300 + (1 << 34) * old,
        np.arange(count) * 700 + 1_700_000_000_000,
        np.ones(count, np.int32),
        np.array(hashes, np.int32),
    )
    made.flush()
    made.close()
    division, origin = index_division(files, "index", {})
    assert origin == "files" or (count == 1 and hashes[0] == 0 and not old)
    assert origin == "guess" or division == layout


def test_names_of_index_files_are_distinct_and_in_order() -> None:
    name = index_names()
    names = [name() for _ in range(50)]
    assert names == sorted(set(names))
    assert all(re.fullmatch(r"\d{17}", one) for one in names)
