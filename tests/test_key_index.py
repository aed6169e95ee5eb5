"""The key index: against the rules one key at a time, against what the real one wrote and answered, over crashes."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import rocketmq_golden as golden
from tests.support.effort import times
from warren.queue_index.topics.index_file import IndexFile
from warren.queue_index.topics.index_file_format import Layout
from warren.queue_index.topics.index_recovery import recover
from warren.queue_index.topics.key_index import KeyIndex
from warren.storage.faults import SimulatedCrash
from warren.storage.filesystem import FileSystem, RealFileSystem
from warren.storage.java_hash import index_hash
from warren.storage.memory import MemoryFileSystem
from warren.storage.overlay import OverlayFileSystem


@attrs.frozen
class Message:
    physical_offset: int
    store_timestamp: int
    key_hashes: tuple[int, ...]


class ModelFile:
    """A file's bytes, and its header as numbers (begin and end time, begin and end offset, slots, count)."""

    def __init__(self, slots: int, items: int, end_time: int = 0, end_offset: int = 0) -> None:
        self.slots, self.items = slots, items
        self.data = bytearray(40 + 4 * slots + 20 * items)
        self.begin_time = self.end_time = end_time
        self.begin_offset = self.end_offset = end_offset
        self.slot_count, self.count = 0, 1

    def slot(self, key_hash: int) -> int:
        return struct.unpack_from(">i", self.data, 40 + 4 * (key_hash % self.slots))[0]

    def put(self, key_hash: int, message: Message) -> None:
        value = self.slot(key_hash)
        if value <= 0 or value > self.count:
            value = 0
        seconds = 0
        if self.begin_time > 0 and message.store_timestamp > self.begin_time:
            seconds = min((message.store_timestamp - self.begin_time) // 1000, 0x7FFFFFFF)
        place = 40 + 4 * self.slots + 20 * self.count
        struct.pack_into(">iqii", self.data, place, key_hash, message.physical_offset, seconds, value)
        struct.pack_into(">i", self.data, 40 + 4 * (key_hash % self.slots), self.count)
        if self.count <= 1:
            self.begin_offset, self.begin_time = message.physical_offset, message.store_timestamp
        self.slot_count += value == 0
        self.count += 1
        self.end_offset, self.end_time = message.physical_offset, message.store_timestamp

    def bytes(self) -> bytes:
        header = (self.begin_time, self.end_time, self.begin_offset, self.end_offset, self.slot_count)
        struct.pack_into(">qqqqii", self.data, 0, *header, self.count if self.count > 1 else 0)
        return bytes(self.data)

    def find(self, key_hash: int, found: list[int], max_num: int, begin: int, end: int) -> None:
        number = self.slot(key_hash)
        if number <= 0 or number > self.count or self.count <= 1:
            return
        while len(found) < max_num:
            place = 40 + 4 * self.slots + 20 * number
            item_hash, offset, seconds, previous = struct.unpack_from(">iqii", self.data, place)
            if seconds < 0:
                return
            time = self.begin_time + seconds * 1000
            if item_hash == key_hash and begin <= time <= end:
                found.append(offset)
            if previous <= 0 or previous > self.count or previous == number or time < begin:
                return
            number = previous


class IndexModel:
    def __init__(self, slots: int, items: int) -> None:
        self.slots, self.items = slots, items
        self.files: list[ModelFile] = []

    def last(self) -> ModelFile:
        if not self.files:
            self.files.append(ModelFile(self.slots, self.items))
        elif self.files[-1].count >= self.items:
            full = self.files[-1]
            self.files.append(ModelFile(self.slots, self.items, full.end_time, full.end_offset))
        return self.files[-1]

    def put(self, message: Message) -> None:
        if message.physical_offset < self.last().end_offset:
            return
        for key_hash in message.key_hashes:
            self.last().put(key_hash, message)

    def query(self, key_hash: int, max_num: int, begin: int, end: int) -> list[int]:
        found: list[int] = []
        for file in reversed(self.files):
            low, high = file.begin_time, file.end_time
            if (begin < low and end > high) or low <= begin <= high or low <= end <= high:
                file.find(key_hash, found, max_num, begin, end)
            if low < begin or len(found) >= max_num:
                break
        return found


class Names:
    """What files are called: numbers, in the order in which they are asked for."""

    def __init__(self, start: int = 0) -> None:
        self.number = start

    def __call__(self) -> str:
        self.number += 1
        return f"{self.number:017d}"


def load(files: FileSystem, directory: str, slots: int, items: int, **options: object) -> KeyIndex:
    return KeyIndex.load(
        files,
        directory,
        **{"max_hash_slot_num": slots, "max_index_num": items, "new_name": Names(), **options},  # type: ignore[arg-type]
    )


def put(index: KeyIndex, messages: Sequence[Message], skip_first: int = 0) -> None:
    """Put messages as one batch of columns."""
    index.put_many(
        np.array([message.physical_offset for message in messages], np.int64),
        np.array([message.store_timestamp for message in messages], np.int64),
        np.array([len(message.key_hashes) for message in messages], np.int64),
        np.array([key_hash for message in messages for key_hash in message.key_hashes], np.int32),
        skip_first=skip_first,
    )


T0 = 1_700_000_000_000
FOR_EVER = (1 << 63) - 1


def last_update(index: KeyIndex) -> tuple[int, int]:
    """Store timestamp and physical offset of the last message put."""
    header = index.index_files[-1].header
    return header.end_timestamp, header.end_physical_offset


def contents(index: KeyIndex) -> list[bytes]:
    """The bytes of each file, oldest first."""
    return [index.files.read(file.path) for file in index.index_files]


def in_batches(messages: list[Message], rng: random.Random) -> list[list[Message]]:
    cuts = sorted(rng.randrange(len(messages) + 1) for _ in range(rng.randrange(6)))
    return [messages[low:high] for low, high in zip([0, *cuts], [*cuts, len(messages)], strict=True)]


# ── against the model ──────────────────────────────────────────────────────────────────────────────────────────────


def some_messages(rng: random.Random, count: int, *, start: int = 0, in_order: bool = False) -> list[Message]:
    """Messages with few different hashes; unless ``in_order``, some are where another was, or before it."""
    offset, timestamp, messages = start, T0 + rng.randrange(2000), []
    for _ in range(count):
        offset += rng.choice((1, 1, 5, 100) if in_order else (1, 0, -3, 5, 100))
        timestamp += rng.choice((0, 300, 999, 5000, -2000))
        keys = tuple(
            rng.choice((0, 1, 5, 12, 0x7FFFFFFF, rng.getrandbits(31))) for _ in range(rng.choice((0, 1, 2, 9)))
        )
        messages.append(Message(max(offset, 0), timestamp, keys))
    return messages


@settings(max_examples=times(60))
@given(seed=st.integers(0, 1 << 32), slots=st.sampled_from((1, 7, 1500)), items=st.sampled_from((2, 3, 40, 400)))
def test_batches_make_the_bytes_and_answers_of_one_key_at_a_time(seed: int, slots: int, items: int) -> None:
    rng = random.Random(seed)
    files, model = MemoryFileSystem(), IndexModel(slots, items)
    index = load(files, "/store/index", slots, items)
    for batch in in_batches(some_messages(rng, rng.randrange(60)), rng):
        put(index, batch)
        for message in batch:
            model.put(message)
        if rng.random() < 0.3:
            index.flush()
        if rng.random() < 0.2:
            index.flush()
            index.close()
            index = load(files, "/store/index", slots, items, new_name=Names(int(rng.random() * 100)))
        for key_hash in (0, 1, 5, 12, 0x7FFFFFFF, 77):
            begin = rng.choice((0, T0, T0 + rng.randrange(90_000)))
            end = rng.choice((FOR_EVER, begin, begin + rng.randrange(30_000)))
            wanted = rng.choice((1, 3, 1000))
            assert index.query(key_hash, wanted, begin, end) == model.query(key_hash, wanted, begin, end)
    index.flush()
    assert contents(index) == [file.bytes() for file in model.files]
    index.check_invariants()
    assert [file.name for file in index.index_files] == files.list("/store/index")


def test_a_message_whose_keys_straddle_two_files() -> None:
    index = load(MemoryFileSystem(), "/index", 7, 4)
    put(index, [Message(0, T0, (1, 2)), Message(50, T0 + 5000, (3, 4, 3))])
    assert [file.header.index_count for file in index.index_files] == [4, 3]
    assert index.query(3, 64, 0, FOR_EVER) == [50, 50]
    assert index.already_put(50) == 3
    assert index.already_put(0) == 0


def test_a_message_without_keys_makes_the_next_file_too() -> None:
    index = load(MemoryFileSystem(), "/index", 7, 3)
    put(index, [Message(0, T0, (1, 2))])
    assert len(index.index_files) == 1
    put(index, [Message(50, T0, ())])
    assert len(index.index_files) == 2
    put(index, [Message(60, T0, (1, 2)), Message(70, T0, ())])
    assert [file.header.index_count for file in index.index_files] == [3, 3, 1]
    assert last_update(index) == (T0, 60)
    put(index, [])
    assert len(index.index_files) == 3


def test_what_lies_before_the_last_message_is_left_out_and_that_message_is_not() -> None:
    index = load(MemoryFileSystem(), "/index", 7, 40)
    messages = [Message(0, T0, (1,)), Message(10, T0, (1,)), Message(20, T0, (1, 2))]
    put(index, messages)
    put(index, messages)
    assert index.query(1, 64, 0, FOR_EVER) == [20, 20, 10, 0]
    assert index.already_put(20) == 4


def test_keys_that_are_there_can_be_left_out() -> None:
    index = load(MemoryFileSystem(), "/index", 7, 4)
    put(index, [Message(0, T0, (1, 2, 3, 4, 5))])
    put(index, [Message(0, T0, (1, 2, 3, 4, 5, 6)), Message(9, T0, (7,))], skip_first=index.already_put(0))
    assert index.query(6, 64, 0, FOR_EVER) == [0]
    assert index.query(5, 64, 0, FOR_EVER) == [0]
    assert index.already_put(0) == 0
    put(index, [Message(9, T0, (7,)), Message(10, T0, (7,))], skip_first=99)
    assert index.query(7, 64, 0, FOR_EVER) == [10, 9]


def test_many_keys_of_one_message_are_counted_over_blocks_and_files() -> None:
    index = load(MemoryFileSystem(), "/index", 7, 150)
    put(index, [Message(0, T0, (1,) * 20), Message(9, T0, (2,) * 301)])
    assert index.already_put(9) == 301


def test_columns_that_do_not_add_up_are_refused() -> None:
    index = load(MemoryFileSystem(), "/index", 7, 40)
    one = np.ones(1, np.int64)
    with pytest.raises(RuntimeError, match="2 key hashes for messages with 1 keys"):
        index.put_many(one, one, one, np.array([1, 2], np.int32))


def test_two_files_made_in_the_same_millisecond_have_two_names_in_order() -> None:
    files = MemoryFileSystem()
    index = load(files, "/index", 7, 2, new_name=lambda: "20261120210431719")
    put(index, [Message(n, T0, (1,)) for n in range(3)])
    assert files.list("/index") == ["20261120210431719", "20261120210431720", "20261120210431721"]
    assert index.query(1, 64, 0, FOR_EVER) == [2, 1, 0]


def test_other_files_in_the_directory_are_left_alone() -> None:
    files = MemoryFileSystem()
    files.make_directories("/index")
    files.open_append("/index/notes.txt").append(b"mine")
    index = load(files, "/index", 7, 40, is_clean=False)
    assert index.index_files == []
    assert index.end_physical_offset == 0
    assert files.read("/index/notes.txt") == b"mine"


def test_expired_files_go_but_never_the_last() -> None:
    files = MemoryFileSystem()
    index = load(files, "/index", 7, 3)
    put(index, [Message(n * 10, T0, (1,)) for n in range(6)])
    assert [file.header.end_physical_offset for file in index.index_files] == [10, 30, 50]
    index.flush()
    assert index.expire(10) == []
    assert len(index.expire(31)) == 2
    assert index.expire(1000) == []
    assert files.list("/index") == [file.name for file in index.index_files]
    assert index.query(1, 64, 0, FOR_EVER) == [50, 40]


def test_after_an_unclean_stop_files_behind_the_checkpoint_are_deleted() -> None:
    files = MemoryFileSystem()
    index = load(files, "/index", 7, 3)
    put(index, [Message(n, T0 + n, (1,)) for n in range(5)])
    index.flush()
    assert len(load(files, "/index", 7, 3).index_files) == 3
    read_only = load(files, "/index", 7, 3, is_clean=False, index_msg_timestamp=T0 + 3, writable=False)
    assert len(read_only.index_files) == 2
    assert len(files.list("/index")) == 3
    load(files, "/index", 7, 3, is_clean=False, index_msg_timestamp=T0 + 3)
    assert len(files.list("/index")) == 2
    load(files, "/index", 7, 3, is_clean=False)
    assert files.list("/index") == []


# ── against the real one ───────────────────────────────────────────────────────────────────────────────────────────


def messages_of(scenario: str) -> list[Message]:
    messages = []
    for record in golden.records(scenario):
        if record.get("blank"):
            continue
        properties = record["properties"]
        keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
        keys += [key for key in properties.get("KEYS", "").split(" ") if key]
        hashes = tuple(index_hash(f"{record['topic']}#{key}") for key in keys)
        hashes = () if record["transactionType"] == 0xC else hashes  # a rollback
        messages.append(Message(record["physicalOffset"], record["storeTimestamp"], hashes))
    return messages


def parts(path: Path, layout: Layout) -> tuple[bytes, bytes]:
    """Header and slots, and the items up to those that were never written."""
    with path.open("rb") as file:
        front = file.read(layout.item_offset(0))
        return front, file.read(20 * 4096)


@pytest.mark.parametrize("scenario", golden.SCENARIOS)
def test_the_real_ones_messages_make_its_files(scenario: str, tmp_path: Path) -> None:
    config = golden.settings(scenario)
    layout = Layout(config.max_hash_slot_num, config.max_index_num)
    rng = random.Random(scenario)
    index = load(RealFileSystem(), str(tmp_path / "index"), layout.slot_count, layout.item_count)
    for batch in in_batches(messages_of(scenario), rng):
        put(index, batch)
        if rng.random() < 0.5:
            index.flush()
    index.flush()
    index.check_invariants()
    index.close()
    theirs = sorted((golden.unpacked(scenario) / "store" / "index").iterdir())
    ours = sorted((tmp_path / "index").iterdir())
    assert len(theirs) == len(ours)
    for their, our in zip(theirs, ours, strict=True):
        assert our.stat().st_size == their.stat().st_size
        assert our.stat().st_blocks * 512 < 1_000_000
        assert parts(our, layout) == parts(their, layout)
        if layout.file_size < 1 << 20:
            assert our.read_bytes() == their.read_bytes()


@pytest.mark.parametrize(
    ("scenario", "part"),
    [
        (scenario, part)
        for scenario in golden.SCENARIOS
        for name, part, patch, _, _, _ in golden.answers(scenario)
        if name in ("store", "after")
    ],
)
def test_the_real_ones_files_give_its_answers(scenario: str, part: str) -> None:
    config = golden.settings(scenario)
    answers = next(found[-1] for found in golden.answers(scenario) if found[0] == part)
    files = OverlayFileSystem(golden.FILES)
    directory = f"{golden.directory(scenario, part)}/index"
    index = load(files, directory, config.max_hash_slot_num, config.max_index_num, writable=False)
    for file, expected in zip(index.index_files, answers["indexFiles"], strict=True):
        assert file.name == expected["file"]
        assert file.header.encode().hex() == expected["headerHex"]
        assert file.is_full == expected["writeFull"]
        file.check_invariants()
        if "items" in expected:
            assert np.stack(file.used_slots(), axis=1).tolist() == expected["slots"]
            assert [list(item) for item in file.items().tolist()] == expected["items"]
    for query in answers["indexQueries"]:
        wanted = min(query["maxNum"], config.max_msgs_num_batch)
        found = index.query(index_hash(f"{query['topic']}#{query['key']}"), wanted, query["begin"], query["end"])
        assert found == query["phyOffsets"]
        assert last_update(index) == (query["indexLastUpdateTimestamp"], query["indexLastUpdatePhyoffset"])
    assert answers["indexQueries"]


# ── crashes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def state(index: KeyIndex) -> list[tuple[bytes, bytes, list[object]]]:
    """The relevant part of each file: header, slots and items, not what may follow them."""
    found = []
    for file in index.index_files:
        data = index.files.read(file.path)
        found.append((data[:40], data[40 : file.layout.item_offset(0)], file.items().tolist()))
    return found


def resume(index: KeyIndex, messages: list[Message], sure_end: int) -> int:
    """What a store does after a crash; returns where the index ended.

    ``sure_end``: the CommitLog's end, or where what the checkpoint says is safe ends.
    """
    times = {message.physical_offset: message.store_timestamp for message in messages}
    recover(index, sure_end, times.get)
    index.check_invariants()
    end = index.end_physical_offset
    rest = [message for message in messages if message.physical_offset >= end]
    put(index, rest, skip_first=index.already_put(end))
    return end


@settings(max_examples=times(60))
@given(seed=st.integers(0, 1 << 32), items=st.sampled_from((3, 12, 60)))
def test_a_crash_loses_nothing_that_was_flushed_and_the_rest_is_put_again(seed: int, items: int) -> None:
    rng = random.Random(seed)
    files = MemoryFileSystem(random.Random(seed))
    files.make_directories("/store")
    files.sync_directory("/")
    messages = [message for message in some_messages(rng, 40, in_order=True) if message.key_hashes]
    index = load(files, "/store/index", 7, items)
    flushed, wrote = 0, False
    files.crash_at(rng.randint(1, 60), torn=rng.random() < 0.5)
    try:
        for batch in in_batches(messages, rng):
            put(index, batch)
            if rng.random() < 0.7:
                rng.choice((index.flush, index.flush_full))()
                flushed = index.end_physical_offset
            elif rng.random() < 0.5:
                wrote = True
                index.write()
    except SimulatedCrash:
        pass
    has_power_failed = rng.random() < 0.6
    after = files.after_power_loss(rng) if has_power_failed else files.after_process_crash()
    commit_log_end = messages[-1].physical_offset + 1
    if rng.random() < 0.5:  # and the CommitLog lost its end, and other messages take its place
        commit_log_end = rng.choice(messages[1:]).physical_offset
        messages = [message for message in messages if message.physical_offset < commit_log_end]
        flushed = min(flushed, max((message.physical_offset for message in messages), default=0))
        messages += some_messages(rng, 20, start=commit_log_end, in_order=True)
    index = load(after, "/store/index", 7, items, new_name=Names(1000))
    sure_end = min(flushed + 1, commit_log_end) if has_power_failed and wrote else commit_log_end
    assert resume(index, messages, sure_end) >= flushed
    expected = load(MemoryFileSystem(), "/store/index", 7, items)
    put(expected, messages)
    for each in (index, expected):
        each.flush()
    assert state(index) == state(expected)


def flushed_index(items: int = 40, count: int = 30) -> tuple[MemoryFileSystem, list[Message]]:
    files = MemoryFileSystem()
    messages = [Message(n * 10, T0 + n * 700, (n % 5, 7)) for n in range(count)]
    index = load(files, "/index", 7, items)
    put(index, messages)
    index.flush_full()
    return files, messages


def test_slots_that_were_never_written_come_back_after_a_crash() -> None:
    files, messages = flushed_index(items=400)
    index = load(files.after_power_loss(random.Random(1)), "/index", 7, 400)
    assert index.query(7, 64, 0, FOR_EVER) == []
    recover(index, 10_000, {message.physical_offset: message.store_timestamp for message in messages}.get)
    assert index.query(7, 64, 0, FOR_EVER) == [message.physical_offset for message in reversed(messages)]
    assert index.already_put(index.end_physical_offset) == 2


def test_slots_that_are_ahead_of_the_header_come_back() -> None:
    files, messages = flushed_index(items=400)
    index = load(files, "/index", 7, 400)
    resume(index, messages, 10_000)
    index.flush()
    put(index, [Message(1000, T0, (7, 14))])
    file = index.index_files[-1]
    header = files.read(file.path)[:40]
    index.flush()
    files.open_append(file.path).pwrite(header, 0)  # as if the power went just before the header was written
    index = load(files, "/index", 7, 400)
    assert index.query(7, 1, 0, FOR_EVER) == []
    resume(index, messages, 10_000)
    assert index.query(7, 1, 0, FOR_EVER) == [290]
    index.check_invariants()


def test_items_behind_the_end_of_the_commit_log_are_cut_off() -> None:
    files, messages = flushed_index(items=12)
    index = load(files, "/index", 7, 12)
    times = {message.physical_offset: message.store_timestamp for message in messages}
    recover(index, 155, times.get)
    assert index.end_physical_offset == 150
    assert last_update(index) == (T0 + 15 * 700, 150)
    assert index.query(7, 2, 0, FOR_EVER) == [150, 140]
    index.check_invariants()
    recover(index, 0, times.get)
    assert index.index_files == []
    assert files.list("/index") == []


def test_a_damaged_item_is_where_recovery_ends() -> None:
    files, messages = flushed_index(items=400)
    index = load(files, "/index", 7, 400)
    file = index.index_files[0]
    files.open_append(file.path).pwrite(b"\x00\x00\x00\x03", file.layout.item_offset(21))  # another key hash
    resume(index, messages, 10_000)
    assert index.query(7, 64, 0, FOR_EVER) == [message.physical_offset for message in reversed(messages)]
    index.check_invariants()


def test_a_header_that_counts_too_far_is_not_believed() -> None:
    files, messages = flushed_index(items=400)
    index = load(files, "/index", 7, 400)
    file = index.index_files[0]
    files.open_append(file.path).pwrite((390).to_bytes(4, "big"), 36)
    index = load(files, "/index", 7, 400)
    recover(index, 10_000, {message.physical_offset: message.store_timestamp for message in messages}.get)
    assert index.index_files[0].header.index_count == 61
    assert index.end_physical_offset == 290


@settings(max_examples=times(60))
@given(seed=st.integers(0, 1 << 32))
def test_whatever_was_damaged_the_last_file_is_sound_after_recovery(seed: int) -> None:
    rng = random.Random(seed)
    files, messages = flushed_index(items=rng.choice((12, 400)))
    index = load(files, "/index", 7, 12)
    for file in index.index_files:
        handle = files.open_append(file.path)
        for _ in range(rng.randrange(4)):
            junk = rng.choice((rng.randbytes(4), rng.randrange(15).to_bytes(4, "big")))
            handle.pwrite(junk, rng.choice((rng.randrange(40), rng.randrange(file.layout.file_size - 4))))
    index = load(files, "/index", 7, 12)
    recover(index, rng.choice((150, 10_000)), {each.physical_offset: each.store_timestamp for each in messages}.get)
    for file in index.index_files[-1:]:
        attempt = file.items()["physical_offset"]
        assert (attempt[1:] >= attempt[:-1]).all()
        assert file.header.end_physical_offset == attempt[-1]
        assert file.header.index_count == len(attempt) + 1
    put(index, [Message(1 << 40, T0, (7,))])
    assert index.query(7, 1, 0, FOR_EVER) in ([1 << 40], [])  # a damaged begin may have moved its time


def test_a_full_file_is_asked_by_its_chains_and_not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFileSystem()
    index = load(files, "/index", 500, 2000)
    put(index, [Message(n, T0, (n,)) for n in range(1999)])
    index.flush()
    reads = []
    real = IndexFile._read
    monkeypatch.setattr(IndexFile, "_read", lambda file, size, at: reads.append(size) or real(file, size, at))
    assert index.query(1998, 64, 0, FOR_EVER) == [1998]
    assert reads == [4, 20, 20, 20, 20]


def test_a_message_that_cannot_be_read_has_the_time_that_its_item_tells() -> None:
    files, _ = flushed_index(items=400)
    index = load(files, "/index", 7, 400)
    recover(index, 10_000, lambda _: None)
    assert last_update(index) == (T0 + 20_000, 290)


def test_files_behind_one_that_lost_its_end_are_deleted() -> None:
    files, messages = flushed_index(items=12)
    index = load(files, "/index", 7, 12)
    third: IndexFile = index.index_files[2]
    files.open_append(third.path).pwrite((5).to_bytes(4, "big"), 36)
    index = load(files, "/index", 7, 12)
    resume(index, messages, 10_000)
    expected = load(MemoryFileSystem(), "/index", 7, 12)
    put(expected, messages)
    for each in (index, expected):
        each.flush()
    assert state(index) == state(expected)
    assert [file.name for file in index.index_files] == files.list("/index")
