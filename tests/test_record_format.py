"""The bytes of journal and segments: both directions of the codec, and a parser that nothing can upset."""

from __future__ import annotations

from unittest.mock import patch

import attrs
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.index_tools import (
    TERM_BYTES,
    journal_ack,
    journal_deliver,
    journal_publish,
    msg_id,
    publish_body,
    segment_publish,
    segment_short,
    term,
)
from warren.queue_index.index import record_format
from warren.queue_index.index.record_format import (
    ACK,
    DELIVER,
    JOURNAL,
    SEGMENT,
    Columns,
    Layout,
    body_at,
    journal_publish_head,
    journal_short,
    journal_shorts,
    journal_shorts_of,
    parse,
    parse_file,
    segment_publish_head,
)
from warren.storage.filesystem import File
from warren.storage.memory import MemoryFileSystem


def record_count(columns: record_format.Columns) -> int:
    return len(columns.publish_numbers) + len(columns.delivers) + len(columns.acks)


# Writing


def test_a_record_head_is_two_bits_of_kind_and_the_number() -> None:
    assert journal_publish_head(5, persistent=True).hex() == "0000000000000005"
    assert journal_publish_head(5, persistent=False).hex() == "4000000000000005"
    for kind in (DELIVER, ACK):
        for seq_id in (0, 3, (1 << 62) - 1):
            assert journal_short(kind, seq_id) == journal_shorts(kind, np.array([seq_id]))
    assert journal_shorts(DELIVER, np.array([1, 3])).hex() == "80000000000000018000000000000003"
    assert journal_shorts(ACK, np.array([3, (1 << 62) - 1])).hex() == "c000000000000003ffffffffffffffff"


@pytest.mark.parametrize(
    "ranges",
    [[range(5, 6)], [range(7, 10), range(2)], [range(3000)], [range(4000, 4040, 2), range(1000)]],
    ids=["one", "few", "many", "many in two ranges"],
)
def test_short_records_of_ranges_are_those_of_their_numbers(ranges: list[range]) -> None:
    numbers = [number for part in ranges for number in part]
    assert journal_shorts_of(ACK, ranges) == b"".join(journal_short(ACK, number) for number in numbers)
    assert segment_publish_head(5, persistent=True).hex() == "c005"
    assert segment_publish_head(0x3FFF, persistent=False).hex() == "bfff"


def test_a_publish_body_is_id_expiry_size_and_the_embedded_message() -> None:
    body = publish_body(7, expiry_us=1 << 50)
    assert body[16:32].hex() == f"000400000000000000000014{TERM_BYTES:08x}"
    assert body_at(b"head" + body, 4) == (msg_id(7), 1 << 50, 20, TERM_BYTES)
    assert body[record_format.BODY_SIZE :] == term(7)


# Reading, record by record


def test_a_journal_is_read_in_columns() -> None:
    first = journal_publish(3, persistent=False) + journal_deliver(3)
    found = parse(JOURNAL, first + journal_publish(4, embedded=b"") + journal_ack(3))
    assert found.publish_numbers.tolist() == [3, 4]
    assert found.publish_persistent.tolist() == [False, True]
    assert found.body_at.tolist() == [8, len(first) + 8]
    assert found.embedded_sizes.tolist() == [TERM_BYTES, 0]
    assert (found.delivers.tolist(), found.acks.tolist()) == ([3], [3])
    assert (record_count(found), found.reason) == (4, "complete")


def test_deliver_and_ack_look_the_same_in_a_segment() -> None:
    found = parse(SEGMENT, segment_publish(5, persistent=False) + segment_short(5, 5, 2))
    assert (found.publish_numbers.tolist(), found.publish_persistent.tolist()) == ([5], [False])
    assert (found.delivers.tolist(), found.acks.tolist()) == ([5, 5, 2], [])


@pytest.mark.parametrize("layout", [JOURNAL, SEGMENT], ids=["journal", "segment"])
def test_an_empty_file_is_complete(layout: Layout) -> None:
    found = parse(layout, b"")
    assert (record_count(found), found.end, found.reason) == (0, 0, "complete")


# Where a file ends

GOOD = journal_publish(1) + journal_deliver(1)


def test_journal_ends_at_forty_zero_bytes() -> None:
    found = parse(JOURNAL, GOOD + bytes(40))
    assert (found.end, found.reason, record_count(found)) == (len(GOOD), "zeros", 2)


def test_what_stands_behind_forty_zero_bytes_is_not_read() -> None:
    found = parse(JOURNAL, GOOD + bytes(40) + journal_publish(2))
    assert (found.end, found.reason, record_count(found)) == (len(GOOD), "zeros", 2)


def test_thirty_nine_zero_bytes_are_a_torn_record() -> None:
    found = parse(JOURNAL, GOOD + bytes(39))
    assert (found.end, found.reason, record_count(found)) == (len(GOOD), "torn", 2)


@pytest.mark.parametrize("place", [8, 24, 32, 39], ids=["msg_id", "expiry", "size", "embedded_size"])
def test_the_first_message_is_no_zero_record_where_one_byte_is_set(place: int) -> None:
    record = bytearray(40)
    record[place] = 1
    found = parse(JOURNAL, bytes(record) + b"!")
    assert found.publish_numbers.tolist() == [0]
    assert found.body_at.tolist() == [8]


def test_zeros_end_a_long_stretch_too() -> None:
    stretch = b"".join(journal_publish(n, embedded=b"") for n in range(1, 50))
    found = parse(JOURNAL, stretch + bytes(400))
    assert (record_count(found), found.end, found.reason) == (49, len(stretch), "zeros")


@pytest.mark.parametrize("behind", [bytes(2), b"\x3f\xff", bytes(500)], ids=["one", "other bits set", "many"])
def test_a_segment_ends_at_a_record_whose_top_bits_are_00(behind: bytes) -> None:
    good = segment_publish(1) + segment_short(1)
    found = parse(SEGMENT, good + behind + segment_publish(2))
    assert (found.end, found.reason, record_count(found)) == (len(good), "not a record", 2)


@given(st.data())
def test_a_file_that_ends_within_a_record_gives_those_before_it(data: st.DataObject) -> None:
    layout, records = data.draw(files)
    if not records:
        return
    whole = b"".join(records[:-1])
    kept = data.draw(st.integers(1, len(records[-1]) - 1))
    found = parse(layout, whole + records[-1][:kept])
    assert (found.end, found.reason, record_count(found)) == (len(whole), "torn", len(records) - 1)


# Columns against one record at a time


@attrs.frozen
class Reference:
    """What a reader finds that knows nothing of columns."""

    publishes: list[tuple[int, bool, int, int]]
    delivers: list[int]
    acks: list[int]
    end: int
    reason: str

    @classmethod
    def of(cls, found: Columns) -> Reference:
        columns = found.publish_numbers, found.publish_persistent, found.body_at, found.embedded_sizes
        publishes = list(zip(*(column.tolist() for column in columns), strict=True))
        return cls(publishes, sorted(found.delivers.tolist()), sorted(found.acks.tolist()), found.end, found.reason)

    @classmethod
    def read(cls, layout: Layout, data: bytes) -> Reference:
        head_size, bits = (8, 62) if layout is JOURNAL else (2, 14)
        publishes: list[tuple[int, bool, int, int]] = []
        shorts: list[tuple[int, int]] = []
        at, reason = 0, "complete"
        while at < len(data):
            head = int.from_bytes(data[at : at + head_size], "big")
            kind, number = head >> bits, head & (1 << bits) - 1
            body = at + head_size
            size = int.from_bytes(data[body + 28 : body + 32], "big")
            is_publish = kind in ((0, 1) if layout is JOURNAL else (2, 3))
            end = body + 32 + size if is_publish else body
            if layout is JOURNAL and data[at : at + 40] == bytes(40):
                reason = "zeros"
            elif body > len(data) or (is_publish and body + 32 > len(data)) or end > len(data):
                reason = "torn"
            elif not is_publish and kind not in ((2, 3) if layout is JOURNAL else (1,)):
                reason = "not a record"
            if reason != "complete":
                break
            if is_publish:
                publishes.append((number, kind == (0 if layout is JOURNAL else 3), body, size))
            else:
                shorts.append((kind, number))
            at = end
        delivers = sorted(number for kind, number in shorts if layout is SEGMENT or kind == 2)
        acks = sorted(number for kind, number in shorts if layout is JOURNAL and kind == 3)
        return cls(publishes, delivers, acks, at, reason)


@st.composite
def stretches(draw: st.DrawFn, layout: Layout) -> list[bytes]:
    """Records that look alike for a while: publishes, perhaps each followed by short records, or short records."""
    publish, deliver, ack = (
        (journal_publish, journal_deliver, journal_ack)
        if layout is JOURNAL
        else (segment_publish, segment_short, segment_short)
    )
    first, count = draw(st.integers(0, 40)), draw(st.sampled_from([1, 2, 9, 31, 32, 33, 34, 65, 110]))
    step = draw(st.sampled_from([1, -1, 0]))
    shape = draw(st.sampled_from(["publish", "publish deliver", "publish deliver ack", "deliver", "ack"]))
    persistent, embedded = draw(st.booleans()), bytes(draw(st.sampled_from([0, 0, 3, 8, 40])))
    records = []
    for n in range(count):
        number = max(first + step * n, 0)
        if "publish" in shape:
            records.append(publish(number, persistent=persistent, embedded=embedded))
        if "deliver" in shape:
            records.append(deliver(number))
        if "ack" in shape:
            records.append(ack(number))
    return records


@st.composite
def records_of_a_file(draw: st.DrawFn) -> tuple[Layout, list[bytes]]:
    layout = draw(st.sampled_from([JOURNAL, SEGMENT]))
    return layout, [record for part in draw(st.lists(stretches(layout), max_size=5)) for record in part]


files = records_of_a_file()
tails = st.sampled_from([b"", bytes(1), bytes(40), bytes(500), b"\x00\x07" * 30, b"\xff" * 45]) | st.binary(max_size=90)


def file_of(content: bytes) -> File:
    handle = MemoryFileSystem().open_append("/index")
    handle.append(content)
    return handle


@given(files, tails, st.integers(min_value=1, max_value=3000))
@example((SEGMENT, [segment_short(1)] * 34 + [segment_publish(1)] * 70), b"", 7)
def test_uniform_and_irregular_records_parse_the_same(
    content: tuple[Layout, list[bytes]], tail: bytes, window_bytes: int
) -> None:
    layout, data = content[0], b"".join(content[1]) + tail
    expected = Reference.read(layout, data)
    assert Reference.of(parse(layout, data)) == expected
    with patch.object(record_format, "READ_WINDOW_BYTES", window_bytes):
        assert Reference.of(parse_file(layout, file_of(data))) == expected


@given(st.sampled_from([JOURNAL, SEGMENT]), st.binary(max_size=300), st.data())
def test_one_changed_byte_is_read_as_it_would_be_record_by_record(
    layout: Layout, garbage: bytes, data: st.DataObject
) -> None:
    content = bytearray(b"".join(data.draw(stretches(layout))))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    for octets in (bytes(content), garbage):
        assert Reference.of(parse(layout, octets)) == Reference.read(layout, octets)


def test_a_record_larger_than_the_window_is_read() -> None:
    data = journal_publish(1) + journal_publish(2, embedded=bytes(5000)) + journal_deliver(1, 2)
    with patch.object(record_format, "READ_WINDOW_BYTES", 64):
        found = parse_file(JOURNAL, file_of(data))
    assert found.publish_numbers.tolist() == [1, 2]
    assert found.reason == "complete"
