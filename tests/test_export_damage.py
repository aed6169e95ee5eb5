"""What verify knows of a damaged directory, export says: no message is missing without a word."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from classic_v2_tools import V2QueueOnDisk
from test_cli_export import QueueOnDisk, warren
from typer.testing import Result

from queue_index.record_format import DELIVER
from warren.salvage.complaints import LINES

SEGMENTS = 4
"""Of four messages each."""


@pytest.fixture
def v1(tmp_path: Path) -> QueueOnDisk:
    """Sixteen messages in four segments."""
    queue = QueueOnDisk(tmp_path / "vhosts")
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
    """The names of files, behind the marks of what is wrong with them."""
    found = set()
    for line in result.stderr.splitlines():
        path, _, rest = line.removeprefix("warren: ").partition(": ")
        name = path.partition(", offset")[0].rpartition("/")[2]
        found.add(f"{rest.partition(':')[0]}: {name}")
    return found


EVERY = list(range(16))

V1_DAMAGE: dict[str, tuple[Callable[[QueueOnDisk], object], bool, set[str], list[int]]] = {
    "a segment cut inside a record": (
        lambda queue: os.truncate(queue.queue / "2.idx", (queue.queue / "2.idx").stat().st_size - 100),
        False,
        {"torn record: 2.idx"},
        [n for n in EVERY if n != 11],
    ),
    "a segment cut between records, after a clean stop": (
        lambda queue: os.truncate(queue.queue / "2.idx", (queue.queue / "2.idx").stat().st_size // 2),
        True,
        {"changed since the clean stop: 2.idx"},
        [n for n in EVERY if n not in (10, 11)],
    ),
    "a segment that is gone since the clean stop": (
        lambda queue: (queue.queue / "3.idx").unlink(),
        True,
        {"changed since the clean stop: 3.idx"},
        EVERY[:12],
    ),
    "a segment under another name": (
        lambda queue: (queue.queue / "2.idx").rename(queue.queue / "2.idx.bak"),
        True,
        {"changed since the clean stop: 2.idx"},
        [n for n in EVERY if n // 4 != 2],
    ),
    "a journal whose end is torn": (
        lambda queue: (queue.journal(16), os.truncate(queue.queue / "journal.jif", 30)),
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
    assert warren("export", tmp_path).exit_code == 0
    spoil(v1)
    result = warren("export", tmp_path)
    assert (said_of(result), seq_ids(result), result.exit_code) == (expected, left, 1)
    assert warren("verify", tmp_path).exit_code == 1


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
    assert warren("export", tmp_path).exit_code == 0
    spoil(v2)
    result = warren("export", tmp_path)
    assert (said_of(result), seq_ids(result), result.exit_code) == (expected, left, 1)
    assert warren("verify", tmp_path).exit_code == 1


def test_what_a_sound_directory_may_have_left_over_is_not_said(v1: QueueOnDisk, tmp_path: Path) -> None:
    v1.append("journal.jif", (3 << 62 | 100).to_bytes(8, "big") + bytes(512))
    (v1.queue / "9.idx").write_bytes(bytes(64))
    result = warren("export", tmp_path)
    assert (result.stderr, result.exit_code, seq_ids(result)) == ("", 0, EVERY)


def test_a_thousand_findings_of_one_kind_are_a_few_lines(tmp_path: Path) -> None:
    queue = QueueOnDisk(tmp_path / "vhosts")
    for seq_id in range(1000):
        queue.bodyless(seq_id, b"m" * 16, 5)
    result = warren("export", tmp_path)
    told = result.stderr.splitlines()
    assert result.exit_code == 1
    assert len(told) == LINES + 1
    assert told[-1].endswith(f"journal.jif: missing body: {1000 - LINES} more")
