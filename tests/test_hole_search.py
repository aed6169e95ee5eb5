"""Messages between garbage: store files as brokers from 3.13 on leave them, made by hand; every message is found."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.classic_tools import QueueOnDisk, VhostOnDisk
from warren.msg_store.rdq.hole_search import WINDOW_BYTES, search
from warren.msg_store.rdq.rdq_format import HEADER, OVERHEAD_BYTES, encode_record, path_of
from warren.msg_store.rdq.store_reader import StoreReader
from warren.salvage.classic.classic_directory import UNCOUNTED
from warren.salvage.export import Selection, export_source
from warren.salvage.inspect import inspect_source
from warren.salvage.source import open_source
from warren.salvage.verify import verify_source
from warren.storage.errors import DataError, UnknownMessageError
from warren.storage.memory import MemoryFileSystem

DIRECTORY = "/store"
IDS = np.dtype("S16")


def key(number: int) -> bytes:
    return bytes([number + 1]) * 8 + bytes([number % 3]) * 8  # some ids end in zeros


def ids(numbers: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.bytes_]]:
    return np.array(sorted(key(number) for number in numbers), IDS)


def body(number: int) -> bytes:
    return random.Random(number).randbytes(number % 5 * 40 + 3)


def record(number: int) -> bytes:
    return encode_record(key(number), body(number))


def store_of(*files: bytes) -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.make_directories(DIRECTORY)
    for number, data in enumerate(files):
        file = system.open_append(path_of(DIRECTORY, number))
        file.append(data)
        file.close()
    return system


def found_in(data: bytes, numbers: Iterable[int], *, window_bytes: int = WINDOW_BYTES) -> dict[int, int]:
    """Message → offset, in the order in which they are found; what is found is what was wanted."""
    file = store_of(data).open_read(path_of(DIRECTORY, 0))
    found = search(file, ids(numbers), window_bytes=window_bytes)
    by_id = {key(number): number for number in numbers}
    columns = zip(found.offsets.tolist(), found.sizes.tolist(), found.msg_ids.tolist(), strict=True)
    places = {}
    for offset, size, msg_id in columns:
        number = by_id[msg_id.ljust(16, b"\0")]
        assert data[offset : offset + size] == record(number)
        places[number] = offset
    return places


class Compacted:
    """A store file and what lives in it; compaction as a broker's, without its index."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.data = bytearray()
        self.live: dict[int, int] = {}
        for number in numbers:
            self.live[number] = len(self.data)
            self.data += record(number)

    def compact(self, *, blank: bool) -> int:
        """Move messages from the end into holes; ``blank``: write zeros over these first. The size that is left."""
        order = sorted(self.live, key=self.live.__getitem__)
        if blank:
            self._blank(order)
        first, at = 0, 0
        while order[first:]:
            last = order[-1]
            start, size = self.live[order[first]], len(record(last))
            if size <= start - at:
                self.data[at : at + size] = record(last)
                self.live[last] = at
                at += size
                order.pop()
            else:
                at = start + len(record(order[first]))
                first += 1
        return max((place + len(record(number)) for number, place in self.live.items()), default=0)

    def _blank(self, order: list[int]) -> None:
        at = 0
        for number in order:
            self.data[at : self.live[number]] = bytes(self.live[number] - at)
            at = self.live[number] + len(record(number))


# ── the search ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_behind_zeros_is_found() -> None:
    assert found_in(record(1) + bytes(100) + record(2), [2]) == {2: len(record(1)) + 100}


def test_a_message_behind_the_rest_of_a_dead_one_is_found() -> None:
    rest = record(4)[50:]
    assert found_in(rest + record(1) + rest + record(2), [1, 2]) == {1: len(rest), 2: 2 * len(rest) + len(record(1))}


def test_of_a_message_that_stands_there_twice_the_first_place_counts() -> None:
    assert found_in(b"?" + record(1) + record(2) + record(1), [1]) == {1: 1}


def test_what_does_not_end_in_ff_is_none() -> None:
    assert found_in(record(1)[:-1] + b"\0" + record(1), [1]) == {1: len(record(1))}


def test_what_runs_past_the_end_is_none() -> None:
    assert found_in(bytes(9) + record(1)[:-1], [1]) == {}


def test_what_nobody_wants_is_not_found() -> None:
    assert found_in(b"?" + record(1) + record(2), [2]) == {2: 1 + len(record(1))}


def test_a_message_inside_of_a_found_one_is_its_body() -> None:
    outer = encode_record(key(9), record(1))
    file = store_of(outer).open_read(path_of(DIRECTORY, 0))
    assert search(file, ids([1, 9])).offsets.tolist() == [0]


def test_a_message_across_windows_is_found() -> None:
    data = bytes(range(256)) + record(1) + record(4)
    for window_bytes in (*range(1, 40), 256, 300):
        assert found_in(data, [1, 4], window_bytes=window_bytes) == {1: 256, 4: 256 + len(record(1))}


def test_zeros_without_end_are_no_candidates() -> None:
    gap = 3 * WINDOW_BYTES + 5
    assert found_in(bytes(gap) + record(3), [1, 3]) == {3: gap}


def test_a_size_of_every_number_of_bytes_is_found() -> None:
    for size in (0, 1, 0xFF - 16, 0x100, 0xFFFF, 0x10000, 0x1000000):
        data = b"??" + encode_record(key(1), b"x" * size)
        file = store_of(data).open_read(path_of(DIRECTORY, 0))
        found = search(file, ids([1]))
        assert (found.offsets.tolist(), found.sizes.tolist()) == ([2], [size + OVERHEAD_BYTES])


@pytest.mark.parametrize("size", [0, 1, 7, 8, 23, 24, 25])
def test_a_file_too_small_for_a_record_has_none(size: int) -> None:
    assert found_in(bytes(size), [1]) == {}


def test_bytes_that_look_like_sizes_everywhere_cost_no_more_than_a_window() -> None:
    pattern = bytes(7) + b"\xff"
    assert found_in(pattern * (WINDOW_BYTES // 8) + record(1), [1]) == {1: WINDOW_BYTES}


@given(
    st.lists(st.integers(1, 30), unique=True, max_size=20),
    st.data(),
    st.sampled_from([7, 30, 64, 1 << 20]),
)
def test_every_live_message_is_found_between_whatever_garbage(
    numbers: list[int], data: st.DataObject, window_bytes: int
) -> None:
    """Live records, dead ones, pieces of dead ones, zeros, and copies of live ones after them."""
    places, dead, file = {}, range(40, 50), bytearray()
    garbage = st.one_of(
        st.integers(0, 70).map(bytes),
        st.lists(st.sampled_from([0, 0, 0, 1, 40, 255]), max_size=60).map(bytes),
        st.tuples(st.sampled_from(dead), st.integers(0, 60)).map(lambda cut: record(cut[0])[cut[1] :]),
        st.tuples(st.sampled_from(dead), st.integers(0, 60)).map(lambda cut: record(cut[0])[: cut[1]]),
    )
    for number in numbers:
        file += data.draw(garbage)
        places[number] = len(file)
        file += record(number)
        if data.draw(st.booleans()):
            copied = data.draw(st.sampled_from(sorted(places)))
            cut = data.draw(st.integers(0, 40))
            file += record(copied)[cut:] or record(copied)
    assert found_in(bytes(file), numbers, window_bytes=window_bytes) == places


# ── the reader ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read(store: StoreReader, numbers: Iterable[int]) -> dict[int, object]:
    return dict(zip(numbers, store.read_each(np.array([key(number) for number in numbers], IDS)), strict=True))


@given(
    st.integers(1, 30),
    st.lists(st.tuples(st.sets(st.integers(0, 29)), st.booleans(), st.booleans()), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_a_compacted_file_gives_all_that_lives_in_it(
    count: int, rounds: list[tuple[set[int], bool, bool]], tells: bool, before: bool
) -> None:
    """After every compaction some more die; the end is cut off or not; then all that lives is read."""
    file = Compacted(range(count))
    for dying, blank, cut in rounds:
        for number in dying & set(file.live):
            del file.live[number]
        left = file.compact(blank=blank or len(rounds) > 1)
        if cut:
            del file.data[left:]
    system = store_of(record(99), bytes(file.data))
    live = sorted(file.live)
    store = StoreReader.open(system, DIRECTORY, needed=(lambda: ids([*live, 99])) if tells else None)
    if before:  # one by one: each is looked for alone
        assert [store.contains(key(number)) for number in live] == [True] * len(live)
    there = read(store, [*live, 99])
    assert there == {number: body(number) for number in [*live, 99]}
    assert [store.read(key(number)) for number in live] == [body(number) for number in live]
    known = {(name, one.msg_id) for name, one in store.records() if one.good}
    assert {("1.rdq", key(number)) for number in live} <= known
    assert len(store) == len({msg_id for _, msg_id in known})


def test_nothing_is_looked_for_where_no_file_is_broken() -> None:
    def needed() -> np.ndarray[tuple[int], np.dtype[np.bytes_]]:
        raise AssertionError("asked")

    store = StoreReader.open(store_of(record(1), record(2)), DIRECTORY, needed=needed)
    assert not store.contains(key(3))
    assert isinstance(read(store, [3])[3], UnknownMessageError)


def test_all_that_is_needed_is_looked_for_once() -> None:
    asked = []

    def needed() -> np.ndarray[tuple[int], np.dtype[np.bytes_]]:
        asked.append(1)
        return ids([2, 3, 5])

    store = StoreReader.open(
        store_of(bytes(30) + record(2) + bytes(8) + record(3) + record(4)), DIRECTORY, needed=needed
    )
    assert store.contains(key(3))
    assert store.contains(key(2))
    assert not store.contains(key(4))  # not needed
    assert not store.contains(key(5))
    assert asked == [1]
    assert [(name, one.msg_id) for name, one in store.records()] == [("0.rdq", key(2)), ("0.rdq", key(3))]


def test_what_a_scan_reached_is_not_looked_for() -> None:
    store = StoreReader.open(store_of(record(1) + bytes(50) + record(1) + record(2)), DIRECTORY)
    assert store.contains_each(ids([1, 2])).all()
    assert [one.offset for _, one in store.records()] == [0, 2 * len(record(1)) + 50]
    assert store.has_hidden("0.rdq")


def test_the_youngest_file_counts_where_two_have_it() -> None:
    store = StoreReader.open(store_of(bytes(9) + record(2), bytes(20) + record(2)), DIRECTORY)
    assert store.contains(key(2))
    assert [(name, one.offset) for name, one in store.records()] == [("1.rdq", 20)]
    assert not store.has_hidden("0.rdq")


def test_a_search_while_others_are_read_does_not_mix_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.msg_store.rdq.store_reader.AHEAD_BYTES", 1)
    store = StoreReader.open(store_of(record(5) + record(6) + bytes(30) + record(1) + bytes(30) + record(2)), DIRECTORY)
    reading = store.read_each(ids([5, 6]))
    assert next(reading) == body(5)
    assert store.read(key(1)) == body(1)
    assert next(reading) == body(6)


def test_reading_many_finds_what_is_hidden() -> None:
    store = StoreReader.open(store_of(record(5) + bytes(30) + record(1) + b"??" + record(2)), DIRECTORY)
    assert [store.read(key(number)) for number in (2, 5, 1)] == [body(2), body(5), body(1)]


def test_a_scan_that_goes_astray_in_garbage_hides_nothing() -> None:
    """The rest of a dead record looks like the head of one that ends, by chance, in 0xFF, after a live one."""
    behind = record(1) + b"?\xff"
    astray = HEADER.pack(16 + len(behind) - 1, key(7)) + behind
    store = StoreReader.open(store_of(astray + bytes(40) + record(2)), DIRECTORY)
    assert [one.good for _, one in store.records()] == [True]
    assert read(store, [1, 2]) == {1: body(1), 2: body(2)}


def test_what_a_bad_record_hides_is_found_though_the_file_ends_well() -> None:
    hiding = HEADER.pack(16 + len(record(1)) + 9, key(7)) + record(1) + bytes(9) + b"!"
    store = StoreReader.open(store_of(hiding + record(2)), DIRECTORY)
    assert [one.good for _, one in store.records()] == [False, True]
    assert read(store, [1, 2]) == {1: body(1), 2: body(2)}


# ── the tools ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def queue(tmp_path: Path) -> QueueOnDisk:
    vhost = VhostOnDisk(tmp_path)
    queue = vhost.queue(b"q")
    for seq_id in range(3):
        queue.publish(seq_id, b"body %d" % seq_id)
    return queue


def stored(queue: QueueOnDisk, seq_id: int) -> bytes:
    return encode_record(queue.msg_id(seq_id), queue.message(seq_id, b"body %d" % seq_id))


def findings(queue: QueueOnDisk) -> list[tuple[str, str, int | None]]:
    with open_source(str(queue.vhost.path)) as source:
        return [(one.kind, one.severity, one.offset) for one in verify_source(source) if one.kind != UNCOUNTED]


def exported(queue: QueueOnDisk) -> tuple[int, int]:
    with open_source(str(queue.vhost.path)) as source:
        done = export_source(source, Selection(), lambda _: None, lambda _: None)
    return done.messages, done.problems


def spread(queue: QueueOnDisk, *parts: bytes) -> None:
    (queue.vhost.path / "msg_store_persistent" / "0.rdq").unlink(missing_ok=True)
    queue.vhost.append("msg_store_persistent/0.rdq", b"".join(parts))


GARBAGE = {
    "zeros": bytes(77),
    "the rest of a dead record": b"a dead body\xff",
    "a size that no record has": bytes(7) + b"\x0f" + bytes(20) + b"\x01",
    "the begin of a dead record": HEADER.pack(16 + 40, b"d" * 16) + b"cut off",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_between_messages_is_left_over_and_all_are_exported(queue: QueueOnDisk, garbage: bytes) -> None:
    one, two, three = (stored(queue, seq_id) for seq_id in range(3))
    spread(queue, one, garbage, two, three, two)
    assert exported(queue) == (3, 0)
    assert {(kind, severity) for kind, severity, _ in findings(queue)} <= {
        ("leftover garbage between records", "leftover")
    }
    with open_source(str(queue.vhost.path)) as source:
        (vhost,) = inspect_source(source)["vhosts"]
    (file,) = vhost["stores"]["msg_store_persistent"]["files"]
    assert file["valid_bytes"] == len(one + two + three)
    assert file["messages"] >= 3
    assert vhost["queues"][0]["ready"] == 3


def test_garbage_is_damage_where_something_is_missing(queue: QueueOnDisk) -> None:
    spread(queue, stored(queue, 0), b"a dead body\xff", stored(queue, 1))
    assert exported(queue) == (2, 1)
    kinds = [(kind, severity) for kind, severity, _ in findings(queue)]
    assert ("missing body", "damage") in kinds
    assert ("record out of bounds", "damage") in kinds


def test_a_bad_record_is_damage_where_something_is_missing(queue: QueueOnDisk) -> None:
    one, two = stored(queue, 0), stored(queue, 1)
    hiding = HEADER.pack(16 + len(two), b"d" * 16) + two + b"!"
    spread(queue, hiding, one)
    assert ("torn record", "damage", 0) in findings(queue)
    spread(queue, hiding, one, stored(queue, 2))
    assert findings(queue) == [("leftover garbage between records", "leftover", 0)]


def test_a_torn_end_with_nothing_behind_is_damage_as_ever(queue: QueueOnDisk) -> None:
    whole = b"".join(stored(queue, seq_id) for seq_id in range(3))
    spread(queue, whole, stored(queue, 0)[:-5])
    assert findings(queue) == [("record out of bounds", "damage", len(whole))]


FALSE = encode_record(key(1), b"\x83of another body")
DEAD = encode_record(key(9), b"\x83before" + FALSE + b"after")
LAST = encode_record(key(2), b"\x83last")
HOLE = bytes(50)


def reader_of(data: bytes) -> StoreReader:
    return StoreReader.open(store_of(data), DIRECTORY)


def test_a_record_inside_of_a_body_is_none_before_the_first_damage() -> None:
    assert not reader_of(DEAD + HOLE + LAST).contains(key(1))
    assert reader_of(DEAD + HOLE + record(1)).read(key(1)) == body(1)


def test_a_record_inside_of_a_body_is_none_in_a_chain_up_to_the_files_end() -> None:
    true = b"\x83true"
    assert not reader_of(HOLE + DEAD + LAST).contains(key(1))
    assert reader_of(HOLE + DEAD + encode_record(key(1), true) + LAST).read(key(1)) == true


def test_two_different_records_of_one_message_between_damage_are_named() -> None:
    data = HOLE + DEAD + HOLE + record(1) + b"junk"
    reader = reader_of(data)
    for read in (lambda: [reader.read(key(1))], lambda: list(reader.read_each(ids([1])))):
        try:
            (found,) = read()
        except DataError as error:
            found = error
        assert isinstance(found, DataError)
        assert found.offset == data.index(FALSE)
        assert f"a different record with this id is at {data.index(record(1))}" in str(found)
    assert reader.read_uniform(ids([1])) is None


def test_two_equal_records_of_one_message_are_one() -> None:
    assert reader_of(HOLE + record(1) + HOLE + record(1) + b"junk").read(key(1)) == body(1)


def test_two_different_records_of_one_message_in_two_files_are_named() -> None:
    reader = StoreReader.open(store_of(HOLE + DEAD + b"junk", HOLE + record(1) + b"junk"), DIRECTORY)
    with pytest.raises(
        DataError, match=f"a different record with this id is at {len(HOLE) + DEAD.index(FALSE)} in 0.rdq"
    ):
        reader.read(key(1))
    assert reader.read_uniform(ids([1])) is None


def test_two_equal_records_of_one_message_in_two_files_are_one() -> None:
    reader = StoreReader.open(store_of(HOLE + record(1) + b"junk", HOLE + record(1) + b"junk"), DIRECTORY)
    assert reader.read(key(1)) == body(1)


def test_a_message_with_two_different_records_in_two_files_is_damage(queue: QueueOnDisk) -> None:
    false = encode_record(queue.msg_id(1), queue.message(1, b"another body"))
    spread(queue, stored(queue, 0), HOLE, encode_record(b"d" * 16, b"\x83" + false + b"after"), b"junk")
    queue.vhost.append("msg_store_persistent/1.rdq", HOLE + stored(queue, 1) + stored(queue, 2))
    assert exported(queue) == (2, 1)
    assert ("unreadable body", "damage") in {(kind, severity) for kind, severity, _ in findings(queue)}
