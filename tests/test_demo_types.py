"""The demo's act with queues of all types: that it holds, that each difference is noticed, and what ships for it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.demo import queue_types
from examples.demo.acts import Stage
from examples.demo.publisher import Plan
from examples.demo.queue_types import TypesPlayed, compare, play
from examples.demo.screen import Screen
from warren.commands.demo import ARCHIVE, EXPORTED, QueueDigest, load_oracle, read_lines
from warren.salvage.archives.archive import unpack
from warren.salvage.source import Source, open_source

GOLDEN = Path(__file__).parent / "golden"
CLASSIC = GOLDEN / "rabbitmq-3.10.8-cqv2" / "01-clean-small-mixed.tar.gz"
QUORUM = GOLDEN / "rabbitmq-3.10.8-quorum" / "09-crash-restart-clean.tar.gz"

Lines = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[TypesPlayed, str, Path]:
    """A run of the act: what came of it, what it printed, and its directory."""
    return run(tmp_path_factory.mktemp("types"))


def run(directory: Path) -> tuple[TypesPlayed, str, Path]:
    text = io.StringIO()
    screen = Screen(Console(file=text, width=120, highlight=False), lambda: 0.0)
    return play(Stage(str(directory), Plan(20_000), screen)), text.getvalue(), directory


def held(played: TypesPlayed) -> list[bool]:
    """What was delivered, the marks, the damage."""
    return [check.held for check in played.checks()]


def test_what_is_exported_is_what_the_broker_delivered(played: tuple[TypesPlayed, str, Path]) -> None:
    outcome, text, _ = played
    assert [check for check in outcome.checks() if not check.held] == []
    assert (outcome.queues, outcome.messages) == (8, 135)
    assert all(f" {kind} " in text for kind in ("classic v1", "classic v2", "quorum"))


def test_every_file_that_ships_is_as_a_broker_left_it() -> None:
    left = {f"node/msg_stores/{name}": data for name, data in contents(CLASSIC).items()}
    left |= {name: data for name, data in contents(QUORUM).items() if name.startswith("node/quorum/")}
    assert contents(Path(str(ARCHIVE))) == left


def contents(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        return {member.name: read(opened, member) for member in opened if member.isfile()}


def read(opened: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = opened.extractfile(member)
    assert file is not None
    return file.read()


def test_what_ships_says_what_the_brokers_manifests_say() -> None:
    delivered = load_oracle().delivered
    for archive in (CLASSIC, QUORUM):
        manifest = json.loads(Path(str(archive).replace(".tar.gz", ".json")).read_text(encoding="utf-8"))
        for queue in manifest["queues"]:
            said, rows = delivered[queue["name"]], queue["after_restart"].get("rows", [])
            assert said.messages == len(rows) == queue["after_restart"].get("count", 0)
            assert said.redelivered == [place for place, row in enumerate(rows) if row[3]]
            assert (said.delivery_counts or []) == [row[4] for row in rows if archive == QUORUM]
            if rows:
                assert said.sha256 == queue["after_restart"]["sha256_of_concatenated_body_sha256"]


# ── what is noticed ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def found(played: tuple[TypesPlayed, str, Path]) -> Lines:
    """The exported messages, to be changed."""
    return read_lines(str(played[2] / EXPORTED))


def compared(found: Lines) -> TypesPlayed:
    played = TypesPlayed(load_oracle())
    compare(played, found)
    return played


def test_a_message_too_few_is_noticed(found: Lines) -> None:
    del found["orders"][5]
    played = compared(found)
    assert held(played) == [False, True, True]
    assert str(played.differing) == "orders: 12 messages, not those that were delivered"


def test_two_exchanged_messages_are_noticed(found: Lines) -> None:
    found["b"][4], found["b"][5] = found["b"][5], found["b"][4]
    assert held(compared(found)) == [False, True, True]


def test_a_whole_queue_too_few_or_too_many_is_noticed(found: Lines) -> None:
    found["nobody's"] = found.pop("old")
    assert str(compared(found).differing).startswith("nobody's: 28 messages, ")
    assert "old: 0 messages" in str(compared(found).differing)


@pytest.mark.parametrize(("queue", "place"), [("old", 27), ("orders", 1), ("a", 0)])
def test_a_wrong_mark_is_noticed_in_a_queue_of_each_type(queue: str, place: int, found: Lines) -> None:
    line = found[queue][place]
    line["redelivered"] = not line["redelivered"]
    played = compared(found)
    assert held(played) == [True, False, True]
    assert str(played.marks) == f"{queue}: others are marked as redelivered"


def test_a_wrong_delivery_count_is_noticed(found: Lines) -> None:
    assert found["a"][0]["delivery_count"] == 2
    found["a"][0]["delivery_count"] = 1
    assert str(compared(found).marks) == "a: other delivery counts"


def test_a_count_where_there_should_be_none_is_noticed(found: Lines) -> None:
    for line in found["audit"]:
        line["delivery_count"] = 0
    assert str(compared(found).marks) == "audit: other delivery counts"
    assert QueueDigest.of([]).delivery_counts is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["0.idx", "0.qs", "00000001.segment", "00000002.wal"])
def test_damage_in_a_file_of_each_type_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack(str(ARCHIVE), str(tmp_path))
    path = max((tmp_path / "node").rglob(name), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 200] = bytes(one ^ 0x5A for one in data[middle : middle + 200])
    path.write_bytes(data)

    @contextmanager
    def open_damaged() -> Iterator[Source]:
        with open_source(str(tmp_path / "node")) as source:
            yield source

    monkeypatch.setattr(queue_types, "open_types", open_damaged)
    (tmp_path / "stage").mkdir()
    outcome, _, _ = run(tmp_path / "stage")
    assert not all(held(outcome))
    assert held(outcome)[2] is (name == "0.idx")  # a body that is embedded there has no checksum
