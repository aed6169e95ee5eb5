"""Consumers and delivery tags by themselves."""

from __future__ import annotations

import random

import pytest

from warren.actors.engines.errors import AccessRefusedError, PreconditionFailedError, UnknownTagError
from warren.actors.engines.queue.consumers import Consumer, Consumers
from warren.actors.engines.queue.delivery_tags import DeliveryTags


def served(consumers: Consumers, count: int) -> list[str]:
    """Who gets the next messages, one at a time."""
    order = []
    for number in range(count):
        chosen = consumers.next()
        if chosen is None:
            break
        consumers.give(chosen[0], 0, range(number, number + 1))
        consumers.check_invariants()
        order.append(chosen[0].consumer.tag)
    return order


def test_equals_take_turns() -> None:
    consumers = Consumers()
    for tag in "abc":
        consumers.add(Consumer("channel", tag))
    assert "".join(served(consumers, 7)) == "abcabca"


def test_lower_priorities_get_what_higher_ones_have_no_room_for() -> None:
    consumers = Consumers()
    consumers.add(Consumer("c", "low", priority=-1))
    consumers.add(Consumer("c", "high", priority=3, prefetch=2))
    consumers.add(Consumer("d", "also high", priority=3, prefetch=1))
    consumers.add(Consumer("d", "middle", prefetch=1))
    assert served(consumers, 6) == ["high", "also high", "high", "middle", "low", "low"]
    consumers.settle("c", [range(1, 2)])
    assert served(consumers, 2) == ["high", "low"]


def test_whoever_has_room_again_stands_at_the_end() -> None:
    consumers = Consumers()
    consumers.add(Consumer("a", "a", prefetch=1))
    consumers.add(Consumer("b", "b", prefetch=2))
    assert served(consumers, 9) == ["a", "b", "b"]
    consumers.settle("b", [range(1, 2)])
    consumers.settle("a", [range(1, 2)])
    assert served(consumers, 9) == ["b", "a"]


def test_whoever_has_room_again_before_its_turn_has_kept_its_place() -> None:
    consumers = Consumers()
    for tag in "abc":
        consumers.add(Consumer(tag, tag, prefetch=1))
    assert served(consumers, 2) == ["a", "b"]
    consumers.settle("b", [range(1, 2)])
    consumers.settle("a", [range(1, 2)])
    assert served(consumers, 9) == ["c", "a", "b"]


def test_alone_it_gets_all_it_has_room_for_in_one_go() -> None:
    consumers = Consumers()
    assert consumers.next() is None
    consumers.add(Consumer("c", "t", prefetch=500))
    chosen = consumers.next()
    assert chosen is not None
    assert chosen[1] == 500
    consumers.give(chosen[0], 0, range(400))
    assert consumers.room == 100
    consumers.settle_up_to("c", 150)
    assert consumers.room == 250
    consumers.check_invariants()


def test_prefetch_means_nothing_without_acks() -> None:
    consumers = Consumers()
    consumers.add(Consumer("c", "t", prefetch=1, ack_required=False))
    assert served(consumers, 5) == ["t"] * 5
    assert consumers.unacked == 0


def test_exclusive_consumer_is_alone() -> None:
    consumers = Consumers()
    consumers.add(Consumer("c", "first"))
    with pytest.raises(AccessRefusedError):
        consumers.add(Consumer("c", "exclusive", exclusive=True))
    consumers.remove("first")
    consumers.add(Consumer("c", "exclusive", exclusive=True))
    with pytest.raises(AccessRefusedError):
        consumers.add(Consumer("d", "another"))
    consumers.remove_channel("c")
    consumers.add(Consumer("d", "another"))


def test_two_consumers_of_one_name_or_a_prefetch_below_zero() -> None:
    consumers = Consumers()
    consumers.add(Consumer("c", "t"))
    for wrong in (Consumer("d", "t"), Consumer("d", "u", prefetch=-1)):
        with pytest.raises(PreconditionFailedError):
            consumers.add(wrong)
    assert len(consumers) == 1


def test_cancelled_consumer_leaves_its_messages_with_the_channel() -> None:
    consumers = Consumers()
    consumers.add(Consumer("c", "t", prefetch=2))
    served(consumers, 2)
    consumers.remove("t")
    consumers.check_invariants()
    assert consumers.unacked_by_channel() == {"c": 2}
    assert [run.seq_ids for run in consumers.settle_up_to("c", 2)] == [range(2)]
    assert consumers.next() is None
    consumers.add(Consumer("c", "t", prefetch=2))
    assert consumers.room == 2, "a new one of the same name begins anew"


def test_single_active_consumer_keeps_its_place_while_it_has_no_room() -> None:
    consumers = Consumers(single_active=True)
    consumers.add(Consumer("a", "first", prefetch=1))
    consumers.add(Consumer("b", "second", priority=9))
    assert served(consumers, 3) == ["first"]
    assert consumers.room == 0
    consumers.settle("a", [range(1, 2)])
    consumers.remove("first")
    assert served(consumers, 2) == ["second"] * 2
    consumers.remove_channel("b")
    assert consumers.active is None
    consumers.check_invariants()


@pytest.mark.parametrize("how", ["settled", "requeued", "joined", "closed"])
def test_successor_waits_for_what_the_cancelled_active_consumer_has_unacked(how: str) -> None:
    consumers = Consumers(single_active=True)
    consumers.add(Consumer("a", "first", prefetch=2))
    consumers.add(Consumer("b", "second"))
    served(consumers, 2)
    consumers.remove("first")
    assert consumers.active is not None
    assert consumers.active.consumer.tag == "second"
    consumers.settle("a", [range(1, 2)])
    assert (consumers.next(), consumers.room) == (None, 0)
    match how:
        case "settled":
            consumers.settle("a", [range(2, 3)])
        case "requeued":
            consumers.hand_out_anew()
        case "joined":
            consumers.add(Consumer("c", "third"))
        case _:
            consumers.remove_channel("a")
    assert served(consumers, 1) == ["second"]
    consumers.check_invariants()


def test_channel_that_goes_takes_the_active_consumer_and_those_that_waited_on_it() -> None:
    consumers = Consumers(single_active=True)
    for channel, tag in (("a", "1"), ("a", "2"), ("b", "3")):
        consumers.add(Consumer(channel, tag))
    served(consumers, 3)
    tags, runs = consumers.remove_channel("a")
    assert (tags, [run.seq_ids for run in runs]) == (["1", "2"], [range(3)])
    assert consumers.active is not None
    assert consumers.active.consumer.tag == "3"
    consumers.check_invariants()


# ── delivery tags ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_messages_in_a_row_are_one_run_whatever_they_come_as() -> None:
    tags: DeliveryTags[str] = DeliveryTags()
    for start in range(0, 1000, 10):
        tags.give(0, range(start, start + 10), "a")
    assert len(tags.runs) == 1
    assert tags.give(0, range(2000, 2001), "a") == 1001, "a gap in the queue"
    assert tags.give(0, range(2001, 2002), "b") == 1002, "another consumer"
    assert tags.give(1, range(2002, 2003), "b") == 1003, "another level"
    assert len(tags.runs) == 4
    assert len(tags) == 1003


def test_tags_stay_unique_after_everything_is_settled() -> None:
    tags: DeliveryTags[None] = DeliveryTags()
    tags.give(0, range(5), None)
    tags.take_all()
    assert tags.give(0, range(5, 6), None) == 6


def test_tags_against_a_dict() -> None:
    rng = random.Random(7)
    for _ in range(200):
        tags: DeliveryTags[int] = DeliveryTags()
        model: dict[int, tuple[int, int, int]] = {}
        seq_id = 0
        for _ in range(rng.randrange(1, 25)):
            if rng.random() < 0.5:
                seq_id += rng.choice([0, 0, 3])
                count, level, owner = rng.randrange(1, 6), rng.choice([0, 0, 1]), rng.choice([1, 1, 2])
                first = tags.give(level, range(seq_id, seq_id + count), owner)
                model |= {first + n: (level, seq_id + n, owner) for n in range(count)}
                seq_id += count
            else:
                low = rng.randrange(0, 40)
                part = range(low, low + rng.randrange(1, 8))
                if rng.random() < 0.3:
                    wanted = [tag for tag in model if tag <= low or low == 0]
                    known = low < tags.next_tag
                    call = lambda: tags.take_present_up_to(low)  # noqa: B023, E731
                elif rng.random() < 0.3:
                    wanted = [tag for tag in part if tag in model]
                    known = low > 0 and part.stop <= tags.next_tag
                    call = lambda: tags.take_present([part])  # noqa: B023, E731
                elif rng.random() < 0.3:
                    wanted = [tag for tag in model if tag <= low or low == 0]
                    known = low == 0 or low in model
                    call = lambda: tags.take_up_to(low)  # noqa: B023, E731
                else:
                    wanted = list(part)
                    known = all(tag in model for tag in part)
                    call = lambda: tags.take([part])  # noqa: B023, E731
                if not known:
                    with pytest.raises(UnknownTagError):
                        call()
                else:
                    runs = call()
                    given = {
                        run.first + n: (run.level, run.seq_id + n, run.owner) for run in runs for n in range(run.count)
                    }
                    assert given == {tag: model.pop(tag) for tag in wanted}
            tags.check_invariants()
            assert len(tags) == len(model)
