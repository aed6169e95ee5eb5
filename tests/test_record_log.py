"""RecordLog: what is in a log after any crash, with damage, on a full disk, and after it was replaced."""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.effort import times
from warren.storage.errors import DataError, NoRoomError, StorageError
from warren.storage.faults import FaultRules, SimulatedCrash, Write
from warren.storage.memory import MemoryFileSystem
from warren.storage.record_log import HEAD, RecordLog

PATH = "/data/warren.queues/a.log"


def new_files(seed: int = 1) -> MemoryFileSystem:
    return MemoryFileSystem(random.Random(seed), rules=FaultRules(damage=True))


def opened(files: MemoryFileSystem) -> tuple[RecordLog, list[bytes]]:
    log = RecordLog(files, PATH, "things")
    return log, [payload for _, payload in log.replay()]


def test_nothing_is_made_before_something_is_written() -> None:
    files = new_files()
    log, found = opened(files)
    log.append(b"a")
    assert found == []
    assert files.contents() == {}
    log.write()
    assert files.contents() == {PATH: log.header + files.read(PATH)[len(log.header) :]}


def test_records_come_back_in_order_and_are_read_by_their_offsets() -> None:
    files = new_files()
    log, _ = opened(files)
    bodies = [b"one", b"", b"three" * 1000]
    offsets = [log.append(body) for body in bodies]
    log.sync()
    log.check_invariants()
    again = RecordLog(files, PATH, "things")
    assert list(again.replay()) == list(zip(offsets, bodies, strict=True))
    assert [again.read(offset) for offset in offsets] == bodies
    assert again.size_bytes == log.size_bytes == files.size(PATH)


def test_no_record_stands_between_two() -> None:
    log, _ = opened(new_files())
    log.append(b"one")
    log.write()
    for offset in (0, len(log.header) + 1, log.size_bytes, 1 << 40):
        with pytest.raises(DataError, match=rf"{PATH}, offset {offset}: there is no whole record"):
            log.read(offset)


def test_a_torn_end_is_cut_off_by_the_next_write() -> None:
    files = new_files()
    log, _ = opened(files)
    log.append(b"one")
    log.append(b"two")
    log.sync()
    files.cut(PATH, files.size(PATH) - 1)
    log, found = opened(files)
    assert found == [b"one"]
    assert log.damage is None
    log.append(b"3")
    log.sync()
    assert opened(files)[1] == [b"one", b"3"]


def test_damage_in_the_middle_costs_itself_alone_and_is_told() -> None:
    files = new_files()
    log, _ = opened(files)
    offsets = [log.append(body) for body in (b"one", b"two", b"three")]
    log.sync()
    files.flip_bit(PATH, offsets[1] + 9, 3)
    log, found = opened(files)
    assert found == [b"one", b"three"]
    assert str(log.damage) == f"{PATH}, offset {offsets[1]}: a damaged record, followed by whole ones"
    log.append(b"four")
    log.sync()
    assert opened(files)[1] == [b"one", b"three", b"four"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"warren things 2\n", "of version 2; this warren reads 1"),
        (b"warren others 1\n", "not a file of the kind 'warren things'"),
    ],
)
def test_another_file_is_refused_and_left_alone(data: bytes, reason: str) -> None:
    files = new_files()
    files.make_directories("/data/warren.queues")
    files.open_append(PATH).append(data)
    with pytest.raises(DataError, match=reason):
        opened(files)
    assert files.read(PATH) == data


def test_a_file_that_a_power_loss_left_as_zeros_is_as_none() -> None:
    files = new_files()
    files.make_directories("/data/warren.queues")
    files.open_append(PATH).append(b"\0" * 100)
    log, found = opened(files)
    assert found == []
    log.append(b"one")
    log.sync()
    assert opened(files)[1] == [b"one"]


def test_after_a_sync_that_failed_nothing_is_called_safe() -> None:
    files = new_files()
    log, _ = opened(files)
    log.append(b"one")
    files.fail("sync")
    for _ in range(2):
        with pytest.raises(StorageError):
            log.sync()
    log.replace([b"one"], sync=True)
    log.sync()
    assert opened(files.after_power_loss(random.Random(1)))[1] == [b"one"]


def failed_to_sync(files: MemoryFileSystem) -> RecordLog:
    """A log with one record whose sync failed."""
    log, _ = opened(files)
    log.append(b"before")
    files.fail("sync", PATH)
    with pytest.raises(StorageError):
        log.sync()
    return log


def test_what_is_read_after_a_sync_that_failed_is_safe_only_as_a_copy() -> None:
    """The next sync brings nothing of it to the disk, and the next reader called it safe."""
    files = new_files()
    failed_to_sync(files)
    files = files.after_process_crash()  # the system goes on, and what it has in memory
    log, found = opened(files)
    log.append(b"behind")
    log.sync()
    assert found == [b"before"]
    assert opened(files.after_power_loss(None))[1] == [b"before", b"behind"]
    assert [path for path in files.contents() if path != PATH] == []


@pytest.mark.parametrize("end", ["delete", "replace"])
def test_a_log_that_is_made_anew_after_a_sync_that_failed_is_like_any_other(end: str) -> None:
    files = new_files()
    log = failed_to_sync(files)
    if end == "delete":
        log.delete()
    else:
        log.replace([b"before"], sync=True)
    log.append(b"behind")
    log.sync()
    assert opened(files.after_power_loss(None))[1] == [b"before"] * (end == "replace") + [b"behind"]
    assert list(files.contents()) == [PATH]


def test_a_full_disk_keeps_the_buffer_and_leaves_nothing_in_the_file() -> None:
    files = new_files()
    log, _ = opened(files)
    log.append(b"one")
    log.sync()
    files.capacity_bytes = files.used_bytes + 50
    log.append(b"x" * 100)
    with pytest.raises(NoRoomError):
        log.sync()
    assert opened(files)[1] == [b"one"]
    files.capacity_bytes = None
    log.sync()
    assert opened(files)[1] == [b"one", b"x" * 100]


def test_a_log_that_was_replaced_or_deleted_goes_on() -> None:
    files = new_files()
    log, _ = opened(files)
    for _ in range(10):
        log.append(b"old")
    log.sync()
    log.replace([b"new"], sync=True)
    log.append(b"newer")
    log.sync()
    assert opened(files)[1] == [b"new", b"newer"]
    log.delete()
    assert files.contents() == {}
    log.append(b"anew")
    log.sync()
    assert opened(files)[1] == [b"anew"]


@given(st.binary(max_size=300))
def test_any_bytes_behind_the_header_are_read_without_another_error(data: bytes) -> None:
    files = new_files()
    files.make_directories("/data/warren.queues")
    files.open_append(PATH).append(RecordLog(files, PATH, "things").header + data)
    opened(files)


def _payload(number: int) -> bytes:
    return b"%d" % number * (number + 1)


def _live(files: MemoryFileSystem, safe: list[int]) -> None:
    """Numbers are appended; after the eighth the log is replaced by the last two. ``safe``: the last that surely is."""
    log, _ = opened(files)
    for number in range(12):
        log.append(_payload(number))
        if number % 3 == 2:
            log.sync()
            safe[:] = [number]
        if number == 7:
            log.replace([_payload(6), _payload(7)], sync=True)
            safe[:] = [number]


def _check(files: MemoryFileSystem, safe: list[int]) -> None:
    log, found = opened(files)
    numbers = [next(number for number in range(12) if _payload(number) == payload) for payload in found]
    assert log.damage is None
    assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else not safe
    assert not numbers or numbers[0] in {0, 6}
    assert not safe or numbers[-1] >= safe[0]
    log.append(b"more")
    log.sync()
    assert opened(files)[1] == [*found, b"more"]


@pytest.mark.parametrize("seed", range(times(2)))
def test_a_crash_at_any_operation_leaves_what_was_synced_in_order(seed: int) -> None:
    whole = new_files(seed)
    _live(whole, [])
    for operation in range(1, whole.operations + 1):
        files, safe = new_files(seed), list[int]()
        files.crash_at(operation, torn=True)
        with pytest.raises(SimulatedCrash):
            _live(files, safe)
        _check(files.after_process_crash(), safe)
        _check(files.after_power_loss(random.Random(seed)), safe)


def test_an_operation_that_fails_loses_nothing_of_what_was_safe() -> None:
    whole = new_files()
    _live(whole, [])
    for operation in range(1, whole.operations + 1):
        files, safe = new_files(), list[int]()
        files.fail_at(operation)
        with pytest.raises(StorageError):
            _live(files, safe)
        _check(files, safe)


def test_what_was_dropped_is_not_written() -> None:
    files = new_files()
    log, _ = opened(files)
    log.append(b"a")
    log.drop()
    first = log.append(b"b")
    log.write()
    log.check_invariants()
    assert list(opened(files)[0].replay()) == [(first, b"b")]


def test_what_another_process_wrote_and_did_not_sync_is_synced_by_the_next() -> None:
    for seed in range(20):
        files = new_files(seed)
        log, _ = opened(files)
        log.append(b"a")
        log.write()
        files = files.after_process_crash()
        log, found = opened(files)
        assert found == [b"a"]
        log.sync()
        assert opened(files.after_power_loss(random.Random(seed)))[1] == [b"a"]


def _without_the_second_of_three_writes(kept: int) -> MemoryFileSystem:
    """What a power loss leaves that takes a write, but for some bytes of it, and neither the ones around it."""
    files = new_files()
    log, _ = opened(files)
    for payload in (b"one", b"t" * 600, b"three"):
        log.append(payload)
        log.write()

    class Survivors:
        def changes(self, changes: Sequence[Collection[Hashable]]) -> Iterable[int]:
            return range(len(changes))

        def writes(self, writes: Sequence[Write]) -> Iterable[Write]:
            first, (offset, chunk), third = writes
            return [first, (offset, chunk and chunk[:kept]), third]

    return files.after_power_loss(Survivors())


@pytest.mark.parametrize("kept", [0, 1, 300, 590])
def test_a_hole_that_a_power_loss_left_between_unsynced_writes_is_no_damage(kept: int) -> None:
    log, found = opened(_without_the_second_of_three_writes(kept))
    assert (found, log.damage) == ([b"one", b"three"], None)
    log.append(b"four")
    log.sync()
    again, found = opened(log._files)  # type: ignore[arg-type]
    assert (found, again.damage) == ([b"one", b"three", b"four"], None)


def test_a_log_whose_header_a_power_loss_took_gets_it_again() -> None:
    files = new_files()
    log, _ = opened(files)
    for payload in (b"one", b"two"):
        log.append(payload)
        log.write()
    files.open_append(PATH).pwrite(bytes(len(log.header)), 0)
    log, found = opened(files)
    assert (found, log.damage) == ([b"one", b"two"], None)
    log.append(b"three")
    log.sync()
    assert files.read(PATH).startswith(log.header)
    assert opened(files)[1] == [b"one", b"two", b"three"]


def test_a_record_that_was_written_over_is_damage_though_zeros_stand_in_it() -> None:
    files = new_files()
    log, _ = opened(files)
    first = log.append(b"a" + bytes(40) + b"b")
    log.append(b"two")
    log.sync()
    files.flip_bit(PATH, first + HEAD.size, 0)
    log, found = opened(files)
    assert (found, log.damage and log.damage.offset) == ([b"two"], first)
