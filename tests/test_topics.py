"""Topics of a whole node, each situation by its name: a clock and a pool in the test's hands, a disk in memory."""

from __future__ import annotations

import datetime
import logging
import random
import struct
from collections.abc import Iterable
from typing import Any

import attrs
import pytest

import warren
from tests.support.runtime_tools import HandNode, hand_node
from warren import Topic, TopicRecord
from warren.actors.clock import HandClock
from warren.actors.engines.topics.errors import (
    DelayError,
    MemberError,
    QueueLostError,
    QueueRangeError,
    TopicError,
    TopicNameError,
    TransactionError,
)
from warren.actors.engines.topics.topic_store import FOR_EVER_MS
from warren.actors.node.node_actor import Probes
from warren.actors.node.node_context import BlockedError
from warren.actors.node.node_errors import TopicsDownError
from warren.actors.runtime.future import Future
from warren.actors.runtime.pooled_actor import ActorStoppedError
from warren.msg_store.commit_log.commit_log_format import (
    MAX_PROPERTIES_BYTES,
    MESSAGE_MAGIC_V2,
    RecordError,
    decode,
    encode,
)
from warren.queue_index.topics.consume_queue_format import ENTRY_BYTES
from warren.queue_index.topics.key_index import KeyIndex
from warren.storage.errors import DirectoryLockedError, DiskFullError, MessageError, StorageError
from warren.storage.faults import SimulatedCrash
from warren.storage.java_hash import index_hash
from warren.storage.memory import MemoryFileSystem
from warren.testing import Machine
from warren.verbs.steps import run

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 15,
    "mapped_file_size_consume_queue": 20 * 50,
    "max_hash_slot_num": 16,
    "max_index_num": 60,
    "max_message_size": 1 << 14,
}
LOG = "/data/topics/commitlog/*"


@attrs.define
class DiskMachine(Machine):
    """A machine whose disk may be used."""

    used_percent: float = 0.0

    def probes(self) -> Probes:
        return attrs.evolve(super().probes(), used_disk_percent=lambda: self.used_percent)


def opened(files: MemoryFileSystem | None = None, clock: HandClock | None = None, **more: Any) -> HandNode:
    """A node with small files, on a disk that knows what time it is."""
    clock = HandClock() if clock is None else clock
    if files is None:
        files = MemoryFileSystem(random.Random(0), now_ms=lambda: clock.wall_us() // 1000)
    hand = hand_node(files, clock=clock, **SMALL | more)
    hand.run()
    return hand


def after_kill(hand: HandNode, **more: Any) -> HandNode:
    return opened(hand.kill(), hand.clock, **more)


def after_stop(hand: HandNode, **more: Any) -> HandNode:
    hand.node.close()
    return opened(hand.files.after_process_crash(), hand.clock, **more)


def bodies(records: Iterable[TopicRecord]) -> list[bytes]:
    return [record.body for record in records]


def everything(topic: Topic, group: str = "check") -> list[bytes]:
    """What a group reads; it has read it then."""
    return [record.body for record in topic.read(group)]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


# ── appending ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_append_says_where_the_message_went() -> None:
    hand = opened()
    topic = hand.node.topic("orders", queues=2)
    first = topic.append(b"one", key="k", tag="t", properties={"colour": "red"}, queue=1)
    assert not first.done
    place = first.wait()
    assert (place.topic, place.queue_id, place.queue_offset, place.physical_offset) == ("orders", 1, 0, 0)
    second = topic.append(b"two", queue=1).wait()
    assert (second.queue_offset, second.physical_offset) == (1, place.size)
    record = topic.get(1, 0)
    assert (record.body, record.key, record.tag, record.properties["colour"]) == (b"one", "k", "t", "red")
    assert (record.topic, record.queue_id, record.queue_offset, record.attempts) == ("orders", 1, 0, 0)
    assert record.stored_at == record.born_at == hand.node._running.now_ms() / 1000
    assert record.message_id.endswith(f"{place.physical_offset:016X}")
    with pytest.raises(LookupError):
        topic.get(1, 2)
    with pytest.raises(LookupError):
        topic.get(7, 0)
    assert topic.offsets() == {0: (0, 0), 1: (0, 2)}
    assert hand.node.topics() == {"orders": 2}


def test_queues_are_chosen_in_turn_by_key_and_by_a_callable() -> None:
    topic = opened().node.topic("t", queues=4)
    assert [topic.append(b"x").wait().queue_id for _ in range(5)] == [0, 1, 2, 3, 0]
    by_key = {key: topic.append(b"x", key=key).wait().queue_id for key in "abcdefgh"}
    assert by_key == {key: ord(key) % 4 for key in "abcdefgh"}
    assert topic.append(b"x", key=["c", "d"]).wait().queue_id == by_key["c"]
    assert topic.append(b"xyz", queue=len).wait().queue_id == 3
    assert topic.append(b"x", key="a", queue=2).wait().queue_id == 2


def test_append_many_keeps_the_order_of_each_queue_and_says_every_position() -> None:
    topic = opened().node.topic("t", queues=4)
    keys = [random.Random(1).choice("abcdef") for _ in range(40)]
    confirm = topic.append_many(numbered(40), keys=keys, tags=["even", None] * 20)
    positions = confirm.wait()
    assert len(positions) == 40
    for number, (key, place) in enumerate(zip(keys, positions, strict=True)):
        assert place.queue_id == ord(key) % 4
        record = topic.get(place.queue_id, place.queue_offset)
        assert (record.body, record.key, record.tag) == (b"%d" % number, key, None if number % 2 else "even")
        assert record.record.physical_offset == place.physical_offset
        assert record.record.size == place.size
    assert positions[-1] == positions[39]
    assert positions[3:5] == [positions[3], positions[4]]
    assert {place.queue_id for place in topic.append_many(numbered(10)).wait()} == {0}
    assert {place.queue_id for place in topic.append_many(numbered(10)).wait()} == {1}
    assert list(topic.append_many([]).wait()) == []


def test_records_go_on_in_the_next_file_and_are_all_found() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    sent = [b"%d" % number + b"." * 700 for number in range(300)]
    for start in range(0, 300, 30):
        topic.append_many(sent[start : start + 30])
    topic.sync()
    hand.run()
    assert len(hand.files.list("/data/topics/commitlog")) > 5
    assert len(hand.files.list("/data/topics/consumequeue/t/0")) == 6
    assert everything(topic) == sent
    after = after_stop(hand)
    assert everything(after.node.topic("t"), "another") == sent


@pytest.mark.parametrize(("sync", "at_once"), [("os", True), ("group", False), ("always", True)])
def test_a_confirm_comes_when_the_message_is_as_safe_as_the_mode_says(sync: str, at_once: bool) -> None:
    hand = opened(sync=sync)
    topic = hand.node.topic("t", queues=1)
    topic.append(b"0").wait()
    hand.advance(20)
    synced = len([kind for kind, path in hand.files.plan.log if kind == "sync" and "commitlog" in path])
    confirm = topic.append(b"1")
    hand.run()
    assert confirm.done == at_once
    now = len([kind for kind, path in hand.files.plan.log if kind == "sync" and "commitlog" in path])
    assert now == synced + (sync == "always")
    hand.advance(11)  # without a sync, a page that is not full waits for the thorough interval, ten seconds
    assert confirm.done
    files = hand.lose_power(random.Random(3))
    assert everything(opened(files, hand.clock).node.topic("t")) == [b"0", b"1"]


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["group", "always"])
def test_what_was_confirmed_outlives_a_power_loss(sync: str) -> None:
    for seed in range(20):
        hand = opened(sync=sync)
        topic = hand.node.topic("t", queues=2)
        for number in range(10):
            topic.append_many(numbered(20, number * 20), keys=["k"] * 20).wait()
        topic.append(b"perhaps", key="k")
        after = opened(hand.lose_power(random.Random(seed)), hand.clock, seed=seed)
        found = everything(after.node.topic("t"))
        assert found in (numbered(200), [*numbered(200), b"perhaps"])
        assert len(after.node.topic("t").find("k", limit=500)) == len(found)


def test_flush_disk_type_goes_before_the_nodes_sync() -> None:
    hand = opened(sync="always", flush_disk_type="ASYNC_FLUSH")
    topic = hand.node.topic("t")
    topic.append(b"x")
    hand.run()
    assert not [path for kind, path in hand.files.plan.log if kind == "sync" and path.endswith("/0" * 20)]
    log = topic._verbs.node.topics_now().log.store.commit_log
    hand.advance(5)
    assert log.has_unflushed  # less than flush_commit_log_least_pages
    topic.append_many([bytes(1000)] * 20)
    hand.run()
    assert log.has_unflushed
    hand.advance(0.5)
    assert not log.has_unflushed
    topic.append(b"y")
    hand.advance(10.5)  # flush_commit_log_thorough_interval
    assert not log.has_unflushed


def test_sync_comes_back_when_everything_is_on_the_disk_whatever_the_mode() -> None:
    hand = opened(sync="os")
    topic = hand.node.topic("t")
    topic.append(b"x")
    topic.sync()
    assert not topic._verbs.node.topics_now().log.store.commit_log.has_unflushed


def test_what_cannot_be_stored_is_refused_and_changes_nothing() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=2)
    refusals: list[dict[str, Any]] = [
        {"body": bytes(1 << 14)},
        {"body": b"x", "properties": {"p": "v" * MAX_PROPERTIES_BYTES}},
        {"body": b"x", "properties": {"KEYS": "mine"}},
        {"body": b"x", "properties": {"a\x01b": "c"}},
        {"body": b"x", "key": "two words"},
        {"body": b"x", "key": ""},
        {"body": b"x", "key": "a\x02b"},
    ]
    for refused in refusals:
        with pytest.raises(MessageError):
            topic.append(**refused)
    with pytest.raises(MessageError):
        topic.append_many([b"1", b"2"], keys=["a"])
    with pytest.raises(MessageError):
        topic.append_many([b"1", bytes(1 << 14)])
    for queue in (2, -1):
        with pytest.raises(QueueRangeError):
            topic.append(b"x", queue=queue)
    with pytest.raises(DelayError):
        topic.append(b"x", delay=7_201)
    with pytest.raises(DelayError):
        topic.append(b"x", delay_level=-1)
    for name in ("", "a/b", "x" * 128, "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"):
        with pytest.raises(TopicNameError):
            hand.node.topic(name)
    for queues in (0, 1 << 17):
        with pytest.raises(QueueRangeError):
            hand.node.topic("other", queues=queues)
    assert topic.offsets() == {0: (0, 0), 1: (0, 0)}
    assert topic.append(b"fine", queue=0).wait().physical_offset == 0


def test_a_long_topic_of_rocketmq_5_can_be_read_but_not_appended_to() -> None:
    hand = opened()
    hand.node.topic("short", queues=1).append(b"first").wait()
    files = hand.kill()
    path = f"/data/topics/commitlog/{0:020d}"
    first = decode(files.read(path), 0)
    long = "L" * 200
    record = attrs.evolve(first, topic=long, physical_offset=first.size, body=b"long", magic=MESSAGE_MAGIC_V2)
    files.open_append(path).pwrite(encode(record), first.size)
    node = opened(files, hand.clock).node
    assert node.topics() == {"short": 1, long: 1}
    topic = node.topic(long)
    assert everything(topic, "group") == [b"long"]
    assert topic.get(0, 0).body == b"long"
    for refused in (
        lambda: topic.append(b"x"),
        lambda: topic.append(b"x", delay=1),
        lambda: topic.append_many([b"x"]),
        lambda: topic.prepare(b"x"),
    ):
        with pytest.raises(MessageError, match="200 characters"):
            refused()
    with pytest.raises(TopicNameError):
        node.topic("M" * 200)


@pytest.mark.parametrize("most", ["max_message_size", "mapped_file_size_commit_log"])
def test_the_largest_message_there_can_be_is_stored_and_one_byte_more_refused(most: str) -> None:
    hand = opened(None, None, **{most: 4096})
    topic = hand.node.topic("t", queues=1)
    room = 4096 - 91 - 1 - (8 if most == "mapped_file_size_commit_log" else 0)
    largest = bytes(room)
    with pytest.raises(MessageError):
        topic.append(largest + b"x")
    topic.append(largest).wait()
    topic.append_many([largest] * 3).wait()
    assert everything(topic) == [largest] * 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t", "t" * 100])
@pytest.mark.parametrize("most", ["max_message_size", "mapped_file_size_commit_log"])
def test_a_message_that_fits_only_without_its_delay_or_transaction_is_refused_at_once(name: str, most: str) -> None:
    """It would be confirmed, and lost when it is due."""
    hand = opened(None, None, **{most: 4096})
    topic = hand.node.topic(name, queues=1)
    accepted = refused = 0
    for size in [*range(4096 - 500, 4096 - 90, 7), *range(4096 - 260, 4096 - 130)]:
        for append in (lambda body: topic.append(body, delay_level=1), lambda body: topic.prepare(body).commit()):
            try:
                append(bytes(size)).wait()
            except MessageError:
                refused += 1
            else:
                accepted += 1
    hand.advance(2)
    assert accepted > 10 < refused
    assert len(everything(topic)) == accepted


def test_a_topic_gets_more_queues_and_every_handle_knows() -> None:
    hand = opened()
    old = hand.node.topic("t", queues=2)
    reader = old.reader("g")
    assert reader.queues() == [0, 1]
    broadcast = old.reader("b", broadcast=True)
    new = hand.node.topic("t", queues=5)
    assert hand.node.topic("t", queues=3).queues == old.queues == new.queues == 5
    assert old.append(b"e", key="e").wait().queue_id == new.append(b"e", key="e").wait().queue_id == ord("e") % 5
    assert old.append(b"last", queue=4).wait().queue_offset == 0
    assert reader.queues() == [0, 1, 2, 3, 4]
    assert sorted(bodies(reader.read())) == sorted(bodies(broadcast.read())) == [b"e", b"e", b"last"]
    assert after_stop(hand).node.topic("t").queues == 5


def test_flag_born_time_and_hosts_are_stored_and_read() -> None:
    hand = opened(broker_ip1="10.1.2.3", listen_port=10911)
    topic = hand.node.topic("t", queues=1)
    origin: dict[str, Any] = {"flag": -7, "born_at": 1_700_000_000.25, "born_host": "[2001:db8::1]:50555"}
    topic.append(b"plain").wait()
    topic.append(b"one", **origin).wait()
    topic.append_many([b"two", b"three"], **origin).wait()
    topic.prepare(b"half", **origin).commit().wait()
    topic.append(b"late", delay_level=1, **origin).wait()
    hand.advance(2)
    plain, *others = topic.read("g")
    assert (plain.flag, plain.born_host, plain.store_host) == (0, "127.0.0.1:0", "10.1.2.3:10911")
    assert [record.body for record in others] == [b"one", b"two", b"three", b"half", b"late"]
    for record in others:
        assert (record.flag, record.born_at, record.store_host) == (-7, 1_700_000_000.25, "10.1.2.3:10911")
        assert record.born_host == "[2001:db8:0:0:0:0:0:1]:50555"
    for wrong in ({"flag": 1 << 31}, {"born_at": -1}, {"born_host": "nowhere"}, {"born_host": "10.0.0.1:70000"}):
        with pytest.raises(MessageError):
            topic.append(b"no", **wrong)


def test_a_message_is_found_by_its_physical_offset_and_by_its_id() -> None:
    topic = opened(broker_ip1="2001:db8::1").node.topic("t", queues=1)
    places = [confirm.wait() for confirm in [topic.append(b"%d" % number) for number in range(3)]]
    for number, place in enumerate(places):
        record = topic.message_at(place.physical_offset)
        assert (record.body, record.physical_offset) == (b"%d" % number, place.physical_offset)
        assert len(record.message_id) == 56
        assert topic.view_message(record.message_id.lower()).body == record.body
    of_another_store = places[0].physical_offset.to_bytes(24, "big").hex().rjust(56, "0")
    for wrong in (places[0].physical_offset + 1, 1 << 40, -1):
        with pytest.raises(LookupError):
            topic.message_at(wrong)
    with pytest.raises(LookupError):
        topic.view_message(of_another_store)
    with pytest.raises(RecordError, match="no message id"):
        topic.view_message("xyz")
    with pytest.raises(LookupError):
        opened().node.topic("other").message_at(0)


@pytest.mark.slow
def test_the_commit_log_lies_on_another_disk_and_is_never_taken_for_lost() -> None:
    hand = opened(store_path_root_dir="/fast/store", store_path_commit_log="/large/log")
    hand.node.topic("t", queues=1).append_many(numbered(3), keys=["k"] * 3).wait()
    assert not hand.files.exists("/data/topics")
    assert [path for path in hand.files.contents() if path.startswith("/large/log/0")]
    with pytest.raises(DirectoryLockedError, match=r"/large/log\.warren\.lock"):
        opened(hand.files, hand.clock, path="/other", store_path_commit_log="/large/log").node.topic("t")
    forgotten = after_stop(hand, store_path_root_dir="/fast/store")
    with pytest.raises(TopicsDownError, match="store_path_commit_log"):
        forgotten.node.topic("t")
    again = after_stop(forgotten, store_path_root_dir="/fast/store", store_path_commit_log="/large/log")
    assert everything(again.node.topic("t")) == numbered(3)
    killed = after_kill(again, store_path_root_dir="/fast/store", store_path_commit_log="/large/log")
    assert len(killed.node.topic("t").find("k")) == 3


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_committed_offsets_outlive_a_restart_and_a_kill_takes_back_to_those_written_down() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    topic.append_many(numbered(10)).wait()
    assert [record.body for record in topic.read("g", max_records=4)] == numbered(4)
    hand.advance(6)
    assert [record.body for record in topic.read("g", max_records=2)] == numbered(2, 4)
    hand = after_kill(hand)
    topic = hand.node.topic("t")
    assert [record.body for record in topic.read("g", max_records=3)] == numbered(3, 4)
    hand = after_stop(hand)
    assert everything(hand.node.topic("t"), "g") == numbered(3, 7)
    assert b'"t@g":{0:7' in hand.files.read("/data/topics/config/consumerOffset.json")


def test_offsets_of_messages_that_a_power_loss_took_do_not_hide_those_that_get_their_numbers() -> None:
    hand = opened(sync="os", flush_interval_commit_log=60_000)
    topic = hand.node.topic("t", queues=1)
    topic.append_many(numbered(10)).wait()
    topic.sync()
    topic.append_many(numbered(10, 10)).wait()
    assert everything(topic, "g") == numbered(20)
    hand.advance(6)  # offsets are written down, the messages are not
    for seed in range(30):
        after = opened(hand.lose_power(random.Random(seed)), hand.clock)
        topic = after.node.topic("t")
        left = topic.offsets()[0][1]
        if left < 20:
            break
    else:
        raise AssertionError("no power loss took a message")
    topic.append_many(numbered(30, 100)).wait()
    assert everything(topic, "g") == numbered(30, 100)


def test_a_group_begins_where_it_is_told_to() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=2)
    for number in range(10):
        topic.append(b"%d" % number, queue=0).wait()
        hand.advance(1)
    assert everything(topic, "first") == numbered(10)
    moment = hand.node._running.now_ms() / 1000 - 4
    assert [record.body for record in topic.read("time", consume_from=moment)] == numbered(4, 6)
    assert [record.body for record in topic.read("place", consume_from={0: 7, 1: 0})] == numbered(3, 7)
    late = topic.reader("last", consume_from="last")
    assert late.read() == []
    topic.append(b"new", queue=1).wait()
    assert bodies(late.read()) == [b"new"]
    assert everything(topic, "place") == [b"new"]
    with pytest.raises(TopicNameError):
        topic.reader("no/group")
    with pytest.raises(TopicNameError):
        topic.reader("")


def test_last_means_behind_what_is_appended_and_not_dispatched_yet() -> None:
    hand = opened(sync="os")
    topic = hand.node.topic("t", queues=1)
    topic.append_many(numbered(5))
    topic._verbs.node.topics_now().log.turns.run()
    assert topic._verbs.node.topics_now().log.store.dispatched < topic._verbs.node.topics_now().log.store.commit_log.end
    readers = [topic.reader("g", consume_from="last"), topic.reader("b", broadcast=True, consume_from="last")]
    topic.append(b"new").wait()
    assert [bodies(reader.read()) for reader in readers] == [[b"new"], [b"new"]]


def test_seek_goes_to_a_place_a_time_or_an_end() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=2)
    for number in range(10):
        topic.append(b"%d" % number, queue=number % 2).wait()
        hand.advance(1)
    reader = topic.reader("g", auto_commit=False)
    records = reader.read()
    assert topic.seek("g", "first") == {0: 0, 1: 0}
    with pytest.raises(QueueLostError):
        records[0].commit()
    assert len(reader.read()) == 10
    assert topic.seek("g", "last") == {0: 5, 1: 5}
    assert reader.read() == []
    assert topic.seek("g", hand.node._running.now_ms() / 1000 - 3.5) == {0: 4, 1: 3}
    assert bodies(reader.read()) == [b"8", b"7", b"9"]
    assert topic.seek("g", 4) == {0: 4, 1: 4}
    assert topic.seek("g", {1: 2}) == {1: 2}
    assert topic.lag("g") == {0: 1, 1: 3}
    assert bodies(reader.read()) == [b"8", b"5", b"7", b"9"]
    assert topic.seek("nobody", "last") == {0: 5, 1: 5}
    for place in (6, {0: -1}, {2: 0}):
        with pytest.raises(QueueRangeError):
            topic.seek("g", place)
    with pytest.raises(TopicNameError):
        topic.seek("a@b", "first")


def test_a_reader_that_waits_is_woken_by_an_arrival_a_commit_or_the_end() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    reader = topic.reader("g")
    assert reader.read(timeout=5) == []  # no thread is left that could append
    topic.append(b"x")
    assert bodies(reader.read(timeout=5)) == [b"x"]
    assert bodies(topic.reader("b", broadcast=True).read(timeout=5)) == [b"x"]


def test_tags_choose_by_the_tag_itself_and_not_by_its_hash() -> None:
    topic = opened().node.topic("t", queues=2)
    tags = ["Aa", "BB", None, "c", "Aa"] * 4
    topic.append_many(numbered(20), tags=tags, queue=0).wait()
    assert [int(record.body) % 5 for record in topic.read("g", tags="Aa")] == [0, 4] * 4
    assert topic.lag("g") == {0: 0, 1: 0}
    assert [int(record.body) % 5 for record in topic.read("h", tags="BB || c")] == [1, 3] * 4
    assert len(list(topic.read("i", tags="*"))) == 20
    assert len(list(topic.read("j", tags=["c", "Aa"]))) == 12
    assert list(topic.read("k", tags="none")) == []
    assert topic.lag("k") == {0: 0, 1: 0}
    broadcast = topic.reader("l", broadcast=True, tags="c")
    assert len(broadcast.read()) == 4
    assert broadcast.positions == {0: 20, 1: 0}


def test_nothing_is_read_from_after_the_end_of_a_queue() -> None:
    topic = opened().node.topic("t", queues=1)
    topic.append_many(numbered(3)).wait()
    for broadcast in (False, True):
        with pytest.raises(QueueRangeError, match="holds 0 to 3, not 4"):
            topic.reader("g", consume_from={0: 4}, broadcast=broadcast).read()
    assert topic.reader("g", consume_from={0: 3}).read() == []
    with pytest.raises(QueueRangeError, match="ends at 3, before 4"):
        topic.pull(0, 4)
    assert topic.pull(0, 3) == []


def test_tags_are_matched_if_an_entry_has_an_extension_address_in_place_of_their_hash() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    topic.append_many(numbered(4), tags=["a", "b", None, "a"]).wait()
    assert len(list(topic.read("all"))) == 4
    queue = hand.node._running.topics_now().store.queues["t", 0]
    addresses = [number * 32 - (1 << 63) for number in range(4)]
    entries = [(int(entry["physical_offset"]), int(entry["size"])) for entry in queue.entries(0, 4)]
    for number, (entry, address) in enumerate(zip(entries, addresses, strict=True)):
        queue.mapped.write(number * ENTRY_BYTES, struct.pack(">qiq", *entry, address))
    assert bodies(topic.read("g", tags="a")) == [b"0", b"3"]
    assert bodies(topic.read("h", tags=["b", "c"])) == [b"1"]


@pytest.mark.parametrize("crash", [False, True])
def test_broadcast_readers_go_on_where_they_were_after_a_restart(crash: bool) -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=2)
    topic.append_many(numbered(3), queue=0)
    topic.append_many(numbered(3, 10), queue=1).wait()
    first, second = topic.reader("cache", broadcast=True), topic.reader("cache", broadcast=True, auto_commit=False)
    assert len(first.read()) == 6
    second.read()[4].commit()
    first.commit()
    assert topic.groups() == {}
    assert {name: found["committed"] for name, found in topic.groups(broadcast=True).items()} == {
        "cache@DEFAULT": {0: 3, 1: 3},
        "cache@DEFAULT-2": {0: 0, 1: 2},
    }
    assert topic.lag("cache", broadcast=True, instance_name="DEFAULT-2") == {0: 3, 1: 1}
    hand.advance(6)
    hand = after_kill(hand) if crash else after_stop(hand)
    topic = hand.node.topic("t")
    topic.append(b"new", queue=1).wait()
    with topic.reader("cache", broadcast=True) as reader:
        assert bodies(reader.read()) == [b"new"]
    with topic.reader("cache", broadcast=True, instance_name="DEFAULT-2") as reader:
        assert bodies(reader.read()) == [*numbered(3), b"12", b"new"]
    with topic.reader("other", broadcast=True, consume_from="last") as reader:
        assert reader.read() == []
    contents = hand.files.contents()
    assert "/data/topics/offsets/DEFAULT-2/cache/offsets.json" in contents
    assert b"cache" not in contents.get("/data/topics/config/consumerOffset.json", b"")


def test_what_a_broadcast_reader_read_and_did_not_finish_comes_again() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    topic.append_many(numbered(4)).wait()
    reader = topic.reader("cache", broadcast=True, auto_commit=False)
    assert len(reader.read(2)) == 2
    reader.close()
    assert bodies(topic.reader("cache", broadcast=True).read()) == numbered(4)


def test_a_broadcast_group_is_sought_as_others_are() -> None:
    topic = opened().node.topic("t", queues=2)
    for queue in range(2):
        topic.append_many(numbered(3, 10 * queue), queue=queue).wait()
    reader = topic.reader("cache", broadcast=True)
    assert len(reader.read()) == 6
    assert topic.seek("cache", {1: 1}, broadcast=True) == {1: 1}
    assert bodies(reader.read()) == [b"11", b"12"]
    assert topic.seek("cache", "last", broadcast=True, instance_name="later") == {0: 3, 1: 3}
    assert topic.reader("cache", broadcast=True, instance_name="later").read() == []
    with pytest.raises(MemberError, match="reads 't' already"):
        topic.reader("cache", broadcast=True, instance_name="later")
    with pytest.raises(TopicError, match="only broadcast readers"):
        topic.reader("cache", instance_name="later")
    with pytest.raises(TopicNameError):
        topic.reader("cache", broadcast=True, instance_name="../etc")


def test_damaged_offsets_of_a_broadcast_reader_are_said_to_it_alone() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    topic.append(b"x").wait()
    for instance in ("good", "bad"):
        with topic.reader("cache", broadcast=True, instance_name=instance) as reader:
            reader.read()
    hand.node.close()
    files = hand.files.after_process_crash()
    place = "/data/topics/offsets/bad/cache/offsets.json"
    size = files.size(place)
    handle = files.open_append(place)
    handle.truncate(size - 10)
    handle.close()
    topic = opened(files, hand.clock).node.topic("t")
    assert topic.reader("cache", broadcast=True, instance_name="good").read() == []
    with pytest.raises(TopicError, match=place):
        topic.reader("cache", broadcast=True, instance_name="bad")
    assert files.size(place) == size - 10
    assert bodies(topic.reader("another").read()) == [b"x"]


# ── finding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_find_answers_exactly_though_hashes_collide() -> None:
    topic = opened().node.topic("t", queues=1)
    for number, key in enumerate(["Aa", "BB", "Aa", "C"] * 5):
        topic.append(b"%d" % number, key=[key, key, "all"])
    topic.sync()
    assert bodies(topic.find("Aa")) == [b"%d" % number for number in range(18, -1, -2)]
    assert bodies(topic.find("BB", limit=2)) == [b"17", b"13"]
    assert bodies(topic.find("all")) == numbered(20)[::-1]
    assert len(topic.find("Aa", exact=False)) == 30  # twice each, and the others
    assert bodies(topic.find("none")) == bodies(topic.find("Aa", limit=0)) == []
    assert opened().node.topic("other").find("Aa") == []


def test_an_index_file_that_is_copied_while_it_is_filled_answers_a_second_later() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    topic.append_many(numbered(5), keys=["a", "b"] * 2 + ["a"]).wait()
    hand.advance(1.1)
    copied = KeyIndex.load(
        hand.files.after_process_crash(),
        "/data/topics/index",
        max_hash_slot_num=SMALL["max_hash_slot_num"],
        max_index_num=SMALL["max_index_num"],
        new_name=str,
        writable=False,
    )
    assert len(copied.query(index_hash("t#a"), 10, 0, FOR_EVER_MS)) == 3


def test_find_keeps_to_the_times_to_the_millisecond_over_many_index_files() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    start_ms = hand.node._running.now_ms()
    rng = random.Random(7)
    times = []
    for number in range(200):
        hand.advance(rng.choice([0.0, 0.001, 0.4, 3.0]))
        times.append(hand.node._running.now_ms())
        topic.append(b"%d" % number, key="k").wait()
    assert len(hand.files.list("/data/topics/index")) > 3
    for _ in range(60):
        begin, end = sorted(rng.choices([*times, start_ms, start_ms + 10**6], k=2))
        wanted = [b"%d" % number for number, at in enumerate(times) if begin <= at <= end][::-1]
        assert bodies(topic.find("k", begin=begin / 1000, end=end / 1000, limit=1000)) == wanted
        assert bodies(topic.find("k", begin=begin / 1000, end=end / 1000, limit=5)) == wanted[:5]


def test_offset_at_is_the_first_message_of_that_time_or_later() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=2)
    times = []
    for number in range(120):
        if number % 3:
            hand.advance(0.5)
        times.append(hand.node._running.now_ms())
        topic.append(b"%d" % number, queue=0).wait()
    for moment in [times[0] - 1, *times[::7], times[-1] + 1]:
        wanted = sum(at < moment for at in times)
        assert topic.offset_at(moment / 1000) == {0: wanted, 1: 0}


# ── retries and delays ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_message_that_is_sent_back_comes_later_each_time_and_ends_with_the_dead_letters() -> None:
    hand = opened(max_reconsume_times=3)
    topic = hand.node.topic("orders", queues=2)
    topic.append(b"bad", key="k", tag="t", queue=1).wait()
    reader = topic.reader("g", tags="t")
    [record] = reader.read()
    first_id = record.message_id
    for attempt, delay in ((1, 10), (2, 30), (3, 60)):
        record.retry()
        hand.advance(delay - 0.1)
        assert reader.read() == []
        hand.advance(0.2)
        [record] = reader.read()
        assert (record.body, record.topic, record.attempts, record.key, record.tag) == (
            b"bad", "orders", attempt, "k", "t",
        )  # fmt: skip
        assert record.record.topic == "%RETRY%g"
    record.retry()
    hand.advance(7200)
    assert reader.read() == []
    [dead] = hand.node.topic("%DLQ%g").read("undertaker")
    assert (dead.body, dead.attempts, dead.properties["ORIGIN_MESSAGE_ID"]) == (b"bad", 4, first_id)
    assert hand.node.topics() == {"orders": 2, "%RETRY%g": 1, "%DLQ%g": 1, "%RETRY%undertaker": 1}
    assert topic.lag("g") == {0: 0, 1: 0}


@pytest.mark.parametrize("consume_from", ["last", {0: 3}, 3])
def test_retries_come_wherever_the_group_began(consume_from: Any) -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    topic.append_many(numbered(3)).wait()
    reader = topic.reader("g", consume_from=consume_from)
    topic.append(b"x").wait()
    [record] = reader.read()
    record.retry(delay_level=1)
    hand.advance(2)
    assert bodies(reader.read()) == [b"x"]


def test_a_message_that_cannot_be_sent_back_says_so() -> None:
    hand = opened(max_message_size=4096)
    topic = hand.node.topic("t", queues=1)
    topic.append(bytes(4096 - 92)).wait()
    reader = topic.reader("g")
    [record] = reader.read()
    with pytest.raises(warren.WarrenError, match="maxMessageSize"):
        record.retry()
    assert reader.read() == []
    assert topic._verbs.node.topics_now().log.actor_inbox.weight == 0


def test_delayed_messages_come_when_they_are_due_in_their_order() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    reader = topic.reader("g")
    place = topic.append(b"5s", delay=2, key="k").wait()
    assert (place.topic, place.queue_id) == ("SCHEDULE_TOPIC_XXXX", 1)
    topic.append(b"now", delay=0)
    topic.append(b"1s", delay_level=1)
    topic.append(b"1s too", delay=0.3).wait()
    assert bodies(reader.read()) == [b"now"]
    assert topic.find("k") == []
    hand.advance(0.999)
    assert reader.read() == []
    hand.advance(0.1)
    assert bodies(reader.read()) == [b"1s", b"1s too"]
    hand.advance(3.8)
    assert reader.read() == []
    hand.advance(0.2)
    [last] = reader.read()
    assert (last.body, last.key, last.queue_id) == (b"5s", "k", 0)
    assert bodies(topic.find("k")) == [b"5s"]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_delayed_messages_outlive_a_restart_and_come_once(how: str) -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=2)
    for number in range(600):
        topic.append(b"%d" % number, delay_level=1 + number % 2)
    topic.sync()
    hand.advance(1.5)
    hand.advance(11 if how == "kill" else 0.1)  # the offsets are written down every ten seconds
    topic.append(b"late", delay_level=4).wait()
    hand = after_stop(hand) if how == "stop" else after_kill(hand)
    hand.clock.advance(3600)  # no node runs meanwhile
    hand = after_kill(hand)
    hand.run()
    hand.advance(0.1)
    found = everything(hand.node.topic("t"))
    assert sorted(found) == sorted([*numbered(600), b"late"])
    assert sorted(hand.files.read("/data/topics/config/delayOffset.json")[:14]) == sorted(b'{\n\t"offsetTabl')


def test_a_delayed_message_that_cannot_be_delivered_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """Stored under larger limits than those of today: RocketMQ passes over it, too."""
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    for body in (b"1", bytes(5000), b"2"):
        topic.append(body, delay_level=1).wait()
    hand = after_stop(hand, max_message_size=1000)
    hand.advance(2)
    topic = hand.node.topic("t")
    assert everything(topic) == [b"1", b"2"]
    assert "not delivered" in caplog.text
    topic.append(b"3", delay_level=1).wait()
    hand.advance(2)
    assert everything(topic) == [b"3"]
    assert topic._verbs.node.topics_now().log.actor_inbox.weight == 0
    hand = after_kill(hand, max_message_size=1000)
    hand.advance(10)


def test_a_delayed_message_that_is_damaged_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    places = [topic.append(body, delay_level=1).wait() for body in (b"1", b"broken", b"2")]
    hand.run()
    handle = hand.files.open_append("/data/topics/commitlog/" + "0" * 20)
    handle.pwrite(b"\xff\xff\xff", places[1].physical_offset + 4)
    hand.advance(2)
    assert everything(topic) == [b"1", b"2"]
    assert "not delivered" in caplog.text


# ── transactions ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_transaction_that_is_being_decided_cannot_be_decided_again() -> None:
    hand = opened()
    transaction = hand.node.topic("t").prepare(b"x")
    first, second = transaction.commit(), transaction.rollback()
    first.wait()
    with pytest.raises(TransactionError):
        second.wait()
    assert everything(hand.node.topic("t")) == [b"x"]


@pytest.mark.parametrize("waits", [True, False])
def test_a_committed_message_takes_its_place_when_the_commit_is_carried_out(waits: bool) -> None:
    hand = opened()
    topic = hand.node.topic("t")
    confirm = topic.prepare(b"committed", queue=0).commit()
    if waits:
        confirm.wait()
    topic.append(b"appended", queue=0).wait()
    confirm.wait()
    found = [b"committed", b"appended"]
    assert everything(topic) == (found if waits else found[::-1])


@pytest.mark.parametrize("how", ["stop", "kill", "late kill"])
def test_pending_transactions_outlive_a_restart(how: str) -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    transactions = [topic.prepare(body) for body in numbered(6)]
    transactions[0].commit().wait()
    transactions[3].rollback().wait()
    if how == "late kill":
        hand.advance(20)  # how far both topics are done is written down
    hand = after_stop(hand) if how == "stop" else after_kill(hand)
    topic = hand.node.topic("t")
    pending = hand.node.pending_transactions()
    assert [one.message.body for one in pending] == [b"1", b"2", b"4", b"5"]
    pending[0].rollback().wait()
    pending[1].commit().wait()
    pending[3].commit().wait()
    hand = after_kill(hand)
    assert [one.message.body for one in hand.node.pending_transactions()] == [b"4"]
    assert everything(hand.node.topic("t")) == [b"0", b"2", b"5"]


def test_a_damaged_half_message_does_not_take_the_topics_down(caplog: pytest.LogCaptureFixture) -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    transactions = [topic.prepare(body) for body in numbered(3)]
    hand = after_stop(hand)
    handle = hand.files.open_append("/data/topics/commitlog/" + "0" * 20)
    half_at = transactions[1]._verbs.host.place.physical_offset
    handle.pwrite(b"\xff\xff\xff", half_at + 91 - 8)  # the topic's length, or near it
    hand.node.topic("t").append(b"x").wait()
    assert everything(hand.node.topic("t")) == [b"x"]
    assert len(hand.node.pending_transactions()) >= 2


# ── expiry ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def filled(hand: HandNode, count: int = 400) -> Topic:
    topic = hand.node.topic("t", queues=1)
    for start in range(0, count, 20):
        topic.append_many([b"%d" % number + b"." * 500 for number in range(start, start + 20)], keys=["k"] * 20)
    topic.sync()
    hand.run()
    return topic


def test_old_files_go_in_their_hour_and_readers_go_on_behind_them() -> None:
    three = datetime.datetime(2026, 6, 1, 3).timestamp()  # local time, as the setting's
    clock = HandClock(round(three * 1_000_000))
    hand = opened(clock=clock, file_reserved_time=1, delete_when="04")
    topic = filled(hand)
    reader = topic.reader("g")
    assert len(reader.read(30)) == 30
    files = hand.files.list("/data/topics/commitlog")
    assert len(files) == 8
    hand.advance(3590)
    assert hand.files.list("/data/topics/commitlog") == files
    hand.advance(30)
    assert hand.files.list("/data/topics/commitlog") == files[-1:]  # never the last one
    first, last = topic.offsets()[0]
    assert last == 400
    assert 300 < first < 400
    assert len(hand.files.list("/data/topics/consumequeue/t/0")) == (400 - first // 50 * 50 + 49) // 50
    records = reader.read(500)
    assert bodies(records) == [b"%d" % number + b"." * 500 for number in range(first, 400)]
    assert reader.skipped == first - 30
    assert topic.lag("late") == {0: 400 - first}
    assert len(everything(topic, "late")) == 400 - first
    assert [record.queue_offset for record in topic.find("k", limit=1000)] == list(range(399, first - 1, -1))
    assert topic.offset_at(0.0) == {0: first}
    with pytest.raises(LookupError):
        topic.get(0, first - 1)
    with pytest.raises(QueueRangeError):
        topic.seek("g", first - 1)
    hand = after_kill(hand)
    topic = hand.node.topic("t")
    assert topic.offsets() == {0: (first, 400)}
    assert topic.append(b"more").wait().queue_offset == 400


@pytest.mark.slow
def test_a_full_disk_takes_old_files_at_any_hour_and_young_ones_when_it_is_nearly_full() -> None:
    machine = DiskMachine()
    hand = opened(machine=machine, file_reserved_time=1, delete_when="23")
    topic = filled(hand)
    assert len(hand.files.list("/data/topics/commitlog")) == 8
    machine.used_percent = 80.0
    hand.advance(60)
    assert len(hand.files.list("/data/topics/commitlog")) == 8
    machine.used_percent = 90.0
    hand.advance(11)
    assert len(hand.files.list("/data/topics/commitlog")) == 1
    machine.used_percent = 80.0
    filled(hand)
    hand.advance(7200)
    assert len(hand.files.list("/data/topics/commitlog")) == 1
    assert len(everything(topic)) > 0


def test_files_that_go_between_the_taking_and_the_reading_cost_only_their_own_messages() -> None:
    hand = opened()
    topic = filled(hand)
    reader = topic.reader("g")
    running = hand.node._running.topics_now()
    membership = run(reader._verbs._now())
    taking = run(membership.take(500))
    taking.get()
    base = running.store.commit_log.mapped.bases[-1]
    for one in running.store.commit_log.mapped.bases[:-1]:
        running.store.commit_log._delete(one)
    running.store.expire_queues()
    assert running.store.queues["t", 0].mapped.min_offset > 0
    [records], _ = run(membership.fetch(taking.get()))
    assert records[0].unpack().physical_offset == base
    assert records[-1].queue_offsets[-1] == 399


def test_delayed_messages_that_expire_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "warren")
    machine = DiskMachine()
    hand = opened(machine=machine)
    topic = hand.node.topic("t", queues=1)
    for number in range(300):
        topic.append(b"%d" % number + b"." * 500, delay_level=5)
    topic.sync()
    machine.used_percent = 90.0
    hand.advance(30)
    machine.used_percent = 0.0
    topic.append(b"later", delay_level=5).wait()
    hand.advance(100)
    found = everything(topic)
    assert found[-1] == b"later"
    assert 1 < len(found) < 100
    assert "expired before they were delivered" in caplog.text


# ── alarms, and a disk that fails ───────────────────────────────────────────────────────────────────────────────────


def test_an_alarm_holds_appends_and_not_reads() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    topic.append(b"before").wait()
    transaction = topic.prepare(b"pending")
    hand.machine.used_bytes = 9 << 30
    hand.advance(10)
    assert hand.node._running.gate.reasons == {"memory"}
    for append in (lambda: topic.append(b"x", block=False), lambda: topic.append_many([b"x"], timeout=0.0)):
        with pytest.raises(BlockedError):
            append()
    with pytest.raises(BlockedError):
        topic.append(b"x")  # no thread is left that could help
    assert everything(topic) == [b"before"]
    transaction.commit().wait()
    topic.append(b"late", delay=0, block=False) if not hand.node._running.gate.reasons else None
    hand.machine.used_bytes = 0
    hand.advance(10)
    topic.append(b"after").wait()
    assert everything(topic) == [b"pending", b"after"]


def test_a_publisher_that_is_ahead_does_the_work_itself() -> None:
    hand = opened(credit_flow_default_credit=(10, 5))
    topic = hand.node.topic("t", queues=1)
    for number in range(25):
        topic.append(b"%d" % number)
    assert 0 < topic._verbs.node.topics_now().log.actor_inbox.weight <= 10
    assert topic._verbs.node.topics_now().log.store.commit_log.end > 0
    topic.append_many(numbered(100, 25)).wait()
    assert everything(topic) == numbered(125)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "pattern"), [("pwrite", LOG), ("sync", LOG), ("create", "/data/topics/commitlog/*"), ("truncate", LOG)]
)
def test_topics_of_a_disk_that_fails_once_are_opened_anew_and_nothing_confirmed_is_lost(
    kind: str, pattern: str
) -> None:
    hand = opened(sync="always")
    topic = hand.node.topic("t", queues=1)
    queue = hand.node.queue("q")
    reader = topic.reader("g", auto_commit=False)
    confirmed, failed = [], 0
    for number in range(200):
        body = b"%d" % number + b"." * 600
        if number == 50:
            old = reader.read()
            hand.files.fail(kind, pattern)
        try:
            topic.append(body).wait()
        except (StorageError, ActorStoppedError):
            failed += 1
            hand.run()
        else:
            confirmed.append(body)
    assert failed == 1
    assert [body for body in everything(topic) if body in confirmed] == confirmed
    with pytest.raises(QueueLostError):
        old[0].commit()
    again = bodies(reader.read(1000))
    assert [body for body in again if body in confirmed] == confirmed
    reader.commit()
    assert topic.lag("g") == {0: 0}
    queue.publish(b"unharmed").wait()
    hand = after_kill(hand)
    assert [body for body in everything(hand.node.topic("t"), "h") if body in confirmed] == confirmed


def test_appends_that_fail_together_are_all_told() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=4)
    confirms: list[Any] = [topic.append(b"%d" % number) for number in range(10)]
    confirms.append(topic.append_many(numbered(10)))
    hand.files.fail("pwrite", LOG)
    hand.run()
    for confirm in confirms:
        assert confirm.done
        with pytest.raises((StorageError, ActorStoppedError)):
            confirm.wait()
    topic.append(b"again", queue=0).wait()
    found = everything(topic)
    assert found.count(b"again") == 1
    assert len(found) <= 21  # what was torn may be there


def test_a_disk_that_goes_on_failing_takes_the_topics_down_and_the_queues_go_on() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    reader = topic.reader("g")
    topic.append(b"x").wait()
    hand.files.fail("pwrite", LOG, times=1000)
    for _ in range(10):
        try:
            topic.append(b"y").wait()
        except TopicsDownError:
            break
        except (StorageError, ActorStoppedError):
            hand.run()
    else:
        raise AssertionError("the topics are still tried")
    for use in (lambda: topic.append(b"z"), lambda: hand.node.topic("u"), reader.read, hand.node.topics):
        with pytest.raises(TopicsDownError):
            use()
    assert hand.node.stats()["topics"]["down"]
    queue = hand.node.queue("q")
    queue.publish(b"unharmed").wait()
    assert len(queue) == 1
    reader.close()
    after = after_kill(hand)
    assert everything(after.node.topic("t")) == [b"x"]


def test_a_full_disk_costs_nothing_that_was_confirmed() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    topic.append(b"0").wait()
    queue = hand.node.queue("q")
    queue.publish(b"there").wait()
    hand.files.capacity_bytes = hand.files.used_bytes
    failed = False
    for _ in range(100):
        try:
            topic.append(b"." * 600).wait()
        except DiskFullError:
            failed = True
            hand.run()
            break
    assert failed
    assert len(queue) == 1
    hand.files.capacity_bytes = None
    queue.publish(b"unharmed").wait()
    hand = after_stop(hand)
    topic = hand.node.topic("t")
    topic.append(b"1").wait()
    found = everything(topic)
    assert (found[0], found[-1]) == (b"0", b"1")


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "delayOffset.json"])
def test_damaged_settings_of_the_topics_take_them_down_alone(name: str) -> None:
    hand = opened()
    hand.node.topic("t").append(b"x").wait()
    hand.node.queue("q").publish(b"y").wait()
    hand.node.close()
    files = hand.files.after_process_crash()
    for path in (f"/data/topics/config/{name}", f"/data/topics/config/{name}.bak"):
        if files.exists(path):
            files.delete(path)
    handle = files.open_append(f"/data/topics/config/{name}")
    handle.append(b"no json")
    handle.close()
    hand = opened(files, hand.clock)
    with pytest.raises(TopicsDownError, match=name):
        hand.node.topic("t")
    assert len(hand.node.queue("q")) == 1
    running = [ref for ref in warren_actors(hand) if "topics" in ref.describe()]
    assert running == []
    hand.node.close()


def warren_actors(hand: HandNode) -> list[Any]:
    from pykka import ActorRegistry

    from warren.actors.runtime.inbox import Inbox
    from warren.actors.runtime.pooled_actor import Turns

    owners = [ref.actor_inbox.owner for ref in ActorRegistry.get_all() if isinstance(ref.actor_inbox, Inbox)]
    return [owner.actor for owner in owners if isinstance(owner, Turns) and owner.line is hand.pool]


# ── restarts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_without_topics_makes_no_directory_for_them() -> None:
    hand = opened()
    assert hand.node.topics() == {}
    assert hand.node.pending_transactions() == []
    assert not hand.files.exists("/data/topics")
    with pytest.raises(TopicNameError):
        hand.node.topic("no name")


def test_everything_is_there_after_a_clean_stop_and_after_a_kill() -> None:
    hand = opened()
    for round_number in range(6):
        topics = [hand.node.topic(name, queues=2) for name in ("a", "b")]
        for topic in topics:
            topic.append_many(numbered(40, round_number * 40), keys=["k", "l"] * 20).wait()
            assert sorted(everything(topic, "g"), key=int) == numbered(40, round_number * 40)
            assert len(topic.find("k", limit=1000)) == 20 * (round_number + 1)
        hand.advance(6)
        hand = after_stop(hand) if round_number % 2 else after_kill(hand)
    topic = hand.node.topic("a")
    assert sorted(everything(topic), key=int) == numbered(240)
    assert hand.node.topics() == {"a": 2, "b": 2, "%RETRY%g": 1, "%RETRY%check": 1}


def test_the_end_of_the_node_answers_everybody_who_waits() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    reader = topic.reader("g")
    iterator = topic.reader("h").records()
    topic.append(b"x").wait()
    next(iterator)
    confirm = topic.append(b"y")
    log = topic._verbs.node.topics_now().log
    hand.node.close()
    assert confirm.wait().queue_offset == 1
    for use in (lambda: topic.append(b"z"), reader.read, lambda: topic.find("k"), hand.node.topics, topic.sync):
        with pytest.raises(warren.WarrenError):
            use()
    with pytest.raises(ActorStoppedError):
        log.intake.append(warren.AppendConfirm(topic._verbs._key, 0, b"late", b""))
    reader.close()
    iterator.close()  # type: ignore[attr-defined]
    after = opened(hand.files.after_process_crash(), hand.clock)
    assert everything(after.node.topic("t")) == [b"x", b"y"]


def test_an_append_that_races_the_end_is_there() -> None:
    """What is in the log's inbox after the call that closes it is stored, and later appends are refused."""
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    running = hand.node._running.topics_now()
    from warren.actors.runtime.inbox import Call

    closing = running.log.actor_ref.ask(Call(running.log.close), block=False)
    late: list[Any] = [topic.append(b"late"), topic.append_many([b"late"])]
    hand.run()
    assert isinstance(closing, Future)
    assert closing.done
    for one in late:
        one.wait()
    with pytest.raises(ActorStoppedError):
        topic.append(b"later")


def test_a_reader_of_its_groups_retries_reads_them_once() -> None:
    hand = opened()
    topic = hand.node.topic("t", queues=1)
    topic.append(b"x").wait()
    with topic.reader("g") as reader:
        [record] = reader.read()
        record.retry(delay_level=1)
    hand.advance(2)
    assert everything(hand.node.topic("%RETRY%g"), "g") == [b"x"]


# ── a crash anywhere ────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class Life:
    """What a node reported to its user before it crashed."""

    once: set[bytes] = attrs.Factory(set)
    """Appended, or committed: there, and once."""
    at_least_once: set[bytes] = attrs.Factory(set)
    """Delayed: a delivery that was not written down comes again."""
    read: set[bytes] = attrs.Factory(set)

    def live(self, hand: HandNode) -> None:
        topic = hand.node.topic("t", queues=2)
        for number in range(4):
            topic.append(b"single-%d" % number, key="k").wait()
            self.once.add(b"single-%d" % number)
            many = [b"many-%d-%d" % (number, one) for one in range(40)]
            topic.append_many(many, keys=["k", "l"] * 20).wait()
            self.once.update(many)
            topic.append(b"delayed-%d" % number, delay_level=1).wait()
            self.at_least_once.add(b"delayed-%d" % number)
            transaction = topic.prepare(b"half-%d" % number)
            if number % 2:
                transaction.commit().wait()
                self.at_least_once.add(b"half-%d" % number)
            else:
                transaction.rollback().wait()
            for record in topic.read("g", max_records=30):
                self.read.add(record.body)
            hand.advance(6)
        hand.node.close()


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_operation_loses_nothing_that_anybody_was_told(power: bool) -> None:
    operations = crashes = 0
    while True:
        operations += 9
        hand, life = opened(), Life()
        hand.files.crash_at(operations, torn=bool(operations % 2))
        try:
            life.live(hand)
            break
        except SimulatedCrash:
            crashes += 1
        hand = opened(hand.lose_power(random.Random(operations)) if power else hand.kill(), hand.clock, seed=operations)
        hand.advance(2)
        topic = hand.node.topic("t", queues=2)
        found = everything(topic)
        assert life.once | life.at_least_once <= set(found)
        assert all(found.count(body) == 1 for body in set(found) if body.startswith((b"single", b"many")))
        assert not [body for body in found if body in (b"half-0", b"half-2")]
        assert {*everything(topic, "g"), *life.read} >= life.once | life.at_least_once
        keyed = {record.body for record in topic.find("k", limit=1000)}
        assert keyed == {one for one in found if one.startswith(b"single") or (one[-1:] in b"02468" and b"many" in one)}
    assert crashes > 20


def test_half_a_surrogate_pair_is_no_key() -> None:
    topic = opened().node.topic("t")
    for refused in (["fine", "\ud800"], ["\udfff", "fine"]):
        with pytest.raises(MessageError):
            topic.append_many([b"1", b"2"], keys=refused)
    with pytest.raises(MessageError):
        topic.append(b"x", key="\ud800")
    assert topic.append(b"x", key="\U0001f600").wait().queue_offset == 0


def test_messages_of_many_keys_have_the_properties_of_single_ones() -> None:
    topic = opened().node.topic("t", queues=1)
    keys = ["order-1", "é\U0001f600", "k"]
    arguments: list[dict[str, Any]] = [{}, {"tag": "ä", "properties": {"a": "b\n"}}]
    for given in arguments:
        together = topic.append_many([b"x"] * len(keys), keys=keys, **given).wait()
        singly = [topic.append(b"x", key=key, **given).wait() for key in keys]
        found = [topic.get(0, at.queue_offset).record.properties for at in [*together, *singly]]
        assert found[: len(keys)] == found[len(keys) :]
        assert len(set(found)) == len(keys)
    assert not list(topic.append_many([], keys=[]).wait())
    for refused in ("", "a b", "a\0b"):
        with pytest.raises(MessageError):
            topic.append_many([b"x", b"y"], keys=["fine", refused])


def test_what_dispatch_cannot_read_is_told_and_what_follows_in_the_next_file_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "warren")
    hand = opened(mapped_file_size_commit_log=4096)
    topic = hand.node.topic("t", queues=1)
    topic.append_many([bytes(900)] * 5)
    hand.pool.run()
    log = hand.node._running.topics_now().store.commit_log
    log.mapped.write(996, bytes(4))  # the magic of the second record, before its first read
    found = everything(topic)
    assert len(found) < 5
    assert found[-1] == bytes(900)
    assert "the dispatch stopped here" in caplog.text
