"""Readers of topics, on threads and in an event loop alike: what comes, what comes again, and what is done."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import warren
from tests.support.both_ways import both_ways, both_ways_by_hand, done, entered, listed, some, up_to
from tests.support.runtime_tools import SMALL, HandNode
from warren.actors.engines.topics.errors import MemberError, QueueLostError, TopicError
from warren.actors.topics.log_upkeep import LogUpkeep
from warren.storage.errors import DataError

LOG = "/data/topics/commitlog/" + "0" * 20


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


async def filled(node: Any, count: int, queues: int = 1) -> Any:
    """A topic with ``count`` messages in each queue; those of queue 1 begin at 10, of queue 2 at 20."""
    topic = await done(node.topic("events", queues=queues))
    for queue in range(queues):
        await done(topic.append_many(numbers(count, 10 * queue), queue=queue))
    return topic


async def bodies(records: Any) -> list[bytes]:
    return [one.body for one in await done(records)]


async def bodies_read(topic: Any, group: str, **arguments: Any) -> list[bytes]:
    return [one.body for one in await listed(topic.read(group, **arguments))]


async def committed(topic: Any, group: str) -> dict[int, int]:
    return dict((await done(topic.groups()))[group]["committed"])


async def leave(records: Any) -> None:
    await done(records.aclose() if hasattr(records, "aclose") else records.close())


# ── what is done ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@both_ways
async def test_what_read_brought_is_done_with_the_next_call_or_at_the_end(node: Any) -> None:
    topic = await filled(node, 6)
    async with entered(topic.reader("g")) as reader:
        assert await bodies(reader.read(2)) == [b"0", b"1"]
        assert await done(topic.lag("g")) == {0: 6}
        assert await bodies(reader.read(2)) == [b"2", b"3"]
        assert await done(topic.lag("g")) == {0: 4}
    assert await done(topic.lag("g")) == {0: 2}
    with pytest.raises(RuntimeError, match="on purpose"):  # noqa: PT012
        async with entered(topic.reader("g")) as reader:
            await done(reader.read(2))
            raise RuntimeError("on purpose")
    assert await bodies_read(topic, "g") == [b"4", b"5"]
    assert (await done(topic.groups()))["g"]["members"] == {}


@both_ways
async def test_a_read_brings_bodies_at_once_and_records_when_they_are_asked_for(node: Any) -> None:
    topic = await filled(node, 4, queues=2)
    async with entered(topic.reader("g", auto_commit=False)) as reader:
        batch = await done(reader.read(8))
        assert (len(batch), sorted(batch.bodies)) == (8, [b"0", b"1", b"10", b"11", b"12", b"13", b"2", b"3"])
        assert [record.body for record in batch] == batch.bodies
        assert [record.body for record in [*batch[6:], batch[0]]] == [*batch.bodies[6:], batch.bodies[0]]
        assert batch == list(batch)
        batch.bodies.clear()
        assert len(batch.bodies) == 8
        await done(batch[1].commit())
        assert sorted((await done(topic.lag("g"))).values()) == [2, 4]
        none = await done(reader.read(8))
        assert not none
        assert (none.bodies, none) == ([], [])


@pytest.mark.slow
@both_ways
async def test_without_auto_commit_only_what_is_committed_is_done(node: Any) -> None:
    topic = await filled(node, 300)
    async with entered(topic.reader("g", auto_commit=False)) as reader:
        one, two, three = await done(reader.read(3))
        await done(two.commit())
        assert await committed(topic, "g") == {0: 2}
        await done(one.commit())  # is no step back
        assert await committed(topic, "g") == {0: 2}
        await done(reader.read(2))
        await done(reader.commit())
        assert await committed(topic, "g") == {0: 5}
        records = reader.records()
        seen = await some(records, 290)  # after the first batch
        await done(seen[9].commit())
        assert await committed(topic, "g") == {0: 15}  # and not where the iteration is
        await leave(records)
        await done(reader.commit())
        assert await committed(topic, "g") == {0: 294}
        await done(seen[-1].commit())
        assert await committed(topic, "g") == {0: 295}
        assert await bodies(reader.read()) == numbers(5, 295)
        assert (await done(topic.groups()))["g"]["members"] == {reader.name: [0]}
    assert await bodies_read(topic, "g") == numbers(5, 295)
    assert three.body == b"2"


@pytest.mark.slow
@both_ways
async def test_a_commit_in_a_loop_is_of_all_that_the_loop_got(node: Any) -> None:
    topic = await filled(node, 5)
    async with entered(topic.reader("g", auto_commit=False)) as reader:
        records = reader.records()
        for count in range(1, 5):
            await some(records, 1)
            await done(reader.commit())
            assert await committed(topic, "g") == {0: count}


@pytest.mark.slow
@both_ways
async def test_a_loop_that_is_left_gets_its_message_again(node: Any) -> None:
    topic = await filled(node, 10)
    async with entered(topic.reader("g")) as reader:
        await up_to(reader.records(), b"1")
        assert await bodies(reader.read(2)) == [b"1", b"2"]
        assert await committed(topic, "g") == {0: 1}
        records = reader.records(1)
        assert [one.body for one in await listed(records)] == [b"3"]
        assert await committed(topic, "g") == {0: 4}
        left = reader.records()
        assert [one.body for one in await some(left, 2)] == [b"4", b"5"]
        assert [one.body for one in await listed(reader.records(3))] == [b"5", b"6", b"7"]
        assert [one.body for one in await some(left, 2)] == [b"8", b"9"]  # it starts again
        await leave(left)
        assert await committed(topic, "g") == {0: 9}
    assert await bodies_read(topic, "g") == [b"9"]


@pytest.mark.slow
@both_ways
async def test_a_loop_over_a_topic_that_is_left_leaves_the_group(node: Any) -> None:
    topic = await filled(node, 10)

    async def members() -> Any:
        return (await done(topic.groups()))["g"]["members"]

    await up_to(topic.read("g"), b"4")
    while await members():  # an event loop closes the generator when it comes round
        await asyncio.sleep(0)
    assert await committed(topic, "g") == {0: 4}
    with pytest.raises(AssertionError, match="did not come"):
        await up_to(topic.read("g", max_records=3), b"9")
    assert await committed(topic, "g") == {0: 7}
    assert await bodies_read(topic, "g") == numbers(3, 7)
    assert await members() == {}


@both_ways
async def test_what_was_read_before_a_loop_is_not_lost_behind_it(node: Any) -> None:
    """A read in the middle of an iteration begins with what the iteration did not do."""
    topic = await filled(node, 6)
    async with entered(topic.reader("g")) as reader:
        records = reader.records()
        await some(records, 2)
        assert await bodies(reader.read(2)) == [b"1", b"2"]
        assert [one.body for one in await some(records, 1)] == [b"3"]
    assert await bodies_read(topic, "g") == [b"3", b"4", b"5"]


@both_ways
async def test_a_message_can_be_committed_when_its_loop_was_left(node: Any) -> None:
    topic = await filled(node, 4)
    async with entered(topic.reader("g", auto_commit=False)) as reader:
        record = await up_to(reader, b"2")
        await done(reader.commit())
        assert await committed(topic, "g") == {0: 2}  # it may have been left by an error
        await done(record.commit())
        assert await committed(topic, "g") == {0: 3}
        assert await bodies(reader.read()) == [b"3"]


@both_ways
async def test_a_closed_reader_reads_no_more_and_its_loop_ends(node: Any) -> None:
    topic = await filled(node, 3)
    reader = topic.reader("g")
    records = reader.records(timeout=None)
    assert [one.body for one in await some(records, 1)] == [b"0"]
    await done(reader.close())
    await done(reader.close())
    assert await listed(records) == []
    assert await listed(reader) == []
    for verb in (reader.read, reader.commit, reader.queues):
        with pytest.raises(MemberError):
            await done(verb())
    assert await bodies_read(topic, "g") == numbers(3)


# ── what each reader gets ───────────────────────────────────────────────────────────────────────────────────────────


@both_ways
async def test_queues_are_shared_and_what_another_one_has_cannot_be_committed(node: Any) -> None:
    topic = await filled(node, 3, queues=2)
    async with entered(topic.reader("g", auto_commit=False)) as one:
        assert await done(one.queues()) == [0, 1]
        records = await done(one.read())
        await done(records[4].commit())
        async with entered(topic.reader("g", auto_commit=False)) as other:
            assert (await done(one.queues()), await done(other.queues())) == ([0], [1])
            assert (await done(topic.groups()))["g"]["members"] == {one.name: [0], other.name: [1]}
            assert await bodies(other.read()) == [b"12"]
            await done(records[1].commit())
            with pytest.raises(QueueLostError):
                await done(one.commit())
            with pytest.raises(QueueLostError):
                await done(records[5].commit())
            assert await committed(topic, "g") == {0: 3, 1: 2}
        assert await done(one.queues()) == [0, 1]
        assert await bodies(one.read()) == [b"12"]
        await done(one.commit())
    assert await done(topic.lag("g")) == {0: 0, 1: 0}


@pytest.mark.slow
@both_ways
async def test_a_reader_notes_that_a_queue_was_lost_and_goes_on(node: Any) -> None:
    topic = await filled(node, 4, queues=2)
    async with entered(topic.reader("g")) as one:
        records = one.records()
        assert [record.body for record in await some(records, 2)] == numbers(2)
        async with entered(topic.reader("g")) as other:
            await leave(records)
            assert await bodies(one.read(2)) == numbers(2, 1)
            assert await bodies(other.read()) == numbers(4, 10)
            assert await bodies(one.read()) == [b"3"]
            assert await done(topic.lag("g")) == {0: 1, 1: 4}
    assert await done(topic.lag("g")) == {0: 0, 1: 0}


@pytest.mark.slow
@both_ways
async def test_what_tags_leave_out_is_done_but_not_what_was_read_before_it(node: Any) -> None:
    topic = await done(node.topic("events", queues=1))
    tags = ["b", "a", "b", "a", "b", "b", "b"]
    await done(topic.append_many(numbers(7), tags=tags))
    async with entered(topic.reader("g", tags="a", auto_commit=False)) as reader:
        one, two = await done(reader.read(5))
        assert await done(reader.read()) == []
        assert await committed(topic, "g") == {0: 0}
        await done(one.commit())
        assert await committed(topic, "g") == {0: 3}
        await done(two.commit())
        assert await committed(topic, "g") == {0: 7}
        await done(topic.append(b"b", tag="b"))
        assert await done(reader.read()) == []
        assert await committed(topic, "g") == {0: 8}
    async with entered(topic.reader("h", tags="a", auto_commit=False)) as reader:
        await done(reader.read(5))
        assert await done(reader.read()) == []
        await done(reader.commit())
        assert await done(topic.lag("h")) == {0: 0}


@pytest.mark.slow
@both_ways
async def test_a_broadcast_reader_keeps_its_own_positions(node: Any) -> None:
    topic = await filled(node, 3, queues=2)
    async with entered(topic.reader("", broadcast=True)) as one, entered(topic.reader("", broadcast=True)) as two:
        assert await bodies(one.read()) == [*numbers(3), *numbers(3, 10)]
        assert one.positions == {0: 3, 1: 3}
        record = await up_to(two.records(), b"10")
        assert two.positions == {0: 3, 1: 0}
        await done(record.commit())
        assert two.positions == {0: 3, 1: 1}
        with pytest.raises(TopicError):
            await done(record.retry())
        assert await done(two.queues()) == [0, 1]
        positions = two.positions
    async with entered(topic.reader("", broadcast=True, positions=positions)) as three:
        assert await bodies(three.read()) == [b"11", b"12"]
        assert await done(topic.groups()) == {}
    async with entered(topic.reader("", broadcast=True, consume_from="last", positions={0: 99})) as four:
        assert four.positions == {0: 3, 1: 3}
        await done(topic.append(b"more", queue=1))
        assert await bodies(four.read()) == [b"more"]
    [found] = await listed(topic.read("any", max_records=1))
    assert found.body == b"0"
    with pytest.raises(TopicError, match="not read for a group"):
        await done((await done(topic.get(0, 0))).commit())


@pytest.mark.slow
@both_ways
async def test_whoever_reads_or_asks_does_not_depend_on_how_far_the_index_is(node: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogUpkeep, "dispatch_soon", lambda _: None)
        topic = await done(node.topic("events", queues=1))
        await done(topic.append(b"0"))
        async with entered(topic.reader("late", consume_from="last")) as late:
            await done(topic.append(b"1"))
            assert await bodies_read(topic, "g") == [b"0", b"1"]
            assert await bodies(late.read()) == [b"1"]
        await done(topic.append(b"2", key="k"))
        assert await bodies(topic.find("k")) == [b"2"]
        await done(topic.append(b"3"))
        assert await done(topic.offsets()) == {0: (0, 4)}
        await done(topic.append(b"4"))
        assert await done(topic.lag("g")) == {0: 3}
        await done(topic.append(b"5"))
        assert (await done(topic.get(0, 5))).body == b"5"
        await done(topic.append(b"6"))
        assert await done(topic.offset_at(2.0**40)) == {0: 7}
        await done((await done(topic.prepare(b"7"))).commit())
        assert await done(topic.lag("g")) == {0: 6}


@both_ways_by_hand(**SMALL)
async def test_a_forgotten_reader_leaves_when_nobody_has_a_record_of_it_either(node: Any, hand: HandNode) -> None:
    topic = await filled(node, 3, queues=2)
    reader = topic.reader("g", auto_commit=False)
    record = (await done(reader.read(2)))[0]
    del reader
    gc.collect()
    async with entered(topic.reader("g")) as other:
        assert await done(other.queues()) == [1]
        await done(record.commit())
        del record
        gc.collect()
        hand.run()
        assert await done(other.queues()) == [0, 1]
        assert await bodies(other.read()) == [*numbers(2, 1), *numbers(3, 10)]


# ── what goes wrong ─────────────────────────────────────────────────────────────────────────────────────────────────


@both_ways_by_hand(**SMALL)
async def test_a_damaged_message_is_an_error_in_its_turn_until_the_group_is_sought_behind_it(
    node: Any, hand: HandNode
) -> None:
    topic = await filled(node, 10)
    assert await done(topic.offsets()) == {0: (0, 10)}  # the entries are there before the damage
    place = (await done(topic.get(0, 4))).physical_offset
    hand.files.open_append(LOG).pwrite(b"\0\0\0\0", place + 4)
    for group, one_by_one, broadcast in (
        ("a", False, False),
        ("b", True, False),
        ("c", False, True),
        ("d", True, True),
    ):
        async with entered(topic.reader(group, broadcast=broadcast)) as reader:
            records = reader.records()
            before = await some(records, 4) if one_by_one else await done(reader.read())
            assert [one.body for one in before] == numbers(4)
            for going_on in (records, reader.records()):
                with pytest.raises(DataError, match="from message 4 on"):
                    await (some(going_on, 1) if one_by_one else done(reader.read()))
            assert reader.positions == ({0: 4} if broadcast else {})
            assert await done(topic.lag(group, broadcast=broadcast)) == {0: 6}
            await done(topic.seek(group, 5, broadcast=broadcast))
            assert (await done(reader.read()))[0].body == b"5"


@both_ways_by_hand(**SMALL)
async def test_messages_of_other_queues_are_not_lost_on_one_that_cannot_be_read(node: Any, hand: HandNode) -> None:
    topic = await filled(node, 3, queues=3)
    await done(topic.offsets())
    place = (await done(topic.get(1, 1))).physical_offset
    handle = hand.files.open_append(LOG)
    handle.pwrite(b"\0\0\0\0", place + 4)
    async with entered(topic.reader("g")) as reader:
        assert await bodies(reader.read()) == [*numbers(3), b"10"]
        with pytest.raises(DataError, match="queue 1 of events, from message 1 on"):
            await done(reader.read())
        await done(topic.seek("g", {1: 2}))
        assert await bodies(reader.read()) == [b"12", *numbers(3, 20)]
    assert await done(topic.lag("g")) == {0: 0, 1: 0, 2: 0}


@both_ways_by_hand(**SMALL)
async def test_readers_go_on_in_topics_that_were_opened_anew(node: Any, hand: HandNode) -> None:
    topic = await filled(node, 4)
    async with (
        entered(topic.reader("g", auto_commit=False)) as reader,
        entered(topic.reader("", broadcast=True)) as alone,
    ):
        first, second = await done(reader.read(2))
        await done(first.commit())
        assert await bodies(alone.read(2)) == numbers(2)
        iterated = await some(alone.records(), 1)
        hand.node._running.topics_now().groups.actor_ref.tell("no message that it knows")
        hand.run()
        with pytest.raises(QueueLostError, match="reopened"):
            await done(second.commit())
        assert await bodies(reader.read(2)) == numbers(2)  # the offsets were not written down yet
        hand.node._running.topics_now().groups.actor_ref.tell("no message that it knows")
        hand.run()
        with pytest.raises(QueueLostError, match="reopened"):
            await done(reader.commit())
        assert await bodies(reader.read()) == numbers(4)
        await done(reader.commit())
        assert await done(reader.queues()) == [0]
        assert [one.body for one in iterated] == [b"2"]
        assert await bodies(alone.read()) == numbers(2, 2)  # no other reader shares its position


@both_ways_by_hand(**SMALL)
async def test_what_is_tried_again_comes_later_and_then_is_a_dead_letter(node: Any, hand: HandNode) -> None:
    topic = await done(node.topic("events", queues=1))
    await done(topic.append(b"x", key="k"))
    async with entered(topic.reader("g", consume_from={0: 0})) as reader:
        [record] = await done(reader.read())
        await done(record.retry(delay_level=1))
        assert await done(reader.read()) == []
        hand.advance(2)
        [record] = await done(reader.read())
        assert (record.body, record.topic, record.attempts) == (b"x", "events", 1)
        await done(record.retry(delay_level=-1))
        assert await done(reader.read()) == []
    assert await bodies_read(await done(node.topic("%DLQ%g")), "undertaker") == [b"x"]
    assert await done(topic.lag("g")) == {0: 0}


def test_a_reader_knows_its_name_and_no_argument_that_there_is_not(tmp_path: Any) -> None:
    with warren.open(tmp_path) as node, node.topic("events").reader("g") as reader:
        assert (reader.topic, reader.group, reader.skipped) == ("events", "g", 0)
        assert (repr(node.topic("events")), repr(reader)) == (
            "<warren.Topic 'events'>",
            f"<warren.Reader {reader.name!r} of 'events'>",
        )
        with pytest.raises(TypeError, match="colour"):
            node.topic("events").reader("g", colour="red")  # type: ignore[call-arg]
