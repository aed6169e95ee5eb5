"""Names, routing and copies of records: the small parts of topics by themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.topic_tools import Log, batch
from warren.actors.engines.topics import names
from warren.actors.engines.topics.errors import QueueRangeError, TopicNameError
from warren.actors.engines.topics.record_copies import copy_of, merged, real_place, with_properties
from warren.actors.engines.topics.routing import TURN_MESSAGES, Part, Router, queue_of_key, queues_of_keys
from warren.msg_store.commit_log.commit_log_format import RecordError, decode_properties
from warren.storage.java_hash import java_hash

# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["a", "orders-2024_x|y", "%RETRY%billing", "t" * 127, names.SCHEDULE_TOPIC])
def test_names_that_a_topic_may_have(name: str) -> None:
    names.check_topic_name(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "..", "a.b", "ü", "٣", "a\n", "t" * 128])
def test_names_that_a_topic_may_not_have(name: str) -> None:
    with pytest.raises(TopicNameError):
        names.check_topic_name(name)


@pytest.mark.parametrize("name", [names.SCHEDULE_TOPIC, names.HALF_TOPIC, names.OP_TOPIC, "TBW102", "rmq_sys_trace"])
def test_users_do_not_append_to_the_stores_own_topics(name: str) -> None:
    with pytest.raises(TopicNameError, match="the store's own"):
        names.check_user_topic(name)


def test_users_append_to_any_other_topic() -> None:
    for name in ("RMQ_SYSTEM", names.retry_topic("g"), names.dead_letter_topic("g")):
        names.check_user_topic(name)


def test_the_longest_group_has_a_retry_topic_that_a_record_can_name() -> None:
    names.check_group_name("g" * 120)
    names.check_topic_name(names.retry_topic("g" * 120))
    with pytest.raises(TopicNameError, match="120 at most"):
        names.check_group_name("g" * 121)


def test_a_groups_topics_bear_its_name() -> None:
    assert names.retry_topic("billing") == "%RETRY%billing"
    assert names.dead_letter_topic("billing") == "%DLQ%billing"


# ── routing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def positions(parts: list[Part]) -> dict[int, list[int]]:
    return {part.queue_id: list(part.positions) for part in parts}


def test_a_key_has_the_queue_that_java_gives_it() -> None:
    # "Aa" and "BB" have one hash; "polygenelubricants" has Java's smallest one, whose absolute value exceeds 32 bits
    assert java_hash("polygenelubricants") == -(2**31)
    assert queue_of_key("polygenelubricants", 7) == 2**31 % 7
    assert queue_of_key("Aa", 5) == queue_of_key("BB", 5) == 2112 % 5
    assert queue_of_key("", 4) == 0


@given(st.lists(st.text(max_size=12), max_size=40), st.integers(1, 9))
def test_many_keys_have_the_queues_of_each(keys: list[str], queues: int) -> None:
    assert list(queues_of_keys(keys, queues)) == [queue_of_key(key, queues) for key in keys]


def test_half_a_surrogate_pair_is_a_key_too() -> None:
    keys = [*"abcdefgh", "\ud83d"]
    assert list(queues_of_keys(keys, 4)) == [queue_of_key(key, 4) for key in keys]


@given(st.lists(st.sampled_from("abcdef"), max_size=40), st.integers(1, 4))
def test_messages_by_key_keep_their_order_in_each_queue(keys: list[str], queues: int) -> None:
    parts = Router(queues).by_keys(keys)
    assert sorted(position for part in parts for position in part.positions) == list(range(len(keys)))
    assert len({part.queue_id for part in parts}) == len(parts)
    bodies = [str(number).encode() for number in range(len(keys))]
    for part in parts:
        assert list(part.positions) == sorted(part.positions)
        assert list(part.of(bodies)) == [bodies[position] for position in part.positions]
        assert {queue_of_key(keys[position], queues) for position in part.positions} == {part.queue_id}


def test_batches_take_turns_and_long_ones_take_several() -> None:
    router = Router(3)
    assert positions(router.in_turn(2)) == {0: [0, 1]}
    assert positions(router.in_turn(1)) == {1: [0]}
    assert router.in_turn(0) == []
    parts = router.in_turn(TURN_MESSAGES * 2 + 1)
    assert [part.queue_id for part in parts] == [2, 0, 1]
    assert [len(part.positions) for part in parts] == [TURN_MESSAGES, TURN_MESSAGES, 1]
    router.check_invariants()


def test_a_whole_batch_is_not_copied() -> None:
    bodies = [b"a", b"b"]
    assert Router(3).in_turn(2)[0].of(bodies) is bodies


def test_a_callable_chooses_and_must_choose_a_queue_that_there_is() -> None:
    router = Router(3)
    assert positions(router.by_choice(4, lambda number: 2 - number % 2)) == {1: [1, 3], 2: [0, 2]}
    for wrong in (3, -1, "0", 1.0, None):
        with pytest.raises(QueueRangeError):
            router.by_choice(1, lambda _, wrong=wrong: wrong)  # type: ignore[misc]


def test_a_queue_can_be_named() -> None:
    router = Router(2)
    assert positions(router.to_queue(3, 1)) == {1: [0, 1, 2]}
    with pytest.raises(QueueRangeError):
        router.to_queue(1, 2)
    with pytest.raises(QueueRangeError):
        Router(0)


# ── copies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_property_that_is_set_goes_to_the_end_and_the_rest_keeps_its_bytes() -> None:
    raw = b"KEYS\x01a\x01b\x02DELAY\x013\x02\x02odd\x02TAGS\x01\xff\x02DELAY\x014\x02"
    changed = with_properties(raw, {"DELAY": "5", "REAL_TOPIC": "t"})
    assert changed == b"KEYS\x01a\x01b\x02\x02odd\x02TAGS\x01\xff\x02DELAY\x015\x02REAL_TOPIC\x01t"
    assert with_properties(b"", {"A": "1"}) == b"A\x011"
    assert with_properties(raw, {}) is raw


def test_properties_that_are_nothing_but_what_is_set_anew() -> None:
    assert with_properties(b"A\x010", {"A": "1"}) == b"A\x011"
    assert with_properties(b"A", {"A": "1"}) == b"A\x011", "a name without a value"


@given(st.binary(max_size=30), st.dictionaries(st.sampled_from("ABC"), st.text("xyz", min_size=1, max_size=3)))
def test_what_was_set_is_read_back_and_nothing_else_changes(raw: bytes, changes: dict[str, str]) -> None:
    assert decode_properties(with_properties(raw, changes)) == decode_properties(raw) | changes


def test_a_copy_keeps_what_the_message_is() -> None:
    (record,) = Log().append(batch("t", b"\x00body", flag=7, reconsume_times=3, sys_flag=1))
    copy = copy_of(record, topic="u", queue_id=1, properties=b"p\x011")
    assert (copy.topic, copy.queue_id, copy.bodies, copy.properties) == ("u", 1, (b"\x00body",), b"p\x011")
    assert (copy.flag, copy.reconsume_times, copy.sys_flag, copy.prepared_transaction_offset) == (7, 3, 1, 0)
    assert (copy.born_timestamp, copy.born_host, copy.store_host) == (
        record.born_timestamp,
        record.born_host,
        record.store_host,
    )


@pytest.mark.parametrize("said", ["", "-1", "x", "1.0", "٣", "1" * 10])
def test_a_waiting_record_must_say_where_it_belongs(said: str) -> None:
    properties = b"REAL_TOPIC\x01t\x02REAL_QID\x01" + said.encode()
    (record,) = Log().append(batch(properties=properties))
    with pytest.raises(RecordError, match="does not say where it belongs"):
        real_place(record)


def test_neighbours_alike_become_one_batch() -> None:
    one, two, other = batch("t", b"1"), batch("t", b"2", properties=b"a\x01b"), batch("u", b"3")
    found = merged([one, two, other, one])
    assert [(each.topic, list(each.bodies)) for each in found] == [("t", [b"1", b"2"]), ("u", [b"3"]), ("t", [b"1"])]
    assert found[0].properties == [b"", b"a\x01b"]
    assert found[0].as_one is False
    assert merged([]) == []
