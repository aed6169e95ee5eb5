"""Classic queues of version 2 that are damaged, or left as a crash leaves them: no wrong body, and always a finding."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.classic_tools import V2QueueOnDisk, bodies_at, findings_at, message, messages_at, msg_id
from tests.support.effort import times
from warren.queue_index.index import index_v2_format as v2
from warren.salvage.classic.classic_v2 import ClassicV2Directory
from warren.salvage.queue_directory import MessageRun, StoredMessage
from warren.salvage.source import open_source

Spoil = Callable[[V2QueueOnDisk], object]
Found = set[tuple[str, str, int | None]]

ENTRY_0, ENTRY_1 = v2.HEADER_SIZE, v2.HEADER_SIZE + v2.ENTRY_SIZE
RECORD_0 = v2.HEADER_SIZE
RECORD_1 = RECORD_0 + v2.RECORD_HEAD_SIZE + len(message(0, b"body 0"))
END = RECORD_1 + v2.RECORD_HEAD_SIZE + len(message(1, b"body 1"))


@pytest.fixture
def queue(tmp_path: Path) -> V2QueueOnDisk:
    """Two messages in one segment."""
    made = V2QueueOnDisk(tmp_path)
    made.publish(0)
    made.publish(1)
    return made


def entry(position: int, **fields: int) -> Spoil:
    """The first two bytes of an entry are status and flags, then come the others that are named in the format."""
    at = {"status": 0, "flags": 1, "unused": 2, "location": 3, "offset": 11, "length": 15, "rest": 19, "size": 23}

    def spoil(queue: V2QueueOnDisk) -> None:
        for name, value in fields.items():
            place = v2.HEADER_SIZE + position * v2.ENTRY_SIZE + at[name]
            queue.patch(queue.index(0), place, bytes([value]))

    return spoil


def truncate(path: Callable[[V2QueueOnDisk], Path], size: int) -> Spoil:
    return lambda queue: os.truncate(path(queue), size)


def index_0(queue: V2QueueOnDisk) -> Path:
    return queue.index(0)


def store_0(queue: V2QueueOnDisk) -> Path:
    return queue.store(0)


DAMAGE: dict[str, tuple[Spoil, Found, set[int]]] = {
    "an index with another magic": (
        lambda queue: queue.patch(queue.index(0), 0, b"x"),
        {("bad header", "Q/0.qi", 0)},
        set(),
    ),
    "an index of another version": (
        lambda queue: queue.patch(queue.index(0), 4, b"\3"),
        {("bad header", "Q/0.qi", 4)},
        set(),
    ),
    "an index shorter than its header": (truncate(index_0, 63), {("bad header", "Q/0.qi", 0)}, set()),
    "an index with another segment's range": (
        lambda queue: queue.patch(queue.index(0), 5, v2.encode_header(v2.INDEX_MAGIC, 1, 4)[5:21]),
        {("bad header", "Q/0.qi", 5)},
        {0, 1},
    ),
    "reserved bytes of an index": (
        lambda queue: queue.patch(queue.index(0), 63, b"x"),
        {("bad header", "Q/0.qi", 21)},
        {0, 1},
    ),
    "a torn entry": (truncate(index_0, ENTRY_1 + 31), {("torn entry", "Q/0.qi", ENTRY_1)}, {0}),
    "entries behind the segment's end": (
        lambda queue: (
            [queue.entry(position, bytes(32)) for position in (2, 3)]
            and queue.index(0).write_bytes(queue.index(0).read_bytes() + queue.index(0).read_bytes()[ENTRY_0:ENTRY_1])
        ),
        {("entries behind the segment's end", "Q/0.qi", v2.HEADER_SIZE + 4 * 32)},
        {0, 1},
    ),
    "an index that is a directory": (
        lambda queue: (queue.index(0).unlink(), queue.index(0).mkdir()),
        {("unreadable file", "Q/0.qi", None)},
        set(),
    ),
    "an unknown status": (entry(1, status=2), {("strange entry", "Q/0.qi", ENTRY_1)}, {0}),
    "unknown flags": (entry(1, flags=3), {("strange entry", "Q/0.qi", ENTRY_1)}, {0, 1}),
    "an unused byte": (entry(1, unused=1), {("strange entry", "Q/0.qi", ENTRY_1)}, {0, 1}),
    "an unknown location": (entry(1, location=3), {("missing body", "Q/0.qi", ENTRY_1)}, {0}),
    "an unknown location of an acked message": (
        entry(1, location=3, status=0),
        {("strange entry", "Q/0.qi", ENTRY_1)},
        {0},
    ),
    "a place in the store that ends in something": (entry(1, rest=1), {("missing body", "Q/0.qi", ENTRY_1)}, {0}),
    "a message in memory alone": (
        lambda queue: queue.entry(1, v2.encode_entry(size=6)),
        {("missing body", "Q/0.qi", ENTRY_1)},
        {0},
    ),
    "an offset past the end": (entry(1, offset=255), {("missing body", "Q/0.qi", ENTRY_1)}, {0}),
    "an offset in the header": (entry(1, offset=0), {("missing body", "Q/0.qi", ENTRY_1)}, {0}),
    "an offset between two records": (
        lambda queue: (queue.publish(2, b"x" * 500), entry(1, offset=RECORD_0 + 1)(queue)),
        {("unreadable body", "Q/0.qi", ENTRY_1)},
        {0, 2},
    ),
    "another length": (entry(1, length=1), {("unreadable body", "Q/0.qi", ENTRY_1)}, {0}),
    "another size": (entry(1, size=7), {("wrong size", "Q/0.qi", ENTRY_1)}, {0, 1}),
    "a record that is cut off": (truncate(store_0, END - 1), {("missing body", "Q/0.qi", ENTRY_1)}, {0}),
    "a record that is another one's": (
        entry(1, offset=RECORD_0),
        {("unreadable body", "Q/0.qi", ENTRY_0), ("unreadable body", "Q/0.qi", ENTRY_1)},
        set(),
    ),
    "a record that is an acked message's": (
        lambda queue: (queue.ack(0), entry(1, offset=RECORD_0)(queue)),
        {("unreadable body", "Q/0.qi", ENTRY_1)},
        set(),
    ),
    "another checksum": (
        lambda queue: queue.patch(queue.store(0), END - 1, b"x"),
        {("unreadable body", "Q/0.qi", ENTRY_1)},
        {0},
    ),
    "a record of another length": (
        lambda queue: queue.patch(queue.store(0), RECORD_0 + 3, b"\1"),
        {("unreadable body", "Q/0.qi", ENTRY_0)},
        {1},
    ),
    "a record with flags that are not known": (
        lambda queue: queue.patch(queue.store(0), RECORD_0 + 4, b"\3"),
        {("strange record", "Q/0.qs", RECORD_0)},
        {0, 1},
    ),
    "a message that is none": (
        lambda queue: queue.publish(2, b"", encoded=b"\x83no term."),
        {("unreadable message", "Q/0.qi", v2.HEADER_SIZE + 64)},
        {0, 1, 2},
    ),
    "an entry that calls a persistent message transient": (
        entry(1, flags=0),
        {("wrong persistence", "Q/0.qi", ENTRY_1)},
        {0},
    ),
    "an entry that calls a transient message persistent": (
        lambda queue: (queue.publish(2, persistent=False), entry(2, flags=1)(queue)),
        {("wrong persistence", "Q/0.qi", v2.HEADER_SIZE + 64)},
        {0, 1, 2},
    ),
    "a body that the store has not": (
        lambda queue: queue.entry(2, v2.encode_entry(msg_id=msg_id(2), size=6)),
        {("missing body", "Q/0.qi", v2.HEADER_SIZE + 64)},
        {0, 1},
    ),
    "a body of another size in the store": (
        lambda queue: (queue.publish(2, stored=True), entry(2, size=7)(queue)),
        {("wrong size", "Q/0.qi", v2.HEADER_SIZE + 64)},
        {0, 1, 2},
    ),
    "a store without its index": (
        lambda queue: queue.index(0).unlink(),
        {("store without index", "Q/0.qs", None)},
        set(),
    ),
    "an index without its store": (
        lambda queue: queue.store(0).unlink(),
        {("missing body", "Q/0.qi", ENTRY_0), ("missing body", "Q/0.qi", ENTRY_1)},
        set(),
    ),
    "a store with another magic": (
        lambda queue: queue.patch(queue.store(0), 0, b"x"),
        {("bad header", "Q/0.qs", 0)},
        {0, 1},
    ),
    "a store with another range": (
        lambda queue: (queue.publish(5), queue.patch(queue.store(0), 20, b"\5")),
        {("bad header", "Q/0.qs", 5)},
        {0, 1, 5},
    ),
    "a damaged record of an acked message": (
        lambda queue: (queue.ack(0), queue.patch(queue.store(0), RECORD_1 - 1, b"x")),
        {("damaged record", "Q/0.qs", RECORD_0)},
        {1},
    ),
    "a head of zeros of an acked message's record": (
        lambda queue: (queue.ack(0), queue.patch(queue.store(0), RECORD_0, bytes(8))),
        {("damaged record", "Q/0.qs", RECORD_0)},
        {1},
    ),
    "a torn record at the end": (
        lambda queue: queue.record(0, v2.encode_record_v2(b"x" * 100)[:-1]),
        {("torn record", "Q/0.qs", END)},
        {0, 1},
    ),
    "fewer live entries than at the clean stop": (
        lambda queue: (queue.stop_cleanly({0: 2}), queue.ack(0)),
        {("changed since the clean stop", "Q/0.qi", None)},
        {1},
    ),
    "a segment that is gone since the clean stop": (
        lambda queue: queue.stop_cleanly({0: 2, 3: 1}),
        {("changed since the clean stop", "Q/3.qi", None)},
        {0, 1},
    ),
    "a segment that came since the clean stop": (
        lambda queue: queue.stop_cleanly({}),
        {("changed since the clean stop", "Q/0.qi", None)},
        {0, 1},
    ),
    "another count of persistent messages than at the clean stop": (
        lambda queue: queue.stop_cleanly({0: 2}, persistent_count=1),
        {("changed since the clean stop", "Q", None)},
        {0, 1},
    ),
    "messages at or above next_seq_id": (
        lambda queue: queue.stop_cleanly({0: 2}, next_seq_id=1),
        {("messages that no start sees", "Q/0.qi", ENTRY_1)},
        {0},
    ),
    "a state of the index that has another form": (
        lambda queue: queue.stop_cleanly({}, state=(2, [])),
        {("damaged recovery terms", "recovery.dets", None)},
        {0, 1},
    ),
    "a state of an index of another version": (
        lambda queue: queue.stop_cleanly({}, state=(3, {0: 2})),
        {("damaged recovery terms", "recovery.dets", None)},
        {0, 1},
    ),
    "a state of the index with numbers below 0": (
        lambda queue: queue.stop_cleanly({}, state=(2, {0: -2})),
        {("damaged recovery terms", "recovery.dets", None)},
        {0, 1},
    ),
}
"""Situation → how it comes about, what is damage then, and the positions that still come."""


@pytest.mark.slow
@pytest.mark.parametrize("situation", DAMAGE)
def test_damage(situation: str, queue: V2QueueOnDisk, tmp_path: Path) -> None:
    spoil, expected, positions = DAMAGE[situation]
    assert {kind for kind, severity, _, _ in findings_at(tmp_path) if severity == "damage"} == set()
    spoil(queue)
    found = {(kind, path, offset) for kind, severity, path, offset in findings_at(tmp_path) if severity == "damage"}
    assert found == expected
    messages, problems = messages_at(tmp_path)
    assert {one.seq_id for one in messages} == positions
    assert {one.kind for one in problems} <= {kind for kind, _, _ in expected}
    assert all(b"body %d" % one.seq_id in one.encoded for one in messages if one.seq_id < 2)


LEFTOVERS: dict[str, tuple[Spoil, Found]] = {
    "a store that was opened and not written": (
        lambda queue: queue.store(1).touch(),
        {("leftover empty file", "Q/1.qs", None)},
    ),
    "an index that was opened and not written": (
        lambda queue: queue.index(1).touch(),
        {("leftover empty file", "Q/1.qi", None)},
    ),
    "a store's header alone": (
        lambda queue: queue.store(1).write_bytes(v2.encode_header(v2.STORE_MAGIC, 1, 4)),
        {("leftover empty file", "Q/1.qs", None)},
    ),
    "an index of zeros": (lambda queue: queue.index(1).write_bytes(bytes(96)), {("leftover zeros", "Q/1.qi", 0)}),
    "a store of zeros": (lambda queue: queue.store(1).write_bytes(bytes(96)), {("leftover zeros", "Q/1.qs", 0)}),
    "zeros at a store's end": (
        lambda queue: queue.record(0, bytes(300)),
        {("leftover zeros", "Q/0.qs", END)},
    ),
    "a transient message that was kept in memory": (
        lambda queue: queue.entry(2, v2.encode_entry(size=6, persistent=False)),
        {("leftover entry", "Q/0.qi", v2.HEADER_SIZE + 64)},
    ),
    "a file of no index": (lambda queue: (queue.path / "x").touch(), {("leftover file", "Q/x", None)}),
    "a segment whose number no segment has": (
        lambda queue: (queue.path / f"{1 << 60}.qi").touch(),
        {("leftover file", f"Q/{1 << 60}.qi", None)},
    ),
    "records that no entry points at": (
        lambda queue: [queue.record(0, v2.encode_record_v2(b"garbage")) for _ in range(3)],
        {("orphan records", "Q/0.qs", END)},
    ),
    "an entry that a hole covers from end to end": (
        lambda queue: queue.entry(1, bytes(32)),
        {("orphan records", "Q/0.qs", RECORD_1)},
    ),
    "acked messages": (lambda queue: queue.ack(1), set()),
    "transient messages": (lambda queue: queue.publish(2, persistent=False), set()),
    "a hole": (lambda queue: queue.publish(3), set()),
    "a segment without a store": (lambda queue: queue.publish(9, stored=True), set()),
    "an entry that was acked in memory": (lambda queue: queue.entry(2, bytes(32)), set()),
}
"""Situation → how it comes about, and what is left over then; nothing is damage."""


@pytest.mark.parametrize("situation", LEFTOVERS)
def test_leftovers(situation: str, queue: V2QueueOnDisk, tmp_path: Path) -> None:
    spoil, expected = LEFTOVERS[situation]
    spoil(queue)
    assert findings_at(tmp_path) == {(kind, "leftover", path, offset) for kind, path, offset in expected}
    assert not messages_at(tmp_path)[1]


def test_a_queue_that_is_not_durable_says_transient_of_all(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path)
    queue.publish(0, durable=False)
    queue.publish(1, persistent=False)
    assert findings_at(tmp_path) == set()
    assert messages_at(tmp_path) == ([], [])


def test_a_queue_that_never_held_anything_has_a_name_alone(tmp_path: Path) -> None:
    V2QueueOnDisk(tmp_path, b"INDEX: v2")
    with open_source(str(tmp_path)) as source:
        (queue,) = source.vhosts[0].queues
        assert isinstance(queue, ClassicV2Directory)
        assert (queue.name, queue.kind) == (b"INDEX: v2", "rabbitmq-classic-v2")
        assert queue.summary().details == {"type": "classic", "version": 2, "segments": []}
        assert queue.extent().pieces == {}
    assert findings_at(tmp_path) == set()


def test_files_of_version_2_make_a_queues_folder_whatever_its_name_file_says(queue: V2QueueOnDisk) -> None:
    (queue.path / ".queue_name").unlink()
    for folder in (queue.path, queue.vhost):
        with open_source(str(folder)) as source:
            (found,) = source.vhosts[0].queues
            assert [one.seq_id for one in found.messages() if isinstance(one, StoredMessage)] == [0, 1]


@pytest.mark.parametrize(
    ("next_seq_id", "next_deliver_seq_id", "expected"),
    [
        (6, 1, {0: True, 1: False, 5: False}),
        (6, 0, {0: False, 1: False, 5: False}),
        (5, 1, {0: True, 1: False}),
        (6, None, {0: True, 1: True, 5: True}),
        (None, None, {0: True, 1: True, 5: True}),
        (0, 0, {}),
    ],
)
def test_a_clean_stop_says_what_is_seen_and_what_was_delivered(
    next_seq_id: int | None,
    next_deliver_seq_id: int | None,
    expected: dict[int, bool],
    queue: V2QueueOnDisk,
    tmp_path: Path,
) -> None:
    queue.publish(5)
    queue.stop_cleanly({0: 2, 1: 1}, next_seq_id=next_seq_id, next_deliver_seq_id=next_deliver_seq_id)
    assert {one.seq_id: one.redelivered for one in messages_at(tmp_path)[0]} == expected


def test_without_terms_every_message_counts_as_redelivered(queue: V2QueueOnDisk, tmp_path: Path) -> None:
    assert all(one.redelivered for one in messages_at(tmp_path)[0])


def test_acked_persistent_messages_that_tell_where_their_body_was_come_marked(
    queue: V2QueueOnDisk, tmp_path: Path
) -> None:
    queue.publish(2, stored=True, acked=True)
    queue.publish(3, persistent=False, acked=True)
    queue.ack(1)
    queue.entry(5, v2.encode_entry(msg_id=msg_id(5), size=6, acked=True))  # whose body is gone
    messages, problems = messages_at(tmp_path, include_acked=True)
    assert [(one.seq_id, one.acked, one.msg_id) for one in messages] == [
        (0, False, msg_id(0)),
        (1, True, msg_id(1)),
        (2, True, msg_id(2)),
    ]
    assert problems == []


def test_an_expiry_and_a_place_are_said(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path)
    queue.publish(6, expiry_us=1_234)
    (found,) = messages_at(tmp_path)[0]
    assert (found.expiry_us, found.offset, found.path.rpartition("/")[2]) == (1_234, v2.HEADER_SIZE + 64, "1.qi")


def test_a_segment_has_as_many_entries_as_most_headers_say(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path, entries=6)
    for position in (0, 11, 14):
        queue.publish(position)
    assert set(bodies_at(tmp_path)) == {0, 11, 14}
    queue.patch(queue.index(1), 5, bytes(16))
    assert set(bodies_at(tmp_path)) == {0, 11, 14}
    with open_source(str(tmp_path)) as source:
        extent = source.vhosts[0].queues[0].extent()
    assert (list(extent.pieces), extent.seq_ids_per_piece) == ([0, 1, 2], 6)


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def long_queue(tmp_path: Path) -> V2QueueOnDisk:
    """Messages of one length, 100 in the queue's own store and 100 in the vhost's; some acked."""
    queue = V2QueueOnDisk(tmp_path, entries=256)
    for position in range(200):
        queue.publish(position, b"%04d" % position, stored=position >= 100)
    for position in (3, 50, 150):
        queue.ack(position)
    return queue


def in_one_run_each(place: Path) -> tuple[list[int], list[StoredMessage]]:
    """How many messages runs have, and all messages."""
    with open_source(str(place)) as source:
        lengths, messages = [], list[StoredMessage]()
        for one in source.vhosts[0].queues[0].message_runs():
            if isinstance(one, MessageRun):
                lengths.append(len(one.seq_ids))
                messages += one.messages()
            elif isinstance(one, StoredMessage):
                messages.append(one)
        return lengths, messages


def test_many_messages_of_one_length_make_a_run(long_queue: V2QueueOnDisk, tmp_path: Path) -> None:
    lengths, messages = in_one_run_each(tmp_path)
    assert lengths == [98, 99]
    assert [one.seq_id for one in messages] == [n for n in range(200) if n not in (3, 50, 150)]
    for one in messages:
        assert (one.msg_id, one.encoded) == (msg_id(one.seq_id), message(one.seq_id, b"%04d" % one.seq_id))


def test_one_damaged_record_takes_its_own_message_alone(long_queue: V2QueueOnDisk, tmp_path: Path) -> None:
    encoded = message(10, b"0010")
    record = RECORD_0 + 10 * (v2.RECORD_HEAD_SIZE + len(encoded))
    long_queue.patch(long_queue.store(0), record + v2.RECORD_HEAD_SIZE + encoded.index(b"0010"), b"1")
    lengths, messages = in_one_run_each(tmp_path)
    assert lengths == [99]
    assert [one.seq_id for one in messages] == [n for n in range(200) if n not in (3, 10, 50, 150)]


def test_messages_of_one_length_and_another_shape_come_one_by_one(tmp_path: Path) -> None:
    queue = V2QueueOnDisk(tmp_path, entries=256)
    for position in range(64):
        # the same length, and the id at another place: nothing tells the two apart but their shape
        key = b"key" if position % 2 else b"ke"
        encoded = message(position, b"x" * (5 - len(key)), keys=(key,))
        queue.publish(position, b"x" * (5 - len(key)), encoded=encoded)
    lengths, messages = in_one_run_each(tmp_path)
    assert [one.msg_id for one in messages] == [msg_id(position) for position in range(64)]
    assert lengths == []


# ── whatever is damaged ──────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Sound:
    """A queue that was stopped cleanly: messages of different lengths here and in the store, acked ones, transients."""

    place: Path
    files: dict[Path, bytes]
    delivered: dict[int, bytes]
    """Position → body of what is delivered."""
    written: dict[int, bytes]
    """The same of all that was ever written."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    place = tmp_path_factory.mktemp("sound")
    queue, rng = V2QueueOnDisk(place, entries=8), random.Random(8)
    live: dict[int, int] = {}
    written = {position: rng.randbytes(20 + 3 * position) for position in range(20)}
    for position in range(20):
        if position not in (5, 13):
            stored, is_persistent, acked = position % 5 == 4, position % 7 != 3, position % 6 == 2
            queue.publish(
                position,
                written[position],
                stored=stored and is_persistent,
                persistent=is_persistent,
                acked=acked,
            )
            live[position // 8] = live.get(position // 8, 0) + (not acked)
    count = len(messages_at(place)[0])
    queue.stop_cleanly(live, next_seq_id=20, next_deliver_seq_id=4, persistent_count=count)
    assert {severity for _, severity, _, _ in findings_at(place)} <= {"leftover"}
    files = {path: path.read_bytes() for path in sorted(queue.path.glob("*.q?"))}
    return Sound(place, files, bodies_at(place), written)


def check(sound: Sound, path: Path, data: bytes) -> None:
    """With ``data`` in place of a file: no other body at any position, and a finding if one is missing."""
    try:
        path.write_bytes(data)
        found, findings = bodies_at(sound.place), findings_at(sound.place)
        assert found.items() <= sound.written.items()
        assert found == sound.delivered or any(severity == "damage" for _, severity, _, _ in findings)
    finally:
        path.write_bytes(sound.files[path])


@settings(max_examples=times(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_that_is_cut_off_gives_no_wrong_body(sound: Sound, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(sound.files)))
    check(sound, path, sound.files[path][: data.draw(st.integers(0, len(sound.files[path]) - 1))])


@pytest.mark.slow
@settings(max_examples=times(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_gives_no_wrong_body(sound: Sound, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(sound.files)))
    bit = data.draw(st.integers(0, 8 * len(sound.files[path]) - 1))
    spoilt = bytearray(sound.files[path])
    spoilt[bit // 8] ^= 1 << bit % 8
    check(sound, path, bytes(spoilt))


@settings(max_examples=times(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_of_any_kind_are_read_without_an_error(sound: Sound, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(sound.files)))
    start = data.draw(st.integers(0, 8)) * 32
    try:
        path.write_bytes(sound.files[path][:start] + data.draw(st.binary(max_size=200)))
        messages_at(sound.place)
        messages_at(sound.place, include_acked=True)
        findings_at(sound.place)
    finally:
        path.write_bytes(sound.files[path])


def test_directories_are_values_that_can_be_opened_elsewhere(queue: V2QueueOnDisk, tmp_path: Path) -> None:
    with open_source(str(tmp_path)) as source:
        (found,) = source.vhosts[0].queues
        assert isinstance(found, ClassicV2Directory)
        unstopped = attrs.evolve(found, index=attrs.evolve(found.index, terms=None))
        assert list(unstopped.messages()) == list(found.messages())
