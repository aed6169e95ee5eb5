"""Records by columns: what the real RocketMQ says of its own, and what each record says when it is decoded alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import times
from tests.support.rocketmq_golden import SCENARIOS, Json, directory, manifest, records
from tests.support.rocketmq_golden import settings as golden_settings
from warren.msg_store.commit_log import record_scan
from warren.msg_store.commit_log.commit_log_format import (
    BORN_HOST_V6,
    MESSAGE_MAGIC_V2,
    MESSAGE_MAGICS,
    PREPARED,
    ROLLBACK,
    SCHEDULE_TOPIC,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    Blank,
    Host,
    Record,
    RecordError,
    decode,
    decode_properties,
    encode,
    encode_blank,
    header_bytes,
    peek,
)
from warren.msg_store.commit_log.record_check import WRONG_CRC, Failure, RecordHeader, check, delay_level
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.msg_store.commit_log.record_scan import read_columns
from warren.msg_store.commit_log.record_spans import record_starts
from warren.storage.java_hash import index_hash, java_hash

V4 = Host(bytes((10, 1, 2, 3)), 10911)
V6 = Host(bytes.fromhex("20010db8000000000000000000000001"), 50555)
DELAYS_MS = (1_000, 5_000, 10_000)
BASE = 1 << 40
"""Physical offset of the first byte of most files here."""

Item = RecordColumns | Blank | Failure


@attrs.frozen
class Reader:
    """A file in memory that bears no read beyond its end, and none of more than it is asked for."""

    data: bytes
    base: int = BASE
    end: int | None = None
    sizes: list[int] = attrs.Factory(list)

    def __call__(self, at: int, size: int) -> bytes:
        limit = len(self.data) + self.base if self.end is None else self.end
        assert self.base <= at
        assert 0 <= size <= limit - at
        self.sizes.append(size)
        return self.data[at - self.base : at - self.base + size]

    def columns(self, **options: Any) -> list[Item]:
        end = self.base + len(self.data) if self.end is None else self.end
        return list(read_columns(self, self.base, end, **{"delay_levels_ms": DELAYS_MS, **options}))


def record(**changes: Any) -> Record:
    given: dict[str, Any] = {
        "topic": "events",
        "queue_id": 3,
        "queue_offset": 77,
        "physical_offset": 0,
        "size": 0,
        "store_timestamp": 1_700_000_000_000,
        "born_timestamp": 1_699_999_999_999,
        "born_host": V4,
        "store_host": V4,
        "sys_flag": 0,
        "flag": 9,
        "reconsume_times": 2,
        "prepared_transaction_offset": 4711,
        "body_crc": 0,
        "body": b"body",
        "properties": b"",
        **changes,
    }
    flags = BORN_HOST_V6 * given["born_host"].is_v6 | STORE_HOST_V6 * given["store_host"].is_v6
    return Record(**{**given, "sys_flag": given["sys_flag"] | flags})


def log(*parts: Record | bytes) -> bytes:
    return b"".join(part if isinstance(part, bytes) else encode(part) for part in parts)


def tags_code(of: Record) -> int:
    properties = decode_properties(of.properties)
    if of.topic == SCHEDULE_TOPIC and "DELAY" in properties:
        level = min(int(properties["DELAY"]), len(DELAYS_MS))
        if level > 0:
            return of.store_timestamp + DELAYS_MS[level - 1]
    return java_hash(properties.get("TAGS", ""))


def key_hashes(of: Record) -> list[int]:
    if of.sys_flag & TRANSACTION_MASK == ROLLBACK:
        return []
    properties = decode_properties(of.properties)
    keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
    return [index_hash(f"{of.topic}#{key}") for key in keys if key]


Row = tuple[Any, ...]


def row_of(of: Record, position: int) -> Row:
    """What columns should say of a record that lies at ``position``."""
    return (
        position,
        of.physical_offset,
        of.size,
        of.queue_id,
        of.queue_offset,
        of.sys_flag,
        of.store_timestamp,
        of.born_timestamp,
        of.reconsume_times,
        of.prepared_transaction_offset,
        position + header_bytes(of.sys_flag),
        len(of.body),
        of.topic,
        tags_code(of),
        key_hashes(of),
    )


COLUMN_TYPES = {
    **dict.fromkeys(
        ("positions", "physical_offsets", "queue_offsets", "store_timestamps", "born_timestamps"), np.int64
    ),
    **dict.fromkeys(("prepared_transaction_offsets", "tags_codes"), np.int64),
    **dict.fromkeys(("sizes", "queue_ids", "sys_flags", "reconsume_times", "topic_of"), np.int32),
    **dict.fromkeys(("flags", "key_counts", "key_hashes"), np.int32),
    "body_crcs": np.uint32,
}


def rows_of(columns: RecordColumns) -> list[Row]:
    """What columns do say; their types and sums are checked on the way."""
    assert len(columns) >= 1
    for name, expected in COLUMN_TYPES.items():
        value = getattr(columns, name)
        assert value.dtype == expected, name
        assert len(value) == (columns.key_counts.sum() if name == "key_hashes" else len(columns))
    assert columns.start == columns.positions[0]
    assert columns.stop == columns.positions[-1] + columns.sizes[-1]
    assert (np.diff(columns.positions) == columns.sizes[:-1]).all()
    assert len(set(columns.topics)) == len(columns.topics)
    assert set(columns.topic_of.tolist()) == set(range(len(columns.topics)))
    keys = iter(columns.key_hashes.tolist())
    plain = (
        columns.positions,
        columns.physical_offsets,
        columns.sizes,
        columns.queue_ids,
        columns.queue_offsets,
        columns.sys_flags,
        columns.store_timestamps,
        columns.born_timestamps,
        columns.reconsume_times,
        columns.prepared_transaction_offsets,
        columns.spans.base + columns.spans.body_starts,
        columns.spans.body_sizes,
    )
    return [
        (*numbers, columns.topics[topic], code, [next(keys) for _ in range(count)])
        for *numbers, topic, code, count in zip(
            *(column.tolist() for column in (*plain, columns.topic_of, columns.tags_codes, columns.key_counts)),
            strict=True,
        )
    ]


def flat(items: Sequence[Item]) -> list[Row | Blank | Failure]:
    """Records as rows, and what stands between them."""
    found: list[Row | Blank | Failure] = []
    for item in items:
        found += rows_of(item) if isinstance(item, RecordColumns) else [item]
    return found


def one_by_one(data: bytes, base: int, *, check_crc: bool) -> Iterator[Row | Blank | Failure]:
    """The model: each record decoded alone. ``check`` only says where to go on after a failure."""
    at, end = base, base + len(data)
    while at < end:
        found = check(Reader(data, base), at, end, check_crc=check_crc)
        if isinstance(found, RecordHeader):
            good = decode(data, at - base)
            assert good.size == found.size
            assert good.crc_ok or not check_crc
            yield row_of(good, at)
            at += good.size
            continue
        yield found
        if isinstance(found, Blank):
            assert peek(data, at - base) == (found.size, 0xCBD43194)
            return
        assert_no_good_record(data, at - base, check_crc)
        if found.resume_at is None:
            return
        assert found.resume_at > at
        at = found.resume_at


def assert_no_good_record(data: bytes, position: int, check_crc: bool) -> None:
    if len(data) - position < 8 or peek(data, position)[1] not in MESSAGE_MAGICS:
        return
    try:
        read = decode(data, position)
    except RecordError:
        return
    if check_crc and not read.crc_ok:
        return
    assert read.topic == SCHEDULE_TOPIC
    with pytest.raises(RecordError):
        delay_level(read.properties)


def assert_like_one_by_one(data: bytes, *, check_crc: bool = False, window_bytes: int = 1 << 20) -> None:
    reader = Reader(data)
    found = flat(reader.columns(check_crc=check_crc, window_bytes=window_bytes))
    assert found == list(one_by_one(data, BASE, check_crc=check_crc))
    assert max(reader.sizes, default=0) <= len(data)


# --- what the real one says ---


def golden_items(scenario: str) -> list[Item]:
    chosen = golden_settings(scenario)
    found: list[Item] = []
    for path in sorted((Path(directory(scenario)) / "commitlog").iterdir()):
        options = {"check_crc": True, "delay_levels_ms": chosen.delay_levels_ms(), "window_bytes": 10_000}
        found += Reader(path.read_bytes(), int(path.name)).columns(**options)
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_golden_records_by_columns(scenario: str) -> None:
    found = flat([item for item in golden_items(scenario) if not isinstance(item, Failure)])
    expected = records(scenario)
    assert len(found) == len(expected)
    for item, told in zip(found, expected, strict=True):
        if told.get("blank"):
            assert isinstance(item, Blank)
            assert item.physical_offset == told["physicalOffset"]
            continue
        assert isinstance(item, tuple)
        assert item[1:10] == (
            told["physicalOffset"],
            told["totalSize"],
            told["queueId"],
            told["queueOffset"],
            told["sysFlag"],
            told["storeTimestamp"],
            told["bornTimestamp"],
            told["reconsumeTimes"],
            told["preparedTransactionOffset"],
        )
        assert item[11:13] == (told["bodyLength"], told["topic"])
        assert item[13] == told["tagsCode"]


def index_items(scenario: str, told: Json) -> list[tuple[int, int]]:
    """Physical offset and key hash of each item; of large files the manifest does not list them."""
    if "items" in told:
        return [(item[1], item[0]) for item in told["items"]]
    item = np.dtype([("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
    first = 40 + 4 * golden_settings(scenario).max_hash_slot_num + item.itemsize
    path = Path(directory(scenario)) / "index" / told["file"]
    items = np.fromfile(path, item, told["indexCount"] - 1, offset=first)
    return list(zip(items["physical_offset"].tolist(), items["hash"].tolist(), strict=True))


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if "store" in manifest(name)])
def test_golden_consume_queues_and_index_files_hold_these_codes(scenario: str) -> None:
    columns = [item for item in golden_items(scenario) if isinstance(item, RecordColumns)]
    rows = [row for item in columns for row in rows_of(item)]
    told = manifest(scenario)["store"]
    by_offset = {row[1]: row for row in rows}
    entries = [entry for queue in told["consumeQueues"] for entry in queue["entries"] if entry[1] != 0x7FFFFFFF]
    assert entries
    for physical_offset, size, code in entries:
        assert (by_offset[physical_offset][2], by_offset[physical_offset][13]) == (size, code)
    first = min(by_offset)
    items = [item for file in told["indexFiles"] for item in index_items(scenario, file) if item[0] >= first]
    assert items == [(row[1], key) for row in rows for key in row[14]]


# --- random records against the model ---

NAMES = ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TAG", "KEYSS", "UNIQ_KEX", "x", "ключ", ""]
VALUES = [
    "a",
    "created",
    "%04d",
    "k%04d k2",
    " two  spaces ",
    "é%04d",
    "\U0001f600%04d",
    "3",
    "+2",
    "0",
    "99",
    "",
    "\x01",
]

entries = st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)).map("\x01".join) | st.sampled_from(
    ["", "\x01", "x"]
)
texts = st.tuples(st.lists(entries, max_size=5).map("\x02".join), st.sampled_from(["", "\x02"])).map("".join)
properties = (
    texts.map(str.encode) | st.binary(max_size=40) | st.just(b"TAGS\x01\xff\xed\xa0\x80\x02KEYS\x01\xc3 \xe6\x97")
)
hosts = st.sampled_from([V4, V6])
longs = st.integers(-(1 << 63), (1 << 63) - 1)
ints = st.integers(-(1 << 31), (1 << 31) - 1)
templates = st.builds(
    record,
    topic=st.sampled_from(["events", "T", "", "日本語", SCHEDULE_TOPIC, "events\0", "t" * 127]),
    queue_id=ints,
    queue_offset=longs,
    physical_offset=longs,
    store_timestamp=st.integers(0, 1 << 50),
    born_timestamp=longs,
    born_host=hosts,
    store_host=hosts,
    sys_flag=st.sampled_from([0, 1, PREPARED, ROLLBACK]),
    magic=st.sampled_from(MESSAGE_MAGICS),
    reconsume_times=ints,
    prepared_transaction_offset=longs,
    body=st.binary(max_size=30),
    properties=properties,
)


@st.composite
def stretches(draw: st.DrawFn) -> list[Record]:
    """Records of one shape, but for numbers in their properties, and perhaps for one of them."""
    template = draw(templates)
    found = []
    for number in range(draw(st.sampled_from([1, 1, 2, 15, 16, 40, 100]))):
        numbered = re.sub(rb"%04d", b"%04d" % number, template.properties)
        changed = template.properties if b"\x01" not in numbered else numbered
        found.append(attrs.evolve(template, queue_offset=number, properties=changed))
    if len(found) > 2 and draw(st.booleans()):
        at = draw(st.integers(0, len(found) - 1))
        odd = bytearray(found[at].properties)
        if odd:
            odd[draw(st.integers(0, len(odd) - 1))] = draw(st.sampled_from(b"\0\1\2 A0\x80\xff"))
        found[at] = attrs.evolve(found[at], properties=bytes(odd))
    return found


logs = st.lists(stretches(), min_size=1, max_size=6).map(lambda found: [one for stretch in found for one in stretch])
windows = st.sampled_from([100, 700, 5_000, 1 << 20])


@given(parts=logs, window_bytes=windows, shuffle=st.randoms(use_true_random=False), mixed=st.booleans())
@settings(max_examples=times(80))
def test_columns_are_what_each_record_says(parts: list[Record], window_bytes: int, shuffle: Any, mixed: bool) -> None:
    if mixed:
        shuffle.shuffle(parts)
    assert_like_one_by_one(log(*parts, encode_blank(64), bytes(56)), check_crc=mixed, window_bytes=window_bytes)


@given(parts=logs, window_bytes=windows, check_crc=st.booleans(), data=st.data())
@settings(max_examples=times(80))
def test_damaged_bytes_are_failures_or_right(
    parts: list[Record], window_bytes: int, check_crc: bool, data: st.DataObject
) -> None:
    damaged = bytearray(log(*parts[:40], bytes(20)))
    places = st.integers(0, len(damaged) - 1)
    for _ in range(data.draw(st.integers(1, 4), "pieces")):
        at = data.draw(places, "at")
        piece = data.draw(
            st.binary(min_size=1, max_size=4) | st.sampled_from([b"\x7f\xff\xff\xff", b"\xff" * 4, bytes(4)])
        )
        damaged[at : at + len(piece)] = piece
    assert_like_one_by_one(bytes(damaged), check_crc=check_crc, window_bytes=window_bytes)


# --- named situations ---


@pytest.mark.parametrize("count", [1, 40])
def test_topics_that_only_version_2_can_hold(count: int) -> None:
    """Among records of version 1 with the same sizes, and alone."""
    long = [record(topic="t" * 300 + "é", magic=MESSAGE_MAGIC_V2, queue_offset=number) for number in range(count)]
    short = record(body=bytes(len(encode(long[0])) - len(encode(record(body=b"")))))
    data = log(*long, *[short] * count, *long)
    (columns,) = Reader(data).columns()
    assert isinstance(columns, RecordColumns)
    assert [columns.topics[number] for number in columns.topic_of[[0, count, -1]]] == [
        long[0].topic,
        "events",
        long[0].topic,
    ]
    assert_like_one_by_one(data, check_crc=False)
    assert encode(decode(encode(long[0]))) == encode(long[0])


def field(data: bytes, position: int, value: bytes) -> bytes:
    return data[:position] + value + data[position + len(value) :]


def only_failure(data: bytes, **options: Any) -> Failure:
    (found,) = Reader(data).columns(**options)
    assert isinstance(found, Failure)
    assert found.physical_offset == BASE
    return found


def test_nothing_from_the_end_on() -> None:
    assert Reader(b"").columns() == []


def test_keys_of_a_message_are_its_unique_key_and_then_each_word() -> None:
    odd = b"KEYS\x01 b  a b\x02UNIQ_KEY\x01u v\x02TAGS\x01x\x02TAGS\x01\x02TAGS\x01y"
    (columns,) = Reader(log(record(properties=odd))).columns()
    assert isinstance(columns, RecordColumns)
    assert columns.key_hashes.tolist() == [index_hash(f"events#{key}") for key in ("u v", "b", "a", "b")]
    assert columns.tags_codes.tolist() == [java_hash("y")]


def test_without_keys_tags_stay() -> None:
    like = record(properties=b"KEYS\x01k\x02TAGS\x01y")
    other = record(properties=b"TAGS\x01z\x02KEYS\x01k k")
    (columns,) = Reader(log(*[like] * 50, other, other)).columns(with_keys=False)
    assert isinstance(columns, RecordColumns)
    assert not columns.key_counts.any()
    assert not len(columns.key_hashes)
    assert columns.tags_codes.tolist() == [java_hash("y")] * 50 + [java_hash("z")] * 2


@pytest.mark.parametrize("count", [1, 50])
def test_without_codes_records_are_the_same_and_have_no_keys(count: int) -> None:
    reader = Reader(log(*[record(properties=b"KEYS\x01k\x02TAGS\x01y")] * count))
    (columns,), (like,) = reader.columns(with_codes=False, with_keys=False), reader.columns()
    assert isinstance(columns, RecordColumns)
    assert isinstance(like, RecordColumns)
    assert (columns.stop, columns.topics) == (like.stop, like.topics)
    assert columns.store_timestamps.tolist() == like.store_timestamps.tolist()
    assert not columns.key_counts.any()
    assert not len(columns.key_hashes)


@pytest.mark.parametrize("count", [1, 50])
def test_a_rollback_puts_no_keys(count: int) -> None:
    keyed = record(properties=b"KEYS\x01k")
    (columns,) = Reader(log(*[attrs.evolve(keyed, sys_flag=ROLLBACK)] * count, keyed)).columns()
    assert isinstance(columns, RecordColumns)
    assert columns.key_counts.tolist() == [0] * count + [1]


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize(
    ("level", "delay_ms"), [("1", 1_000), ("3", 10_000), ("18", 10_000), ("+2", 5_000), ("٣", 10_000)]
)
def test_a_scheduled_message_has_the_time_it_is_due(level: str, delay_ms: int, count: int) -> None:
    text = f"TAGS\x01y\x02DELAY\x01{level}".encode()
    (columns,) = Reader(log(*[record(topic=SCHEDULE_TOPIC, properties=text)] * count)).columns()
    assert isinstance(columns, RecordColumns)
    assert columns.tags_codes.tolist() == [1_700_000_000_000 + delay_ms] * count


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize(("topic", "text"), [("events", "2"), (SCHEDULE_TOPIC, "0"), (SCHEDULE_TOPIC, "-1")])
def test_a_message_that_is_not_delayed_keeps_its_tags(topic: str, text: str, count: int) -> None:
    raw = f"TAGS\x01y\x02DELAY\x01{text}".encode()
    (columns,) = Reader(log(*[record(topic=topic, properties=raw)] * count)).columns()
    assert isinstance(columns, RecordColumns)
    assert columns.tags_codes.tolist() == [java_hash("y")] * count


def test_without_delay_levels_scheduled_messages_keep_their_tags() -> None:
    scheduled = record(topic=SCHEDULE_TOPIC, properties=b"TAGS\x01y\x02DELAY\x011")
    (columns,) = Reader(log(*[scheduled] * 50)).columns(delay_levels_ms=())
    assert isinstance(columns, RecordColumns)
    assert columns.tags_codes.tolist() == [java_hash("y")] * 50


@pytest.mark.parametrize("text", ["soon", "1_0", " 1", "2147483648", "9" * 5_000, "\U0001d7d0"])
def test_a_delay_level_that_java_cannot_read_is_a_failure(text: str) -> None:
    good = record(topic=SCHEDULE_TOPIC, properties=b"DELAY\x012")
    odd = record(topic=SCHEDULE_TOPIC, properties=f"DELAY\x01{text}".encode())
    reader = Reader(log(*[good] * 20, odd, good))
    columns, failure = reader.columns()
    assert reader.columns(with_codes=False)[1:] == [failure], "it is, whether or not its code is asked for"
    assert isinstance(columns, RecordColumns)
    assert len(columns) == 20
    assert isinstance(failure, Failure)
    assert failure.resume_at is None
    assert "delay level" in failure.reason


def test_a_record_that_claims_2_gib_costs_nothing() -> None:
    reader = Reader(field(log(record(), record()), 0, b"\x7f\xff\xff\xff"))
    failure, columns = reader.columns()
    assert isinstance(failure, Failure)
    assert isinstance(columns, RecordColumns)
    assert failure.resume_at == columns.start == BASE + len(encode(record()))
    assert max(reader.sizes) <= len(reader.data)


def test_a_body_that_claims_2_gib_costs_nothing() -> None:
    failure = only_failure(field(log(record(), record()), header_bytes(0) - 4, b"\x7f\xff\xff\xff"))
    assert failure.resume_at is None


def test_a_record_that_claims_a_large_file_is_not_read_whole() -> None:
    """Its size and its body's length agree, but for one byte; only a few small reads tell."""
    size = 64 << 20
    data = log(record(body=bytes(size)))
    reader = Reader(field(data, 0, (len(data) - 1).to_bytes(4, "big")))
    failure, *rest = reader.columns(window_bytes=4_096)
    assert isinstance(failure, Failure)
    assert failure.resume_at == BASE + len(data)
    assert rest == []
    assert max(reader.sizes) == 4_096


def test_if_only_the_sum_is_wrong_the_walk_goes_on_behind_the_fields() -> None:
    one = encode(record(properties=b"KEYS\x01k"))
    assert flat(Reader(log(field(one, 0, (1_000).to_bytes(4, "big")), one)).columns()) == [
        Failure(BASE, f"its fields take {len(one)} bytes, its size says 1000", BASE + len(one)),
        row_of(decode(one), BASE + len(one)),
    ]


def test_a_field_that_is_longer_than_its_record_claims_ends_the_file() -> None:
    """The original reads each field into an array of the size that the record claims."""
    assert only_failure(field(log(record(topic="t" * 100)), 0, (99).to_bytes(4, "big"))).resume_at is None
    assert only_failure(field(log(record(born_host=V6)), 0, (19).to_bytes(4, "big"))).resume_at is None
    assert only_failure(field(log(record()), 0, bytes(4))).resume_at is None


def test_an_ipv6_record_with_the_size_of_a_smaller_one() -> None:
    short = encode(record(topic="", body=b""))
    flagged = field(short, 36, (BORN_HOST_V6 | STORE_HOST_V6).to_bytes(4, "big"))
    assert_like_one_by_one(flagged)
    assert_like_one_by_one(flagged + encode(record()) * 20)


@pytest.mark.parametrize("what", ["size", "topic", "magic"])
def test_negative_lengths_and_foreign_magics_end_the_file(what: str) -> None:
    good = encode(record(properties=b""))
    place, value = {"size": (0, b"\xff"), "topic": (len(good) - 9, b"\x80"), "magic": (4, b"\xdb")}[what]
    assert only_failure(field(good, place, value) + good).resume_at is None


@pytest.mark.parametrize("count", [0, 40])
def test_a_negative_topic_length_is_a_failure_though_the_sum_is_right(count: int) -> None:
    """A topic of -1 bytes: its length is read once more, as the first byte of a negative length of properties."""
    head = encode(record())[: header_bytes(0)]
    negative = field(head, 0, (header_bytes(0) + 6).to_bytes(4, "big")) + b"body\xff\xff"
    *columns, failure = Reader(encode(record()) * count + negative).columns()
    assert len(flat(columns)) == count
    assert isinstance(failure, Failure)
    assert failure.reason == "its topic's length is -1"
    assert failure.resume_at is None


def test_negative_lengths_of_body_and_properties_count_as_none() -> None:
    empty = encode(record(body=b""))
    negative = field(field(empty, header_bytes(0) - 4, b"\xff\xff\xff\xff"), len(empty) - 2, b"\xff\xff")
    (found,) = flat(Reader(negative).columns(check_crc=True))
    assert found == row_of(record(body=b"", size=len(empty)), BASE)


def test_a_torn_record_at_the_end_is_a_failure() -> None:
    good = encode(record())
    columns, failure = Reader(good * 30 + good[:-1]).columns()
    assert isinstance(columns, RecordColumns)
    assert failure == Failure(BASE + 30 * len(good), "its fields do not fit into the file", None)


def test_fewer_than_eight_bytes_are_a_failure() -> None:
    assert only_failure(b"\xcb\xd4\x31\x94\0\0\0").resume_at is None


def test_nothing_behind_the_end_of_the_log_is_read() -> None:
    good = encode(record())
    (columns,) = Reader(good * 30, end=BASE + 20 * len(good)).columns(window_bytes=1_000_000)
    assert isinstance(columns, RecordColumns)
    assert columns.stop == BASE + 20 * len(good)


def test_bytes_that_cannot_be_read_are_a_failure() -> None:
    good = encode(record())
    items = list(read_columns(lambda at, size: good[at : at + min(size, 50)], 0, len(good)))
    assert items == [Failure(0, "its bytes cannot be read", None)]


@pytest.mark.parametrize("size", [0, 1, 100, 3_000_000])
def test_a_body_with_a_wrong_crc_is_a_failure_only_when_asked(size: int) -> None:
    good = encode(record(body=bytes(size)))
    wrong = field(good, 8, b"\x01\x02\x03\x04")
    assert len(flat(Reader(wrong + good).columns())) == 2
    count = 40 if size < 1_000 else 1
    found = flat(Reader(wrong * count + good).columns(check_crc=True, window_bytes=2_000_000))
    assert len(found) == count + 1
    if size:
        assert found[0] == Failure(BASE, WRONG_CRC, BASE + len(good))
    assert found[-1] == row_of(decode(good), BASE + count * len(good))


def test_a_record_larger_than_the_window_is_read_whole() -> None:
    small, large = encode(record()), encode(record(body=bytes(100_000), properties=b"KEYS\x01k"))
    assert_like_one_by_one(log(small, large, small, large, large), window_bytes=1_000)


def test_a_topic_that_is_no_utf8() -> None:
    good = encode(record(topic="ab", properties=b"KEYS\x01k"))
    broken = good.replace(b"\x02ab", b"\x02\xe9b")
    (found,) = flat(Reader(broken).columns())
    assert found == row_of(decode(broken), BASE)
    assert isinstance(found, tuple)
    assert found[12] == "\ufffdb"


@pytest.mark.parametrize("count", [1, 40])
def test_an_encoded_surrogate_is_one_character_as_java_reads_it(count: int) -> None:
    like = record(topic="abc", properties=b"TAGS\x01\xed\xa0\x80\x02KEYS\x01\xed\xa0\x80 \xed\xb0")
    (columns,) = Reader(log(*[like] * count).replace(b"\x03abc", b"\x03\xed\xa0\x80")).columns()
    assert isinstance(columns, RecordColumns)
    assert columns.topics == ("\ufffd",)
    assert columns.tags_codes.tolist() == [java_hash("\ufffd")] * count
    assert columns.key_hashes.tolist() == [index_hash("\ufffd#\ufffd")] * 2 * count


def test_a_key_as_long_as_properties_can_be() -> None:
    longest = record(topic="t" * 127, properties=b"KEYS\x01" + b"k" * 32_762)
    assert_like_one_by_one(log(*[longest] * 20, attrs.evolve(longest, properties=b"TAGS\x01" + b"\xc3\xa9" * 16_381)))


def test_a_separator_missing_here_and_one_too_many_there() -> None:
    """As many separators as in rows that look alike, but not at the same places."""
    alike = [record(properties=b"a\x01bbb\x02TAGS\x01cc%02d" % number) for number in range(40)]
    alike[20] = record(properties=b"a\x01bbb\x03TAGS\x01cccc")
    alike[30] = record(properties=b"a\x01bbb\x02TAGS\x01c\x02cc")
    assert_like_one_by_one(log(*alike))


@pytest.mark.parametrize(
    "odd", [b"KEYS\x01k 31 ", b"KEYS\x01k31  ", b"KEYS\x01k    ", b"KEYS\x01     ", b"KEYS\x01k3123"]
)
def test_a_space_where_the_others_have_none(odd: bytes) -> None:
    alike = [record(properties=b"KEYS\x01k %02d " % number) for number in range(40)]
    alike[31] = record(properties=odd)
    assert_like_one_by_one(log(*alike))
    words = [record(properties=b"KEYS\x01k00%02d" % number) for number in range(40)]
    words[31] = record(properties=odd)
    assert_like_one_by_one(log(*words))


def test_characters_beyond_ascii_among_others() -> None:
    alike = [record(properties=b"KEYS\x01k%04d\x02TAGS\x01t%04d\x02z\x01%04d" % (n, n, n)) for n in range(40)]
    for row, text in ((7, "KEYS\x01ké\u00e91"), (9, "KEYS\x01k\U0001f600"), (11, "KEYS\x01k0001\x02TAGS\x01té01é")):
        raw = text.encode()
        alike[row] = record(properties=raw + alike[row].properties[len(raw) :])
    alike[13] = record(properties=alike[13].properties[:-2] + "é".encode())
    assert_like_one_by_one(log(*alike))


def test_spaces_outside_of_keys_part_nothing() -> None:
    texts = [b"a\x01 \x02KEYS\x01k%d k\x02UNIQ_KEY\x01u %d u\x02TAGS\x01 %d" % (3**n, 5**n, n) for n in range(40)]
    assert_like_one_by_one(log(*(record(properties=text) for text in texts)))


def test_of_equal_names_the_last_with_a_value_wins() -> None:
    texts = [b"KEYS\x01k%d\x02TAGS\x01a\x02KEYS\x01m%d\x02TAGS\x01\x02KEYS\x01" % (3**n, n) for n in range(40)]
    assert_like_one_by_one(log(*(record(properties=text) for text in texts)))


@pytest.mark.parametrize("level", [b"+1", b"-1", b"0x", b" 1"])
def test_a_delay_level_that_is_no_digits_among_others(level: bytes) -> None:
    levels = [record(topic=SCHEDULE_TOPIC, properties=b"DELAY\x01%02d\x02TAGS\x01t" % number) for number in range(40)]
    levels[31] = record(topic=SCHEDULE_TOPIC, properties=b"DELAY\x01%s\x02TAGS\x01t" % level)
    data = log(*levels)
    if level in (b"+1", b"-1"):
        assert_like_one_by_one(data)
    else:
        columns, failure = Reader(data).columns()
        assert isinstance(columns, RecordColumns)
        assert len(columns) == 31
        assert isinstance(failure, Failure)


def test_hundreds_of_failures_in_a_row_are_not_gathered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes on after its fields; what follows it must not be checked again each time."""
    looked_at = 0

    def counted(*arguments: Any) -> Any:
        nonlocal looked_at
        starts, stop = walk(*arguments)
        looked_at += len(starts)
        return starts, stop

    walk = record_starts
    monkeypatch.setattr(record_scan, "record_starts", counted)
    one = encode(record())
    wrong = field(one, 0, (2 * len(one)).to_bytes(4, "big"))
    found = Reader(wrong * 500 + one).columns()
    assert sum(isinstance(item, Failure) for item in found) == 500
    assert isinstance(found[-1], RecordColumns)
    assert looked_at < 500 * 50
