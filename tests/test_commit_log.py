"""The CommitLog: what it writes, byte for byte, what it reads, and where it lets go."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

from tests.support.effort import times
from tests.support.rocketmq_golden import SCENARIOS, directory, overlay, records, settings
from warren.actors.topics.log_upkeep import FlushTimer
from warren.msg_store.commit_log.commit_log import (
    Batch,
    Blank,
    CommitLog,
    Failure,
    MessageIllegalError,
    PropertiesSizeExceededError,
    Record,
)
from warren.msg_store.commit_log.commit_log_expiry import expired_files
from warren.msg_store.commit_log.commit_log_format import COMMIT, PREPARED, ROLLBACK, Host, decode, encode, header_bytes
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import FileSystem, RealFileSystem
from warren.storage.mapped_files import file_name
from warren.storage.memory import MemoryFileSystem
from warren.storage.topic_settings import TopicSettings

DIRECTORY = "/topics/commitlog"
HOST = Host.parse("10.0.0.1:10911")
HOST_V6 = Host.parse("[2001:db8:0:0:0:0:0:1]:10911")
FILE_SIZE = 1024
SETTINGS = TopicSettings(mapped_file_size_commit_log=FILE_SIZE, max_message_size=10_000)
OVERHEAD = 91 + len("events")


def disk(seed: int = 0, **options: Any) -> MemoryFileSystem:
    """With the directory above the log's."""
    files = MemoryFileSystem(random.Random(seed), **options)
    files.make_directories("/topics")
    files.sync_directory("/")
    return files


def loaded(files: FileSystem, settings: TopicSettings = SETTINGS) -> CommitLog:
    return CommitLog.load(files, DIRECTORY, settings)


def of(*bodies: bytes, as_one: bool = True, **changes: Any) -> Batch:
    return attrs.evolve(
        Batch(
            topic="events",
            queue_id=1,
            bodies=bodies,
            born_timestamp=1_700_000_000_000,
            born_host=HOST,
            store_host=HOST,
            as_one=as_one,
        ),
        **changes,
    )


def fill(log: CommitLog, left: int) -> None:
    """Append one message, so that ``left`` bytes stay in the file."""
    room = FILE_SIZE - log.end % FILE_SIZE
    log.append(of(bytes(room - left - OVERHEAD)), 0, 1)
    assert log.end % FILE_SIZE == FILE_SIZE - left


def bodies_in(log: CommitLog) -> list[bytes]:
    return [item.body for item in log.items(log.min_offset) if isinstance(item, Record)]


# What the real one wrote


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_items_and_columns_tell_what_the_golden_log_holds(scenario: str) -> None:
    log = CommitLog.load(overlay(scenario), directory(scenario) + "/commitlog", settings(scenario), writable=False)
    lines = records(scenario)
    log.set_end(max(line["physicalOffset"] + line["totalSize"] for line in lines))
    items = list(log.items(0))
    assert [
        (type(item) is Blank, item.physical_offset, item.size) for item in items if not isinstance(item, Failure)
    ] == [(line.get("blank", False), line["physicalOffset"], line["totalSize"]) for line in lines]
    messages = [item for item in items if isinstance(item, Record)]
    expected = [line for line in lines if not line.get("blank")]
    assert len(messages) == len(items) - sum(line.get("blank", False) for line in lines)
    for message, line in zip(messages, expected, strict=True):
        assert (message.topic, message.queue_id, message.queue_offset) == (
            line["topic"],
            line["queueId"],
            line["queueOffset"],
        )
        assert (str(message.born_host), str(message.store_host), message.flag, message.sys_flag) == (
            line["bornHost"],
            line["storeHost"],
            line["flag"],
            line["sysFlag"],
        )
        assert message.properties.decode() == line["propertiesString"]
        assert message.crc_ok
        assert log.record(line["physicalOffset"], line["totalSize"]) == message
        assert log.store_timestamp_of(line["physicalOffset"], line["totalSize"]) == line["storeTimestamp"]
    levels = settings(scenario).delay_levels_ms()
    columns = [
        found for found in log.columns(0, check_crc=True, delay_levels_ms=levels) if isinstance(found, RecordColumns)
    ]
    assert np.concatenate([found.positions for found in columns]).tolist() == [m.physical_offset for m in messages]
    tags_codes = np.concatenate([found.tags_codes for found in columns]).tolist()
    assert tags_codes == [line["tagsCode"] for line in expected]


# Any batch against the record format

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
sizes = st.one_of(st.just([5] * 9), st.lists(st.integers(min_value=0, max_value=60), max_size=12))


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    lengths = draw(sizes)
    generator = draw(st.randoms(use_true_random=False))
    one_length = draw(st.booleans())
    several = [generator.randbytes(7 if one_length else generator.randrange(40)) for _ in lengths]
    properties: list[bytes | list[bytes]] = [b"", b"TAGS\x01a", several]
    return Batch(
        topic=draw(texts),
        queue_id=draw(st.integers(min_value=0, max_value=1000)),
        bodies=[generator.randbytes(length) for length in lengths],
        properties=draw(st.sampled_from(properties)),
        born_timestamp=draw(st.integers(min_value=0, max_value=1 << 62)),
        born_host=draw(st.sampled_from([HOST, HOST_V6])),
        store_host=draw(st.sampled_from([HOST, HOST_V6])),
        sys_flag=draw(st.sampled_from([0, 1, PREPARED, COMMIT, ROLLBACK, 0x30])),
        flag=draw(st.one_of(st.just(-77), st.just([generator.randrange(-9, 9) for _ in lengths]))),
        reconsume_times=draw(st.integers(min_value=0, max_value=20)),
        prepared_transaction_offset=draw(st.integers(min_value=0, max_value=1 << 40)),
        as_one=draw(st.booleans()),
    )


def as_records(batch: Batch, queue_offset: int, store_timestamp: int) -> list[Record]:
    """What the batch's records must say, but for where they lie."""
    queued = batch.sys_flag & 0xC not in (PREPARED, ROLLBACK)
    made = []
    for number, body in enumerate(batch.bodies):
        properties = batch.properties if isinstance(batch.properties, bytes) else batch.properties[number]
        made.append(
            Record(
                topic=batch.topic,
                queue_id=batch.queue_id,
                queue_offset=queue_offset + number if queued else 0,
                physical_offset=0,
                size=header_bytes(batch.stored_sys_flag) + 3 + len(batch.topic.encode()) + len(body) + len(properties),
                store_timestamp=store_timestamp,
                born_timestamp=batch.born_timestamp,
                born_host=batch.born_host,
                store_host=batch.store_host,
                sys_flag=batch.sys_flag & 0xF | 0x10 * batch.born_host.is_v6 | 0x20 * batch.store_host.is_v6,
                flag=batch.flag if isinstance(batch.flag, int) else batch.flag[number],
                reconsume_times=batch.reconsume_times,
                prepared_transaction_offset=batch.prepared_transaction_offset,
                body_crc=0,
                body=body,
                properties=properties,
            )
        )
    return made


@pytest.mark.slow
@run_settings(max_examples=times(120))
@given(st.lists(st.tuples(batches(), st.integers(0, 99)), max_size=6))
def test_any_batches_become_the_records_that_the_format_makes_of_them(several: list[tuple[Batch, int]]) -> None:
    log, expected = loaded(disk()), []
    for batch, queue_offset in several:
        done = log.append(batch, queue_offset, 42)
        log.check_invariants()
        assert done.queue_offset == (queue_offset if batch.is_queued else 0)
        made = as_records(batch, queue_offset, 42)
        if done.status == "END_OF_FILE":
            assert sum(record.size for record in made) + 8 > FILE_SIZE
            assert len(done.sizes) == 0
            continue
        assert done.sizes.tolist() == [record.size for record in made]
        for record, offset in zip(made, done.physical_offsets.tolist(), strict=True):
            placed = attrs.evolve(record, physical_offset=offset)
            assert log.read(offset, record.size) == encode(placed)
            assert offset // FILE_SIZE == (offset + record.size + 8 - 1) // FILE_SIZE
            expected.append(decode(encode(placed)))
        if batch.as_one and made:
            assert done.physical_offsets[-1] + done.sizes[-1] - done.physical_offsets[0] == done.sizes.sum()
    assert [item for item in log.items(0) if not isinstance(item, Blank)] == expected


@run_settings(max_examples=times(60))
@given(batches())
def test_a_batch_that_does_not_go_as_one_is_a_run_of_single_puts(batch: Batch) -> None:
    together, apart = disk(), disk()
    log = loaded(together)
    log.append(attrs.evolve(batch, as_one=False), 7, 42)
    one = loaded(apart)
    for number, body in enumerate(batch.bodies):
        properties = batch.properties if isinstance(batch.properties, bytes) else batch.properties[number]
        flag = batch.flag if isinstance(batch.flag, int) else batch.flag[number]
        single = attrs.evolve(batch, bodies=[body], properties=properties, flag=flag)
        one.append(single, 7 + number, 42)
    assert together.contents() == apart.contents()
    assert log.end == one.end


def test_records_beyond_two_gigabytes() -> None:
    files = disk()
    files.make_directories(DIRECTORY)
    base = 5 * FILE_SIZE << 30
    files.open_append(f"{DIRECTORY}/{file_name(base)}").truncate(FILE_SIZE)
    log = loaded(files)
    log.set_end(base)
    alike = log.append(of(*[b"a"] * 6), 1 << 40, 5)
    other = log.append(of(b"", b"b", b"cc", b"ddd", b"e"), 0, 5)
    assert [log.record(offset).physical_offset for offset in (*alike.physical_offsets, *other.physical_offsets)] == [
        *alike.physical_offsets,
        *other.physical_offsets,
    ]
    assert log.record(int(alike.physical_offsets[5])).queue_offset == (1 << 40) + 5


# Where records go


def test_a_record_that_leaves_exactly_eight_bytes_stays_in_its_file() -> None:
    log = loaded(disk())
    fill(log, 8)
    assert (log.end, log.mapped.bases) == (FILE_SIZE - 8, [0])
    log.append(of(b"next"), 1, 1)
    assert [type(item) for item in log.items(0)] == [Record, Blank, Record]
    assert list(log.items(0))[1] == Blank(FILE_SIZE - 8, 8)


def test_a_record_that_would_leave_seven_bytes_goes_to_the_next_file() -> None:
    log = loaded(disk())
    log.append(of(bytes(100)), 0, 1)
    left = FILE_SIZE - log.end
    done = log.append(of(bytes(left - 7 - OVERHEAD)), 1, 1)
    assert done.physical_offsets.tolist() == [FILE_SIZE]
    assert Blank(FILE_SIZE - left, left) in list(log.items(0))


def test_a_batch_that_goes_as_one_moves_to_the_next_file_whole() -> None:
    log = loaded(disk())
    fill(log, 300)
    done = log.append(of(b"first", bytes(150)), 1, 1)
    assert done.physical_offsets[0] == FILE_SIZE


def test_a_batch_that_does_not_fills_the_file_first() -> None:
    log = loaded(disk())
    fill(log, 300)
    done = log.append(of(b"first", bytes(150), as_one=False), 1, 1)
    assert done.physical_offsets.tolist() == [FILE_SIZE - 300, FILE_SIZE]


def test_a_message_larger_than_a_file_leaves_two_blanks_and_is_not_stored() -> None:
    log = loaded(disk())
    log.append(of(b"before"), 0, 1)
    begin = log.end
    done = log.append(of(bytes(FILE_SIZE)), 1, 1)
    assert (done.status, done.queue_offset, len(done.physical_offsets)) == ("END_OF_FILE", 1, 0)
    log.append(of(b"after"), 1, 1)
    blanks = [item for item in log.items(0) if isinstance(item, Blank)]
    assert blanks == [Blank(begin, FILE_SIZE - begin), Blank(FILE_SIZE, FILE_SIZE)]
    assert bodies_in(log) == [b"before", b"after"]


def test_a_message_larger_than_a_file_fills_two_whole_files_of_an_empty_log() -> None:
    log = loaded(disk())
    assert log.append(of(bytes(FILE_SIZE)), 0, 1).status == "END_OF_FILE"
    assert list(log.items(0)) == [Blank(0, FILE_SIZE), Blank(FILE_SIZE, FILE_SIZE)]
    assert (log.end, log.mapped.bases) == (2 * FILE_SIZE, [0, FILE_SIZE])


def test_single_puts_together_with_one_that_no_file_can_hold_are_refused() -> None:
    log = loaded(disk())
    with pytest.raises(MessageIllegalError, match="larger than a file"):
        log.append(of(b"small", bytes(FILE_SIZE), as_one=False), 0, 1)
    assert (log.end, log.mapped.bases) == (0, [])


def test_an_empty_batch_does_nothing() -> None:
    files = disk()
    assert loaded(files).append(of(), 3, 1).sizes.tolist() == []
    assert files.contents() == {}


def test_old_bytes_behind_the_end_stay_where_nothing_is_written() -> None:
    files = disk()
    log = loaded(files)
    log.append(of(b"a" * 300, b"b" * 300), 0, 1)
    log.set_end(0)
    log.append(of(b"short"), 0, 1)
    assert b"b" * 300 in files.contents()[f"{DIRECTORY}/{file_name(0)}"]
    log.append(of(bytes(900)), 1, 1)  # does not fit: a blank of 8 bytes, the rest of the old ones stays
    assert b"b" * 300 in files.contents()[f"{DIRECTORY}/{file_name(0)}"]
    log.set_end(OVERHEAD + 5)
    log.clear_behind_end()
    content = files.contents()[f"{DIRECTORY}/{file_name(0)}"]
    assert (len(content), content[log.end :].strip(b"\0")) == (FILE_SIZE, b"")


# What is refused


@pytest.mark.parametrize(
    "batch",
    [
        of(b"", topic="t" * 128),
        of(b"", topic="é" * 64),
        of(b"", topic="\ud800"),
        of(b"", properties=b"p" * 32768),
        of(b"", b"", properties=[b"", b"p" * 32768]),
        of(bytes(10_001 - OVERHEAD)),
        of(bytes(5000), bytes(5000)),
        of(bytes(10), bytes(10_001 - OVERHEAD), as_one=False),
        of(b"", flag=1 << 31),
        of(*[b""] * 9, flag=[0] * 8 + [-1 << 40]),
        of(b"", queue_id=1 << 31),
        of(*[b""] * 9, queue_id=1 << 31),
        of(*[b""] * 9, born_timestamp=1 << 63),
    ],
)
def test_what_a_record_cannot_hold_is_refused_and_nothing_written(batch: Batch) -> None:
    log = loaded(disk())
    log.append(of(b"before"), 0, 1)
    end, before = log.end, log.read(0, FILE_SIZE)
    with pytest.raises(MessageIllegalError):
        log.append(batch, 0, 1)
    assert (log.end, log.read(0, FILE_SIZE)) == (end, before)
    log.check_invariants()


def test_properties_of_few_characters_but_too_many_bytes_have_an_error_of_their_own() -> None:
    log = loaded(disk())
    with pytest.raises(PropertiesSizeExceededError):
        log.append(of(b"", properties="é".encode() * 16384), 0, 1)
    with pytest.raises(MessageIllegalError) as caught:
        log.append(of(b"", properties=b"p" * 32768), 0, 1)
    assert not isinstance(caught.value, PropertiesSizeExceededError)


def test_the_largest_that_is_allowed_is_stored() -> None:
    log = loaded(disk(), TopicSettings(mapped_file_size_commit_log=1 << 16, max_message_size=40_000))
    big = of(bytes(40_000 - 32767 - 91 - 127), topic="t" * 127, properties=b"p" * 32767)
    done = log.append(big, 0, 1)
    assert log.record(int(done.physical_offsets[0])).properties == b"p" * 32767


def test_bodies_and_properties_must_be_of_as_many_messages() -> None:
    with pytest.raises(ValueError, match="2 bodies"):
        loaded(disk()).append(of(b"a", b"b", properties=[b""]), 0, 1)
    with pytest.raises(ValueError, match="2 bodies"):
        loaded(disk()).append(of(b"a", b"b", flag=[1]), 0, 1)


# Reading


def three() -> tuple[CommitLog, list[int]]:
    log = loaded(disk())
    return log, log.append(of(b"one", b"two", bytes(200)), 0, 77).physical_offsets.tolist()


def test_a_record_is_read_with_its_size_or_without() -> None:
    log, offsets = three()
    assert log.record(offsets[1]) == log.record(offsets[1], OVERHEAD + 3)
    assert log.record(offsets[2]).body == bytes(200)


def test_a_record_longer_than_the_first_read_is_read_whole() -> None:
    log = loaded(disk(), TopicSettings(mapped_file_size_commit_log=1 << 16))
    body = bytes(range(256)) * 100
    assert log.record(int(log.append(of(body), 0, 1).physical_offsets[0])).body == body


@pytest.mark.parametrize(
    ("offset", "size", "reason"),
    [
        (1, None, "no record begins here"),
        (0, OVERHEAD + 4, "the record's size is"),
        (0, 3, "has no record there"),
        (-1, 100, "has no record there"),
        (-1, None, "has no record there"),
        (2 * OVERHEAD + 400, None, "has no record there"),
        (1 << 62, 100, "has no record there"),
        (0, 0, "has no record there"),
        (0, -5, "has no record there"),
    ],
)
def test_what_is_no_record_is_an_error_that_says_where(offset: int, size: int | None, reason: str) -> None:
    log, _ = three()
    with pytest.raises(DataError, match=reason) as caught:
        log.record(offset, size)
    assert caught.value.path.startswith(DIRECTORY)


def test_a_blank_is_no_message() -> None:
    log = loaded(disk())
    fill(log, 9)
    log.append(of(b"next"), 1, 1)
    with pytest.raises(DataError, match="blank"):
        log.record(FILE_SIZE - 9)


def test_a_record_that_claims_two_gigabytes_is_an_error() -> None:
    log, offsets = three()
    log.mapped.write(offsets[1], (0x7FFFFFFF).to_bytes(4, "big"))
    with pytest.raises(DataError, match="fields take"):
        log.record(offsets[1])


def test_a_store_timestamp_is_none_where_no_message_can_be_read() -> None:
    log, offsets = three()
    size = OVERHEAD + 3
    assert log.store_timestamp_of(offsets[0], size) == 77
    assert log.store_timestamp_of(offsets[2], OVERHEAD + 200) == 77
    assert log.store_timestamp_of(offsets[2], OVERHEAD + 201) is None  # beyond the end
    assert log.store_timestamp_of(0, 0x7FFFFFFF) is None  # a filler's
    assert log.store_timestamp_of(log.end, size) is None
    assert log.store_timestamp_of(-20, size) is None
    assert log.store_timestamp_of(0, 20) is None
    assert log.store_timestamp_of(0, -1) is None
    log.mapped.write(56, b"\xff" * 8)
    assert log.store_timestamp_of(0, size) is None


def test_a_failure_is_told_and_reading_goes_on_at_the_next_file() -> None:
    log = loaded(disk())
    for number in range(12):
        log.append(of(b"%03d" % number + bytes(200)), number, 1)
    log.mapped.write(OVERHEAD + 203 + 4, b"????")
    found = list(log.items(0))
    assert found[1] == Failure(OVERHEAD + 203, "its magic is 0x3F3F3F3F", None)
    assert [item.body[:3] for item in found if isinstance(item, Record)] == [
        b"000",
        *(b"%03d" % n for n in range(3, 12)),
    ]
    parts = list(log.columns(0))
    assert found[1] in parts
    assert sum(len(part) for part in parts if isinstance(part, RecordColumns)) == 10


def test_a_wrong_sum_is_told_and_reading_goes_on_behind_the_fields() -> None:
    log, offsets = three()
    log.mapped.write(offsets[1], (OVERHEAD + 9).to_bytes(4, "big"))
    found = list(log.items(0))
    assert isinstance(found[1], Failure)
    assert found[1].resume_at == offsets[2]
    assert [item.body for item in found if isinstance(item, Record)] == [b"one", bytes(200)]


@pytest.mark.parametrize("field", [0, 4, 39, 84, 92, 99, 100])
def test_records_of_one_shape_end_where_a_field_s_size_changes(field: int) -> None:
    """A byte of each length in turn is damaged in the middle of a long stretch: nothing wrong comes out."""
    log = loaded(disk(), TopicSettings(mapped_file_size_commit_log=1 << 16))
    expected = [b"%04d" % number for number in range(60)]
    offsets = log.append(of(*expected), 0, 1).physical_offsets.tolist()
    log.mapped.write(offsets[30] + field, b"\x71")
    items = list(log.items(0))
    assert [item.body for item in items[:30] if isinstance(item, Record)] == expected[:30]
    assert isinstance(items[30], Failure)


def test_items_from_the_middle_to_the_middle() -> None:
    log = loaded(disk())
    offsets = [int(log.append(of(b"%d" % number * 100), number, 1).physical_offsets[0]) for number in range(20)]
    for first, last in ((0, 19), (3, 11), (7, 7), (18, 19)):
        items = [item for item in log.items(offsets[first], offsets[last]) if isinstance(item, Record)]
        assert [item.queue_offset for item in items] == list(range(first, last))
    assert bodies_in(log) == [b"%d" % number * 100 for number in range(20)]


# The end


def test_the_end_is_all_that_the_files_hold_until_it_is_set() -> None:
    files = disk()
    log = loaded(files)
    for number in range(9):
        log.append(of(bytes(300)), number, 1)
    again = loaded(files)
    assert (again.end, again.flushed_end) == (again.mapped.file_end, 0)
    again.set_end(log.end)
    assert bodies_in(again) == [bytes(300)] * 9


@pytest.mark.parametrize(("end", "kept"), [(FILE_SIZE + 5, 2), (FILE_SIZE, 2), (FILE_SIZE - 9, 1), (0, 1)])
def test_files_that_begin_behind_the_end_go_but_not_one_that_begins_at_it(end: int, kept: int) -> None:
    files = disk()
    log = loaded(files)
    for number in range(9):
        log.append(of(bytes(300)), number, 1)
    log.set_end(end)
    log.check_invariants()
    assert log.mapped.bases == [number * FILE_SIZE for number in range(kept)]
    assert files.list(DIRECTORY) == [file_name(base) for base in log.mapped.bases]
    done = log.append(of(b"next"), 0, 1)
    expected = end if end % FILE_SIZE < FILE_SIZE - 200 else FILE_SIZE
    assert done.physical_offsets.tolist() == [expected]


def test_an_end_that_the_files_do_not_reach_is_refused() -> None:
    log, _ = three()
    with pytest.raises(ValueError, match="not 1025"):
        log.set_end(FILE_SIZE + 1)


def test_an_end_too_near_to_the_file_s_is_an_error_when_written_at() -> None:
    log, _ = three()
    log.set_end(FILE_SIZE - 3)
    with pytest.raises(DataError, match="3 bytes before"):
        log.append(of(b"x"), 0, 1)


def test_a_log_that_is_only_read_deletes_nothing(tmp_path: Path) -> None:
    writer = CommitLog.load(RealFileSystem(), str(tmp_path), SETTINGS)
    for number in range(9):
        writer.append(of(bytes(300)), number, 1)
    writer.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    reader = CommitLog.load(RealFileSystem(), str(tmp_path), SETTINGS, writable=False)
    reader.set_end(OVERHEAD + 300)
    assert (bodies_in(reader), reader.mapped.bases) == ([bytes(300)], [0])
    reader.check_invariants()
    reader.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_of_another_length_refuses_the_log() -> None:
    log, _ = three()
    with pytest.raises(DataError, match="1024 bytes, and not 2048"):
        loaded(log.mapped.files, attrs.evolve(SETTINGS, mapped_file_size_commit_log=2048))


def test_invariants_see_an_end_outside_of_the_files() -> None:
    log, _ = three()
    log.end = FILE_SIZE + 1
    with pytest.raises(RuntimeError, match="not 0 ≤"):
        log.check_invariants()


# The disk


def test_flush_says_how_far_all_is_on_the_disk() -> None:
    files = disk()
    log = loaded(files)
    log.append(of(bytes(300), bytes(300)), 0, 8)
    assert (log.has_unflushed, log.flushed_end, log.flushed_store_timestamp) == (True, 0, 0)
    assert (log.flush(), log.flushed_end, log.flushed_store_timestamp) == (log.end, log.end, 8)
    assert not log.has_unflushed
    log.append(of(bytes(300)), 2, 9)
    for seed in range(20):
        survivor = loaded(files.after_power_loss(random.Random(seed)))
        survivor.set_end(log.flushed_end)
        assert bodies_in(survivor) == [bytes(300)] * 2


def test_what_a_process_that_died_had_not_synced_is_synced_by_the_next_one() -> None:
    files = disk()
    log = loaded(files)
    for number in range(9):
        log.append(of(bytes(300)), number, 8)
    end, files = log.end, files.after_process_crash()
    heir = loaded(files)
    heir.set_end(end)
    heir.flush()
    for seed in range(20):
        survivor = loaded(files.after_power_loss(random.Random(seed)))
        survivor.set_end(end)
        assert bodies_in(survivor) == [bytes(300)] * 9


def test_after_an_fsync_that_failed_nothing_more_is_written_or_confirmed() -> None:
    files = disk()
    log = loaded(files)
    log.append(of(b"one"), 0, 1)
    files.fail("sync", "*")
    with pytest.raises(StorageError):
        log.flush()
    assert log.flushed_end == 0
    for action in (log.flush, log.clear_behind_end, lambda: log.append(of(b"two"), 1, 1)):
        with pytest.raises(StorageError, match="fsync failed"):
            action()
    assert bodies_in(log) == [b"one"]


@pytest.mark.parametrize("seed", range(8))
def test_what_a_write_that_failed_left_never_comes_back(seed: int) -> None:
    """Of three records the first get through; the next message is as long as the first, so they would follow it."""
    files = disk(seed)
    log = loaded(files)
    log.append(of(b"before"), 0, 1)
    files.fail("pwrite")
    with pytest.raises(StorageError):
        log.append(of(b"lost 1", b"lost 2", b"lost 3"), 1, 1)
    assert bodies_in(log) == [b"before"]
    log.append(of(b"after."), 1, 1)
    heir = loaded(files.after_process_crash())
    heir.set_end(FILE_SIZE)
    assert [item.body for item in heir.items(0) if isinstance(item, Record)] == [b"before", b"after."]


@pytest.mark.parametrize("cleared", [True, False])
def test_what_was_cut_off_comes_back_behind_its_equals_unless_it_was_cleared(cleared: bool) -> None:
    """The second message survives a power loss, the first does not; a new one of the first's length takes its place."""
    files = disk()
    log = loaded(files)
    size = int(log.append(of(b"first", b"other"), 0, 1).sizes[0])
    log.mapped.write(0, bytes(size))
    log = loaded(files)
    log.set_end(0)
    if cleared:
        log.clear_behind_end()
    log.append(of(b"third"), 0, 1)
    heir = loaded(files.after_process_crash())
    assert bodies_in(heir) == ([b"third"] if cleared else [b"third", b"other"])


def test_a_file_whose_length_changed_is_synced_before_another_is_made() -> None:
    """Else a power loss could leave a short file that is not the last, and the log would be refused."""
    for seed in range(30):
        files = disk(seed)
        log = loaded(files)
        log.append(of(b"kept"), 0, 1)
        log.flush()
        files.fail("pwrite")
        with pytest.raises(StorageError):
            log.append(of(bytes(600)), 1, 1)
        for number in range(3):
            log.append(of(bytes(600)), 1 + number, 1)
        survivor = CommitLog.load(files.after_power_loss(random.Random(seed)), DIRECTORY, SETTINGS, lengthen=True)
        assert bodies_in(survivor)[0] == b"kept"


def test_a_full_disk_is_told_and_the_log_goes_on_when_there_is_room() -> None:
    files = disk(capacity_bytes=2 * FILE_SIZE)
    log = loaded(files)
    log.append(of(bytes(800)), 0, 1)
    log.append(of(bytes(800)), 1, 1)
    with pytest.raises(StorageError):
        log.append(of(bytes(800)), 2, 1)
    assert len(bodies_in(log)) == 2
    log.check_invariants()
    files.capacity_bytes = None
    log.append(of(b"room"), 2, 1)
    assert bodies_in(log) == [bytes(800), bytes(800), b"room"]


# Expiry

HOUR_MS = 3_600_000
FILES = [(number * FILE_SIZE, number * HOUR_MS) for number in range(5)]


@pytest.mark.parametrize(
    ("hour", "percent", "now_hours", "changes", "expected"),
    [
        (4, 10.0, 75, {}, 4),  # the last one stays, however old
        (4, 10.0, 74, {}, 3),
        (4, 10.0, 71, {}, 0),
        (5, 10.0, 999, {}, 0),  # not the hour
        (5, 10.0, 999, {"delete_when": "04;05"}, 4),
        (5, 75.0, 999, {}, 0),
        (5, 75.1, 74, {}, 3),  # the disk, at any hour, but only what is old
        (5, 85.0, 0, {}, 0),
        (5, 85.1, 0, {}, 4),  # nearly full: young ones too
        (4, 85.1, 0, {"clean_file_forcibly_enable": False}, 0),
        (4, 10.0, 1, {"file_reserved_time": 0}, 2),
    ],
)
def test_which_files_go(hour: int, percent: float, now_hours: int, changes: dict[str, Any], expected: int) -> None:
    found = expired_files(FILES, attrs.evolve(SETTINGS, **changes), now_hours * HOUR_MS, hour, percent)
    assert found == [base for base, _ in FILES[:expected]]


def test_no_file_goes_behind_one_that_stays() -> None:
    files = [(0, 0), (FILE_SIZE, 500 * HOUR_MS), (2 * FILE_SIZE, 0), (3 * FILE_SIZE, 0)]
    assert expired_files(files, SETTINGS, 200 * HOUR_MS, 4, 0.0) == [0]


def test_a_full_disk_costs_ten_files_at_a_time() -> None:
    files = [(number * FILE_SIZE, 0) for number in range(30)]
    assert len(expired_files(files, SETTINGS, 0, 0, 99.0)) == 10
    assert expired_files([], SETTINGS, 0, 4, 99.0) == []


def test_the_log_begins_later_when_files_have_gone() -> None:
    files = disk(now_ms=lambda: 0)
    log = loaded(files)
    offsets = [int(log.append(of(bytes(800)), number, 1).physical_offsets[0]) for number in range(4)]
    assert log.expire(73 * HOUR_MS, 4, 0.0) == [0, FILE_SIZE, 2 * FILE_SIZE]
    assert (log.min_offset, log.mapped.bases) == (3 * FILE_SIZE, [3 * FILE_SIZE])
    log.check_invariants()
    assert log.store_timestamp_of(offsets[0], OVERHEAD + 800) is None
    with pytest.raises(DataError, match="has no record there"):
        log.record(offsets[0])
    log.append(of(bytes(800)), 4, 1)
    assert len(bodies_in(log)) == 2


# The clock


def test_a_timed_flush_waits_for_pages_a_full_file_or_the_thorough_interval() -> None:
    timer = FlushTimer(interval_ms=500, thorough_interval_ms=10_000, least_pages=4, last_thorough_ms=0)
    size = 1 << 20
    assert not timer.is_due(500, 0, 0, size)
    assert not timer.is_due(500, 0, 4 * 4096 - 1, size)
    assert timer.is_due(500, 0, 4 * 4096, size)
    assert not timer.is_due(500, 4095, 4 * 4096 - 1, size)
    assert timer.is_due(500, size - 10, size, size)  # its file is full
    assert timer.is_due(10_000, 0, 1, size)
    assert not timer.is_due(10_001, 0, 1, size)  # and now again in ten seconds
    assert not timer.is_due(20_000, 7, 7, size)  # nothing to do, but it looked
    assert not timer.is_due(20_001, 7, 8, size)
    assert timer.is_due(30_000, 7, 8, size)
    assert FlushTimer(1, 10, 0, 0).is_due(1, 7, 8, size)
