"""One queue as its users see it: named situations."""

from __future__ import annotations

import sys

import pytest

from tests.support.process_tools import START_US, Bench, envelope
from warren.actors.engines.errors import PreconditionFailedError, UnknownTagError
from warren.actors.engines.queue.consumers import Consumer
from warren.actors.engines.queue.effects import Delivered
from warren.queue_index.properties import Properties
from warren.storage.settings import Settings


def bodies(count: int) -> list[bytes]:
    return [b"body %d" % number for number in range(count)]


# ── expiry ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_expiry_is_answered_for_without_waking_and_happens_after_waking() -> None:
    bench = Bench({"x-message-ttl": 50})
    bench.publish(*bodies(3))
    assert bench.sleep()
    assert bench.queue.next_deadline_us() == START_US + 50_000
    bench.later(50)
    assert len(bench.queue.backing) == 3
    assert bench.queue.backing.asleep
    bench.queue.settlements.tick()
    assert len(bench.queue.backing) == 0


def test_queue_that_begins_asleep_with_messages_asks_to_be_looked_at() -> None:
    bench = Bench({"x-message-ttl": 50})
    bench.publish(*bodies(3))
    bench.stop_and_start(asleep=True)
    assert bench.queue.backing.asleep
    assert bench.queue.next_deadline_us() == 0
    bench.queue.settlements.tick()
    assert bench.queue.next_deadline_us() == START_US + 50_000
    bench.later(50)
    assert bench.got() == []


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_stop_brings_back_no_more_than_the_limit_whatever_the_overflow(overflow: str) -> None:
    bench = Bench({"x-max-length": 2, "x-overflow": overflow, "x-dead-letter-exchange": "dlx"})
    bench.publish(*bodies(2))
    bench.got(2, ack_required=True)
    bench.publish(b"new", b"newer")
    bench.queue.settlements.tick()
    assert not bench.dead()
    bench.stop_and_start(asleep=True)
    assert bench.queue.next_deadline_us() == 0
    bench.queue.settlements.tick()
    assert bench.dead() == [("maxlen", body) for body in bodies(2)]
    bench.got(1, ack_required=True)
    bench.publish(b"newest")
    bench.queue.settlements.close_channel("get")
    bench.queue.settlements.tick()
    assert not bench.dead()
    assert len(bench.queue.backing) == 3  # a broker, too, sees to that once


# ── what is unacked ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_consumer_is_served_in_runs_up_to_its_prefetch() -> None:
    bench = Bench(settings=Settings())
    bench.queue.consumers.add(Consumer("c", "t", prefetch=500))
    bench.publish(*[b"%03d" % number for number in range(1000)])
    bench.queue.deliveries.deliver()
    deliveries = bench.queue.context.drain_effects().deliveries
    assert [(one.first_tag, one.count) for one in deliveries] == [(1, 500)]
    bench.queue.settlements.ack("c", [range(1, 101)])
    assert bench.delivered()[0] == ("t", 501, b"500")


def test_deliver_stops_where_it_is_told_and_says_that_there_is_more() -> None:
    bench = Bench()
    bench.publish(*bodies(5))
    bench.queue.consumers.add(Consumer("c", "t"))
    assert bench.queue.deliveries.deliver(3)
    assert not bench.queue.deliveries.deliver(2)


def test_unknown_tag_changes_nothing() -> None:
    bench = Bench()
    bench.publish(*bodies(4))
    bench.got(4, ack_required=True)
    bench.queue.settlements.ack("get", [range(2, 3)])
    for tags in ([range(4, 6)], [range(1, 2), range(5, 6)], [range(1)]):
        with pytest.raises(UnknownTagError):
            bench.queue.settlements.ack("get", tags)
    for tag in (5, -1):
        with pytest.raises(UnknownTagError):
            bench.queue.settlements.ack_up_to("get", tag)
    with pytest.raises(UnknownTagError):
        bench.queue.settlements.ack("another", [range(1, 2)])
    assert bench.queue.consumers.unacked == 3
    bench.queue.settlements.ack_up_to("get", 0)
    assert bench.queue.backing.depth == 0


def test_what_is_settled_already_is_left_out_of_a_settlement() -> None:
    bench = Bench({"x-dead-letter-exchange": "dlx"})
    bench.publish(*bodies(8))
    bench.got(8, ack_required=True)
    bench.queue.settlements.ack_up_to("get", 3)
    bench.queue.settlements.ack_up_to("get", 2)
    bench.queue.settlements.ack("get", [range(1, 5), range(4, 5)])
    assert bench.queue.consumers.unacked == 4
    bench.queue.settlements.nack("get", [range(2, 6)], requeue=True)
    bench.queue.settlements.retry("get", [range(5, 7)])
    bench.queue.settlements.nack("get", [range(1, 8)], requeue=False)
    bench.queue.settlements.nack_up_to("get", 7, requeue=False)
    bench.queue.check_invariants()
    assert bench.queue.consumers.unacked == 1
    assert [len(batch.publications) for batch in bench.queue.context.drain_effects().dead_letters] == [1]


def test_closed_channel_gives_back_what_it_had_and_takes_its_consumers_along() -> None:
    bench = Bench(auto_delete=True)
    bench.publish(*bodies(4))
    bench.queue.consumers.add(Consumer("c", "t", prefetch=2))
    assert not bench.queue.is_auto_delete_due
    bench.delivered()
    bench.got(1, ack_required=True, channel="other")
    assert bench.queue.settlements.close_channel("c") == 2
    assert bench.queue.is_auto_delete_due
    assert bench.got() == [b"body 0", b"body 1", b"body 3"]


def test_dead_letters_leave_in_batches_of_bounded_size() -> None:
    bench = Bench({"x-dead-letter-exchange": "dlx"}, settings=Settings())
    many = [b"%d" % number for number in range(2500)]
    bench.publish(*many)
    bench.got(2500, ack_required=True)
    bench.queue.settlements.nack_up_to("get", 0, requeue=False)
    batches = bench.queue.context.effects.dead_letters
    assert [len(batch.publications) for batch in batches] == [1024, 1024, 452]
    assert bench.dead() == [("rejected", body) for body in many]
    assert bench.queue.backing.depth == 0


# ── confirms ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_deleted_queue_answers_who_waits_and_tells_its_consumers() -> None:
    bench = Bench()
    bench.publish(*bodies(3), token="t")
    bench.queue.consumers.add(Consumer("c", "tag", prefetch=1))
    bench.queue.deliveries.deliver()
    with pytest.raises(PreconditionFailedError):
        bench.queue.delete(if_unused=True)
    with pytest.raises(PreconditionFailedError):
        bench.queue.delete(if_empty=True)
    assert bench.queue.delete() == 2
    effects = bench.queue.context.drain_effects()
    assert (effects.confirmed, effects.cancelled) == (["t"], ["tag"])
    assert not bench.files.list("/queues")


# ── time of the queue itself ──────────────────────────────────────────────────────────────────────────────────────────


def test_queue_expires_after_its_last_use_and_never_under_a_consumer() -> None:
    bench = Bench({"x-expires": 1000})
    assert bench.queue.expires_at_us() == START_US + 1_000_000
    bench.later(400)
    bench.publish(b"a publish is no use")
    assert bench.queue.expires_at_us() == START_US + 1_000_000
    bench.got(1)
    assert bench.queue.expires_at_us() == START_US + 1_400_000
    bench.queue.consumers.add(Consumer("c", "t"))
    assert bench.queue.expires_at_us() is None
    bench.later(5000)
    bench.queue.cancel_consumer("t")
    assert bench.queue.expires_at_us() == START_US + 6_400_000
    bench.later(1)
    bench.queue.context.touch()
    assert bench.queue.expires_at_us() == START_US + 6_401_000


# ── sleep ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["default", "lazy"])
def test_sleeping_queue_answers_and_wakes_as_it_was(mode: str) -> None:
    bench = Bench({"x-queue-mode": mode})
    bench.publish(*bodies(20))
    bench.publish(b"x" * 100)
    bench.got(3)
    before = bench.queue.stats()
    assert bench.sleep()
    assert bench.queue.backing.asleep
    after = bench.queue.stats()
    assert after["state"] == "hibernated"
    same = ("messages", "messages_ready", "message_bytes", "message_bytes_persistent", "disk_writes", "disk_reads")
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    status, old = after["backing_queue_status"], before["backing_queue_status"]
    for key in ("mode", "len", "next_seq_id", "next_deliver_seq_id"):
        assert status[key] == old[key]
    assert bench.queue.backing.asleep, "none of that wakes it"
    assert bench.got() == [*bodies(20)[3:], b"x" * 100]
    assert bench.queue.stats()["backing_queue_status"]["mode"] == mode
    assert bench.queue.stats()["disk_writes"] >= before["disk_writes"]


def test_queue_with_something_at_stake_stays_awake() -> None:
    bench = Bench()
    bench.publish(b"transient", like=envelope(persistent=False))
    assert not bench.sleep()
    bench.got()
    assert bench.sleep()
    bench.publish(b"persistent")
    bench.got(1, ack_required=True)
    assert not bench.sleep()
    bench.queue.settlements.ack_up_to("get", 0)
    assert bench.sleep()
    assert not bench.files.list("/queues"), "an empty one leaves nothing"


def test_clean_stop_of_a_sleeping_queue_draws_a_reference_for_it() -> None:
    bench = Bench({"x-max-priority": 1})
    bench.publish(*bodies(2))
    assert bench.sleep()
    terms = bench.queue.close(lambda count: b"r" * count)
    assert sorted(terms) == [b"q\0\0", b"q\0\1"]
    assert {one.persistent_ref for one in terms.values()} == {b"r" * 16}
    assert [terms[name].persistent_count for name in sorted(terms)] == [2, 0]


def test_queue_that_is_not_durable_sleeps_when_it_is_empty() -> None:
    bench = Bench(durable=False)
    bench.publish(*bodies(3), token="t")
    assert bench.queue.context.drain_effects().confirmed == ["t"]
    assert not bench.sleep()
    bench.got()
    assert bench.sleep()
    bench.publish(b"again")
    assert bench.got() == [b"again"]
    assert bench.queue.close(bytes) == {}


def test_idle_sleeping_queue_takes_less_than_five_kilobytes() -> None:
    import tracemalloc

    bench = Bench()
    bench.publish(b"warm")
    bench.queue.hibernate()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    queues = [bench.over(bench.new_backing()) for _ in range(100)]
    for queue in queues:
        queue.hibernate()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert (after - before) / 100 < 5000
    assert sys.getsizeof(queues[0]) < 500


def test_declaration_with_priority_in_properties_reaches_the_dead_letter() -> None:
    bench = Bench({"x-dead-letter-exchange": "dlx"})
    bench.publish(b"1", like=envelope(Properties(delivery_mode=2, priority=4, expiration="10")), expiration_ms=10)
    bench.later(10)
    bench.queue.settlements.tick()
    (letter,) = bench.queue.context.effects.dead_letters[0].publications
    assert letter.priority == 4
    assert letter.headers["x-death"][0]["original-expiration"] == "10"


# ── several consumers ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_consumers_got_in_turns_is_settled_as_it_went_out() -> None:
    bench = Bench(settings=Settings())
    bench.publish(*bodies(1000))
    for tag, prefetch in (("a", 500), ("b", 100), ("c", 500)):
        bench.queue.consumers.add(Consumer(f"channel {tag}", tag, prefetch=prefetch))
    bench.queue.deliveries.deliver()
    deliveries = bench.queue.context.drain_effects().deliveries
    assert len(deliveries) < 10, "a stretch goes to each in one piece"
    got = {tag: [body for one in deliveries if one.consumer == tag for body in one.fetched.bodies()] for tag in "abc"}
    each = bodies(1000)
    wanted = {"a": each[:300:3] + each[300::2], "b": each[1:300:3], "c": each[2:300:3] + each[301::2]}
    assert got == wanted
    bench.queue.settlements.ack("channel a", [range(1, 101), range(151, 152), range(200, 300)])
    bench.queue.settlements.nack("channel b", [range(1, 11)], requeue=True)
    assert bench.queue.settlements.close_channel("channel c") == len(wanted["c"])
    bench.queue.check_invariants()
    left = [*wanted["b"][:10], *wanted["c"]]
    assert sorted(bench.got()) == sorted(left)
    bench.queue.settlements.ack("channel b", [range(11, 101)])
    bench.queue.settlements.close_channel("channel a")
    assert bench.queue.backing.depth == len(wanted["a"]) - 201
    bench.queue.check_invariants()


def test_consumers_of_one_channel_get_its_messages_in_their_order() -> None:
    bench = Bench()
    bench.publish(*bodies(6))
    bench.queue.consumers.add(Consumer("c", "a", prefetch=3))
    bench.queue.consumers.add(Consumer("c", "b", prefetch=3))
    assert [one[1:] for one in bench.delivered()] == [(tag, b"body %d" % (tag - 1)) for tag in range(1, 7)]


def test_consumers_with_and_without_acks_take_turns_too() -> None:
    bench = Bench()
    bench.publish(*bodies(4))
    bench.queue.consumers.add(Consumer("c", "a", prefetch=2))
    bench.queue.consumers.add(Consumer("c", "b", ack_required=False))
    assert bench.delivered() == [("a", 1, b"body 0"), ("b", 0, b"body 1"), ("a", 2, b"body 2"), ("b", 0, b"body 3")]
    assert bench.queue.backing.depth == 2


def test_hand_off_goes_round_and_keeps_to_the_limits() -> None:
    bench, handed = Bench(), list[Delivered]()

    def take(delivered: Delivered) -> bool:
        handed.append(delivered)
        return True

    bench.queue.consumers.add(Consumer("c", "a", acks_unseen=True))
    bench.queue.consumers.add(Consumer("d", "b", acks_unseen=True))
    assert all(bench.queue.deliveries.hand_off(envelope(), b"%d" % number, take) for number in range(4))
    assert [one.consumer for one in handed] == ["a", "b", "a", "b"]
    assert handed[3].fetched.bodies() == [b"3"]
    assert not bench.queue.deliveries.hand_off(envelope(), b"not taken", lambda _: False)
    bench.publish(b"before it")
    assert not bench.queue.deliveries.hand_off(envelope(), b"behind", take)
    none = Bench({"x-max-length": 0, "x-overflow": "reject-publish"})
    none.queue.consumers.add(Consumer("c", "a", acks_unseen=True))
    assert not none.queue.deliveries.hand_off(envelope(), b"refused", take)
    assert len(handed) == 4


# ── found by the machine ──────────────────────────────────────────────────────────────────────────────────────────────


def test_second_message_of_a_batch_that_expires_at_once_does_so_too() -> None:
    bench = Bench({"x-max-length": 1})
    bench.publish(b"1", b"2", expiration_ms=0)
    bench.queue.check_invariants()
    assert bench.queue.backing.depth == 0


def test_batch_that_expires_at_once_is_not_refused_for_the_room_it_never_took() -> None:
    bench = Bench({"x-max-length": 1, "x-overflow": "reject-publish"})
    bench.publish(*bodies(3), expiration_ms=0, token="t")
    bench.sync()
    assert bench.queue.context.drain_effects().confirmed == ["t"]


# ── the head, as the queue below shows it ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["default", "lazy"])
def test_looking_at_the_head_takes_nothing(mode: str) -> None:
    bench = Bench({"x-queue-mode": mode})
    queue = bench.queue.backing.level(0)
    assert (queue.head_expiry(), queue.head_due(5, 9), queue.head_excess(1, 1)) == (None, (0, False), 0)
    queue.publish_many(envelope(), bench.ids.many(3), [b"12", b"345", b""], expiries_us=[10, 20, 0])
    assert queue.head_expiry() == 10
    assert queue.head_due(15, 9) == (1, True)
    assert queue.head_due(5, 9) == (3, False)
    assert queue.head_due(25, 9) == (2, True)
    assert queue.head_due(25, 1) == (1, True)
    assert [queue.head_excess(*excess) for excess in ((0, 1), (0, 2), (0, 3), (2, 1), (9, 9))] == [1, 1, 2, 2, 3]
    assert (len(queue), queue.drop_many(2), queue.drop_many(9), queue.drop_many(1)) == (3, 2, 1, 0)


# ── consumers that share a prefetch ───────────────────────────────────────────────────────────────────────────────────


class Contended:
    """Room that others take between the look at it and the grasp."""

    def __init__(self) -> None:
        self.room = 2
        self.left = 0

    def take(self, count: int) -> int:
        taken = min(count, self.left)
        self.left -= taken
        self.room = self.left
        return taken

    def give_back(self, count: int) -> None:
        self.room = self.left = self.left + count


@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 5, "x-message-ttl": 1000}])
def test_room_that_others_have_taken_meanwhile_keeps_messages_in_the_queue(arguments: dict[str, int]) -> None:
    bench, shared = Bench(arguments), Contended()
    bench.queue.consumers.add(Consumer("c", "t", prefetch=9, shared=shared))
    bench.publish(*bodies(3))
    assert bench.delivered() == []
    assert len(bench.queue.backing) == 3
    shared.give_back(2)
    bench.queue.consumers.resume(shared)
    assert bench.delivered() == [("t", 1, b"body 0"), ("t", 2, b"body 1")]
    bench.queue.check_invariants()


def test_room_that_is_shared_and_not_needed_is_given_back() -> None:
    bench, shared = Bench(), Contended()
    shared.room = shared.left = 5
    bench.publish(b"due", expiration_ms=1)
    bench.publish(b"stays")
    bench.later(10)
    bench.queue.consumers.add(Consumer("c", "t", prefetch=9, shared=shared))
    assert bench.delivered() == [("t", 1, b"stays")]
    assert shared.left == 4
