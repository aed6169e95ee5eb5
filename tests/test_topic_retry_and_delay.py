"""Messages that come later: delayed ones, and those that a consumer sends back."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rocketmq_golden import SCENARIOS, records
from tests.support.topic_tools import HERE, THERE, Log, batch
from warren.actors.engines.topics.errors import DelayError, TopicNameError
from warren.actors.engines.topics.names import DELAY, HALF_TOPIC, REAL_QUEUE_ID, REAL_TOPIC, SCHEDULE_TOPIC
from warren.actors.engines.topics.schedule import (
    DelaySchedule,
    deliveries,
    from_scheduled,
    level_of_delay,
    to_scheduled,
)
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import COMMIT, Record, RecordError, decode_properties
from warren.storage.topic_settings import TopicSettings
from warren.verbs.topics.reader_host import sent_back

SETTINGS = TopicSettings()
LEVELS_MS = SETTINGS.delay_levels_ms()


def stored(message: Batch) -> Record:
    (record,) = Log().append(message)
    return record


def said(message: Batch) -> dict[str, str]:
    assert isinstance(message.properties, bytes)
    return decode_properties(message.properties)


# ── delays ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_delayed_message_waits_in_the_queue_of_its_level() -> None:
    waiting = to_scheduled(batch("orders", queue_id=3, properties=b"TAGS\x01x"), 4, SETTINGS)
    assert (waiting.topic, waiting.queue_id) == (SCHEDULE_TOPIC, 3)
    assert waiting.properties == b"TAGS\x01x\x02DELAY\x014\x02REAL_TOPIC\x01orders\x02REAL_QID\x013"


def test_a_level_beyond_the_last_one_is_the_last_one() -> None:
    waiting = to_scheduled(batch(), 19, SETTINGS)
    assert (waiting.queue_id, said(waiting)[DELAY]) == (17, "18")


def test_levels_that_cannot_be() -> None:
    for level in (0, -1):
        with pytest.raises(DelayError):
            to_scheduled(batch(), level, SETTINGS)
    with pytest.raises(DelayError):
        to_scheduled(batch(), 1, TopicSettings(message_delay_level=""))


def test_messages_wait_as_those_that_rocketmq_stored() -> None:
    everything = [found for scenario in SCENARIOS for found in records(scenario)]
    delayed = [found for found in everything if found.get("topic") == SCHEDULE_TOPIC]
    assert delayed
    for found in delayed:
        properties = dict(found["properties"])
        real_topic, real_queue_id = properties.pop(REAL_TOPIC), properties.pop(REAL_QUEUE_ID)
        level = int(properties.pop(DELAY))
        raw = "\x02".join(f"{name}\x01{value}" for name, value in properties.items()).encode()
        waiting = to_scheduled(batch(real_topic, queue_id=int(real_queue_id), properties=raw), level, SETTINGS)
        assert waiting.queue_id == found["queueId"]
        assert said(waiting) == found["properties"]
        assert LEVELS_MS[level - 1] == found["tagsCode"] - found["storeTimestamp"]


def test_every_message_of_a_delayed_batch_says_where_it_belongs() -> None:
    several = attrs.evolve(batch("t", b"1", b"2"), properties=[b"KEYS\x011", b""])
    waiting = to_scheduled(several, 1, SETTINGS)
    assert [decode_properties(each)[REAL_TOPIC] for each in waiting.properties] == ["t", "t"]  # type: ignore[arg-type]
    assert waiting.as_one is False


def test_a_delivered_message_is_what_it_was_but_for_the_properties_of_its_delay() -> None:
    first = batch("orders", b"body", queue_id=3, properties=b"KEYS\x01k", flag=5, sys_flag=1, reconsume_times=2)
    delivered = from_scheduled(stored(to_scheduled(first, 1, SETTINGS)))
    assert attrs.evolve(delivered, properties=first.properties, bodies=first.bodies) == first
    assert delivered.properties == b"KEYS\x01k\x02DELAY\x011\x02REAL_TOPIC\x01orders\x02REAL_QID\x013"
    assert list(delivered.bodies) == [b"body"]


def test_a_delayed_half_message_is_refused_and_the_others_are_delivered() -> None:
    log = Log()
    waiting = [to_scheduled(batch(topic, body), 1, SETTINGS) for topic, body in (("t", b"1"), (HALF_TOPIC, b"x"))]
    waiting += [batch(SCHEDULE_TOPIC, b"y"), to_scheduled(batch("t", b"2"), 1, SETTINGS)]
    delivered, refused = deliveries([record for each in waiting for record in log.append(each)])
    assert [list(each.bodies) for each in delivered] == [[b"1", b"2"]]
    assert len(refused) == 2
    with pytest.raises(RecordError, match="half message"):
        from_scheduled(log.append(waiting[1])[0])


def test_the_level_of_a_delay_is_the_shortest_that_is_long_enough() -> None:
    assert [level_of_delay(ms, SETTINGS) for ms in (0, -1, 1, 1_000, 1_001, 7_200_000)] == [0, 0, 1, 1, 2, 18]
    with pytest.raises(DelayError, match="2h"):
        level_of_delay(7_200_001, SETTINGS)
    assert level_of_delay(2_000, TopicSettings(message_delay_level="1h 5s 10s")) == 2


def codes(*due_ms: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(due_ms, np.int64)


def test_only_what_is_due_is_delivered_and_the_next_time_is_known() -> None:
    schedule = DelaySchedule((1_000, 5_000))
    assert schedule.next_due_ms() == 0  # before the first look
    assert schedule.wanting(10_000) == [1, 2]
    assert schedule.look(2, codes(), 10_000) == 0
    assert schedule.look(1, codes(9_000, 10_000, 10_001, 10_500), 10_000) == 2
    schedule.delivered(1, 2)
    assert (schedule.offset(1), schedule.next_due_ms()) == (2, 10_001)
    assert (schedule.wanting(10_000), schedule.wanting(10_001)) == ([], [1])
    schedule.check_invariants({1: 2, 2: 0})


def test_all_that_was_seen_is_due_so_the_level_is_looked_at_again() -> None:
    schedule = DelaySchedule((1_000,))
    assert schedule.look(1, codes(1, 2), 10) == 2
    schedule.delivered(1, 2)
    assert schedule.wanting(10) == [1]
    assert schedule.look(1, codes(), 10) == 0
    assert schedule.next_due_ms() is None


def test_an_arrival_wakes_an_idle_level_and_no_other() -> None:
    schedule = DelaySchedule((1_000,))
    schedule.look(1, codes(), 10)
    schedule.arrived(1, 1_010)
    schedule.arrived(1, 1_020)
    assert schedule.next_due_ms() == 1_010


def test_a_delivery_that_failed_is_tried_again() -> None:
    schedule = DelaySchedule((1_000,))
    assert schedule.look(1, codes(1, 2, 3, 900), 10) == 3
    schedule.delivered(1, 1)
    assert schedule.wanting(10) == [1]
    assert schedule.offsets == {1: 1}


def test_a_time_that_the_clock_cannot_have_given_is_due_at_once() -> None:
    schedule = DelaySchedule((1_000,))
    assert schedule.look(1, codes(1_001, 900), 0) == 1
    assert schedule.look(1, codes(1_000), 0) == 0
    assert schedule.look(1, codes(-5), 0) == 1


def test_offsets_outside_the_queue_are_corrected() -> None:
    schedule = DelaySchedule((1_000, 5_000, 10_000), {1: 5, 2: 50, 7: 3})
    assert schedule.correct(1, 8, 20) == 3
    assert schedule.correct(2, 8, 20) == 0
    assert schedule.correct(3, 0, 0) == 0
    assert schedule.is_dirty
    assert schedule.offsets == {1: 8, 2: 20, 7: 3}  # a level that the settings do not have keeps its place


@given(st.lists(st.integers(0, 50), max_size=60), st.lists(st.integers(0, 9), max_size=60), st.integers(1, 5))
def test_messages_of_a_level_come_once_each_in_order_and_not_too_early(
    arrivals: list[int], steps: list[int], window: int
) -> None:
    """Arrivals at these times, a look at each step of the clock, and a look for as long as something is due."""
    waiting, schedule, now, seen = sorted(arrivals), DelaySchedule((20,)), 0, list[tuple[int, int]]()
    entries: list[int] = []
    for step in [*steps, 100, 100]:
        now += step
        for time in [time for time in waiting if time <= now][len(entries) :]:
            entries.append(time + 20)
            schedule.arrived(1, time + 20)
        while schedule.wanting(now):
            offset = schedule.offset(1)
            count = schedule.look(1, codes(*entries[offset : offset + window]), now)
            schedule.delivered(1, count)
            seen += [(entries[at], now) for at in range(offset, offset + count)]
        schedule.check_invariants({1: len(entries)})
        due = [time for time in entries if time <= now]
        assert [time for time, _ in seen] == due
        assert schedule.next_due_ms() == (entries[len(due)] if len(due) < len(entries) else None)
    assert len(seen) == len(waiting)


# ── retries ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_retry_waits_ten_seconds_on_its_way_to_the_retry_topic() -> None:
    log = Log()
    log.append(batch("other", b"in front"))
    (record,) = log.append(batch("orders", b"body", properties=b"KEYS\x01k\x02TAGS\x01t"))
    back = sent_back(record, "billing", SETTINGS)
    assert (back.topic, back.queue_id, back.reconsume_times) == (SCHEDULE_TOPIC, 2, 1)
    assert said(back) == {
        "KEYS": "k",
        "TAGS": "t",
        "RETRY_TOPIC": "orders",
        "WAIT": "false",
        "DELAY": "3",
        "ORIGIN_MESSAGE_ID": record.message_id(),
        "REAL_TOPIC": "%RETRY%billing",
        "REAL_QID": "0",
    }
    assert (back.born_host, back.store_host, list(back.bodies)) == (THERE, HERE, [b"body"])
    assert record.message_id().endswith(f"{record.physical_offset:016X}")


def test_attempts_wait_longer_each_time_and_end_with_the_dead_letters() -> None:
    log = Log()
    (record,) = log.append(batch("orders", b"body", queue_id=1))
    first_id, levels = record.message_id(), []
    for attempt in range(1, 17):
        (waiting,) = log.append(sent_back(record, "billing", SETTINGS))
        levels.append(waiting.queue_id + 1)
        (record,) = log.append(from_scheduled(waiting))
        assert (record.topic, record.queue_id, record.reconsume_times) == ("%RETRY%billing", 0, attempt)
    assert levels == list(range(3, 19))
    (dead,) = log.append(sent_back(record, "billing", SETTINGS))
    assert (dead.topic, dead.queue_id, dead.reconsume_times, dead.body) == ("%DLQ%billing", 0, 17, b"body")
    properties = decode_properties(dead.properties)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("orders", first_id)
    assert properties["DELAY"] == "0"
    assert dead.properties.count(b"REAL_TOPIC") == dead.properties.count(b"DELAY") == 1


def test_the_consumer_may_name_the_level() -> None:
    record = stored(batch())
    assert sent_back(record, "g", SETTINGS, delay_level=1).queue_id == 0
    assert sent_back(record, "g", SETTINGS, delay_level=99).queue_id == 17
    assert sent_back(record, "g", SETTINGS, delay_level=-1).topic == "%DLQ%g"


def test_the_group_may_have_its_own_number_of_attempts() -> None:
    record = stored(batch(reconsume_times=2))
    assert sent_back(record, "g", SETTINGS, max_reconsume_times=2).topic == "%DLQ%g"
    assert sent_back(record, "g", SETTINGS, max_reconsume_times=3).topic == SCHEDULE_TOPIC
    assert sent_back(stored(batch()), "g", TopicSettings(max_reconsume_times=0)).topic == "%DLQ%g"


def test_without_delay_levels_a_retry_comes_at_once() -> None:
    back = sent_back(stored(batch()), "g", TopicSettings(message_delay_level=""))
    assert (back.topic, back.queue_id) == ("%RETRY%g", 0)


def test_a_retry_of_a_committed_message_stays_one() -> None:
    back = sent_back(stored(batch(sys_flag=COMMIT | 1, prepared_transaction_offset=77)), "g", SETTINGS)
    assert (back.sys_flag, back.prepared_transaction_offset) == (COMMIT | 1, 0)


def test_a_group_that_cannot_have_a_retry_topic_is_refused() -> None:
    with pytest.raises(TopicNameError):
        sent_back(stored(batch()), "g" * 121, SETTINGS)
