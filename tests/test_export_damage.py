"""What verify knows of a damaged directory, export and inspect say: no message is missing without a word."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.support.classic_tools import QueueOnDisk, V2QueueOnDisk, VhostOnDisk
from tests.support.cli_tools import warren
from tests.support.disk_fault_tools import RefusingFileSystem
from tests.support.rabbitmq_golden import GOLDEN
from warren.commands.output import LINES
from warren.queue_index.index.record_format import DELIVER, JOURNAL
from warren.salvage import source
from warren.salvage.archives.archive import unpack
from warren.salvage.classic.queue_file import QueueIndexFile
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.storage.filesystem import RealFileSystem

SEGMENTS = 4
"""How many there are, with four messages each."""


@pytest.fixture
def queue(tmp_path: Path) -> QueueOnDisk:
    return VhostOnDisk(tmp_path).queue(b"q")


@pytest.fixture
def v1(queue: QueueOnDisk) -> QueueOnDisk:
    """Sixteen messages in four segments."""
    for seq_id in range(4 * SEGMENTS):
        queue.segment(seq_id)
    return queue


@pytest.fixture
def v2(tmp_path: Path) -> V2QueueOnDisk:
    """The same of version 2."""
    queue = V2QueueOnDisk(tmp_path)
    for position in range(4 * SEGMENTS):
        queue.publish(position)
    return queue


def seq_ids(result: Result) -> list[int]:
    return [json.loads(line)["seq_id"] for line in result.stdout.splitlines()]


def said_of(result: Result) -> set[str]:
    """The names of files, after the marks of what is wrong with them."""
    found = set()
    for line in result.stderr.splitlines():
        path, _, rest = line.removeprefix("warren: ").partition(": ")
        name = path.partition(", offset")[0].rpartition("/")[2]
        found.add(f"{rest.partition(':')[0]}: {name}")
    return found


EVERY = list(range(16))

V1_DAMAGE: dict[str, tuple[Callable[[QueueOnDisk], object], bool, set[str], list[int]]] = {
    "a segment cut inside a record": (
        lambda queue: os.truncate(queue.path / "2.idx", (queue.path / "2.idx").stat().st_size - 100),
        False,
        {"torn record: 2.idx"},
        [n for n in EVERY if n != 11],
    ),
    "a segment cut between records, after a clean stop": (
        lambda queue: os.truncate(queue.path / "2.idx", (queue.path / "2.idx").stat().st_size // 2),
        True,
        {"changed since the clean stop: 2.idx"},
        [n for n in EVERY if n not in (10, 11)],
    ),
    "a segment that is gone since the clean stop": (
        lambda queue: (queue.path / "3.idx").unlink(),
        True,
        {"changed since the clean stop: 3.idx"},
        EVERY[:12],
    ),
    "a segment under another name": (
        lambda queue: (queue.path / "2.idx").rename(queue.path / "2.idx.bak"),
        True,
        {"changed since the clean stop: 2.idx"},
        [n for n in EVERY if n // 4 != 2],
    ),
    "a journal whose end is torn": (
        lambda queue: (queue.journal(16), os.truncate(queue.path / "journal.jif", 30)),
        False,
        {"torn record: journal.jif"},
        EVERY,
    ),
    "a deliver in the journal of what was never published": (
        lambda queue: queue.append("journal.jif", (DELIVER << 62 | 100).to_bytes(8, "big")),
        False,
        {"entry without publish: journal.jif"},
        EVERY,
    ),
}


@pytest.mark.parametrize("situation", V1_DAMAGE)
def test_export_says_what_verify_knows_of_an_index(situation: str, v1: QueueOnDisk, tmp_path: Path) -> None:
    spoil, is_clean, expected, left = V1_DAMAGE[situation]
    if is_clean:
        v1.stop_cleanly(16, 0, tuple((number, 4) for number in range(SEGMENTS)))
    check_said(lambda: spoil(v1), tmp_path, expected, left)


def check_said(spoil: Callable[[], object], place: Path, expected: set[str], left: list[int]) -> None:
    assert warren("export", place).exit_code == 0
    spoil()
    result = warren("export", place)
    assert (said_of(result), seq_ids(result), result.exit_code) == (expected, left, 1)
    assert warren("verify", place).exit_code == 1
    inspected = warren("inspect", place)
    assert (said_of(inspected), inspected.exit_code) == (expected, 0)


V2_DAMAGE: dict[str, tuple[Callable[[V2QueueOnDisk], object], bool, set[str], list[int]]] = {
    "an index cut inside an entry": (
        lambda queue: os.truncate(queue.index(1), queue.index(1).stat().st_size - 5),
        False,
        {"torn entry: 1.qi"},
        [n for n in EVERY if n != 7],
    ),
    "an index cut between entries, after a clean stop": (
        lambda queue: os.truncate(queue.index(1), queue.index(1).stat().st_size - 64),
        True,
        {"changed since the clean stop: 1.qi"},
        [n for n in EVERY if n not in (6, 7)],
    ),
    "an index that is gone, and its store is there": (
        lambda queue: queue.index(1).unlink(),
        False,
        {"store without index: 1.qs"},
        [n for n in EVERY if n // 4 != 1],
    ),
    "a segment that is gone since the clean stop": (
        lambda queue: (queue.index(3).unlink(), queue.store(3).unlink()),
        True,
        {"changed since the clean stop: 3.qi"},
        EVERY[:12],
    ),
}


@pytest.mark.parametrize("situation", V2_DAMAGE)
def test_export_says_what_verify_knows_of_an_index_of_version_2(
    situation: str, v2: V2QueueOnDisk, tmp_path: Path
) -> None:
    spoil, is_clean, expected, left = V2_DAMAGE[situation]
    if is_clean:
        v2.stop_cleanly(dict.fromkeys(range(SEGMENTS), 4), next_seq_id=16)
    check_said(lambda: spoil(v2), tmp_path, expected, left)


def test_what_a_sound_directory_may_have_left_over_is_not_said(v1: QueueOnDisk, tmp_path: Path) -> None:
    v1.append("journal.jif", (3 << 62 | 100).to_bytes(8, "big") + bytes(512))
    (v1.path / "9.idx").write_bytes(bytes(64))
    result = warren("export", tmp_path)
    assert (result.stderr, result.exit_code, seq_ids(result)) == ("", 0, EVERY)
    assert warren("inspect", tmp_path).stderr == ""


@pytest.mark.parametrize("version", [1, 2])
def test_inspect_says_how_many_bodies_are_missing(version: int, tmp_path: Path) -> None:
    if version == 1:
        queue = VhostOnDisk(tmp_path).queue(b"q")
        for seq_id in range(3):
            queue.bodyless(seq_id, b"m" * 16, 5)
        path = queue.path
    else:
        stored = V2QueueOnDisk(tmp_path)
        for position in range(3):
            stored.publish(position)
        os.truncate(stored.store(0), 64)
        path = stored.index(0).parent
    result = warren("inspect", tmp_path)
    assert (said_of(result), result.exit_code) == ({f"missing body: {path.name}"}, 0)
    assert "the index has 3 messages whose bodies are not there" in result.stderr


def test_a_thousand_findings_of_one_kind_are_a_few_lines(tmp_path: Path) -> None:
    queue = VhostOnDisk(tmp_path).queue(b"q")
    for seq_id in range(1000):
        queue.bodyless(seq_id, b"m" * 16, 5)
    result = warren("export", tmp_path)
    told = result.stderr.splitlines()
    assert result.exit_code == 1
    assert len(told) == LINES + 1
    assert told[-1].endswith(f"journal.jif: missing body: {1000 - LINES} more")


def spoilt(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def in_journal(queue: QueueOnDisk, count: int = 40) -> list[int]:
    """Messages 100 … in the journal, the first half of them acked; returns where their records begin."""
    path, offsets = queue.path / "journal.jif", []
    for number in range(count):
        offsets.append(path.stat().st_size if path.exists() else 0)
        queue.journal(100 + number, b"body %d" % number)
    for number in range(count // 2):
        queue.append("journal.jif", (3 << 62 | 100 + number).to_bytes(8, "big"))
    return offsets


JOURNAL_DAMAGE: dict[str, tuple[int, bytes]] = {
    "the kind of a record": (0, b"\xff\xff\xff"),
    "a size that swallows what stands behind": (8 + 28, b"\0\0\x20"),
    "a size that ends inside the message": (8 + 28, b"\0\0\0\x10"),
    "a size that goes past the end": (8 + 28, b"\0\x20\0"),
    "a record of zeros": (0, bytes(200)),
}


@pytest.mark.parametrize("situation", JOURNAL_DAMAGE)
def test_a_journal_that_is_damaged_in_the_middle_is_read_behind_it(
    situation: str, queue: QueueOnDisk, tmp_path: Path
) -> None:
    offsets = in_journal(queue)
    at, data = JOURNAL_DAMAGE[situation]
    spoilt(queue.path / "journal.jif", offsets[30] + at, data)
    result = warren("export", tmp_path)
    assert result.exit_code == 1
    kind = "bytes behind zeros" if "zeros" in situation else "damaged records"
    assert f"{kind}: journal.jif" in said_of(result)
    (line,) = (line for line in result.stderr.splitlines() if kind in line)
    assert offsets[30] <= int(line.partition("offset ")[2].partition(":")[0]) < offsets[31]
    assert "records continue at" in line
    found = seq_ids(result)
    lost = set(range(120, 140)) - set(found)
    assert 130 in lost
    assert len(lost) <= 2  # zeros cover two
    assert not [one for one in found if one < 120], "what was acked stays so"


def test_messages_whose_acks_were_damaged_come_back_and_no_others(queue: QueueOnDisk, tmp_path: Path) -> None:
    in_journal(queue)
    path = queue.path / "journal.jif"
    spoilt(path, path.stat().st_size - 10 * 8, b"\x11\x22\x33")
    result = warren("export", tmp_path)
    assert result.exit_code == 1
    assert seq_ids(result) == [110, *range(120, 140)]
    assert "8 bytes that hold no whole record" in result.stderr


def test_a_segment_that_is_damaged_in_the_middle_is_read_behind_it(v1: QueueOnDisk, tmp_path: Path) -> None:
    path = v1.path / "2.idx"
    spoilt(path, path.stat().st_size // 4 + 30, b"\1\1\1")  # the size of its second message
    result = warren("export", tmp_path)
    assert result.exit_code == 1
    assert said_of(result) == {"damaged records: 2.idx"}
    assert seq_ids(result) == [n for n in EVERY if n != 9]


def test_what_looks_like_records_inside_a_body_is_none(queue: QueueOnDisk, tmp_path: Path) -> None:
    """Acks of the queue's own messages, as the body of a message whose record is damaged."""
    acks = b"".join((kind << 62 | seq_id).to_bytes(8, "big") for seq_id in range(3) for kind in (2, 3))
    for seq_id in range(3):
        queue.journal(seq_id)
    before = (queue.path / "journal.jif").stat().st_size
    queue.journal(3, acks[:24])
    queue.journal(4)
    spoilt(queue.path / "journal.jif", before + 8 + 28, b"\xff\xff\xff\xff")
    result = warren("export", tmp_path)
    assert seq_ids(result) == [0, 1, 2, 4]
    assert result.exit_code == 1


@pytest.mark.parametrize("seed", range(3))
def test_three_bytes_cost_a_record_and_no_more(seed: int, queue: QueueOnDisk, tmp_path: Path) -> None:
    chance = random.Random(seed)
    in_journal(queue, 200)
    path = queue.path / "journal.jif"
    for _ in range(10):
        whole = path.read_bytes()
        spoilt(path, chance.randrange(len(whole) - 3), chance.randbytes(3))
        file = QueueIndexFile.parsed(ReadOnlyFileSystem(RealFileSystem()), str(path), JOURNAL)
        spoiled = file.columns
        file.close()
        assert len(spoiled.publish_numbers) >= 199
        assert len(spoiled.delivers) + len(spoiled.acks) >= 300 - 2
        path.write_bytes(whole)


def test_a_vhost_that_may_not_be_looked_into_is_said(
    v1: QueueOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(v1.vhost.path, v1.vhost.path.with_name("OTHER"))
    monkeypatch.setattr(RefusingFileSystem, "refused", str(v1.vhost.path.with_name("OTHER")))
    monkeypatch.setattr(source, "RealFileSystem", RefusingFileSystem)
    for command in ("export", "verify"):
        assert warren(command, tmp_path).exit_code == 1
    assert said_of(warren("export", tmp_path)) == {"unreadable directory: OTHER"}
    assert seq_ids(warren("export", tmp_path)) == EVERY


def test_a_single_vhost_that_may_not_be_looked_into_is_said(
    v1: QueueOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RefusingFileSystem, "refused", str(v1.vhost.path))
    monkeypatch.setattr(source, "RealFileSystem", RefusingFileSystem)
    for command in ("export", "verify"):
        assert warren(command, tmp_path).exit_code == 1
    assert said_of(warren("export", tmp_path)) == {f"unreadable directory: {v1.vhost.path.name}"}


def test_queues_that_may_not_be_looked_into_are_said(
    v1: QueueOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RefusingFileSystem, "refused", str(v1.path.parent))
    monkeypatch.setattr(source, "RealFileSystem", RefusingFileSystem)
    result = warren("export", tmp_path)
    assert (said_of(result), result.exit_code) == ({"unreadable directory: queues"}, 1)


def test_a_topic_store_is_read_behind_a_flipped_bit(tmp_path: Path) -> None:
    unpack(str(GOLDEN / "rocketmq" / "basic-clean.tar.gz"), str(tmp_path))
    before = warren("topic", "scan", "--salvage", tmp_path).stdout.splitlines()
    log = sorted(next(tmp_path.rglob("commitlog")).iterdir())
    place = json.loads(before[-20])["physical_offset"]
    path = max(one for one in log if int(one.name) <= place)
    data = bytearray(path.read_bytes())
    data[place - int(path.name) + 100] ^= 1  # in the body
    path.write_bytes(data)

    cut = warren("topic", "scan", tmp_path)
    assert cut.exit_code == 1
    assert "--set checkCRCOnRecover=false" in cut.stderr
    assert "--salvage" in cut.stderr
    whole = warren("topic", "scan", "--salvage", tmp_path)
    assert whole.exit_code == 1
    assert path.name in whole.stderr
    found = {json.loads(line)["physical_offset"]: json.loads(line)["crc_ok"] for line in whole.stdout.splitlines()}
    assert list(found) == [json.loads(line)["physical_offset"] for line in before]
    assert [at for at, is_right in found.items() if not is_right] == [place]


def test_a_topic_store_is_read_behind_a_damaged_head(tmp_path: Path) -> None:
    unpack(str(GOLDEN / "rocketmq" / "basic-clean.tar.gz"), str(tmp_path))
    before = warren("topic", "scan", "--salvage", tmp_path).stdout.splitlines()
    place = json.loads(before[-20])["physical_offset"]
    path = max(one for one in next(tmp_path.rglob("commitlog")).iterdir() if int(one.name) <= place)
    spoilt(path, place - int(path.name) + 1, b"\xff\xff")
    assert warren("topic", "scan", tmp_path).exit_code == 1
    whole = warren("topic", "scan", "--salvage", tmp_path)
    assert whole.exit_code == 1
    assert whole.stdout.splitlines() == [*before[:-20], *before[-19:]]
