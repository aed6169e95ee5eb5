"""ConsumeQueues: what the real RocketMQ wrote and answered, and the cases that it does not show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rocketmq_golden import FILES, SCENARIOS, answers, directory, manifest, overlay, records, settings
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.queue_index.topics.consume_queue_format import FILLER, encode
from warren.storage.errors import DataError, DiskFullError, StorageError
from warren.storage.faults import SimulatedCrash
from warren.storage.filesystem import FileSystem
from warren.storage.mapped_files import file_name
from warren.storage.memory import MemoryFileSystem

PLACE = "/store/consumequeue/T/0"
FILE_BYTES = 100  # five entries

Json = dict[str, Any]
Message = tuple[int, int, int, int]
"""Queue offset, physical offset, size, tags code."""


def open_queue(files: FileSystem, place: str = PLACE, file_size: int = FILE_BYTES, **options: Any) -> ConsumeQueue:
    topic, queue_id = place.split("/")[-2:]
    return ConsumeQueue.load(files, place, topic=topic, queue_id=int(queue_id), file_size=file_size, **options)


def recovered(files: FileSystem, **options: Any) -> ConsumeQueue:
    queue = open_queue(files, **options)
    queue.recover()
    queue.check_invariants()
    return queue


def put(queue: ConsumeQueue, *messages: Message) -> None:
    columns = np.array(messages, np.int64).reshape(-1, 4)
    queue.put_many(columns[:, 0], columns[:, 1], columns[:, 2].astype(np.int32), columns[:, 3])
    queue.check_invariants()


def messages(start: int, stop: int) -> list[Message]:
    """Message n lies at 100 n, takes 100 bytes, has the tags code −n and was stored at 1000 n ms."""
    return [(n, 100 * n, 100, -n) for n in range(start, stop)]


def stored_ms(physical_offset: int, size: int) -> int | None:
    return physical_offset * 10


def held(queue: ConsumeQueue, queue_offset: int = 0, count: int = 1000) -> list[tuple[int, int, int]]:
    return [tuple(entry) for entry in queue.entries(queue_offset, count).tolist()]


def entries_of(*expected: Message) -> list[tuple[int, int, int]]:
    return [entry[1:] for entry in expected]


# The real one's


def dispatched(listed: list[Json]) -> Iterator[Json]:
    """The records that get an entry."""
    return (record for record in listed if "topic" in record and record["transactionType"] not in (0x4, 0xC))


def put_records(files: FileSystem, listed: list[Json], file_size: int, batch: int) -> None:
    """Put the entries of ``listed``, some at a time."""
    queues: dict[tuple[str, int], ConsumeQueue] = {}
    columns: dict[tuple[str, int], list[Message]] = {}
    for number, record in enumerate(dispatched(listed)):
        key = record["topic"], record["queueId"]
        message = record["queueOffset"], record["physicalOffset"], record["totalSize"], record["tagsCode"]
        columns.setdefault(key, []).append(message)
        if number % batch == 0:
            put_columns(files, queues, columns, file_size)
    put_columns(files, queues, columns, file_size)


def put_columns(
    files: FileSystem,
    queues: dict[tuple[str, int], ConsumeQueue],
    columns: dict[tuple[str, int], list[Message]],
    file_size: int,
) -> None:
    for key, found in columns.items():
        if key not in queues:
            queues[key] = open_queue(files, f"/{key[0]}/{key[1]}", file_size)
        put(queues[key], *found)
    columns.clear()


def files_in(place: str) -> dict[str, bytes]:
    """The files of all the queues there, by path."""
    files = FILES
    return {
        f"/{topic}/{queue_id}/{name}": files.read(f"{place}/{topic}/{queue_id}/{name}")
        for topic in files.list(place)
        for queue_id in files.list(f"{place}/{topic}")
        for name in files.list(f"{place}/{topic}/{queue_id}")
    }


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 7, 1000])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_entries_of_its_records_are_its_files(scenario: str, batch: int) -> None:
    files = MemoryFileSystem()
    put_records(files, records(scenario), settings(scenario).mapped_file_size_consume_queue, batch)
    assert files.contents() == files_in(directory(scenario) + "/consumequeue")


def rebuilt_scenarios() -> list[str]:
    return [scenario for scenario in SCENARIOS if "after" in manifest(scenario) and "store" in manifest(scenario)]


@pytest.mark.parametrize("scenario", rebuilt_scenarios())
def test_what_is_left_of_an_expired_log_gives_its_files_with_filler(scenario: str) -> None:
    files = MemoryFileSystem()
    listed = manifest(scenario)["after"]["result"]["records"]
    put_records(files, listed, settings(scenario).mapped_file_size_consume_queue, 50)
    contents = files.contents()
    assert any(FILLER in content for content in contents.values())
    assert contents == files_in(directory(scenario, "after") + "/consumequeue")


def as_it_loads(files: FileSystem, place: str, answer: Json, expected: Json, file_size: int) -> ConsumeQueue:
    """A queue after the steps that a load takes, the CommitLog's ends being known."""
    topic, queue_id = expected["topic"], expected["queueId"]
    queue = open_queue(files, f"{place}/consumequeue/{topic}/{queue_id}", file_size, writable=False)
    queue.recover()
    summary = answer["summary"]
    if queue.max_physical_offset >= summary["maxPhyOffset"]:
        queue.truncate(summary["maxPhyOffset"])
    queue.correct_min_offset(summary["minPhyOffset"])
    queue.check_invariants()
    return queue


def entries_of_records(scenario: str, queue: ConsumeQueue, physical_end: int) -> list[list[int]]:
    return [
        [record["physicalOffset"], record["totalSize"], record["tagsCode"]]
        for record in dispatched(records(scenario))
        if (record["topic"], record["queueId"]) == (queue.topic, queue.queue_id)
        and record["physicalOffset"] < physical_end
    ]


def loads() -> list[Any]:
    """States that loading alone leads to, the CommitLog being whole."""
    return [
        pytest.param(scenario, part, answer, id=f"{scenario}-{name}")
        for scenario in SCENARIOS
        for name, part, patch, _, mode, answer in answers(scenario)
        if mode == "load" and not patch and answer.get("consumeQueues")
    ]


@pytest.mark.parametrize(("scenario", "part", "answer"), loads())
def test_a_loaded_queue_has_its_ends_files_and_entries(scenario: str, part: str, answer: Json) -> None:
    file_size = settings(scenario).mapped_file_size_consume_queue
    for expected in answer["consumeQueues"]:
        queue = as_it_loads(overlay(scenario), directory(scenario, part), answer, expected, file_size)
        assert (queue.min_offset, queue.max_offset) == (expected["minOffset"], expected["maxOffset"])
        assert queue.max_physical_offset == expected["maxPhysicOffset"]
        found = [list(entry) for entry in held(queue, queue.min_offset, 1 << 40)]
        assert found == expected.get("entries", entries_of_records(scenario, queue, answer["summary"]["maxPhyOffset"]))
        wrote = [min(queue.end_byte - base, file_size) for base in queue.mapped.bases]
        assert [(file_name(base), end) for base, end in zip(queue.mapped.bases, wrote, strict=True)] == [
            (file["file"], file["wrotePosition"]) for file in expected["files"]
        ]


def load_clock(listed: list[Json], commit_log_min: int) -> Callable[[int, int], int | None]:
    times = {record["physicalOffset"]: record["storeTimestamp"] for record in listed if "topic" in record}
    return lambda physical_offset, _: times.get(physical_offset) if physical_offset >= commit_log_min else None


@pytest.mark.parametrize(("scenario", "part", "answer"), loads())
def test_offsets_by_time_are_the_same(scenario: str, part: str, answer: Json) -> None:
    file_size = settings(scenario).mapped_file_size_consume_queue
    files, commit_log_min = FILES, answer["summary"]["minPhyOffset"]
    clock = load_clock(answer.get("records") or records(scenario), commit_log_min)
    queues = {
        (expected["topic"], expected["queueId"]): as_it_loads(
            files, directory(scenario, part), answer, expected, file_size
        )
        for expected in answer["consumeQueues"]
    }
    for question in answer.get("offsetByTime", []):
        queue = queues[question["topic"], question["queueId"]]
        assert queue.offset_by_time(question["timestamp"], clock, commit_log_min) == question["offset"], question


@pytest.mark.parametrize("scenario", [scenario for scenario in SCENARIOS if "store" in manifest(scenario)])
def test_the_first_message_at_a_time_is_found_in_all_files(scenario: str) -> None:
    answer = manifest(scenario)["store"]
    clock = load_clock(answer["records"], 0)
    file_size = settings(scenario).mapped_file_size_consume_queue
    for expected in answer["consumeQueues"]:
        queue = as_it_loads(FILES, directory(scenario), answer, expected, file_size)
        times = [clock(offset, size) or 0 for offset, size, _ in expected["entries"]]
        assert times == sorted(times)
        for asked in {0, *times, *(time + 1 for time in times)}:
            first = next((n for n, time in enumerate(times) if time >= asked), len(times))
            assert queue.first_offset_at(asked, clock, 0) == queue.min_offset + first


# Putting


def test_an_empty_queue_has_no_ends_and_no_entries() -> None:
    queue = recovered(MemoryFileSystem())
    queue.truncate(0)
    queue.correct_min_offset(500)
    assert (queue.min_offset, queue.max_offset, held(queue)) == (0, 0, [])
    assert queue.offset_by_time(5, stored_ms, 0) == queue.first_offset_at(5, stored_ms, 0) == 0
    put(queue)
    assert queue.expire(10) == queue.mapped.bases == []


def test_entries_go_over_the_borders_of_files() -> None:
    files = MemoryFileSystem()
    queue = open_queue(files)
    put(queue, *messages(0, 13))
    assert files.list(PLACE) == [file_name(base) for base in (0, 100, 200)]
    assert held(queue) == entries_of(*messages(0, 13))
    assert held(queue, 3, 4) == entries_of(*messages(3, 7))
    assert held(queue, 12, 5) == entries_of(*messages(12, 13))
    assert held(queue, 13, 5) == held(queue, -3, 2) == held(queue, 2, 0) == []
    assert (queue.max_offset, queue.max_physical_offset) == (13, 1300)


def test_a_full_file_is_followed_only_when_there_is_more() -> None:
    queue = open_queue(MemoryFileSystem())
    put(queue, *messages(0, 5))
    assert queue.mapped.bases == [0]
    put(queue, *messages(5, 6))
    assert queue.mapped.bases == [0, 100]


def test_a_message_below_the_end_is_left_out_but_for_queue_offset_0() -> None:
    queue = open_queue(MemoryFileSystem())
    put(queue, *messages(0, 4))
    put(queue, (2, 5000, 10, 0), (4, 6000, 10, 1), (0, 7000, 10, 2))
    assert held(queue, 4) == [(6000, 10, 1), (7000, 10, 2)]


def test_a_message_above_the_end_comes_to_the_end_all_the_same() -> None:
    queue = open_queue(MemoryFileSystem())
    put(queue, *messages(0, 2))
    put(queue, (9, 900, 10, 0), (10, 910, 10, 0))
    assert queue.max_offset == 4
    assert held(queue, 2) == [(900, 10, 0), (910, 10, 0)]


def test_a_message_that_ends_before_the_one_ahead_of_it_in_a_batch_is_left_out() -> None:
    queue = open_queue(MemoryFileSystem())
    put(queue, (0, 0, 100, 0), (1, 50, 50, 0), (1, 100, 10, 0))
    assert held(queue) == [(0, 100, 0), (100, 10, 0)]
    put(queue, (2, 110, 90, 0), (3, 150, 50, 0), (4, 200, 10, 0))
    assert held(queue, 2) == [(110, 90, 0), (200, 10, 0)]


def test_filler_stands_ahead_of_a_first_message_that_is_not_number_0() -> None:
    files = MemoryFileSystem()
    queue = open_queue(files)
    put(queue, *messages(7, 12))
    assert files.contents()[f"{PLACE}/{file_name(100)}"][:40] == FILLER * 2
    assert (queue.min_offset, queue.max_offset, queue.mapped.bases) == (7, 12, [100, 200])
    assert held(queue, 7) == entries_of(*messages(7, 12))
    again = recovered(files)
    again.correct_min_offset(700)
    assert (again.min_offset, again.max_offset, again.max_physical_offset) == (7, 12, 1200)


def test_no_filler_is_needed_where_the_first_message_begins_a_file() -> None:
    queue = open_queue(MemoryFileSystem())
    put(queue, *messages(10, 11))
    assert (queue.min_offset, queue.max_offset, queue.mapped.bases) == (10, 11, [200])


@pytest.mark.parametrize("queue_offset", [-1, -(2**63), 2**63 - 1, 2**63 // 20])
def test_a_damaged_queue_offset_begins_no_queue(queue_offset: int) -> None:
    queue = open_queue(MemoryFileSystem())
    put(queue, (queue_offset, 10, 10, 0), (6, 50, 10, 0))
    assert (queue.min_offset, queue.max_offset) == (6, 7)


def test_a_damaged_physical_offset_is_left_out() -> None:
    queue = open_queue(MemoryFileSystem())
    put(queue, *messages(0, 1))
    put(queue, (1, -5000, 10, 0), (1, 2**63 - 5, 10, 0), (1, 100, 10, 0))
    assert held(queue, 1) == [(100, 10, 0)]


def test_a_full_disk_leaves_a_prefix_that_the_next_put_goes_on_from() -> None:
    files = MemoryFileSystem(capacity_bytes=250)
    queue = open_queue(files)
    with pytest.raises(DiskFullError):
        put(queue, *messages(2, 14))
    queue.check_invariants()
    assert held(queue, 2) == entries_of(*messages(2, 10))
    files.capacity_bytes = None
    put(queue, *messages(2, 14))
    assert held(queue, 2) == entries_of(*messages(2, 14))


def test_a_first_file_that_could_not_be_written_gets_its_filler_later() -> None:
    files = MemoryFileSystem()
    files.fail("pwrite")
    queue = open_queue(files)
    with pytest.raises(StorageError):
        put(queue, *messages(7, 9))
    queue.check_invariants()
    assert (queue.max_offset, held(queue), queue.min_offset) == (0, [], 0)
    put(queue, *messages(12, 14))
    assert (queue.mapped.bases, queue.min_offset, held(queue, 12)) == ([200], 12, entries_of(*messages(12, 14)))


# Recovery


def written(*files_bytes: bytes, first: int = 0) -> MemoryFileSystem:
    """Queue files with these bytes, one after another."""
    files = MemoryFileSystem()
    files.make_directories(PLACE)
    for number, content in enumerate(files_bytes):
        handle = files.open_append(f"{PLACE}/{file_name(first + number * FILE_BYTES)}")
        handle.append(content.ljust(FILE_BYTES, b"\0"))
        handle.close()
    return files


def raw(*found: Message) -> bytes:
    columns = np.array(found, np.int64).reshape(-1, 4)
    return encode(columns[:, 1], columns[:, 2].astype(np.int32), columns[:, 3])


def test_recovery_ends_at_the_first_entry_that_is_none() -> None:
    queue = recovered(written(raw(*messages(0, 5)), raw(*messages(5, 7), (7, 700, 0, 5), *messages(8, 10))))
    assert (queue.max_offset, queue.max_physical_offset) == (7, 700)
    queue = recovered(written(raw(*messages(0, 3), (3, -1, 50, 0))))
    assert (queue.max_offset, queue.max_physical_offset) == (3, 300)


def test_files_behind_the_end_go_but_for_one_that_begins_at_it() -> None:
    torn = written(raw(*messages(0, 4)), raw(*messages(5, 10)), raw(*messages(10, 12)))
    assert recovered(torn).mapped.bases == [0]
    queue = recovered(written(raw(*messages(0, 5)), b"", raw(*messages(10, 12))))
    assert (queue.mapped.bases, queue.max_offset) == ([0, 100], 5)


def test_damage_ahead_of_the_third_last_file_is_not_seen() -> None:
    whole = [raw(*messages(n, n + 5)) for n in (5, 10, 15)]
    assert recovered(written(b"", *whole)).max_offset == 20
    queue = recovered(written(b"", b"", *whole[1:]))
    assert (queue.max_offset, queue.max_physical_offset, queue.mapped.bases) == (5, -1, [0, 100])


def test_nothing_but_filler_counts_as_recovered() -> None:
    queue = recovered(written(FILLER * 3))
    assert (queue.max_offset, queue.max_physical_offset) == (3, 0x7FFFFFFF)


@pytest.mark.parametrize(("end", "max_offset", "bases"), [(1100, 11, 3), (1099, 11, 3), (1001, 11, 3), (1000, 10, 2)])
def test_truncation_ends_before_the_first_message_behind_the_end(end: int, max_offset: int, bases: int) -> None:
    files = MemoryFileSystem()
    put(open_queue(files), *messages(0, 13))
    queue = recovered(files)
    queue.truncate(end)
    assert (queue.max_offset, len(queue.mapped.bases)) == (max_offset, bases)
    assert queue.max_physical_offset == max_offset * 100
    queue.check_invariants()


def test_truncation_to_the_very_beginning_leaves_no_file() -> None:
    files = MemoryFileSystem()
    put(open_queue(files), *messages(1, 13))
    queue = recovered(files)
    queue.truncate(0)
    assert (queue.max_offset, queue.max_physical_offset, files.list(PLACE)) == (0, 0, [])
    queue.check_invariants()


def test_truncation_keeps_the_first_entry_of_a_file_whatever_it_is() -> None:
    queue = recovered(written(raw(*messages(0, 5)), b""))
    queue.truncate(450)
    assert (queue.max_offset, queue.max_physical_offset) == (6, 0)


def test_truncation_leaves_the_old_bytes_where_they_are() -> None:
    files = MemoryFileSystem()
    put(open_queue(files), *messages(0, 4))
    queue = recovered(files)
    queue.truncate(200)
    assert held(queue) == entries_of(*messages(0, 2))
    assert recovered(files).max_offset == 4


def test_settling_wipes_what_would_come_to_light_again() -> None:
    files = MemoryFileSystem()
    put(open_queue(files), *messages(0, 9))
    queue = recovered(files)
    queue.settle(200)
    assert (queue.max_offset, queue.max_physical_offset, queue.has_unflushed) == (2, 200, False)
    put(queue, (2, 200, 77, 0))
    assert held(recovered(files)) == [*entries_of(*messages(0, 2)), (200, 77, 0)]


def test_settling_leaves_no_file_without_an_entry_of_a_message() -> None:
    for ruin in (written(FILLER * 3), written(b""), written(FILLER * 5, b""), written(raw(*messages(6, 8)))):
        queue = recovered(ruin)
        queue.settle(600)
        assert (queue.max_offset, queue.min_offset, queue.max_physical_offset) == (0, 0, -1)
        assert ruin.list(PLACE) == []
        put(queue, *messages(7, 8))
        assert queue.min_offset == 7


def test_settling_keeps_no_file_that_begins_at_the_end() -> None:
    files = written(raw(*messages(0, 5)), b"")
    queue = recovered(files)
    queue.settle(500)
    assert (queue.mapped.bases, queue.max_offset) == ([0], 5)
    queue.check_invariants()


# The first offset, and expiry


def test_the_first_offset_is_that_of_the_first_message_that_the_log_has() -> None:
    files = MemoryFileSystem()
    put(open_queue(files), *messages(0, 13))
    queue = recovered(files)
    for commit_log_min, first in ((0, 0), (100, 1), (150, 2), (400, 4)):
        queue.correct_min_offset(commit_log_min)
        assert queue.min_offset == first


def test_the_first_offset_stays_where_the_first_file_has_no_message_left() -> None:
    files = MemoryFileSystem()
    put(open_queue(files), *messages(0, 13))
    queue = recovered(files)
    queue.correct_min_offset(900)
    assert queue.min_offset == 0
    queue.correct_min_offset(300)
    queue.correct_min_offset(900)
    assert queue.min_offset == 3


def test_neither_filler_nor_what_expired_is_the_first_message_there() -> None:
    files = MemoryFileSystem()
    put(open_queue(files), *messages(7, 13))
    queue = recovered(files)
    queue.correct_min_offset(0)
    assert (queue.min_offset, queue.first_offset(0)) == (5, 7)
    assert [queue.first_offset(least) for least in (700, 701, 1250, 99_999)] == [7, 8, 13, 13]


def test_expired_files_go_but_for_the_last() -> None:
    files = MemoryFileSystem()
    queue = open_queue(files)
    put(queue, *messages(0, 13))
    assert queue.expire(400) == []
    assert queue.min_offset == 4
    assert queue.expire(500) == [f"{PLACE}/{file_name(0)}"]
    assert (queue.min_offset, queue.mapped.bases) == (5, [100, 200])
    assert queue.expire(99999) == [f"{PLACE}/{file_name(100)}"]
    assert (queue.mapped.bases, held(queue, 10)) == ([200], entries_of(*messages(10, 13)))
    assert held(queue, 0) == []
    queue.check_invariants()


def test_a_queue_whose_files_all_go_begins_anew() -> None:
    files = MemoryFileSystem()
    queue = open_queue(files)
    put(queue, *messages(3, 13))
    queue.delete_all()
    queue.check_invariants()
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset, files.list(PLACE)) == (0, 0, -1, [])
    put(queue, *messages(0, 2))
    assert held(queue) == entries_of(*messages(0, 2))


# Time and tags


def test_a_time_between_two_messages_is_the_nearer_ones_and_the_earlier_ones_on_a_tie() -> None:
    queue = open_queue(MemoryFileSystem())
    put(queue, *messages(0, 5))
    asked = {-5: 0, 0: 0, 1499: 1, 1500: 1, 1501: 2, 2000: 2, 9999: 4}
    assert {time: queue.offset_by_time(time, stored_ms, 0) for time in asked} == asked


def test_the_file_of_a_time_is_the_first_that_was_written_last_at_it_or_later() -> None:
    now = [0]
    files = MemoryFileSystem(now_ms=lambda: now[0])
    queue = open_queue(files)
    for start in (0, 5, 10):
        now[0] = (start + 5) * 1000
        put(queue, *messages(start, start + 5))
    asked = {4900: 4, 5000: 4, 5001: 5, 11_000: 11, 99_000: 14}
    assert {time: queue.offset_by_time(time, stored_ms, 0) for time in asked} == asked
    assert queue.first_offset_at(4900, stored_ms, 0) == 5


def test_a_message_that_is_gone_is_never_the_one_of_a_time() -> None:
    queue = open_queue(MemoryFileSystem())
    put(queue, *messages(0, 9))
    assert queue.offset_by_time(1, stored_ms, 650) == 7
    assert queue.first_offset_at(1, stored_ms, 650) == 7
    assert queue.offset_by_time(1, stored_ms, 5000) == 4  # the number before the last file's first
    assert queue.offset_by_time(0, stored_ms, 650) == 0  # that before the first file's first
    assert queue.first_offset_at(0, stored_ms, 5000) == 9


def test_a_message_that_cannot_be_read_gives_0_or_an_error() -> None:
    queue = open_queue(MemoryFileSystem())
    put(queue, *messages(0, 5))

    def broken(physical_offset: int, size: int) -> int | None:
        return None if physical_offset == 200 else stored_ms(physical_offset, size)

    assert queue.offset_by_time(4000, broken, 0) == 0
    with pytest.raises(DataError, match=rf"{file_name(0)}, offset 40: entry 2 points at"):
        queue.first_offset_at(4000, broken, 0)


@given(
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    first=st.integers(0, 12),
    gone=st.integers(0, 45),
    asked=st.integers(-1, 130),
)
def test_the_first_message_at_a_time_is_what_a_walk_finds(steps: list[int], first: int, gone: int, asked: int) -> None:
    queue = open_queue(MemoryFileSystem())
    times = np.cumsum(steps).tolist()
    put(queue, *messages(first, first + len(times)))
    there = [n for n in range(len(times)) if n + first >= gone]
    expected = next((n for n in there if times[n] >= asked), len(times))
    found = queue.first_offset_at(asked, lambda physical_offset, _: times[physical_offset // 100 - first], gone * 100)
    assert found == first + expected


# Damage


def test_a_file_of_another_size_is_refused_unless_short_ones_may_be_lengthened() -> None:
    files = written(raw(*messages(0, 5)))
    handle = files.open_append(f"{PLACE}/{file_name(100)}")
    handle.append(raw(*messages(5, 7)))
    with pytest.raises(DataError, match="wrong file length: 40 bytes"):
        open_queue(files)
    assert recovered(files, lengthen=True).max_offset == 7
    handle.truncate(140)
    with pytest.raises(DataError, match="wrong file length: 140 bytes"):
        open_queue(files, lengthen=True)


def test_several_files_that_a_power_loss_left_short_are_lengthened() -> None:
    files = written(raw(*messages(0, 5)))
    for base in (100, 200):
        files.open_append(f"{PLACE}/{file_name(base)}")
    queue = recovered(files, lengthen=True)
    assert (queue.max_offset, queue.mapped.bases) == (5, [0, 100])


def test_a_name_in_the_middle_of_an_entry_is_refused() -> None:
    with pytest.raises(DataError, match="multiple of an entry"):
        open_queue(written(b"", first=7))


def test_a_file_that_is_missing_in_the_middle_is_said_to_be() -> None:
    files = MemoryFileSystem()
    put(open_queue(files), *messages(0, 15))
    files.delete(f"{PLACE}/{file_name(100)}")
    queue = recovered(files)
    assert held(queue) == entries_of(*messages(0, 5))
    with pytest.raises(DataError, match="entry 7 is missing"):
        queue.first_offset_at(50_000, stored_ms, 0)


@given(content=st.binary(min_size=300, max_size=300), end=st.integers(-(2**63), 2**63 - 1), time=st.integers(0, 9999))
def test_whatever_the_bytes_are_no_step_fails(content: bytes, end: int, time: int) -> None:
    for settle in (False, True):
        queue = recovered(written(*(content[at : at + 100] for at in (0, 100, 200))))
        queue.truncate(end)
        if settle:
            queue.settle(end)
        queue.correct_min_offset(end // 2)
        assert 0 <= queue.min_offset <= queue.max_offset <= 15
        assert 0 <= queue.offset_by_time(time, lambda offset, size: offset % 9999, end // 2) <= 15
        put(queue, *messages(queue.max_offset, queue.max_offset + 7))


# Crashes


def test_a_process_that_dies_within_a_put_leaves_a_prefix() -> None:
    for operation in range(1, 11):
        files = MemoryFileSystem(operation)
        queue = open_queue(files)
        files.crash_at(operation, torn=True)
        with pytest.raises(SimulatedCrash):
            put(queue, *messages(7, 18))
        after = files.after_process_crash()
        queue = recovered(after, lengthen=True)
        queue.settle(700)
        assert after.list(PLACE) == []
        put(queue, *messages(7, 18))
        assert held(queue, 7) == entries_of(*messages(7, 18))


def test_what_settles_survives_a_power_loss_with_its_directories() -> None:
    for seed in range(30):
        files = MemoryFileSystem(seed)
        files.make_directories("/store/consumequeue")
        files.sync_all()
        put(open_queue(files), *messages(0, 9))
        files = files.after_process_crash()
        queue = recovered(files, lengthen=True)
        queue.settle(0)
        put(queue, *messages(0, 8))
        queue.flush()
        assert recovered(files.after_power_loss(files.rng)).max_offset == 8


def test_a_file_that_settling_deleted_does_not_come_back() -> None:
    for seed in range(30):
        files = MemoryFileSystem(seed)
        put(open_queue(files), *messages(0, 9))
        files.sync_all()
        files = files.after_process_crash()
        queue = recovered(files)
        queue.settle(300)
        put(queue, (3, 300, 10, 0), (4, 310, 10, 0))
        queue.flush()
        assert recovered(files.after_power_loss(files.rng)).mapped.bases == [0]


def test_flushed_entries_survive_a_power_loss() -> None:
    for seed in range(30):
        files = MemoryFileSystem(seed)
        files.make_directories("/store/consumequeue")
        files.sync_all()
        queue = open_queue(files)
        put(queue, *messages(3, 9))
        queue.flush()
        assert (queue.unflushed_bytes, queue.has_unflushed) == (0, False)
        put(queue, *messages(9, 12))
        assert (queue.unflushed_bytes, queue.has_unflushed) == (60, True)
        queue = recovered(files.after_power_loss(files.rng), lengthen=True)
        queue.settle(900)
        assert held(queue, 3) == entries_of(*messages(3, 9))
