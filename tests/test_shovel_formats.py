"""``warren shovel`` out of a broker's queues of each type: copies, how they go on, and what is refused.

A quorum queue's messages do not come in the order of their seq_ids, so how far a copy has come is no single number.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.cli_tools import warren
from tests.support.rabbitmq_golden import PROJECT
from tests.support.shovel_tools import (
    SAVE,
    SYNC,
    Json,
    RandomIntake,
    complaint,
    digest,
    exported,
    fill,
    numbers,
    shovel,
    shovel_and_die,
)
from warren.salvage.archives.archive import unpack
from warren.salvage.source import open_place
from warren.shovel.copying import CopySource
from warren.shovel.errors import RefusedError
from warren.shovel.letter import Letter
from warren.shovel.progress import Progress, Reach
from warren.shovel.pump import Moved, Pump
from warren.storage.filesystem import RealFileSystem

V2 = PROJECT / "tests" / "golden" / "rabbitmq-3.10.8-cqv2"
QUORUM = PROJECT / "tests" / "golden" / "rabbitmq-3.10.8-quorum"
MIXED_V2 = V2 / "02-crash-small-mixed.tar.gz"
MIXED_QUORUM = QUORUM / "02-crash-small-mixed.tar.gz"
CONSUMERS = QUORUM / "05-clean-consumers.tar.gz"
LIMITS = QUORUM / "06-crash-delivery-limit.tar.gz"
V1_ARCHIVES = [path for path in V2.parent.glob("*.tar.gz") if "torn" not in path.name]
ARCHIVES = sorted([*V1_ARCHIVES, *V2.glob("*.tar.gz"), *QUORUM.glob("*.tar.gz")])
LARGE_BYTES = 250_000
"""Of an archive that takes a second or more."""


def unpacked(archive: Path, directory: Path) -> Path:
    """What the archive holds: a data directory, or a vhosts folder, in the new directory ``directory``."""
    directory.mkdir()
    unpack(str(archive), str(directory))
    return next((quorum.parent for quorum in directory.rglob("quorum")), directory)


def identity(message: Json) -> str:
    return json.dumps(message, sort_keys=True)


def seq_ids(place: Path, queue: str) -> list[int]:
    """In the order of delivery."""
    lines = warren("export", place, "--queue", queue).stdout_bytes.splitlines()
    return [int(line.partition(b'"seq_id": ')[2].split(b",")[0]) for line in lines]


@pytest.mark.parametrize(
    "archive",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.stat().st_size > LARGE_BYTES)) for path in ARCHIVES],
    ids=[f"{path.parent.name[-6:]}-{path.name[:2]}" for path in ARCHIVES],
)
def test_a_dead_brokers_messages_are_the_same_in_a_warren_directory(archive: Path, tmp_path: Path) -> None:
    summary = shovel(archive, tmp_path / "data")
    messages = exported(archive)
    assert (summary["messages"], summary["kind"]) == (len(messages), "copy")
    assert messages
    assert exported(tmp_path / "data") == messages


def test_a_copy_changes_nothing_at_its_source(tmp_path: Path) -> None:
    source = unpacked(MIXED_QUORUM, tmp_path / "source")
    before = digest(source)
    shovel(source, tmp_path / "data")
    assert digest(source) == before


# ── going on ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("archive", [MIXED_V2, MIXED_QUORUM, CONSUMERS, LIMITS], ids=lambda path: path.name[:8])
def test_a_copy_in_pieces_copies_each_message_once(archive: Path, tmp_path: Path) -> None:
    expected = exported(archive)
    source = unpacked(archive, tmp_path / "source")
    draw = random.Random(len(expected))
    copied = 0
    while moved := shovel(source, tmp_path / "data", "--limit", str(draw.randint(1, 25)))["messages"]:
        copied += moved
        assert copied <= len(expected)
    assert exported(tmp_path / "data") == expected


def test_the_order_of_the_test_is_not_that_of_the_log() -> None:
    order = seq_ids(MIXED_QUORUM, "orders")
    assert sorted(order) != order
    assert len(set(order)) == len(order) > 10


@pytest.mark.slow
@pytest.mark.parametrize("step", [SAVE, SYNC])
@pytest.mark.parametrize("before", [True, False])
def test_a_copy_that_is_killed_loses_nothing(step: str, before: bool, tmp_path: Path) -> None:
    window = 8
    places = MIXED_QUORUM, tmp_path / "data", "--prefetch", str(window)
    shovel_and_die(step, 7, before, *places)
    shovel(*places)
    expected, arrived = (Counter(map(identity, exported(place))) for place in (MIXED_QUORUM, tmp_path / "data"))
    assert not expected - arrived
    assert (arrived - expected).total() <= window


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_refused_and_gone_on_with_until_all_is_there(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    state = str(tmp_path / "state")
    expected = Counter(line["body_sha256"] for line in exported(MIXED_QUORUM))
    safe: Counter[str] = Counter()
    fail: Any = pytest.fail
    for _ in range(100):
        progress = Progress.open(RealFileSystem(), state, source="a", destination="b")
        with (
            open_place(str(MIXED_QUORUM)) as place,
            CopySource.open(place, None, progress, lambda name: name, fail) as source,
        ):
            refused = False
            for queue in source.queues([]):
                intake = Remembering(draw, draw.choice((0.0, 0.02, 0.2)), 16)
                moved = Moved("/", queue.name.decode(), "to")
                try:
                    Pump(queue, intake, moved, 16, lambda: 0, lambda _: None).run(draw.randint(1, 100))
                except RefusedError:
                    refused = True
                safe.update(hashlib.sha256(intake.letters[number - 1].body).hexdigest() for number in intake.safe)
        if not refused and safe.total() >= expected.total():
            break
    assert safe == expected


@attrs.define
class Remembering(RandomIntake):
    """Knows what it was handed."""

    letters: list[Letter] = attrs.field(factory=list)

    def put(self, letter: Letter) -> int:
        self.letters.append(letter)
        return RandomIntake.put(self, letter)


def test_what_came_before_a_lower_number_is_remembered_one_by_one() -> None:
    reach = Reach("/", "UID", "q")
    reach.add([70, 90], first_open=10)  # were out, and came first
    assert (reach.next_seq_id, reach.beyond, reach.messages) == (10, {70, 90}, 2)
    reach.add([10, 20], first_open=30)
    assert [reach.has(seq_id) for seq_id in (20, 30, 70, 80, 90)] == [True, False, True, False, True]
    reach.add([30, 80], first_open=100)
    assert (reach.next_seq_id, reach.beyond, reach.messages) == (100, set(), 6)


def test_progress_of_a_quorum_queue_stands_under_its_directory_and_stays_small(tmp_path: Path) -> None:
    summary = shovel(MIXED_QUORUM, tmp_path / "data", "--limit", "20")
    progress = Progress.open(
        RealFileSystem(), summary["state"], source=summary["source"], destination=summary["destination"]
    )
    reaches = list(progress._reaches.values())
    source = unpacked(MIXED_QUORUM, tmp_path / "source")
    directories = {path.parent.name for path in source.rglob("config")}
    assert {reach.directory for reach in reaches} <= directories
    summary = shovel(MIXED_QUORUM, tmp_path / "data")
    progress = Progress.open(
        RealFileSystem(), summary["state"], source=summary["source"], destination=summary["destination"]
    )
    assert all(not reach.beyond for reach in progress._reaches.values())


# ── what cannot be done ──────────────────────────────────────────────────────────────────────────────────────────────


def node_of(archive: Path, directory: Path) -> Path:
    """A node's data directory with what the archive has of one."""
    found = unpacked(archive, directory / "unpacked")
    if (found / "quorum").exists():
        return found
    (directory / "node").mkdir()
    found.rename(directory / "node" / "msg_stores")
    return directory / "node"


@pytest.mark.parametrize(
    ("archive", "kind"), [(MIXED_V2, "rabbitmq-classic-v2"), (MIXED_QUORUM, "rabbitmq-quorum")], ids=["v2", "quorum"]
)
def test_nothing_is_moved_out_of_a_format_that_is_only_read(archive: Path, kind: str, tmp_path: Path) -> None:
    node = node_of(archive, tmp_path)
    before = digest(node)
    said = complaint(node, tmp_path / "data", "--move")
    assert f"is of the format {kind}, which is only read" in said
    assert "leave out --move" in said
    assert digest(node) == before
    assert not (tmp_path / "data").exists()


def test_a_quorum_queue_is_in_nobodys_way(tmp_path: Path) -> None:
    node = node_of(MIXED_QUORUM, tmp_path)
    fill(node, 5, b"classic")
    assert "rabbitmq-quorum" in complaint(node, tmp_path / "data", "--move")
    assert "rabbitmq-quorum" in complaint(node, tmp_path / "data", "--move", "--queue", "orders")
    assert shovel(node, tmp_path / "data", "--move", "--queue", "classic")["messages"] == 5
    assert numbers(tmp_path / "data", b"classic") == list(range(5))
    assert len(exported(node)) == len(exported(MIXED_QUORUM))


def test_a_v2_queue_of_a_destination_is_not_filled(tmp_path: Path) -> None:
    node = node_of(MIXED_V2, tmp_path)
    queue = next(line["queue"] for line in exported(node))
    fill(tmp_path / "source", 3, queue.encode())
    before = {name: value for name, value in digest(node).items() if name.endswith((".qi", ".qs"))}
    assert warren("shovel", tmp_path / "source", node).exit_code == 2
    assert before == {name: value for name, value in digest(node).items() if name.endswith((".qi", ".qs"))}
