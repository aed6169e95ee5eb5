"""A change of a classic queue's version that a crash cut short: whatever was moved so far, every message comes once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.classic_tools import ENTRIES as V1_ENTRIES
from tests.support.classic_tools import V2QueueOnDisk, bodies_at, findings_at, message, messages_at, msg_id
from tests.support.effort import times
from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.index.record_format import ACK, DELIVER
from warren.salvage.classic.classic_converting import ClassicConvertingDirectory
from warren.salvage.classic.classic_v2 import ClassicV2Directory
from warren.salvage.inspect import inspect_source
from warren.salvage.queue_directory import Finding, IndexColumns
from warren.salvage.source import open_source

COUNT = 20
STORED = {3, 11, 17}
"""Positions whose bodies are in the vhost's store; all positions but these have theirs in the index."""
HOLES = {6, 12, 13}


def positions() -> list[int]:
    return [position for position in range(COUNT) if position not in HOLES]


def body(position: int) -> bytes:
    return b"body of %d" % position * (1 + position % 3)


def old_index(queue: V2QueueOnDisk, chosen: list[int]) -> None:
    for position in chosen:
        queue.publish_v1(position, body(position), stored=position in STORED)


def new_index(queue: V2QueueOnDisk, chosen: list[int]) -> None:
    for position in chosen:
        if position in STORED:  # whose body stays in its place
            entry = v2.encode_entry(msg_id=msg_id(position), size=len(body(position)))
            queue.entry(position, entry)
            queue.rdq(msg_id(position), message(position, body(position)))
        else:
            queue.publish(position, body(position))


def is_whole(place: Path) -> bool:
    return bodies_at(place) == {position: body(position) for position in positions()}


MOMENTS = [
    (moved, old_left_from)
    for moved in range(COUNT + 1)
    for old_left_from in {0, moved // V1_ENTRIES * V1_ENTRIES}  # a file goes when all of it is moved
]


@pytest.mark.slow
@pytest.mark.parametrize(("moved", "old_left_from"), MOMENTS)
def test_a_crash_in_the_middle_loses_and_repeats_nothing(moved: int, old_left_from: int, tmp_path: Path) -> None:
    """v1 → v2: positions below ``moved`` are in ``.qi``, those from ``old_left_from`` on still in ``.idx``."""
    queue = V2QueueOnDisk(tmp_path, entries=8)
    old_index(queue, [position for position in positions() if position >= old_left_from])
    new_index(queue, [position for position in positions() if position < moved])
    (queue.path / "journal.jif").touch()
    with open_source(str(tmp_path)) as source:
        assert isinstance(source.vhosts[0].queues[0], ClassicConvertingDirectory)
    assert is_whole(tmp_path)
    messages, problems = messages_at(tmp_path)
    assert [one.seq_id for one in messages] == positions()
    assert problems == []
    assert {(kind, severity) for kind, severity, _, _ in findings_at(tmp_path)} == {("leftover conversion", "leftover")}


@pytest.mark.parametrize("done", range(3))
def test_a_crash_on_the_way_back_loses_and_repeats_nothing(done: int, tmp_path: Path) -> None:
    """v2 → v1: ``done`` ``.qi`` files are gone, and their messages are in ``.idx``; the next is in both."""
    queue = V2QueueOnDisk(tmp_path, entries=8, index_version=1)
    new_index(queue, [position for position in positions() if position >= 8 * done])
    old_index(queue, [position for position in positions() if position < 8 * (done + 1)])
    assert is_whole(tmp_path)


def test_a_conversion_that_has_only_begun_has_the_new_name_and_the_old_files(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path)
    old_index(queue, positions())
    assert is_whole(tmp_path)
    assert findings_at(tmp_path) == {("leftover conversion", "leftover", "Q", None)}


def test_a_journal_alone_is_what_goes_last(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path, entries=8)
    new_index(queue, positions())
    assert findings_at(tmp_path) == set()
    (queue.path / "journal.jif").touch()
    assert is_whole(tmp_path)
    assert findings_at(tmp_path) == {("leftover conversion", "leftover", "Q", None)}


def test_what_the_old_journal_acks_stays_acked(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path)
    queue.publish_v1(0)
    queue.publish_v1(1)
    journal = b"".join((kind << 62 | 1).to_bytes(8, "big") for kind in (DELIVER, ACK))
    (queue.path / "journal.jif").write_bytes(journal)
    assert set(bodies_at(tmp_path)) == {0}
    messages, _ = messages_at(tmp_path, include_acked=True)
    assert [(one.seq_id, one.acked) for one in messages] == [(0, False), (1, True)]


def test_an_acked_entry_of_the_new_index_does_not_hide_a_message_of_the_old(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path)
    queue.publish(0, b"new", acked=True)
    queue.publish(1, b"new", persistent=False)
    queue.publish_v1(0, b"old 0")
    queue.publish_v1(1, b"old 1")
    assert bodies_at(tmp_path) == {0: b"old 0", 1: b"old 1"}
    messages, _ = messages_at(tmp_path, include_acked=True)
    assert [(one.seq_id, one.acked) for one in messages] == [(0, False), (1, False)]


def test_of_a_message_in_both_the_new_index_counts(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path)
    queue.publish(0, b"new")
    queue.publish_v1(0, b"old")
    assert bodies_at(tmp_path) == {0: b"new"}


@pytest.mark.parametrize("cut", [1, 100])
def test_a_message_whose_copy_is_damaged_comes_from_the_old_index(cut: int, tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path, entries=8)
    old_index(queue, positions())
    new_index(queue, positions()[:5])
    size = queue.store(0).stat().st_size
    if cut == 1:
        queue.flip(queue.store(0), 8 * (size - 20))
    else:
        os.truncate(queue.store(0), size - cut)
    assert is_whole(tmp_path)
    problems = messages_at(tmp_path)[1]
    assert {one.kind for one in problems} == {"damaged copy"}
    assert {kind for kind, severity, _, _ in findings_at(tmp_path) if severity == "damage"} & {
        "missing body",
        "unreadable body",
    }


def test_a_body_that_is_missing_in_the_store_is_said_once(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path)
    queue.publish_v1(0)
    queue.publish_v1(1, stored=True)
    queue.publish_v1(2)
    (queue.vhost / "msg_store_persistent" / "0.rdq").unlink()
    assert [one.kind for one in messages_at(tmp_path)[1]] == ["missing body"]
    assert set(bodies_at(tmp_path)) == {0, 2}
    problems: list[Finding] = []
    with open_source(str(tmp_path)) as source:
        inspect_source(source, problems.append)
    assert [one.kind for one in problems] == ["missing body"]


def test_inspect_says_what_is_left_of_the_old_index(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path, entries=8)
    old_index(queue, [position for position in positions() if position >= 8])
    new_index(queue, [position for position in positions() if position < 10])
    problems: list[Finding] = []
    with open_source(str(tmp_path)) as source:
        (found,) = inspect_source(source, problems.append)["vhosts"][0]["queues"]
    assert problems == []
    assert (found["type"], found["version"], found["kind"]) == ("classic", 2, "rabbitmq-classic-v2")
    assert found["ready"] == len(positions())
    assert found["bytes"] == sum(len(body(position)) for position in positions())
    assert [segment["number"] for segment in found["segments"]] == [0, 1]
    assert [segment["number"] for segment in found["converting"]["segments"]] == [2, 3, 4]


def test_the_index_has_each_position_once_in_order(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path, entries=8)
    old_index(queue, [position for position in positions() if position >= 8])
    new_index(queue, [position for position in positions() if position < 10])
    queue.ack(9)
    with open_source(str(tmp_path)) as source:
        (directory,) = source.vhosts[0].queues
        columns = [one for one in directory.index_columns() if isinstance(one, IndexColumns)]
        assert directory.extent().pieces == {}
        assert directory.extent().seq_ids_per_piece is None
    assert np.concatenate([one.seq_ids for one in columns]).tolist() == positions()
    paths = {
        int(seq_id): one.paths[of].rpartition("/")[2]
        for one in columns
        for seq_id, of in zip(one.seq_ids, one.path_of, strict=True)
    }
    assert (paths[8], paths[9], paths[10]) == ("1.qi", "2.idx", "2.idx")
    assert not np.concatenate([one.acked for one in columns]).any()


def test_a_queue_of_version_2_alone_is_none_of_these(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path, index_version=1)
    queue.publish(0)
    with open_source(str(tmp_path)) as source:
        assert isinstance(source.vhosts[0].queues[0], ClassicV2Directory)


@pytest.mark.slow
@settings(max_examples=times(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_that_is_cut_off_in_a_conversion_gives_no_wrong_body(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("cut")
    queue = V2QueueOnDisk(place, entries=8)
    moved = data.draw(st.integers(0, COUNT), label="moved")
    old_index(queue, [position for position in positions() if position >= moved // V1_ENTRIES * V1_ENTRIES])
    new_index(queue, [position for position in positions() if position < moved])
    files = [one for one in queue.path.iterdir() if one.name[0] != "." and one.stat().st_size]
    path = data.draw(st.sampled_from(sorted(files)))
    os.truncate(path, data.draw(st.integers(0, path.stat().st_size - 1), label="size"))
    found = bodies_at(place)
    assert found.items() <= {position: body(position) for position in positions()}.items()
    findings_at(place)
