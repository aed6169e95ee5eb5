"""``warren spark rebuild``: the bytes of the single-machine command, however the CommitLog is cut."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.support.effort import times
from tests.support.pipeline_tools import ROCKETMQ, rocketmq_node
from tests.support.topic_tools import RECORD
from warren.actors.engines.topics.store_opening import load_store
from warren.cli import app
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import COMMIT, PREPARED, ROLLBACK, Host, encode, header_bytes
from warren.msg_store.commit_log.record_finder import RecordFinder
from warren.pipeline.jobs.rebuild import RebuiltNode, folder_names, rebuild, run
from warren.salvage.names import Json
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.comparing import compare
from warren.salvage.rocketmq.rebuilding import rebuild as rebuild_alone
from warren.salvage.rocketmq.rocketmq_store import index_names, open_rocketmq
from warren.storage.errors import WarrenError
from warren.storage.filesystem import RealFileSystem
from warren.storage.topic_settings import TopicSettings
from warren.tables.places import Node, find_nodes
from warren.tables.rocketmq.log_ranges import layout_of, ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGE_BYTES = 4096
_ZEROS = bytes(_PAGE_BYTES)

Content = dict[str, tuple[int, dict[int, bytes]]]


def here(pieces: Any, work: Any) -> list[Any]:
    """Every piece in this process."""
    return [work(piece) for piece in pieces]


def in_ranges(
    paths: list[str], out: Path, *, cores: int = 2, changes: dict[str, str] | None = None, **options: Any
) -> list[RebuiltNode]:
    """The job without Spark."""
    out.mkdir()
    return rebuild(find_nodes(paths), str(out), str(out), changes or {}, here, cores=cores, **options)


def alone(
    path: str, out: Path, changes: dict[str, str] | None = None
) -> tuple[int, list[str], list[Finding], list[dict[str, Json]]]:
    """What the single-machine command says: records, files, damage and what ``--check`` finds."""
    with open_rocketmq(path, changes or {}) as opened:
        rebuilt = rebuild_alone(opened, str(out), lambda _: None)
        compared = [one.to_json() for one in compare(opened, rebuilt)]
        rebuilt.close()
        return rebuilt.records, rebuilt.files, rebuilt.damage, compared


def content(out: Path) -> Content:
    """The size and the non-zero pages of every file; index files go by their place in order instead of their name."""
    index = out / "index"
    places = {name: str(number) for number, name in enumerate(sorted(os.listdir(index)))} if index.is_dir() else {}
    found: Content = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        name = f"index/{places[path.name]}" if path.parent == index else str(path.relative_to(out))
        found[name] = path.stat().st_size, dict(pages(path))
    return found


def pages(path: Path) -> Any:
    with path.open("rb", buffering=0) as file:
        at, size = 0, path.stat().st_size
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA) // _PAGE_BYTES * _PAGE_BYTES
            except OSError:
                return
            stop = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            for begin in range(at, stop, _PAGE_BYTES):
                page = os.pread(file.fileno(), _PAGE_BYTES, begin)
                if page != _ZEROS[: len(page)]:
                    yield begin, page
            at = stop


def without_index_names(files: Json) -> Json:
    """Files of the index, whose names are the time, by their number."""
    return [name if not str(name).startswith("index/") else "index/…" for name in files]  # type: ignore[union-attr]


def assert_same(path: str, out: Path, report: RebuiltNode, other: Path, changes: dict[str, str] | None = None) -> None:
    """The report and the files are those of the single-machine command."""
    records, files, damage, compared = alone(path, other, changes)
    assert content(out) == content(other)
    assert report.records == records
    assert without_index_names(list(report.files)) == without_index_names(list(files))
    theirs = [(one.kind, one.severity, one.path.replace(str(other), str(out)), one.offset) for one in damage]
    assert sorted([(one.kind, one.severity, one.path, one.offset) for one in report.damage], key=str) == sorted(
        theirs, key=str
    )
    if report.compared is not None:
        assert [_told(one.to_json()) for one in report.compared] == [_told(one) for one in compared]


def _told(compared: dict[str, Json]) -> dict[str, Json]:
    """A file of the index that only was built has the time for a name."""
    is_ours = compared["result"] == "missing" and str(compared["file"]).startswith("index/")
    return compared | {"file": "index/…"} if is_ours else compared


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ROCKETMQ)
@pytest.mark.parametrize("range_bytes", [None, 1000, 7000])
def test_a_golden_store_is_rebuilt_as_on_one_machine(scenario: str, range_bytes: int | None, tmp_path: Path) -> None:
    path = rocketmq_node(scenario)
    (report,) = in_ranges([path], tmp_path / "out", range_bytes=range_bytes, check=True)
    assert_same(path, tmp_path / "out", report, tmp_path / "alone")
    assert sorted(report.files) == sorted(
        str(one.relative_to(tmp_path / "out")) for one in (tmp_path / "out").rglob("*") if one.is_file()
    )


# ── whatever the log, however it is cut ──────────────────────────────────────────────────────────────────────────────

SETTINGS = TopicSettings(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=20 * 5,
    max_hash_slot_num=7,
    max_index_num=9,
    max_message_size=3000,
)
CHANGES = {
    "mappedFileSizeCommitLog": "4096",
    "mappedFileSizeConsumeQueue": "100",
    "maxHashSlotNum": "7",
    "maxIndexNum": "9",
}
HERE = Host.parse("10.0.0.1:1")


@attrs.frozen
class Sent:
    """A message of a generated log."""

    topic: str
    queue_id: int
    keys: int
    delay: str
    sys_flag: int
    size: int
    is_trap: bool
    """Its body looks like a record that lies where it says."""


@attrs.frozen
class Blow:
    """Bytes of the log that are overwritten, as a part of the whole."""

    where: float
    data: bytes


SENT = st.builds(
    Sent,
    topic=st.sampled_from(["a", "bb", "%RETRY%group", "SCHEDULE_TOPIC_XXXX"]),
    queue_id=st.integers(0, 2),
    keys=st.integers(0, 3),
    delay=st.sampled_from(["", "3", "40"]),
    sys_flag=st.sampled_from([0, 0, 0, PREPARED, COMMIT, ROLLBACK]),
    size=st.integers(0, 300) | st.just(1500),
    is_trap=st.booleans(),
)


@attrs.frozen
class Damage:
    """What happened to a log."""

    blows: list[Blow] = attrs.Factory(list)
    lost_file: int | None = None
    is_dirty: bool = False


BLOWS = st.builds(Blow, where=st.floats(0, 1, exclude_max=True), data=st.binary(min_size=1, max_size=12))
DAMAGE = st.builds(
    Damage,
    blows=st.lists(BLOWS, max_size=3),
    lost_file=st.none() | st.integers(0, 5),
    is_dirty=st.booleans(),
)


def written(directory: Path, sent: list[Sent], damage: Damage | None = None) -> None:
    """A store with these messages, damaged."""
    files, damage = RealFileSystem(16), damage or Damage()
    store = load_store(files, str(directory), SETTINGS, new_index_name=index_names())
    store.start()
    for number, one in enumerate(sent):
        names = {"KEYS": " ".join(f"k{number % 5}-{key}" for key in range(one.keys)), "TAGS": f"t{number % 3}"}
        names["DELAY"] = one.delay
        batch = Batch(
            topic=one.topic,
            queue_id=one.queue_id,
            bodies=[trap(store.commit_log.end) if one.is_trap else b"b" * one.size],
            properties=b"\x02".join(f"{name}\x01{value}".encode() for name, value in names.items() if value),
            born_timestamp=1,
            born_host=HERE,
            store_host=HERE,
            sys_flag=one.sys_flag,
        )
        store.append(batch, 1_700_000_000_000 + number * 700)
    end = store.commit_log.end
    store.close()
    log = sorted((directory / "commitlog").iterdir())
    for blow in damage.blows:
        number, at = divmod(int(blow.where * end), SETTINGS.mapped_file_size_commit_log)
        with log[number].open("r+b") as file:
            file.seek(at)
            file.write(blow.data[: SETTINGS.mapped_file_size_commit_log - at])
    if damage.lost_file is not None and len(log) > 2:
        log[damage.lost_file % len(log)].unlink()
    if damage.is_dirty:
        (directory / "abort").touch()


def trap(physical_offset: int) -> bytes:
    """A body that is a sound record of the log, if its own record begins there."""
    return encode(attrs.evolve(RECORD, topic="a", physical_offset=physical_offset + header_bytes(0), body=b"trap"))


@pytest.mark.slow
@settings(max_examples=times(60))
@given(
    sent=st.lists(SENT, min_size=1, max_size=60),
    damage=DAMAGE,
    range_bytes=st.sampled_from([60, 333, 1000, 4096, 100_000]),
    cores=st.integers(1, 5),
)
def test_any_log_cut_anywhere_is_rebuilt_as_on_one_machine(
    sent: list[Sent], damage: Damage, range_bytes: int, cores: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store, out = Path(directory, "store"), Path(directory, "out")
        written(store, sent, damage)
        if (refusal := refused(store, Path(directory, "refused"))) is not None:
            with pytest.raises(WarrenError) as caught:
                in_ranges([str(store)], out, cores=cores, changes=CHANGES, range_bytes=range_bytes)
            assert str(caught.value) == refusal
            return
        (report,) = in_ranges([str(store)], out, cores=cores, changes=CHANGES, range_bytes=range_bytes, check=True)
        assert_same(str(store), out, report, Path(directory, "alone"), CHANGES)


def refused(store: Path, out: Path) -> str | None:
    """Why the single-machine command does not rebuild a store."""
    try:
        alone(str(store), out, CHANGES)
    except WarrenError as error:
        return str(error)
    return None


def test_a_range_that_a_body_fooled_is_read_again_from_the_right_place(tmp_path: Path) -> None:
    sent = [Sent("a", 0, 1, "", 0, 0, is_trap=True) for _ in range(40)]
    written(tmp_path / "store", sent)
    (node,) = find_nodes([str(tmp_path / "store")])
    layout = layout_of(node, CHANGES)
    body_at = header_bytes(0)
    second = ranges(layout, body_at)[1]
    finder = RecordFinder(read=layout.commit_log().read, end=second.file_stop)
    assert finder.first(second.start, second.stop) == body_at  # the trap, and no record
    readings: list[int] = []

    def counted(pieces: Any, work: Any) -> list[Any]:
        readings.append(len(pieces))
        return here(pieces, work)

    out = tmp_path / "out"
    out.mkdir()
    (report,) = rebuild([node], str(out), str(out), CHANGES, counted, cores=1, range_bytes=body_at)
    assert len(readings) > 2  # reading, reading again, building
    assert_same(str(tmp_path / "store"), out, report, tmp_path / "alone", CHANGES)
    assert report.records == len(sent)


@pytest.mark.slow
def test_keys_of_a_message_that_says_it_lies_before_another_are_left_out(tmp_path: Path) -> None:
    sent = [Sent("a", 0, 1, "", 0, 100, is_trap=False) for _ in range(90)]
    written(tmp_path / "store", sent)
    first = tmp_path / "store" / "commitlog" / f"{0:020d}"
    content = bytearray(first.read_bytes())
    content[28:36] = (5000).to_bytes(8, "big")  # the first message says that it lies after the 25 that follow
    first.write_bytes(content)
    for range_bytes in (200, 1000, 5000):
        place = tmp_path / str(range_bytes)
        place.mkdir()
        (report,) = in_ranges([str(tmp_path / "store")], place / "out", changes=CHANGES, range_bytes=range_bytes)
        assert_same(str(tmp_path / "store"), place / "out", report, place / "alone", CHANGES)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [7, 8, 9, 16, 17])
@pytest.mark.parametrize("keyless", [0, 1])
def test_a_full_index_file_is_followed_by_another_when_a_message_follows(
    keys: int, keyless: int, tmp_path: Path
) -> None:
    sent = [Sent("a", 0, 1, "", 0, 10, is_trap=False)] * keys + [Sent("a", 0, 0, "", 0, 10, is_trap=False)] * keyless
    written(tmp_path / "store", sent)
    (report,) = in_ranges([str(tmp_path / "store")], tmp_path / "out", changes=CHANGES, range_bytes=500)
    assert_same(str(tmp_path / "store"), tmp_path / "out", report, tmp_path / "alone", CHANGES)


@pytest.mark.slow
def test_several_stores_have_a_folder_each(tmp_path: Path) -> None:
    paths = [rocketmq_node(scenario) for scenario in ROCKETMQ]
    reports = in_ranges(paths, tmp_path / "out", check=True)
    assert [report.node for report in reports] == paths
    folders = [f"rocketmq-{scenario}_store" for scenario in ROCKETMQ]
    assert sorted(os.listdir(tmp_path / "out")) == sorted(folders)
    for path, folder, report in zip(paths, folders, reports, strict=True):
        assert report.out == str(tmp_path / "out" / folder)
        assert_same(path, tmp_path / "out" / folder, report, tmp_path / f"alone-{folder}")


@pytest.mark.parametrize(
    ("directories", "names"),
    [
        (["/disks/a/store"], [""]),
        (["/disks/a", "/disks/b"], ["a", "b"]),
        (["/disks/a/store", "/disks/b/store"], ["a_store", "b_store"]),
        (["/x/y/store", "/y/store"], ["x_y_store", "y_store"]),
        (["/a_b", "/a/b"], ["a_b", "b"]),
        (["/c/a_b", "/c_a/b", "/b"], ["a_b", "b", "b"]),
    ],
)
def test_folders_are_the_last_names_of_the_paths(directories: list[str], names: list[str]) -> None:
    found = folder_names([Node(directory, directory) for directory in directories])
    if len(set(names)) == len(names):
        assert found == names
    assert len(set(found)) == len(directories)


@pytest.mark.slow
def test_what_a_task_left_half_done_is_not_in_the_result(tmp_path: Path) -> None:
    path = rocketmq_node("basic-clean")

    def twice(pieces: Any, work: Any) -> list[Any]:
        """As where Spark lets two tasks race: the first attempt's answer is not the one that is taken."""
        here(pieces, work)
        return here(pieces, work)

    out = tmp_path / "out"
    out.mkdir()
    (report,) = rebuild(find_nodes([path]), str(out), str(out), {}, twice, cores=2, range_bytes=5000)
    assert_same(path, out, report, tmp_path / "alone")


def test_files_cannot_be_built_on_an_object_store() -> None:
    with pytest.raises(WarrenError, match="s3://bucket/out: files are built in place"):
        run([rocketmq_node("basic-clean")], None, {}, "s3://bucket/out")


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.spark
def test_spark_rebuilds_all_golden_stores_and_compares_them(spark: SparkSession, tmp_path: Path) -> None:
    paths = [rocketmq_node(scenario) for scenario in ROCKETMQ if scenario != "default-index"]
    arguments = ["spark", "rebuild", *paths, "--out", str(tmp_path / "out"), "--check", "--json"]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code in (0, 1), said.output
    nodes = json.loads(said.stdout)["nodes"]
    assert [one["node"] for one in nodes] == paths
    for path, one in zip(paths, nodes, strict=True):
        other = tmp_path / f"alone-{Path(one['out']).name}"
        records, files, _, compared = alone(path, other)
        assert one["records"] == records
        assert without_index_names(one["files"]) == without_index_names(list(files))
        assert one["check"]["files"] == compared
        assert content(Path(one["out"])) == content(other)
    assert said.exit_code == (0 if all(one["check"]["equal"] for one in nodes) else 1)
    assert not list(tmp_path.glob("out.partial*"))
