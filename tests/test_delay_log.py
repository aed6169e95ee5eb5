"""DelayLog: what is on disk and in RAM, damage, full disks; its crashes are in :mod:`tests.crash_points.logs`."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.crash_points.logs import DIRECTORY, TARGETS, message, number_in
from tests.support.effort import EFFORT
from warren.actors.engines.delays import delay_format as f
from warren.actors.engines.delays.delay_log import DelayLog
from warren.storage.errors import DataError, NoRoomError, StorageError
from warren.storage.faults import FaultRules
from warren.storage.memory import MemoryFileSystem


def new_files(seed: int = 1, **kwargs: Any) -> MemoryFileSystem:
    return MemoryFileSystem(random.Random(seed), rules=FaultRules(damage=True), **kwargs)


def opened(files: MemoryFileSystem, entries: int = 4, size: int = 1 << 20) -> DelayLog:
    log = DelayLog.open(files, DIRECTORY, file_size_limit_bytes=size, file_entries=entries)
    log.check_invariants()
    return log


def waiting(log: DelayLog) -> list[int]:
    return [number_in(term) for _, term in log.waiting()]


def names(files: MemoryFileSystem) -> list[str]:
    return [path.rpartition("/")[2] for path in sorted(files.contents())]


def test_nothing_is_on_disk_before_something_waits() -> None:
    files = new_files()
    log = opened(files)
    assert (len(log), log.next_due_ms(), log.take_due(1 << 60, 10, 1 << 20)) == (0, None, [])
    assert files.contents() == {}


def test_a_full_file_has_an_index_and_one_whose_messages_are_gone_goes() -> None:
    files = new_files()
    log = opened(files)
    log.add([message(n, 10 - n) for n in range(9)])
    assert names(files) == ["1.delayed", "1.due"]
    log.add([message(9, 50)])
    assert names(files) == ["1.delayed", "1.due", "2.delayed"]
    taken = log.take_due(10, 20, 1 << 20)
    assert [number_in(one.term) for one in taken] == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    log.settle(taken[1:])
    assert not log.has_garbage  # one is taken, and may have to be published again
    log.settle(taken[:1])
    assert log.reclaim()
    assert not log.reclaim()
    assert names(files) == ["2.delayed"]
    log.check_invariants()


def test_a_file_that_is_mostly_garbage_is_written_again_with_what_it_says_of_others() -> None:
    files = new_files()
    log = opened(files, entries=8)
    log.add([message(n, n) for n in range(8)])  # 1
    log.settle(log.take_due(0, 1, 1))  # its place stands in 2
    log.add([message(n, 100 + n) for n in range(8, 16)])  # fills 2
    for number in range(9, 16):
        assert len(log.cancel(b"id %d" % number)) == 1
    assert names(files) == ["1.delayed", "1.due", "2.delayed", "2.due", "3.delayed"]
    assert log.reclaim()
    assert names(files) == ["1.delayed", "1.due", "3.delayed"]
    assert waiting(log) == [1, 2, 3, 4, 5, 6, 7, 8]
    log.abandon()
    assert waiting(opened(files, entries=8)) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_message_is_called_back_by_its_id_and_not_by_one_that_looks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.crash_points.logs.digest_of_id", lambda _: 7)
    monkeypatch.setattr(f, "digest_of_id", lambda _: 7)
    log = opened(new_files())
    log.add([message(n, 1) for n in range(10)])
    assert [number_in(term) for term in log.cancel(b"id 6")] == [6]
    assert log.cancel(b"id 6") == []
    assert sorted(waiting(log)) == [0, 1, 2, 3, 4, 5, 7, 8, 9]


def test_what_is_taken_cannot_be_called_back() -> None:
    log = opened(new_files())
    log.add([message(n, 1) for n in range(6)])
    taken = log.take_due(1, 6, 1 << 20)
    assert log.cancel(b"id 3") == []
    assert log.drop(TARGETS[0]) == 0
    log.settle(taken)
    assert log.waiting_of(TARGETS[0]) == 0


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_damaged_message_is_told_passed_over_and_its_file_kept() -> None:
    files = new_files()
    log = opened(files)
    log.add([message(n, n) for n in range(4)])
    log.abandon()
    rows = f.read_rows(files, f"{DIRECTORY}/1.due", 4, 0, 4)
    bad = rows[rows["due_ms"] == 1][0]
    files.flip_bit(f"{DIRECTORY}/1.delayed", int(bad["offset"]) + 60, 3)
    log = opened(files)
    taken = log.take_due(10, 10, 1 << 20)
    assert [number_in(one.term) for one in taken] == [0, 2, 3]
    assert [(error.path, error.offset) for error in log.damage] == [(f"{DIRECTORY}/1.delayed", int(bad["offset"]))]
    log.settle(taken)
    assert not log.has_garbage
    log.close()
    assert "1.delayed" in names(files)


def test_damage_in_the_file_that_was_written_last_is_told_and_the_others_wait() -> None:
    files = new_files()
    log = opened(files)
    log.add([message(n, n) for n in range(3)])
    log.abandon()
    files.flip_bit(f"{DIRECTORY}/1.delayed", 60, 3)
    log = opened(files)
    assert waiting(log) == [1, 2]
    assert [str(error) for error in log.damage] == [
        f"{DIRECTORY}/1.delayed, offset 17: a damaged record, followed by whole ones"
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"something else\n", "not a file of the kind 'warren delayed'"),
        (b"warren delayed 9\n", "of version 9; this warren reads 1"),
    ],
)
def test_a_file_of_another_kind_is_refused(content: bytes, why: str) -> None:
    files = new_files()
    files.make_directories(DIRECTORY)
    handle = files.open_append(f"{DIRECTORY}/1.delayed")
    handle.append(content)
    handle.close()
    with pytest.raises(DataError, match=why):
        opened(files)


@pytest.mark.parametrize("harm", ["cut", "flip", "delete", "empty", "other"])
def test_an_index_that_cannot_be_read_is_made_anew(harm: str) -> None:
    files = new_files()
    log = opened(files)
    log.add([message(n, n) for n in range(4)])
    log.add([message(4, 4)])
    log.settle(log.take_due(0, 1, 1))
    log.abandon()
    path = f"{DIRECTORY}/1.due"
    before = files.read(path)
    if harm == "cut":
        files.cut(path, len(before) - 1)
    elif harm == "flip":
        files.flip_bit(path, 40, 1)
    else:
        files.delete(path)
    if harm in ("empty", "other"):
        handle = files.open_append(path)
        handle.append(b"" if harm == "empty" else b"warren due 1\n" + bytes(30))
        handle.close()
    assert waiting(opened(files)) == [1, 2, 3, 4]
    assert files.read(path) == before


def test_what_a_crash_left_half_written_goes() -> None:
    files = new_files()
    log = opened(files)
    log.add([message(0, 1)])
    log.abandon()
    for name in ("7.due", "1.due.new", "notes.txt"):
        files.open_append(f"{DIRECTORY}/{name}").close()
    assert waiting(opened(files)) == [0]
    assert names(files) == ["1.delayed", "notes.txt"]


# ── full disks ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_full_disk_refuses_what_is_added_and_remembers_what_is_gone() -> None:
    files = new_files()
    log = opened(files)
    log.add([message(n, n) for n in range(6)])
    taken = log.take_due(2, 3, 1 << 20)
    files.capacity_bytes = files.used_bytes
    with pytest.raises(NoRoomError):
        log.add([message(6, 1)])
    log.settle(taken)
    with pytest.raises(NoRoomError):
        log.postpone(log.take_due(3, 1, 1), 9)
    log.check_invariants()
    assert (len(log), log.taken) == (2, 1)
    files.capacity_bytes = None
    log.add([message(7, 1)])
    log.abandon()
    assert waiting(opened(files)) == [7, 3, 4, 5]


def test_where_there_is_no_room_for_an_index_the_file_goes_on() -> None:
    files = new_files()
    log = opened(files)
    log.add([message(n, n) for n in range(3)])
    files.capacity_bytes = files.used_bytes + len(message(3, 3).term) + 100  # a record, and no index
    log.add([message(3, 3)])
    assert names(files) == ["1.delayed"]
    files.capacity_bytes = None
    log.add([message(4, 4)])
    assert names(files) == ["1.delayed", "1.due"]
    assert waiting(log) == [0, 1, 2, 3, 4]


def test_without_room_nothing_is_reclaimed_and_nothing_is_lost() -> None:
    files = new_files()
    log = opened(files)
    log.add([message(n, n if n < 3 else 99) for n in range(4)])
    log.settle(log.take_due(5, 3, 1 << 20))
    files.capacity_bytes = files.used_bytes
    with pytest.raises(NoRoomError):
        log.reclaim()
    log.check_invariants()
    files.capacity_bytes = None
    assert log.reclaim()
    assert waiting(log) == [3]


def test_after_a_sync_that_failed_nothing_is_said_to_be_safe() -> None:
    files = new_files()
    log = opened(files)
    log.add([message(0, 1)])
    files.fail("sync")
    with pytest.raises(StorageError):
        log.sync()
    with pytest.raises(StorageError):
        log.sync()


# ── RAM ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

MEASURED = """
import random, resource, sys
from tests.crash_points.logs import message
from warren.actors.engines.delays.delay_log import DelayLog, NewMessage
from warren.storage.filesystem import RealFileSystem

directory, count = sys.argv[1], int(sys.argv[2])
rng, one = random.Random(1), message(0, 0, 100)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
log = DelayLog.open(RealFileSystem(), directory, file_size_limit_bytes=16 << 20)
for first in range(0, count, 1000):
    log.add([NewMessage(rng.randrange(1 << 40), first + n + 1, one.target, one.term) for n in range(1000)])
log.abandon()
log = DelayLog.open(RealFileSystem(), directory, file_size_limit_bytes=16 << 20)
assert len(log) == count
last = 0
for _ in range(5):
    taken = log.take_due(1 << 40, 1024, 4 << 20)
    assert [one.entry.due_ms for one in taken] == sorted(one.entry.due_ms for one in taken)
    assert taken[0].entry.due_ms >= last
    last = taken[-1].entry.due_ms
    log.settle(taken)
assert len(log) == count - 5 * 1024
print(peak() - before)
"""


@pytest.mark.slow
def test_many_that_wait_take_hardly_any_memory(tmp_path: Path) -> None:
    count = 1_000_000 if EFFORT != "quick" else 100_000
    command = [sys.executable, "-c", MEASURED, str(tmp_path), str(count)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert int(said.stdout) < 40 << 20, said.stdout


def test_columns_of_an_index_are_read_by_themselves() -> None:
    files = new_files()
    entries = f.entries_of([f.Entry(n % 3, n, 7, n * 10, 5) for n in range(100)])
    files.make_directories(DIRECTORY)
    handle = files.open_append(f"{DIRECTORY}/1.due")
    handle.append(f.encode_index(f.Index(entries, f.removed_of([]), False), 9))
    handle.close()
    path = f"{DIRECTORY}/1.due"
    rows = f.read_rows(files, path, 100, 90, 64)
    assert len(rows) == 10
    assert (np.diff(f.read_column(files, path, 100, "due_ms")) >= 0).all()
    assert f.read_column(files, path, 100, "id_digest")[90:].tolist() == rows["id_digest"].tolist()
    files.cut(path, files.size(path) - 1)
    with pytest.raises(DataError, match="cut short"):
        f.read_rows(files, path, 100, 90, 64)
